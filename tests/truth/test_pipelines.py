"""Every shipped config composed, planned and run, and its numbers against closed forms and published values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests.project import REPOSITORY

CONFIGS = sorted(p.stem for p in (REPOSITORY / "conf").glob("*.yaml") if p.stem != "engine")


def run(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shipped_config_runs(name: str, tmp_path: Path) -> None:
    plan = engine.load(REPOSITORY / "conf" / f"{name}.yaml", ["store.path=" + str(tmp_path / "s.zarr")])
    assert plan.config.settings.name == name
    first = (REPOSITORY / "conf" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    ds = engine.run(plan).load()
    assert (ds.status == 1).all()
    assert set(plan.config.settings.outputs) <= set(map(str, ds.variables))


@pytest.mark.parametrize("solver", sorted(p.stem for p in (REPOSITORY / "conf" / "solver").glob("*.yaml")))
def test_every_solver_of_the_group(solver: str, tmp_path: Path) -> None:
    fixed = ["solver.step=0.001"] if solver == "euler" else []
    loose = ["solver.rtol=1e-4", "solver.atol=1e-6"]
    one = ["sweep.axes.omega=[2.0]", "sweep.axes.zeta=[0.05]", "stages.motion.t1=1.0", "derivatives={}", *fixed, *loose]
    ds = run(tmp_path, "oscillator", f"solver={solver}", *one)
    assert (ds.status == 1).all()
    wd = 2.0 * np.sqrt(1 - 0.05**2)
    t = ds.time.values
    exact = np.exp(-0.1 * t) * (np.cos(wd * t) + 0.1 / wd * np.sin(wd * t))
    assert np.abs(ds.x.values[0, 0] - exact).max() < 2e-2


def test_pendulum_period_and_its_derivatives(tmp_path: Path) -> None:
    """T = 4 sqrt(l/g) K(m), m = sin(a/2)^2; dK/dm = (E - (1 - m) K) / (2 m (1 - m)); dT/dl = T / (2 l)."""
    from scipy.special import ellipe, ellipk

    ds = run(tmp_path, "pendulum")
    a = ds.amplitude.values
    m = np.sin(a / 2) ** 2
    period = 4 * np.sqrt(1 / 9.81) * ellipk(m)
    np.testing.assert_allclose(ds.period.values, period, rtol=1e-7)
    slope = (ellipe(m) - (1 - m) * ellipk(m)) / (2 * m * (1 - m)) * np.sin(a) / 2 * 4 * np.sqrt(1 / 9.81)
    np.testing.assert_allclose(ds["dperiod.amplitude"].values, slope, rtol=1e-5)
    np.testing.assert_allclose(ds["dperiod.length"].values, period / 2, rtol=1e-6)


def test_pendulum_periods_of_the_literature(tmp_path: Path) -> None:
    """T / (2 pi sqrt(l/g)) at 10, 45, 90 and 135 degrees."""
    degrees = "[0.17453292519943295,0.7853981633974483,1.5707963267948966,2.356194490192345]"
    ds = run(tmp_path, "pendulum", f"sweep.axes.amplitude={degrees}")
    ratio = ds.period.values / (2 * np.pi * np.sqrt(1 / 9.81))
    np.testing.assert_allclose(
        ratio, [1.001907188143217, 1.03997334319680, 1.18034059901610, 1.52794758823439], rtol=1e-7
    )


def test_lotka_volterra_conserves_and_ends_where_published(tmp_path: Path) -> None:
    ds = run(tmp_path, "lotka_volterra")
    assert float(ds.drift.max()) < 1e-6
    point = ds.sel(beta=1.0, delta=1.0)
    np.testing.assert_allclose(float(point.final_prey), 1.026344801589377, rtol=1e-6)
    np.testing.assert_allclose(float(point.predators[-1]), 0.9096910639243128, rtol=1e-6)


def test_lotka_volterra_jacobian_equals_differences(tmp_path: Path) -> None:
    ds = run(
        tmp_path, "lotka_volterra", "sweep.axes.beta=[0.999,1.0,1.001]", "sweep.axes.delta=[1.0]", "solver.rtol=1e-11"
    )
    prey = ds.prey.values[:, 0]
    differences = (prey[2] - prey[0]) / 0.002
    np.testing.assert_allclose(ds["path.beta"].values[1, 0], differences, rtol=1e-3, atol=1e-4)


def test_sir_final_size_and_its_derivative(tmp_path: Path) -> None:
    """R solves R = 1 - S0 exp(-(beta/gamma) R); dR/dbeta = S R / gamma / (1 - S beta / gamma), S = 1 - R."""
    from scipy.optimize import brentq

    ds = run(tmp_path, "sir", "sweep.samples=32")
    for i in range(32):
        beta, gamma = float(ds.beta[i]), float(ds.gamma[i])
        size = brentq(lambda r, b=beta, g=gamma: 1 - (1 - 1e-4) * np.exp(-b / g * r) - r, 1e-3, 1, xtol=1e-14)
        left = 1 - size
        np.testing.assert_allclose(float(ds.final_size[i]), size, rtol=1e-5)
        np.testing.assert_allclose(
            float(ds["dfinal.beta"][i]), left * size / gamma / (1 - left * beta / gamma), rtol=1e-3
        )


def test_lorenz_against_scipy(tmp_path: Path) -> None:
    from scipy.integrate import solve_ivp

    ds = run(tmp_path, "lorenz", "sweep.samples=4")
    for i in range(4):
        rho = float(ds.rho[i])

        def field(t: float, u: Any, rho: float = rho) -> Any:
            return [10 * (u[1] - u[0]), u[0] * (rho - u[2]) - u[1], u[0] * u[1] - 8 / 3 * u[2]]

        exact = solve_ivp(field, (0, 2), ds.start.values[i], "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
        np.testing.assert_allclose([float(ds.x[i, -1]), float(ds.z[i, -1])], exact[[0, 2]], rtol=1e-6)


def test_robertson_and_its_sensitivities(tmp_path: Path) -> None:
    """y(40) of the test set; sensitivities of SUNDIALS' cvsRoberts_FSA_dns, to the digits that it prints."""
    ds = run(tmp_path, "robertson").sel(k1=0.04)
    np.testing.assert_allclose(
        [float(ds.a), float(ds.b), float(ds.c)], [0.7158270687, 0.9185534764e-5, 0.2841637457], rtol=1e-7
    )
    assert abs(float(ds.imbalance)) < 1e-12
    published = {  # p1 = k1, p2 = k3, p3 = k2 in its notation
        "k1": (-4.2475e00, 4.5913e-05, 4.2475e00),
        "k3": (1.3731e-05, -2.3573e-10, -1.3730e-05),
        "k2": (-2.2883e-09, -1.1380e-13, 2.2884e-09),
    }
    for parameter, values in published.items():
        found = [float(ds[f"d{species}.{parameter}"]) for species in "abc"]
        np.testing.assert_allclose(found, values, rtol=2e-4)


