"""Mathieu's equation: stability of a pendulum whose pivot shakes, of an ion in a quadrupole trap.

    y'' + (a - 2 q cos 2t) y = 0

Its coefficients have the period pi. Over one period the monodromy matrix M takes (y, y') to its new value; det M = 1, and with the trace
d of M solutions are bounded for |d| < 2, and grow by the multiplier |d| / 2 + sqrt(d**2 / 4 - 1) in each period for |d| > 2. The
boundaries d = 2 and d = -2 are the characteristic values a_r(q), b_r(q). Everything is dimensionless.

Closed forms at q = 0: d = 2 cos(pi sqrt(a)), and d2d/dq2 = pi sin(pi sqrt(a)) / (sqrt(a) (a - 1)).

Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, NBS (1964), chapter 20: characteristic values in table 20.1,
power series in 20.2.25.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.ode import Solver, solve
from ops.roots import find_root


class Stability(NamedTuple):
    """The trace of the monodromy matrix, the larger multiplier's modulus, how far det M is from 1, and the solver's status."""

    trace: jax.Array
    multiplier: jax.Array
    imbalance: jax.Array
    status: jax.Array


class Boundary(NamedTuple):
    """A characteristic value with the status of its search."""

    a: jax.Array
    status: jax.Array


def vector_field(t: Any, y: Any, args: Any) -> Any:
    """Of (y, y'), for any number of solutions at once."""
    a, q = args
    return jnp.stack([y[1], -(a - 2 * q * jnp.cos(2 * t)) * y[0]])


def monodromy(a: Any, q: Any, solver: Solver) -> Any:
    """The solution whose state at the end of one period is the monodromy matrix."""
    return solve(vector_field, jnp.eye(2), (a, q), t1=math.pi, solver=solver)


def stability(a: Any, q: Any, *, solver: Solver = Solver(rtol=1e-10, atol=1e-12)) -> Stability:
    """Whether solutions stay bounded, and how they grow."""
    found = monodromy(a, q, solver)
    trace = jnp.trace(found.y)
    excess = jnp.maximum(trace**2 / 4 - 1, 0)
    grows = excess > 0
    multiplier = jnp.where(grows, jnp.abs(trace) / 2 + jnp.sqrt(jnp.where(grows, excess, 1)), 1.0)
    determinant = found.y[0, 0] * found.y[1, 1] - found.y[0, 1] * found.y[1, 0]
    return Stability(trace, multiplier, determinant - 1, found.status)


def boundary(
    q: Any, *, lower: Any, upper: Any, trace: float, solver: Solver = Solver(rtol=1e-10, atol=1e-12)
) -> Boundary:
    """The a between `lower` and `upper` at which the monodromy matrix has this trace: 2 or -2."""
    found = find_root(
        lambda a, q: jnp.trace(monodromy(a, q, solver).y) - trace, None, q, bracket=(lower, upper), rtol=1e-9
    )
    return Boundary(found.value, found.status)


def first_tongue(q: Any, *, solver: Solver = Solver(rtol=1e-10, atol=1e-12)) -> Boundary:
    """b1(q), where the first tongue begins, for q from 0 to 2, 0 left out: there the tongue has no width.

    a = 1 lies in the tongue, and below -2q everything is unstable with a trace above 2.
    """
    return boundary(q, lower=-2 * q - 1, upper=jnp.ones_like(q), trace=-2.0, solver=solver)
