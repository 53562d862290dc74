"""Every kind of derivative against a closed form: plain functions and ODE solves, single and over a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import PlanError, UserError
from tests.project import Project

MODEL = """\
    import jax.numpy as jnp

    from ops.ode import solve


    def wave(a, b, c):
        # value sin(a b) + c0^2 c1 a
        return {"s": jnp.sin(a * b) + c[0] ** 2 * c[1] * a, "v": jnp.array([a * b, a**3])}


    def decay(k, y0, solver):
        return solve(lambda t, y, k: -k * y, y0, k, t1=1.0, solver=solver)


    def cube(k):
        return k**3
"""
WAVE = """\
    defaults: [engine, _self_]
    name: wave
    parameters: {a: 0.7, b: 1.3, c: [0.5, 2.0]}
    stages:
      wave: {_target_: model.wave}
    outputs: {s: wave.s, v: {from: wave.v, dims: [part]}}
"""
DECAY = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: decay
    parameters: {k: 1.3, y0: 2.0}
    solver: {rtol: 1e-10, atol: 1e-12}
    stages:
      decay: {_target_: model.decay, solver: "${solver}"}
    outputs: {y: decay.y}
    derivatives:
      g: {of: y, wrt: [k, y0]}
      h: {of: y, wrt: [k, y0], kind: hessian}
      hv: {of: y, wrt: [k, y0], kind: hvp, direction: {k: 1.0, y0: -2.0}}
      t: {of: y, wrt: [k, y0], kind: jvp, direction: {k: 0.5}}
      w: {of: y, wrt: [k, y0], kind: vjp, direction: 3.0}
      d3: {of: y, wrt: k, order: 3}
"""


def add(*nodes: str) -> list[str]:
    return [f"+derivatives.{node}" for node in nodes]


@pytest.fixture
def wave(project: Project) -> Project:
    return project.model(MODEL).yaml(WAVE)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("sweep", [[], ["+sweep.axes.a=[0.7,-0.4]"]], ids=["single", "sweep"])
def test_hessian_of_a_scalar(wave: Project, mode: str, sweep: list[str]) -> None:
    ds = wave.run(*add(f"h={{of: s, wrt: [a, b, c], kind: hessian, mode: {mode}}}"), *sweep)
    for i, a in enumerate([0.7, -0.4] if sweep else [0.7]):
        at = ds.isel(a=i) if sweep else ds
        b, c0, c1 = 1.3, 0.5, 2.0
        s, cos = np.sin(a * b), np.cos(a * b)
        exact = {
            "h.a.a": -b * b * s, "h.b.b": -a * a * s, "h.a.b": cos - a * b * s, "h.b.a": cos - a * b * s,
            "h.a.c": [2 * c0 * c1, c0**2], "h.c.a": [2 * c0 * c1, c0**2], "h.b.c": [0, 0],
            "h.c.c": [[2 * c1 * a, 2 * c0 * a], [2 * c0 * a, 0]],
        }  # fmt: skip
        for name, value in exact.items():
            np.testing.assert_allclose(at[name].values, value, rtol=1e-12, atol=1e-14, err_msg=name)
    assert ds["h.c.c"].dims[-2:] == ("c_0", "c_0_")


def test_hessian_of_an_array_and_its_gradient_in_one_pass(wave: Project) -> None:
    nodes = add("h={of: v, wrt: [a, b], kind: hessian}", "j={of: v, wrt: [a], kind: jacobian}")
    plan = wave.load(*nodes)
    assert len(plan.passes) == 1, "the Jacobian is at hand on the way to the Hessian"
    ds = wave.run(*nodes)
    assert ds["h.a.a"].dims == ("part",)
    np.testing.assert_allclose(ds["h.a.a"].values, [0.0, 6 * 0.7], rtol=1e-12)
    np.testing.assert_allclose(ds["h.a.b"].values, [1.0, 0.0], rtol=1e-12)
    np.testing.assert_allclose(ds["j.a"].values, [1.3, 3 * 0.49], rtol=1e-12)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_an_output_that_is_a_parameter(wave: Project, mode: str) -> None:
    """Its derivative by itself is 1, by others 0, alone and beside the result of a stage."""
    outputs = ["+outputs.a=a", "+outputs.c={from: c, dims: [two]}"]
    kinds = [f"d={{of: a, wrt: [a, b], mode: {mode}}}", f"j={{of: c, wrt: [c, a], kind: jacobian, mode: {mode}}}"]
    for more in ([], [f"g={{of: s, wrt: [a, b], mode: {mode}}}"]):
        ds = wave.run(*outputs, *add(*kinds, *more), store=f"{len(more)}.zarr")
        assert (float(ds["d.a"]), float(ds["d.b"])) == (1.0, 0.0)
        np.testing.assert_array_equal(ds["j.c"], np.eye(2))
        np.testing.assert_array_equal(ds["j.a"], [0.0, 0.0])


