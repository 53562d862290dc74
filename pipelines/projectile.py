"""A ball thrown through air, with drag as the square of its speed, until it meets the ground.

    r' = v,    v' = -(0, g) - drag |v| v,    r(0) = (0, 0),    v(0) = speed (cos angle, sin angle)

with drag = c / m [1/m], for a sphere of diameter D about 0.25 D^2 / m in air at sea level (D in m, m in kg). Without drag the range is
speed^2 sin(2 angle) / g.

Source: J. R. Taylor, Classical Mechanics (2005), section 2.4, and the baseball of example 2.6 (0.15 kg, 7 cm, 30 m/s, 50 degrees). Its
range on level ground with g = 9.8 m/s^2 is 58.118637 m, by SciPy's DOP853 at rtol 1e-13; 90.44 m without drag.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.safe import norm


class State(NamedTuple):
    """Position [m] and velocity [m/s], each (along the ground, up)."""

    position: Float[Array, " axis"]
    velocity: Float[Array, " axis"]


class Landing(NamedTuple):
    """Where and when the ball lands."""

    range: Any
    """Along the ground [m]."""

    time: Any
    """[s]."""

    speed: Any
    """[m/s]."""

    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Velocity and acceleration."""
    g, drag = args
    return State(y.velocity, -jnp.stack([jnp.zeros_like(g), g]) - drag * norm(y.velocity) * y.velocity)


def altitude(t: Any, y: State, args: Any) -> Any:
    """Zero on the ground."""
    return y.position[1]


def throw(speed: Any, angle: Any, g: Any, drag: Any, *, longest: float = 100.0, solver: Solver = Solver()) -> Landing:
    """The landing of a ball thrown from the ground at an angle [degrees], within `longest` [s]."""
    angle = jnp.deg2rad(angle)
    start = State(jnp.zeros(2), speed * jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
    args = jnp.asarray(g, float), jnp.asarray(drag, float)
    found = solve(vector_field, start, args, t1=longest, solver=solver, event=altitude)
    return Landing(found.y.position[0], found.event_time, norm(found.y.velocity), found.status)
