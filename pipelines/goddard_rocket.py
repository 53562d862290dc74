"""A sounding rocket that is to rise as high as it can with its fuel.

    h' = v,    v' = (T - D) / m - 1 / h^2,    m' = -2 T,    D = 310 v^2 exp(-500 (h - 1)),    (h, v, m)(0) = (1, 0, 1)

with 0 <= T <= 3.5 and m = 0.6 at the end; lengths in radii of the Earth, all dimensionless. T is held over each of equal pieces of a
time that is free. The best thrust is full, then singular, then none: h = 1.0128402 at most, and a little less with few pieces.

Sources: R. H. Goddard, A Method of Reaching Extreme Altitudes (1919); E. D. Dolan, J. J. More, T. S. Munson, COPS 3.0, ANL/MCS-TM-273
(2004), Goddard rocket: 1.01283.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.forcing import piecewise_constant
from ops.ode import Solver, solve


class End(NamedTuple):
    """Height in radii of the Earth, velocity, mass, and the solver's status."""

    height: Any
    velocity: Any
    mass: Any
    status: Any


def vector_field(s: Any, y: Any, args: Any) -> Any:
    """Rates of change, by the part of the time that has passed."""
    (h, v, m), (duration, thrust) = y, args
    T = thrust(s)
    drag = 310 * v**2 * jnp.exp(-500 * (h - 1))
    return duration * v, duration * ((T - drag) / m - 1 / h**2), -2 * duration * T


def burning(n: int, least: float) -> Float[Array, " piece"]:
    """Full thrust that falls evenly: a start."""
    return jnp.linspace(3.5, least, n)


def ascent(thrust: Float[Array, " piece"], duration: Any, *, solver: Solver = Solver()) -> End:
    """The end of an ascent."""
    held = piecewise_constant(np.linspace(0.0, 1.0, len(thrust) + 1), thrust)
    found = solve(vector_field, (1.0, 0.0, 1.0), (duration, held), t1=1.0, solver=solver)
    height, velocity, mass = found.y
    return End(height, velocity, mass, found.status)
