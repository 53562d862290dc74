"""Forcings: inputs of a differential equation that are given over time, with the times at which they jump.

A forcing is a callable `u(t)` and a pytree: its numbers are leaves, so that a start, a width or a height may be a parameter that is
swept and differentiated. It knows its own jumps. `ops.ode.solve` finds a forcing anywhere in `args`, and one that the vector field
closes over or builds, and ends a step at each jump, so that no pulse is stepped over and no step mixes the values of two intervals.

Derivatives by the time of a jump come from the ends of these steps. The slope of `u` by its own start is zero wherever it exists; what
the start moves is the boundary between two intervals, and the steps end there with that motion: the derivative of the step by its end
is the field before the jump, that of the next by its begin the field after it, and their difference is the saltation term (Hiskens and
Pai, 2000). It holds in both modes, under `vmap`, and for every Runge-Kutta method; for two jumps at one time as well, which are moved
apart by a few roundings. By a jump at an end of the interval the derivative is zero, that of moving it outwards.

A jump of time in the vector field itself, `jnp.where(t < 3, ...)`, is warned about with its line, unless `solve` is told of it by
`jumps`. What cannot be seen is a jump inside a loop or a callback, and a peak that is smooth but short against the steps: limit them.

At a jump a forcing has the value of the interval that begins there; `u(t, left=True)` is the other one.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np

from ops.columns import Rows, read_columns

SCOPE = "ops.forcing"
"""The name scope of every forcing's arithmetic: its comparisons of time are known."""

DECLARED = "ops.forcing.jumps"
"""The name scope in which a forcing names its jumps, where `solve` has not worked them out before."""

OUTSIDE = ("refuse", "hold")
KINDS = ("piecewise_linear", "piecewise_constant", "cubic")
NANS = ("refuse", "interpolate", "drop")

ROUNDINGS = 128
"""So many roundings from the ends of an interval count as its ends: a last knot of 0.3 covers 0.1 * 3."""


def _numbers(value: Any) -> Any:
    """Numbers and lists as NumPy arrays, which stay known while JAX traces; JAX's own arrays as they are."""
    if any(isinstance(part, jax.Array) for part in jax.tree_util.tree_leaves(value)):
        traced = jnp.asarray(value)
        return traced if jnp.issubdtype(traced.dtype, jnp.inexact) else traced.astype(float)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths: each check says what it needs
        return np.asarray(value, object)
    return array.astype(float) if array.dtype.kind in "biuf" else array


def known(value: Any) -> Any:
    """The array of a value; None while JAX traces it."""
    return None if value is None or isinstance(value, jax.core.Tracer) else np.asarray(value)


class Forcing(eqx.Module):
    """A function of time. Forcings are added and multiplied, with each other and with numbers and arrays."""

    def __call__(self, t: Any, *, left: bool = False) -> jax.Array:
        """The value at time `t`, or at each of an array of times; at a jump the one after it, or with `left` the one before."""
        t = jnp.asarray(t)
        t = t if jnp.issubdtype(t.dtype, jnp.floating) else t.astype(float)
        value = functools.partial(self._value, left=left)
        if t.ndim:
            values = jax.vmap(value)(t.ravel())
            return values.reshape(t.shape + values.shape[1:])
        return value(t)

    @abc.abstractmethod
    def _value(self, t: jax.Array, left: bool) -> jax.Array:
        """The value at one time."""

    def jumps(self, t0: Any = None, t1: Any = None) -> jax.Array:
        """The times of jumps and kinks, in no order, those outside t0 and t1 perhaps included."""
        parts = [p for p in jax.tree_util.tree_leaves(self, is_leaf=is_primitive) if is_primitive(p)]
        return jnp.concatenate([p.edges(t0, t1) for p in parts] or [jnp.zeros(0)])

    def __add__(self, other: Any) -> Forcing:
        return Sum(self, as_forcing(other))

    def __radd__(self, other: Any) -> Forcing:
        return Sum(as_forcing(other), self)

    def __mul__(self, other: Any) -> Forcing:
        return Product(self, as_forcing(other))

    def __rmul__(self, other: Any) -> Forcing:
        return Product(as_forcing(other), self)

    def __neg__(self) -> Forcing:
        return Product(self, Constant(-1.0))

    def __sub__(self, other: Any) -> Forcing:
        return Sum(self, -as_forcing(other))

    def __rsub__(self, other: Any) -> Forcing:
        return Sum(as_forcing(other), -self)

    def __truediv__(self, other: Any) -> Forcing:
        if isinstance(other, Forcing):
            raise TypeError("a forcing must be divided by a number or an array, but is divided by a forcing.")
        return Product(self, Constant(1.0 / _numbers(other)))

    __array_ufunc__ = None  # so that an array on the left leaves the operation to the forcing


