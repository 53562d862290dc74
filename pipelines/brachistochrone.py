"""The fastest slide, by its slope over time.

    x' = v sin(theta),    y' = -v cos(theta),    v' = g cos(theta),    from rest at (0, 10) to (10, 5) [m], g = 9.80665 m/s^2

theta is the angle of the path from straight down. The answer is a cycloid, on which theta is linear in time: straight lines between
knots hold it exactly. It takes 1.80160312 s, and ends with sqrt(2 g 5) = 9.90285312 m/s.

Source: OpenMDAO/dymos, brachistochrone example (1.8016 s, 9.902 m/s); A. E. Bryson, Dynamic Optimization (1999), section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.forcing import piecewise_linear
from ops.ode import Solver, solve


class Slide(NamedTuple):
    """Where the slide ends [m], how fast [m/s], and the solver's status."""

    x: Any
    y: Any
    speed: Any
    status: Any


def vector_field(s: Any, y: Any, args: Any) -> Any:
    """Rates of change, by the part of the time that has passed."""
    (_, _, v), (duration, g, theta) = y, args
    angle = theta(s)
    return duration * v * jnp.sin(angle), -duration * v * jnp.cos(angle), duration * g * jnp.cos(angle)


def slide(theta: Float[Array, " knot"], duration: Any, g: Any, y0: Any = 10.0, *, solver: Solver = Solver()) -> Slide:
    """The end of a slide of angles [rad] at equal times, with straight lines between them."""
    slope = piecewise_linear(np.linspace(0.0, 1.0, len(theta)), theta)
    found = solve(vector_field, (0.0, y0, 0.0), (duration, g, slope), t1=1.0, solver=solver)
    x, y, speed = found.y
    return Slide(x, y, speed, found.status)
