"""Two bodies: the orbit of one about the other, from the pericentre.

    r'' = -r / |r|**3,    r(0) = (1 - e, 0),    r'(0) = (0, sqrt((1 + e) / (1 - e)))

in units of the semi-major axis and of the period over 2 pi. By Kepler's equation E - e sin(E) = t the place is
(cos(E) - e, sqrt(1 - e**2) sin(E)), and dE/de = sin(E) / (1 - e cos(E)). The energy is -1/2, the angular momentum sqrt(1 - e**2).
For e = 0.9, at t = 20: (-1.2952662509875744, 0.40039389637923215).

Source: T. E. Hull et al., "Comparing numerical methods for ordinary differential equations", SIAM J. Numer. Anal. 9, 603 (1972),
problem D5; H. Goldstein, Classical Mechanics, 3rd edition, 3.8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class State(NamedTuple):
    """Place and velocity."""

    x: Float[Array, " time"]
    y: Float[Array, " time"]
    vx: Float[Array, " time"]
    vy: Float[Array, " time"]


class Orbit(NamedTuple):
    """Times, the state at them, and the solver's status and steps."""

    t: Float[Array, " time"]
    y: State
    steps: jax.Array
    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Velocity and attraction."""
    cubed = (y.x**2 + y.y**2) ** 1.5
    return State(y.vx, y.vy, -y.x / cubed, -y.y / cubed)


def orbit(eccentricity: Any, *, t1: float = 20.0, points: int = 201, solver: Solver = Solver("dopri8")) -> Orbit:
    """The orbit at `points` equal times from 0 to `t1`."""
    ts = jnp.linspace(0.0, t1, points)
    e = jnp.asarray(eccentricity, float)
    start = State(1 - e, jnp.zeros(()), jnp.zeros(()), jnp.sqrt((1 + e) / (1 - e)))
    found = solve(vector_field, start, ts=ts, solver=solver)
    return Orbit(ts, found.y, found.steps, found.status)


def last(y: State) -> State:
    """The state at the last time."""
    return State(y.x[-1], y.y[-1], y.vx[-1], y.vy[-1])


def energy_drift(y: State) -> jax.Array:
    """The largest change of the energy, an error of the integration that needs no reference."""
    energy = (y.vx**2 + y.vy**2) / 2 - 1 / jnp.sqrt(y.x**2 + y.y**2)
    return jnp.max(jnp.abs(energy - energy[0]))


def momentum_drift(y: State) -> jax.Array:
    """The largest change of the angular momentum."""
    momentum = y.x * y.vy - y.y * y.vx
    return jnp.max(jnp.abs(momentum - momentum[0]))