def as_forcing(value: Any) -> Forcing:
    """A forcing as it is, a number or an array as a constant one."""
    return value if isinstance(value, Forcing) else Constant(value)


class Constant(Forcing):
    """The same value at all times."""

    value: Any = eqx.field(converter=_numbers)

    def _value(self, t: jax.Array, left: bool) -> jax.Array:
        return jnp.asarray(self.value)


class Sum(Forcing):
    """Two forcings added."""

    first: Forcing
    second: Forcing

    def _value(self, t: jax.Array, left: bool) -> jax.Array:
        return self.first(t, left=left) + self.second(t, left=left)


class Product(Forcing):
    """Two forcings multiplied."""

    first: Forcing
    second: Forcing

    def _value(self, t: jax.Array, left: bool) -> jax.Array:
        return self.first(t, left=left) * self.second(t, left=left)


class Primitive(Forcing):
    """A forcing that is not made of others."""

    held: Any = dataclasses.field(default=None, kw_only=True)
    """What a solve works out once, before it begins: the jumps, moved apart where two coincide, or coefficients."""

    def _value(self, t: jax.Array, left: bool) -> jax.Array:
        held = self.held
        if held is None:
            edges = self.nearby(t)
            with jax.named_scope(DECLARED):
                edges = edges + 0.0  # an operation that bears the name
            held = self.worked_out(edges)
        with jax.named_scope(SCOPE):
            return self.read(held, t, left)

    def nearby(self, t: jax.Array) -> jax.Array:
        """The jumps that a value at time `t` needs."""
        return self.edges(None, None)

    @abc.abstractmethod
    def edges(self, t0: Any, t1: Any) -> jax.Array:
        """The times of the jumps."""

    def worked_out(self, edges: jax.Array) -> Any:
        """What a value is read off, given the jumps."""
        return edges

    @abc.abstractmethod
    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The value at one time."""

    def hold(self, edges: jax.Array) -> Primitive:
        """This forcing with its jumps at just these times."""
        held: Primitive = eqx.tree_at(lambda p: p.held, self, self.worked_out(edges), is_leaf=lambda x: x is None)
        return held

    def check_covers(self, t0: float, t1: float) -> None:
        """A forcing that is known in a part of the interval only is refused."""


def is_primitive(node: Any) -> bool:
    """Whether a node of a pytree is a forcing with jumps of its own."""
    return isinstance(node, Primitive)


def passed(t: Any, edges: Any, left: bool) -> jax.Array:
    """Whether each jump lies behind."""
    return jnp.greater(t, edges) if left else jnp.greater_equal(t, edges)


def count_passed(t: Any, edges: Any, left: bool) -> jax.Array:
    """How many of sorted jumps lie behind."""
    method = "compare_all" if edges.shape[0] <= 64 else "scan_unrolled"
    return jnp.searchsorted(edges, t, side="left" if left else "right", method=method)


class Pulse(Primitive):
    """`height` from `start` for the time `width`, else zero; the sum of several if they are arrays."""

    start: Any = eqx.field(converter=_numbers)
    width: Any = eqx.field(converter=_numbers)
    height: Any = eqx.field(converter=_numbers)

    def __check_init__(self) -> None:
        for name in ("start", "width", "height"):
            _check_finite(name, getattr(self, name))
        width = known(self.width)
        if width is not None and (width < 0).any():
            raise ValueError(
                f"`width` must be at least 0, but is {_shown(width, width < 0)}. Write start and end in order."
            )
        shapes = {name: jnp.shape(getattr(self, name)) for name in ("start", "width", "height")}
        try:
            shape = np.broadcast_shapes(*shapes.values())
        except ValueError:
            shape = (0, 0)
        if len(shape) > 1:
            raise ValueError(
                "`start`, `width` and `height` must be numbers, or lists of one length for several pulses, but have the shapes "
                f"{', '.join(str(s) for s in shapes.values())}. Multiply the pulse by an array for a vector."
            )

    def edges(self, t0: Any, t1: Any) -> jax.Array:
        """Each start, then each end."""
        start, width, _ = jnp.broadcast_arrays(self.start, self.width, jnp.real(self.height))
        return jnp.concatenate([jnp.ravel(start), jnp.ravel(start + width)])

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The sum of the heights of the pulses that are on."""
        begins, ends = jnp.split(held, 2)
        on = passed(t, begins, left) & ~passed(t, ends, left)
        height = jnp.where(jnp.asarray(self.width) < 0, jnp.nan, self.height)  # a width that was traced may be negative
        return jnp.sum(jnp.where(on, jnp.ravel(height), 0 * jnp.ravel(height)))


