"""Ordinary differential equations, solved by diffrax, with failures as values.

`solve` integrates one trajectory; `jax.vmap` makes an ensemble. A solve that does not reach its end says so in `status`, and its
values are NaN: the state at which a solver gave up is never handed back as an answer.

Sources: P. Kidger, "On Neural Differential Equations", PhD thesis, Oxford (2021), for diffrax; each method names its own.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from ops.adjoints import ADJOINTS, current_adjoint, is_differentiated
from ops.adjoints import default_adjoint as default_adjoint
from ops.spelling import nearest

VectorField = Callable[[Any, Any, Any], Any]

METHODS: dict[str, type[diffrax.AbstractSolver[Any]]] = {
    "euler": diffrax.Euler,
    "heun": diffrax.Heun,
    "midpoint": diffrax.Midpoint,
    "ralston": diffrax.Ralston,
    "bosh3": diffrax.Bosh3,
    "tsit5": diffrax.Tsit5,
    "dopri5": diffrax.Dopri5,
    "dopri8": diffrax.Dopri8,
    "implicit_euler": diffrax.ImplicitEuler,
    "kvaerno3": diffrax.Kvaerno3,
    "kvaerno4": diffrax.Kvaerno4,
    "kvaerno5": diffrax.Kvaerno5,
}
"""The methods by name: explicit Runge-Kutta pairs, then the implicit ones for stiff problems."""

EVENT_STEPS = 100
"""With an event, a step covers at most this part of the interval: two crossings inside one step go unseen."""

PROBE_SLACK = 10.0
"""How much larger than the state's the error of a tangent may be in one step: derivatives get about a digit less than values."""

OK, MAX_STEPS, NONFINITE, FAILED = 0, 2, 3, 4
"""Codes of `Solution.status`."""


class Solution(NamedTuple):
    """What `solve` returns; a pytree.

    `t` is the array of times asked for, or the time of the state `y`; `y` has a leading time axis with `ts`, else is the final state;
    `status` (int32) is 0, or 2 out of steps, 3 not finite, 4 failed otherwise; `steps` (int32) counts accepted and rejected steps;
    `event_time` is when the event stopped the solve, NaN if it did not, None if there is no event.
    """

    t: jax.Array
    y: Any
    status: jax.Array
    steps: jax.Array
    event_time: jax.Array | None = None


