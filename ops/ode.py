"""Ordinary differential equations, solved by diffrax, with failures as values.

`solve` integrates one trajectory; `jax.vmap` makes an ensemble. A solve that does not reach its end says so in `status`, and its
values are NaN: the state at which a solver gave up is never handed back as an answer.

Sources: P. Kidger, "On Neural Differential Equations", PhD thesis, Oxford (2021), for diffrax; each method names its own.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np

from ops import ensemble, lanes
from ops import mass_matrix as matrices
from ops.adjoints import current_adjoint, is_differentiated
from ops.adjoints import default_adjoint as default_adjoint
from ops.bisection import Bisection
from ops.forcing import known
from ops.guards import BEYOND, BoundedSteps, guarded, within
from ops.interpolation import Interpolation, interpolation
from ops.jumps import examine, find_jumps
from ops.methods import AUTO, BOUND, STIFFLY, VectorField, Whole, in_parts
from ops.methods import METHODS as METHODS
from ops.methods import Separable as Separable
from ops.methods import Solver as Solver
from ops.methods import Split as Split
from ops.probe import PROBE_SLACK, Probed, alone, same, with_tangent
from ops.rosenbrock import Rodas5P
from ops.spelling import nearest
from ops.steps import Between, EvenSteps, Jumps, adaptive_between, adaptive_up_to, first_step

EVENT_STEPS = 100
"""With an event, a step covers at most this part of the interval: two crossings inside one step go unseen."""

POOLED, LOCKSTEP = "solved in a pool of lanes", "solved in lockstep: "
"""Names of the scopes in which a solve is traced, which say how it is computed under `jax.vmap`, and why."""

OK, MAX_STEPS, NONFINITE, FAILED = 0, 2, 3, 4
"""Codes of `Solution.status`."""


class Solution(NamedTuple):
    """What `solve` returns; a pytree.

    `t` is the array of times asked for, or the time of the state `y`; `y` has a leading time axis with `ts`, else is the final state;
    `status` (int32) is 0, or 2 out of steps, 3 not finite (or above `max_abs`), 4 failed otherwise; `steps` (int32) counts accepted
    and rejected steps; `event_time` is when the event stopped the solve, NaN if it did not, None if there is no event.

    `accepted` and `rejected` (int32) are the two counts; `length` (int32) says how many of the times hold a state where not all need
    to, with `ts="steps"` or an event, and is None elsewhere; `interpolation` is the solution as a function of time, with `dense`.
    """

    t: jax.Array
    y: Any
    status: jax.Array
    steps: jax.Array
    event_time: jax.Array | None = None
    accepted: jax.Array | None = None
    rejected: jax.Array | None = None
    length: jax.Array | None = None
    interpolation: Interpolation | None = None


def solve(
    vector_field: Any,
    y0: Any,
    args: Any = None,
    *,
    t0: Any = 0.0,
    t1: Any = None,
    ts: Any = None,
    solver: Any = Solver(),
    jumps: Any = None,
    event: Callable[[Any, Any, Any], Any] | None = None,
    dense: bool = False,
    mass_matrix: Any = None,
    **settings: Any,
) -> Solution:
    """Integrate `dy/dt = vector_field(t, y, args)` from `y(t0) = y0`.

    Args:
        vector_field: of time (scalar), state and args; returns the state's structure. For a state that is one array it may
            return a list of numbers, as with SciPy. A pair `(explicit, implicit)` of such functions, whose sum it is, for a method
            that takes only the second part implicitly; a pair `(velocity, force)` for a symplectic one, of a state `(q, p)` with
            `q' = velocity(t, p, args)` and `p' = force(t, q, args)`. Every method takes a `Split` or a `Separable`.
        y0: initial state, any pytree of real or complex arrays; numbers and lists of numbers become arrays. The tolerances hold for
            real and imaginary parts.
        args: any pytree, handed to the vector field. A forcing of `ops.forcing` anywhere in it tells of its own jumps.
        t0: start time.
        t1: end time; gives the final state. It may lie before `t0`, or be equal to it.
        ts: times at which the state is returned, in the order of integration; gives leaves with a leading time axis. The solve ends
            at the last of them, or at `t1` if that is given too. Between the ends of steps the states, and their derivatives by
            these times, are those of the method's interpolation: ten times the error and more for methods of high order at tight
            tolerances. With the times in `jumps` too, steps end there.
            "steps" for the start and the end of each step up to `t1`: `max_steps + 1` times, of which the first `length` hold a state
            and the others are NaN.
        solver: a `Solver`, the name of a method, or a diffrax solver.
        jumps: times at which the vector field is discontinuous, beside those of forcings: no step crosses them, and the solution
            may be differentiated by them. `()` says that there are none. Of several declared at one time the derivatives are by
            the first; forcings have their own.
        event: a scalar function of `(t, y, args)`; the solve ends where it crosses zero, found by bisection inside the step. Its
            sign is looked at after each step, of which there are at least 100: a quicker crossing and return goes unseen.
        dense: whether to keep every step, for `interpolation`. This and "steps" take the memory of `max_steps` states.
        mass_matrix: M of `M dy/dt = vector_field(t, y, args)`, constant, with solver rodas5p: (n, n) for a state of n real numbers as
            one vector, or its diagonal, (n,) or in the structure of the state. It may be singular: rows of zeros, or combinations of
            rows that are, are algebraic equations (of index 1: they determine what they are for). The initial values that these need
            are found from those in `y0` by Newton's method, M y0 kept; where there are none `status` is 4. A matrix that JAX traces
            tells of its algebraic equations by rows of zeros alone. The steps
            follow the error of the state alone, also where it is differentiated.
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
    return _solve(chosen, vector_field, y0, args, t0, t1, ts, jumps, event, dense, mass_matrix)