def pulse(start: Any, width: Any, height: Any = 1.0) -> Pulse:
    """A pulse, or the sum of several.

    Args:
        start: when it begins; a list for several pulses.
        width: how long it lasts, at least 0.
        height: its value; it is zero outside.

    >>> u = pulse(40.0, 0.2, 10.0)
    >>> [float(u(t)) for t in (39.9, 40.0, 40.1, 40.3)]
    [0.0, 10.0, 10.0, 0.0]
    """
    return Pulse(start, width, height)


class Step(Primitive):
    """Zero before `at`, `height` from then on; the sum of several if they are arrays."""

    at: Any = eqx.field(converter=_numbers)
    height: Any = eqx.field(converter=_numbers)

    def __check_init__(self) -> None:
        for name in ("at", "height"):
            _check_finite(name, getattr(self, name))

    def edges(self, t0: Any, t1: Any) -> jax.Array:
        """Each step."""
        return jnp.ravel(jnp.broadcast_arrays(self.at, jnp.real(self.height))[0])

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The sum of the steps that are behind."""
        return jnp.sum(jnp.where(passed(t, held, left), jnp.ravel(jnp.asarray(self.height)), 0))


def step(at: Any, height: Any = 1.0) -> Step:
    """A step from zero to `height` at the time `at`, or the sum of several.

    >>> [float(step(1.0, 3.0)(t)) for t in (0.9, 1.0)]
    [0.0, 3.0]
    """
    return Step(at, height)


class SquareWave(Primitive):
    """`high` for the part `duty` of each period from `start` on, else `low`."""

    period: Any = eqx.field(converter=_numbers)
    duty: Any = eqx.field(converter=_numbers)
    low: Any = eqx.field(converter=_numbers)
    high: Any = eqx.field(converter=_numbers)
    start: Any = eqx.field(converter=_numbers)
    cycles: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        for name in ("period", "duty", "low", "high", "start"):
            _check_finite(name, getattr(self, name))
            if jnp.shape(getattr(self, name)):
                raise ValueError(f"`{name}` must be a number, but has the shape {jnp.shape(getattr(self, name))}.")
        period, duty = known(self.period), known(self.duty)
        if period is not None and not period > 0:
            raise ValueError(f"`period` must be positive, but is {period:g}.")
        if duty is not None and not 0 <= duty <= 1:
            raise ValueError(f"`duty` must be the part of a period from 0 to 1, but is {duty:g}. Write 0.5, say.")
        cycles: Any = self.cycles
        if cycles is not None and (isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1):
            raise ValueError(f"`cycles` must be a positive integer, or left out, but is {cycles!r}.")

    def cycle(self, numbers: Any) -> jax.Array:
        """The rise and the fall of some cycles, by number."""
        rise = self.start + numbers * jnp.asarray(self.period)
        return jnp.ravel(jnp.stack([rise, rise + self.duty * jnp.asarray(self.period)], axis=-1))

    def edges(self, t0: Any, t1: Any) -> jax.Array:
        """Every rise and fall, or those between two times."""
        if self.cycles is not None:
            return self.cycle(jnp.arange(self.cycles))
        ends = [known(value) for value in (t0, t1, self.period)]
        if any(value is None for value in ends):
            name = "period" if ends[2] is None else "t1" if ends[0] is not None else "t0"
            raise ValueError(
                f"`cycles` must be given for a square wave where `{name}` is not known before the run, but is left out: the number "
                "of jumps would not be known. Write the most cycles that there can be."
            )
        count = int(np.ceil(abs(ends[1] - ends[0]) / ends[2])) + 2
        if count > 10**6:
            raise ValueError(f"`period` must not be so short that a million fit into the interval, but is {ends[2]:g}.")
        first = self._first(jnp.minimum(ends[0], ends[1]))
        return self.cycle(first + jnp.arange(count))

    def _first(self, t: Any) -> jax.Array:
        """The cycle before the one in which a time lies, as rounding goes."""
        return jnp.maximum(jnp.floor(jax.lax.stop_gradient((t - self.start) / self.period)) - 1, 0)

    def nearby(self, t: jax.Array) -> jax.Array:
        """Those of the cycles around a time, where none are known."""
        if self.cycles is not None:
            return self.edges(None, None)
        with jax.named_scope(SCOPE):
            return self.cycle(self._first(t) + jnp.arange(3))

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """High after an odd number of edges."""
        period, duty = jnp.asarray(self.period), jnp.asarray(self.duty)
        value = jnp.where(count_passed(t, held, left) % 2 == 1, self.high, self.low)
        return jnp.where((period > 0) & (duty >= 0) & (duty <= 1), value, jnp.nan)


def square_wave(
    period: Any, duty: Any = 0.5, low: Any = 0.0, high: Any = 1.0, start: Any = 0.0, *, cycles: int | None = None
) -> SquareWave:
    """A square wave: `low` before `start`, then `high` for the part `duty` of each period.

    Args:
        period: length of a cycle.
        duty: the part of it, from 0 to 1, with the value `high`.
        low: the other value.
        high: the value at the start of each cycle.
        start: when the first cycle begins.
        cycles: after so many the wave stays low; needed where the period or the times of the solve are traced.

    >>> [float(square_wave(2.0)(t)) for t in (-0.5, 0.5, 1.5, 2.5)]
    [0.0, 1.0, 0.0, 1.0]
    """
    return SquareWave(period, duty, low, high, start, cycles)


class Knots(Primitive):
    """A forcing through values at times. Outside them it is NaN, unless `outside` says otherwise."""

    times: Any = eqx.field(converter=_numbers)
    values: Any = eqx.field(converter=_numbers)
    outside: Any = eqx.field(static=True, default="refuse")
    source: Rows | None = eqx.field(static=True, default=None)
    """Where the knots stand, and the first and the last time, which are not known from a parameter of a pipeline."""

    def __check_init__(self) -> None:
        check_knots(self.times, self.values, self.source or Rows(), repeats=self.repeats, short=self.short)
        if self.outside not in OUTSIDE and (isinstance(self.outside, str) or not np.isscalar(self.outside)):
            raise ValueError(
                f"`outside` must be refuse, hold, or the value outside the times, but is {self.outside!r}. Write hold, say."
            )

    repeats: ClassVar[bool]
    """Whether a time may stand twice, as a jump."""

    short: ClassVar[bool]
    """Whether there may be a value less than there are times."""

    def distinct(self) -> Any:
        """For each knot the number of its time among the different ones, where the times are known."""
        times = known(self.times)
        if times is None:
            return np.arange(jnp.shape(self.times)[0])
        return np.cumsum(np.diff(times, prepend=times[:1]) > 0)

    def edges(self, t0: Any, t1: Any) -> jax.Array:
        """The knots, each once."""
        number = self.distinct()
        return jnp.asarray(self.times)[np.flatnonzero(np.diff(number, prepend=-1))]

    def worked_out(self, edges: jax.Array) -> Any:
        """Each knot's time."""
        return edges[self.distinct()]

    def bounded(self, times: jax.Array, t: jax.Array, value: jax.Array, left: bool) -> jax.Array:
        """The value between the first and the last knot, and what is said to be outside them."""
        if self.outside == "hold":
            return value
        first, last = times[0], times[-1]
        slack = rounding(first, last, t.dtype) if self.outside == "refuse" else 0.0
        within = (t >= first - slack) & (t <= last + slack)
        if self.outside != "refuse":
            within = passed(t, first, left) & ~passed(t, last, left)
        return jnp.where(within, value, jnp.nan if self.outside == "refuse" else self.outside)

    def check_covers(self, t0: float, t1: float) -> None:
        """The interval must lie between the knots."""
        rows = self.source or Rows()
        times = rows.ends if known(self.times) is None else known(self.times)
        if self.outside != "refuse" or times is None:
            return
        slack = ROUNDINGS * np.finfo(jnp.result_type(float)).eps * max(abs(t0), abs(t1))
        for name, t in (("t0", t0), ("t1", t1)):
            i = 0 if t < times[0] - slack else -1 if t > times[-1] + slack else None
            if i is not None:
                verb = "begins" if i == 0 else "ends"
                raise ValueError(
                    f"`{name}` must lie within the times of the forcing, but is {t:g}, and {rows.name} {verb} with {times[i]:g} "
                    f"({rows.place(i)}). Change {name}, or write outside: hold."
                )