def test_products_without_the_matrix(wave: Project) -> None:
    ds = wave.run(
        *add(
            "t={of: v, wrt: [a, b], kind: jvp, direction: {a: 1.0, b: 2.0}}",
            "w={of: v, wrt: [a, b], kind: vjp, direction: [3.0, -1.0]}",
            "p={of: s, wrt: [a, c], kind: hvp, direction: {a: 2.0, c: [1.0, -1.0]}}",
            "q={of: s, wrt: [a, c], kind: hvp, mode: reverse, direction: {a: 2.0, c: [1.0, -1.0]}}",
        )
    )
    a, b, c0, c1 = 0.7, 1.3, 0.5, 2.0
    np.testing.assert_allclose(ds["t"].values, [b + 2 * a, 3 * a * a], rtol=1e-12)
    assert ds["t"].dims == ("part",)
    np.testing.assert_allclose(float(ds["w.a"]), 3 * b - 3 * a * a, rtol=1e-12)
    np.testing.assert_allclose(float(ds["w.b"]), 3 * a, rtol=1e-12)
    aa, ac = -b * b * np.sin(a * b), np.array([2 * c0 * c1, c0**2])
    cc = np.array([[2 * c1 * a, 2 * c0 * a], [2 * c0 * a, 0]])
    for name in "pq":
        np.testing.assert_allclose(float(ds[f"{name}.a"]), 2 * aa + ac @ [1, -1], rtol=1e-12)
        np.testing.assert_allclose(ds[f"{name}.c"].values, 2 * ac + cc @ [1, -1], rtol=1e-12)


def decay_exact(k: Any, y0: Any) -> dict[str, Any]:
    e = np.exp(-k)
    return {
        "y": y0 * e, "g.k": -y0 * e, "g.y0": e, "h.k.k": y0 * e, "h.k.y0": -e, "h.y0.k": -e, "h.y0.y0": 0 * k,
        "hv.k": y0 * e + 2 * e, "hv.y0": -e, "t": -0.5 * y0 * e, "w.k": -3 * y0 * e, "w.y0": 3 * e, "d3.k": -y0 * e,
    }  # fmt: skip