@dataclass(frozen=True)
class Solver:
    """A method with its settings. Static: frozen, hashes by value, so that equal settings never recompile.

    Raises:
        ValueError: a setting is out of its range; the message names it.

    >>> Solver("dopri8", rtol=1e-9).rtol
    1e-09
    """

    method: Any = "tsit5"
    """A name of `METHODS`, or a diffrax solver."""

    rtol: float = 1e-6
    """Relative tolerance of one step."""

    atol: float = 1e-9
    """Absolute tolerance of one step, in the units of the state."""

    max_steps: int = 65_536
    """Steps, accepted and rejected, after which a solve gives up."""

    dt0: float | None = None
    """First step size; None for an estimate (Hairer, Norsett, Wanner, Solving ODEs I, II.4)."""

    step: float | None = None
    """A fixed step size; None for adaptive steps."""

    adjoint: Any = "auto"
    """auto | forward | checkpointed | direct | backsolve, or a diffrax adjoint."""

    checkpoints: int | None = None
    """States that a checkpointed reverse pass keeps at most: fewer take less memory and more time; None for about sqrt(2 max_steps)."""

    def __post_init__(self) -> None:
        if isinstance(self.method, str) and self.method not in METHODS:
            raise ValueError(
                f"`solver.method` must be one of {', '.join(METHODS)}, but is {self.method!r}.{nearest(self.method, METHODS)}"
            )
        if not isinstance(self.method, str | diffrax.AbstractSolver):
            raise ValueError(f"`solver.method` must be a name or a diffrax solver, but is {self.method!r}.")
        for name in ("rtol", "atol"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"`solver.{name}` must be a number of at least 0, but is {value!r}. Write 1e-6, say.")
        if self.rtol == 0 and self.atol == 0:
            raise ValueError("`solver.rtol` must be positive where atol is 0, but both are 0. Write rtol: 1e-6, say.")
        for name in ("max_steps", "checkpoints"):
            value = getattr(self, name)
            if value is None and name == "checkpoints":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                also = ", or null" if name == "checkpoints" else ""
                raise ValueError(f"`solver.{name}` must be a positive integer{also}, but is {value!r}. Write 64, say.")
        for name in ("dt0", "step"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not (math.isfinite(value) and value > 0):
                raise ValueError(f"`solver.{name}` must be a positive number, or null, but is {value!r}.")
        if isinstance(self.adjoint, str) and self.adjoint not in (*ADJOINTS, "auto"):
            raise ValueError(
                f"`solver.adjoint` must be one of auto, {', '.join(ADJOINTS)}, but is {self.adjoint!r}."
                f"{nearest(self.adjoint, (*ADJOINTS, 'auto'))}"
            )
        if self.checkpoints is not None and self.adjoint not in ("auto", "checkpointed"):
            raise ValueError(
                f"`solver.checkpoints` must be null with an adjoint that keeps none, but is {self.checkpoints}, and adjoint is "
                f"{self.adjoint!r}. Write adjoint: checkpointed."
            )
        if self.step is None and not isinstance(self.scheme, diffrax.AbstractAdaptiveSolver):
            name = self.method if isinstance(self.method, str) else type(self.method).__name__
            raise ValueError(
                f"`solver.step` must be given for {name}, which has no error estimate, but is null. Write a step size."
            )

    @property
    def scheme(self) -> diffrax.AbstractSolver[Any]:
        """The diffrax solver, its root finder tied to the tolerances if it is implicit."""
        if not isinstance(self.method, str):
            solver: diffrax.AbstractSolver[Any] = self.method
            return solver
        kind = METHODS[self.method]
        if issubclass(kind, diffrax.AbstractImplicitSolver):
            root_finder = diffrax.VeryChord(rtol=max(self.rtol, 1e-14), atol=max(self.atol, 1e-300))
            return kind(root_finder=root_finder)
        return kind()


def solve(
    vector_field: VectorField,
    y0: Any,
    args: Any = None,
    *,
    t0: Any = 0.0,
    t1: Any = None,
    ts: Any = None,
    solver: Any = Solver(),
    jumps: Any = (),
    event: Callable[[Any, Any, Any], Any] | None = None,
    **settings: Any,
) -> Solution:
    """Integrate `dy/dt = vector_field(t, y, args)` from `y(t0) = y0`.

    Args:
        vector_field: of time (scalar), state and args; returns the state's structure. For a state that is one array it may
            return a list of numbers, as with SciPy.
        y0: initial state, any pytree of real or complex arrays; numbers and lists of numbers become arrays.
        args: any pytree, handed to the vector field.
        t0: start time.
        t1: end time; gives the final state. It may lie before `t0`, or be equal to it.
        ts: times at which the state is returned, in the order of integration; gives leaves with a leading time axis.
        solver: a `Solver`, the name of a method, or a diffrax solver.
        jumps: times at which the vector field is discontinuous: no step crosses them.
        event: a scalar function of `(t, y, args)`; the solve ends where it crosses zero, found by bisection inside the step. Its
            sign is looked at after each step, of which there are at least 100: a quicker crossing and return goes unseen.
        settings: fields of `Solver`, which win over those in `solver`.

    Returns:
        A `Solution`. Where `status` is not 0 its floating-point values are NaN.

    Raises:
        ValueError: a setting, a time or the state's structure is wrong; what is known when the solve is traced is checked then.

    >>> solution = solve(lambda t, y, args: -y, 1.0, t1=1.0)
    >>> round(float(solution.y), 5), int(solution.status)
    (0.36788, 0)
    """
    chosen = _solver(solver, settings)
    adjoint = _adjoint(chosen)
    backsolves = isinstance(adjoint, diffrax.BacksolveAdjoint)
    _check_times(t0, t1, ts)
    y0, args = _as_arrays(y0), _as_arrays(args)
    time_dtype = jnp.result_type(float)
    start = jnp.asarray(t0, time_dtype)
    times = None if ts is None else jnp.asarray(ts, time_dtype)
    end = jnp.asarray(t1, time_dtype) if times is None else times[-1]
    vector_field = _stacking(vector_field)
    y0 = _promoted(vector_field, start, y0, args)
    _warn_of_precision(chosen, y0)
    if backsolves:
        start, end, times = _not_differentiated(start, end, times, event)
        vector_field, args = _without_closure(vector_field, start, y0, args)
    sound = _sound(y0, args, start, end if times is None else times)
    last = jnp.where(sound, end, start)  # without a sound start there is nothing to integrate
    state, field = y0, vector_field
    of_state: Callable[[Any], Any] = lambda state: state  # noqa: E731
    norm: Callable[[Any], Any] = optimistix.rms_norm
    if is_differentiated() and not backsolves:
        state, field, of_state, norm = _with_probe(vector_field, start, y0, args, chosen)
    asked = None if times is None else jnp.where(sound, times, start)
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        chosen.scheme,
        start,
        last,
        _first_step(chosen, start, end),
        state,
        args,
        saveat=_saved_at(asked, of_state, backsolves),
        stepsize_controller=_controller(chosen, jumps, time_dtype, None if event is None else last - start, norm),
        adjoint=adjoint,
        event=None if event is None else _event(event, chosen, of_state),
        max_steps=chosen.max_steps,
        throw=False,
    )
    stopped = found.result == diffrax.RESULTS.event_occurred
    saved_ts, saved_ys = ([found.ts] * 2, [found.ys] * 2) if backsolves else (found.ts, found.ys)
    stop = saved_ts[0][0]
    if times is None:
        y = jax.tree_util.tree_map(lambda leaf: leaf[0], saved_ys[0])
        y = _moved_by_its_ends(vector_field, y, y0, start, end, args)
        reached = None
    else:
        y, reached = saved_ys[1], saved_ts[1] if event is not None else None
        if reached is not None:  # times after the event hold no state
            y = _where(jnp.isfinite(reached), y, jnp.nan)
    status = jnp.where(sound, _status(found.result, y, reached), NONFINITE)
    fine = status == OK
    event_time = None if event is None else jnp.where(stopped & fine, stop, jnp.nan)
    steps = jnp.asarray(found.stats["num_steps"], jnp.int32)
    at = end if event is None else jnp.where(stopped & fine, stop, end)
    return Solution(at if times is None else times, _where(fine, y, jnp.nan), status, steps, event_time)


