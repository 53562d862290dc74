"""Gas oil that is cracked into gasoline and other products: rates from measurements.

    y1' = -(p1 + p3) y1^2,    y2' = p1 y1^2 - p2 y2,    y(0) = (1, 0)

y1 is gas oil and y2 gasoline, as parts of the feed; times and rates are dimensionless. The least sum of squares is 5.2366e-3.

Sources: I.-B. Tjoa, L. T. Biegler, Simultaneous solution and optimization strategies for parameter estimation of differential-algebraic
equation systems, Ind. Eng. Chem. Res. 30, 376 (1991); E. D. Dolan, J. J. More, T. S. Munson, COPS 3.0, ANL/MCS-TM-273 (2004).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Cracked(NamedTuple):
    """Gas oil and gasoline at each time, and the solver's status."""

    oil: Float[Array, " time"]
    gasoline: Float[Array, " time"]
    status: Any


def vector_field(t: Any, y: Any, p: Any) -> Any:
    """Rates of change."""
    (oil, gasoline), (p1, p2, p3) = y, p
    return -(p1 + p3) * oil**2, p1 * oil**2 - p2 * gasoline


def cracked(p1: Any, p2: Any, p3: Any, times: Float[Array, " time"], *, solver: Solver = Solver()) -> Cracked:
    """Both at each of ascending times."""
    found = solve(vector_field, (1.0, 0.0), (p1, p2, p3), ts=times, solver=solver)
    oil, gasoline = found.y
    return Cracked(oil, gasoline, found.status)
