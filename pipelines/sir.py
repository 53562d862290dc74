"""An epidemic in a closed population.

    S' = -beta S I,    I' = beta S I - gamma I,    R' = gamma I

S, I and R are the fractions susceptible, infected and removed; rates per day. The final size solves
R = 1 - S(0) exp(-(beta / gamma) (R - R(0))).

Source: W. O. Kermack and A. G. McKendrick, Proc. R. Soc. A 115, 700 (1927).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Fractions(NamedTuple):
    """Fractions of the population."""

    susceptible: Float[Array, " time"]
    infected: Float[Array, " time"]
    removed: Float[Array, " time"]


class Epidemic(NamedTuple):
    """Times t [day], the fractions at them, and the solver's status."""

    t: Float[Array, " time"]
    y: Fractions
    status: Any


def vector_field(t: Any, y: Fractions, args: Any) -> Fractions:
    """Infection and removal."""
    beta, gamma = args
    infection, removal = beta * y.susceptible * y.infected, gamma * y.infected
    return Fractions(-infection, infection - removal, removal)


def epidemic(
    beta: Any,
    gamma: Any,
    infected: Any,
    *,
    t1: float = 400.0,
    points: int = 201,
    solver: Solver = Solver(),
) -> Epidemic:
    """The course at `points` equal times from 0 to `t1` [day], from the fraction `infected` at the start."""
    ts = jnp.linspace(0.0, t1, points)
    seed = jnp.asarray(infected, float)
    solution = solve(vector_field, Fractions(1 - seed, seed, jnp.zeros(())), (beta, gamma), ts=ts, solver=solver)
    return Epidemic(ts, solution.y, solution.status)


def final_size(y: Fractions) -> jax.Array:
    """The fraction removed at the last time."""
    return y.removed[-1]


def peak(y: Fractions) -> jax.Array:
    """The largest fraction infected at once, among the stored times."""
    return jnp.max(y.infected)
