"""Events: where a condition crosses zero, stop, note it, or apply a reset and go on.

`solve` is `ops.ode.solve` with events. The solution goes from one event to the next; each crossing is sought without derivatives, the
state is then integrated to it, and the time is set right by Newton's method on the integrated state. The time of an event moves with the
parameters by the implicit function theorem, and the state after a reset as the saltation matrix says, because both are ordinary JAX
along the way: forward and reverse mode, and derivatives up to the third.

Sources: M. di Bernardo, C. Budd, A. Champneys, P. Kowalczyk, Piecewise-smooth Dynamical Systems, Springer (2008), sections 2.3 and 2.5,
for saltation and Zeno behaviour; A. C. Hindmarsh et al., SUNDIALS (2005), for roots that are zero at the start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ops import ode
from ops.adjoints import VALUES, current_adjoint, default_adjoint
from ops.jumps import find_jumps
from ops.methods import VectorField
from ops.ode import OK, Solver
from ops.spelling import nearest

MAX_EVENTS = ode.MAX_STEPS
"""The status where there are more events than `max_events`."""

ACTIONS = ("terminate", "record")
TIE = 100
"""Events within so many roundings of time happen at one time."""

NEWTON = 2
"""Newton steps from the crossing sought to that of the integrated state; each doubles the order of the derivatives that are right."""


@dataclass(frozen=True)
class Event:
    """A condition, the direction in which it must cross zero, and what happens then.

    Raises:
        ValueError: a field is none of what it may be.

    >>> Event(lambda t, y, args: y[0], direction=-1).action
    'terminate'
    """

    condition: Callable[[Any, Any, Any], Any]
    """A real scalar of `(t, y, args)`."""

    direction: int = 0
    """-1: from positive to negative, +1: from negative to positive, along the solve; 0: both."""

    action: Any = "terminate"
    """`terminate` ends the solve, `record` notes the time and the state; a function of `(t, y, args)` gives the state to go on with."""

    def __post_init__(self) -> None:
        _check_takes_three("condition", self.condition)
        if isinstance(self.direction, bool) or self.direction not in (-1, 0, 1):
            raise ValueError(
                f"`direction` must be -1 (falling), 1 (rising) or 0 (both), but is {self.direction!r}. Write 0 for both."
            )
        if callable(self.action):
            _check_takes_three("action", self.action)
        elif self.action not in ACTIONS:
            raise ValueError(
                f"`action` must be one of {', '.join(ACTIONS)}, or a function of (t, y, args) that gives the state to go on with, "
                f"but is {self.action!r}."
            )


class Solution(NamedTuple):
    """What `solve` returns; a pytree.

    `t`, `y`, `status` and `steps` are those of `ops.ode.Solution`; status 2 also says that there were more events than `max_events`.
    `event_time` is when an event ended the solve, NaN if none did. Of the events in their order, `events` (int32) is how many there
    were, `event_times` has the time of each, `event_index` its place among the events that were declared, and `event_states` the state
    just before it, each with a leading axis of `max_events`; NaN and -1 follow the last. Without an event: NaN, and 0 events.
    """

    t: jax.Array
    y: Any
    status: jax.Array
    steps: jax.Array
    event_time: jax.Array
    event_times: jax.Array
    event_index: jax.Array
    event_states: Any
    events: jax.Array


def solve(
    vector_field: VectorField,
    y0: Any,
    args: Any = None,
    *,
    events: Event | Sequence[Event],
    max_events: int = 32,
    beyond: str = "fail",
    t0: Any = 0.0,
    t1: Any = None,
    ts: Any = None,
    solver: Any = Solver(),
    jumps: Any = None,
    **settings: Any,
) -> Solution:
    """Integrate `dy/dt = vector_field(t, y, args)` from `y(t0) = y0` through events.

    A condition that is zero at the start, or after its own reset, must leave zero before it can cross it again: a ball starts from the
    ground and bounces on it. Events at one time (within 100 roundings) happen in the order in which they are declared; a reset that
    carries another condition across zero makes that event happen at the same time. Infinitely many events in finite time end with status
    2, at `max_events` or where they come closer than 100 roundings: a ball comes to rest so, and one at rest on the ground is no answer
    either. The sign of a condition is looked at after each step, of which there are at least 100 from one event to `t1`: a
    quicker crossing and return goes unseen, and so does a touch without a crossing.

    Args:
        vector_field, y0, args, t0, t1, ts, solver, jumps, settings: those of `ops.ode.solve`; `max_steps` is for each stretch
            between two events. At a save time that is the time of an event the state is the one after it.
        events: one `Event` or several.
        max_events: how many events, of all kinds, there may be.
        beyond: at one event more, `fail` gives status 2; with `stop` the solve ends after the last of `max_events`, as if that terminated.

    Returns:
        A `Solution`. Where `status` is not 0 its floating-point values are NaN; so is the state at save times after the end.

    Raises:
        ValueError: an event, a setting, a time or a structure is wrong.

    >>> ground = Event(lambda t, y, args: y[0], direction=-1, action=lambda t, y, args: [y[0], -0.5 * y[1]])
    >>> ball = solve(lambda t, y, args: [y[1], -9.81], [10.0, 0.0], events=ground, t1=3.0)
    >>> int(ball.events), round(float(ball.event_times[1]), 4)
    (2, 2.8557)
    """
    declared = _declared(events, max_events, beyond)
    chosen = ode._solver(solver, settings)
    if "backsolve" in (chosen.adjoint, current_adjoint() if chosen.adjoint == "auto" else None):
        raise ValueError("`solver.adjoint` must not be backsolve with events, but is. Write adjoint: auto.")
    if not callable(vector_field):
        raise ValueError(
            f"`vector_field` must be one function of (t, y, args) with events, but is {vector_field!r:.60}."
        )
    if isinstance(ts, str):
        raise ValueError(f"`ts` must be a list of times with events, but is {ts!r}. Write the times.")
    ode._check_times(t0, t1, ts)
    y0, args = ode._as_arrays(y0), ode._as_arrays(args)
    dtype = jnp.result_type(float)
    start = jnp.asarray(t0, dtype)
    times = None if ts is None else jnp.asarray(ts, dtype)
    end = jnp.asarray(t1, dtype) if times is None or t1 is not None else times[-1]
    field = ode._stacking(vector_field)
    driven = find_jumps(
        args, (), (), start, end, (t0, ode._last(ts if t1 is None else t1))
    )  # checks what the forcings cover
    y0, _ = ode._promoted(field, start, y0, driven.args)
    y0 = jax.tree_util.tree_map(jnp.asarray, y0)
    way = jnp.where(end < start, -1, 1).astype(dtype)
    watch = Watch(field, tuple(declared), args, jnp.abs(end - start), way)
    resets = [_reset(event.action, start, y0, args) for event in declared]
    enough = jnp.asarray([event.action == "terminate" for event in declared])

    def seek(t: Any, y: Any, sides: Any, last: Any) -> Any:
        quick = replace(chosen, adjoint="forward", checkpoints=None)
        with default_adjoint(VALUES):
            return _seek(watch, t, y, sides, last, quick, jumps)

    still = jax.lax.stop_gradient
    found = watch.still().sides(*still((start, y0)))
    seek, held = jax.closure_convert(seek, start, y0, found, end)

    def advance(carry: Carry, _: Any) -> tuple[Carry, Any]:
        waiting = jnp.any(carry.due)
        goes = ~carry.done & ~waiting
        t, last = still(carry.t), jnp.where(goes, end, carry.t)
        y = _moved(field, carry.t, carry.y, t - carry.t, args)
        hit, crossing, due, sides, status, steps = seek(*still((t, y, carry.sides, last)), *still(held))
        stop = jnp.where(hit, crossing, last)
        stop = jnp.where(goes, stop, t)
        asked = stop[None]
        if times is not None:
            low, high = jnp.minimum(t, stop), jnp.maximum(t, stop)
            asked = jnp.append(jnp.clip(times, low, high), stop)
        path = ode.solve(field, y, args, t0=t, ts=asked, solver=chosen, jumps=jumps)
        status = jnp.where(status == OK, path.status, status)
        fine = carry.done | (status == OK)
        reached = _choose(path.status == OK, path.y, jax.tree_util.tree_map(lambda leaf: leaf[None], still(y)))
        at_stop = jax.tree_util.tree_map(lambda leaf: leaf[-1], reached)

        due = jnp.where(waiting, carry.due, due)
        fires = ~carry.done & (waiting | hit) & fine
        index = jnp.argmax(due)
        base = _choose(waiting, (carry.t, carry.y), (stop, at_stop))
        bound = watch.tie(stop) + jnp.where(waiting, 0.0, 0.1 * jnp.abs(stop - t))
        at, before = watch.crossing(index, base[0], base[1], fires, waiting, bound)
        after = _switch(index, resets, at, before, args)
        after = _choose(fires, after, before)

        sides, jumped = watch.still().across(index, *still((at, after)), sides, *still((at, before)))
        due = (due | jumped) & (jnp.arange(len(declared)) != index)
        count = carry.number + jnp.where(fires, 1, 0)
        crowded = fires & ~waiting & (carry.number > 0) & (jnp.abs(still(at) - t) <= watch.tie(t))
        stops = fires & (enough[index] | ((beyond == "stop") & (count == max_events)))
        ends = ~carry.done & (stops | ~fires | ~fine | crowded)
        saved = carry.saved
        if times is not None:
            since, until = way * (times - t) >= 0, way * (times - still(at))
            here = ~carry.done & since & jnp.where(fires, until < 0, until <= 0)
            saved = _choose(here, jax.tree_util.tree_map(lambda leaf: leaf[:-1], reached), saved)
            saved = _choose(stops & (until == 0), jax.tree_util.tree_map(lambda leaf: leaf[None], after), saved)
        new = Carry(
            jnp.where(carry.done, carry.t, at),
            _choose(carry.done, carry.y, after),
            jnp.where(carry.done, carry.sides, sides),
            jnp.where(fires & ~stops, due, False),
            carry.done | ends,
            jnp.where(
                crowded | (fires & (count > max_events)), MAX_EVENTS, jnp.where(carry.done, carry.status, status)
            ).astype(jnp.int32),
            count.astype(jnp.int32),
            carry.steps + jnp.where(carry.done, 0, steps + path.steps).astype(jnp.int32),
            saved,
            jnp.where(stops, at, carry.ended),
        )
        return new, (
            jnp.where(fires, at, jnp.nan),
            jnp.where(fires, index, -1).astype(jnp.int32),
            _masked(fires, before),
        )

    none = jnp.zeros(len(declared), bool)
    empty = None
    if times is not None:
        empty = jax.tree_util.tree_map(lambda leaf: jnp.full((times.shape[0], *leaf.shape), jnp.nan, leaf.dtype), y0)
    zero = jnp.asarray(0, jnp.int32)
    moving = start, y0, empty, jnp.asarray(jnp.nan, dtype)
    start, y0, empty, ended = _with_tangents(moving, [x for x in jax.tree_util.tree_leaves(args) if _is_inexact(x)])
    first = Carry(start, y0, found, none, jnp.array(False), zero, zero, zero, empty, ended)
    carry, happened = jax.lax.scan(advance, first, jnp.arange(max_events + (beyond == "fail")))
    fine = carry.status == OK
    event_times, event_index, event_states = jax.tree_util.tree_map(lambda leaf: leaf[:max_events], happened)
    return Solution(
        carry.t if times is None else times,
        _masked(fine, carry.y if times is None else carry.saved),
        carry.status,
        carry.steps,
        jnp.where(fine, carry.ended, jnp.nan),
        jnp.where(fine, event_times, jnp.nan),
        event_index,
        _masked(fine, event_states),
        jnp.minimum(carry.number, max_events),
    )


@jax.custom_jvp
def _with_tangents(values: Any, others: Any) -> Any:
    """Values that move if others do, though it be by zero: JAX would trace a loop again for each that it finds to move after all."""
    return values


@_with_tangents.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _with_tangents(*primals), tangents[0]


def _is_inexact(leaf: Any) -> bool:
    """Whether a leaf is an array of floating-point numbers."""
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


class Carry(NamedTuple):
    """Where a solve stands between two stretches."""

    t: jax.Array
    y: Any
    sides: jax.Array
    """On which side of zero each condition is: 1 or -1, 0 while it stays at zero."""

    due: jax.Array
    """Which events happen at this very time, and have not yet."""

    done: jax.Array
    status: jax.Array
    number: jax.Array
    steps: jax.Array
    saved: Any
    ended: jax.Array


class Look(NamedTuple):
    """The conditions at one time, one number for each."""

    value: jax.Array
    rate: jax.Array
    """By time, along the solution and in its direction."""

    noise: jax.Array
    """What is zero up to rounding."""


@dataclass(frozen=True)
class Watch:
    """The conditions along a solution."""

    field: VectorField
    events: tuple[Event, ...]
    args: Any
    span: jax.Array
    way: jax.Array

    def tie(self, t: jax.Array) -> Any:
        """How close two times are that count as one."""
        return TIE * _precision(t).eps * jnp.maximum(jnp.abs(t), self.span)

    def value(self, number: int, t: Any, y: Any) -> Any:
        """A condition.

        Raises:
            ValueError: it is no real scalar.
        """
        found = self.events[number].condition(t, y, self.args)
        value = jnp.asarray(found) if ode._structure(found) == ode._structure(0.0) else None
        if value is None or value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            said = f"{found!r}" if value is None else f"{value.dtype}{list(value.shape)}"
            raise ValueError(
                f"`condition` of events[{number}] must return a real scalar that crosses zero, but returned {said}."
            )
        return value.astype(t.dtype)

    def look(self, t: Any, y: Any) -> Look:
        """All conditions."""
        leaves = jax.tree_util.tree_leaves(self.field(t, y, self.args))
        looks = []
        for number in range(len(self.events)):
            value, (by_t, by_y) = jax.value_and_grad(lambda t, y, n=number: self.value(n, t, y), (0, 1))(t, y)
            pull = jax.tree_util.tree_leaves(by_y)
            rate = by_t + sum(jnp.sum(jnp.real(p * f)) for p, f in zip(pull, leaves, strict=True))
            size = jnp.abs(by_t * t) + sum(
                jnp.sum(jnp.abs(p * x)) for p, x in zip(pull, jax.tree_util.tree_leaves(y), strict=True)
            )
            noise = 8 * _precision(t).eps * size + jnp.abs(rate) * self.tie(t)
            looks.append(
                Look(value, self.way * rate.astype(t.dtype), jnp.where(jnp.isfinite(noise), noise, 0).astype(t.dtype))
            )
        return Look(*(jnp.stack(parts) for parts in zip(*looks, strict=True)))

    def sides(self, t: Any, y: Any, noise: Any = 0.0) -> jax.Array:
        """The side of each condition; of one that is zero, the side to which it is about to go, 0 if its rate is zero too."""
        now = self.look(t, y)
        return jnp.sign(jnp.where(jnp.abs(now.value) > jnp.maximum(now.noise, noise), now.value, now.rate))

    def crossing(self, index: Any, t: Any, y: Any, fires: Any, waiting: Any, bound: Any) -> tuple[Any, Any]:
        """The time and the state at which a condition is zero, from close by.

        Args:
            index: which event.
            t: a time close to it.
            y: the state then.
            fires: whether there is a crossing at all.
            waiting: whether the event is due at `t` itself; it may then have been carried across by the reset of another one, and
                happens when that does.
            bound: how far the time may move.
        """
        conditions = [lambda t, y, n=number: self.value(n, t, y) for number in range(len(self.events))]

        def measure(t: Any, y: Any) -> tuple[Any, Any]:
            slope = self.field(t, y, self.args)
            return jax.jvp(lambda t, y: _switch(index, conditions, t, y), (t, y), (jnp.ones_like(t), slope))

        value, rate = jax.lax.stop_gradient(measure(t, y))
        moves = fires & ~(waiting & (jnp.abs(value) > jnp.abs(rate) * 10 * self.tie(t)))

        def improve(shift: Any, _: Any) -> tuple[Any, Any]:
            now = _moved(self.field, t, y, shift, self.args)
            value, rate = measure(t + shift, now)
            rate = jnp.where(moves & (rate != 0), rate, jnp.where(moves, _precision(rate).tiny, 1.0))
            step = jnp.where(moves, -value, 0.0) / rate
            still = jax.lax.stop_gradient(step)
            kept = jnp.clip(jax.lax.stop_gradient(shift) + jnp.where(jnp.isfinite(still), still, 0), -bound, bound)
            moved = shift + step  # the derivative is this one's, whatever is kept of the value
            return jax.lax.stop_gradient(kept) + (moved - jax.lax.stop_gradient(moved)), (t + shift, now)

        _, found = jax.lax.scan(improve, jnp.zeros_like(t), None, length=NEWTON + 1)
        last: tuple[Any, Any] = jax.tree_util.tree_map(lambda leaf: leaf[-1], found)
        return last

    def still(self) -> Watch:
        """The same, for what has no derivative."""
        stop = jax.lax.stop_gradient
        return replace(self, args=jax.tree_util.tree_map(lambda x: stop(x) if _is_inexact(x) else x, self.args))

    def across(self, index: Any, t: Any, y: Any, sides: Any, t_before: Any, before: Any) -> tuple[Any, Any]:
        """The sides after an event, and which other events its reset makes happen at once."""
        own = jnp.arange(len(self.events)) == index
        left = jnp.abs(jnp.stack([self.value(n, t_before, before) for n in range(len(self.events))]))
        new = self.sides(t, y, jnp.where(own, 4 * left, 0.0))
        jumped = ~own & (sides * new < 0) & self.wanted(sides)
        return jnp.where(own | ~jumped, new, sides), jumped

    def wanted(self, sides: Any) -> Any:
        """Whether leaving each side is an event."""
        directions = jnp.asarray([event.direction for event in self.events])
        return (sides != 0) & ((directions == 0) | (directions == -sides))

    def guards(self, sides: Any) -> Any:
        """Whether a reset is there to keep the condition from each side: from leaving zero for it, too."""
        kept = jnp.asarray([event.direction if callable(event.action) else 0 for event in self.events])
        return (kept != 0) & (kept == sides)


def _seek(watch: Watch, t: Any, y: Any, sides: Any, end: Any, solver: Solver, jumps: Any) -> tuple[Any, ...]:
    """Look for the next event, by the first change of any side.

    Returns:
        Whether there is one, its time, which events happen then, the sides, the status and the number of steps.
    """
    first = watch.look(t, y)
    threshold = first.noise + jnp.sqrt(_precision(t).tiny)

    def height(value: Any, sides: Any) -> Any:
        """How far each condition is from changing its side; from leaving zero, where it is at zero."""
        return jnp.where(sides == 0, threshold - jnp.abs(value), sides * value)

    def onward(state: Any) -> Any:
        t, y, sides, _, _, _, steps = state

        def nearest(s: Any, x: Any, _: Any) -> Any:
            values = jnp.stack([watch.value(number, s, x) for number in range(len(watch.events))])
            return jnp.where(s == t, 1.0, jnp.min(height(values, sides)))

        path = ode.solve(watch.field, y, watch.args, t0=t, t1=end, event=nearest, solver=solver, jumps=jumps)
        hit = jnp.isfinite(jnp.asarray(path.event_time))
        at = _choose(path.status == OK, (path.t, path.y), (t, y))
        now = watch.look(*at)
        high = height(now.value, sides)
        climb = jnp.where(sides == 0, -jnp.abs(now.rate), sides * now.rate)
        wait = jnp.where(climb < 0, jnp.maximum(high, 0) / jnp.where(climb < 0, -climb, 1), jnp.inf)
        wait = jnp.where(high < -now.noise, 0.0, wait)
        closest = jnp.arange(len(watch.events)) == jnp.argmin(high / (now.noise + threshold))
        change = jnp.where(jnp.isfinite(jnp.min(wait)), wait <= jnp.min(wait) + watch.tie(at[0]), closest) & hit
        turned = jnp.where(sides == 0, jnp.sign(now.value), -sides)
        due = change & (watch.wanted(sides) | ((sides == 0) & watch.guards(turned)))
        sides = jnp.where(change & ~due, turned, sides)
        return *at, sides, due, hit & ~jnp.any(due), path.status, steps + path.steps

    zero = jnp.asarray(0, jnp.int32)
    none = jnp.zeros(len(watch.events), bool)
    state = (t, y, sides, none, jnp.array(True), zero, zero)
    at, _, sides, due, _, status, steps = jax.lax.while_loop(lambda state: state[4], onward, state)
    return jnp.any(due), at, due, sides, status, steps


def _precision(x: Any) -> Any:
    """The limits of a floating-point type."""
    return np.finfo(x.dtype)


def _moved(field: VectorField, t: Any, y: Any, h: Any, args: Any) -> Any:
    """The state a very short time later: a step of the classical Runge-Kutta method, with its derivatives by `h` up to the fourth."""
    k1 = field(t, y, args)
    k2 = field(t + h / 2, _moved_straight(y, k1, h / 2), args)
    k3 = field(t + h / 2, _moved_straight(y, k2, h / 2), args)
    k4 = field(t + h, _moved_straight(y, k3, h), args)
    slope = jax.tree_util.tree_map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
    return _moved_straight(y, slope, h)


def _moved_straight(y: Any, slope: Any, h: Any) -> Any:
    """The state moved along a slope."""
    return jax.tree_util.tree_map(lambda x, k: (x + h.astype(x.real.dtype) * k).astype(x.dtype), y, slope)


def _switch(index: Any, functions: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """The function of that number, applied."""
    return functions[0](*operands) if len(functions) == 1 else jax.lax.switch(index, list(functions), *operands)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    """One of two pytrees; the condition may be one for each entry along the leading axis."""

    def one(a: Any, b: Any) -> Any:
        return jnp.where(condition.reshape(-1, *(1,) * (jnp.ndim(a) - 1)) if condition.ndim else condition, a, b)

    return jax.tree_util.tree_map(one, yes, no)


def _masked(keep: Any, tree: Any) -> Any:
    """A pytree, or NaN."""
    return ode._where(keep, tree, jnp.nan)


def _declared(events: Any, max_events: Any, beyond: Any) -> list[Event]:
    """The events, checked.

    Raises:
        ValueError: there is none, or one is no `Event`.
    """
    declared = [events] if isinstance(events, Event) else events
    if not isinstance(declared, Sequence) or not all(isinstance(event, Event) for event in declared):
        raise ValueError(f"`events` must be an Event or a list of them, but is {events!r}. Write Event(condition).")
    if not declared:
        raise ValueError("`events` must hold an Event at least, but is empty. Use ops.ode.solve for a solve without.")
    if isinstance(max_events, bool) or not isinstance(max_events, int) or max_events < 1:
        raise ValueError(f"`max_events` must be a positive integer, but is {max_events!r}. Write 32, say.")
    if beyond not in ("fail", "stop"):
        raise ValueError(f"`beyond` must be one of fail, stop, but is {beyond!r}.{nearest(beyond, ('fail', 'stop'))}")
    return list(declared)


def _check_takes_three(name: str, function: Any) -> None:
    """A condition and a reset are functions of time, state and args."""
    if not callable(function):
        raise ValueError(f"`{name}` must be a function of (t, y, args), but is {function!r}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin tells nothing
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = [p for p in positional if p.default is p.empty]
    if len(needed) > 3 or (len(positional) < 3 and not starred):
        raise ValueError(f"`{name}` must take (t, y, args), but takes ({', '.join(p.name for p in parameters)}).")


def _reset(action: Any, t: Any, y: Any, args: Any) -> Callable[[Any, Any, Any], Any]:
    """The function from the state before an event to that after it, which has the same structure.

    Raises:
        ValueError: it returns another structure, other shapes, or complex values for a real state.
    """
    if not callable(action):
        return lambda t, y, args: y
    reset = ode._stacking(action)
    found = jax.eval_shape(reset, t, y, args)
    shapes = [leaf.shape for leaf in jax.tree_util.tree_leaves(found)]
    if ode._structure(found) != ode._structure(y) or shapes != [leaf.shape for leaf in jax.tree_util.tree_leaves(y)]:
        hint = " It returned None: is a `return` missing?" if found is None else ""
        raise ValueError(
            f"`action` must return the state as y0 has it, {ode._words(y)}, but returned {ode._words(found)}.{hint}"
        )
    for new, old in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(y), strict=True):
        if jnp.issubdtype(new.dtype, jnp.complexfloating) and not jnp.issubdtype(old.dtype, jnp.complexfloating):
            raise ValueError(
                "`action` must return real values as y0 has them, but returned complex ones. Write y0 * (1 + 0j)."
            )

    def apply(t: Any, y: Any, args: Any) -> Any:
        return jax.tree_util.tree_map(lambda new, old: jnp.asarray(new, old.dtype), reset(t, y, args), y)

    return apply