def _sound(y0: Any, args: Any, start: jax.Array, ends: jax.Array) -> jax.Array:
    """Whether a solve can begin: a finite state and finite times, and no NaN among the arguments."""
    good = jnp.isfinite(start) & jnp.all(jnp.isfinite(ends))
    for leaf in jax.tree_util.tree_leaves(y0):
        good &= jnp.all(jnp.isfinite(leaf))
    for leaf in jax.tree_util.tree_leaves(args):
        if isinstance(leaf, jax.Array | np.ndarray | float) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            good &= ~jnp.any(jnp.isnan(jnp.asarray(leaf)))
    return good


def _moved_by_its_ends(vector_field: VectorField, y: Any, y0: Any, start: jax.Array, end: jax.Array, args: Any) -> Any:
    """The state after an empty interval, which moves with its ends though no step is taken: dy/dt1 = f, dy/dt0 = -f.

    The slope is that at the start, which a solve looks at anyway: elsewhere its derivative might be no number.
    """
    empty = start == end
    slope = vector_field(start, y0, args)

    def shift(leaf: Any, rate: Any) -> Any:
        return leaf + jnp.where(empty & jnp.isfinite(rate), rate, 0) * (end - start).astype(leaf.real.dtype)

    return jax.tree_util.tree_map(shift, y, slope)


