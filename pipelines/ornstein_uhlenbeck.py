"""The velocity of a Brownian particle: an Ornstein-Uhlenbeck process.

    dv = -gamma v dt + sigma dW

v in m/s, the friction gamma in 1/s, sigma in m/s^(3/2). The noise is additive, so that Itô's and Stratonovich's calculus agree. From a
known v(0) the mean is v(0) exp(-gamma t), the variance sigma^2 (1 - exp(-2 gamma t)) / (2 gamma), and for s < t the covariance
of v(s) and v(t) is exp(-gamma (t - s)) times the variance at s. In the long run the variance is sigma^2 / (2 gamma), the noise's part
of each path is proportional to sigma, and the autocovariance falls as exp(-gamma (t - s)).

For v(0) = 2, gamma = 1.5 and sigma = 0.6 the mean at 1 s is 0.44626032, the variance 0.11402555, the covariance of v(0.4) and v(1)
0.03409359, and the variance in the long run 0.12.

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
    gamma: Any,
    sigma: Any,
    start: Any,
    *,
    key: Any,
    t1: float = 3.0,
    points: int = 16,
    step: float = 0.1,
    method: str = "auto",
) -> Velocity:
    """The velocity at `points` equal times from 0 to `t1` [s], from the velocity `start`, with steps of `step` [s]."""
    found = solve(
        lambda t, v, args: -args[0] * v,
        lambda t, v, args: args[1],
        start,
        (gamma, sigma),
        key=key,
        ts=np.linspace(0.0, t1, points),
        step=step,
        method=method,
    )
    return Velocity(found.t, found.y, found.status)
