"""The volume that a monolayer takes up under pressure, fitted to measurements.

    dy/dx = b2 (b1 - y),    y(0) = 0,    hence y = b1 (1 - exp(-b2 x))

x is the pressure, y the volume, b1 the volume at saturation, b2 a rate per pressure. Certified: b1 = 238.94212918, b2 = 5.5015643181e-4,
with the standard deviations 2.7070075241 and 7.2668688436e-6; the sum of squares is 0.12455138894.

Source: NIST Statistical Reference Datasets, Misra1a (D. Misra, dental research in monomolecular adsorption, 1978).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Uptake(NamedTuple):
    """The volume at each pressure, and the solver's status."""

    volume: Float[Array, " point"]
    status: Any


def uptake(b1: Any, b2: Any, pressure: Float[Array, " point"], *, solver: Solver = Solver()) -> Uptake:
    """The volume at each of ascending pressures."""
    found = solve(lambda x, y, args: args[1] * (args[0] - y), 0.0, (b1, b2), ts=pressure, solver=solver)
    return Uptake(found.y, found.status)