def _not_differentiated(start: Any, end: Any, times: Any, event: Any) -> tuple[Any, Any, Any]:
    """The times, whose derivatives a backward solve does not give.

    Raises:
        ValueError: there is an event, which is such a time too.
    """
    if event is not None:
        raise ValueError(
            "`event` must be left out with adjoint backsolve, which has no derivative of its time, but is given. "
            "Write adjoint: checkpointed."
        )

    def still(name: str, value: Any) -> Any:
        message = f"`{name}` must not be differentiated with adjoint backsolve, but is. Write adjoint: checkpointed."
        return eqxi.nondifferentiable(value, msg=message)

    if times is not None:
        times = still("ts", times)
        return still("t0", start), times[-1], times
    return still("t0", start), still("t1", end), None


def _without_closure(vector_field: VectorField, start: Any, y0: Any, args: Any) -> tuple[VectorField, Any]:
    """The vector field with the arrays that it closes over among its arguments: a backward solve has derivatives by no others."""
    field, held = jax.closure_convert(vector_field, start, y0, args)
    return lambda t, y, both: field(t, y, both[0], *both[1]), (args, held)


def _saved_at(times: Any, of_state: Callable[[Any], Any], backsolves: bool) -> diffrax.SaveAt:
    """The end and the times asked for. A backward solve lets only one of them be saved, and takes the state as it is."""
    if backsolves:
        return diffrax.SaveAt(t1=True) if times is None else diffrax.SaveAt(ts=times)

    def save(t: Any, state: Any, args: Any) -> Any:
        return of_state(state)

    subs = [diffrax.SubSaveAt(t1=True, fn=save)]
    return diffrax.SaveAt(subs=subs if times is None else [*subs, diffrax.SubSaveAt(ts=times, fn=save)])


def _with_probe(
    vector_field: VectorField, start: jax.Array, y0: Any, args: Any, solver: Solver
) -> tuple[Any, VectorField, Callable[[Any], Any], Callable[[Any], Any]]:
    """The state beside a tangent along a generic direction, integrated under error control too.

    The step size follows the error of the state alone, so that a state at rest, or below `atol`, lets steps grow until its
    derivatives are wrong by orders of magnitude. The tangent w (w' = J w + (df/dp) v) makes the steps resolve them; it feeds
    nothing back. As in the full error control of sensitivities of CVODES (Serban and Hindmarsh, 2005), for one direction, and to
    `PROBE_SLACK` times the tolerance: where the state itself needs the shorter steps, they stay as they are. A field without a
    forward derivative (a custom_vjp, a callback) is integrated alone.

    Returns:
        The initial state, its vector field, what takes the state out again, and the norm of the error.
    """
    field, held = jax.closure_convert(vector_field, start, y0, args)
    # The size at which both tolerances weigh alike.
    ratio = solver.atol / solver.rtol if solver.atol > 0 and solver.rtol > 0 else 1.0
    signs = np.random.default_rng(0)

    def direction(leaf: Any) -> Any:
        size = ratio * jnp.maximum(jnp.abs(jax.lax.stop_gradient(leaf)), 1.0)
        return (size * signs.uniform(0.5, 1.0, leaf.shape) * signs.choice([-1.0, 1.0], leaf.shape)).astype(leaf.dtype)

    def tangent(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray | float):
            return None
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return direction(leaf)
        return np.zeros(leaf.shape, jax.dtypes.float0)

    leaves, structure = jax.tree_util.tree_flatten((args, held))
    along = [tangent(leaf) for leaf in leaves]
    moving = [i for i, v in enumerate(along) if v is not None]

    def slope(t: Any, y: Any, values: list[Any]) -> Any:
        every = list(leaves)
        for i, value in zip(moving, values, strict=True):
            every[i] = value
        inner, closed = jax.tree_util.tree_unflatten(structure, every)
        return field(t, y, inner, *closed)

    implicit = isinstance(solver.scheme, diffrax.AbstractImplicitSolver)
    hold: Any = (lambda y: y) if implicit else jax.lax.stop_gradient  # Newton's method needs the whole Jacobian

    def augmented(t: Any, state: Any, _: Any) -> Any:
        y, w = state
        still = hold(y), jax.lax.stop_gradient([jnp.asarray(leaves[i]) for i in moving])
        directions = [along[i] for i in moving]
        _, dw = jax.jvp(lambda y, values: slope(jax.lax.stop_gradient(t), y, values), still, (w, directions))
        return vector_field(t, y, args), dw

    w0 = jax.tree_util.tree_map(direction, y0)
    if not _goes_forward(augmented, start, (y0, w0)):
        return y0, vector_field, lambda state: state, optimistix.rms_norm
    return (y0, w0), augmented, lambda state: state[0], _norm_with_probe


