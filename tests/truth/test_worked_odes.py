"""Worked pipelines of stiff reactions, relaxation oscillations and orbits: published values, closed forms and conserved quantities."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.gradient_check import check_gradients
from ops.ode import default_adjoint, solve
from pipelines import arenstorf, hires, robertson, van_der_pol
from tests.project import REPOSITORY


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Runs a shipped config, once."""
    folder: Path = tmp_path_factory.mktemp("worked")

    def run(name: str) -> Any:
        return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr"]).load()

    return cache(run)


@pytest.mark.slow
def test_hires_at_the_published_end(shipped: Callable[[str], Any]) -> None:
    """All eight species of the test set; the derivatives by SciPy's Radau and central differences."""
    from scipy.integrate import solve_ivp

    ds = shipped("hires").sel(supply=0.0007)
    published = [
        0.7371312573325668e-3, 0.1442485726316185e-3, 0.5888729740967575e-4, 0.1175651343283149e-2,
        0.2386356198831331e-2, 0.6238968252742796e-2, 0.2849998395185769e-2, 0.2850001604814231e-2,
    ]  # fmt: skip
    np.testing.assert_allclose(ds.y[-1], published, rtol=1e-6)
    assert float(ds.free) == float(ds.y[-1, 7])
    assert float(ds.imbalance) < 1e-15
    assert int(ds.steps) < 1000

    def free(supply: float, k: float) -> float:
        field = lambda t, y: hires.vector_field(t, y, (supply, k))  # noqa: E731
        return float(solve_ivp(field, (0, 321.8122), hires.START, "Radau", rtol=1e-10, atol=1e-14).y[7, -1])

    by_supply = (free(0.0007 * 1.001, 280.0) - free(0.0007 * 0.999, 280.0)) / (0.002 * 0.0007)
    by_k = (free(0.0007, 280.0 * 1.001) - free(0.0007, 280.0 * 0.999)) / (0.002 * 280.0)
    np.testing.assert_allclose(float(ds["dfree.supply"]), by_supply, rtol=1e-4)
    np.testing.assert_allclose(float(ds["dfree.k"]), by_k, rtol=1e-4)


def test_van_der_pol_at_the_published_end(shipped: Callable[[str], Any]) -> None:
    """x and v of the test set; v = x / (1 - x^2) while it drifts; dx/dx0 = -v (x0 - 1 / x0) but for O(eps)."""
    ds = shipped("van_der_pol")
    stiff = ds.sel(eps=1e-6)
    np.testing.assert_allclose([stiff.x[-1], stiff.v[-1]], [1.706167732170483, -0.8928097010247975], rtol=1e-6)
    for eps, close in ((1e-6, 1e-3), (1e-4, 1e-4)):  # of the derivatives 1 / eps is lost in the jumps
        one = ds.sel(eps=eps)
        np.testing.assert_allclose(float(one["dlast.x0"]), -float(one.v[-1]) * 1.5, rtol=close)
        drifts = (one.time.values > 0) & (np.abs(one.v.values) < 2)
        x, v = one.x.values[drifts], one.v.values[drifts]
        np.testing.assert_allclose(v, x / (1 - x**2), rtol=50 * eps)
    early = stiff.sel(time=0.5)
    np.testing.assert_allclose(np.log(early.x / 2) - (early.x**2 - 4) / 2, 0.5, rtol=1e-5)


@pytest.mark.slow
def test_oregonator_at_the_published_end(shipped: Callable[[str], Any]) -> None:
    ds = shipped("oregonator").sel(w=0.161)
    last = [float(ds[name][-1]) for name in ("acid", "bromide", "catalyst")]
    np.testing.assert_allclose(last, [0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3], rtol=1e-6)
    assert float(ds.acid.max()) > 1e5, "it bursts"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axis"), [("kepler", "eccentricity=[0.5]"), ("oregonator", "w=[0.161]")])
def test_derivatives_equal_differences(name: str, axis: str) -> None:
    plan = engine.load(REPOSITORY / "conf" / f"{name}.yaml", [f"sweep.axes.{axis}"])
    assert [row.verdict for row in check_gradients(plan)] == ["ok", "ok"]


def test_kepler_s_orbit_and_its_derivative(shipped: Callable[[str], Any]) -> None:
    """E - e sin E = t: x = cos E - e, y = sqrt(1 - e^2) sin E, dE/de = sin E / (1 - e cos E)."""
    ds = shipped("kepler")
    e, t = ds.eccentricity.values[:, None], ds.time.values
    anomaly = t + 0 * e
    for _ in range(200):
        anomaly = anomaly - (anomaly - e * np.sin(anomaly) - t) / (1 - e * np.cos(anomaly))
    sine, cosine, root = np.sin(anomaly), np.cos(anomaly), np.sqrt(1 - e**2)
    np.testing.assert_allclose(anomaly - e * sine, t + 0 * e, atol=1e-13)
    np.testing.assert_allclose(ds.x, cosine - e, atol=1e-9)
    np.testing.assert_allclose(ds.y, root * sine, atol=1e-9)
    by_e = sine / (1 - e * cosine)
    dx, dy = -sine * by_e - 1, root * cosine * by_e - e / root * sine
    np.testing.assert_allclose(ds["dx.eccentricity"], dx[:, -1], rtol=1e-8)
    np.testing.assert_allclose(ds["dy.eccentricity"], dy[:, -1], rtol=1e-8)
    published = [-1.2952662509875744, 0.40039389637923215]
    np.testing.assert_allclose([ds.last_x[-1], ds.last_y[-1]], published, rtol=1e-9)
    assert float(ds.energy_drift.max()) < 1e-9
    assert float(ds.momentum_drift.max()) < 1e-9