@pytest.mark.parametrize("solver", ["tsit5", pytest.param("kvaerno5", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["auto", pytest.param("reverse", marks=pytest.mark.slow)])
def test_every_kind_through_an_ode(project: Project, solver: str, mode: str) -> None:
    project.model(MODEL).yaml(DECAY)
    modes = [f"+derivatives.{name}.mode={mode}" for name in ("g", "h", "hv")] + ["+sweep.axes.k=[0.4,1.3]"]
    ds = project.run(f"solver={solver}", "solver.rtol=1e-10", "solver.atol=1e-12", "solver.max_steps=512", *modes)
    assert (ds.status == 1).all()
    for name, value in decay_exact(np.array([0.4, 1.3]), 2.0).items():
        np.testing.assert_allclose(ds[name].values, value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_higher_orders(wave: Project) -> None:
    wave.yaml("""\
        defaults: [engine, _self_]
        name: cube
        parameters: {k: 2.0}
        stages: {cube: {_target_: model.cube}}
        derivatives:
          d1: {of: cube, wrt: k}
          d2: {of: cube, wrt: k, order: 2}
          d3: {of: cube, wrt: k, order: 3}
          d4: {of: cube, wrt: k, order: 4}
    """)
    ds = wave.run()
    assert [float(ds[f"d{n}.k"]) for n in (1, 2, 3, 4)] == [12.0, 12.0, 6.0, 0.0]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("h={of: s, wrt: [a], kind: hessian, direction: 1.0}", ["`derivatives.h.direction` must be left out"]),
        ("h={of: s, wrt: [a], kind: jvp}", ["`derivatives.h.direction` must be given", "{a: 1.0}"]),
        ("h={of: s, wrt: [a, b], kind: jvp, direction: 1.0}", ["mapping from each parameter", "a: 1.0, b: 1.0"]),
        ("h={of: s, wrt: [a], kind: jvp, direction: {aa: 1.0}}", ["`derivatives.h.direction.aa`", "Did you mean 'a'"]),
        ("h={of: s, wrt: [c], kind: jvp, direction: [1.0]}", ["shape of 'c', (2,), but has (1,)"]),
        ("h={of: v, wrt: [a], kind: vjp, direction: 1.0}", ["shape of the output 'v', (2,), but has ()"]),
        ("h={of: s, wrt: [a], kind: jvp, direction: x}", ["must be numbers", "'x'"]),
        ("h={of: v, wrt: [a], kind: gradient}", ["must be a scalar", "kind: jacobian"]),
        ("h={of: v, wrt: [a], kind: hvp, direction: 1.0}", ["must be a scalar", "kind: hessian"]),
        ("h={of: s, wrt: [c], order: 2}", ["must be a scalar parameter", "kind: hessian"]),
        ("h={of: s, wrt: [a], kind: hessian, order: 2}", ["`derivatives.h.order` must be left out"]),
        ("h={of: s, wrt: [a], kind: jvp, direction: 1.0, mode: reverse}", ["must be forward for a jvp"]),
        ("h={of: s, wrt: [aa], kind: hessian}", ["'aa' is none", "Did you mean 'a'"]),
    ],
)
def test_bad_requests_are_refused(wave: Project, node: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        wave.load(*add(node))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_auto_takes_the_mode_that_a_stage_lets_through(project: Project) -> None:
    project.model("""\
        import jax
        import jax.numpy as jnp


        @jax.custom_vjp
        def only_reverse(k):
            return k**2


        only_reverse.defvjp(lambda k: (k**2, k), lambda k, g: (2 * k * g,))


        def reverse_only(k):
            return only_reverse(k)


        def forward_only(k):
            return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * k), (0, 1.0))[1]
    """).yaml("""\
        defaults: [engine, _self_]
        name: modes
        parameters: {k: 2.0}
        stages: {f: {_target_: model.reverse_only}}
        derivatives: {d: {of: f, wrt: k}}
    """)
    plan = project.load()
    assert plan.passes[0].mode == "reverse"
    assert "lets no forward mode through" in plan.passes[0].reason
    assert float(project.run()["d.k"]) == 4.0
    with pytest.raises(PlanError, match=r"`derivatives\.d` must go through.*Write mode: reverse"):
        project.load("+derivatives.d.mode=forward")
    assert float(project.run("stages.f._target_=model.forward_only", store="b.zarr")["d.k"]) == 12.0
    with pytest.raises(PlanError, match=r"`derivatives\.d` must go through.*Write mode: forward"):
        project.load("stages.f._target_=model.forward_only", "+derivatives.d.mode=reverse")


@pytest.mark.parametrize(
    ("adjoint", "allowed"),
    [("forward", {"g", "t", "h"}), ("checkpointed", {"g", "w"}), ("direct", {"g", "t", "w", "h", "hv"})],
)
def test_adjoint_by_hand(project: Project, adjoint: str, allowed: set[str]) -> None:
    project.model(MODEL).yaml(DECAY)
    nodes = {"g": "", "t": "", "w": "", "h": "", "hv": ", mode: reverse"}
    for name in nodes:
        drop = [f"~derivatives.{other}" for other in ("g", "h", "hv", "t", "w", "d3") if other != name]
        mode = ["+derivatives.hv.mode=reverse"] if name == "hv" else []
        overrides = [f"solver.adjoint={adjoint}", "solver.max_steps=512", *drop, *mode]
        if name in allowed:
            project.load(*overrides)
        else:
            with pytest.raises(PlanError, match=rf"`derivatives\.{name}\.mode` must suit the adjoint.*{adjoint}"):
                project.load(*overrides)


def test_what_has_no_derivative_may_stand_beside_it(project: Project) -> None:
    """A pass goes through the stages that its output needs: a loop that no reverse mode passes is left alone beside it."""
    project.model("""
        import jax
        import jax.numpy as jnp
        def loop(a):
            return jax.lax.while_loop(lambda x: x < 100.0, lambda x: x * a, 1.0)
        def cube(a):
            return a**3
    """).yaml("""
        defaults: [engine, _self_]
        name: beside
        parameters: {a: 3.0}
        stages: {loop: {_target_: model.loop}, cube: {_target_: model.cube}}
        sweep: {axes: {a: [2.0, 3.0]}}
        derivatives:
          d: {of: cube, wrt: [a], mode: reverse}
          h: {of: cube, wrt: [a], kind: hessian, mode: reverse}
    """)
    ds = project.run()
    np.testing.assert_allclose(ds["loop"], [128.0, 243.0])
    np.testing.assert_allclose(ds["d.a"], [12.0, 27.0])
    np.testing.assert_allclose(ds["h.a.a"], [12.0, 18.0])
