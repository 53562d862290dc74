"""Ensembles of solves by explicit Runge-Kutta methods, or by Rodas5P, in which no lane waits for another.

`jax.vmap` of a solve by diffrax runs every sample for as long as the slowest one, and moves the whole state through memory at every
step. Here a batch is a queue of samples and a pool of lanes: a lane that has finished its sample takes the next one, so that the work is
the mean cost of a sample, not the largest. The state lies lanes last, each stage is kept from being computed twice, and between two
looks at the queue there are only arithmetic and selections, which XLA compiles to one kernel.

A lane takes the steps that diffrax would take for its sample alone: the same tableaux, error estimate, PID controller, first step and
interpolation. Derivatives are those of the steps taken, their sizes held fixed, as in diffrax.

Sources: E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4, for the step size control;
P. Kidger, diffrax, for its details. Asynchronous lanes: D. Nagy, L. Plavecz, F. Hegedus, Commun. Nonlinear Sci. 112 (2022) 106521.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, jaxprs_in_params
from jax.interpreters import ad, batching, mlir

from ops.rosenbrock import PLAIN, Rodas5P, between, step_of_lanes

tree_map = jax.tree_util.tree_map
Field = Callable[[Any, Any, Any], Any]

RUNNING, REACHED, MAX_STEPS, STUCK, BEYOND, STIFF = 0, 1, 2, 3, 4, 5
"""How a lane stands: on its way, at the end, out of steps, with no step short enough, with a state too large, or where its problem is
stiff, if that is looked for."""

OFTEN, SELDOM = 15, 6
"""A problem is stiff after so many steps at the bound of stability, among which fewer than so many in a row are within it."""

LANES, EVERY, NUMBERS = 64, 32, 1280
"""Lanes of a pool at most, the steps between two looks at the queue, and the numbers of all lanes: with their stages they should stay in
the nearest cache."""

FEWEST = 4
"""Lanes of a pool, and steps between two looks, however large the state is."""

WAVE = 65536
"""Lanes of a pool on a GPU or TPU, which has no use for few."""

REST = 8
"""When the queue is empty and so many lanes are left, they go on by themselves."""

LARGE, BARRIERS = 2048, jax.__version_info__ >= (0, 11)
"""Numbers of a state, above which a pool needs a compiler that keeps barriers through its fusion."""

VECTOR = 8
"""Lanes come in multiples of it: the numbers of the widest vector."""

REVERSED = 32
"""Lanes of a block that goes back over its steps."""

OPAQUE = ("custom_vjp_call", "custom_vjp_call_jaxpr", "pure_callback", "io_callback", "debug_callback", "custom_lin")
"""What has no derivative in forward mode, or does more than to compute."""

FEW = 24
"""Up to so many numbers a reverse pass takes the whole Jacobian, carried along with the solve: that is faster than to go backwards."""

VALUE, TIME, SAVE, ARGUMENT = "value", "time", "save", "argument"
"""What an operand is: part of the state, a time of the steps, the times of saving, or something else that the field uses."""


@dataclass(frozen=True)
class Steps:
    """How steps are chosen: the settings of diffrax's PIDController, or a fixed size."""

    rtol: float
    atol: float
    pcoeff: float = 0.0
    icoeff: float = 1.0
    dcoeff: float = 0.0
    factormin: float = 0.2
    factormax: float = 10.0
    safety: float = 0.9
    dtmin: float | None = None
    dtmax: float | None = None
    max_abs: float | None = None
    fixed: bool = False
    probe_slack: float | None = None
    """The state is a pair, whose second part may have an error that is so many times as large; None for a plain state."""

    bound: float | None = None
    """The step times an eigenvalue beyond which the method is at the bound of its stability: a solve ends where its problem is stiff. None
    where nobody looks for that."""

    sparse: bool = False
    """Whether most samples may have nothing to solve."""


class State(NamedTuple):
    """A lane on its way, in the direction of integration."""

    y: Any
    slope: Any
    """The field at `y`, if the method uses it again."""

    t: Any
    tnext: Any
    steps: Any
    accepted: Any
    phase: Any

    errors: Any = None
    """Inverse scaled errors of the last two accepted steps, if the controller looks at them."""

    due: Any = None
    """Whether the last attempt passed a time of saving, if there are such times."""

    probe: Any = None
    """What is integrated beside `y` for its error alone, with its slope."""

    limits: Any = None
    """The next jump."""

    wish: Any = None
    """The size of a step that the next jump did not cut short."""

    bounded: Any = None
    """The accepted steps at the bound of stability, and those since that were within it."""


class Saved(NamedTuple):
    """The states at the times of saving."""

    y: Any


class Outcome(NamedTuple):
    """What is known of a sample at its end."""

    y: Any
    t: Any
    phase: Any
    steps: Any
    accepted: Any


class Operands(NamedTuple):
    """What a solve is given."""

    t0: Any
    t1: Any
    first: Any
    jumps: Any
    margin: Any
    low: Any
    high: Any
    y0: Any
    ts: Any
    arguments: list[Any]

    @property
    def sign(self) -> Any:
        """The direction of time."""
        return jnp.where(self.t1 < self.t0, -1, 1).astype(self.t0.dtype)

    def after(self, t: Any) -> Any:
        """The next jump; infinite if there is none."""
        return jnp.min(jnp.where(self.jumps > t, self.jumps, jnp.inf), axis=0)

    def seen(self, t: Any, start: Any, jump: Any) -> Any:
        """The time at which the field of a step from `start` to before `jump` is evaluated: that of one side. It moves as `t` does."""
        if self.jumps is None:
            return t
        low = jnp.max(jnp.where(self.jumps <= start, self.jumps, -jnp.inf), axis=0) + self.margin
        low, high = jnp.maximum(low, self.low), jnp.minimum(jump - self.margin, self.high)
        return t + lax.stop_gradient(jnp.clip(t, low, high) - t)