def test_arenstorf_s_orbits_close(shipped: Callable[[str], Any]) -> None:
    """The state after a period is the first; the monodromy keeps volume and carries the flow; Jacobi's integral has 0 = dC/dt."""
    ds = shipped("arenstorf")
    assert float(ds.gap.max()) < 1e-7
    for i, start in enumerate(ds.start.values):
        monodromy = ds["monodromy.start"].values[i]
        assert np.abs(monodromy).max() > 1e2, "it amplifies"
        np.testing.assert_allclose(np.linalg.det(monodromy), 1.0, rtol=1e-3)
        flow = np.array(arenstorf.vector_field(0.0, arenstorf.State(0.994, 0.0, 0.0, start[3]), 0.012277471))
        np.testing.assert_allclose(monodromy @ flow, flow, rtol=1e-5, atol=1e-5 * np.abs(flow).max())
        first = jax.grad(arenstorf.jacobi)(jnp.array([0.994, 0.0, 0.0, start[3]]), 0.012277471)
        np.testing.assert_allclose(ds["djacobi.start"][i], first, rtol=1e-6, atol=1e-6 * np.abs(first).max())


# ---- what stiff problems ask of `solve`


def test_a_stiff_solve_takes_few_steps() -> None:
    """To t = 1e11 as few as the error asks for: Newton's method converges, and measures that in the state."""
    start = robertson.Concentrations(1.0, 0.0, 0.0)
    exact = [0.2083340149701255e-07, 0.8333360770334713e-13, 0.9999999791665050]
    for rtol, most in ((1e-6, 250), (1e-10, 1700)):
        found = solve(
            robertson.vector_field, start, (0.04, 3e7, 1e4), t1=1e11, solver="kvaerno5", rtol=rtol, atol=1e-10 * rtol
        )
        np.testing.assert_allclose(found.y, exact, rtol=1e2 * rtol)
        assert int(found.steps) < most


def test_the_first_step_is_found_whatever_the_scale_of_time() -> None:
    """A start that is off the slow branch, to which the state falls within 1e-6: from one first step for all it would overflow."""
    for eps in (1e-3, 1e-6, 1e-9):
        found = solve(van_der_pol.vector_field, van_der_pol.State(2.0, 0.0), eps, t1=0.5, solver="kvaerno5")
        assert int(found.status) == 0
        assert int(found.steps) < 200
        x, v = found.y
        np.testing.assert_allclose(v, x / (1 - x**2), rtol=100 * max(eps, 1e-7))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_solve_does_not_depend_on_the_unit_of_time(scale: float) -> None:
    found = solve(lambda t, y, a: -y / scale, 1.0, t1=2 * scale, rtol=1e-8)
    np.testing.assert_allclose(float(found.y), np.exp(-2.0), rtol=1e-7)
    assert int(found.steps) < 60


def test_a_small_parameter_does_not_outweigh_the_others() -> None:
    """dx/dx0 of van der Pol's oscillator beside that by its small parameter: no more steps than it needs."""

    def last(x0: Any, eps: Any) -> Any:
        with default_adjoint("forward"):
            start = van_der_pol.State(x0, 0 * x0)
            found = solve(van_der_pol.vector_field, start, eps, t1=2.0, solver="kvaerno5", rtol=1e-8, atol=1e-10)
        return found.y.x, (found.y.v, found.steps)

    slope, (v, steps) = jax.jacfwd(last, has_aux=True)(2.0, 1e-4)
    np.testing.assert_allclose(slope, -v * 1.5, rtol=2e-4)
    assert int(steps) < 1600


def test_states_between_are_as_good_as_the_last() -> None:
    """At times asked for, long before the end, that no step would end at by itself; recomputed with Radau at 1e-10."""
    start = robertson.Concentrations(1.0, 0.0, 0.0)
    found = solve(
        robertson.vector_field, start, (0.04, 3e7, 1e4), ts=[0.4, 40.0, 1e3], solver="kvaerno5", rtol=1e-8, atol=1e-12
    )
    exact = [
        [0.98517211386099057, 3.3863953789749238e-5, 0.014794022185220334],
        [0.71582706871940704, 9.185534764557849e-6, 0.28416374574582925],
    ]
    np.testing.assert_allclose(jnp.stack(found.y, axis=-1)[:2], exact, rtol=1e-7)
