"""Every method of `ops.ode` against closed forms: orders, parts of a vector field, times, guards, what is kept of the steps."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.ode import METHODS, Separable, Solver, Split, default_adjoint, solve


def velocity(t: Any, p: Any, args: Any) -> Any:
    """Of a pendulum seen from a point that moves as -3 sin 2 t."""
    return p + 6 * jnp.cos(2 * t)


def force(t: Any, q: Any, args: Any) -> Any:
    """On it."""
    return -jnp.sin(q - 3 * jnp.sin(2 * t))


def separatrix(t: float) -> tuple[float, float]:
    """With just the energy that reaches the top: q = 4 atan tanh(t / 2) + 3 sin 2 t, p = 2 / cosh t."""
    return 4 * math.atan(math.tanh(t / 2)) + 3 * math.sin(2 * t), 2 / math.cosh(t)


PENDULUM = Separable(velocity, force)
SUM = Split(lambda t, y, args: (velocity(t, y[1], args), 0 * y[1]), lambda t, y, args: (0 * y[0], force(t, y[0], args)))


@pytest.mark.parametrize("method", METHODS)
def test_order_of_fixed_steps(method: str) -> None:
    order = METHODS[method].order
    coarse = 2.5 / {1: 256, 2: 128, 3: 64, 4: 48, 5: 96, 8: 14}[order]
    field = SUM if method.startswith(("ken", "sil")) else PENDULUM

    @jax.jit
    def final(h: Any) -> Any:
        return solve(field, separatrix(-1.5), t0=-1.5, t1=1.0, solver=method, step=h, rtol=1e-12, atol=1e-13)

    found = [final(h) for h in (coarse, coarse / 2)]
    assert [int(f.status) for f in found] == [0, 0]
    errors = [np.linalg.norm(np.array(f.y) - separatrix(1.0)) for f in found]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2), errors
