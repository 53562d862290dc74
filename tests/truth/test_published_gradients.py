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


@pytest.mark.parametrize("mode", ["forward", pytest.param("reverse", marks=pytest.mark.slow)])
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


REACTION = """\
    import jax.numpy as jnp

    from ops.ode import solve


    def rates(t, y, k):
        k1, k2, k3 = k
        forward, back, pair = k1 * y[0], k3 * y[1] * y[2], k2 * y[1] ** 2
        return [back - forward, forward - back - pair, pair]


    def reaction(k1, k2, k3, y0, ts, solver):
        return solve(rates, y0, (k1, k2, k3), ts=ts, solver=solver)


    def third(y):
        return y[2]


    def energy(y):
        return 0.5 * (y[0] ** 2 + y[1] ** 2 + y[2] ** 2)


    def total(k1, k2, k3, y0, of, t1, solver):
        # The integral of a function of the state from 0 to t1, as a state of its own.
        def field(t, u, k):
            return [*rates(t, u[:3], k), of(u[:3])]

        found = solve(field, jnp.append(y0, 0.0), (k1, k2, k3), t1=t1, solver=solver)
        return {"g": found.y[3], "status": found.status}
"""
ROBERTSON = """\
    defaults: [engine, {solver: kvaerno5}, _self_]
    name: robertson
    parameters: {k1: 0.04, k2: 3.0e7, k3: 1.0e4, y0: [1.0, 0.0, 0.0]}
"""


def test_sensitivities_of_the_stiff_reaction(project: Project) -> None:
    """SUNDIALS, cvsRoberts_FSA (p1 = k1, p2 = k3, p3 = k2): 5 digits printed, about 4 of them right; recomputed with Radau at 1e-10."""
    project.model(REACTION).yaml(
        ROBERTSON
        + """\
    solver: {rtol: 1e-10, atol: 1e-14}
    stages: {reaction: {_target_: model.reaction, ts: [0.4, 40.0], solver: "${solver}"}}
    outputs: {y: {from: reaction.y, dims: [time, species]}}
    derivatives: {dy: {of: y, wrt: [k1, k3, k2], kind: jacobian}}
    """
    )
    ds = project.run()
    recomputed = {
        "y": [
            [0.98517211386099057, 3.3863953789749238e-5, 0.014794022185220334],
            [0.71582706871940704, 9.185534764557849e-6, 0.28416374574582925],
        ],
        "dy.k1": [
            [-0.35595256598284947, 0.00039025440538183377, 0.35556231157746765],
            [-4.2475587717056769, 4.591196249254066e-5, 4.2475128597431873],
        ],
        "dy.k3": [
            [9.5423814278534021e-8, -2.1309610301929562e-10, -9.521071817551473e-8],
            [1.3730807973446573e-5, -2.357192113846233e-10, -1.3730572254235171e-5],
        ],
        "dy.k2": [
            [-1.5831766355582172e-11, -5.2900410932149591e-13, 1.6360770464903665e-11],
            [-2.2883550889057211e-9, -1.1380595093501657e-13, 2.288468894856656e-9],
        ],
    }
    published = {
        "y": [[9.8517e-1, 3.3864e-5, 1.4794e-2], [7.1583e-1, 9.1856e-6, 2.8416e-1]],
        "dy.k1": [[-3.5595e-1, 3.9025e-4, 3.5556e-1], [-4.2475, 4.5913e-5, 4.2475]],
        "dy.k3": [[9.5431e-8, -2.1309e-10, -9.5218e-8], [1.3731e-5, -2.3573e-10, -1.3730e-5]],
        "dy.k2": [[-1.5833e-11, -5.2900e-13, 1.6362e-11], [-2.2883e-9, -1.1380e-13, 2.2884e-9]],
    }
    for name, value in recomputed.items():
        np.testing.assert_allclose(ds[name][-1], value[-1], rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(ds[name][0], value[0], rtol=3e-7, err_msg=name)  # between two steps
        np.testing.assert_allclose(ds[name], published[name], rtol=10**-3.5, err_msg=name)


@pytest.mark.slow
def test_the_adjoint_of_the_stiff_reaction(project: Project) -> None:
    """SUNDIALS, cvsRoberts_ASAi: G = integral of y3 to 4e7, in reverse mode; 3 digits printed are right; recomputed with Radau."""
    project.model(REACTION).yaml(
        ROBERTSON
        + """\
    solver: {rtol: 1e-9, atol: 1e-14}
    stages: {total: {_target_: model.total, of: {_target_: model.third, _partial_: true}, t1: 4.0e7, solver: "${solver}"}}
    outputs: {g: total.g}
    derivatives: {dg: {of: g, wrt: [k1, k3, k2, y0], mode: reverse}}
    """
    )
    ds = project.run()
    recomputed = {
        "g": 39982528.209136516, "dg.k1": 768377.3267154136, "dg.k3": -3.0689209207865478, "dg.k2": 0.00051148899792022502,
        "dg.y0": [39967183.669868827, 39967208.668567605, 39967208.666921839],
    }  # fmt: skip
    published = {"g": 3.9983e7, "dg.k1": 7.6842e5, "dg.k3": -3.0691, "dg.k2": 5.1144e-4, "dg.y0": [3.9967e7] * 3}
    for name, value in recomputed.items():
        np.testing.assert_allclose(ds[name], value, rtol=1e-7, err_msg=name)
        np.testing.assert_allclose(ds[name], published[name], rtol=1e-3, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_second_derivatives_of_the_stiff_reaction(project: Project, mode: str) -> None:
    """SUNDIALS, idasHessian_ASA_FSA (its code's |y|^2 / 2, to t = 80): gradient by Radau at 1e-10, Hessian by its central differences."""
    project.model(REACTION).yaml(
        ROBERTSON
        + f"""\
    solver: {{rtol: 1e-9, atol: 1e-14, max_steps: 4096}}
    stages: {{total: {{_target_: model.total, of: {{_target_: model.energy, _partial_: true}}, t1: 80.0, solver: "${{solver}}"}}}}
    outputs: {{g: total.g}}
    derivatives:
      dg: {{of: g, wrt: [k1, k3]}}
      hg: {{of: g, wrt: [k1, k3], kind: hessian, mode: {mode}}}
    """
    )
    ds = project.run()
    assert float(ds["hg.k1.k3"]) == pytest.approx(float(ds["hg.k3.k1"]), rel=1e-9)
    exact = {"g": 25.042397528618284, "dg.k1": -137.52742119009406, "dg.k3": 0.00041552262546661512}
    differenced = {
        "hg.k1.k1": 4424.2957186998665,
        "hg.k1.k3": -0.0027779058861243642,
        "hg.k3.k3": -2.4173391877156757e-8,
    }
    published = {
        "g": 25.042, "dg.k1": -137.53, "dg.k3": 4.1552e-4, "hg.k1.k1": 4424.3, "hg.k1.k3": -2.7779e-3, "hg.k3.k3": -2.4173e-8,
    }  # fmt: skip
    for name, value in (exact | differenced).items():
        np.testing.assert_allclose(float(ds[name]), value, rtol=1e-8 if name in exact else 2e-6, err_msg=name)
        np.testing.assert_allclose(float(ds[name]), published[name], rtol=10**-3.5, err_msg=name)


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