@dataclass(frozen=True, eq=False)
class Lane:
    """The rules of one explicit Runge-Kutta solve, written for a pool: every array has the lanes as its last axis.

    Operands are flat: t0, t1, the first step, the times of jumps (in the direction of integration) with the distance
    that times of the field keep from them and the first and last of those, the leaves of the state,
    the times of saving, and the arguments.
    """

    field: Field
    """Of time, state and a list of arguments, for one lane."""

    solver: Any
    steps: Steps
    max_steps: int
    structure: Any
    """Of the state."""

    jumps: bool
    saves: bool
    arguments: int
    order: float
    """Of the error estimate."""

    reverse: bool = True
    """Whether derivatives are for a reverse pass: then the solve beside its tangents is one solve more."""

    @property
    def sparse(self) -> bool:
        """Whether most samples may have nothing to solve."""
        return self.steps.sparse

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each operand is."""
        times = 7 if self.jumps else 3
        values, saves = [VALUE] * self.structure.num_leaves, [SAVE] if self.saves else []
        return (*[TIME] * times, *values, *saves, *[ARGUMENT] * self.arguments)

    @property
    def wide(self) -> tuple[bool, ...]:
        """Which operands must have lanes, though all samples share them."""
        jumps = [True] * 4 if self.jumps else []
        others = self.saves + self.arguments
        return (False, False, False, *jumps, *[True] * self.structure.num_leaves, *[False] * others)

    @property
    def kept(self) -> tuple[bool, ...]:
        """Which operands a lane needs after its start."""
        jumps = [True] * 4 if self.jumps else []
        others = self.saves + self.arguments
        return (True, True, self.steps.fixed, *jumps, *[False] * self.structure.num_leaves, *[True] * others)

    def unpack(self, operands: Sequence[Any]) -> Operands:
        """The operands by their names."""
        times, leaves = 7 if self.jumps else 3, self.structure.num_leaves
        after = times + leaves
        begin, end, first = operands[:3]
        jumps, margin, low, high = operands[3:7] if self.jumps else (None, None, None, None)
        return Operands(
            begin,
            end,
            first,
            jumps,
            margin,
            low,
            high,
            jax.tree_util.tree_unflatten(self.structure, operands[times:after]),
            operands[after] if self.saves else None,
            list(operands[after + self.saves :]),
        )

    def slopes(self, flags: Sequence[bool]) -> Field:
        """The field of all lanes; arguments without lanes are shared by them."""
        axes = [-1 if flag else None for flag in flags[len(flags) - self.arguments :]]
        return jax.vmap(self.field, in_axes=(-1, -1, axes), out_axes=-1)

    def start(self, operands: Sequence[Any], flags: Sequence[bool]) -> State:
        """Every lane at the begin of its sample."""
        given = self.unpack(operands)
        whole = given.y0
        lanes = jax.tree_util.tree_leaves(whole)[0].shape[-1:]
        begin, end = jnp.broadcast_to(given.sign * given.t0, lanes), given.sign * given.t1
        slope = None
        if self._reuses:
            seen = given.seen(begin, begin, given.after(begin) if self.jumps else None)
            slope = self.slopes(flags)(given.sign * seen, whole, given.arguments)
        count = jnp.zeros(lanes, jnp.int32)
        errors = (jnp.ones(lanes, _real_of(whole)),) * 2 if self._remembers else None
        phase = jnp.where(begin < end, RUNNING, jnp.where(begin >= end, REACHED, BEYOND)).astype(jnp.int8)
        y, probe = self._parts(whole, slope)
        tnext, limits, wish = begin + given.first, None, None
        if self.jumps:
            limits, wish = given.after(begin), lax.stop_gradient(jnp.broadcast_to(given.first, lanes))
            tnext = jnp.where(tnext < limits, tnext, limits)
        tnext = jnp.minimum(tnext, end)
        now, rate = y
        due = phase < 0 if self.saves else None
        bounded = None if self.steps.bound is None else (count, count)
        return State(now, rate, begin, tnext, count, count, phase, errors, due, probe, limits, wish, bounded)

    def _parts(self, whole: Any, slope: Any) -> tuple[Any, Any]:
        """The state and its slope, and those of the probe."""
        if self.steps.probe_slack is None:
            return (whole, slope), None
        slope = (None, None) if slope is None else slope
        return (whole[0], slope[0]), (whole[1], slope[1])

    def _whole(self, state: State) -> tuple[Any, Any]:
        """The state and its slope, those of the probe included."""
        if self.steps.probe_slack is None:
            return state.y, state.slope
        return (state.y, state.probe[0]), (state.slope, state.probe[1])

    @property
    def _tableau(self) -> Any:
        """The coefficients; None for Euler's method."""
        return self.solver.tableau if isinstance(self.solver, diffrax.AbstractERK) else None

    @property
    def _reuses(self) -> bool:
        """Whether the last stage of a step is the first one of the next."""
        return self._tableau is not None and bool(self._tableau.fsal)

    @property
    def _ends_at_saves(self) -> bool:
        """Whether steps end at the times of saving: between them, the interpolation of a very stiff problem has no digits."""
        return self.saves and not self.steps.fixed and isinstance(self.solver, Rodas5P)

    @property
    def _remembers(self) -> bool:
        """Whether the size of a step depends on the errors of those before it."""
        return not self.steps.fixed and (self.steps.pcoeff != 0 or self.steps.dcoeff != 0)

    def _norm(self, error: Any) -> Any:
        """The square of the scaled error of each lane."""
        if self.steps.probe_slack is None:
            return _mean_square(error)
        of_state, of_probe = error
        probe = _mean_square(of_probe) / self.steps.probe_slack**2
        return jnp.maximum(_mean_square(of_state), jnp.where(jnp.isfinite(probe), probe, 0))

    def _step(
        self, field: Field, t: Any, size: Any, sign: Any, y: Any, slope: Any, arguments: Any
    ) -> tuple[Any, Any, Any, Any]:
        """One step of every lane: the state after it, its error, the stages, and the state of the last stage but one."""
        h = sign * size
        if isinstance(self.solver, Rodas5P):
            pair = self.steps.probe_slack is not None
            return *step_of_lanes(lambda t, y: field(t, y, arguments), t, size, h, y, pair), None
        tableau = self._tableau
        if tableau is None:
            return tree_map(lambda a, k: a + h.astype(_real(a)) * k, y, slope), None, [slope], None
        stages, inner = [slope], y
        for row, c in zip(tableau.a_lower, tableau.c, strict=True):
            before = inner
            inner = tree_map(lambda a, *k, row=row: a + h.astype(_real(a)) * _combined(row, k), y, *stages)
            stage = field(t + float(c) * size, inner, arguments)
            stage, inner = lax.optimization_barrier((stage, inner))  # or XLA's fusion computes stages again
            stages.append(stage)
        if not tableau.ssal:
            inner = tree_map(lambda a, *k: a + h.astype(_real(a)) * _combined(tableau.b_sol, k), y, *stages)
        error = None
        if not self.steps.fixed:
            error = tree_map(lambda *k: h.astype(_real(k[0])) * _combined(tableau.b_error, k), *stages)
        return inner, error, stages, before

    def advance(
        self, state: State, operands: Sequence[Any], flags: Sequence[bool], times: Sequence[Any], later: Any
    ) -> tuple[State, Any]:
        """One attempt at a step in every lane that is on its way.

        A step that passes several times of saving is taken once for each: nothing need be kept from one to the next.

        Args:
            state: where the lanes are.
            operands: of `unpack`, lanes last.
            flags: which operands have lanes.
            times: the next time of saving, in the direction of integration, if there are such times.
            later: the one after it, without tangents.
        """
        given = self.unpack(operands)
        sign, end = given.sign, given.sign * given.t1
        slopes = self.slopes(flags)

        def field(t: Any, y: Any, arguments: Any) -> Any:
            return slopes(sign * given.seen(t, state.t, state.limits), y, arguments)

        active = state.phase == RUNNING
        asked, ends = lax.stop_gradient(state.tnext - state.t), False
        if self._ends_at_saves:
            first = lax.stop_gradient(times[0])
            ends = (first > state.t) & (first < state.tnext)
            state = state._replace(tnext=jnp.where(ends, first, state.tnext))
        size = state.tnext - state.t
        whole, slope = self._whole(state)
        if not self._reuses:
            slope = field(state.t, whole, given.arguments)
        y, error, stages, inner = self._step(field, state.t, size, sign, whole, slope, given.arguments)
        if self.steps.fixed:
            keep, wished, errors = active, given.first, state.errors
        else:
            keep, wished, errors = self._control(state, size, whole, y, error)
            keep &= active
        saved, due, moves = None, None, active
        if self.saves:
            due = keep & (times[0] <= state.tnext)
            held = due & (later <= state.tnext)
            keep &= ~held
            moves = active & ~held
            saved = Saved(self._interpolated(times[0], state, y, stages, sign))
        bounded = None if self.steps.bound is None else self._bounded(state, size, keep, y, inner, stages)
        t = jnp.where(keep, state.tnext, state.t)
        if self._ends_at_saves:
            wished = jnp.where(
                keep & ends & (lax.stop_gradient(size) < 0.5 * asked), jnp.maximum(wished, asked), wished
            )
        last = stages[-1] if self._reuses else None
        limits: Any = None
        wish: Any = None
        if self.jumps:
            wished, taken = lax.stop_gradient((wished, size))
            wished = jnp.where(keep & (taken < 0.5 * state.wish), jnp.maximum(wished, state.wish), wished)
            jumped = keep & (state.tnext >= state.limits)
            limits = jnp.where(jumped, given.after(t), state.limits)
            wish = jnp.where(moves, wished, state.wish)
            if self._reuses:
                beyond = slopes(sign * given.seen(t, t, limits), y, given.arguments)
                last = _chosen(jumped, beyond, last)
        tnext = self._even(given, state.accepted + keep + 1, end) if self.steps.fixed else t + wished
        stuck = tnext <= t
        if not self.steps.fixed:  # no step is short enough
            shortest = t + 2 * float(np.finfo(t.dtype).eps) * jnp.abs(t)
            stuck = ~keep & ((tnext <= shortest) | (tnext == state.tnext))  # rounding may give the same step again
            stuck |= False if self.steps.dtmin is None else ~keep & (wished < self.steps.dtmin)
        if self.jumps:
            tnext = jnp.where(tnext < limits, tnext, limits)
        t = jnp.minimum(t, end)
        floor = lax.stop_gradient(end - 50 * float(np.finfo(end.dtype).eps) * jnp.abs(end))
        tnext = jnp.where(tnext > floor, jnp.where(keep, end, t + 0.5 * (end - t)), tnext)
        steps = state.steps + moves
        phase = jnp.where(steps >= self.max_steps, MAX_STEPS, RUNNING)
        if bounded is not None:
            found = keep & (bounded[0] >= OFTEN)
            found &= ~jumped if self.jumps else True  # a solve that goes on begins where the field is smooth
            phase = jnp.where(found, STIFF, phase)
        phase = jnp.where(stuck, STUCK, phase)
        phase = jnp.where(t >= end, REACHED, phase)
        if self.steps.fixed or self.steps.max_abs is not None:
            bound = jnp.inf if self.steps.max_abs is None else self.steps.max_abs
            phase = jnp.where(keep & ~_within(self._parts(y, None)[0][0], bound), BEYOND, phase)
        last = _chosen(keep, last, slope) if self._reuses else None
        (y, slope), probe = self._parts(_chosen(keep, y, whole), last)
        after = State(
            y,
            slope,
            t,
            jnp.where(moves, tnext, state.tnext),
            steps,
            state.accepted + keep,
            jnp.where(moves, phase, state.phase).astype(jnp.int8),
            _chosen(keep, errors, state.errors),
            due,
            probe,
            limits,
            wish,
            bounded,
        )
        return after, saved

    def _bounded(self, state: State, size: Any, keep: Any, y: Any, inner: Any, stages: Any) -> tuple[Any, Any]:
        """The steps at the bound of stability of each lane, and those since that were within it.

        The last two stages are at one time, so that their slopes differ as their states do, times about the largest eigenvalue
        (E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, 2nd edition, Springer (1996), IV.2); in the norm of the error,
        or the components that are large would hide the fast ones.
        """
        rules = self.steps

        def part(tree: Any) -> Any:
            return lax.stop_gradient(self._parts(tree, None)[0][0])

        largest = tree_map(lambda a, b: jnp.maximum(jnp.abs(a), jnp.abs(b)), lax.stop_gradient(state.y), part(y))

        def difference(new: Any, old: Any) -> Any:
            scaled = tree_map(lambda a, b, c: (a - b) / (rules.atol + rules.rtol * c), part(new), part(old), largest)
            return _mean_square(scaled)

        first, second = (tree_map(lambda k: lax.stop_gradient(size).astype(_real(k)) * k, k) for k in stages[-2:])
        beyond = difference(second, first) > (rules.bound or 0.0) ** 2 * difference(y, inner)
        often, seldom = state.bounded
        within = jnp.where(beyond, 0, seldom + 1)
        counted = jnp.where(beyond, often + 1, jnp.where(within >= SELDOM, 0, often))
        return jnp.where(keep, counted, often), jnp.where(keep, within, seldom)

    def _even(self, given: Operands, number: Any, end: Any) -> Any:
        """The end of a fixed step by its number. As in diffrax: as many steps as are no longer, of which all but the first are equal."""
        begin = given.sign * given.t0
        span, step = lax.stop_gradient((end - begin, given.first))
        count = jnp.maximum(jnp.ceil(span / jnp.nextafter(step, jnp.inf)), 1)
        return jnp.where(number < count, begin + (end - begin) * (number / count), end)

    def _interpolated(self, time: Any, state: State, y: Any, stages: Any, sign: Any) -> Any:
        """The state of each lane at a time within its step."""
        if isinstance(self.solver, Rodas5P):
            part = (time - state.t) / jnp.where(state.tnext == state.t, 1, state.tnext - state.t)
            after, *dense = (self._parts(k, None)[0][0] for k in (y, *stages))
            return tree_map(lambda a, b, *k: between(part.astype(a.dtype), a, b, k), state.y, after, *dense)
        control = sign * (state.tnext - state.t)
        scaled = tree_map(lambda *k: jnp.stack([control.astype(_real(a)) * a for a in k]), *stages)
        if self.steps.probe_slack is not None:
            y, scaled = y[0], scaled[0]

        def one(time: Any, t0: Any, t1: Any, y0: Any, y1: Any, k: Any) -> Any:
            info = {"y0": y0, "y1": y1} | ({"k": k} if isinstance(self.solver, diffrax.AbstractERK) else {})
            return self.solver.interpolation_cls(t0=t0, t1=t1, **info).evaluate(time)

        return jax.vmap(one, in_axes=-1, out_axes=-1)(time, state.t, state.tnext, state.y, y, scaled)

    def _control(self, state: State, size: Any, before: Any, y: Any, error: Any) -> tuple[Any, Any, Any]:
        """Whether each lane keeps its step, the size of its next one, and the inverse errors that the controller remembers."""
        rules = self.steps

        def scaled(before: Any, after: Any, error: Any) -> Any:
            return error / (rules.atol + rules.rtol * jnp.maximum(jnp.abs(before), jnp.abs(after)))

        square = lax.stop_gradient(self._norm(tree_map(scaled, before, y, error)))
        square = jnp.where(square < jnp.inf, square, jnp.inf)  # a number that is none is too large
        keep = square < 1
        order = self.order
        errors = state.errors
        if not self._remembers:
            factor = rules.safety * _inverse_root(square, 2 * order / rules.icoeff)
        else:
            last, older = errors
            inverse = 1 / jnp.sqrt(square)
            factor = rules.safety * inverse ** ((rules.icoeff + rules.pcoeff + rules.dcoeff) / order)
            factor *= last ** (-(rules.pcoeff + 2 * rules.dcoeff) / order) * older ** (rules.dcoeff / order)
            errors = jnp.where((inverse == 0) | jnp.isinf(inverse), 1, inverse), last
        low = jnp.where(keep, 1.0, rules.factormin).astype(factor.dtype)
        high = jnp.where(keep, rules.factormax, rules.safety).astype(factor.dtype)
        size = size * lax.stop_gradient(jnp.clip(factor, low, high)).astype(size.dtype)
        keep, size = lax.optimization_barrier((keep, size))  # or each of what follows takes the root again
        return keep, size if rules.dtmax is None else jnp.minimum(size, rules.dtmax), errors

    def outcome(self, state: State, operands: Sequence[Any]) -> Outcome:
        """What is known of each lane's sample."""
        sign = self.unpack(operands).sign
        return Outcome(state.y, sign * state.t, state.phase, state.steps, state.accepted)