def _goes_forward(augmented: VectorField, start: jax.Array, state: Any) -> bool:
    """Whether a field with tangents can be computed: JAX traces the tangent of a custom_vjp, and refuses to compile it."""
    try:
        traced = jax.make_jaxpr(lambda t, state: augmented(t, state, None))(start, state)
    except (TypeError, NotImplementedError, ValueError):  # no forward derivative: a callback
        return False
    needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
    return not _applies(needed, "custom_lin")


def _applies(jaxpr: Any, name: str) -> bool:
    """Whether a program applies a primitive, in its loops and branches too."""
    return any(
        eqn.primitive.name == name or any(_applies(inner, name) for inner in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _norm_with_probe(error: Any) -> Any:
    """The larger of the state's error and the tangent's, which may be `PROBE_SLACK` times as large.

    A tangent that is no number has no say: no step would be short enough, and the state may be fine.
    """
    of_state, of_tangent = error
    tangent = optimistix.rms_norm(of_tangent) / PROBE_SLACK
    return jnp.maximum(optimistix.rms_norm(of_state), jnp.where(jnp.isfinite(tangent), tangent, 0.0))


def _solver(solver: Any, settings: dict[str, Any]) -> Solver:
    """The settings of one solve."""
    names = [field.name for field in fields(Solver)]
    for name in settings:
        if name not in names:
            raise ValueError(
                f"`{name}` must be a setting of solve, but is not.{nearest(name, names)} There are {', '.join(names)}."
            )
    return replace(solver, **settings) if isinstance(solver, Solver) else Solver(**{"method": solver, **settings})


def _check_times(t0: Any, t1: Any, ts: Any) -> None:
    """Times that are known must make sense."""
    if (t1 is None) == (ts is None):
        raise ValueError(
            "`t1` or `ts` must be given, one of them, but " + ("neither is." if t1 is None else "both are.")
        )
    for name, time in (("t0", t0), ("t1", t1)):
        if isinstance(time, int | float) and not math.isfinite(time):
            raise ValueError(f"`{name}` must be a finite time, but is {time}. Write a number.")
    if isinstance(t0, int | float) and isinstance(t1, int | float) and t0 != t1:
        dtype = np.dtype(jnp.result_type(float)).type
        if dtype(t0) == dtype(t1):
            raise ValueError(
                f"`t1` must differ from t0 in {dtype.__name__}, but {t0!r} and {t1!r} are one number there. Use float64, or count "
                "time from a later origin."
            )
    if ts is None or isinstance(ts, jax.core.Tracer):
        return
    values = np.asarray(ts, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"`ts` must be a list of times, but has the shape {values.shape}.")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"`ts` must be finite, but ts[{bad[0]}] is {values[bad[0]]}.")
    start = None if isinstance(t0, jax.core.Tracer) else float(t0)
    backward = values[-1] < (values[0] if start is None else start)
    steps = np.diff(values) * (-1 if backward else 1)
    if (steps < 0).any():
        i = int(np.flatnonzero(steps < 0)[0]) + 1
        order = "descending" if backward else "ascending"
        raise ValueError(f"`ts` must be {order}, but ts[{i}] = {values[i]} follows {values[i - 1]}. Sort the times.")
    if start is not None and (values[0] - start) * (-1 if backward else 1) < 0:
        raise ValueError(
            f"`ts` must not begin before t0 = {start}, but ts[0] is {values[0]}. Lower t0, or leave that time out."
        )


def _as_arrays(tree: Any) -> Any:
    """Numbers, and lists of nothing but numbers, as arrays; other leaves as they are."""

    def is_numbers(node: Any) -> bool:
        return isinstance(node, list) and all(is_numbers(n) or isinstance(n, int | float | complex) for n in node)

    def convert(node: Any) -> Any:
        return jnp.asarray(node) if is_numbers(node) or isinstance(node, int | float | complex | np.generic) else node

    return jax.tree_util.tree_map(convert, tree, is_leaf=is_numbers)


def _stacking(vector_field: VectorField) -> VectorField:
    """The vector field with an array wherever the state has one and it returns a list."""

    def stack(leaf: Any, rate: Any) -> Any:
        return jnp.stack([stack(leaf, part) for part in rate]) if isinstance(rate, list | tuple) else rate

    def field(t: Any, y: Any, args: Any) -> Any:
        slope = vector_field(t, y, args)
        if _structure(slope) == _structure(y):
            return slope
        try:
            return jax.tree_util.tree_map(stack, y, slope)
        except (TypeError, ValueError):  # another structure, which is told of by its own check
            return slope

    return field


def _promoted(vector_field: VectorField, t0: jax.Array, y0: Any, args: Any) -> Any:
    """The initial state in the dtype of its own derivative.

    Raises:
        ValueError: the vector field returns another structure, another shape, or complex values for a real state.
    """
    if not jax.tree_util.tree_leaves(y0):
        raise ValueError("`y0` must hold at least one array, but is empty.")
    y0 = jax.tree_util.tree_map(lambda leaf: _inexact(jnp.asarray(leaf)), y0)
    slope = jax.eval_shape(lambda t, y: vector_field(t, y, args), t0, y0)
    if _structure(y0) != _structure(slope):
        hint = " It returned None: is a `return` missing?" if slope is None else ""
        raise ValueError(
            f"`vector_field` must return the structure of y0, {_words(y0)}, but returned {_words(slope)}.{hint}"
        )

    def promote(leaf: Any, rate: Any) -> Any:
        if leaf.shape != rate.shape:
            raise ValueError(
                f"`vector_field` must return the shapes of y0, {_words(y0)}, but returned {_words(slope)}."
            )
        if jnp.issubdtype(rate.dtype, jnp.complexfloating) and not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                "`y0` must be complex, but is real, and the vector field returns complex values. Write y0 * (1 + 0j)."
            )
        return leaf.astype(jnp.result_type(leaf.dtype, rate.dtype))

    return jax.tree_util.tree_map(promote, y0, slope)


