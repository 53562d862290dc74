"""What worked designs rest on: closed forms of their models, and optima by other means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from pipelines import cantilever, heat_sink, sellar, spring, vibration_absorber
from tests.project import REPOSITORY


def run(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


def test_variance_of_a_mass_without_damping_of_its_own() -> None:
    """At k = 1 it is least at Warburton's tuning and damping: no slope, and curved upwards."""
    mu = 0.05
    f, zeta = np.sqrt(1 + mu / 2) / (1 + mu), np.sqrt(mu * (1 + 0.75 * mu) / (4 * (1 + mu) * (1 + mu / 2)))
    by_design = lambda x: vibration_absorber.variance(1.0, mu, x[0], x[1])  # noqa: E731
    slope = jax.grad(by_design)(jnp.array([f, zeta]))
    np.testing.assert_allclose(slope, 0.0, atol=1e-10)
    assert (np.linalg.eigvalsh(jax.hessian(by_design)(jnp.array([f, zeta]))) > 0).all()


def test_variance_is_the_integral_of_the_spectrum() -> None:
    """White noise of unit intensity: the variance is the integral of |H|^2 over all frequencies, by 2 pi."""
    from scipy.integrate import quad

    k, mu, f, zeta = 0.9, 0.05, 0.97, 0.1
    c, spring_ = 2 * mu * f * zeta, mu * f**2

    def response(w: float) -> float:
        link = spring_ + 1j * w * c
        return abs(1 / (k - w**2 + link - link**2 / (link - mu * w**2))) ** 2

    expected = (quad(response, 0, 3, limit=500)[0] + quad(response, 3, np.inf)[0]) / np.pi
    np.testing.assert_allclose(vibration_absorber.variance(k, mu, f, zeta), expected, rtol=1e-8)


def test_the_robust_absorber_by_scipy(tmp_path: Path) -> None:
    """The mean over the sweep by Nelder and Mead's method, which needs no derivative."""
    from scipy.optimize import minimize

    stiffness = jnp.linspace(0.8, 1.2, 41)
    mean = jax.jit(lambda x: jnp.mean(jax.vmap(lambda k: vibration_absorber.variance(k, 0.05, x[0], x[1]))(stiffness)))
    other = minimize(mean, [1.0, 0.1], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    found = run(tmp_path, "vibration_absorber")
    np.testing.assert_allclose(float(found.objective), other.fun, rtol=1e-9)
    np.testing.assert_allclose([found["variables.tuning"], found["variables.damping"]], other.x, rtol=1e-4)


def test_sellar_on_its_active_constraint() -> None:
    """x = z2 = 0 and y1 = 3.16: z1^2 - 0.2 z1 = 3.16 + 0.2 sqrt(3.16)."""
    z1 = 0.1 + np.sqrt(0.01 + 3.16 + 0.2 * np.sqrt(3.16))
    found = sellar.disciplines(z1, 0.0, 0.0)
    np.testing.assert_allclose(found.y1, 3.16, rtol=1e-12)
    np.testing.assert_allclose(sellar.cost(0.0, 0.0, found.y1, found.y2), 3.183393951640614, rtol=1e-12)


def test_the_cantilever_by_lagrange() -> None:
    root = cantilever.COMPLIANCES**0.25
    found = cantilever.beam(jnp.asarray(root * root.sum() ** (1 / 3)))
    np.testing.assert_allclose(found.deflection, 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.weight, 0.0624 * root.sum() ** (4 / 3), rtol=1e-12)
    np.testing.assert_allclose(found.weight, 1.3399564, rtol=1e-7)


def test_the_spring_of_the_literature() -> None:
    found = spring.spring(0.0516890611, 0.3567177398, 11.2889657511)
    np.testing.assert_allclose(found.mass, 0.0126652328, rtol=1e-8)
    assert max(abs(found.deflection), abs(found.stress)) < 1e-8
    assert found.surge < 0
    assert found.size < 0


@pytest.mark.slow
def test_the_nerve_by_scipy(tmp_path: Path) -> None:
    """Its parameters lie within four standard errors of those that made the data, at the optimum of another integrator and method."""
    from scipy.integrate import solve_ivp
    from scipy.optimize import least_squares

    t, v, r = np.loadtxt(REPOSITORY / "conf" / "data" / "fitzhugh_nagumo.csv", delimiter=",", skiprows=1).T

    def residuals(p: Any) -> Any:
        a, b, c = p
        field = lambda _, y: [c * (y[0] - y[0] ** 3 / 3 + y[1]), -(y[0] - a + b * y[1]) / c]  # noqa: E731
        y = solve_ivp(field, (0, 20), [-1, 1], "DOP853", t_eval=t, rtol=1e-10, atol=1e-10).y
        return np.concatenate([y[0] - v, y[1] - r]) / 0.25

    other = least_squares(residuals, [0.2, 0.2, 3.0], xtol=1e-12, ftol=1e-12)
    found = run(tmp_path, "fitzhugh_nagumo")
    best = found.isel(start=int(found.best))
    np.testing.assert_allclose(float(best.objective), other.cost, rtol=1e-7)
    values = [float(best[f"variables.{name}"]) for name in "abc"]
    np.testing.assert_allclose(values, other.x, rtol=1e-4)
    errors = [float(best[f"standard_error.{name}"]) for name in "abc"]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(np.linalg.inv(other.jac.T @ other.jac))), rtol=1e-3)
    assert (np.abs(np.array(values) - [0.2, 0.2, 3.0]) < 4 * np.array(errors)).all()


def gap(r: Any, price: float = 5.0) -> tuple[float, float]:
    """The cost, and by how much the optimum of a convex problem can at most lie below it (Frank and Wolfe)."""

    def cost(r: Any) -> Any:
        found = heat_sink.plate(r)
        return heat_sink.cost(found.mean, found.material, price)

    value, slope = jax.jit(jax.value_and_grad(cost))(jnp.asarray(r))
    return float(value), float(jnp.sum(jnp.where(slope > 0, slope * r, -slope * (1 - r))))


@pytest.mark.parametrize("seed", range(3))
def test_the_heat_sink_is_convex(seed: int) -> None:
    """The cost on a chord lies above that between its ends, and above the tangent at one."""
    rng = np.random.default_rng(seed)
    a, b = rng.random((2, 8, 8))
    costs = [gap(x)[0] for x in (a, (a + b) / 2, b)]
    assert costs[1] <= (costs[0] + costs[2]) / 2


def test_the_plate_loses_what_heats_it() -> None:
    """With one conductor throughout: the flux to the sink is the heat, 1, and the mean temperature is the work of the heat."""
    found = heat_sink.plate(heat_sink.even(20, 1.0))
    flux = 2.0 * found.temperature[0, np.abs((np.arange(20) + 0.5) / 20 - 0.5) < 0.05]
    np.testing.assert_allclose(flux.sum(), 1.0, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "limit"), [(12, 1e-6), (32, 1e-5)])
def test_the_heat_sink_is_as_good_as_can_be(n: int, limit: float, tmp_path: Path) -> None:
    """Of 144 and of 1024 variables: no design is cheaper by more than the gap."""
    found = run(tmp_path, "heat_sink", f"parameters.r.n={n}")
    r = found["variables.r"].values
    assert r.shape == (n, n) and r.min() >= 0 and r.max() <= 1
    value, below = gap(r)
    np.testing.assert_allclose(float(found.objective), value, rtol=1e-9)
    assert 0 <= below < limit * value
