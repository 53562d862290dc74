"""The Oregonator: the oscillating reaction of Belousov and Zhabotinskii, reduced to three species.

    y1' = s (y2 + y1 (1 - q y1 - y2)),    y2' = (y3 - (1 + y1) y2) / s,    y3' = w (y1 - y3)

y1 is bromous acid, y2 bromide, y3 the oxidized catalyst (cerium), all dimensionless; s = 77.27, q = 8.375e-6, w = 0.161; from
(1, 2, 3). At t = 360: y = (1.000814870318523, 1228.178521549917, 132.0554942846706).

Source: R. J. Field and R. M. Noyes, J. Chem. Phys. 60, 1877 (1974); values of the Test Set for IVP Solvers (F. Mazzia and
C. Magherini, Bari, 2008), problem OREGO.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Species(NamedTuple):
    """Bromous acid, bromide and the oxidized catalyst."""

    acid: Float[Array, " time"]
    bromide: Float[Array, " time"]
    catalyst: Float[Array, " time"]


class Reaction(NamedTuple):
    """Times, the species at them, and the solver's status and steps."""

    t: Float[Array, " time"]
    y: Species
    steps: jax.Array
    status: Any


def vector_field(t: Any, y: Species, args: Any) -> Species:
    """The rates of Field and Noyes."""
    s, q, w = args
    return Species(
        s * (y.bromide + y.acid * (1 - q * y.acid - y.bromide)),
        (y.catalyst - (1 + y.acid) * y.bromide) / s,
        w * (y.acid - y.catalyst),
    )


def reaction(
    s: Any, q: Any, w: Any, *, t1: float = 360.0, points: int = 181, solver: Solver = Solver("kvaerno5")
) -> Reaction:
    """The species at `points` equal times from 0 to `t1`."""
    ts = jnp.linspace(0.0, t1, points)
    start = Species(jnp.array(1.0), jnp.array(2.0), jnp.array(3.0))
    found = solve(vector_field, start, (s, q, w), ts=ts, solver=solver)
    return Reaction(ts, found.y, found.steps, found.status)


def final(y: Species) -> Species:
    """The species at the last time."""
    return Species(y.acid[-1], y.bromide[-1], y.catalyst[-1])
