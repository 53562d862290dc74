"""A stirred tank with decay, fed by a pulse.

    c' = -rate c + feed(t),    c(0) = 0,    feed: `height` from `start` for the time `width`, else 0

c is a concentration [g/L], t a time [h], rate in 1/h, feed in g/(L h). Once the pulse is over, at s = start + width,

    c(T)          = (height / rate) (exp(-rate (T - s)) - exp(-rate (T - start)))
    dc(T)/dstart  = rate c(T)
    dc(T)/dwidth  = height exp(-rate (T - s))
    dc(T)/dheight = c(T) / height

The first says that a later pulse leaves more behind. The solver's steps end at the start and the end of the pulse, which the forcing
tells it; else one that is short against the steps would go unseen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.forcing import Forcing
from ops.ode import Solver, solve


class Tank(NamedTuple):
    """Times t [h], the concentration at them, that at the last one [g/L], and the solver's status."""

    t: Float[Array, " time"]
    c: Float[Array, " time"]
    left: Any
    status: Any


def vector_field(t: Any, c: Any, args: Any) -> Any:
    """Decay and feed."""
    rate, feed = args
    return -rate * c + feed(t)


def tank(rate: Any, feed: Forcing, *, t1: float = 60.0, points: int = 121, solver: Solver = Solver()) -> Tank:
    """The concentration at `points` equal times from 0 to `t1` [h]."""
    ts = jnp.linspace(0.0, t1, points)
    solution = solve(vector_field, 0.0, (rate, feed), ts=ts, solver=solver)
    return Tank(ts, solution.y, solution.y[-1], solution.status)
