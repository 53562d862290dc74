"""Patterns of two substances that react and diffuse, in the plane.

    u_t = Du lap u - u v^2 + F (1 - u),    v_t = Dv lap v + u v^2 - (F + k) v

u is fed and v removed, in a periodic square. The start is u = 1, v = 0 but for a square in the middle, with u = 1/2 and v = 1/4, and
noise of one per cent. Concentrations, lengths and times are dimensionless, as in the source; its square of 2.5 with 256 points a side
is here one of 0.625 with 64, of the same spacing.

Source: J. E. Pearson, "Complex patterns in a simple system", Science 261, 189 (1993).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.pde import Grid, laplacian


class Concentrations(NamedTuple):
    """Of the substance that is fed, and of the one that grows on it."""

    u: Float[Array, "time x y"]
    v: Float[Array, "time x y"]


class Pattern(NamedTuple):
    """Places along each axis, times, the concentrations at them, and the solver's status."""

    x: Float[Array, " x"]
    t: Float[Array, " time"]
    y: Concentrations
    status: Any


def start(key: Any, *, n: int = 64, noise: float = 0.01) -> jax.Array:
    """Both concentrations on n by n points: a square in the middle of a quarter of the side, and relative noise."""
    inside = jnp.abs(jnp.arange(n) - (n - 1) / 2) < n / 8
    square = inside[:, None] & inside[None, :]
    flat = jnp.stack([jnp.where(square, 0.5, 1.0), jnp.where(square, 0.25, 0.0)])
    return flat * (1 + noise * jax.random.uniform(key, flat.shape, flat.dtype, -1.0, 1.0))


def pattern(
    start: Any,
    feed: Any,
    kill: Any,
    diffusivity_u: Any,
    diffusivity_v: Any,
    *,
    side: float = 0.625,
    order: int = 2,
    t1: float = 200.0,
    points: int = 3,
    solver: Solver = Solver(),
) -> Pattern:
    """The concentrations from `start` at `points` equal times from 0 to `t1`."""
    grid = Grid([(0.0, side)] * 2, start.shape[1:], periodic=True)
    ts = jnp.linspace(0.0, t1, points)

    def vector_field(t: Any, y: Any, args: Any) -> Any:
        feed, kill, diffusivities = args
        u, v = y
        reaction = u * v**2
        rates = jnp.stack([feed * (1 - u) - reaction, reaction - (feed + kill) * v])
        return diffusivities[:, None, None] * laplacian(y, grid, order=order) + rates

    diffusivities = jnp.stack([jnp.asarray(diffusivity_u, start.dtype), jnp.asarray(diffusivity_v, start.dtype)])
    found = solve(vector_field, start, (feed, kill, diffusivities), ts=ts, solver=solver)
    return Pattern(grid.coordinates(), ts, Concentrations(found.y[:, 0], found.y[:, 1]), found.status)


def final_mean(y: Concentrations) -> jax.Array:
    """The mean of v over the square at the last time."""
    return jnp.mean(y.v[-1])
