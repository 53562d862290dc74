"""A nerve that fires, by FitzHugh and Nagumo: three parameters from noisy measurements of both states.

    v' = c (v - v^3 / 3 + r),    r' = -(v - a + b r) / c,    v(0) = -1, r(0) = 1

v is the voltage, r the recovery; all dimensionless. The measurements beside the config are of a = b = 0.2, c = 3, at 0, 0.5, ..., 20, with
normal noise of 0.25. The sum of squares has many minima: the phase of the spikes slips.

Source: J. O. Ramsay, G. Hooker, D. Campbell, J. Cao, Parameter estimation for differential equations: a generalized smoothing approach,
J. R. Stat. Soc. B 69, 741 (2007), section 1.1 (there with noise of 0.5).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Nerve(NamedTuple):
    """Voltage and recovery at each time, and the solver's status."""

    v: Float[Array, " time"]
    r: Float[Array, " time"]
    status: Any


def vector_field(t: Any, y: Any, args: Any) -> Any:
    """Rates of change."""
    (v, r), (a, b, c) = y, args
    return c * (v - v**3 / 3 + r), -(v - a + b * r) / c


def nerve(a: Any, b: Any, c: Any, times: Float[Array, " time"], *, solver: Solver = Solver()) -> Nerve:
    """Both states at each of ascending times, from (-1, 1) at 0."""
    found = solve(vector_field, (-1.0, 1.0), (a, b, c), ts=times, solver=solver)
    v, r = found.y
    return Nerve(v, r, found.status)
