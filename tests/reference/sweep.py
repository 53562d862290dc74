"""Sweeps of one parameter: a closed form, a root, or a threshold at each value."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.ode import Solver, default_adjoint
from ops.roots import find_root
from pipelines import kuramoto, mathieu, pendulum
from tests.reference.answers import Answer


def sweep_pendulum_period() -> Answer:
    """The quarter period as an event, up to a degree from the top."""
    rtol = 1e-12
    solver = Solver("dopri8", rtol=rtol, atol=1e-14)
    degrees = [10, 45, 90, 135, 170, 179]
    with default_adjoint("none"):
        found = jax.jit(jax.vmap(lambda a: pendulum.period(a, 1.0, 1.0, longest=10.0, solver=solver)))(
            jnp.deg2rad(jnp.array(degrees, float))
        )
    return Answer({f"r{d}": float(p) / (2 * np.pi) for d, p in zip(degrees, found.period, strict=True)}, rtol)


def sweep_mathieu_boundaries() -> Answer:
    """Each between two a of which one is stable and the other is not, or between two kinds of unstable ones."""
    rtol = 1e-12
    solver = Solver("dopri8", rtol=rtol, atol=1e-14)
    cases = {
        "b1_1": (1.0, -1.0, 0.5, -2.0),
        "b2_1": (1.0, 3.0, 4.1, 2.0),
        "a0_5": (5.0, -6.5, -5.0, 2.0),
        "b1_5": (5.0, -6.5, -5.0, -2.0),
        "a1_5": (5.0, 0.0, 2.0, -2.0),
        "a2_5": (5.0, 4.0, 8.0, 2.0),
    }

    def find(q: Any, lower: Any, upper: Any, trace: Any) -> Any:
        return mathieu.boundary(q, lower=lower, upper=upper, trace=trace, solver=solver).a

    with default_adjoint("none"):
        found = jax.jit(jax.vmap(find))(*jnp.array(list(cases.values())).T)
    return Answer({name: float(a) for name, a in zip(cases, found, strict=True)}, rtol)


def sweep_logistic_feigenbaum() -> Answer:
    """Superstable cycles: 1/2 comes back after 2**k steps. Each guess goes on from the last two by Feigenbaum's constant."""

    def superstable(k: int, guess: float) -> float:
        def comes_back(r: Any, args: Any) -> Any:
            return jax.lax.fori_loop(0, 2**k, lambda _, x: r * x * (1 - x), 0.5) - 0.5

        return float(find_root(comes_back, guess, rtol=1e-14, atol=1e-14).value)

    r = [2.0, 1 + 5**0.5]
    for k in range(2, 10):
        r.append(superstable(k, r[-1] + (r[-1] - r[-2]) / 4.7))
    r[1] = superstable(1, 3.2)
    gaps = np.diff(r)
    ratios = gaps[:-1] / gaps[1:]
    # Their error falls by the constant itself from one to the next, and a part of it by -0.12: one known rate, one unknown.
    rate = 1 / ratios[-1]
    delta = aitken((ratios[1:] - rate * ratios[:-1]) / (1 - rate))
    values = {f"r{2**k}": r[k] for k in range(1, 7)}
    return Answer(values | {"delta": delta, "r_inf": float(r[-1] + gaps[-1] / (delta - 1))})


def aitken(sequence: Any) -> float:
    """The limit of a sequence that converges geometrically, from its last three terms."""
    a, b, c = sequence[-3:]
    return float(c - (c - b) ** 2 / (c - 2 * b + a))


def sweep_kuramoto_lorentzian() -> Answer:
    """The order of 2000 oscillators."""
    couplings = jnp.array([1.5, 2.0, 3.0])
    with default_adjoint("none"):
        found = jax.jit(jax.vmap(lambda k: kuramoto.order(k, 0.5, number=2000)))(couplings)
    return Answer(dict(zip(["r_1p5", "r_2", "r_3"], map(float, found.r), strict=True)), steps=int(found.steps.sum()))
