"""Two disciplines that need each other's results, and a design by both.

    y1 = z1^2 + z2 + x - 0.2 y2,    y2 = sqrt(y1) + z1 + z2
    minimize x^2 + z2 + y1 + exp(-y2)  with  y1 >= 3.16, y2 <= 24, -10 <= z1 <= 10, 0 <= z2, x <= 10

At the optimum x = z2 = 0 and y1 = 3.16, so that z1^2 - 0.2 z1 = 3.16 + 0.2 sqrt(3.16): z1 = 1.977638883, objective 3.183393952.

Source: R. S. Sellar, S. M. Batill, J. E. Renaud, Response surface based, concurrent subspace optimization for multidisciplinary system
design, AIAA 96-0714 (1996).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from ops.roots import find_root


class Coupled(NamedTuple):
    """Both disciplines' results, and the status of the search for them."""

    y1: Any
    y2: Any
    status: Any


def disciplines(z1: Any, z2: Any, x: Any) -> Coupled:
    """The results on which the two agree, by Newton's method in sqrt(y1) and y2."""

    def disagreement(found: Any, args: Any) -> Any:
        root, y2 = found
        z1, z2, x = args
        return root**2 - (z1**2 + z2 + x - 0.2 * y2), y2 - (root + z1 + z2)

    agreed = find_root(disagreement, (1.0, 1.0), (z1, z2, x))
    root, y2 = agreed.value
    return Coupled(root**2, y2, agreed.status)


def cost(x: Any, z2: Any, y1: Any, y2: Any) -> Any:
    """What is to be small."""
    return x**2 + z2 + y1 + jnp.exp(-y2)
