"""A cantilever of five square tubes, of least weight under a limit on the deflection of its tip.

    weight = 0.0624 sum h_i,    deflection = sum c_i / h_i^3 <= 1,    c = (61, 37, 19, 7, 1)

h_i is the height of the square section of tube i; the walls are of one thickness. All quantities are dimensionless. By Lagrange's
multiplier h_i = c_i^(1/4) S^(1/3) with S = sum c_i^(1/4), and the weight is 0.0624 S^(4/3) = 1.3399564.

Source: K. Svanberg, The method of moving asymptotes, Int. J. Numer. Methods Eng. 24, 359 (1987), problem 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

COMPLIANCES = np.array([61.0, 37.0, 19.0, 7.0, 1.0])
"""Of the tubes from the wall to the tip, by the lever of the load."""


class Beam(NamedTuple):
    """Weight, and deflection of the tip as a part of what is allowed."""

    weight: Any
    deflection: Any


def beam(heights: Float[Array, " tube"]) -> Beam:
    """A beam by the heights of its tubes."""
    return Beam(0.0624 * jnp.sum(heights), jnp.sum(COMPLIANCES / heights**3))
