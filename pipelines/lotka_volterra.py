"""Predator and prey.

    x' = alpha x - beta x y,    y' = delta x y - gamma y

x are prey, y predators (dimensionless numbers); rates per unit of time. V = delta x - gamma log(x) + beta y - alpha log(y) is
constant along every solution.

Source: A. J. Lotka, Elements of Physical Biology (1925); V. Volterra, Mem. Acad. Lincei Roma 2, 31 (1926).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Populations(NamedTuple):
    """Prey and predators."""

    prey: Float[Array, " time"]
    predators: Float[Array, " time"]


class History(NamedTuple):
    """Times, the populations at them, and the solver's status."""

    t: Float[Array, " time"]
    y: Populations
    status: Any


def vector_field(t: Any, y: Populations, args: Any) -> Populations:
    """Growth of both populations."""
    alpha, beta, gamma, delta = args
    return Populations(alpha * y.prey - beta * y.prey * y.predators, delta * y.prey * y.predators - gamma * y.predators)


def history(
    alpha: Any,
    beta: Any,
    gamma: Any,
    delta: Any,
    prey: Any,
    predators: Any,
    *,
    t1: float = 10.0,
    points: int = 101,
    solver: Solver = Solver(),
) -> History:
    """The populations at `points` equal times from 0 to `t1`."""
    ts = jnp.linspace(0.0, t1, points)
    start = Populations(jnp.asarray(prey, float), jnp.asarray(predators, float))
    solution = solve(vector_field, start, (alpha, beta, gamma, delta), ts=ts, solver=solver)
    return History(ts, solution.y, solution.status)


def final(y: Populations) -> Populations:
    """The populations at the last time."""
    return Populations(y.prey[-1], y.predators[-1])


def drift(y: Populations, alpha: Any, beta: Any, gamma: Any, delta: Any) -> jax.Array:
    """The largest change of the conserved quantity: an error of the integration that needs no reference."""
    v = delta * y.prey - gamma * jnp.log(y.prey) + beta * y.predators - alpha * jnp.log(y.predators)
    return jnp.max(jnp.abs(v - v[0]))
