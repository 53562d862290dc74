"""How to mix two catalysts along a reactor.

    x1' = u (10 x2 - x1),    x2' = u (x1 - 10 x2) - (1 - u) x2,    x(0) = (1, 0),    0 <= u <= 1

u is the part of the first catalyst, held over each of equal pieces of the reactor, x1 and x2 are parts of two substances, of which
1 - x1 - x2 has become the product at the end. At the best u, which is 1, then singular, then 0, the yield is 0.0480557.

Sources: R. Jackson, Optimization of chemical reactors with respect to flow configuration, J. Optim. Theory Appl. 2, 240 (1968);
E. D. Dolan, J. J. More, T. S. Munson, COPS 3.0, ANL/MCS-TM-273 (2004): -4.80556e-2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.forcing import piecewise_constant
from ops.ode import Solver, solve


class Reactor(NamedTuple):
    """The product at the end, and the solver's status."""

    product: Any
    status: Any


def vector_field(t: Any, x: Any, part: Any) -> Any:
    """Rates of change along the reactor."""
    u, (x1, x2) = part(t), x
    return u * (10 * x2 - x1), u * (x1 - 10 * x2) - (1 - u) * x2


def mixed(n: int, part: float) -> Float[Array, " piece"]:
    """The same part in each of n pieces: a start."""
    return jnp.full(n, part)


def reactor(u: Float[Array, " piece"], *, solver: Solver = Solver()) -> Reactor:
    """The yield of a reactor with the catalysts of `u`."""
    part = piecewise_constant(np.linspace(0.0, 1.0, len(u) + 1), u)
    found = solve(vector_field, (1.0, 0.0), part, t1=1.0, solver=solver)
    x1, x2 = found.y
    return Reactor(1 - x1 - x2, found.status)