def _solve(
    chosen: Solver,
    vector_field: Any,
    y0: Any,
    args: Any,
    t0: Any,
    t1: Any,
    ts: Any,
    jumps: Any,
    event: Callable[[Any, Any, Any], Any] | None = None,
    dense: bool = False,
    mass_matrix: Any = None,
    instead: str = "",
    onward: bool = False,
) -> Solution:
    """As `solve`, with a method that another one gave way to, and why; or onward from where an explicit one met a stiff problem."""
    given = vector_field, y0, args
    watches = chosen.method == AUTO
    adjoint = _adjoint(chosen, onward)
    backsolves = isinstance(adjoint, diffrax.BacksolveAdjoint)
    every_step = isinstance(ts, str)
    _check_times(t0, t1, ts)
    vector_field = in_parts(vector_field, chosen.scheme).each(_stacking)
    separable = isinstance(vector_field, Separable)
    y0, args = _as_arrays(tuple(y0) if separable and isinstance(y0, list) else y0), _as_arrays(args)
    time_dtype = jnp.result_type(float)
    start = jnp.asarray(t0, time_dtype)
    times = None if ts is None or every_step else jnp.asarray(ts, time_dtype)
    end = jnp.asarray(t1, time_dtype) if times is None or t1 is not None else times[-1]
    span = t0, _last(ts if t1 is None else t1)
    driven = find_jumps(args, (), (), start, end, span)
    y0, traced = _promoted(vector_field, start, y0, driven.args)
    inner = _inner_jumps(traced, start, y0, jumps)
    declared = jnp.asarray(() if jumps is None else jumps, time_dtype)
    if inner or declared.size:
        driven = find_jumps(args, inner, declared, start, end, span)
        vector_field = vector_field.each(driven.field)
    if not onward:
        _check_precision(chosen, y0, span)
    args, between = driven.args, driven.jumps
    if backsolves:
        _check_backsolve(vector_field, ts, event, dense)
        if between is not None:
            raise ValueError(
                "`jumps` must be left out with adjoint backsolve, which integrates backwards over none, but the vector field has some. "
                "Write adjoint: checkpointed."
            )
        start, end, times = _not_differentiated(start, end, times)
        vector_field, args = _without_closure(vector_field, start, y0, args)
    sound = _sound(y0, args, start, end, times)
    begun, mass, slope = jnp.array(True), None, vector_field
    if mass_matrix is not None:
        mass = _mass_matrix(mass_matrix, chosen, adjoint, y0)
        vector_field = Whole(mass.field(vector_field))
        y0, begun = mass.consistent(vector_field, start, y0, args, chosen.atol)
        slope = functools.partial(mass.slope, vector_field)
    last = jnp.where(sound & begun, end, start)  # without a sound start there is nothing to integrate
    y0, vector_field, whole = _in_reals(vector_field, y0)
    probed = alone(y0, vector_field)
    if is_differentiated() and chosen.step is None and not backsolves and not separable and mass is None:
        probed = with_tangent(vector_field, start, y0, args, chosen)

    scheme = chosen.scheme
    if isinstance(scheme, Rodas5P):
        anew = chosen.atol if mass is not None and mass.singular and between is not None else None
        scheme = replace(scheme, mass=mass, pair=probed.of_state(probed.state) is not probed.state, atol=anew)

    def of_state(state: Any) -> Any:
        return whole(probed.of_state(state))

    asked = None if times is None else jnp.where(sound & begun, times, start)
    asks = {"an event": event, "dense": dense, "every step": every_step, "backsolve": backsolves, "a mass matrix": mass}
    hindrance = next(
        (f"it asks for {name}" for name, value in asks.items() if value is not None and value is not False), ""
    )
    hindrance = hindrance or _hindrance(chosen, between)
    if not hindrance:

        def rate(t: Any, state: Any) -> Any:
            return jax.tree_util.tree_map(_like, state, probed.field(t, state, args))

        program = jax.make_jaxpr(rate)(start, probed.state)
        hindrance = ensemble.hindrance(program, scheme)
        if not hindrance:
            with jax.named_scope(POOLED):
                found, saved = _in_pool(chosen, probed, program, start, last, asked, between, onward)
            at = end if times is None else times
            y = whole(_moved_by_its_ends(vector_field, found.y if saved is None else saved, y0, start, end, at, args))
            status, steps, accepted = _judged(found.phase, y, chosen.max_abs), found.steps, found.accepted
            if watches:
                stiff = found.phase == lanes.STIFF
                begin = _choose(stiff, (found.t, whole(found.y)), (start, whole(y0)))
                late = stiff if asked is None else stiff & (jnp.where(last < start, -1, 1) * (asked - found.t) > 0)
                finish = jnp.where(stiff, last, start)
                pair = probed.of_state(probed.state) is not probed.state
                hindrance = ensemble.hindrance(program, Rodas5P(pair=pair))
                rest = _onward(chosen, given, begin, finish, asked, late, jumps, hindrance)
                y = _choose(late, rest.y, y)
                steps, accepted = steps + rest.steps, accepted + rest.accepted
                spent = (rest.status == OK) & (steps > chosen.max_steps)
                status = jnp.where(stiff, jnp.where(spent, MAX_STEPS, rest.status), status)
            status = jnp.where(sound, status, NONFINITE)
            kept = _where(status == OK, y, jnp.nan)
            return Solution(at, kept, status, steps, None, accepted, steps - accepted)
    if watches:
        other = replace(chosen, method=STIFFLY)
        why = f"auto means {STIFFLY}, for {hindrance}"
        silent = () if jumps is None else jumps
        return _solve(other, *given, t0, t1, ts, silent, event, dense, None, why, True)
    hindrance = instead or hindrance
    with jax.named_scope(f"{LOCKSTEP}{hindrance}"):
        found = diffrax.diffeqsolve(
            probed.field.terms(),
            scheme if between is None else Between(scheme, between),
            start,
            last,
            _first_step(chosen, start, end),
            probed.state,
            args,
            saveat=_saved_at("steps" if every_step else asked, probed.of_state, backsolves, dense),
            stepsize_controller=_controller(
                chosen, between, None if event is None else last - start, probed.norm, of_state, asked
            ),
            adjoint=adjoint,
            event=None if event is None else _event(event, slope, start, last, y0, args, of_state, whole),
            max_steps=chosen.max_steps,
            throw=False,
        )
    stopped = found.result == diffrax.RESULTS.event_occurred
    saved_ts, saved_ys = ([found.ts] * 2, [found.ys] * 2) if backsolves else (found.ts, found.ys)
    stop = saved_ts[0][0]
    reached = saved_ts[1] if every_step or (times is not None and event is not None) else None
    if ts is None:
        y = jax.tree_util.tree_map(lambda leaf: leaf[0], saved_ys[0])
    else:
        y = saved_ys[1]
        if reached is not None:  # no state at times after the event, or beyond the last step
            y = _where(jnp.isfinite(reached), y, jnp.nan)
    if not every_step:
        y = _moved_by_its_ends(slope, y, y0, start, end, end if times is None else times, args)
    y = whole(y)
    status = jnp.where(begun, _status(found.result, y, reached, chosen.max_abs), FAILED)
    status = jnp.where(sound, status, NONFINITE)
    fine = status == OK
    event_time = None if event is None else jnp.where(stopped & fine, stop, jnp.nan)
    at = end if event is None else jnp.where(stopped & fine, stop, end)
    steps, accepted, rejected = (
        jnp.asarray(found.stats[f"num_{kind}steps"], jnp.int32) for kind in ("", "accepted_", "rejected_")
    )
    held = None if reached is None else jnp.isfinite(reached) & fine
    taken = jnp.where(held, reached, jnp.nan) if held is not None and reached is not None else at
    return Solution(
        taken if times is None else times,
        _where(fine, y, jnp.nan),
        status,
        steps,
        event_time,
        accepted,
        rejected,
        None if held is None else jnp.sum(held, dtype=jnp.int32),
        interpolation(found.interpolation, at, fine, of_state) if dense else None,
    )