class PiecewiseConstant(Knots):
    """The value of each knot up to the next one."""

    repeats: ClassVar[bool] = True
    short: ClassVar[bool] = True

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The value of the last knot that is behind."""
        values = jnp.asarray(self.values)
        i = jnp.clip(count_passed(t, held, left) - 1, 0, values.shape[0] - 1)
        return self.bounded(held, t, values[i], left)


class PiecewiseLinear(Knots):
    """Straight lines between the knots."""

    repeats: ClassVar[bool] = True
    short: ClassVar[bool] = False

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The point on the line."""
        values = jnp.asarray(self.values)
        i = jnp.clip(count_passed(t, held, left) - 1, 0, values.shape[0] - 2)
        length = held[i + 1] - held[i]
        part = jnp.where(length > 0, (t - held[i]) / jnp.where(length > 0, length, 1), jnp.where(t < held[i], 0, 1))
        part = jnp.clip(part, 0, 1) if self.outside == "hold" else part
        return self.bounded(held, t, values[i] + (values[i + 1] - values[i]) * part, left)


class Cubic(Knots):
    """The natural cubic spline through the knots: two continuous derivatives, the second zero at the ends."""

    repeats: ClassVar[bool] = False
    short: ClassVar[bool] = False

    def worked_out(self, edges: jax.Array) -> Any:
        """Each knot's time, and the second derivative there, from a tridiagonal system (Press et al., Numerical Recipes, 3.3)."""
        times, values = super().worked_out(edges), jnp.asarray(self.values)
        h = jnp.diff(times)
        flat = values.reshape(values.shape[0], -1)
        bends = jnp.pad(6 * jnp.diff(jnp.diff(flat, axis=0) / h[:, None], axis=0), ((1, 1), (0, 0)))
        matrix = lineax.TridiagonalLinearOperator(
            jnp.concatenate([jnp.ones(1), 2 * (h[1:] + h[:-1]), jnp.ones(1)]),
            jnp.append(h[:-1], 0.0),
            jnp.append(0.0, h[1:]),
        )
        second = jax.vmap(lambda b: lineax.linear_solve(matrix, b, lineax.Tridiagonal()).value, 1, 1)(bends)
        return times, second.reshape(values.shape)

    def read(self, held: Any, t: jax.Array, left: bool) -> jax.Array:
        """The polynomial of the interval."""
        times, second = held
        values = jnp.asarray(self.values)
        s = jnp.clip(t, times[0], times[-1])
        i = jnp.clip(count_passed(s, times, left) - 1, 0, values.shape[0] - 2)
        h = times[i + 1] - times[i]
        b = (s - times[i]) / h
        a = 1 - b
        bend = ((a**3 - a) * second[i] + (b**3 - b) * second[i + 1]) * (h * h / 6)
        return self.bounded(times, t, a * values[i] + b * values[i + 1] + bend, left)


