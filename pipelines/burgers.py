"""Burgers' equation: a sine wave steepens until diffusion holds it.

    u_t + u u_x = nu u_xx on (-1, 1),    u(-1, t) = u(1, t) = 0,    u(x, 0) = -sin(pi x)

The layer at x = 0 is some nu wide, so that the points are put there: x = sinh(a s) / sinh(a) with s uniform in (-1, 1), and
d/dx = (1 / x'(s)) d/ds. For nu = 0.01 / pi the slope there is steepest at pi t = 1.6037, |u_x| = 152.00516. All quantities are
dimensionless: lengths by half the width, speeds by the amplitude.

Source: C. Basdevant et al., "Spectral and finite difference solutions of the Burgers equation", Computers & Fluids 14, 23 (1986).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.pde import Dirichlet, Grid, derivative, second_derivative


class Wave(NamedTuple):
    """Places, times, the speed u at them, minus its slope at x = 0 at the last time, and the solver's status."""

    x: Float[Array, " x"]
    t: Float[Array, " time"]
    u: Float[Array, "time x"]
    slope: jax.Array
    status: Any


def wave(
    nu: Any,
    *,
    n: int = 255,
    stretch: float = 5.0,
    order: int = 6,
    t1: float = 0.510473,
    points: int = 5,
    solver: Solver = Solver(),
) -> Wave:
    """The wave at n inner places, an odd number, and `points` equal times from 0 to `t1`."""
    grid = Grid((-1.0, 1.0), n, points="inner")
    s, ts = grid.coordinates(), jnp.linspace(0.0, t1, points)
    x = jnp.sinh(stretch * s) / jnp.sinh(stretch)
    metric = stretch * jnp.cosh(stretch * s) / jnp.sinh(stretch)

    def vector_field(t: Any, u: Any, nu: Any) -> Any:
        u_s = derivative(u, grid, Dirichlet(0.0), order=order)
        u_ss = second_derivative(u, grid, Dirichlet(0.0), order=order)
        u_x = u_s / metric
        return nu * (u_ss - stretch**2 * x * u_x) / metric**2 - u * u_x  # x'' = stretch**2 x

    found = solve(vector_field, -jnp.sin(jnp.pi * x), nu, ts=ts, solver=solver)
    slopes = derivative(found.y[-1], grid, Dirichlet(0.0), order=order) / metric
    return Wave(x, ts, found.y, -slopes[n // 2], found.status)
