"""`ops.shooting` and first zeros against closed forms and published values."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.gradient_check import check_gradients
from ops.ode import default_adjoint
from ops.shooting import shoot
from tests.project import REPOSITORY


def oscillator(t: Any, y: Any, a: Any) -> Any:
    return [y[1], -a * y[0]]


@pytest.mark.parametrize("mode", ["checkpointed", pytest.param("forward", marks=pytest.mark.slow)])
def test_a_linear_problem_and_its_derivative(mode: str) -> None:
    """y'' = -w**2 y, y(0) = 0, y(1/2) = 1: y = sin(w t) / sin(w / 2), y'(0) = w / sin(w / 2)."""

    def slope(w: Any) -> Any:
        found = shoot(oscillator, lambda a, b, args: [a[0], b[0] - 1], [0.0, 1.0], w * w, t1=0.5)
        return found.value[1], (found.status, found.y[-1, 1])

    derivative = (
        jax.value_and_grad
        if mode == "checkpointed"
        else lambda f, has_aux: lambda w: (f(w), jax.jacfwd(f, has_aux=has_aux)(w)[0])
    )
    with default_adjoint(mode):
        (value, (status, end)), by_w = jax.jit(derivative(slope, has_aux=True))(2.0)
    assert int(status) == 0
    np.testing.assert_allclose([value, end], [2 / math.sin(1), 2 / math.tan(1)], rtol=1e-9)
    np.testing.assert_allclose(by_w, 1 / math.sin(1) - math.cos(1) / math.sin(1) ** 2, rtol=1e-8)


@pytest.mark.slow
def test_both_solutions_of_bratus_problem_and_none() -> None:
    """y'' + a exp(y) = 0, y(0) = y(1) = 0: y = -2 log(cosh((t - 1/2) h / 2) / cosh(h / 4)), h = sqrt(2 a) cosh(h / 4).

    Two h for a < 3.5138, none beyond: that lane says so. The derivative of h by a is that of the same equation.
    """
    from scipy.optimize import brentq

    def slope(a: Any, guess: Any) -> Any:
        found = shoot(
            lambda t, y, a: [y[1], -a * jnp.exp(y[0])],
            lambda a, b, args: [a[0], b[0]],
            jnp.array([0.0, 1.0]) * guess,
            a,
            t1=1.0,
        )
        return found.value[1], found.status

    a, guess = jnp.array([1.0, 1.0, 3.6]), jnp.array([0.5, 10.0, 3.0])
    with default_adjoint("forward"):
        (value, status), by_a = jax.jit(jax.vmap(lambda a, g: (slope(a, g), jax.jacfwd(lambda a: slope(a, g)[0])(a))))(
            a, guess
        )
    assert status.tolist()[:2] == [0, 0] and int(status[2]) in (2, 4)
    for i, ends in enumerate([(1.0, 2.0), (10.0, 12.0)]):
        h = brentq(lambda h: h - math.sqrt(2) * math.cosh(h / 4), *ends, xtol=1e-14)
        np.testing.assert_allclose(value[i], h * math.tanh(h / 4), rtol=1e-8)
        of_h = h / 2 / (1 - math.sqrt(2) * math.sinh(h / 4) / 4)
        np.testing.assert_allclose(by_a[i], of_h * (math.tanh(h / 4) + h / 4 / math.cosh(h / 4) ** 2), rtol=1e-7)
    assert np.isnan(value[2])


def test_several_segments_where_one_trajectory_runs_away() -> None:
    """y'' = 400 (y + cos(pi t)**2) + 2 pi**2 cos(2 pi t), y(0) = y(1) = 0 (Stoer and Bulirsch, 7.3.3, example 5).

    y = (exp(20 (t - 1)) + exp(-20 t)) / (1 + exp(-20)) - cos(pi t)**2, a guess of 0 everywhere.
    """
    ts = jnp.array([0.0, 0.1, 0.3, 0.5, 0.95, 1.0])

    def field(t: Any, y: Any, args: Any) -> Any:
        return [y[1], 400 * (y[0] + jnp.cos(jnp.pi * t) ** 2) + 2 * jnp.pi**2 * jnp.cos(2 * jnp.pi * t)]

    with default_adjoint("none"):
        found = jax.jit(lambda: shoot(field, lambda a, b, args: [a[0], b[0]], [0.0, 0.0], t1=1.0, ts=ts, segments=8))()
    t = np.asarray(ts)
    exact = (np.exp(20 * (t - 1)) + np.exp(-20 * t)) / (1 + np.exp(-20)) - np.cos(np.pi * t) ** 2
    np.testing.assert_allclose(found.y[:, 0], exact, atol=1e-8)
    assert int(found.status) == 0 and found.residual < 1e-9