def piecewise_constant(times: Any, values: Any, *, outside: Any = "refuse") -> PiecewiseConstant:
    """The value of each knot up to the next one: a zero-order hold.

    Args:
        times: ascending.
        values: one for each time, or for each interval (the last time is then the end of the last one); the first axis is time.
        outside: what is before the first and after the last time: `refuse` (a solve that goes there is refused, and if its times
            are not known before, NaN), `hold` for the first and the last value, or a value.

    >>> u = piecewise_constant([0.0, 1.0, 2.0, 3.0], [2.0, -1.0, 4.0])
    >>> [float(u(t)) for t in (0.5, 1.0, 2.5)]
    [2.0, -1.0, 4.0]
    """
    return PiecewiseConstant(times, values, outside, covering(times, Rows()))


def piecewise_linear(times: Any, values: Any, *, outside: Any = "refuse") -> PiecewiseLinear:
    """Straight lines between knots. A time that stands twice is a jump: the value before it, then the one after it.

    Args:
        times: ascending.
        values: one for each time; the first axis is time.
        outside: as for `piecewise_constant`.

    >>> u = piecewise_linear([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 5.0, 5.0])
    >>> [float(u(t)) for t in (0.5, 1.0, 1.5)], float(u(1.0, left=True))
    ([0.5, 5.0, 5.0], 1.0)
    """
    return PiecewiseLinear(times, values, outside, covering(times, Rows()))


