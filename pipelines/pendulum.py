"""The plane pendulum, released at rest.

    theta'' = -(g / l) sin(theta),    theta(0) = amplitude [rad],  theta'(0) = 0

Its period is T = 4 sqrt(l / g) K(sin(amplitude / 2)) with the complete elliptic integral K of that modulus.

Source: L. D. Landau and E. M. Lifshitz, Mechanics, 3rd edition, section 11, problem 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class State(NamedTuple):
    """Angle [rad] and angular velocity [rad/s]."""

    theta: Float[Array, " time"]
    rate: Float[Array, " time"]


class Swing(NamedTuple):
    """A trajectory: times t [s], the state at them, and the solver's status."""

    t: Float[Array, " time"]
    y: State
    status: Any


class Period(NamedTuple):
    """The period [s] and the solver's status."""

    period: Any
    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Angular velocity and acceleration."""
    g, length = args
    return State(y.rate, -(g / length) * jnp.sin(y.theta))


def released(amplitude: Any) -> State:
    """At rest at the amplitude."""
    return State(jnp.asarray(amplitude, float), jnp.zeros(()))


def swing(
    amplitude: Any,
    g: Any,
    length: Any,
    *,
    t1: float = 10.0,
    points: int = 201,
    solver: Solver = Solver(),
) -> Swing:
    """The trajectory at `points` equal times from 0 to `t1` [s]."""
    ts = jnp.linspace(0.0, t1, points)
    solution = solve(vector_field, released(amplitude), (g, length), ts=ts, solver=solver)
    return Swing(ts, solution.y, solution.status)


def period(amplitude: Any, g: Any, length: Any, *, longest: float = 100.0, solver: Solver = Solver()) -> Period:
    """The period: four times the time from the amplitude to the bottom, found as an event within `longest` [s]."""
    bottom = solve(
        vector_field, released(amplitude), (g, length), t1=longest, solver=solver, event=lambda t, y, args: y.theta
    )
    quarter: Any = bottom.event_time
    return Period(4 * quarter, bottom.status)