def _onward(
    solver: Solver, given: Any, begin: Any, end: Any, asked: Any, late: Any, jumps: Any, hindrance: str
) -> Solution:
    """The rest of a solve that met a stiff problem, by a method for such; elsewhere `begin` is `end`, and it costs nothing.

    Args:
        solver: its settings.
        given: the vector field, the initial state and the arguments, as `solve` has them.
        begin: the time and the state to go on from.
        end: the last time.
        asked: the times at which the state is wanted, or None.
        late: which of them lie after `begin`.
        jumps: as `solve` has them.
        hindrance: why Rodas5P cannot be used; empty if it can.
    """
    field, _, args = given
    time, state = begin
    times = None if asked is None else jnp.where(late, asked, time)
    method = replace(solver, method=STIFFLY if hindrance else "rodas5p", dt0=None)
    why = f"auto goes on by {STIFFLY} where it is stiff, for {hindrance}" if hindrance else ""
    silent = () if jumps is None else jumps  # what is compared with the time has been told of
    return _solve(method, field, state, args, time, end, times, silent, instead=why, onward=True)


def _mass_matrix(given: Any, solver: Solver, adjoint: Any, y0: Any) -> matrices.Mass:
    """The mass matrix.

    Raises:
        ValueError: it is no such matrix, or the method or the adjoint takes none.
    """
    if not isinstance(solver.scheme, Rodas5P):
        name = solver.method if isinstance(solver.method, str) else type(solver.method).__name__
        raise ValueError(
            f"`mass_matrix` must be left out with solver {name}, which solves y' = f(t, y) alone, but is given. Write solver: rodas5p."
        )
    if isinstance(adjoint, diffrax.BacksolveAdjoint):
        raise ValueError(
            "`mass_matrix` must be left out with adjoint backsolve, which takes the slope as it is, but is given. "
            "Write adjoint: checkpointed."
        )
    if any(map(jnp.iscomplexobj, jax.tree_util.tree_leaves(y0))):
        raise ValueError(
            "`mass_matrix` must be left out with a complex state, but is given. Solve for real and imaginary parts."
        )
    return matrices.mass_matrix(given, y0)


