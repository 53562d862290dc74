"""Uncertainty: moments and Sobol's indices by quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.legendre import leggauss

from ops.ode import solve
from ops.statistics import sobol_indices_of_grid
from tests.reference.answers import Answer


def uq_ishigami() -> Answer:
    """Gauss and Legendre's rule with 32 points along each of three inputs, uniform on (-pi, pi)."""
    points, weights = leggauss(32)
    x1, x2, x3 = np.meshgrid(*[np.pi * points] * 3, indexing="ij")
    found = sobol_indices_of_grid(np.sin(x1) + 7 * np.sin(x2) ** 2 + 0.1 * x3**4 * np.sin(x1), [weights] * 3)
    s1, s2, _ = map(float, found.first)
    st1, st2, st3 = map(float, found.total)
    parts = {"S1": s1, "S2": s2, "ST1": st1, "ST2": st2, "ST3": st3}
    return Answer({"mean": float(found.mean), "var": float(found.variance), **parts}, tolerance=1e-14)


def uq_decay_random_rate() -> Answer:
    """Gauss and Legendre's rule with 12 points over the rate, uniform on (0.5, 1.5); each point is a solve."""
    rtol = 1e-12
    points, weights = leggauss(12)
    ends = jax.jit(
        jax.vmap(lambda k: solve(lambda t, y, k: -k * y, 1.0, k, t1=2.0, solver="dopri8", rtol=rtol, atol=0.0))
    )
    found = ends(jnp.asarray(1 + points / 2))
    weights = weights / 2
    mean = float(weights @ found.y)
    variance = float(weights @ (found.y - mean) ** 2)
    return Answer({"mean": mean, "var": variance}, tolerance=rtol, steps=int(found.steps.sum()))
