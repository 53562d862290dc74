"""Kuramoto's model: oscillators of different frequencies that pull each other into step.

    theta_i' = omega_i + K r sin(psi - theta_i),    r exp(i psi) = mean of exp(i theta_j)

The frequencies are the quantiles of a Lorentzian of half width gamma. In the limit of many oscillators the order parameter settles at
r = sqrt(1 - 2 gamma / K) above the threshold K = 2 gamma, so that dr/dK = gamma / (K**2 r), and small deviations decay at the rate
K - 2 gamma; below it r is 0. That is the steady state of Ott and Antonsen's equation, r' = -gamma r + K (r - r**3) / 2. The order of
N oscillators itself has a fine structure over K, where single ones fall into step: its derivative says nothing about the limit.

Sources: Y. Kuramoto, Lecture Notes in Physics 39 (1975), 420; E. Ott and T. M. Antonsen, Chaos 18 (2008), 037113.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.ode import Solver, solve
from ops.steady import find_steady_state

GOLDEN = (math.sqrt(5) - 1) / 2


class Order(NamedTuple):
    """The order parameter, averaged over time, and the solver's status and steps."""

    r: jax.Array
    steps: jax.Array
    status: jax.Array


class Limit(NamedTuple):
    """The order parameter of infinitely many, the growth rate of deviations from it [1 / time], and its status."""

    r: jax.Array
    growth: jax.Array
    status: jax.Array


def frequencies(number: int, width: Any) -> jax.Array:
    """The quantiles of a Lorentzian about 0: (k - 1/2) / N for k = 1 to N."""
    quantiles = (jnp.arange(number) + 0.5) / number
    return jnp.asarray(width * jnp.tan(jnp.pi * (quantiles - 0.5)))


def vector_field(t: Any, y: Any, args: Any) -> Any:
    """Of the phases, and of the integral of r; the sine of a difference is taken apart, so that the cost is that of N and not N**2."""
    theta, _ = y
    coupling, omega = args
    sine, cosine = jnp.sin(theta), jnp.cos(theta)
    x, z = jnp.mean(cosine), jnp.mean(sine)
    return omega + coupling * (z * cosine - x * sine), jnp.sqrt(x * x + z * z)


def order(
    coupling: Any,
    width: Any,
    *,
    number: int = 200,
    settle: float = 40.0,
    average: float = 20.0,
    solver: Solver = Solver(step=0.02),
) -> Order:
    """The order parameter, averaged over `average` [time] after the phases had `settle` to find their places.

    They begin on half the circle, spread by the golden ratio: no frequency has a place of its own, and r begins at 2 / pi.
    """
    omega = frequencies(number, width)
    theta = jnp.pi * ((jnp.arange(number) * GOLDEN) % 1.0)
    ends = jnp.array([settle, settle + average])
    found = solve(vector_field, (theta, jnp.zeros(())), (coupling, omega), ts=ends, solver=solver)
    integral = found.y[1]
    return Order((integral[1] - integral[0]) / average, found.steps, found.status)


def limit(coupling: Any, width: Any) -> Limit:
    """The steady order of infinitely many oscillators, from full order down. At the threshold itself there is none to be told apart."""

    def slope(t: Any, r: Any, args: Any) -> Any:
        return -width * r + coupling * (r - r**3) / 2

    found = find_steady_state(slope, 1.0)
    return Limit(found.value, found.growth, found.status)
