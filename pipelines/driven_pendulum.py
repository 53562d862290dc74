"""The damped, driven pendulum on its way to chaos (dimensionless: time in units of the inverse natural frequency).

    theta'' = -theta' / q - sin(theta) + drive cos(frequency t)

Looked at once in each period of the drive, a motion of period n shows n points, and a chaotic one as many as one looks at. With q = 2
and frequency 2/3 the book gives the periods 1, 2 and 4 at the drives 1.35, 1.45 and 1.47, 1 at 0.9, 2 at 1.07, and chaos at 1.15 and 1.5.

Source: G. L. Baker and J. P. Gollub, Chaotic Dynamics: An Introduction, 2nd edition, Cambridge (1996).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.statistics import lyapunov_flow


class State(NamedTuple):
    """Angle [rad] and angular velocity."""

    theta: Float[Array, " turn"]
    rate: Float[Array, " turn"]


class Section(NamedTuple):
    """The number of each period of the drive after the transient, the state when it begins, and the solver's status."""

    turn: Float[Array, " turn"]
    y: State
    status: Any


class Exponent(NamedTuple):
    """The largest Lyapunov exponent per unit of time, beside that of the phase of the drive, which is 0; and the solver's status."""

    largest: Any
    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """Angular velocity and acceleration."""
    q, drive, frequency = args
    return State(y.rate, -y.rate / q - jnp.sin(y.theta) + drive * jnp.cos(frequency * t))


def section(
    q: Any,
    drive: Any,
    frequency: Any,
    theta: Any,
    rate: Any,
    *,
    transient: int = 50,
    turns: int = 32,
    solver: Solver = Solver(),
) -> Section:
    """The state at the start of `turns` periods of the drive, after `transient` of them."""
    number = transient + jnp.arange(float(turns))
    start = State(jnp.asarray(theta, float), jnp.asarray(rate, float))
    found = solve(vector_field, start, (q, drive, frequency), ts=2 * jnp.pi / frequency * number, solver=solver)
    return Section(number, found.y, found.status)


def period(y: State, *, longest: int = 8, tolerance: float = 1e-4) -> jax.Array:
    """The smallest number of periods of the drive after which the motion repeats, up to whole turns; 0 if there is none."""
    apart = []
    for n in range(1, longest + 1):
        turned = y.theta[n:] - y.theta[:-n]
        turned = turned - 2 * jnp.pi * jnp.round(turned / (2 * jnp.pi))
        apart.append(jnp.max(jnp.maximum(jnp.abs(turned), jnp.abs(y.rate[n:] - y.rate[:-n]))))
    repeats = jnp.stack(apart) < tolerance
    return jnp.where(jnp.any(repeats), jnp.argmax(repeats) + 1, 0)


def exponent(
    q: Any,
    drive: Any,
    frequency: Any,
    theta: Any,
    rate: Any,
    *,
    t1: float = 1000.0,
    transient: float = 200.0,
    solver: Solver = Solver(),
) -> Exponent:
    """The largest Lyapunov exponent from `transient` to `t1`, positive if the motion is chaotic."""
    start = State(jnp.asarray(theta, float), jnp.asarray(rate, float))
    args = q, drive, frequency
    found = lyapunov_flow(vector_field, start, args, t1=t1, transient=transient, interval=2 * np.pi, solver=solver)
    return Exponent(found.exponents[0], found.status)