@dataclass(frozen=True, eq=False)
class Tangents:
    """The rules of a solve beside its tangents along several directions.

    Operands are those of the solve, then the tangents of those that move, each with the directions as its first axis.
    """

    of: Any
    moving: tuple[bool, ...]

    @property
    def reverse(self) -> bool:
        """As the solve's."""
        found: bool = self.of.reverse
        return found

    @property
    def max_steps(self) -> int:
        """As the solve's."""
        found: int = self.of.max_steps
        return found

    @property
    def sparse(self) -> bool:
        """As the solve's."""
        found: bool = self.of.sparse
        return found

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each operand is; a tangent is what its operand is."""
        return (*self.of.kinds, *(k for k, m in zip(self.of.kinds, self.moving, strict=True) if m))

    def _of_each(self, inner: Sequence[bool]) -> tuple[bool, ...]:
        return (*inner, *(x for x, m in zip(inner, self.moving, strict=True) if m))

    @property
    def wide(self) -> tuple[bool, ...]:
        """Which operands must have lanes, though all samples share them."""
        return self._of_each(self.of.wide)

    @property
    def kept(self) -> tuple[bool, ...]:
        """Which operands a lane needs after its start."""
        return self._of_each(self.of.kept)

    @property
    def _times_move(self) -> bool:
        return any(m and k == TIME for k, m in zip(self.of.kinds, self.moving, strict=True))

    def able(self, tree: Any) -> list[bool]:
        """Which leaves of a state, a row or a result may have tangents."""
        paths, leaves = zip(*jax.tree_util.tree_flatten_with_path(tree)[0], strict=True)
        still = () if self._times_move else ("t", "tnext", "limits")
        names = [next((key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)), "") for path in paths]
        return [
            jnp.issubdtype(leaf.dtype, jnp.inexact) and name not in ("errors", "probe", "wish", *still)
            for leaf, name in zip(leaves, names, strict=True)
        ]

    def _split(self, tree: Any) -> tuple[list[Any], list[Any], Callable[[list[Any], list[Any]], Any]]:
        """The leaves of a state or a row that may have tangents, the others, and what puts them together."""
        leaves, structure = jax.tree_util.tree_flatten(tree)
        able = self.able(tree)

        def join(moving: list[Any], others: list[Any]) -> Any:
            a, b = iter(moving), iter(others)
            return jax.tree_util.tree_unflatten(structure, [next(a) if m else next(b) for m in able])

        moving = [leaf for leaf, m in zip(leaves, able, strict=True) if m]
        return moving, [leaf for leaf, m in zip(leaves, able, strict=True) if not m], join

    def _push(self, function: Callable[..., Any], moving: list[Any], tangents: list[Any]) -> tuple[Any, list[Any]]:
        """A function's value, and the tangents of those parts of it that may have some."""
        if not moving:
            raise AssertionError("a solve without anything that moves has no tangents")

        def along(directions: list[Any]) -> Any:
            def parts(*moving: Any) -> Any:
                found, others, join = self._split(function(*moving))
                joins.append(join)
                return found, others

            joins: list[Any] = []
            found, tangent, others = jax.jvp(parts, tuple(moving), tuple(directions), has_aux=True)
            return joins[-1](found, others), tangent

        value, tangent = jax.vmap(along, out_axes=(None, 0))(tangents)
        return value, tangent

    def _operands(self, operands: Sequence[Any], flags: Sequence[bool]) -> tuple[list[Any], list[Any], list[bool]]:
        count = len(self.of.kinds)
        return list(operands[:count]), list(operands[count:]), list(flags[:count])

    def _with(self, primals: list[Any], moved: Sequence[Any]) -> list[Any]:
        """The operands with other values for those that move."""
        at = iter(moved)
        return [next(at) if m else p for p, m in zip(primals, self.moving, strict=True)]

    def start(self, operands: Sequence[Any], flags: Sequence[bool]) -> Any:
        """Every lane at the begin of its sample, with its tangents."""
        primals, tangents, flags = self._operands(operands, flags)
        moving = [p for p, m in zip(primals, self.moving, strict=True) if m]
        return self._push(lambda *moved: self.of.start(self._with(primals, moved), flags), moving, tangents)

    def advance(
        self, state: Any, operands: Sequence[Any], flags: Sequence[bool], times: Sequence[Any], later: Any
    ) -> tuple[Any, Any]:
        """One attempt at a step in every lane that is on its way, with its tangents."""
        primals, tangents, flags = self._operands(operands, flags)
        moving = [p for p, m in zip(primals, self.moving, strict=True) if m]
        inner, of_state = state
        parts, others, join = self._split(inner)
        saves = [m for k, m in zip(self.of.kinds, self.moving, strict=True) if k == SAVE]
        times, of_times = list(times[: len(saves)]), list(times[len(saves) :])
        moments = [time for time, m in zip(times, saves, strict=True) if m]

        def one(*moved: Any) -> Any:
            a, b = len(parts), len(parts) + len(moments)
            at = iter(moved[a:b])
            instants = [next(at) if m else time for time, m in zip(times, saves, strict=True)]
            now = join(list(moved[:a]), others)
            return self.of.advance(now, self._with(primals, moved[b:]), flags, instants, later)

        (after, saved), tangent = self._push(one, [*parts, *moments, *moving], [*of_state, *of_times, *tangents])
        count = len(parts)
        return (after, tangent[:count]), None if saved is None else (saved, tangent[count:])

    def outcome(self, state: Any, operands: Sequence[Any]) -> Any:
        """What is known of each lane's sample, with the tangents of its state and time."""
        primals, tangents, _ = self._operands(operands, [False] * len(operands))
        moving = [p for p, m in zip(primals, self.moving, strict=True) if m]
        inner, of_state = state
        parts, others, join = self._split(inner)

        def one(*moved: Any) -> Any:
            return self.of.outcome(join(list(moved[: len(parts)]), others), self._with(primals, moved[len(parts) :]))

        return self._push(one, [*parts, *moving], [*of_state, *tangents])


