"""Boundary value problems: conditions at two ends, one of them infinite or singular."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.ode import Solver, default_adjoint
from ops.shooting import shoot
from pipelines import lane_emden
from tests.reference.answers import Answer


def bvp_thomas_fermi() -> Answer:
    """In t = sqrt(x), y' = 2 t z and z' = 2 y**1.5 are regular at 0.

    At the other end the condition is Majorana's: of the solutions only the one that decays has u = -(16/3)**(1/3) y**(-4/3) dy/dx as a
    power series in 1 - (x**3 y / 144)**(1/6).
    """
    series = jnp.asarray(majorana_series(24))

    def slope(t: Any, y: Any, args: Any) -> Any:
        return [2 * t * y[1], 2 * y[0] ** 1.5]

    def decays(x: Any, y: Any) -> Any:
        u = -((16 / 3) ** (1 / 3)) * y[0] ** (-4 / 3) * y[1]
        return u - jnp.polyval(series[::-1], 1 - (x**3 * y[0] / 144) ** (1 / 6))

    def sommerfeld(t: Any) -> Any:
        size = 144 ** (1 / 3) + t * t
        return jnp.stack([144 / size**3, -432 / size**4])

    end, rtol = 4.0, 1e-11
    solver = Solver("dopri8", rtol=rtol, atol=1e-14)
    with default_adjoint("none"):
        found = jax.jit(
            lambda: shoot(
                slope, lambda a, b, args: [a[0] - 1, decays(end**2, b)], sommerfeld, t1=end, segments=4, solver=solver
            )
        )()
    return Answer({"s": float(found.value[1])}, rtol)


def majorana_series(terms: int) -> np.ndarray:
    """Coefficients of u in s = 1 - t, where du/dt (1 - t**2 u) = 8 (t u**2 - 1) and u = 1 at t = 1."""
    u = np.zeros(terms)
    u[:2] = 1, 9 - np.sqrt(73)
    t = np.zeros(terms)
    t[:2] = 1, -1

    def times(*factors: Any) -> Any:
        product = factors[0]
        for factor in factors[1:]:
            product = np.convolve(product, factor)[:terms]
        return product

    def left_over(u: Any) -> Any:
        one = np.eye(terms)[0]
        rate = -np.append(u[1:] * np.arange(1, terms), 0)
        return times(rate, one - times(t, t, u)) - 8 * (times(t, u, u) - one)

    for k in range(2, terms):
        at_zero = left_over(u)[k]
        at_one = left_over(u + np.eye(terms)[k])[k]
        u[k] = at_zero / (at_zero - at_one)
    return u


def bvp_lane_emden() -> Answer:
    """The surface as an event."""
    rtol = 1e-12
    solver = Solver("dopri8", rtol=rtol, atol=1e-14)
    names = ["1p5", "2", "2p5", "3", "4"]
    with default_adjoint("none"):
        found = jax.jit(jax.vmap(lambda n: lane_emden.star(n, solver=solver)))(jnp.array([1.5, 2.0, 2.5, 3.0, 4.0]))
    values = {f"xi_{name}": float(found.radius[i]) for i, name in enumerate(names)}
    values |= {f"m_{name}": float(found.mass[i]) for i, name in enumerate(names) if name in ("1p5", "2", "3")}
    return Answer(values, rtol, int(found.steps.sum()))


def bvp_quartic_oscillator() -> Answer:
    """Even and odd functions on half the line; beyond x = 5 they are below exp(-40). Guesses are the harmonic oscillator's."""
    rtol = 1e-12
    solver = Solver("dopri8", rtol=rtol, atol=1e-15)

    def slope(x: Any, y: Any, args: Any, energy: Any) -> Any:
        return [y[1], (x**4 - energy) * y[0]]

    def level(number: Any) -> Any:
        odd = number % 2 == 1

        def ends(a: Any, b: Any, args: Any, energy: Any) -> Any:
            return [jnp.where(odd, a[0], a[1]), jnp.where(odd, a[1], a[0]) - 1, b[0]]

        def shape(x: Any) -> Any:
            return jnp.select([number == 0, number == 1], [1.0, x], 1 - 2 * x * x) * jnp.exp(-x * x / 2)

        def guess(x: Any) -> Any:
            return jnp.stack([shape(x), jax.grad(shape)(x)])

        semiclassical = 2.18507 * (number + 0.5) ** (4 / 3)
        return shoot(
            slope, ends, guess, t1=5.0, parameters=semiclassical, segments=5, solver=solver, rtol=1e-10, atol=1e-10
        ).parameters

    with default_adjoint("none"):
        levels = jax.jit(jax.vmap(level))(jnp.arange(3))
    return Answer({f"E{n}": float(energy) for n, energy in enumerate(levels)}, rtol)
