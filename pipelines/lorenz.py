"""The Lorenz system: convection in a layer heated from below, reduced to three modes (dimensionless).

    x' = sigma (y - x),    y' = x (rho - z) - y,    z' = x y - beta z

Chaotic at sigma 10, rho 28, beta 8/3: nearby solutions part as exp(0.9056 t), so that single paths can be compared over short
times only.

Source: E. N. Lorenz, J. Atmos. Sci. 20, 130 (1963).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve
from ops.statistics import Lyapunov, lyapunov_flow


class State(NamedTuple):
    """The three modes."""

    x: Float[Array, " time"]
    y: Float[Array, " time"]
    z: Float[Array, " time"]


class Path(NamedTuple):
    """Times, the state at them, and the solver's status."""

    t: Float[Array, " time"]
    y: State
    status: Any


def vector_field(t: Any, state: State, args: Any) -> State:
    """Lorenz's equations (25) to (27)."""
    sigma, rho, beta = args
    x, y, z = state
    return State(sigma * (y - x), x * (rho - z) - y, x * y - beta * z)


def path(
    sigma: Any,
    rho: Any,
    beta: Any,
    start: Any,
    *,
    t1: float = 2.0,
    points: int = 201,
    solver: Solver = Solver(),
) -> Path:
    """The path at `points` equal times from 0 to `t1`, from the state `start` (three numbers)."""
    ts = jnp.linspace(0.0, t1, points)
    solution = solve(vector_field, State(start[0], start[1], start[2]), (sigma, rho, beta), ts=ts, solver=solver)
    return Path(ts, solution.y, solution.status)


def extent(y: State) -> jax.Array:
    """The largest distance from the origin."""
    return jnp.max(jnp.sqrt(y.x**2 + y.y**2 + y.z**2))


def exponents(
    sigma: Any,
    rho: Any,
    beta: Any,
    start: Any,
    *,
    t1: float = 200.0,
    transient: float = 20.0,
    solver: Solver = Solver(),
) -> Lyapunov:
    """The three Lyapunov exponents, averaged from `transient` to `t1`; their sum is -(sigma + 1 + beta), the divergence."""
    state = State(start[0], start[1], start[2])
    args = sigma, rho, beta
    return lyapunov_flow(vector_field, state, args, t1=t1, transient=transient, interval=0.5, count=3, solver=solver)
