"""Finite volumes: rates of change as differences of fluxes between cells, so that the total changes by what crosses the ends alone.

`advect` and `diffuse` take the averages over the cells of a grid with `points="cells"` and return their rate of change. Velocities and
coefficients are numbers, values of the cells, or values of the faces (one more along the axis: `Grid.faces`).

Sources: B. van Leer, J. Comput. Phys. 32, 101 (1979), for the reconstruction; P. K. Sweby, SIAM J. Numer. Anal. 21, 995 (1984),
for the limiters; S. V. Patankar, Numerical Heat Transfer and Fluid Flow (1980), 4.2, for the mean of coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ops import safe
from ops.pde.boundary import Dirichlet, Ends, Free, Neumann, Robin, at_end, coefficients, conditions, without
from ops.pde.grid import Axis, Grid
from ops.spelling import nearest


def _agree(a: Any, b: Any) -> Any:
    """Whether both have one sign; not by their product, which may underflow."""
    return jnp.sign(a) * jnp.sign(b) > 0


def _minmod(a: Any, b: Any) -> Any:
    """The one nearer to zero if both have one sign, else zero."""
    return jnp.where(_agree(a, b), jnp.where(jnp.abs(a) < jnp.abs(b), a, b), 0)


def _van_leer(a: Any, b: Any) -> Any:
    """The harmonic mean if both have one sign, else zero."""
    agree = _agree(a, b)
    return jnp.where(agree, 2 * a * (b / jnp.where(agree, a + b, 1)), 0)


def _superbee(a: Any, b: Any) -> Any:
    """The larger of both, but at most twice the smaller."""
    first, second = _minmod(2 * a, b), _minmod(a, 2 * b)
    return jnp.where(jnp.abs(first) > jnp.abs(second), first, second)


def _mc(a: Any, b: Any) -> Any:
    """The mean, but at most twice the smaller."""
    return _minmod(2 * _minmod(a, b), (a + b) / 2)


LIMITERS: dict[str, Callable[[Any, Any], Any]] = {
    "minmod": _minmod,
    "van_leer": _van_leer,
    "mc": _mc,
    "superbee": _superbee,
}
"""The difference across a cell, by the differences to its two neighbours; from the most smoothing to the most steepening."""


def advect(u: Any, velocity: Any, grid: Grid, boundary: Any = None, *, limiter: str | None = "van_leer") -> jax.Array:
    """The rate of change of cell averages in a flow: -div(velocity u).

    Of second order where u is smooth and monotone, by reconstruction with limited slopes. Under a uniform velocity the total variation
    does not grow, nor in time with a method that preserves it: heun, with fixed steps of a Courant number of at most 1/2.

    Args:
        u: averages over the cells, (..., *grid.shape).
        velocity: a number, or values at cells or faces; in more dimensions a sequence of these, one for each axis.
        grid: the grid, of cells.
        boundary: as of `derivative`: `Dirichlet` gives the value that flows in, and says nothing where the flow is outwards; `Free`
            lets out, and lets in what is there. A wall is a face with velocity 0.
        limiter: minmod, van_leer, mc or superbee, or None for upwind fluxes of first order.

    Returns:
        The rate of change of the averages, of the shape of u.

    Raises:
        ValueError: an argument is wrong, or the grid not one of cells.

    >>> grid = Grid((0.0, 1.0), 4, points="cells", periodic=True)
    >>> (advect([0.0, 1.0, 0.0, 0.0], 0.5, grid, limiter=None) + 0.0).tolist()
    [0.0, -2.0, 2.0, 0.0]
    """
    if limiter is not None and limiter not in LIMITERS:
        raise ValueError(
            f"`limiter` must be one of {', '.join(LIMITERS)}, or None for upwind fluxes, but is {limiter!r}."
            f"{nearest(limiter, LIMITERS)}"
        )
    u = _averages(u, grid, "advect")
    ends = conditions(boundary, grid, "advect", (Dirichlet, Free))
    velocities = _each_axis("velocity", velocity, grid)
    rate = jnp.zeros_like(u)
    for k, axis in enumerate(grid.axes):
        faces = _on_faces("velocity", velocities[k], grid, k, u, positive=False)
        rate -= _difference(_advective_flux(u, k - grid.ndim, ends[k], faces, limiter), k - grid.ndim) / axis.spacing
    return rate


def diffuse(u: Any, coefficient: Any, grid: Grid, boundary: Any = None) -> jax.Array:
    """The rate of change of cell averages by diffusion: div(coefficient grad u).

    Fluxes are of two points, so that no new extrema arise, and the operator is symmetric. Solutions are of second order; the rate in
    the cell at an end is of a lower one, as it is wherever the flux at the end is exact.

    Args:
        u: averages over the cells, (..., *grid.shape).
        coefficient: a number, or values at cells (faces between them get the harmonic mean, which is right across a jump) or faces; or
            a sequence of these, one for each axis.
        grid: the grid, of cells.
        boundary: as of `derivative`, but for `Free`; `Neumann(slope)` lets in coefficient * slope, exactly.

    Returns:
        The rate of change of the averages, of the shape of u.

    Raises:
        ValueError: an argument is wrong, or the grid not one of cells.

    >>> diffuse([0.0, 1.0, 0.0], 2.0, Grid((0.0, 3.0), 3, points="cells"), Neumann(0.0)).tolist()
    [2.0, -4.0, 2.0]
    """
    u = _averages(u, grid, "diffuse")
    ends = conditions(boundary, grid, "diffuse", (Dirichlet, Neumann, Robin))
    each = coefficient if isinstance(coefficient, list | tuple) else [coefficient] * grid.ndim
    given = _each_axis("coefficient", each, grid)
    rate = jnp.zeros_like(u)
    for k, axis in enumerate(grid.axes):
        faces = _on_faces("coefficient", given[k], grid, k, u, positive=True)
        rate += _difference(faces * _slopes(u, k - grid.ndim, axis, ends[k]), k - grid.ndim) / axis.spacing
    return rate


def _advective_flux(u: jax.Array, dim: int, ends: Ends, velocity: jax.Array, limiter: str | None) -> jax.Array:
    """The flux through the faces along one dimension, of the state upwind of each."""
    if ends is None:
        states = _wrapped(u, dim)
        across = jnp.zeros_like(states) if limiter is None else _wrapped(_limited(states, dim, limiter), dim)
    else:
        first, last = _part(u, dim, 0, 1), _part(u, dim, -1, None)
        lower, upper = _given(ends[0], first, dim), _given(ends[1], last, dim)
        states = jnp.concatenate([lower, u, upper], axis=dim)
        across = jnp.zeros_like(states)
        if limiter is not None:
            steps = _difference(u, dim)
            # What flows in is the value at the face, half a cell away; where the flow is outwards, u goes on as inside.
            enters = _part(velocity, dim, 0, 1) >= 0, _part(velocity, dim, -1, None) < 0
            own = _part(steps, dim, 0, 1), _part(steps, dim, -1, None)
            at_first = jnp.where(enters[0], _minmod(2 * (first - lower), own[0]), own[0])
            at_last = jnp.where(enters[1], _minmod(2 * (upper - last), own[1]), own[1])
            parts = [jnp.zeros_like(first), at_first, _limited(u, dim, limiter), at_last, jnp.zeros_like(last)]
            across = jnp.concatenate(parts, axis=dim)
    before, after = _part(states + across / 2, dim, 0, -1), _part(states - across / 2, dim, 1, None)
    return velocity * jnp.where(velocity >= 0, before, after)


def _slopes(u: jax.Array, dim: int, axis: Axis, ends: Ends) -> jax.Array:
    """The slopes at the faces along one dimension."""
    if ends is None:
        return _difference(_wrapped(u, dim), dim) / axis.spacing
    lower = -_outward(ends[0], _part(u, dim, 0, 1), dim, axis.spacing)
    upper = _outward(ends[1], _part(u, dim, -1, None), dim, axis.spacing)
    return jnp.concatenate([lower, _difference(u, dim) / axis.spacing, upper], axis=dim)


def _outward(condition: Any, own: jax.Array, dim: int, h: float) -> jax.Array:
    """The outward slope at an end, half a cell from the centre of its cell."""
    if isinstance(condition, Dirichlet):
        return (_given(condition, own, dim) - own) * (2 / h)
    a, b, c = (jnp.expand_dims(x, dim) for x in coefficients(condition, own.dtype, without(own.shape, dim)))
    return (c - a * own) / (b + a * (h / 2))  # a w + b (w - own) 2 / h = c, where w is the value at the end


def _given(condition: Any, own: jax.Array, dim: int) -> jax.Array:
    """The value beyond an end: what is given, or else that of the cell there."""
    if isinstance(condition, Free):
        return own
    return jnp.expand_dims(at_end("value", condition.value, own.dtype, without(own.shape, dim)), dim)


def _limited(wide: jax.Array, dim: int, limiter: str) -> jax.Array:
    """The limited differences across the cells of an array, but for its first and last."""
    steps = _difference(wide, dim)
    return jnp.asarray(LIMITERS[limiter](_part(steps, dim, 0, -1), _part(steps, dim, 1, None)))


def _wrapped(u: jax.Array, dim: int) -> jax.Array:
    """A periodic array with one more cell at both ends."""
    return jnp.concatenate([_part(u, dim, -1, None), u, _part(u, dim, 0, 1)], axis=dim)


def _difference(u: jax.Array, dim: int) -> jax.Array:
    """Each value less the one before."""
    return _part(u, dim, 1, None) - _part(u, dim, 0, -1)


def _part(u: jax.Array, dim: int, start: int | None, stop: int | None) -> jax.Array:
    """A slice along a dimension counted from the end."""
    return u[(..., slice(start, stop), *(slice(None),) * (-1 - dim))]


def _averages(u: Any, grid: Grid, operator: str) -> jax.Array:
    """The averages, on a grid that has cells."""
    if grid.points != "cells":
        raise ValueError(
            f'`grid.points` must be cells for {operator}, but is {grid.points}. Write Grid(..., points="cells").'
        )
    return grid.values("u", u)


def _each_axis(name: str, value: Any, grid: Grid) -> list[Any]:
    """A velocity or coefficient for each axis."""
    each = list(value) if isinstance(value, list | tuple) else [value]
    if len(each) != grid.ndim:
        raise ValueError(
            f"`{name}` must be a sequence with an entry for each of the grid's {grid.ndim} axes, but has {len(each)}."
        )
    return each


def _on_faces(name: str, value: Any, grid: Grid, k: int, u: jax.Array, *, positive: bool) -> jax.Array:
    """A velocity or coefficient at the faces along axis k.

    Raises:
        ValueError: it is not a number, nor has it a value for each cell or face.
    """
    array = jnp.asarray(value).astype(u.dtype)
    faces = tuple(n + (j == k) for j, n in enumerate(grid.shape))
    if array.ndim == 0:
        return jnp.broadcast_to(array, faces)
    lead, tail = array.shape[: max(array.ndim - grid.ndim, 0)], array.shape[max(array.ndim - grid.ndim, 0) :]
    if tail not in (grid.shape, faces) or not _broadcasts(lead, u.shape[: u.ndim - grid.ndim]):
        raise ValueError(
            f"`{name}` must be a number, or have a value for each cell, {grid.shape}, or face, {faces}, along axis {k}, "
            f"but has the shape {array.shape}."
        )
    dim, periodic = k - grid.ndim, grid.axes[k].periodic
    if tail == faces:  # the last face of a periodic axis is the first again
        return jnp.concatenate([_part(array, dim, 0, -1), _part(array, dim, 0, 1)], axis=dim) if periodic else array
    wide = _wrapped(array, dim) if periodic else array
    below, above = _part(wide, dim, 0, -1), _part(wide, dim, 1, None)
    between = safe.divide(2 * below * above, below + above) if positive else (below + above) / 2
    if periodic:
        return between

    def beyond(own: jax.Array, neighbour: jax.Array) -> jax.Array:
        line = (3 * own - neighbour) / 2
        return jnp.clip(line, own / 2, 2 * own) if positive else line  # a jump nearby leaves a coefficient positive

    lower = beyond(_part(array, dim, 0, 1), _part(array, dim, 1, 2))
    upper = beyond(_part(array, dim, -1, None), _part(array, dim, -2, -1))
    return jnp.concatenate([lower, between, upper], axis=dim)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether one shape broadcasts to another."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(own in (1, other) for own, other in pairs)
