"""The rules of a solve in a pool of lanes: how a lane starts, attempts a step and ends, and the same beside tangents.

In: flat operands, of which arrays have the lanes as their last axis. Out: the state of every lane after an attempt. A lane takes the steps
that diffrax would take for its sample alone: the same tableaux, error estimate, PID controller, first step and interpolation.

Source: E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4, for the step size control;
P. Kidger, diffrax, for its details.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ops.rosenbrock import Rodas5P, between, step_of_lanes

tree_map = jax.tree_util.tree_map


Field = Callable[[Any, Any, Any], Any]


RUNNING, REACHED, MAX_STEPS, STUCK, BEYOND, STIFF = 0, 1, 2, 3, 4, 5
"""How a lane stands: on its way, at the end, out of steps, with no step short enough, with a state too large, or where its problem is
stiff, if that is looked for."""


OFTEN, SELDOM = 15, 6
"""A problem is stiff after so many steps at the bound of stability, among which fewer than so many in a row are within it."""


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
        aim, ends = state.tnext, False
        asked = lax.stop_gradient(aim - state.t)
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
            jnp.where(moves, tnext, aim),  # a step that is held for another time of saving is cut anew
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
    """`square ** (-1 / power)` to seven digits or more, by arithmetic alone where `power` is an integer, as it nearly always is.

    A call of `pow` costs as much as all stages of a step. The bits of a float are nearly its logarithm: so begin C. J. Walczyk,
    L. V. Moroz, J. L. Cieslinski, Entropy 23, 86 (2021). One step of Householder's method of order four and two of Newton's
    do the rest: to eleven digits for a method of order five, to seven for one of order eight.
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
    root = root + root * ((1 - square * lax.integer_pow(root, n)) * (1 / n))
    return root + root * ((1 - square * lax.integer_pow(root, n)) * (1 / n))


def at_rest(rules: Any, state: Any) -> Any:
    """The state of lanes that have nothing to do."""
    if isinstance(rules, Lane):
        return state._replace(phase=jnp.full_like(state.phase, REACHED))
    return at_rest(rules.of, state[0]), state[1]


def levels(rules: Any) -> list[tuple[int, ...]]:
    """The axes of directions that each operand has, outermost first, by the nesting of the tangents."""
    if isinstance(rules, Lane):
        return [()] * len(rules.kinds)
    inner, level = levels(rules.of), nesting(rules)
    return [*inner, *((level, *axes) for axes, m in zip(inner, rules.moving, strict=True) if m)]


def levels_of(rules: Any, found: Any) -> list[tuple[int, ...]]:
    """The axes of directions that each leaf of a result has."""
    if isinstance(rules, Lane):
        return [()] * len(jax.tree_util.tree_leaves(found))
    inner, level = levels_of(rules.of, found[0]), nesting(rules)
    return [*inner, *((level, *axes) for axes, m in zip(inner, rules.able(found[0]), strict=True) if m)]


def nesting(rules: Any) -> int:
    """How often a solve has been differentiated."""
    return 0 if isinstance(rules, Lane) else 1 + nesting(rules.of)


def primal(rules: Any, tree: Any) -> Any:
    """A state or an outcome without tangents."""
    return tree if isinstance(rules, Lane) else primal(rules.of, tree[0])


def shapes_of_results(rules: Any, operands: Sequence[Any], flags: Sequence[bool], count: int | None) -> Any:
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
    inner = shapes_of_results(rules.of, operands[:base], flags[:base], count)
    width = operands[base].shape[int(flags[base])]
    place = 0 if count is None else 1

    def beside(part: Any) -> Any:
        if part is None:
            return None
        shapes = [leaf for leaf, m in zip(jax.tree_util.tree_leaves(part), rules.able(part), strict=True) if m]
        return part, [jax.ShapeDtypeStruct((*x.shape[:place], width, *x.shape[place:]), x.dtype) for x in shapes]

    return beside(inner[0]), beside(inner[1])


def places_of_tangents(
    rules: Tangents, operands: Sequence[Any], flags: Any, count: Any
) -> tuple[list[int], dict[int, int]]:
    """Where among the results of a solve with tangents each result of the solve without them is, and where its tangent."""
    base = len(rules.of.kinds)
    inner = shapes_of_results(rules.of, operands[:base], flags[:base], count)
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


def tied_operands(rules: Any, operands: list[Any], flags: list[bool], count: int) -> tuple[list[Any], list[bool]]:
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
    inner, inner_flags = tied_operands(rules.of, operands[:base], flags[:base], count)
    changed = [*inner, *operands[base:]], [*inner_flags, *flags[base:]]
    return changed if inner_flags == flags[:base] else tied_operands(rules, *changed, count)