def cubic(times: Any, values: Any, *, outside: Any = "refuse") -> Cubic:
    """The natural cubic spline through knots: two continuous derivatives, the second zero at the ends.

    Args:
        times: ascending, each once.
        values: one for each time; the first axis is time.
        outside: as for `piecewise_constant`.

    >>> float(cubic([0.0, 1.0, 2.0], [0.0, 1.0, 0.0])(0.5))
    0.6875
    """
    return Cubic(times, values, outside, covering(times, Rows()))


def table(
    path: Any,
    *,
    time: str = "time",
    value: Any = "value",
    kind: str = "piecewise_linear",
    nan: str = "refuse",
    outside: Any = "refuse",
) -> Knots:
    """A forcing from measured data.

    Args:
        path: a CSV file with a header row, a Parquet file or a Zarr store, relative to the config's folder, or else the working
            directory.
        time: the column or array of times, in the unit of the solve.
        value: that of the values; a list of names for a vector.
        kind: `piecewise_linear`, `piecewise_constant` or `cubic`.
        nan: what to do with a missing value: `refuse` it, `interpolate` between its neighbours in time, or `drop` its row.
        outside: as for `piecewise_constant`.

    Raises:
        ValueError: the data are not what they must be; the message names the row.
    """
    made: dict[str, Callable[..., Knots]] = {
        "piecewise_linear": PiecewiseLinear, "piecewise_constant": PiecewiseConstant, "cubic": Cubic
    }  # fmt: skip
    for name, given, allowed in (("kind", kind, KINDS), ("nan", nan, NANS)):
        if given not in allowed:
            raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, but is {given!r}.")
    names = [value] if isinstance(value, str) else list(value)
    columns, rows = read_columns(os.fspath(path), [time, *names])
    times = columns[0]
    values = columns[1] if isinstance(value, str) else np.stack(columns[1:], axis=-1)
    times, values, rows = without_gaps(times, values, rows, nan, time)
    return made[kind](times, values, outside, covering(times, rows))


def covering(times: Any, rows: Rows) -> Rows:
    """With the first and the last time, if they are known."""
    t = known(_numbers(times))
    fine = t is not None and t.ndim == 1 and t.size and t.dtype.kind == "f"
    return dataclasses.replace(rows, ends=(float(t[0]), float(t[-1]))) if fine else rows


