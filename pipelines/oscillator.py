"""The damped harmonic oscillator.

    x'' + 2 zeta omega x' + omega**2 x = 0,    x(0) = x0 [m],  x'(0) = v0 [m/s]

omega is the natural frequency [rad/s], zeta the damping ratio [-]. For zeta < 1, with wd = omega sqrt(1 - zeta**2),
x = exp(-zeta omega t) (x0 cos(wd t) + (v0 + zeta omega x0) / wd sin(wd t)).

Source: L. Meirovitch, Fundamentals of Vibrations, McGraw-Hill (2001), section 2.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class State(NamedTuple):
    """Displacement x [m] and velocity v [m/s]."""

    x: Float[Array, " time"]
    v: Float[Array, " time"]


class Motion(NamedTuple):
    """A trajectory: times t [s], the state at them, and the solver's status."""

    t: Float[Array, " time"]
    y: State
    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Velocity and acceleration."""
    omega, zeta = args
    return State(y.v, -(omega**2) * y.x - 2 * zeta * omega * y.v)


def motion(
    omega: Any,
    zeta: Any,
    x0: Any = 1.0,
    v0: Any = 0.0,
    *,
    t1: float = 20.0,
    points: int = 201,
    solver: Solver = Solver(),
) -> Motion:
    """The trajectory at `points` equal times from 0 to `t1` [s]."""
    ts = jnp.linspace(0.0, t1, points)
    start = State(jnp.asarray(x0, float), jnp.asarray(v0, float))
    solution = solve(vector_field, start, (omega, zeta), ts=ts, solver=solver)
    return Motion(ts, solution.y, solution.status)


def energy(state: State, omega: Any) -> Any:
    """Mechanical energy per mass at the last time [J/kg]."""
    return 0.5 * state.v[-1] ** 2 + 0.5 * omega**2 * state.x[-1] ** 2
