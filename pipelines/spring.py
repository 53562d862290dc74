"""A helical spring of least mass that bears its load.

Of wire of diameter d [in], in coils of diameter D [in], N of them active. Its mass is in proportion to (N + 2) D d^2; the constraints on
deflection, shear stress, surge frequency and outer diameter are each written so that the spring is sound where they are at most 0.
The least mass is 0.0126652328, at d = 0.0516891, D = 0.3567177, N = 11.288966; deflection and stress are active.

Source: J. S. Arora, Introduction to Optimum Design, 3rd ed. (2012), section 2.9; A. D. Belegundu, A study of mathematical programming
methods for structural optimization, University of Iowa (1982).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Spring(NamedTuple):
    """The mass (in units of the density, in^3, without pi^2 / 4), and four constraints that hold where they are at most 0."""

    mass: Any
    deflection: Any
    stress: Any
    surge: Any
    size: Any


def spring(wire: Any, coil: Any, turns: Any) -> Spring:
    """A spring by its three dimensions."""
    d, D, N = wire, coil, turns
    return Spring(
        mass=(N + 2) * D * d**2,
        deflection=1 - D**3 * N / (71785 * d**4),
        stress=(4 * D**2 - d * D) / (12566 * (D * d**3 - d**4)) + 1 / (5108 * d**2) - 1,
        surge=1 - 140.45 * d / (D**2 * N),
        size=(D + d) / 1.5 - 1,
    )