def _combined(weights: Any, stages: Sequence[Any]) -> Any:
    """A weighted sum of stages."""
    terms = [float(w) * k for w, k in zip(weights, stages, strict=False) if w != 0]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _mean_square(tree: Any) -> Any:
    """The mean square over all components, of each lane."""
    leaves = jax.tree_util.tree_leaves(tree)
    count = max(sum(int(np.prod(leaf.shape[:-1])) for leaf in leaves), 1)
    return sum(jnp.sum(jnp.square(jnp.abs(leaf)).reshape(-1, leaf.shape[-1]), axis=0) for leaf in leaves) / count


def _chosen(condition: Any, new: Any, old: Any) -> Any:
    """For each lane one of two."""
    return tree_map(lambda a, b: jnp.where(condition, a, b), new, old)


def _within(tree: Any, bound: Any) -> Any:
    """Whether all numbers of each lane are finite and at most as large as a bound."""
    leaves = [jnp.abs(leaf).reshape(-1, leaf.shape[-1]) for leaf in jax.tree_util.tree_leaves(tree)]
    inside = [jnp.all((leaf <= bound) & (leaf < jnp.inf), axis=0) for leaf in leaves]
    return functools.reduce(jnp.logical_and, inside)


def _real_of(tree: Any) -> Any:
    """The real dtype of a state."""
    return np.finfo(jnp.result_type(*jax.tree_util.tree_leaves(tree))).dtype


def _real(leaf: Any) -> Any:
    """The real dtype of an array."""
    return np.finfo(leaf.dtype).dtype


def _inverse_root(square: Any, power: float) -> Any:
    """`square ** (-1 / power)` to the last digits, by arithmetic alone where `power` is an integer, as it nearly always is.

    A call of `pow` costs as much as all stages of a step. The bits of a float are nearly its logarithm: so begin C. J. Walczyk,
    L. V. Moroz, J. L. Cieslinski, Entropy 23, 86 (2021). One step of Householder's method of order four and one of Newton's do the rest.
    """
    n = round(power)
    if power != n or square.dtype not in (jnp.float32, jnp.float64):
        return jnp.maximum(square, np.finfo(square.dtype).tiny) ** (-1 / power)
    square = jnp.clip(square, 1e-30, 1e30)
    bits = lax.bitcast_convert_type(square.astype(jnp.float32), jnp.int32).astype(jnp.float32)
    one = np.float32(2**23 * (127 - 0.043))
    guess = (one * np.float32(1 + 1 / power) - bits * np.float32(1 / power)).astype(jnp.int32)
    root = lax.bitcast_convert_type(guess, jnp.float32).astype(square.dtype)
    off = 1 - square * lax.integer_pow(root, n)
    cubic, fourth = (n + 1) / (2 * n), (n + 1) * (2 * n + 1) / (6 * n**2)
    root = root + root * (off * (1 / n)) * (1 + off * (cubic + off * fourth))
    return root + root * ((1 - square * lax.integer_pow(root, n)) * (1 / n))


def drive(
    rules: Any, operands: Sequence[Any], flags: Sequence[bool], count: int, wanted: Sequence[int]
) -> tuple[list[Any], Any]:
    """Solve `count` samples.

    Args:
        rules: a `Lane`, or its `Tangents`.
        operands: arrays; those with a flag have the samples as their first axis.
        flags: which those are.
        count: the number of samples.
        wanted: the places of the leaves of an outcome that are asked for.

    Returns:
        The leaves of an outcome with the samples as the first axis of each, None for what is not wanted; then what was saved, if
        the rules save.
    """
    kinds = rules.kinds
    wide = [flag or lies for flag, lies in zip(flags, rules.wide, strict=True)]
    depth = [len(axes) for axes in _levels(rules)]
    saves = [i for i, kind in enumerate(kinds) if kind == SAVE]
    common = [
        x[0] if i in saves and flags[i] else x for i, x in enumerate(operands)
    ]  # no step looks at times of saving

    def load(index: Any) -> list[Any]:
        """The operands of some samples, lanes last; of the times of saving, any."""
        at = jnp.minimum(index, count - 1)

        def one(i: int) -> Any:
            if i in saves:
                return common[i]
            if flags[i]:
                return jnp.moveaxis(operands[i][at], 0, -1)
            if wide[i]:
                return jnp.broadcast_to(operands[i][..., None], (*operands[i].shape, index.shape[0]))
            return operands[i]

        return [one(i) for i in range(len(operands))]

    one = jax.eval_shape(lambda o: rules.start(o, wide), jax.eval_shape(load, jnp.zeros(1, int)))
    lanes, every = _width(sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(one)), count)
    nobody = jnp.full(lanes, count)
    held = jax.eval_shape(load, nobody)
    lying = [i for i in range(len(operands)) if wide[i] and i not in saves]
    carried = [i for i in lying if rules.kept[i]]
    blank: Callable[..., Any] = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731

    def full(values: Sequence[Any], width: int = lanes) -> list[Any]:
        """The operands of the lanes; of those that no step needs, none that mean anything."""
        every_one = [
            jnp.zeros((*held[i].shape[:-1], width), held[i].dtype) if i in lying else x for i, x in enumerate(common)
        ]
        for i, value in zip(carried, values, strict=True):
            every_one[i] = value
        return every_one

    number = 0 if not saves else int(operands[saves[0]].shape[-1])

    def times_of(index: Any, saved: Any, operand: Sequence[Any]) -> tuple[list[Any], Any]:
        """The next time of saving of each lane, with its tangents, and the one after it, in the direction of integration."""
        if not number:
            return [], None
        sign = jnp.where(operand[1] < operand[0], -1, 1).astype(operand[0].dtype)
        sample = jnp.minimum(index, count - 1)

        def at(i: int, place: Any) -> Any:
            place = jnp.minimum(place, number - 1)
            if not flags[i]:
                return sign * operands[i][..., place]
            return sign * (
                jnp.moveaxis(operands[i], 0, -1)[..., place, sample] if depth[i] else operands[i][sample, place]
            )

        first = [jnp.where(saved < number, at(i, saved), jnp.inf if not depth[i] else 0) for i in saves]
        return first, jnp.where(saved + 1 < number, at(saves[0], saved + 1), jnp.inf)

    state, outcome = jax.eval_shape(lambda o: (rules.start(o, wide), rules.outcome(rules.start(o, wide), o)), held)
    table = Table(outcome, wanted)
    kept: Any = None
    if number:
        value = jax.eval_shape(lambda s, o: rules.advance(s, o, wide, *times_of(nobody, nobody, o))[1], state, held)
        leaves, structure = jax.tree_util.tree_flatten(value)
        kept = jax.tree_util.tree_unflatten(
            structure,
            [
                jnp.full((count, number, *leaf.shape[:-1]), 0 if axes else _blank(leaf.dtype), leaf.dtype)
                for leaf, axes in zip(leaves, _levels_of(rules, value), strict=True)
            ],
        )

    def rows_of(state: Any, values: Any) -> Any:
        return table.rows(rules.outcome(state, full(values, _primal(rules, state).phase.shape[0])))

    def refill(carry: Any) -> Any:
        """Write the results of the lanes that are done, and give each the next sample."""
        done, state, values, index, out, saved, head, _ = carry
        target = jnp.where(done, index, count)
        out = tree_map(lambda o, v: o.at[target].set(v), out, rows_of(state, values))
        before = _sums(done)
        index = jnp.where(done, jnp.minimum(head + before - 1, count), index)
        new = load(index)
        begun = rules.start(new, wide)
        state = tree_map(lambda a, b: jnp.where(done, a, b), begun, state)
        values = [jnp.where(done, new[i], old) for i, old in zip(carried, values, strict=True)]
        saved = jnp.where(done, 0, saved) if number else saved
        return state, values, index, out, saved, head + before[-1], jnp.any(index < count)

    def attempt(carry: Any, _: Any) -> Any:
        state, values, index, saved = carry
        operand = full(values, index.shape[0])
        state, value = rules.advance(state, operand, wide, *times_of(index, saved, operand))
        if value is None:
            return (state, values, index, saved), None
        due = _primal(rules, state).due
        return (state, values, index, saved + due), (value, jnp.where(due, saved, number), due)

    def attempts(parts: Any, kept: Any) -> Any:
        """Some attempts of every lane; what they pass is saved."""

        def some(parts: Any) -> Any:
            return lax.scan(attempt, parts, None, length=every)

        if rules.sparse:
            rows = tree_map(blank, jax.eval_shape(some, parts)[1])
            busy = jnp.any(_primal(rules, parts[0]).phase == RUNNING)
            parts, rows = lax.cond(busy, some, lambda parts: (parts, rows), parts)
        else:
            parts, rows = some(parts)
        if number:
            value, place, due = rows
            target = jnp.where(due, parts[2], count)
            kept = tree_map(lambda o, v: o.at[target, place].set(jnp.moveaxis(v, -1, 1), mode="drop"), kept, value)
        return parts, kept

    rest = REST if lanes >= 4 * REST and count > lanes else 0

    def body(carry: Any) -> Any:
        state, values, index, out, saved, kept, head, busy = carry
        done = _primal(rules, state).phase != RUNNING
        parts = done, state, values, index, out, saved, head, busy
        due = jnp.any(done & (index < count)) | (head == 0)
        state, values, index, out, saved, head, busy = lax.cond(due, refill, lambda c: c[1:], parts)
        (state, values, index, saved), kept = attempts((state, values, index, saved), kept)
        if rest:
            left = jnp.sum((_primal(rules, state).phase == RUNNING) & (index < count))
            busy = (head < count) | (left > rest)
        return state, values, index, out, saved, kept, head, busy

    idle = _reached(rules, tree_map(blank, state))
    none = jnp.zeros((), nobody.dtype)
    saved = jnp.zeros_like(nobody) if number else None
    carry = (idle, [blank(held[i]) for i in carried], nobody, table.empty(count), saved, kept, none, none == 0)
    state, values, index, out, saved, kept, *_ = lax.while_loop(lambda c: c[-1], body, carry)
    if rest:  # the lanes that are left take narrow steps; at the end all rows are written at once
        running = (_primal(rules, state).phase == RUNNING) & (index < count)
        _, chosen = lax.top_k(running, rest)
        last = tree_map(lambda leaf: leaf[..., chosen], (state, values, jnp.where(running, index, count), saved))
        last, kept = lax.while_loop(
            lambda c: jnp.any((_primal(rules, c[0][0]).phase == RUNNING) & (c[0][2] < count)),
            lambda c: attempts(*c),
            (last, kept),
        )
        target = jnp.concatenate([jnp.where(running, count, index), last[2]])
        rows = tree_map(lambda *parts: jnp.concatenate(parts), rows_of(state, values), rows_of(*last[:2]))
        out = tree_map(lambda o, v: o.at[target].set(v), out, rows)
    found = table.read(out, count)
    if number:
        leaves, structure = jax.tree_util.tree_flatten(kept)
        axes = _levels_of(rules, kept)
        leaves = [jnp.moveaxis(leaf, 1, 1 + len(a)) for leaf, a in zip(leaves, axes, strict=True)]
        kept = jax.tree_util.tree_unflatten(structure, leaves)
    return found, kept


