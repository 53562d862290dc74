"""Chaotic systems, of which averages alone are comparable."""

from __future__ import annotations

import jax
import numpy as np

from ops.statistics import lyapunov_flow
from pipelines.lorenz import State, vector_field
from tests.reference.answers import Answer

STARTS = 64


def chaos_lorenz_lyapunov() -> Answer:
    """The average over independent starts, and its standard error from their spread."""

    def largest(key: jax.Array) -> jax.Array:
        start = State(*(1.0 + jax.random.normal(key, (3,))))
        times = {"t1": 300.0, "transient": 20.0, "interval": 0.5}
        return lyapunov_flow(vector_field, start, (10.0, 28.0, 8 / 3), **times, solver="dopri5", step=0.01).exponents[0]

    found = np.asarray(jax.jit(jax.vmap(largest))(jax.random.split(jax.random.key(0), STARTS)))
    return Answer({"lle": found.mean()}, errors={"lle": found.std(ddof=1) / np.sqrt(STARTS)})