def _inner_jumps(traced: Any, start: jax.Array, y0: Any, declared: Any) -> list[Any]:
    """The jumps of each forcing that a traced vector field closes over or builds.

    Raises:
        ValueError: the jumps of a forcing depend on time or state.
    """
    found = examine(traced, start, y0)
    if any(jump is None for jump in found.jumps):
        raise ValueError(
            "`vector_field` must not use a forcing whose jumps are known only at each time or state, or within a loop, but does. "
            "Put it into args; use `event` for what the state decides."
        )
    if found.compared and declared is None:
        warnings.warn(
            f"`jumps` should hold the times at which vector_field jumps, but is left out, and the time is compared in "
            f"{', '.join(found.compared[:3])}: a step may pass over a short pulse unseen. Put a forcing of ops.forcing into args, "
            "or write jumps=[...], empty if there is none.",
            stacklevel=4,
        )
    return found.jumps


def _sound(y0: Any, args: Any, start: jax.Array, end: jax.Array, times: jax.Array | None) -> jax.Array:
    """Whether a solve can begin: a finite state, finite times in order, and no NaN among the arguments."""
    good = jnp.isfinite(start) & jnp.isfinite(end)
    if times is not None:
        way = jnp.concatenate([start[None], times, end[None]]) * jnp.where(end < start, -1, 1)
        good &= jnp.all(jnp.isfinite(times)) & jnp.all(jnp.diff(way) >= 0)
    for leaf in jax.tree_util.tree_leaves(y0):
        good &= jnp.all(jnp.isfinite(leaf))
    for leaf in jax.tree_util.tree_leaves(args):
        if isinstance(leaf, jax.Array | np.ndarray | float) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            good &= ~jnp.any(jnp.isnan(jnp.asarray(leaf)))
    return good


def _moved_by_its_ends(field: VectorField, y: Any, y0: Any, start: Any, end: Any, at: jax.Array, args: Any) -> Any:
    """The states after an empty interval, which move with its ends though no step is taken: dy/dt1 = f, dy/dt0 = -f.

    The slope is that at the start, which a solve looks at anyway: elsewhere its derivative might be no number.
    """
    empty = start == end
    slope = field(start, y0, args)

    def shift(leaf: Any, rate: Any) -> Any:
        rate = jnp.where(empty & jnp.isfinite(rate), rate, 0)
        return leaf + rate * (at - start).astype(leaf.real.dtype).reshape(at.shape + (1,) * rate.ndim)

    return jax.tree_util.tree_map(shift, y, slope)


