"""Robertson's reaction: a stiff autocatalytic reaction with rates of very different size.

    A -> B (k1),    B + B -> B + C (k2),    B + C -> A + C (k3)

    a' = -k1 a + k3 b c,    b' = k1 a - k3 b c - k2 b**2,    c' = k2 b**2

Concentrations are dimensionless, rates per second. a + b + c is conserved.

Source: H. H. Robertson, in J. Walsh (ed.), Numerical Analysis: An Introduction, Academic Press (1966), 178; values and
sensitivities at t = 40 as in the SUNDIALS example cvsRoberts_FSA_dns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.ode import Solver, solve


class Concentrations(NamedTuple):
    """Of the three species."""

    a: jax.Array
    b: jax.Array
    c: jax.Array


class Reaction(NamedTuple):
    """The concentrations at the end, how far their sum is from 1, and the solver's status and steps."""

    y: Concentrations
    imbalance: jax.Array
    steps: jax.Array
    status: Any


def vector_field(t: Any, y: Concentrations, args: Any) -> Concentrations:
    """Robertson's rates."""
    k1, k2, k3 = args
    # Of two large terms that cancel: rounded once, so that the sum of the rates stays zero over eleven decades of time.
    net, pair = k1 * y.a - k3 * y.b * y.c, k2 * y.b**2
    return Concentrations(-net, net - pair, pair)


def reaction(k1: Any, k2: Any, k3: Any, *, t1: float = 40.0, solver: Solver = Solver("kvaerno5")) -> Reaction:
    """The concentrations at `t1` [s] from pure A."""
    start = Concentrations(jnp.ones(()), jnp.zeros(()), jnp.zeros(()))
    solution = solve(vector_field, start, (k1, k2, k3), t1=t1, solver=solver)
    y = solution.y
    return Reaction(y, y.a + y.b + y.c - 1, solution.steps, solution.status)