def _inexact(leaf: Any) -> Any:
    """Integers and booleans as floats of the precision in force."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(jnp.result_type(float))


def _words(tree: Any) -> str:
    """A pytree's shapes in words."""
    shown = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree_util.tree_leaves(tree)]
    single = _structure(tree) == _structure(0)
    return shown[0] if single else f"{jax.tree_util.tree_unflatten(_structure(tree), shown)}".replace("'", "")


def _structure(tree: Any) -> Any:
    """A pytree's structure."""
    return jax.tree_util.tree_structure(tree)


def _warn_of_precision(solver: Solver, y0: Any) -> None:
    """A tolerance below the rounding of the state cannot be met."""
    dtype = jnp.result_type(*jax.tree_util.tree_leaves(y0))
    least = 8 * float(np.finfo(dtype).eps)
    if solver.step is None and solver.rtol < least:
        warnings.warn(
            f"`solver.rtol` must be at least about {least:.1e} in {dtype}, but is {solver.rtol:g}: rounding is larger. "
            "Raise rtol, or use float64.",
            stacklevel=3,
        )


def _first_step(solver: Solver, start: jax.Array, end: jax.Array) -> Any:
    """The first step with its direction, or None for diffrax's estimate."""
    size = solver.dt0 if solver.step is None else solver.step
    return None if size is None else jnp.where(end < start, -size, size).astype(start.dtype)


