"""The velocity of a Brownian particle: an Ornstein-Uhlenbeck process.

    dv = -gamma v dt + sigma dW

v in m/s, the friction gamma in 1/s, sigma in m/s^(3/2). The noise is additive, so that Itô's and Stratonovich's calculus agree. From a
known v(0) the mean is v(0) exp(-gamma t), the variance sigma^2 (1 - exp(-2 gamma t)) / (2 gamma), and for s < t the covariance
of v(s) and v(t) is exp(-gamma (t - s)) times the variance at s.

Source: G. E. Uhlenbeck and L. S. Ornstein, Phys. Rev. 36, 823 (1930).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ops.sde import solve


class Velocity(NamedTuple):
    """Times t [s], the velocity at them, and the solver's status."""

    t: Float[Array, " time"]
    v: Float[Array, " time"]
    status: Any


def velocity(
    gamma: Any, sigma: Any, start: Any, *, key: Any, t1: float = 1.0, points: int = 6, step: float = 0.05
) -> Velocity:
    """The velocity at `points` equal times from 0 to `t1` [s], from the velocity `start`."""
    found = solve(
        lambda t, v, args: -args[0] * v,
        lambda t, v, args: args[1],
        start,
        (gamma, sigma),
        key=key,
        ts=np.linspace(0.0, t1, points),
        step=step,
    )
    return Velocity(found.t, found.y, found.status)
