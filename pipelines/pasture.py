"""The growth of a pasture, fitted to its yield: the logistic equation with an unknown start.

    dy/dx = b3 y (1 - y / b1),    y(0) = b1 / (1 + exp(b2)),    hence y = b1 / (1 + exp(b2 - b3 x))

x is the time [d] and y the yield. Certified: b1 = 72.462237576, b2 = 2.6180768402, b3 = 0.067359200066, with the standard deviations
1.7340283401, 0.088295217536 and 0.0034465663377; the sum of squares is 8.0565229338.

Source: NIST Statistical Reference Datasets, Rat42 (D. A. Ratkowsky, Nonlinear Regression Modeling, 1983, p. 88).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Growth(NamedTuple):
    """The yield at each time, and the solver's status."""

    harvest: Float[Array, " point"]
    status: Any


def growth(b1: Any, b2: Any, b3: Any, day: Float[Array, " point"], *, solver: Solver = Solver()) -> Growth:
    """The yield at each of ascending times."""
    start = b1 / (1 + jnp.exp(b2))
    found = solve(lambda x, y, args: args[1] * y * (1 - y / args[0]), start, (b1, b3), ts=day, solver=solver)
    return Growth(found.y, found.status)
