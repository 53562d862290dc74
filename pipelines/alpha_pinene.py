"""Alpha-pinene that is heated turns into four other substances: rates from measurements.

    y1' = -(p1 + p2) y1,    y2' = p1 y1,    y3' = p2 y1 - (p3 + p4) y3 + p5 y5,    y4' = p3 y3,    y5' = p4 y3 - p5 y5

y in per cent: alpha-pinene, dipentene, allo-ocimene, pyronene, a dimer; times in minutes, rates per minute. At the least sum of squares,
19.8721669, p = (5.92585, 2.96340, 2.04728, 27.4468, 3.99795) 1e-5.

Sources: G. E. P. Box, W. G. Hunter, J. F. MacGregor, J. Erjavec, Some problems associated with the analysis of multiresponse data,
Technometrics 15, 33 (1973); E. D. Dolan, J. J. More, T. S. Munson, Benchmarking optimization software with COPS 3.0, ANL/MCS-TM-273 (2004).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Mixture(NamedTuple):
    """The five substances at each time [%], and the solver's status."""

    y: Float[Array, "time substance"]
    status: Any


def vector_field(t: Any, y: Any, p: Any) -> Any:
    """Rates of change [%/min]."""
    p1, p2, p3, p4, p5 = p
    y1, _, y3, _, y5 = y
    return jnp.stack([-(p1 + p2) * y1, p1 * y1, p2 * y1 - (p3 + p4) * y3 + p5 * y5, p3 * y3, p4 * y3 - p5 * y5])


def mixture(
    p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, times: Float[Array, " time"], *, solver: Solver = Solver()
) -> Mixture:
    """The mixture at each of ascending times [min], from pure alpha-pinene."""
    found = solve(vector_field, [100.0, 0.0, 0.0, 0.0, 0.0], (p1, p2, p3, p4, p5), ts=times, solver=solver)
    return Mixture(found.y, found.status)
