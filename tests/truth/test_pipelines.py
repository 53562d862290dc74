"""Every shipped config composed, planned and run, and its numbers against closed forms and published values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests.project import REPOSITORY

CONFIGS = sorted(
    p.stem
    for p in (REPOSITORY / "conf").glob("*.yaml")
    if p.stem != "engine" and "\noptimize:" not in p.read_text(encoding="utf-8")
)
"""The worked sweeps; designs are run where their optima are known."""


def run(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


@pytest.fixture(scope="module")
def as_shipped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Runs a shipped config without a change, once for all tests that look at its results."""
    folder = tmp_path_factory.mktemp("shipped")
    return cache(lambda name: run(folder, name))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shipped_config_runs(name: str, as_shipped: Callable[[str], Any]) -> None:
    plan = engine.load(REPOSITORY / "conf" / f"{name}.yaml")
    assert plan.config.settings.name == name
    first = (REPOSITORY / "conf" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    ds = as_shipped(name)
    assert (ds.status == 1).all()
    assert set(plan.config.settings.outputs) <= set(map(str, ds.variables))


SOLVERS = sorted(p.stem for p in (REPOSITORY / "conf" / "solver").glob("*.yaml"))
ALIKE = ("dopri5", "kencarp3", "kencarp5", "kvaerno3", "kvaerno4", "midpoint", "ralston")
"""Methods that differ from others in their coefficients alone."""


@pytest.mark.parametrize("solver", [pytest.param(s, marks=pytest.mark.slow) if s in ALIKE else s for s in SOLVERS])
def test_every_solver_of_the_group(solver: str, tmp_path: Path) -> None:
    fixed = ["solver.step=0.001"] if solver in ("euler", "leapfrog_midpoint", "semi_implicit_euler") else []
    loose = ["solver.rtol=1e-4", "solver.atol=1e-6"]
    one = ["sweep.axes.omega=[2.0]", "sweep.axes.zeta=[0.05]", "stages.motion.t1=1.0", "derivatives={}", *fixed, *loose]
    if solver == "semi_implicit_euler":
        with pytest.raises(engine.errors.UserError, match=r"must be a pair for SemiImplicitEuler.*velocity, force"):
            run(tmp_path, "oscillator", f"solver={solver}", *one)
        return
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


def test_heat_decays_as_the_eigenvector_that_it_is(as_shipped: Callable[[str], Any]) -> None:
    """exp(-lambda D t) sin(pi x), lambda = (2 sin(pi h / 2) / h)^2; the mean over the rod is h cot(pi h / 2) of the middle."""
    ds = as_shipped("heat")
    h, d = 0.02, ds.diffusivity.values
    rate = (2 * np.sin(np.pi * h / 2) / h) ** 2
    middle = np.exp(-rate * 0.1 * d)
    np.testing.assert_allclose(float(ds.middle.sel(diffusivity=1.0)), 0.37282885967926035, rtol=1e-12)
    np.testing.assert_allclose(ds.middle.values, middle, rtol=1e-12)
    np.testing.assert_allclose(ds.average.values, h / np.tan(np.pi * h / 2) * middle, rtol=1e-12)
    np.testing.assert_allclose(ds["dmiddle.diffusivity"].values, -rate * 0.1 * middle, rtol=1e-10)
    np.testing.assert_allclose(ds["daverage.diffusivity"].values, -rate * 0.1 * ds.average.values, rtol=1e-10)
    exact = np.exp(-rate * d[:, None, None] * ds.time.values[:, None]) * np.sin(np.pi * ds.x.values)
    np.testing.assert_allclose(ds.u.values, exact, rtol=1e-10)


def test_burgers_layer_and_its_derivative(as_shipped: Callable[[str], Any]) -> None:
    """|u_x(0, t)| = 152.00516 as published, and by the transformation of Cole and Hopf, for every viscosity:

    u = -N / D, where N is the integral of sin(pi y) K and D that of K = exp(-cos(pi y) / (2 pi nu) - (x - y)^2 / (4 nu t)).
    """
    ds, t = as_shipped("burgers"), 1.6037 / np.pi
    np.testing.assert_allclose(float(ds.slope[0]), 152.00516, rtol=5e-7)

    def slope(nu: float) -> float:
        y = np.linspace(-2, 2, 200_001)
        power = -np.cos(np.pi * y) / (2 * np.pi * nu) - y**2 / (4 * nu * t)
        kernel = np.exp(power - power.max())
        return float((np.sin(np.pi * y) * y * kernel).sum() / kernel.sum() / (2 * nu * t))  # N = 0 at x = 0

    np.testing.assert_allclose(slope(0.01 / np.pi), 152.00516, rtol=1e-7)
    for i, nu in enumerate(ds.nu.values):
        np.testing.assert_allclose(float(ds.slope[i]), slope(nu), rtol=5e-7)
        by_nu = (slope(nu * 1.0001) - slope(nu * 0.9999)) / (2e-4 * nu)
        np.testing.assert_allclose(float(ds["dslope.nu"][i]), by_nu, rtol=1e-5)
    u = ds.u.values
    np.testing.assert_allclose(u, -u[..., ::-1], atol=1e-6)  # odd, as the start is


def test_fisher_s_wave_and_its_derivatives(as_shipped: Callable[[str], Any]) -> None:
    """u = (1 + exp(z))^-2, z = (x sqrt(r / D) - 5 r t / sqrt 6) / sqrt 6, whose primitive by z is z - log(1 + exp z) + 1 / (1 + exp z)."""
    ds = as_shipped("fisher_kpp")
    np.testing.assert_allclose(float(ds.middle.sel(diffusivity=1.0, growth=1.0)), 0.70750118272383, rtol=1e-9)

    def z(x: Any, d: Any, r: Any, t: Any) -> Any:
        return (x * np.sqrt(r / d) - 5 * r * t / np.sqrt(6)) / np.sqrt(6)

    def mean(d: Any, r: Any) -> Any:
        ends = [w - np.log(1 + np.exp(w)) + 1 / (1 + np.exp(w)) for w in (z(-40, d, r, 2), z(40, d, r, 2))]
        return (ends[1] - ends[0]) * np.sqrt(6 * d / r) / 80

    d, r = (part + 0j for part in np.meshgrid(ds.diffusivity.values, ds.growth.values, indexing="ij"))
    e = 1e-30
    np.testing.assert_allclose(ds.average.values, mean(d, r).real, rtol=1e-6)
    np.testing.assert_allclose(ds["daverage.diffusivity"].values, mean(d + e * 1j, r).imag / e, rtol=1e-3)
    np.testing.assert_allclose(ds["daverage.growth"].values, mean(d, r + e * 1j).imag / e, rtol=1e-4)
    middle = (1 + np.exp(z(0, d, r + e * 1j, 2))) ** -2
    np.testing.assert_allclose(ds.middle.values, middle.real, rtol=1e-7)
    np.testing.assert_allclose(ds["dmiddle.growth"].values, middle.imag / e, rtol=1e-6)
    x, t = ds.x.values, ds.time.values[:, None]
    exact = (1 + np.exp(z(x, 1.0, 1.0, t))) ** -2
    np.testing.assert_allclose(ds.u.sel(diffusivity=1.0, growth=1.0).values, exact, atol=1e-5)


def test_gray_scott_against_scipy(tmp_path: Path) -> None:
    """The same equations by SciPy, from the stored start, and central differences of it for the derivatives."""
    from scipy.integrate import solve_ivp

    small = ["stages.start.n=16", "stages.pattern.side=0.16", "stages.pattern.t1=50.0", "sweep.axes.kill=[0.06]"]
    more = ["+outputs.u=pattern.y.u", "sweep.axes.feed=[0.04]", "solver.rtol=1e-9", "solver.atol=1e-12"]
    ds = run(tmp_path, "gray_scott", *small, *more).isel(feed=0, kill=0)
    h = 0.01

    def around(w: Any) -> Any:
        return sum(np.roll(w, shift, axis) for axis in (0, 1) for shift in (-1, 1)) - 4 * w

    def end(feed: float = 0.04, kill: float = 0.06, diffusivity_u: float = 2e-5) -> Any:
        def field(t: float, y: Any) -> Any:
            u, v = y.reshape(2, 16, 16)
            reaction = u * v**2
            du = diffusivity_u * around(u) / h**2 - reaction + feed * (1 - u)
            dv = 1e-5 * around(v) / h**2 + reaction - (feed + kill) * v
            return np.stack([du, dv]).ravel()

        start = np.stack([ds.u.values[0], ds.v.values[0]]).ravel()
        return solve_ivp(field, (0, 50), start, "DOP853", rtol=1e-11, atol=1e-13).y[:, -1].reshape(2, 16, 16)

    u, v = end()
    assert v.mean() > 2 * float(ds.v[0].mean()), "something grows"
    np.testing.assert_allclose(ds.u.values[-1], u, rtol=1e-7)
    np.testing.assert_allclose(ds.v.values[-1], v, rtol=1e-6, atol=1e-10)
    for name, at in {"feed": 0.04, "kill": 0.06, "diffusivity_u": 2e-5}.items():
        step = 1e-4 * at
        difference = end(**{name: at + step})[1].mean() - end(**{name: at - step})[1].mean()
        np.testing.assert_allclose(float(ds[f"dmean.{name}"]), difference / (2 * step), rtol=1e-5)


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


def test_bouncing_ball_impacts_and_their_derivatives(as_shipped: Callable[[str], Any]) -> None:
    """t_n = t1 (1 + 2 e + ... + 2 e^(n-1)), t1 = sqrt(2 h / g); the top after it is e^(2n) h; t5 = 10.2664776225 and dt5/de = 23.2624201587
    at e = 0.9; the end of all bounces is t1 (1 + e) / (1 - e), 27.1290193356."""
    ds = as_shipped("bouncing_ball")
    e, n = ds.restitution.values[:, None], np.arange(5)
    first = np.sqrt(2 * 10 / 9.81)
    exact = first * (2 * np.cumsum(e**n, axis=1) - 1)
    np.testing.assert_allclose(ds.impact.values, exact, rtol=1e-9)
    np.testing.assert_allclose(ds.top.values, 10 * e ** (2 * n + 2), rtol=1e-8)
    np.testing.assert_allclose(ds.energy.values, 98.1 * e[:, 0] ** 10, rtol=1e-8)
    np.testing.assert_allclose(ds.rest.values, first * ((1 + e) / (1 - e))[:, 0], rtol=1e-8)
    np.testing.assert_allclose(
        ds["dlast.restitution"].values, 2 * first * (n * e ** np.maximum(n - 1, 0)).sum(1), rtol=1e-7
    )
    np.testing.assert_allclose(ds["dlast.g"].values, -exact[:, -1] / (2 * 9.81), rtol=1e-7)
    at = ds.isel(restitution=-1)
    published = [10.26647762247017893, 23.262420158727734296, 27.129019335614224872]
    np.testing.assert_allclose([at["last"], at["dlast.restitution"], at.rest], published, rtol=1e-8)


def test_projectile_range_and_its_derivatives(as_shipped: Callable[[str], Any]) -> None:
    """Without drag v^2 sin(2 a) / g; with it, at 50 degrees, against SciPy's DOP853 and its variational equations at rtol 1e-13."""
    ds = as_shipped("projectile")
    vacuum = ds.sel(drag=0.0)
    a = np.deg2rad(ds.angle.values)
    np.testing.assert_allclose(vacuum.range.values, 900 / 9.8 * np.sin(2 * a), rtol=1e-9)
    np.testing.assert_allclose(vacuum.time.values, 60 / 9.8 * np.sin(a), rtol=1e-9)
    np.testing.assert_allclose(vacuum["drange.angle"].values, 1800 / 9.8 * np.cos(2 * a) * np.pi / 180, rtol=1e-7)
    air = ds.isel(drag=1).sel(angle=50.0)
    scipy = [58.118637005010044, 4.105666619239514, 20.971005242677126, -0.485050546053098, -2363.6085741710167]
    found = [air.range, air.time, air.speed, air["drange.angle"], air["drange.drag"]]
    np.testing.assert_allclose(found, scipy, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bouncing_ball", "projectile"])
def test_derivatives_of_events_by_finite_differences(name: str) -> None:
    from engine.gradient_check import check_gradients

    few = {"bouncing_ball": "sweep.axes.restitution=[0.6,0.9]", "projectile": "sweep.axes.angle=[30.0,70.0]"}
    plan = engine.load(REPOSITORY / "conf" / f"{name}.yaml", [few[name]])
    assert {row.verdict for row in check_gradients(plan)} == {"ok"}
