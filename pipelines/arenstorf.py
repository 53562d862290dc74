"""A satellite between the earth and the moon, on orbits that close.

    x'' = x + 2 y' - (1 - mu) (x + mu) / D1 - mu (x - 1 + mu) / D2
    y'' = y - 2 x' - (1 - mu) y / D1 - mu y / D2
    D1 = ((x + mu)**2 + y**2)**(3/2),    D2 = ((x - 1 + mu)**2 + y**2)**(3/2)

in the frame that turns with them, the restricted problem of three bodies: lengths in their distance, times in their period over 2 pi,
mu = 0.012277471 the moon's part of the mass. From (0.994, 0) with the velocity (0, -2.00158510637908252240537862224) the orbit closes
after 17.0652165601579625588917206249; one that is smaller, from -2.0317326295573368357302057924, after 11.124340337266085134999734047.
An error made near the moon is a million times as large at the end. Jacobi's integral
x**2 + y**2 + 2 (1 - mu) / r1 + 2 mu / r2 - x'**2 - y'**2 is conserved.

Source: R. F. Arenstorf, Amer. J. Math. 85, 27 (1963); E. Hairer, S. P. Norsett and G. Wanner, Solving ODEs I, 2nd edition, Springer
(1993), II.0.
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
    """Times, the state at them, the state at the last time, and the solver's status and steps."""

    t: Float[Array, " time"]
    y: State
    last: Float[Array, " component"]
    steps: jax.Array
    status: Any


def vector_field(t: Any, state: State, mu: Any) -> State:
    """Velocity and acceleration in the frame that turns."""
    x, y, vx, vy = state
    earth = (1 - mu) / ((x + mu) ** 2 + y**2) ** 1.5
    moon = mu / ((x - 1 + mu) ** 2 + y**2) ** 1.5
    return State(
        vx, vy, x + 2 * vy - earth * (x + mu) - moon * (x - 1 + mu), y - 2 * vx - earth * y - moon * y
    )  # fmt: skip


def orbit(start: Any, period: Any, mu: Any, *, points: int = 201, solver: Solver = Solver("dopri8")) -> Orbit:
    """The orbit from `start` (x, y, x', y') at `points` equal times of a period."""
    ts = period * jnp.linspace(0.0, 1.0, points)
    found = solve(vector_field, State(*(start[i] for i in range(4))), mu, ts=ts, solver=solver)
    return Orbit(ts, found.y, jnp.stack([part[-1] for part in found.y]), found.steps, found.status)


def jacobi(last: Float[Array, " component"], mu: Any) -> jax.Array:
    """Jacobi's integral of a state."""
    x, y, vx, vy = last
    earth, moon = jnp.hypot(x + mu, y), jnp.hypot(x - 1 + mu, y)
    integral: jax.Array = x**2 + y**2 + 2 * (1 - mu) / earth + 2 * mu / moon - vx**2 - vy**2
    return integral


def gap(last: Float[Array, " component"], start: Any) -> jax.Array:
    """The largest difference between the last state and the first, which a closed orbit has not."""
    return jnp.max(jnp.abs(last - start))
