"""Values and gradients that others have published or that have a closed form, through the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.project import REPOSITORY, Project

TIGHT = ["solver.rtol=1e-11", "solver.atol=1e-13"]


def run(project: Project, name: str, *overrides: str) -> Any:
    import engine

    return engine.run(
        REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={project.folder / 's.zarr'}", *TIGHT, *overrides]
    ).load()


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_terminal_cost_of_lotka_volterra(project: Project, mode: str) -> None:
    """SUNDIALS, cvsLotkaVolterra_ASA (1.5, 1, 3, 1), recomputed with DOP853 at 2e-14: g = ((1 - x)^2 + (1 - y)^2) / 2 at 10."""
    project.model("def cost(y):\n    return 0.5 * ((1 - y.prey) ** 2 + (1 - y.predators) ** 2)\n")
    project.yaml(f"""\
        defaults: [engine, {{solver: dopri8}}, _self_]
        name: cost
        parameters: {{alpha: 1.5, beta: 1.0, gamma: 3.0, delta: 1.0, prey: 1.0, predators: 1.0}}
        solver: {{rtol: 1e-11, atol: 1e-13}}
        stages:
          history: {{_target_: pipelines.lotka_volterra.history, solver: "${{solver}}", t1: 10.0}}
          final: {{_target_: pipelines.lotka_volterra.final, _inputs_: {{y: history.y}}}}
          cost: {{_target_: model.cost, _inputs_: {{y: final}}}}
        outputs: {{x: final.prey, y: final.predators, cost: cost}}
        derivatives:
          g: {{of: cost, wrt: [prey, predators, alpha, beta, gamma, delta], mode: {mode}}}
    """)
    ds = project.run()
    np.testing.assert_allclose([ds.x, ds.y], [1.0263447675750941, 0.90969107813603645], rtol=1e-8)
    published = {
        "prey": 0.29959950830370119,
        "predators": -0.014151816344854514,
        "alpha": 0.62196158555131908,
        "beta": 0.068001404150877756,
        "gamma": 0.16917646399590403,
        "delta": 0.27256069395002208,
    }
    for name, value in published.items():
        np.testing.assert_allclose(float(ds[f"g.{name}"]), value, rtol=1e-6, err_msg=name)


def test_final_size_of_an_epidemic(project: Project) -> None:
    """Kermack and McKendrick's final size by Lambert's W: beta = 0.5, gamma = 0.25, I(0) = 1e-6."""
    ds = run(
        project, "sir", "parameters.infected=1e-6", "sweep={design: zip, samples: null, axes: {beta: [0.5], gamma: [0.25]}}",
        "stages.epidemic.t1=400.0",
    )  # fmt: skip
    np.testing.assert_allclose(ds.final_size.values, [0.79681247230334125], rtol=1e-9)
    np.testing.assert_allclose(ds["dfinal.beta"].values, [1.0909403842013396], rtol=1e-8)


def test_damped_oscillator(project: Project) -> None:
    """The closed form at t = 5, omega = 2, zeta = 0.1, with its derivatives."""
    ds = run(
        project, "oscillator", "sweep.axes.omega=[2.0]", "sweep.axes.zeta=[0.1]", "stages.motion.t1=5.0",
        "derivatives={dx: {of: x, wrt: [omega, zeta, x0], kind: jacobian}}",
    )  # fmt: skip
    last = {"omega": 2.0, "zeta": 0.1}
    found = [float(ds[name].sel(last).isel(time=-1).squeeze()) for name in ("x", "dx.omega", "dx.zeta", "dx.x0")]
    np.testing.assert_allclose(
        found, [-0.3368516805904134, 0.9267285349230295, 3.0281064564999210, -0.3368516805904134], rtol=1e-8
    )


def test_sensitivities_of_the_stiff_reaction(project: Project) -> None:
    """SUNDIALS, cvsRoberts_FSA at t = 40, recomputed with Radau at 1e-10."""
    project.yaml("""\
        defaults: [engine, {solver: kvaerno5}, _self_]
        name: robertson
        parameters: {k1: 0.04, k2: 3.0e7, k3: 1.0e4}
        solver: {rtol: 1e-10, atol: 1e-14}
        stages:
          reaction: {_target_: model.reaction, solver: "${solver}"}
        outputs: {y1: reaction.y.0}
        derivatives: {dy1: {of: y1, wrt: [k1, k3, k2]}}
    """).model("""\
        from ops.ode import solve


        def rates(t, y, k):
            k1, k2, k3 = k
            forward, back, pair = k1 * y[0], k3 * y[1] * y[2], k2 * y[1] ** 2
            return [back - forward, forward - back - pair, pair]


        def reaction(k1, k2, k3, solver):
            return solve(rates, [1.0, 0.0, 0.0], (k1, k2, k3), t1=40.0, solver=solver)
    """)
    ds = project.run()
    np.testing.assert_allclose(float(ds.y1), 0.71582706871940704, rtol=1e-8)
    found = [float(ds[f"dy1.{name}"]) for name in ("k1", "k3", "k2")]
    np.testing.assert_allclose(found, [-4.2475587717056769, 1.3730807973446573e-5, -2.2883550889057211e-9], rtol=1e-5)


def test_logistic_growth(project: Project) -> None:
    """Verhulst's closed form at t = 6 for r = 0.8, K = 10, y(0) = 0.5."""
    project.yaml("""\
        defaults: [engine, {solver: dopri8}, _self_]
        name: logistic
        parameters: {r: 0.8, capacity: 10, start: 0.5}
        solver: {rtol: 1e-12, atol: 1e-14}
        stages:
          growth: {_target_: model.growth, solver: "${solver}"}
        outputs: {y: growth.y}
        derivatives: {dy: {of: y, wrt: [r, capacity, start]}}
    """).model("""\
        from ops.ode import solve


        def growth(r, capacity, start, solver):
            return solve(lambda t, y, args: args[0] * y * (1 - y / args[1]), start, (r, capacity), t1=6.0, solver=solver)
    """)
    ds = project.run()
    found = [float(ds[name]) for name in ("y", "dy.r", "dy.capacity", "dy.start")]
    exact = [8.6477870939735379, 7.0161895902240547, 0.74168766395482652, 2.4618209088505455]
    np.testing.assert_allclose(found, exact, rtol=1e-9)
