"""A ball that bounces on the ground.

    y'' = -g;    at y = 0 with y' < 0:  y' -> -e y',    y(0) = height [m],  y'(0) = 0

The n-th impact is at t1 (1 + 2 (e + e^2 + ... + e^(n-1))) with t1 = sqrt(2 height / g), the flight after it rises to e^(2n) height, and
infinitely many impacts end at t1 (1 + e) / (1 - e): the standard example of Zeno behaviour.

Source: the example `ballode` of MATLAB (L. F. Shampine, M. W. Reichelt, The MATLAB ODE suite, SIAM J. Sci. Comput. 18 (1997) 1-22).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.events import Event, solve
from ops.ode import Solver


class State(NamedTuple):
    """Height [m] and velocity, upwards [m/s]."""

    height: Any
    velocity: Any


class Bounces(NamedTuple):
    """What each impact does, and how it ends."""

    time: Float[Array, " bounce"]
    """Of each impact [s]."""

    top: Float[Array, " bounce"]
    """The height of the flight after each [m]."""

    last: Any
    """The time of the last impact that was asked for [s]."""

    energy: Any
    """After it, for each kilogram [J/kg]."""

    rest: Any
    """When the ball would come to rest [s], extrapolated from the last three impacts."""

    status: Any
    steps: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Velocity and acceleration."""
    g, _ = args
    return State(y.velocity, -g)


def rebound(t: Any, y: State, args: Any) -> State:
    """The state after an impact."""
    _, restitution = args
    return State(y.height, -restitution * y.velocity)


GROUND = Event(lambda t, y, args: y.height, direction=-1, action=rebound)


def bounces(
    height: Any, g: Any, restitution: Any, *, count: int = 5, longest: float = 100.0, solver: Solver = Solver()
) -> Bounces:
    """The first `count` impacts (three at least), looked for within `longest` [s]."""
    start = State(jnp.asarray(height, float), jnp.zeros(()))
    found = solve(
        vector_field, start, (g, restitution), events=GROUND, max_events=count, beyond="stop", t1=longest, solver=solver
    )  # fmt: skip
    impact = found.event_states.velocity
    time = found.event_times
    flight, before = time[-1] - time[-2], time[-2] - time[-3]
    rest = time[-1] + flight**2 / (before - flight)  # Aitken's process: exact, as the flights are a geometric series
    energy = found.y.velocity**2 / 2 + g * found.y.height
    return Bounces(time, (restitution * impact) ** 2 / (2 * g), time[-1], energy, rest, found.status, found.steps)
