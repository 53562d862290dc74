"""The reference problem of derivatives through events: to be merged into `gradient.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ops.adjoints import default_adjoint
from ops.ode import Solver
from pipelines.bouncing_ball import bounces
from tests.reference.answers import Answer

RTOL = 1e-10


def grad_bouncing_ball_events() -> Answer:
    """Impact times of a bouncing ball, with their derivatives by restitution and gravity."""

    def found(p: Any) -> Any:
        ball = bounces(10.0, p[0], p[1], count=5, longest=20.0, solver=Solver(rtol=RTOL, atol=1e-12))
        return jnp.stack([ball.time[0], ball.last, ball.rest]), ball.steps

    with default_adjoint("forward"):
        p = jnp.array([9.81, 0.9])
        (values, steps), slopes = jax.jit(lambda p: (found(p), jax.jacfwd(lambda p: found(p)[0])(p)))(p)
    return Answer(
        {
            "t1": float(values[0]),
            "t5": float(values[1]),
            "dt5_de": float(slopes[1, 1]),
            "dt1_dg": float(slopes[0, 0]),
            "t_inf": float(values[2]),
        },
        RTOL,
        int(steps),
    )
