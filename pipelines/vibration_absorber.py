"""A mass on a spring, shaken by noise, with a second mass hung on it to absorb the vibration.

    x1'' = -k x1 - c (x1' - x2') - mu f^2 (x1 - x2) + w,    mu x2'' = c (x1' - x2') + mu f^2 (x1 - x2),    c = 2 mu f zeta

mu is the absorber's mass and f its frequency, both by those of the main mass at k = 1, zeta its damping ratio, w white noise of unit
intensity; all dimensionless. The variance of x1 follows from Lyapunov's equation A P + P A^T + B B^T = 0. At k = 1 it is least for

    f = sqrt(1 + mu / 2) / (1 + mu),    zeta^2 = mu (1 + 3 mu / 4) / (4 (1 + mu) (1 + mu / 2)).

Source: G. B. Warburton, Optimum absorber parameters for various combinations of response and excitation parameters, Earthq. Eng. Struct.
Dyn. 10, 381 (1982); S. H. Crandall, W. D. Mark, Random Vibration in Mechanical Systems (1963).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def variance(stiffness: Any, mu: Any, tuning: Any, damping: Any) -> jax.Array:
    """The variance of the main mass's displacement, where both are at rest on average."""
    k, c, spring = stiffness, 2 * mu * tuning * damping, mu * tuning**2
    rates = [
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [-(k + spring), spring, -c, c],
        [spring / mu, -spring / mu, c / mu, -c / mu],
    ]
    a = jnp.stack([jnp.stack([jnp.asarray(entry, float) for entry in row]) for row in rates])
    shaken = jnp.zeros((4, 4)).at[2, 2].set(1.0)
    one = jnp.eye(4)
    covariance: jax.Array = jnp.linalg.solve(jnp.kron(a, one) + jnp.kron(one, a), -shaken.ravel())
    return covariance[0]