def _controller(solver: Solver, jumps: Any, dtype: Any, watched: Any, norm: Callable[[Any], Any]) -> Any:
    """Fixed or adaptive steps; adaptive ones stop at the jumps, and are short in an interval watched for an event."""
    count = len(jumps) if isinstance(jumps, Sequence) else jnp.size(jumps)
    if solver.step is not None:
        if count:
            raise ValueError(
                "`jumps` must be left out with a fixed step, but are given: a fixed step would cross them. Leave out step."
            )
        return diffrax.ConstantStepSize()
    longest = None if watched is None else jnp.where(watched == 0, 1.0, jnp.abs(watched) / EVENT_STEPS)
    pid = diffrax.PIDController(rtol=solver.rtol, atol=solver.atol, dtmax=longest, norm=norm)
    if not count:
        return pid
    times = (
        jnp.stack([jnp.asarray(t, dtype) for t in jumps]) if isinstance(jumps, Sequence) else jnp.asarray(jumps, dtype)
    )
    return diffrax.ClipStepSizeController(pid, jump_ts=jnp.ravel(times))


def _adjoint(solver: Solver) -> Any:
    """The diffrax adjoint."""
    name = current_adjoint() if solver.adjoint == "auto" else solver.adjoint
    if name == "backsolve" or isinstance(name, diffrax.BacksolveAdjoint):
        warnings.warn(
            "`solver.adjoint` should be checkpointed or auto, but is backsolve, which integrates the state backwards: its gradients "
            "are inaccurate for contracting systems (Ma et al., arXiv:1812.01892), without a sign of it. Write adjoint: checkpointed.",
            stacklevel=3,
        )
    made: dict[str, Callable[[], Any]] = {
        "forward": diffrax.ForwardMode,
        "checkpointed": lambda: diffrax.RecursiveCheckpointAdjoint(checkpoints=solver.checkpoints),
        "direct": diffrax.DirectAdjoint,
        "backsolve": diffrax.BacksolveAdjoint,
    }
    return made[name]() if isinstance(name, str) else name


def _event(event: Callable[[Any, Any, Any], Any], solver: Solver, of_state: Callable[[Any], Any]) -> Any:
    """A diffrax event whose time is found as the root of `event`, inside the step in which its sign changes."""
    parameters = inspect.signature(event).parameters
    if len(parameters) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        raise ValueError(f"`event` must take (t, y, args), but takes ({', '.join(parameters)}).")

    def condition(t: Any, y: Any, args: Any, **_: Any) -> Any:
        value = jnp.asarray(event(t, of_state(y), args))
        if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"`event` must return a real scalar that crosses zero, but returned {value.dtype}{list(value.shape)}."
            )
        return value

    return diffrax.Event(condition, optimistix.Bisection(rtol=min(solver.rtol, 1e-10), atol=1e-14))  # type: ignore[call-arg]


def _status(result: Any, y: Any, saved: Any) -> jax.Array:
    """The code of a result; values that are not finite make a success a failure."""
    finite = jnp.array(True)
    for leaf in jax.tree_util.tree_leaves(y):
        good = jnp.isfinite(leaf)
        if saved is not None:
            good |= ~jnp.isfinite(saved).reshape(-1, *(1,) * (leaf.ndim - 1))
        finite &= jnp.all(good)
    fine = (result == diffrax.RESULTS.successful) | (result == diffrax.RESULTS.event_occurred)
    spent = result == diffrax.RESULTS.max_steps_reached
    code = jnp.where(fine, jnp.where(finite, OK, NONFINITE), jnp.where(spent, MAX_STEPS, FAILED))
    return code.astype(jnp.int32)


def _where(keep: jax.Array, tree: Any, other: float) -> Any:
    """Leaves where `keep` (scalar, or along the leading axis), else `other`; integers are kept."""

    def one(leaf: Any) -> Any:
        mask = keep.reshape(-1, *(1,) * (leaf.ndim - 1)) if keep.ndim else keep
        return (
            jnp.where(mask, leaf, jnp.asarray(other, leaf.dtype)) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
        )

    return jax.tree_util.tree_map(one, tree)
