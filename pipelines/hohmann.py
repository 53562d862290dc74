"""From one circular orbit to a higher one with the least change of speed.

    r'' = -mu r / |r|^3 in the plane [km, s];  a first impulse at r = (r1, 0), a second one at the end of the coast, into the circle there

For r2 < 11.94 r1 Hohmann's transfer is the cheapest: both impulses tangential, half an ellipse between them. From 191.34411 km to
35781.34857 km above the Earth, dv = 3.935224 km/s in 5.256713 h.

Source: D. A. Vallado, Fundamentals of Astrodynamics and Applications, 4th ed. (2013), example 6-1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.safe import norm


class State(NamedTuple):
    """Position [km] and velocity [km/s]."""

    r: Float[Array, " axis"]
    v: Float[Array, " axis"]


class Transfer(NamedTuple):
    """What a transfer takes, where it ends, and the solver's status."""

    dv: Any
    """Of both impulses [km/s]."""

    radius: Any
    """At the end of the coast [km]."""

    status: Any


def vector_field(t: Any, y: State, mu: Any) -> State:
    """Velocity, and gravity."""
    return State(y.v, -mu * y.r / norm(y.r) ** 3)


def transfer(
    radial: Any, tangential: Any, hours: Any, mu: Any, r1: Any, r2: Any, *, solver: Solver = Solver()
) -> Transfer:
    """A first impulse by its two components [km/s], a coast of some hours, and an impulse into the circular orbit of radius `r2` there."""
    impulse = jnp.stack([jnp.asarray(radial, float), jnp.asarray(tangential, float)])
    start = State(jnp.stack([r1, jnp.zeros_like(r1)]), jnp.stack([jnp.zeros_like(r1), jnp.sqrt(mu / r1)]) + impulse)
    # Over the part of the coast that has passed, so that its length is a variable like any other.
    coast = lambda s, y, args: tuple(args[1] * rate for rate in vector_field(s, State(*y), args[0]))  # noqa: E731
    found = solve(coast, tuple(start), (mu, 3600.0 * hours), t1=1.0, solver=solver)
    r, v = found.y
    radius = norm(r)
    circular = jnp.sqrt(mu / r2) * jnp.stack([-r[1], r[0]]) / radius
    return Transfer(norm(impulse) + norm(circular - v), radius, found.status)
