"""The van der Pol oscillator brought to rest, with a control that costs something and is limited.

    x1' = (1 - x2^2) x1 - x2 + u,    x2' = x1,    x(0) = (0, 1),    minimize e^2 times the integral of x1^2 + x2^2 + u^2 over (0, 20)

with u = min(w(t) - 2 x1, 0.75), w in straight lines between knots; all dimensionless. What is searched for is w, not u: without the
feedback the state of rest is unstable, so that a change of u at the start grows by e^10 up to the end, and from most starts the search
ends at a control that follows the limit cycle. The least cost is 23.45965, and a little more with few knots.

Source: the test VDP_Opt2 of JModelica.org (23.463724).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.forcing import piecewise_linear
from ops.ode import Solver, solve


class Path(NamedTuple):
    """What the control costs, the state at the end, and the solver's status."""

    cost: Any
    x1: Any
    x2: Any
    status: Any


def vector_field(t: Any, y: Any, correction: Any) -> Any:
    """Rates of change of the states and of the cost."""
    x1, x2, _ = y
    u = jnp.minimum(correction(t) - 2 * x1, 0.75)
    return (1 - x2**2) * x1 - x2 + u, x1, jnp.exp(2.0) * (x1**2 + x2**2 + u**2)


def idle(n: int) -> Float[Array, " knot"]:
    """The feedback alone: a start."""
    return jnp.zeros(n)


def path(w: Float[Array, " knot"], *, t1: float = 20.0, solver: Solver = Solver()) -> Path:
    """The oscillator under its feedback, corrected by `w` at equal times from 0 to `t1`."""
    correction = piecewise_linear(np.linspace(0.0, t1, len(w)), w)
    found = solve(vector_field, (0.0, 1.0, 0.0), correction, t1=t1, solver=solver)
    x1, x2, cost = found.y
    return Path(cost, x1, x2, found.status)