def _in_reals(vector_field: Any, y0: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """The state with complex numbers as pairs of real ones, its vector field, and what makes the state whole.

    A field that conjugates, say, has no Jacobian over the complex numbers for Newton's method; and diffrax takes no state that is
    complex in part.
    """
    split = jax.tree_util.tree_map(jnp.iscomplexobj, y0)
    if not any(jax.tree_util.tree_leaves(split)):
        return y0, vector_field, same

    def apart(tree: Any) -> Any:
        return jax.tree_util.tree_map(lambda s, x: jnp.stack([x.real, x.imag], -1) if s else x, split, tree)

    def whole(tree: Any) -> Any:
        return jax.tree_util.tree_map(lambda s, x: x[..., 0] + 1j * x[..., 1] if s else x, split, tree)

    def real(part: VectorField) -> VectorField:
        return lambda t, y, args: apart(jax.tree_util.tree_map(_like, whole(y), part(t, whole(y), args)))

    return apart(y0), vector_field.each(real), whole


def _like(leaf: Any, rate: Any) -> Any:
    """A rate in the dtype of its state."""
    return jnp.asarray(rate, leaf.dtype)


def _check_backsolve(field: Any, ts: Any, event: Any, dense: bool) -> None:
    """A backward solve does not do everything.

    Raises:
        ValueError: it is asked for what it does not do.
    """
    for name, asked, why in (
        ("event", event is not None, "has no derivative of its time, but is given"),
        ("dense", dense, "keeps no steps, but is true"),
        ("ts", isinstance(ts, str), "keeps no steps, but is 'steps'"),
        ("vector_field", not isinstance(field, Whole), "takes it whole, but is in parts"),
    ):
        if asked:
            raise ValueError(
                f"`{name}` must be left out with adjoint backsolve, which {why}. Write adjoint: checkpointed."
            )


def _not_differentiated(start: Any, end: Any, times: Any) -> tuple[Any, Any, Any]:
    """The times, whose derivatives a backward solve does not give."""
    start, end = _still("t0", start), _still("t1" if times is None else "ts", end)
    return start, end, None if times is None else _still("ts", times)


def _still(name: str, value: Any) -> Any:
    """A value that a backward solve has no derivative by."""
    message = f"`{name}` must not be differentiated with adjoint backsolve, but is. Write adjoint: checkpointed."
    return eqxi.nondifferentiable(value, msg=message)


def _without_closure(field: Any, start: Any, y0: Any, args: Any) -> tuple[Whole, Any]:
    """The vector field with the arrays that it closes over among its arguments: a backward solve has derivatives by no others."""
    closed, held = jax.closure_convert(field, start, y0, args)
    return Whole(lambda t, y, both: closed(t, y, both[0], *both[1])), (args, held)


def _saved_at(times: Any, of_state: Callable[[Any], Any], backsolves: bool, dense: bool) -> diffrax.SaveAt:
    """The end and the times asked for. A backward solve lets only one of them be saved, and takes the state as it is."""
    if backsolves:
        return diffrax.SaveAt(t1=True) if times is None else diffrax.SaveAt(ts=times)

    def save(t: Any, state: Any, args: Any) -> Any:
        return of_state(state)

    subs = [diffrax.SubSaveAt(t1=True, fn=save)]
    if isinstance(times, str):
        subs.append(diffrax.SubSaveAt(t0=True, steps=1, fn=save))
    elif times is not None:
        subs.append(diffrax.SubSaveAt(ts=times, fn=save))
    return diffrax.SaveAt(subs=subs, dense=dense)


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
    if t1 is None and (ts is None or isinstance(ts, str)):
        raise ValueError("`t1` or `ts` must be given, but neither is. Write the end time, or the times of the states.")
    if isinstance(ts, str) and ts != "steps":
        raise ValueError(f"`ts` must be a list of times, or 'steps', but is {ts!r}.")
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
    if ts is None or isinstance(ts, str | jax.core.Tracer):
        return
    values = np.asarray(ts, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"`ts` must be a list of times, but has the shape {values.shape}.")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"`ts` must be finite, but ts[{bad[0]}] is {values[bad[0]]}.")
    first, last = (None if (time := known(t)) is None else float(time) for t in (t0, t1))
    backward = (values[-1] if last is None else last) < (values[0] if first is None else first)
    sign = -1 if backward else 1
    steps = np.diff(values) * sign
    if (steps < 0).any():
        i = int(np.flatnonzero(steps < 0)[0]) + 1
        order = "descending" if backward else "ascending"
        raise ValueError(f"`ts` must be {order}, but ts[{i}] = {values[i]} follows {values[i - 1]}. Sort the times.")
    if first is not None and (values[0] - first) * sign < 0:
        raise ValueError(
            f"`ts` must not begin before t0 = {first}, but ts[0] is {values[0]}. Lower t0, or leave that time out."
        )
    if last is not None and (last - values[-1]) * sign < 0:
        i = int(np.flatnonzero((last - values) * sign < 0)[0])
        raise ValueError(
            f"`ts` must not go beyond t1 = {last}, but ts[{i}] is {values[i]}. Leave t1 out, or that time."
        )


