"""Van der Pol's oscillator: slow drifts and jumps that take a millionth of their time.

    x' = v,    v' = ((1 - x**2) v - x) / eps

from (x0, 0), in dimensionless variables with time in units of the slow scale. From x0 = 2 with eps = 1e-6, at t = 2:
x = 1.706167732170483, v = -0.8928097010247975. On the slow branch v = x / (1 - x**2) to O(eps), so that the first jump, at x = 1,
comes at (x0**2 - 1) / 2 - log(x0), and the path after it is the same but for that time: dx/dx0 = -v (x0 - 1 / x0). In a jump the
tangent of x is as large as 1 / eps, and small again after it: derivatives have some log10(1 / eps) digits less than the state.

Source: B. van der Pol, Phil. Mag. 2, 978 (1926); E. Hairer and G. Wanner, Solving ODEs II, Springer (1996), IV.10; values of the
Test Set for IVP Solvers (F. Mazzia and C. Magherini, Bari, 2008), problem VDPOL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class State(NamedTuple):
    """The variable and its rate."""

    x: Float[Array, " time"]
    v: Float[Array, " time"]


class Relaxation(NamedTuple):
    """Times, the state at them, and the solver's status and steps."""

    t: Float[Array, " time"]
    y: State
    steps: jax.Array
    status: Any


def vector_field(t: Any, y: State, args: Any) -> State:
    """The rate and its own."""
    return State(y.v, ((1 - y.x**2) * y.v - y.x) / args)


def relaxation(
    eps: Any, x0: Any = 2.0, *, t1: float = 2.0, points: int = 21, solver: Solver = Solver("kvaerno5")
) -> Relaxation:
    """The path at `points` equal times from 0 to `t1`, from rest at x0."""
    ts = jnp.linspace(0.0, t1, points)
    found = solve(vector_field, State(jnp.asarray(x0, float), jnp.zeros(())), eps, ts=ts, solver=solver)
    return Relaxation(ts, found.y, found.steps, found.status)


def last(y: State) -> jax.Array:
    """The variable at the last time."""
    return y.x[-1]