def test_an_eigenvalue_as_an_unknown_parameter() -> None:
    """-y'' = E y on (0, pi), normalized by y'(0) = 1: E = 1, 4, 9 by the guess; backwards in time too."""

    def level(guess: Any, t0: Any, t1: Any) -> Any:
        found = shoot(
            lambda t, y, args, energy: [y[1], -energy * y[0]],
            lambda a, b, args, energy: [a[0], b[0], a[1] - 1],
            lambda t: jnp.stack([jnp.sin(jnp.sqrt(guess) * t) / jnp.sqrt(guess), jnp.cos(jnp.sqrt(guess) * t)]),
            t0=t0,
            t1=t1,
            parameters=guess,
            segments=2,
        )
        return found.parameters

    guesses, starts = jnp.array([0.8, 4.3, 9.5, 4.3]), jnp.array([0.0, 0.0, 0.0, math.pi])
    with default_adjoint("none"):
        found = jax.jit(jax.vmap(level))(guesses, starts, math.pi - starts)
    np.testing.assert_allclose(found, [1, 4, 9, 4], rtol=1e-8)


def test_a_solve_that_fails_is_a_status() -> None:
    with default_adjoint("none"):
        found = jax.jit(
            lambda: shoot(lambda t, y, args: 1 + y * y, lambda a, b, args: b - 1, 0.0, t1=2.0, solver="tsit5")
        )()
    assert int(found.status) in (2, 3, 4)
    assert np.isnan(found.value) and np.isnan(found.y).all()


@pytest.fixture(scope="module")
def stars(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = tmp_path_factory.mktemp("stars") / "store.zarr"
    return engine.run(REPOSITORY / "conf" / "lane_emden.yaml", [f"store.path={store}"]).load()


def test_radius_of_polytropes(stars: Any) -> None:
    """sqrt(6) and pi for n = 0 and 1; the others, and the masses, as published (Boyd 2011, Horedt 1986)."""
    published = {
        0.0: math.sqrt(6),
        1.0: math.pi,
        1.5: 3.65375373621912608,
        2.0: 4.35287459594612468,
        2.5: 5.355275459010779,
        3.0: 6.89684861937696038,
        4.0: 14.9715463488380951,
    }
    np.testing.assert_allclose(stars.radius.sel(n=list(published)), list(published.values()), rtol=1e-9)
    np.testing.assert_allclose(stars.mass.sel(n=[0.0, 1.0]), [2 * math.sqrt(6), math.pi], rtol=2e-8)
    np.testing.assert_allclose(stars.mass.sel(n=[1.5, 2.0, 3.0]), [2.714055120, 2.411046012, 2.018235951], rtol=1e-8)
    np.testing.assert_allclose(stars.concentration.sel(n=[0.0, 1.0]), [1.0, math.pi**2 / 3], rtol=1e-8)


def test_radius_against_the_index(stars: Any) -> None:
    """dxi1/dn at n = 1 is -integral of sin(x)**2 log(sin(x) / x) from 0 to pi, by the variation of theta = sin(xi) / xi."""
    from scipy.integrate import quad

    exact, _ = quad(lambda x: -(math.sin(x) ** 2) * math.log(math.sin(x) / x), 1e-9, math.pi, epsabs=1e-11, limit=200)
    np.testing.assert_allclose(stars["dradius.n"].sel(n=1.0), exact, rtol=1e-7)
    assert (np.diff(stars["dradius.n"].values) > 0).all(), "the surface moves out ever faster"


def test_a_star_without_a_surface_fails(stars: Any) -> None:
    from pipelines.lane_emden import star

    found = jax.jit(lambda n: star(n, largest=10.0))(4.0)
    assert int(found.status) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lane_emden", "kuramoto"])
def test_finite_differences_confirm_the_gradients(name: str) -> None:
    axis = {"lane_emden": "n=[1.5,3.0]", "kuramoto": "coupling=[2.0,3.0]"}[name]
    plan = engine.load(REPOSITORY / "conf" / f"{name}.yaml", [f"sweep.axes.{axis}"])
    assert {row.verdict for row in check_gradients(plan)} == {"ok"}