def without_gaps(times: Any, values: Any, rows: Rows, nan: str, time: str) -> tuple[Any, Any, Rows]:
    """The data without missing values, as the policy says."""
    missing = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if np.isnan(times).any() and nan != "drop":
        i = int(np.flatnonzero(np.isnan(times))[0])
        raise ValueError(
            f"`{time}` must be a time in every row, but is missing in {rows.place(i)} of {rows.name}. Write nan: drop."
        )
    if nan == "drop":
        keep = ~missing & ~np.isnan(times)
        return times[keep], values[keep], rows.kept(keep)
    if nan == "interpolate" and missing.any():
        ends = [i for i in (0, len(values) - 1) if missing[i]]
        if ends:
            raise ValueError(
                f"`value` must be given in the first and the last row to interpolate, but is missing in {rows.place(ends[0])} of "
                f"{rows.name}. Write nan: drop."
            )
        check_knots(times, np.zeros(len(times)), rows, repeats=True, short=False)
        values = np.array(values)
        for column in values.reshape(len(values), -1).T:
            gaps = np.isnan(column)
            column[gaps] = np.interp(times[gaps], times[~gaps], column[~gaps])
    return times, values, rows


def check_knots(times: Any, values: Any, rows: Rows, *, repeats: bool, short: bool) -> None:
    """Knots must be what they are said to be, as far as they are known.

    Raises:
        ValueError: they are not; the message names the knot, or its row.
    """
    shape, count = jnp.shape(times), (jnp.shape(values) or (0,))[0]
    if len(shape) != 1 or shape[0] < 2:
        raise ValueError(f"`times` must be a list of at least two times, but has the shape {shape} in {rows.name}.")
    if count != shape[0] and not (short and count == shape[0] - 1):
        also = ", or one for each interval" if short else ""
        raise ValueError(
            f"`values` must hold one value for each time{also}, but there are {shape[0]} times and {count} values."
        )
    t, v = known(times), known(values)
    for name, array in (("times", t), ("values", v)):
        if array is not None and array.dtype.kind not in ("f" if name == "times" else "fc"):
            raise ValueError(f"`{name}` must be numbers, but is {array.tolist()!r:.60}.")
        if array is not None and not np.isfinite(array).all():
            i = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
            remedy = " Write nan: interpolate, or nan: drop." if rows.file and np.isnan(array[i]).any() else ""
            raise ValueError(f"`{name}` must be finite, but {rows.place(i)} of {rows.name} has {array[i]}.{remedy}")
    if t is None:
        return
    gaps = np.diff(t)
    if (gaps < 0).any():
        i = int(np.flatnonzero(gaps < 0)[0]) + 1
        raise ValueError(
            f"`times` must be ascending, but {rows.place(i)} of {rows.name} has {t[i]:g} after {t[i - 1]:g}. Sort the rows by time."
        )
    twice = np.flatnonzero(gaps == 0) + 1
    if not repeats and twice.size:
        i = int(twice[0])
        raise ValueError(
            f"`times` must differ for a cubic, but {rows.place(i)} of {rows.name} has {t[i]:g} again. Remove it, or write kind: "
            "piecewise_linear, where it is a jump."
        )
    thrice = twice[1:][np.diff(twice) == 1]
    if thrice.size:
        i = int(thrice[0])
        raise ValueError(
            f"`times` must hold a time at most twice, as a jump, but {rows.place(i)} of {rows.name} has {t[i]:g} a third time. "
            "Remove it."
        )


def rounding(t0: Any, t1: Any, dtype: Any, count: int = ROUNDINGS) -> Any:
    """A difference between times that may come from so many roundings."""
    return count * float(np.finfo(dtype).eps) * jax.lax.stop_gradient(jnp.maximum(jnp.abs(t0), jnp.abs(t1)))


def _check_finite(name: str, value: Any) -> None:
    """A number that is known must be finite."""
    array = known(value)
    if array is None:
        return
    if array.dtype.kind not in "fciub":
        raise ValueError(f"`{name}` must be a number, or a list of numbers, but is {array.tolist()!r}.")
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}` must be finite, but is {_shown(array, ~np.isfinite(array))}.")


def _shown(array: Any, bad: Any) -> str:
    """The first bad number of an array."""
    return f"{array[bad].ravel()[0]:g}"