def _last(times: Any) -> Any:
    """The last of some times, or the only one; it stays known while JAX traces."""
    return times if isinstance(times, jax.core.Tracer) or not np.ndim(times) else np.ravel(np.asarray(times))[-1]


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


def _promoted(
    vector_field: VectorField, t0: jax.Array, y0: Any, args: Any, name: str = "vector_field"
) -> tuple[Any, Any]:
    """The initial state in the dtype of its own derivative, and the vector field as it was traced to find that.

    Raises:
        ValueError: the vector field returns another structure, another shape, or complex values for a real state.
    """
    if not jax.tree_util.tree_leaves(y0):
        raise ValueError("`y0` must hold at least one array, but is empty.")
    y0 = jax.tree_util.tree_map(lambda leaf: _inexact(jnp.asarray(leaf)), y0)
    traced, slope = jax.make_jaxpr(lambda t, y: vector_field(t, y, args), return_shape=True)(t0, y0)
    if _structure(y0) != _structure(slope):
        hint = " It returned None: is a `return` missing?" if slope is None else ""
        raise ValueError(f"`{name}` must return the structure of y0, {_words(y0)}, but returned {_words(slope)}.{hint}")

    def promote(leaf: Any, rate: Any) -> Any:
        if leaf.shape != rate.shape:
            raise ValueError(f"`{name}` must return the shapes of y0, {_words(y0)}, but returned {_words(slope)}.")
        if jnp.issubdtype(rate.dtype, jnp.complexfloating) and not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                f"`y0` must be complex, but is real, and {name} returns complex values. Write y0 * (1 + 0j)."
            )
        return leaf.astype(jnp.result_type(leaf.dtype, rate.dtype))

    return jax.tree_util.tree_map(promote, y0, slope), traced


def _inexact(leaf: Any) -> Any:
    """A float of at least the precision in force, in which diffrax computes: it is that of the times."""
    floats = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return leaf.astype(jnp.result_type(leaf.dtype, jnp.zeros((), float)) if floats else jnp.result_type(float))


def _words(tree: Any) -> str:
    """A pytree's shapes in words."""
    shown = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree_util.tree_leaves(tree)]
    single = _structure(tree) == _structure(0)
    return shown[0] if single else f"{jax.tree_util.tree_unflatten(_structure(tree), shown)}".replace("'", "")


def _structure(tree: Any) -> Any:
    """A pytree's structure."""
    return jax.tree_util.tree_structure(tree)


def _check_precision(solver: Solver, y0: Any, span: tuple[Any, Any]) -> None:
    """What rounding leaves no room for: a tolerance below that of the state, an interval that is short beside its times.

    Raises:
        ValueError: fixed steps are too many, or too short to move the time.
    """
    dtype = jnp.result_type(*jax.tree_util.tree_leaves(y0))
    least = 8 * float(np.finfo(dtype).eps)
    if solver.step is None and solver.rtol < least:
        warnings.warn(
            f"`solver.rtol` must be at least about {least:.1e} in {dtype}, but is {solver.rtol:g}: rounding is larger. "
            "Raise rtol, or use float64.",
            stacklevel=4,
        )
    if any(known(t) is None for t in span):
        return
    start, end = (float(known(t)) for t in span)
    clock = np.dtype(jnp.result_type(float))
    resolved = float(np.finfo(clock).eps) * max(abs(start), abs(end))
    length = abs(end - start)
    if solver.step is None and resolved > max(solver.rtol, least) * length > 0:
        warnings.warn(
            f"`t0` should be nearer to 0, but is {start:g}: in {clock} times there are {resolved:.1e} apart, too coarse for an interval "
            f"of {length:g} at rtol {solver.rtol:g}. Count time from a later origin, or use float64.",
            stacklevel=4,
        )
    if isinstance(solver.step, int | float):
        if solver.step < 2 * resolved:
            raise ValueError(
                f"`solver.step` must move the time, but is {solver.step:g}, and times near {max(abs(start), abs(end)):g} are "
                f"{resolved:.1e} apart in {clock}. Raise step, or use float64."
            )
        count = math.ceil(length / solver.step * (1 - least))
        if count > solver.max_steps:
            raise ValueError(
                f"`solver.max_steps` must be at least {count} for steps of {solver.step:g} over {length:g}, but is "
                f"{solver.max_steps}. Raise max_steps, or step."
            )


