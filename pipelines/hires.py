"""HIRES: the growth of plant tissue in light, as eight stiff reactions (High Irradiance RESponse).

    y1' = -1.71 y1 + 0.43 y2 + 8.32 y3 + supply          y5' = -1.745 y5 + 0.43 (y6 + y7)
    y2' = 1.71 y1 - 8.75 y2                              y6' = -k y6 y8 + 0.69 y4 + 1.71 y5 - 0.43 y6 + 0.69 y7
    y3' = -10.03 y3 + 0.43 y4 + 0.035 y5                 y7' = k y6 y8 - 1.81 y7
    y4' = 8.32 y2 + 1.71 y3 - 1.12 y4                    y8' = -y7'

Concentrations of six forms of phytochrome, of the enzyme that is bound (y7) and of the free one (y8), dimensionless; supply = 0.0007,
k = 280; from (1, 0, 0, 0, 0, 0, 0, 0.0057). y7 + y8 is conserved. At t = 321.8122: y1 = 0.7371312573325668e-3,
y8 = 0.2850001604814231e-2.

Source: E. Schaefer, J. Math. Biology 2, 41 (1975); values of the Test Set for IVP Solvers (F. Mazzia and C. Magherini, Bari, 2008),
problem HIRES.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.ode import Solver, solve

START = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057])
LINEAR = np.array(
    [
        [-1.71, 0.43, 8.32, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1.71, -8.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, -10.03, 0.43, 0.035, 0.0, 0.0, 0.0],
        [0.0, 8.32, 1.71, -1.12, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, -1.745, 0.43, 0.43, 0.0],
        [0.0, 0.0, 0.0, 0.69, 1.71, -0.43, 0.69, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.81, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.81, 0.0],
    ]
)
SUPPLIED = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
BOUND = np.array([0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 1.0, -1.0])


class Response(NamedTuple):
    """Times, the concentrations at them, how far the enzyme's sum is off at most, and the solver's status and steps."""

    t: Float[Array, " time"]
    y: Float[Array, "time species"]
    imbalance: jax.Array
    steps: jax.Array
    status: Any


def vector_field(t: Any, y: Any, args: Any) -> Any:
    """The rates of the eight reactions: all are linear but the one that binds the enzyme."""
    supply, k = args
    return jnp.asarray(LINEAR) @ y + supply * jnp.asarray(SUPPLIED) + k * y[5] * y[7] * jnp.asarray(BOUND)


def response(
    supply: Any, k: Any, *, t1: float = 321.8122, points: int = 11, solver: Solver = Solver("kvaerno5")
) -> Response:
    """The concentrations at `points` equal times from 0 to `t1`."""
    ts = jnp.linspace(0.0, t1, points)
    found = solve(vector_field, jnp.array(START), (supply, k), ts=ts, solver=solver)
    enzyme = found.y[:, 6] + found.y[:, 7]
    return Response(ts, found.y, jnp.max(jnp.abs(enzyme - enzyme[0])), found.steps, found.status)


def last(y: Float[Array, "time species"]) -> jax.Array:
    """The free enzyme at the last time."""
    return y[-1, 7]
