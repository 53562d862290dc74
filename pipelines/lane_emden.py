"""Polytropic stars: the Lane-Emden equation from the centre to the surface.

    theta'' + (2 / xi) theta' + theta**n = 0,    theta(0) = 1,  theta'(0) = 0

The surface is at the first zero xi1, which exists for n < 5. With m = -xi**2 theta' it reads theta' = -m / xi**2,
m' = xi**2 theta**n; the centre is left by the power series. Everything is dimensionless.

Closed forms: xi1 = sqrt(6) for n = 0, pi for n = 1, and dxi1/dn = -integral of sin(x)**2 log(sin(x) / x) from 0 to pi at n = 1.

Sources: S. Chandrasekhar, An Introduction to the Study of Stellar Structure, University of Chicago Press (1939), chapter IV;
zeros to many digits in J. P. Boyd, Numerical Mathematics: Theory, Methods and Applications 4 (2011), 142.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.ode import Solver, solve

CENTRE = 0.02
"""Where the power series hands over: its first term left out is below rounding there."""


class Profile(NamedTuple):
    """theta and m = -xi**2 theta'."""

    theta: Any
    mass: Any


class Star(NamedTuple):
    """The radius xi1, the mass m there, the central density over the mean one, and the solver's status and steps."""

    radius: jax.Array
    mass: jax.Array
    concentration: jax.Array
    steps: jax.Array
    status: jax.Array


def vector_field(xi: Any, y: Profile, n: Any) -> Profile:
    """Pressure gradient and mass in a shell. Outside the star there is none: a step may look there."""
    inside = y.theta > 0
    density = jnp.where(inside, jnp.where(inside, y.theta, 1.0) ** n, 0.0)
    return Profile(-y.mass / xi**2, xi**2 * density)


def centre(n: Any) -> Profile:
    """The power series about the centre."""
    x = CENTRE
    theta = 1 - x**2 / 6 + n * x**4 / 120 - n * (8 * n - 5) * x**6 / 15120
    mass = x**3 / 3 - n * x**5 / 30 + n * (8 * n - 5) * x**7 / 2520
    return Profile(theta, mass)


def star(n: Any, *, largest: float = 40.0, solver: Solver = Solver(rtol=1e-10, atol=1e-12)) -> Star:
    """The star of index n. One whose surface is not within `largest` fails."""
    surface = solve(
        vector_field, centre(n), n, t0=CENTRE, t1=largest, solver=solver, jumps=(), event=lambda xi, y, n: y.theta
    )
    radius: Any = surface.event_time
    mass = surface.y.mass
    status = jnp.where((surface.status == 0) & ~jnp.isfinite(radius), 4, surface.status)
    return Star(radius, mass, radius**3 / (3 * mass), surface.steps, status)