def _hindrance(solver: Solver, jumps: Jumps | None) -> str:
    """Why the settings keep a solve out of a pool of lanes; empty if they do not."""
    numbers = (solver.dtmin, solver.dtmax, solver.max_abs, solver.pcoeff, solver.icoeff, solver.dcoeff, solver.safety)
    known = all(isinstance(x, int | float | None) for x in (*numbers, solver.factormin, solver.factormax))
    if not known or solver.icoeff <= 0:
        return "solver holds settings of the controller that are traced, or an icoeff of 0"
    if not isinstance(solver.adjoint, str):
        return "solver.adjoint is an object"
    if solver.checkpoints is not None and _mode(solver) != "forward":
        return "solver.checkpoints bounds its memory"
    return "" if solver.step is None or jumps is None else "its steps are fixed and its vector field jumps"


def _mode(solver: Solver) -> Any:
    """The adjoint, with what `auto` means here."""
    return current_adjoint() if solver.adjoint == "auto" else solver.adjoint


def _in_pool(
    solver: Solver, probed: Probed, program: Any, start: Any, last: Any, asked: Any, jumps: Jumps | None, sparse: bool
) -> tuple[lanes.Outcome, Any]:
    """What is known at the end, and the states at the times asked for."""
    beside = probed.of_state(probed.state) is not probed.state
    steps = lanes.Steps(
        solver.rtol, solver.atol, solver.pcoeff, solver.icoeff, solver.dcoeff, solver.factormin, solver.factormax,
        solver.safety, solver.dtmin, solver.dtmax, solver.max_abs, solver.step is not None, PROBE_SLACK if beside else None,
        BOUND if solver.method == AUTO else None, sparse,
    )  # fmt: skip
    scheme = solver.scheme
    order = float(scheme.error_order(diffrax.ODETerm(probed.field)) or 1)
    size: Any = solver.dt0 if solver.step is None else solver.step
    if size is None:
        sign = jnp.where(last < start, -1, 1).astype(start.dtype)

        def wrapped(t: Any, state: Any) -> Any:
            t = t if jumps is None else jnp.clip(t, *jumps.around(sign * start))
            found = jax.core.eval_jaxpr(program.jaxpr, program.consts, sign * t, *jax.tree_util.tree_leaves(state))
            slope = jax.tree_util.tree_unflatten(_structure(state), found)
            return jax.tree_util.tree_map(lambda y, x: sign.astype(y.dtype) * x, state, slope)

        still = jax.lax.stop_gradient((sign * start, sign * last, probed.state))
        size = jax.lax.stop_gradient(first_step(wrapped, *still, order, solver.rtol, solver.atol, probed.norm))
    size = size if solver.dtmax is None else jnp.minimum(size, solver.dtmax)
    size = size if solver.dtmin is None else jnp.maximum(size, solver.dtmin)
    found, saved = ensemble.solve(
        program,
        scheme,
        steps,
        probed.state,
        t0=start,
        t1=last,
        first=jnp.asarray(size, start.dtype),
        ts=asked,
        jumps=None
        if jumps is None
        else tuple(jnp.asarray(x, start.dtype) for x in (jumps.times, jumps.margin, jumps.first, jumps.last)),
        max_steps=solver.max_steps,
        order=order,
        reverse=_mode(solver) != "forward",
    )
    if saved is not None:  # in an empty interval no step passes a time
        saved = jax.tree_util.tree_map(lambda all, y: jnp.where(start == last, y, all), saved, found.y)
    return found, saved


def _judged(phase: Any, y: Any, max_abs: Any) -> jax.Array:
    """The code of the end of a lane."""
    sound = within(y, jnp.inf if max_abs is None else max_abs)
    failed = jnp.where(phase == lanes.MAX_STEPS, MAX_STEPS, jnp.where(phase == lanes.BEYOND, NONFINITE, FAILED))
    return jnp.where(phase == lanes.REACHED, jnp.where(sound, OK, NONFINITE), failed).astype(jnp.int32)


def _first_step(solver: Solver, start: jax.Array, end: jax.Array) -> Any:
    """The first step with its direction, or None for diffrax's estimate."""
    size = solver.dt0 if solver.step is None else solver.step
    return None if size is None else jnp.where(end < start, -size, size).astype(start.dtype)


