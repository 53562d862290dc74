"""Finite differences at the points of a grid, of order 2, 4 or 6 up to the boundary.

Inside, the central formulas; near an end, the same formulas over values that the boundary condition implies (`ops.pde.boundary`). The
largest error over all points falls as spacing**order.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from ops.pde.boundary import (
    Dirichlet,
    Ends,
    at_end,
    combined,
    conditions,
    extended,
    points_needed,
    weights,
    without,
)
from ops.pde.grid import Grid

ORDERS = (2, 4, 6)


def derivative(u: Any, grid: Grid, boundary: Any = None, *, axis: int = 0, order: int = 2) -> jax.Array:
    """The first derivative along an axis.

    Args:
        u: values at the points, (..., *grid.shape).
        grid: the grid.
        boundary: a condition for all ends; in 1-D also a pair (lower, upper); in more dimensions also a condition or a pair for each
            axis. None for periodic axes.
        axis: of the grid.
        order: of accuracy: 2, 4 or 6.

    Returns:
        Values at the points, of the shape of u.

    Raises:
        ValueError: a setting, the boundary or the shape of u is wrong, or the grid too coarse for the stencil.

    >>> from ops.pde import Neumann
    >>> grid = Grid((0.0, 4.0), 5)
    >>> derivative(grid.coordinates() ** 2, grid, (Neumann(0.0), Dirichlet(16.0))).tolist()
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    return _along(u, grid, boundary, axis, order, 1)


def second_derivative(u: Any, grid: Grid, boundary: Any = None, *, axis: int = 0, order: int = 2) -> jax.Array:
    """The second derivative along an axis; arguments as of `derivative`."""
    return _along(u, grid, boundary, axis, order, 2)


def laplacian(u: Any, grid: Grid, boundary: Any = None, *, order: int = 2) -> jax.Array:
    """The sum of the second derivatives along all axes; arguments as of `derivative`."""
    parts = [second_derivative(u, grid, boundary, axis=k, order=order) for k in range(grid.ndim)]
    return sum(parts[1:], parts[0])


def gradient(u: Any, grid: Grid, boundary: Any = None, *, order: int = 2) -> jax.Array:
    """The first derivatives along all axes, (..., grid.ndim, *grid.shape); arguments as of `derivative`."""
    parts = [derivative(u, grid, boundary, axis=k, order=order) for k in range(grid.ndim)]
    return jnp.stack(parts, axis=-1 - grid.ndim)


def divergence(v: Any, grid: Grid, boundary: Any = None, *, order: int = 2) -> jax.Array:
    """The sum of the derivatives of each component along its own axis.

    Args:
        v: vectors at the points, (..., grid.ndim, *grid.shape).
        grid: the grid.
        boundary: as of `derivative`; what is given along an axis is of the component along it.
        order: of accuracy: 2, 4 or 6.

    Returns:
        Values at the points, (..., *grid.shape).

    Raises:
        ValueError: as with `derivative`, or v has not one component for each axis.
    """
    v = grid.values("v", v)
    if v.ndim <= grid.ndim or v.shape[-1 - grid.ndim] != grid.ndim:
        wanted = ", ".join(map(str, (grid.ndim, *grid.shape)))
        raise ValueError(
            f"`v` must have one component for each axis of the grid, (..., {wanted}), but has the shape {v.shape}."
        )
    parts = [jax.lax.index_in_dim(v, k, v.ndim - 1 - grid.ndim, keepdims=False) for k in range(grid.ndim)]
    slopes = [derivative(part, grid, boundary, axis=k, order=order) for k, part in enumerate(parts)]
    return sum(slopes[1:], slopes[0])


def impose(u: Any, grid: Grid, boundary: Any) -> jax.Array:
    """The array with the given values at the ends of a grid of nodes; ends that are not `Dirichlet` keep theirs.

    Operators read the given values whatever the array holds there. In a vector field, impose the rate of change of the given values
    on the rate, so that the state keeps them too: `impose(rate, grid, Dirichlet(0.0))`.

    Raises:
        ValueError: the points of the grid do not include the ends, or an argument is wrong as with `derivative`.
    """
    array = grid.values("u", u)
    if grid.points != "nodes":
        raise ValueError(f"`grid.points` must be nodes for impose, which sets the ends, but is {grid.points}.")
    for k, ends in enumerate(conditions(boundary, grid, "impose")):
        dim = array.ndim - grid.ndim + k
        for place, end in zip((0, -1), ends or (), strict=False):
            if isinstance(end, Dirichlet):
                value = at_end("value", end.value, array.dtype, without(array.shape, dim))
                array = array.at[(slice(None),) * dim + (place,)].set(value)
    return array


def _along(u: Any, grid: Grid, boundary: Any, axis: int, order: int, times: int) -> jax.Array:
    """The derivative along an axis, taken once or twice."""
    if isinstance(order, bool) or order not in ORDERS:
        raise ValueError(f"`order` must be one of {', '.join(map(str, ORDERS))}, but is {order!r}.")
    k = grid.position(axis)
    u = grid.values("u", u)
    name = "derivative" if times == 1 else "second_derivative"
    ends: Ends = conditions(boundary, grid, name)[k]
    chosen, dim = grid.axes[k], u.ndim - grid.ndim + k
    width, size = order // 2, order + times
    least = points_needed(chosen, ends, width, size)
    if chosen.n < least:
        raise ValueError(
            f"`grid.n` must be at least {least} along axis {k} for a {name} of order {order} there, but is {chosen.n}. "
            "Refine the grid, or lower order."
        )
    wide = extended(u, dim, chosen, ends, width, size)
    stencil = tuple((Fraction(j), 0) for j in range(-width, width + 1))
    factors = weights(stencil, (Fraction(0), times))
    parts = [jax.lax.slice_in_dim(wide, j, j + chosen.n, axis=dim) for j in range(2 * width + 1)]
    return combined([factor / chosen.spacing**times for factor in factors], parts)
