"""A population that spreads: the wave of Fisher, and of Kolmogorov, Petrovsky and Piskunov.

    u_t = D u_xx + r u (1 - u)

With x in units of sqrt(D / r) and t of 1 / r, one wave is known in closed form: u = (1 + exp((x - 5 t / sqrt 6) / sqrt 6))^-2. The
start is this wave at t = 0, on an interval so long that it is flat at the ends, where nothing flows: u_x = 0. u is a part of the
carrying capacity; lengths and times are in any units, D in length squared per time and r per time.

Source: M. J. Ablowitz and A. Zeppetella, Bull. Math. Biol. 41, 835 (1979); R. A. Fisher, Ann. Eugenics 7, 355 (1937).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.pde import Grid, Neumann, laplacian


class Front(NamedTuple):
    """Places, times, the population at them, and the solver's status."""

    x: Float[Array, " x"]
    t: Float[Array, " time"]
    u: Float[Array, "time x"]
    status: Any


def wave(t: Any, x: Any, diffusivity: Any, growth: Any) -> Any:
    """The exact wave."""
    scaled = x * jnp.sqrt(growth / diffusivity)
    return (1 + jnp.exp((scaled - 5 * growth * t / jnp.sqrt(6.0)) / jnp.sqrt(6.0))) ** -2


def front(
    diffusivity: Any,
    growth: Any,
    *,
    half_width: float = 40.0,
    n: int = 401,
    order: int = 6,
    t1: float = 2.0,
    points: int = 5,
    solver: Solver = Solver(),
) -> Front:
    """The population at n places from -half_width to half_width and `points` equal times from 0 to `t1`."""
    grid = Grid((-half_width, half_width), n)
    x, ts = grid.coordinates(), jnp.linspace(0.0, t1, points)

    def vector_field(t: Any, u: Any, args: Any) -> Any:
        diffusivity, growth = args
        return diffusivity * laplacian(u, grid, Neumann(0.0), order=order) + growth * u * (1 - u)

    found = solve(vector_field, wave(0.0, x, diffusivity, growth), (diffusivity, growth), ts=ts, solver=solver)
    return Front(x, ts, found.y, found.status)


def middle(u: Float[Array, "time x"]) -> jax.Array:
    """The population at x = 0 and the last time, of an odd number of places."""
    return u[-1, u.shape[-1] // 2]


def average(u: Float[Array, "time x"]) -> jax.Array:
    """The mean over the interval at the last time, by the trapezoidal rule."""
    last = u[-1]
    return jnp.mean((last[1:] + last[:-1]) / 2)
