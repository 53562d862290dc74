"""A rocket of constant thrust, steered to a height and a speed in the least time.

    x'' = a cos(u),    y'' = a sin(u),    from rest at 0, a = 100;    y = 5, x' = 45, y' = 0 at the end;    |u| <= pi / 2

u is the angle of the thrust; all dimensionless. The best angle follows the linear tangent law, tan(u) = c1 - c2 t, and takes
0.55457088; with straight lines between knots, a little more.

Sources: E. D. Dolan, J. J. More, T. S. Munson, Benchmarking optimization software with COPS 3.0, ANL/MCS-TM-273 (2004), particle
steering (0.554577); A. E. Bryson, Y.-C. Ho, Applied Optimal Control (1975), section 2.4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.forcing import piecewise_linear
from ops.ode import Solver, solve


class End(NamedTuple):
    """Height, both velocities, and the solver's status."""

    height: Any
    forward: Any
    upward: Any
    status: Any


def vector_field(s: Any, y: Any, args: Any) -> Any:
    """Rates of change, by the part of the time that has passed."""
    (_, _, upward), (duration, thrust, angle) = y, args
    u = angle(s)
    return duration * thrust * jnp.cos(u), duration * upward, duration * thrust * jnp.sin(u)


def flight(angles: Float[Array, " knot"], duration: Any, thrust: Any, *, solver: Solver = Solver()) -> End:
    """The end of a flight of angles [rad] at equal times, with straight lines between them."""
    angle = piecewise_linear(np.linspace(0.0, 1.0, len(angles)), angles)
    found = solve(vector_field, (0.0, 0.0, 0.0), (duration, thrust, angle), t1=1.0, solver=solver)
    forward, height, upward = found.y
    return End(height, forward, upward, found.status)