def _controller(
    solver: Solver,
    jumps: Jumps | None,
    watched: Any,
    norm: Callable[[Any], Any],
    of_state: Callable[[Any], Any],
    times: jax.Array | None,
) -> Any:
    """Fixed or adaptive steps, which stop at the jumps; adaptive ones are short in an interval watched for an event.

    Those of implicit methods end at the times asked for: between them, what is interpolated of a stiff problem has an error of a thousand
    times the tolerance, or no digits at all.
    """
    if solver.step is not None:
        return BoundedSteps(diffrax.ConstantStepSize() if jumps is None else EvenSteps(jumps), solver.max_abs)
    longest = None if watched is None else jnp.where(watched == 0, 1.0, jnp.abs(watched) / EVENT_STEPS)
    steps: Any = guarded(solver.adaptive(longest, norm), solver.dtmin, solver.max_abs, of_state)
    if times is not None and isinstance(solver.scheme, diffrax.AbstractImplicitSolver | Rodas5P):
        steps = adaptive_up_to(steps, jax.lax.stop_gradient(times))
    return steps if jumps is None else adaptive_between(steps, jumps)


def _adjoint(solver: Solver, silent: bool = False) -> Any:
    """The diffrax adjoint."""
    name = _mode(solver)
    if not silent and (name == "backsolve" or isinstance(name, diffrax.BacksolveAdjoint)):
        warnings.warn(
            "`solver.adjoint` should be checkpointed or auto, but is backsolve, which integrates the state backwards: its gradients "
            "are inaccurate for contracting systems (Ma et al., arXiv:1812.01892), without a sign of it. Write adjoint: checkpointed.",
            stacklevel=4,
        )
    made: dict[str, Callable[[], Any]] = {
        "forward": diffrax.ForwardMode,
        "checkpointed": lambda: diffrax.RecursiveCheckpointAdjoint(checkpoints=solver.checkpoints),
        "direct": diffrax.DirectAdjoint,
        "backsolve": diffrax.BacksolveAdjoint,
    }
    return made[name]() if isinstance(name, str) else name


def _event(
    event: Callable[[Any, Any, Any], Any],
    field: VectorField,
    start: Any,
    end: Any,
    y0: Any,
    args: Any,
    of_state: Callable[[Any], Any],
    whole: Callable[[Any], Any],
) -> Any:
    """A diffrax event whose time is found as the root of `event`, inside the step in which its sign changes.

    Where it is zero at the start it has the sign that it is about to take. (diffrax counts time forward in a backward solve.)
    """
    parameters = inspect.signature(event).parameters
    if len(parameters) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        raise ValueError(f"`event` must take (t, y, args), but takes ({', '.join(parameters)}).")

    def watched(t: Any, y: Any, args: Any) -> Any:
        value = jnp.asarray(event(t, y, args))
        if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"`event` must return a real scalar that crosses zero, but returned {value.dtype}{list(value.shape)}."
            )
        return value

    way = jnp.where(end < start, -1, 1).astype(start.dtype)
    slope = field(start, y0, args)
    first, leaving = jax.jvp(lambda t, y: watched(t, whole(y), args), (start, y0), (jnp.ones_like(start), slope))
    first = jax.lax.stop_gradient(jnp.where(first == 0, way.astype(first.dtype) * leaving, first))

    def condition(t: Any, y: Any, args: Any, **_: Any) -> Any:
        return jnp.where(t == way * start, first, watched(way * t, of_state(y), args))

    return diffrax.Event(condition, Bisection())  # type: ignore[call-arg]


def _status(result: Any, y: Any, saved: Any, max_abs: Any) -> jax.Array:
    """The code of a result; values that are not finite, or too large, make a success a failure."""
    bound = jnp.inf if max_abs is None else max_abs
    held = y if saved is None else _where(jnp.isfinite(saved), y, 0.0)
    fine = (result == diffrax.RESULTS.successful) | (result == diffrax.RESULTS.event_occurred)
    spent = result == diffrax.RESULTS.max_steps_reached
    failed = jnp.where(spent, MAX_STEPS, jnp.where(result == BEYOND, NONFINITE, FAILED))
    return jnp.where(fine, jnp.where(within(held, bound), OK, NONFINITE), failed).astype(jnp.int32)


def _choose(keep: jax.Array, new: Any, old: Any) -> Any:
    """Leaves of one of two trees, by `keep` (scalar, or along the leading axis)."""

    def one(a: Any, b: Any) -> Any:
        return jnp.where(keep.reshape(keep.shape + (1,) * (a.ndim - keep.ndim)), a, b)

    return jax.tree_util.tree_map(one, new, old)


def _where(keep: jax.Array, tree: Any, other: float) -> Any:
    """Leaves where `keep` (scalar, or along the leading axis), else `other`; integers are kept."""

    def one(leaf: Any) -> Any:
        mask = keep.reshape(-1, *(1,) * (leaf.ndim - 1)) if keep.ndim else keep
        return (
            jnp.where(mask, leaf, jnp.asarray(other, leaf.dtype)) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
        )

    return jax.tree_util.tree_map(one, tree)