class Table:
    """The results of samples as rows, one array for each kind of number: one write instead of many."""

    def __init__(self, outcome: Any, wanted: Sequence[int]):
        self.all = jax.tree_util.tree_leaves(outcome)
        self.leaves = {place: leaf for place, leaf in enumerate(self.all) if place in wanted}

    @staticmethod
    def _kind(leaf: Any) -> str:
        return str(leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else "int32"

    @property
    def kinds(self) -> list[str]:
        """The dtypes of the arrays."""
        return sorted({self._kind(leaf) for leaf in self.leaves.values()})

    def _of(self, kind: str) -> list[int]:
        return [place for place, leaf in self.leaves.items() if self._kind(leaf) == kind]

    def _size(self, place: int) -> int:
        return math.prod(self.leaves[place].shape[:-1])

    def empty(self, count: int) -> dict[str, Any]:
        """Arrays for so many samples, and one row more that nobody reads."""
        return {kind: jnp.zeros((count + 1, sum(map(self._size, self._of(kind)))), kind) for kind in self.kinds}

    def rows(self, outcome: Any) -> dict[str, Any]:
        """The rows of lanes."""
        leaves = jax.tree_util.tree_leaves(outcome)
        lanes = leaves[0].shape[-1]
        parts = {k: [leaves[i].reshape(self._size(i), lanes).astype(k) for i in self._of(k)] for k in self.kinds}
        return {kind: jnp.concatenate(part).T for kind, part in parts.items()}

    def read(self, arrays: dict[str, Any], count: int) -> list[Any]:
        """The results of `count` samples, the samples first."""
        found: list[Any] = [None] * len(self.all)
        for kind in self.kinds:
            begin = 0
            for i in self._of(kind):
                leaf, end = self.leaves[i], begin + self._size(i)
                found[i] = arrays[kind][:count, begin:end].reshape(count, *leaf.shape[:-1]).astype(leaf.dtype)
                begin = end
        return found


def _sums(done: Any) -> Any:
    """How many lanes up to each are done; for few lanes without a scan, which is several kernels."""
    lanes = done.shape[0]
    if lanes > 512:
        return jnp.cumsum(done)
    upto = np.tri(lanes, dtype=bool)
    return jnp.sum(upto & done, axis=1)


def _width(numbers: int, count: int) -> tuple[int, int]:
    """The lanes of a pool of `count` samples whose state is so many numbers, and the attempts between two looks at the queue."""
    if count == 1:
        return 1, 1
    if jax.default_backend() != "cpu":
        return _rounded(min(WAVE, count)), EVERY
    lanes = max(FEWEST, min(LANES, 2 ** int(math.log2(max(NUMBERS / numbers, 1)))))
    return (lanes if lanes < VECTOR else _rounded(min(lanes, count))), min(EVERY, lanes)


def _rounded(lanes: int) -> int:
    """Lanes that fill vectors, so that no number is computed by other instructions than its neighbours."""
    return lanes if lanes == 1 else -(-lanes // VECTOR) * VECTOR


def _reached(rules: Any, state: Any) -> Any:
    """The state of lanes that have nothing to do."""
    if isinstance(rules, Lane):
        return state._replace(phase=jnp.full_like(state.phase, REACHED))
    return _reached(rules.of, state[0]), state[1]


def _levels(rules: Any) -> list[tuple[int, ...]]:
    """The axes of directions that each operand has, outermost first, by the nesting of the tangents."""
    if isinstance(rules, Lane):
        return [()] * len(rules.kinds)
    inner, level = _levels(rules.of), _nesting(rules)
    return [*inner, *((level, *axes) for axes, m in zip(inner, rules.moving, strict=True) if m)]


def _levels_of(rules: Any, found: Any) -> list[tuple[int, ...]]:
    """The axes of directions that each leaf of a result has."""
    if isinstance(rules, Lane):
        return [()] * len(jax.tree_util.tree_leaves(found))
    inner, level = _levels_of(rules.of, found[0]), _nesting(rules)
    return [*inner, *((level, *axes) for axes, m in zip(inner, rules.able(found[0]), strict=True) if m)]


def _nesting(rules: Any) -> int:
    """How often a solve has been differentiated."""
    return 0 if isinstance(rules, Lane) else 1 + _nesting(rules.of)


def _some(held: Sequence[Any], places: Sequence[int]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Some of the operands, and what puts others in their places."""

    def put(values: Sequence[Any]) -> list[Any]:
        made = list(held)
        for i, value in zip(places, values, strict=True):
            made[i] = value
        return made

    return [held[i] for i in places], put


def _floats(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves that may have a derivative, and what puts others in their places."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    chosen, put = _some(leaves, places)
    return chosen, lambda values: jax.tree_util.tree_unflatten(structure, put(values))


def _of_lane(leaf: Any, place: Any) -> Any:
    """For each lane one entry of the axis before the last."""
    return leaf[..., place, jnp.arange(place.shape[0])]


def _no_cotangent(leaf: Any) -> Any:
    """A cotangent of zero."""
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return jnp.zeros(leaf.shape, leaf.dtype) if inexact else np.zeros(leaf.shape, jax.dtypes.float0)


def _primal(rules: Any, tree: Any) -> Any:
    """A state or an outcome without tangents."""
    return tree if isinstance(rules, Lane) else _primal(rules.of, tree[0])


def _blank(dtype: Any) -> Any:
    """What stands where nothing has been saved."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0


PRIMITIVE: Any = Primitive("ensemble")
"""A solve of one sample, or of `count` of them.

Operands: those of the rules. Those with a flag have an axis of samples first; then come the axes of directions of a tangent.
Parameters: `rules`; `program`, that of the vector field, for those who look into programs; `flags`; `count`, None for one sample;
`wanted`, the places of the results that are asked for among all that a solve gives.
"""
PRIMITIVE.multiple_results = True


def hindrance(program: Any, scheme: Any) -> str:
    """Why a pool of lanes cannot solve with a method and a vector field; empty if it can: with an explicit Runge-Kutta method, or Rodas5P
    for a few numbers, and a field that is differentiated as it stands, and does nothing but compute."""
    numbers = sum(math.prod(x.shape) for x in program.out_avals)
    own = next((name for name in ("init", "step", "func") if not _inherits(type(scheme), name)), "")
    if own:
        return f"{type(scheme).__name__} has a method {own} of its own"
    if issubclass(type(scheme), Rodas5P):
        if numbers > PLAIN * (1 + scheme.pair):
            return f"its state has more than {PLAIN} numbers"
    elif numbers > LARGE and not BARRIERS:
        return f"its state has more than {LARGE} numbers, and this JAX would compute its stages again and again"
    elif not issubclass(type(scheme), diffrax.AbstractERK | diffrax.Euler):  # isinstance sees through HalfSolver
        return f"{type(scheme).__name__} is neither an explicit Runge-Kutta method nor Rodas5P"
    opaque = next((name for name in _applied(program.jaxpr) if name in OPAQUE), "an effect" if program.effects else "")
    return f"its vector field has {opaque}" if opaque else ""


def _inherits(kind: type, method: str) -> bool:
    """Whether a solver, if it is of a kind that a pool knows, does as that kind does."""
    known = (diffrax.AbstractERK, diffrax.Euler, Rodas5P)
    return all(getattr(kind, method) is getattr(base, method) for base in known if issubclass(kind, base))


def _applied(jaxpr: Any) -> Iterator[str]:
    """The names of the primitives of a program, its loops and branches included."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from _applied(inner)


def solve(
    program: Any,
    scheme: Any,
    steps: Steps,
    y0: Any,
    *,
    t0: Any,
    t1: Any,
    first: Any,
    ts: Any,
    jumps: Any,
    max_steps: int,
    order: float,
    reverse: bool,
) -> tuple[Outcome, Any]:
    """Solve one sample, or under `jax.vmap` an ensemble of them; differentiable in both modes, again and again.

    Args:
        program: the vector field, a ClosedJaxpr of time and state; what it closes over may be batched and differentiated.
        scheme: an explicit Runge-Kutta method of diffrax.
        steps: how steps are chosen.
        y0: the initial state; a pair of it and of a probe if steps are chosen by both.
        t0: start time.
        t1: end time.
        first: size of the first step, or of all steps.
        ts: times of saving, in the order of integration; None for the state at the end alone.
        jumps: the times of jumps and the distance that steps keep from them, or None.
        max_steps: attempts after which a solve gives up.
        order: of the error estimate.
        reverse: whether derivatives are taken backwards.

    Returns:
        The outcome, and the states at `ts` with time as the first axis, or None.
    """
    structure = jax.tree_util.tree_structure(y0)

    def field(t: Any, y: Any, consts: Any) -> Any:
        found = jax.core.eval_jaxpr(program.jaxpr, consts, t, *jax.tree_util.tree_leaves(y))
        return jax.tree_util.tree_unflatten(structure, found)

    arguments = [jnp.asarray(x) for x in program.consts]
    rules = Lane(
        field, scheme, steps, max_steps, structure, jumps is not None, ts is not None, len(arguments), order, reverse
    )
    values = [] if ts is None else [ts]
    operands = [t0, t1, first, *(jumps or ()), *jax.tree_util.tree_leaves(y0), *values, *arguments]
    operands = [jnp.asarray(x) for x in operands]
    shapes = _results(rules, operands, [False] * len(operands), None)
    leaves, whole = jax.tree_util.tree_flatten(shapes)
    flags = (False,) * len(operands)
    wanted = tuple(range(len(leaves)))
    found = PRIMITIVE.bind(*operands, rules=rules, program=program.jaxpr, flags=flags, count=None, wanted=wanted)
    outcome, saved = jax.tree_util.tree_unflatten(whole, found)
    return outcome, None if saved is None else saved.y


def _results(rules: Any, operands: Sequence[Any], flags: Sequence[bool], count: int | None) -> Any:
    """The shapes of all that a solve gives."""
    if isinstance(rules, Lane):
        shapes = [
            jax.ShapeDtypeStruct(x.shape[1:] if flag else x.shape, x.dtype)
            for x, flag in zip(operands, flags, strict=True)
        ]
        front = () if count is None else (count,)
        given = rules.unpack(shapes)
        y0, ts = given.y0, given.ts
        y0 = y0 if rules.steps.probe_slack is None else y0[0]
        make: Callable[..., Any] = lambda shape, dtype: jax.ShapeDtypeStruct((*front, *shape), dtype)  # noqa: E731
        y = tree_map(lambda leaf: make(leaf.shape, leaf.dtype), y0)
        outcome = Outcome(y, make((), shapes[0].dtype), make((), jnp.int8), make((), jnp.int32), make((), jnp.int32))
        saved = None if ts is None else Saved(tree_map(lambda leaf: make((ts.shape[-1], *leaf.shape), leaf.dtype), y0))
        return outcome, saved
    base = len(rules.of.kinds)
    inner = _results(rules.of, operands[:base], flags[:base], count)
    width = operands[base].shape[int(flags[base])]
    place = 0 if count is None else 1

    def beside(part: Any) -> Any:
        if part is None:
            return None
        shapes = [leaf for leaf, m in zip(jax.tree_util.tree_leaves(part), rules.able(part), strict=True) if m]
        return part, [jax.ShapeDtypeStruct((*x.shape[:place], width, *x.shape[place:]), x.dtype) for x in shapes]

    return beside(inner[0]), beside(inner[1])


def _compute(*operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any) -> list[Any]:
    """The results that are asked for."""
    if count == 0:
        return _nothing(_abstract(*operands, rules=rules, program=program, flags=flags, count=count, wanted=wanted))
    of_one = count is None
    given, wide = (operands, flags) if of_one else _tied(rules, list(operands), list(flags), count)
    found, kept = drive(rules, given, wide, 1 if of_one else count, wanted)
    leaves = [*found, *jax.tree_util.tree_leaves(kept)]
    return [leaves[i][0] if of_one else leaves[i] for i in wanted]


def _abstract(*operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any) -> list[Any]:
    del program
    leaves = jax.tree_util.tree_leaves(_results(rules, operands, flags, count))
    return [jax.core.ShapedArray(leaves[i].shape, leaves[i].dtype) for i in wanted]


def _nothing(shapes: Sequence[Any]) -> list[Any]:
    """The results for no samples."""
    return [jnp.zeros(x.shape, x.dtype) for x in shapes]


def _arrays(operands: Sequence[Any]) -> list[Any]:
    """Operands as arrays: JAX hands on a number that stands in a program without a shape."""
    return [x if hasattr(x, "shape") or ad.is_undefined_primal(x) else jnp.asarray(x, x.dtype) for x in operands]


@functools.lru_cache(maxsize=64)
def _compiled(**parameters: Any) -> Any:
    return jax.jit(functools.partial(_compute, **parameters))


def _evaluate(*operands: Any, **parameters: Any) -> list[Any]:
    with jax.disable_jit(False):  # one operation, as the loop of a solve is
        found: list[Any] = _compiled(**parameters)(*operands)
    return found


def _batch(operands: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of `jax.vmap`: more directions where only tangents differ, else more samples."""
    operands = _arrays(operands)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    batched = [d is not None for d in dims]
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [jnp.moveaxis(x, d, 0) if b else x for x, d, b in zip(operands, dims, batched, strict=True)]
    axes = _levels(rules)
    for level in range(1, _nesting(rules) + 1):
        if all(level in a for a, b in zip(axes, batched, strict=True) if b):
            return _more_directions(level, size, batched, moved, parameters)
    if count is None:
        found = PRIMITIVE.bind(*moved, **parameters | {"flags": tuple(batched), "count": size})
        return found, [0] * len(wanted)
    merged, wide = [], []
    for leaf, outer, inner in zip(moved, batched, flags, strict=True):
        if outer and not inner:
            leaf = jnp.broadcast_to(leaf[:, None], (size, count, *leaf.shape[1:]))
        elif inner and not outer:
            leaf = jnp.broadcast_to(leaf, (size, *leaf.shape))
        merged.append(leaf.reshape(size * count, *leaf.shape[2:]) if outer or inner else leaf)
        wide.append(outer or inner)
    found = PRIMITIVE.bind(*merged, **parameters | {"flags": tuple(wide), "count": size * count})
    return [leaf.reshape(size, count, *leaf.shape[1:]) for leaf in found], [0] * len(wanted)


def _more_directions(
    level: int, size: int, batched: Sequence[bool], operands: Sequence[Any], parameters: dict[str, Any]
) -> tuple[Any, Any]:
    """A batch in which only tangents of one level differ."""
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    folded, width = [], 1
    for leaf, axes, b, flag in zip(operands, _levels(rules), batched, flags, strict=True):
        if level in axes:
            axis = axes.index(level) + flag
            leaf = leaf if b else jnp.broadcast_to(leaf, (size, *leaf.shape))
            leaf = jnp.moveaxis(leaf, 0, axis)
            width = leaf.shape[axis + 1]
            leaf = leaf.reshape(*leaf.shape[:axis], size * width, *leaf.shape[axis + 2 :])
        folded.append(leaf)
    found = PRIMITIVE.bind(*folded, **parameters)
    outcome, saved = _results(rules, folded, flags, count)
    every = [*_levels_of(rules, outcome), *([] if saved is None else _levels_of(rules, saved))]
    spread, dims = [], []
    for leaf, axes in zip(found, [every[i] for i in wanted], strict=True):
        if level in axes:
            axis = axes.index(level) + (count is not None)
            leaf = jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], size, width, *leaf.shape[axis + 1 :]), axis, 0)
        spread.append(leaf)
        dims.append(0 if level in axes else None)
    return spread, dims


