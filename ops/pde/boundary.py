"""Boundary conditions, and the values outside the grid that they imply.

Beyond an end, a stencil reads values of the polynomial through the nearest points that satisfies the boundary condition. Its degree
is chosen by the operator, so that the formula has the operator's full order at every point, the first and the last included.

Source: B. Fornberg, "Generation of finite difference formulas on arbitrarily spaced grids", Math. Comp. 51, 699 (1988), for
formulas as derivatives of interpolating polynomials; the weights here are solved for in rational numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from ops.pde.grid import Axis, Grid
from ops.spelling import nearest


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dirichlet:
    """The value at the end is given: u = value."""

    value: Any = 0.0
    """A number, or an array that broadcasts to the points along the end; may be traced."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Neumann:
    """The slope at the end is given: du/dn = slope, along the outward normal (at a lower end du/dx = -slope)."""

    slope: Any = 0.0
    """A number, or an array that broadcasts to the points along the end; may be traced."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Robin:
    """A combination is given: a u + b du/dn = c, along the outward normal."""

    a: Any
    b: Any
    c: Any = 0.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Free:
    """Nothing is given: one-sided formulas, and outflow for `advect`."""


Condition = Dirichlet | Neumann | Robin | Free
CONDITIONS: tuple[type[Any], ...] = (Dirichlet, Neumann, Robin, Free)
Ends = tuple[Condition, Condition] | None
"""The conditions at the lower and the upper end of an axis; None if it is periodic."""


def conditions(boundary: Any, grid: Grid, operator: str, allowed: tuple[type[Any], ...] = CONDITIONS) -> list[Ends]:
    """The conditions of each axis.

    Args:
        boundary: a condition for all ends; in 1-D also a pair (lower, upper); in more dimensions also a sequence with a condition or
            a pair for each axis. None, in place of any of these, for periodic axes.
        grid: the grid.
        operator: its name, for messages.
        allowed: the conditions that it has.

    Raises:
        ValueError: a condition is missing, unknown, not one of the operator's, or given along a periodic axis.
    """
    if isinstance(boundary, Sequence) and not isinstance(boundary, str):
        entries = [boundary] if grid.ndim == 1 else list(boundary)
        if len(entries) != grid.ndim:
            raise ValueError(
                f"`boundary` must have an entry for each of the grid's {grid.ndim} axes, but has {len(entries)}. "
                "Write one condition for all ends, or a condition or a pair (lower, upper) for each axis."
            )
    else:
        entries = [None if axis.periodic and isinstance(boundary, CONDITIONS) else boundary for axis in grid.axes]
        if boundary is not None and all(axis.periodic for axis in grid.axes):
            entries = [boundary] * grid.ndim
    return [_ends(entry, axis, operator, allowed) for entry, axis in zip(entries, grid.axes, strict=True)]


def _ends(entry: Any, axis: Axis, operator: str, allowed: tuple[type[Any], ...]) -> Ends:
    """The conditions of one axis."""
    pair = list(entry) if isinstance(entry, Sequence) and not isinstance(entry, str) else [entry, entry]
    known = ", ".join(kind.__name__ for kind in allowed)
    if axis.periodic:
        if any(end is not None for end in pair):
            raise ValueError(
                f"`boundary` must be left out along a periodic axis, which has no ends, but is {entry!r}. Write None."
            )
        return None
    if len(pair) != 2:
        raise ValueError(f"`boundary` must be a pair (lower, upper) along an axis, but has {len(pair)} entries.")
    for end in pair:
        if end is None:
            raise ValueError(
                f"`boundary` must be given along an axis that is not periodic, but is None. Write one of {known}."
            )
        if not isinstance(end, CONDITIONS):
            hint = nearest(end.capitalize(), [kind.__name__ for kind in CONDITIONS]) if isinstance(end, str) else ""
            raise ValueError(f"`boundary` must be one of {known}, but is {end!r}.{hint}")
        if not isinstance(end, allowed):
            raise ValueError(f"`boundary` must be one of {known} for {operator}, which has no {type(end).__name__}.")
        if isinstance(end, Robin) and _is_zero(end.b) and (_is_zero(end.a) or axis.points == "nodes"):
            raise ValueError(
                f"`boundary` must have b other than 0 in {end!r}, which says nothing of the slope. Write Dirichlet(c / a)."
            )
    lower, upper = pair
    return lower, upper


def _is_zero(value: Any) -> bool:
    """Whether a coefficient is known to be zero."""
    return isinstance(value, int | float) and value == 0


def extended(u: jax.Array, dim: int, axis: Axis, ends: Ends, width: int, size: int) -> jax.Array:
    """The array with `width` more points at both ends of dimension `dim`, by polynomials through `size` data.

    Where the end is a node with a given value, that value takes the place of the array's.
    """
    n = axis.n
    if ends is None:
        lower, upper = (jax.lax.slice_in_dim(u, *part, axis=dim) for part in ((n - width, n), (0, width)))
        return jnp.concatenate([lower, u, upper], axis=dim)
    start, stop = (int(_is_replaced(axis, end)) for end in ends)
    below = [jnp.expand_dims(value, dim) for value in _outside(u, dim, axis, ends[0], False, width, size)]
    above = [jnp.expand_dims(value, dim) for value in _outside(u, dim, axis, ends[1], True, width, size)]
    return jnp.concatenate([*below[::-1], jax.lax.slice_in_dim(u, start, n - stop, axis=dim), *above], axis=dim)


def points_needed(axis: Axis, ends: Ends, width: int, size: int) -> int:
    """How many points an axis must have at least for these stencils."""
    if ends is None:
        return 2 * width + 1
    return max(size - (not isinstance(end, Free)) + _is_replaced(axis, end) for end in ends)


def _is_replaced(axis: Axis, condition: Condition) -> bool:
    """Whether the end is a point of the grid whose value is given."""
    return isinstance(condition, Dirichlet) and axis.points == "nodes"


def _outside(u: Any, dim: int, axis: Axis, condition: Any, upper: bool, width: int, size: int) -> list[Any]:
    """The values beyond one end, from the nearest outwards. Places are distances from the end inwards, in spacings."""
    replaced = int(_is_replaced(axis, condition))
    first, h = axis.offset + replaced, axis.spacing

    def inside(count: int) -> tuple[list[tuple[Fraction, int]], list[Any]]:
        numbers = range(replaced, replaced + count)
        values = [jax.lax.index_in_dim(u, axis.n - 1 - j if upper else j, dim, keepdims=False) for j in numbers]
        return [(first + j, 0) for j in range(count)], values

    places, values = inside(size if isinstance(condition, Free) else size - 1)
    end = Fraction(0)
    edge = without(u.shape, dim)
    if isinstance(condition, Dirichlet):
        places, values = [(end, 0), *places], [at_end("value", condition.value, u.dtype, edge), *values]
    elif not isinstance(condition, Free):
        a, b, c = coefficients(condition, u.dtype, edge)
        if axis.points == "nodes":
            places, values = [(end, 1), *places], [-h * (c - a * values[0]) / b, *values]
        else:
            # The value at the end that satisfies the condition, with the slope of the polynomial through it and the points.
            places = [(end, 0), *places]
            own, *others = weights(tuple(places), (end, 1))
            value = (c + b / h * combined(others, values)) / (a - b / h * own)
            values = [value, *values]
    return [combined(weights(tuple(places), (first - 1 - k, 0)), values) for k in range(width + replaced)]


def coefficients(condition: Neumann | Robin, dtype: Any, edge: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """a, b and c of a u + b du/dn = c."""
    if isinstance(condition, Neumann):
        zero = jnp.zeros(edge, dtype)
        return zero, zero + 1, at_end("slope", condition.slope, dtype, edge)
    a, b, c = (at_end(name, getattr(condition, name), dtype, edge) for name in "abc")
    return a, b, c


def without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """A shape without one of its dimensions, counted from either end."""
    return tuple(n for j, n in enumerate(shape) if j != dim % len(shape))


def at_end(name: str, value: Any, dtype: Any, edge: tuple[int, ...]) -> jax.Array:
    """A value of a condition at every point along its end.

    Raises:
        ValueError: it does not broadcast there.
    """
    array = jnp.asarray(value)
    try:
        return jnp.broadcast_to(array.astype(dtype), edge)
    except ValueError:
        raise ValueError(
            f"`boundary.{name}` must broadcast to the points along its end, {edge}, but has the shape {array.shape}."
        ) from None


def combined(factors: Sequence[float], values: Sequence[jax.Array]) -> jax.Array:
    """The sum of products, without those whose factor is zero."""
    terms = [factor * value for factor, value in zip(factors, values, strict=True) if factor]
    return sum(terms[1:], terms[0])


@cache
def weights(data: tuple[tuple[Fraction, int], ...], wanted: tuple[Fraction, int]) -> tuple[float, ...]:
    """Factors of the data in the value or derivative wanted, exact for polynomials of degree below the number of data.

    Each datum is (place, which derivative), as is what is wanted.
    """
    size = len(data)
    rows = [[*(_monomial(k, *datum) for datum in data), _monomial(k, *wanted)] for k in range(size)]
    for i in range(size):
        pivot = next(r for r in range(i, size) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(size):
            if r != i:
                rows[r] = [value - rows[r][i] * own for value, own in zip(rows[r], rows[i], strict=True)]
    return tuple(float(row[-1]) for row in rows)


def _monomial(power: int, place: Fraction, derivative: int) -> Fraction:
    """The derivative of x**power at a place."""
    factor = Fraction(1)
    for k in range(derivative):
        factor *= power - k
    return factor * place ** (power - derivative) if factor else Fraction(0)