def test_oscillator_at_the_reference_point(tmp_path: Path) -> None:
    """x(5), dx/domega, dx/dzeta and dx/dx0 of the closed form (17 digits by mpmath)."""
    point = ["sweep.axes.omega=[2.0]", "sweep.axes.zeta=[0.1]", "stages.motion.t1=5.0"]
    ds = run(tmp_path, "oscillator", *point, "derivatives={dx: {of: x, wrt: [omega, zeta, x0], kind: jacobian}}")
    w, z, t = 2.0, 0.1, 5.0

    def x(w: Any, z: Any) -> Any:
        wd = w * np.sqrt(1 - z * z)
        return np.exp(-z * w * t) * (np.cos(wd * t) + z * w / wd * np.sin(wd * t))

    np.testing.assert_allclose(float(ds.x[0, 0, -1]), x(w, z), rtol=1e-7)
    np.testing.assert_allclose(float(ds["dx.omega"][0, 0, -1]), np.imag(x(w + 1e-30j, z)) / 1e-30, rtol=1e-6)
    np.testing.assert_allclose(float(ds["dx.zeta"][0, 0, -1]), np.imag(x(w, z + 1e-30j)) / 1e-30, rtol=1e-6)
    np.testing.assert_allclose(float(ds["dx.x0"][0, 0, -1]), x(w, z), rtol=1e-7)


def test_the_plan_s_function_is_a_plain_function() -> None:
    import jax

    plan = engine.load(REPOSITORY / "conf" / "oscillator.yaml")
    energy = lambda omega: plan.function({"omega": omega, "zeta": 0.05})["energy"]  # noqa: E731
    slope = jax.grad(energy)(2.0)
    h = 1e-4
    np.testing.assert_allclose(slope, (energy(2.0 + h) - energy(2.0 - h)) / (2 * h), rtol=1e-5)
    assert jax.vmap(energy)(np.array([1.0, 2.0])).shape == (2,)
    with pytest.raises(engine.UserError, match="'omega'"):
        plan.function({"omgea": 1.0})