def _push_forward(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of forward mode: the solve beside its tangents; two solves, the second linear, for a reverse pass."""
    primals = _arrays(primals)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    moving = tuple(type(t) is not ad.Zero for t in tangents)
    if not any(moving):
        found = PRIMITIVE.bind(*primals, **parameters)
        return found, [_still(leaf) for leaf in found]
    both = Tangents(rules, moving)
    extra = [(t, f) for t, f, m in zip(tangents, flags, moving, strict=True) if m]
    operands = [*primals, *(jnp.expand_dims(t, int(f)) for t, f in extra)]
    wide = (*flags, *(f for _, f in extra))
    of, places = _places(both, operands, wide, count)
    ours = [places.get(i) for i in wanted]
    base = tuple(of[i] for i in wanted)
    asked = tuple(i for i in ours if i is not None)
    parameters = parameters | {"rules": both, "flags": wide}
    if rules.reverse:
        found = PRIMITIVE.bind(*primals, **parameters | {"rules": rules, "flags": flags})
        moved = PRIMITIVE.bind(*operands, **parameters | {"wanted": asked})
    else:
        joint = PRIMITIVE.bind(*operands, **parameters | {"wanted": (*base, *asked)})
        found, moved = joint[: len(base)], joint[len(base) :]
    at = iter(moved)
    axis = int(count is not None)
    along = [_still(leaf) if i is None else jnp.squeeze(next(at), axis) for leaf, i in zip(found, ours, strict=True)]
    return found, along


def _still(leaf: Any) -> Any:
    """A tangent of zero."""
    return ad.Zero(jax.typeof(leaf).to_tangent_aval())


def _places(rules: Tangents, operands: Sequence[Any], flags: Any, count: Any) -> tuple[list[int], dict[int, int]]:
    """Where among the results of a solve with tangents each result of the solve without them is, and where its tangent."""
    base = len(rules.of.kinds)
    inner = _results(rules.of, operands[:base], flags[:base], count)
    of: list[int] = []
    places: dict[int, int] = {}
    number = at = 0
    for part in inner:
        if part is None:
            continue
        able = rules.able(part)
        of += range(at, at + len(able))
        at += len(able)
        for i, m in enumerate(able):
            if m:
                places[number + i] = at
                at += 1
        number += len(able)
    return of, places


def _pull_back(cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    """The rule of reverse mode: few operands by their Jacobian, many by a pass backwards over the steps."""
    operands = _arrays(operands)
    rules, flags, count = (parameters[key] for key in ("rules", "flags", "count"))
    base = len(rules.of.kinds)
    linear = [ad.is_undefined_primal(x) for x in operands]
    if any(linear[:base]):
        raise NotImplementedError("a solve is linear in its tangents alone")
    primals = list(operands[:base])
    owners = [i for i, m in enumerate(rules.moving) if m]
    shapes = [primals[i].shape[1:] if flags[i] else primals[i].shape for i in owners]
    given = [ct for ct in cotangents if type(ct) is not ad.Zero]
    if not given:
        return [None] * base + [
            ad.Zero(x.aval) if u else None for x, u in zip(operands[base:], linear[base:], strict=True)
        ]
    if sum(_numbers(shape, primals[i].dtype) for i, shape in zip(owners, shapes, strict=True)) <= FEW:
        pulled = _by_jacobian(rules, cotangents, primals, owners, shapes, parameters)
    else:
        pulled = _by_adjoint(rules, cotangents, primals, owners, parameters)
    found: list[Any] = [None] * base
    for place, ct in enumerate(pulled, start=base):
        if not linear[place]:
            found.append(None)
        else:
            found.append(ct if flags[place] or count is None else jnp.sum(ct, axis=0))
    return found


def _by_jacobian(
    rules: Tangents,
    cotangents: Sequence[Any],
    primals: Sequence[Any],
    owners: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    parameters: dict[str, Any],
) -> list[Any]:
    """The Jacobian of each sample, along all its directions at once, times the cotangents."""
    flags, count = parameters["flags"], parameters["count"]
    ends = np.cumsum([_numbers(shape, primals[i].dtype) for i, shape in zip(owners, shapes, strict=True)])
    total = int(ends[-1])
    basis = []
    for i, shape, end in zip(owners, shapes, ends, strict=True):
        unit = jnp.eye(math.prod(shape), dtype=primals[i].dtype)
        if jnp.iscomplexobj(unit):
            unit = jnp.concatenate([unit, 1j * unit])
        block = jnp.zeros((total, unit.shape[1]), unit.dtype).at[end - len(unit) : end].set(unit)
        basis.append(block.reshape(total, *shape))
    wide = (*flags[: len(primals)], *[False] * len(owners))
    jacobian = PRIMITIVE.bind(*primals, *basis, **parameters | {"flags": wide})

    def product(ct: Any, rows: Any) -> Any:
        rows, ct = rows.reshape(total, -1), ct.reshape(ct.shape[0], -1)
        return _unless(jnp.any(ct != 0), rows) @ ct.T

    parts = [
        product(ct, rows) if count is None else jax.vmap(product)(ct, rows)
        for ct, rows in zip(cotangents, jacobian, strict=True)
        if type(ct) is not ad.Zero
    ]
    pulled = jnp.swapaxes(sum(parts[1:], parts[0]), -1, -2)
    found = []
    for i, shape, part in zip(owners, shapes, jnp.split(pulled, ends[:-1], axis=-1), strict=True):
        if jnp.iscomplexobj(primals[i]):  # as the transpose of real and imaginary part
            along, across = jnp.split(part, 2, axis=-1)
            part = lax.complex(along, -across)
        found.append(part.reshape(*pulled.shape[:-1], *shape).astype(primals[i].dtype))
    return found


def _numbers(shape: tuple[int, ...], dtype: Any) -> int:
    """Of how many real numbers an array is made."""
    return math.prod(shape) * (2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1)


ADJOINT: Any = Primitive("ensemble_adjoint")
"""Cotangents of the operands of a solve, from those of its results.

Operands: those of the solve, then a cotangent for each of the `wanted` results, with the samples as its first axis if there are
several. Results: a cotangent for each operand that is `moving`, with the samples first.
"""
ADJOINT.multiple_results = True


def _by_adjoint(
    rules: Tangents,
    cotangents: Sequence[Any],
    primals: Sequence[Any],
    owners: Sequence[int],
    parameters: dict[str, Any],
) -> list[Any]:
    """The cotangents of each sample by a pass backwards over its steps, one for each direction."""
    flags, count, wanted = parameters["flags"][: len(primals)], parameters["count"], parameters["wanted"]
    _, places = _places(rules, [*primals, *(primals[i][None] for i in owners)], [*flags, *[False] * len(owners)], count)
    result = {place: i for i, place in places.items()}
    kept = [(result[place], ct) for place, ct in zip(wanted, cotangents, strict=True) if type(ct) is not ad.Zero]
    settings = {
        "rules": rules.of,
        "program": parameters["program"],
        "flags": tuple(flags),
        "count": count,
        "wanted": tuple(i for i, _ in kept),
        "moving": tuple(owners),
    }
    axis = int(count is not None)
    pull: Callable[..., Any] = lambda cts: ADJOINT.bind(*primals, *cts, **settings)  # noqa: E731
    found: list[Any] = jax.vmap(pull, in_axes=axis, out_axes=axis)([ct for _, ct in kept])
    return found


def _backwards(*operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any, moving: Any) -> list[Any]:
    """Solve once more, in blocks of lanes, keep the state every so many attempts, and go back over them."""
    if count == 0:
        settings = {"rules": rules, "program": program, "flags": flags, "count": count}
        return _nothing(_adjoint_shapes(*operands, **settings, wanted=wanted, moving=moving))
    base = len(rules.kinds)
    primals, cotangents = list(operands[:base]), list(operands[base:])
    single = count is None
    if single:
        cotangents, count = [ct[None] for ct in cotangents], 1
    primals, tied = _tied(rules, primals, list(flags), count)
    outcome = _results(rules, primals, tied, count)[0]
    places = jax.tree_util.tree_unflatten(
        jax.tree_util.tree_structure(outcome), range(len(jax.tree_util.tree_leaves(outcome)))
    )
    asked = _primal(rules, places).steps
    steps = drive(rules, primals, tied, count, [asked])[0][asked]
    lanes = _rounded(min(count, REVERSED))
    blocks = -(-count // lanes)
    order = jnp.argsort(steps)[jnp.minimum(jnp.arange(blocks * lanes), count - 1)].reshape(blocks, lanes)
    saves = [i for i, kind in enumerate(rules.kinds) if kind == SAVE]
    number = primals[saves[0]].shape[-1] if saves else 0
    segment = 2 ** math.ceil(math.log2(math.sqrt(rules.max_steps + number)))
    segments = -(-(rules.max_steps + number) // segment)
    shapes = _results(rules, operands[:base], flags, None if single else count)
    first_saved = len(jax.tree_util.tree_leaves(shapes[0]))
    deep = [] if shapes[1] is None else [len(axes) for axes in _levels_of(rules, shapes[1])]

    def block(index: Any) -> list[Any]:
        held = [
            jnp.moveaxis(x[index], 0, -1) if flag else jnp.broadcast_to(x[..., None], (*x.shape, lanes))
            for x, flag in zip(primals, tied, strict=True)
        ]
        every = [True] * base

        def times(saved: Any, held: Sequence[Any]) -> tuple[list[Any], Any]:
            if not number:
                return [], None
            sign = jnp.where(held[1] < held[0], -1, 1).astype(held[0].dtype)
            at: Callable[..., Any] = lambda x, place: sign * _of_lane(x, jnp.minimum(place, number - 1))  # noqa: E731
            plain = [x.ndim == held[saves[0]].ndim for x in (held[i] for i in saves)]
            first = [
                jnp.where(saved < number, at(held[i], saved), jnp.inf if p else 0)
                for i, p in zip(saves, plain, strict=True)
            ]
            return first, jnp.where(saved + 1 < number, at(held[saves[0]], saved + 1), jnp.inf)

        def forth(state: Any, saved: Any, held: Sequence[Any]) -> tuple[Any, Any]:
            after: tuple[Any, Any] = rules.advance(state, held, every, *times(saved, held))
            return after

        def running(state: Any) -> Any:
            return jnp.any(_primal(rules, state).phase == RUNNING)

        def run_through(state: Any, saved: Any, keep: bool) -> tuple[Any, Any, Any, Any]:
            """The attempts of one segment: what is reached, how many there were, and where each began."""
            rows = tree_map(lambda leaf: jnp.zeros((segment if keep else 0, *leaf.shape), leaf.dtype), (state, saved))

            def more(carry: Any) -> Any:
                state, _, _, i = carry
                return (i < segment) & running(state)

            def one(carry: Any) -> Any:
                state, saved, rows, i = carry
                if keep:
                    rows = tree_map(lambda buffer, leaf: buffer.at[i].set(leaf), rows, (state, saved))
                state, _ = forth(state, saved, held)
                if number:
                    saved = saved + _primal(rules, state).due
                return state, saved, rows, i + 1

            state, saved, rows, i = lax.while_loop(more, one, (state, saved, rows, jnp.zeros((), jnp.int32)))
            return state, saved, rows, i

        begun, nothing = rules.start(held, every), jnp.zeros(lanes, jnp.int32)
        marks = tree_map(lambda leaf: jnp.zeros((segments, *leaf.shape), leaf.dtype), (begun, nothing))

        def pass_on(carry: Any) -> Any:
            state, saved, marks, k = carry
            marks = tree_map(lambda buffer, leaf: buffer.at[k].set(leaf), marks, (state, saved))
            state, saved, _, _ = run_through(state, saved, False)
            return state, saved, marks, k + 1

        state, _, marks, passed = lax.while_loop(
            lambda c: running(c[0]) & (c[3] < segments), pass_on, (begun, nothing, marks, jnp.zeros((), jnp.int32))
        )
        of_outcome = {
            i: jnp.moveaxis(ct[index], 0, -1) for i, ct in zip(wanted, cotangents, strict=True) if i < first_saved
        }
        of_saved = {
            i - first_saved: jnp.moveaxis(jnp.moveaxis(ct[index], 1 + deep[i - first_saved], 0), 1, -1)
            for i, ct in zip(wanted, cotangents, strict=True)
            if i >= first_saved
        }
        floats, join = _floats(state)
        mine, with_mine = _some(held, moving)
        _, pull = jax.vjp(lambda f, m: jax.tree_util.tree_leaves(rules.outcome(join(f), with_mine(m))), floats, mine)
        shape = jax.eval_shape(lambda s: jax.tree_util.tree_leaves(rules.outcome(s, held)), state)
        ct_state, ct_held = pull([of_outcome.get(i, _no_cotangent(x)) for i, x in enumerate(shape)])

        def back(i: Any, rows: Any, ct_state: Any, ct_held: Any) -> tuple[Any, Any]:
            state, saved = tree_map(lambda buffer: buffer[i], rows)
            floats, join = _floats(state)

            def attempt(floats: Any, mine: Any) -> tuple[Any, Any]:
                after, value = forth(join(floats), saved, with_mine(mine))
                return (_floats(after)[0], jax.tree_util.tree_leaves(value)), _primal(rules, after).due

            (_, value), pull, due = jax.vjp(attempt, floats, mine, has_aux=True)
            place = jnp.minimum(saved, max(number - 1, 0))
            ct_value = []
            for j, leaf in enumerate(value):
                if j not in of_saved:
                    ct_value.append(jnp.zeros_like(leaf))
                    continue
                ct_value.append(jnp.where(due, _of_lane(jnp.moveaxis(of_saved[j], 0, -2), place), 0).astype(leaf.dtype))
            pulled, more = pull((ct_state, ct_value))
            return pulled, tree_map(jnp.add, ct_held, more)

        def over_segment(carry: Any) -> Any:
            k, ct_state, ct_held = carry
            state, saved = tree_map(lambda buffer: buffer[k - 1], marks)
            _, _, rows, made = run_through(state, saved, True)

            def one(carry: Any) -> Any:
                i, ct_state, ct_held = carry
                return (i - 1, *back(i - 1, rows, ct_state, ct_held))

            _, ct_state, ct_held = lax.while_loop(lambda c: c[0] > 0, one, (made, ct_state, ct_held))
            return k - 1, ct_state, ct_held

        _, ct_state, ct_held = lax.while_loop(lambda c: c[0] > 0, over_segment, (passed, ct_state, ct_held))
        _, pull = jax.vjp(lambda m: _floats(rules.start(with_mine(m), every))[0], mine)
        (begin,) = pull(ct_state)
        return [jnp.moveaxis(a + b, -1, 0) for a, b in zip(begin, ct_held, strict=True)]

    found = lax.map(block, order)
    flat = order.reshape(-1)
    whole = [
        jnp.zeros((count, *leaf.shape[2:]), leaf.dtype).at[flat].set(leaf.reshape(-1, *leaf.shape[2:]))
        for leaf in found
    ]
    asked_of = functools.reduce(jnp.logical_or, [jnp.any(ct.reshape(count, -1) != 0, axis=1) for ct in cotangents])
    whole = [jax.vmap(_unless)(asked_of, leaf) for leaf in whole]
    return [leaf[0] for leaf in whole] if single else whole


def _unless(asked: Any, slope: Any) -> Any:
    """A derivative, which where nobody asks for it is at least a number: that of a sample that has failed may be none."""
    return jnp.where(asked | jnp.isfinite(slope), slope, 0)


def _adjoint_shapes(
    *operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any, moving: Any
) -> list[Any]:
    del rules, program, wanted
    front = () if count is None else (count,)
    shapes = [operands[i].shape[1:] if flags[i] else operands[i].shape for i in moving]
    return [jax.core.ShapedArray((*front, *shape), operands[i].dtype) for i, shape in zip(moving, shapes, strict=True)]


@functools.lru_cache(maxsize=64)
def _compiled_adjoint(**parameters: Any) -> Any:
    return jax.jit(functools.partial(_backwards, **parameters))


def _batch_adjoint(operands: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of `jax.vmap`: more samples."""
    operands = _arrays(operands)
    flags, count = parameters["flags"], parameters["count"]
    base = len(flags)
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    batched = [d is not None for d in dims]
    if count is None:
        cts = [
            x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(moved[base:], batched[base:], strict=True)
        ]
        settings = parameters | {"flags": tuple(batched[:base]), "count": size}
        return ADJOINT.bind(*moved[:base], *cts, **settings), [0] * len(parameters["moving"])
    merged, wide = [], []
    for leaf, outer, inner in zip(moved, batched, [*flags, *[True] * (len(moved) - base)], strict=True):
        if outer and not inner:
            leaf = jnp.broadcast_to(leaf[:, None], (size, count, *leaf.shape[1:]))
        elif inner and not outer:
            leaf = jnp.broadcast_to(leaf, (size, *leaf.shape))
        merged.append(leaf.reshape(size * count, *leaf.shape[2:]) if outer or inner else leaf)
        wide.append(bool(outer or inner))
    found = ADJOINT.bind(*merged, **parameters | {"flags": tuple(wide[:base]), "count": size * count})
    return [leaf.reshape(size, count, *leaf.shape[1:]) for leaf in found], [0] * len(found)


def _push_adjoint(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of forward mode: the adjoint of the tangents, since second derivatives are symmetric."""
    primals = _arrays(primals)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    base = len(flags)
    found = ADJOINT.bind(*primals, **parameters)
    along = [_still(leaf) for leaf in found]
    moving = tuple(type(t) is not ad.Zero for t in tangents[:base])
    if any(moving):
        both = Tangents(rules, moving)
        extra = [(jnp.expand_dims(t, int(f)), f) for t, f, m in zip(tangents, flags, moving, strict=False) if m]
        operands, wide = [*primals[:base], *(t for t, _ in extra)], (*flags, *(f for _, f in extra))
        _, places = _places(both, operands, wide, count)
        asked = tuple(places[i] for i in wanted)
        cts = [jnp.expand_dims(ct, int(count is not None)) for ct in primals[base:]]
        settings = parameters | {"rules": both, "flags": wide, "wanted": asked}
        along = ADJOINT.bind(*operands, *cts, **settings)
    if any(type(t) is not ad.Zero for t in tangents[base:]):
        cts = [ad.instantiate_zeros(t) for t in tangents[base:]]
        more = ADJOINT.bind(*primals[:base], *cts, **parameters)
        along = [ad.add_tangents(a, b) for a, b in zip(along, more, strict=True)]
    return found, along


def _evaluate_adjoint(*operands: Any, **parameters: Any) -> list[Any]:
    with jax.disable_jit(False):
        found: list[Any] = _compiled_adjoint(**parameters)(*operands)
    return found


@functools.lru_cache(maxsize=256)
def _expanded(compute: Any, operands: tuple[Any, ...], parameters: tuple[Any, ...]) -> Any:
    return jax.make_jaxpr(functools.partial(compute, **dict(parameters)))(*operands)


def _expansion(compute: Any) -> Callable[[Any], Any]:
    """What gives the program that an equation stands for, to those who look into programs."""

    def expanded(eqn: Any) -> Any:
        operands = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
        return _expanded(compute, operands, tuple(sorted(eqn.params.items())))

    return expanded


PRIMITIVE.expanded, ADJOINT.expanded = _expansion(_compute), _expansion(_backwards)
for _primitive in (PRIMITIVE, ADJOINT):
    _primitive.is_high = lambda *avals, **parameters: (
        False
    )  # the program is a note; the field is traced where it is used
ADJOINT.def_impl(_evaluate_adjoint)
ADJOINT.def_abstract_eval(_adjoint_shapes)
mlir.register_lowering(ADJOINT, mlir.lower_fun(_backwards, multiple_results=True))
batching.primitive_batchers[ADJOINT] = _batch_adjoint
ad.primitive_jvps[ADJOINT] = _push_adjoint


PRIMITIVE.def_impl(_evaluate)
PRIMITIVE.def_abstract_eval(_abstract)
mlir.register_lowering(PRIMITIVE, mlir.lower_fun(_compute, multiple_results=True))
batching.primitive_batchers[PRIMITIVE] = _batch
ad.primitive_jvps[PRIMITIVE] = _push_forward
ad.primitive_transposes[PRIMITIVE] = _pull_back


def _tied(rules: Any, operands: list[Any], flags: list[bool], count: int) -> tuple[list[Any], list[bool]]:
    """Operands and their tangents all with the axis of samples, where one of them has it."""
    if isinstance(rules, Lane):
        return operands, flags
    base = len(rules.of.kinds)
    owner = [i for i, m in enumerate(rules.moving) if m]
    for place, i in enumerate(owner, start=base):
        for a, b in ((i, place), (place, i)):
            if flags[a] and not flags[b]:
                operands[b] = jnp.broadcast_to(operands[b], (count, *operands[b].shape))
                flags[b] = True
    inner, inner_flags = _tied(rules.of, operands[:base], flags[:base], count)
    changed = [*inner, *operands[base:]], [*inner_flags, *flags[base:]]
    return changed if inner_flags == flags[:base] else _tied(rules, *changed, count)
