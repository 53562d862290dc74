"""Heat in a rod whose ends are kept at zero.

    u_t = D u_xx on (0, 1),    u(0, t) = u(1, t) = 0,    u(x, 0) = sin(pi x)

On n inner points with the spacing h = 1 / (n + 1) the equation becomes u_i' = D (u_{i-1} - 2 u_i + u_{i+1}) / h^2. The start is an
eigenvector of that matrix, so that u(x, t) = exp(-lambda D t) sin(pi x) with lambda = (2 sin(pi h / 2) / h)^2, which is pi^2 for
small h. All quantities are dimensionless: lengths by the rod's, times by its length squared over a diffusivity.

Source: J. Crank, The Mathematics of Diffusion, 2nd ed., Oxford (1975), 2.3 and 8.4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.pde import Dirichlet, Grid, laplacian


class Rod(NamedTuple):
    """Places, times, the temperature at them, and the solver's status."""

    x: Float[Array, " x"]
    t: Float[Array, " time"]
    u: Float[Array, "time x"]
    status: Any


def rod(
    diffusivity: Any, *, n: int = 49, order: int = 2, t1: float = 0.1, points: int = 11, solver: Solver = Solver()
) -> Rod:
    """The temperature at n inner places and `points` equal times from 0 to `t1`."""
    grid = Grid((0.0, 1.0), n, points="inner")
    x, ts = grid.coordinates(), jnp.linspace(0.0, t1, points)

    def vector_field(t: Any, u: Any, diffusivity: Any) -> Any:
        return diffusivity * laplacian(u, grid, Dirichlet(0.0), order=order)

    found = solve(vector_field, jnp.sin(jnp.pi * x), diffusivity, ts=ts, solver=solver)
    return Rod(x, ts, found.y, found.status)


def middle(u: Float[Array, "time x"]) -> jax.Array:
    """The temperature in the middle of the rod at the last time, of an odd number of places."""
    return u[-1, u.shape[-1] // 2]


def average(u: Float[Array, "time x"]) -> jax.Array:
    """The mean over the rod at the last time, by the trapezoidal rule with the zeros at the ends."""
    return jnp.sum(u[-1]) / (u.shape[-1] + 1)
