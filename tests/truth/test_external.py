"""`ops.external.callback`: NumPy and SciPy code as a stage, its value and every derivative against closed forms."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

from engine.gradient_check import check_gradients
from ops.external import callback
from tests.project import Project


def cantilever(load: Any, x: Any) -> Any:
    """Vectorized: leading axes are kept. Deflection load x0^2 x1 and slope exp(x0) load^2."""
    return np.stack([load * x[..., 0] ** 2 * x[..., 1], np.exp(x[..., 0]) * load**2], axis=-1)


def by_arguments(load: Any, x: Any) -> dict[str, Any]:
    e, zero = np.exp(x[..., 0]), np.zeros_like(load)
    of_load = np.stack([x[..., 0] ** 2 * x[..., 1], 2 * e * load], axis=-1)
    first = np.stack([2 * load * x[..., 0] * x[..., 1], load * x[..., 0] ** 2], axis=-1)
    return {"load": of_load, "x": np.stack([first, np.stack([e * load**2, zero], axis=-1)], axis=-2)}


def along(primals: Any, tangents: Any) -> Any:
    found = by_arguments(**primals)
    return found["load"] * np.asarray(tangents["load"])[..., None] + np.einsum(
        "...ij,...j->...i", found["x"], tangents["x"]
    )


def exact(load: Any, x: Any) -> Any:
    return jnp.stack([load * x[0] ** 2 * x[1], jnp.exp(x[0]) * load**2])


ARGUMENTS = (np.float64(1.7), np.array([0.4, -1.2]))
RULES: dict[str, tuple[dict[str, Any], float]] = {
    "finite": ({}, 1e-9),
    "finite, fourth order": ({"order": 4}, 1e-11),
    "complex": ({"derivatives": "complex"}, 1e-15),
    "jacobian": ({"jacobian": by_arguments}, 1e-15),
    "jacobian as a tuple": ({"jacobian": lambda load, x: tuple(by_arguments(load, x).values())}, 1e-15),
    "jvp": ({"jvp": along}, 1e-15),
    "jacobian under jit": ({"jacobian": jax.jit(lambda load, x: jax.jacfwd(exact, (0, 1))(load, x))}, 1e-15),
}


@contextmanager
def float32() -> Iterator[None]:
    jax.config.update("jax_enable_x64", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("narrow", ["result", "argument", "both"])
def test_steps_follow_the_coarsest_dtype(narrow: str, order: int) -> None:
    """With steps for float64, a result in float32 gives a slope 0.2 % off."""
    result = "float" if narrow == "argument" else "float32"
    sine = callback(lambda x: np.sin(x), result=result, order=order)
    x = jnp.asarray(0.7, float if narrow == "result" else jnp.float32)
    assert float(jax.grad(lambda x: sine(x).astype(float))(x)) == pytest.approx(np.cos(0.7), rel=2e-5)
    step = {2: "4.9e-03", 4: "4.1e-02"}[order]
    assert narrow == "argument" or step in str(sine.derivatives)  # type: ignore[attr-defined]


@pytest.mark.parametrize("vectorized", [False, True], ids=["one by one", "vectorized"])
@pytest.mark.parametrize("rule", RULES)
def test_both_modes_single_and_batched(rule: str, vectorized: bool) -> None:
    settings, tolerance = RULES[rule]
    beam = callback(cantilever, result=(2,), vectorized=vectorized, **settings)
    loads, xs = jnp.linspace(1.0, 2.0, 3), jnp.stack([ARGUMENTS[1], 2 * ARGUMENTS[1], 1 + ARGUMENTS[1]])
    for jacobian in (jax.jacfwd, jax.jacrev):
        for i in (0, 1):
            ours, theirs = jacobian(beam, i), jacobian(exact, i)
            close(ours(*ARGUMENTS), theirs(*ARGUMENTS), tolerance)
            for axes, given in (((0, 0), (loads, xs)), ((0, None), (loads, xs[0])), ((None, 0), (loads[0], xs))):
                close(jax.jit(jax.vmap(ours, axes))(*given), jax.vmap(theirs, axes)(*given), tolerance)
    nested = jax.vmap(jax.vmap(jax.jacrev(beam, (0, 1)), (None, 0)), (0, None))(loads, xs)
    expected = jax.vmap(jax.vmap(jax.jacrev(exact, (0, 1)), (None, 0)), (0, None))(loads, xs)
    close(nested[0], expected[0], tolerance)
    close(nested[1], expected[1], tolerance)


def close(found: Any, expected: Any, tolerance: float) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("vectorized", [False, True], ids=["one by one", "vectorized"])
def test_second_derivatives_of_a_jacobian_that_is_differentiable(vectorized: bool) -> None:
    inner = callback(by_arguments, result={"load": (2,), "x": (2, 2)}, order=4, vectorized=vectorized)
    beam = callback(cantilever, result=(2,), jacobian=inner, vectorized=vectorized)
    for second in (
        jax.hessian,
        lambda f, i: jax.jacfwd(jax.jacfwd(f, i), i),
        lambda f, i: jax.jacrev(jax.jacrev(f, i), i),
    ):
        for i in (0, 1):
            close(second(beam, i)(*ARGUMENTS), second(exact, i)(*ARGUMENTS), 1e-10)


def test_a_closed_root_finder_by_the_implicit_function_theorem() -> None:
    """Kepler's equation E - e sin E = M: dE/dM = 1 / (1 - e cos E), dE/de = sin E / (1 - e cos E)."""

    def anomaly(m: Any, e: Any) -> Any:
        return scipy.optimize.brentq(lambda x: x - e * np.sin(x) - m, 0.0, np.pi, xtol=1e-15)

    kepler = callback(anomaly)
    for m, e in ((0.5, 0.1), (1.5, 0.6), (2.5, 0.9)):
        x = anomaly(m, e)
        slope = 1 / (1 - e * np.cos(x))
        found = jax.grad(kepler, (0, 1))(m, e)
        np.testing.assert_allclose(found, [slope, np.sin(x) * slope], rtol=1e-8)


def test_steps_follow_the_size_of_the_argument() -> None:
    """x^3 at sizes from 1e-9 to 1e9 to the same relative error; at zero and at rounding's leftovers of zero, as at 1."""
    cube = callback(lambda x: x**3)
    for x in (1e-9, 3e-4, 1.0, 7e5, 1e9):
        assert jax.grad(cube)(x) == pytest.approx(3 * x**2, rel=1e-9)
    line = callback(lambda x: 2 * x + np.cos(x))
    for x in (0.0, 1e-17, -2e-17):
        assert jax.grad(line)(x) == pytest.approx(2.0, rel=1e-9)
    power = callback(lambda x: x**2 * 1e40, typical=1e-20)
    assert jax.grad(power)(1e-19) == pytest.approx(2e21, rel=1e-9)
    mixed = callback(lambda x: x[0] * x[1] ** 2, step={"x": 1e-4})
    np.testing.assert_allclose(jax.grad(mixed)(jnp.array([2e11, 1e-3])), [1e-6, 4e8], rtol=1e-7)


class Section(NamedTuple):
    area: Any
    shape: Any


def test_pytrees_integers_and_constants() -> None:
    """Only real floating-point parts move; a constant passes as it is."""

    def props(dims: Any, n: Any, kind: str, options: Any) -> Any:
        assert isinstance(kind, str)
        assert isinstance(options["scale"], list)
        assert isinstance(n, np.integer)
        assert isinstance(dims["h"], float)
        dims["b"][:] += 0  # a copy of its own, which it may write to
        return {"section": (dims["h"] * dims["b"].sum() * n, dims["b"].tolist()), "n": n + 1, "tall": dims["h"] > 1}

    result = {"section": Section((), (2,)), "n": int, "tall": "bool[]"}
    f = callback(props, result=result)
    dims, n = {"h": jnp.asarray(2.0), "b": jnp.array([1.0, 3.0])}, jnp.asarray(3)
    found = jax.jit(lambda dims, n: f(dims, n, "I", options={"scale": [1, 2]}))(dims, n)
    assert isinstance(found["section"], Section)
    assert (float(found["section"].area), int(found["n"]), bool(found["tall"])) == (24.0, 4, True)
    area = jax.grad(lambda dims: f(dims, n, "I", {"scale": [1]})["section"].area)(dims)
    np.testing.assert_allclose([area["h"], *area["b"]], [12.0, 6.0, 6.0], rtol=1e-9)
    shape = jax.jacrev(lambda dims: f(dims, n, "I", {"scale": [1]})["section"].shape)(dims)
    np.testing.assert_allclose(shape["b"], np.eye(2), atol=1e-9)
    np.testing.assert_allclose(shape["h"], np.zeros(2), atol=1e-9)

    def declared(dims: Any, n: Any, kind: str, options: Any) -> Any:
        zero = {"h": np.zeros(2), "b": np.eye(2)}
        of_area = {"h": dims["b"].sum() * n, "b": np.full(2, dims["h"] * n)}
        return {"dims": {"section": (of_area, zero), "n": None, "tall": None}}

    g = callback(props, result=result, jacobian=declared)
    area = jax.grad(lambda dims: g(dims, n, "I", {"scale": [1]})["section"].area)(dims)
    assert (float(area["h"]), area["b"].tolist()) == (12.0, [6.0, 6.0])


def test_float32() -> None:
    with float32():
        seen = []

        def f(x: Any) -> Any:
            seen.append(x.dtype)
            return [np.float64(x[0]) * 3, x[1] ** 2]

        wrapped = callback(f, result=(2,))
        x = jnp.array([2.0, 3.0])
        assert wrapped(x).dtype == jnp.float32
        np.testing.assert_allclose(jax.jacfwd(wrapped)(x), [[3, 0], [0, 6]], rtol=2e-4, atol=1e-4)
        assert set(seen) == {np.dtype("float32")}
        assert "4.9e-03" in str(wrapped.derivatives)
        steps = callback(lambda x: np.sin(x), derivatives="complex")
        assert float(jax.grad(steps)(0.3)) == pytest.approx(np.cos(0.3), rel=1e-6)


def test_a_key_seeds_numpy() -> None:
    draw = callback(lambda key, scale: scale * np.random.default_rng(key).normal(size=3), result=(3,))
    keys = jax.random.split(jax.random.key(4), 2)
    one = jax.vmap(draw, (0, None))(keys, 2.0)
    expected = [2.0 * np.random.default_rng(np.asarray(jax.random.key_data(k))).normal(size=3) for k in keys]
    np.testing.assert_array_equal(one, expected)
    slope = jax.jacfwd(draw, 1)(keys[0], 2.0)
    np.testing.assert_allclose(slope, expected[0] / 2, rtol=1e-9)


def test_a_result_that_has_lost_its_imaginary_part_is_not_taken_for_constant() -> None:
    mixed = callback(lambda a, b: [np.sin(a), 3.0 * b], result=(2,), derivatives="complex")
    assert jax.jacfwd(mixed)(0.5, 2.0).tolist() == [np.cos(0.5), 0.0]
    apart = callback(lambda a, b: {"s": a * a, "m": float(b)}, result={"s": (), "m": ()}, derivatives="complex")
    assert jax.jacfwd(apart)(3.0, 2.0) == {"s": 6.0, "m": 0.0}
    lost = callback(abs, derivatives="complex")
    with pytest.raises(Exception, match="must pass complex numbers through"):
        jax.grad(lost)(2.0)


def test_equal_calls_compile_once() -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    f = callback(lambda x, table, n: x * table[n])
    for i in range(5):
        f(jnp.asarray(1.0 + i), np.arange(3.0), 1)
    assert len([event for event in compiled if event]) <= 3


@pytest.mark.parametrize(("settings", "most"), [({}, 1), ({"lock": False}, 2)], ids=["lock", "no lock"])
def test_one_call_at_a_time(settings: dict[str, Any], most: int) -> None:
    """Two threads at once: with the lock no two calls overlap, without it they do."""
    inside: set[int] = set()
    seen = []

    def slow(x: Any) -> Any:
        inside.add(threading.get_ident())
        for _ in range(20):
            time.sleep(0.002)
            seen.append(len(inside))
        inside.discard(threading.get_ident())
        return x

    program = jax.jit(callback(slow, **settings)).lower(jnp.asarray(0.0)).compile()
    threads = [threading.Thread(target=lambda: program(jnp.asarray(0.0)).block_until_ready()) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) == most


# ---- in the engine

MODEL = """\
    import numpy as np
    from scipy.integrate import quad
    from scipy.optimize import brentq

    from ops.external import callback


    def depth(q, slope):
        # normal depth of a wide channel, q = y^(5/3) sqrt(slope), found numerically
        return brentq(lambda y: y ** (5 / 3) * np.sqrt(slope) - q, 1e-6, 1e3, xtol=1e-14)


    @callback(result={"energy": (), "parts": (2,)}, order=4)
    def flow(depth, q):
        '''Specific energy y + q^2 / (2 y^2), and the integrals of t and t^2 to the depth.'''
        return {"energy": depth + q**2 / (2 * depth**2), "parts": [quad(lambda t, n=n: t**n, 0, depth)[0] for n in (1, 2)]}


    def scaled(q, table, factor):
        return q**2 * factor * np.sum(table)


    def scaled_slope(q, table, factor):
        return 2 * q * factor * np.sum(table)
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: channel
    parameters: {q: 2.0, slope: 0.01}
    stages:
      depth:
        _target_: {_target_: ops.external.callback, function: {_target_: model.depth, _partial_: true}}
      flow: {_target_: model.flow}
      scaled:
        _target_:
          _target_: ops.external.callback
          function: {_target_: model.scaled, _partial_: true, factor: 3.0}
          jacobian: {_target_: model.scaled_slope, _partial_: true, factor: 3.0}
        table: [1.0, 2.0]
    outputs: {depth: depth, energy: flow.energy, parts: flow.parts, scaled: scaled}
    derivatives:
      g: {of: energy, wrt: [q, slope]}
      j: {of: parts, wrt: [q, slope], kind: jacobian, mode: reverse}
      t: {of: parts, wrt: [q, slope], kind: jvp, direction: {q: 1.0, slope: 0.5}}
      w: {of: parts, wrt: [q, slope], kind: vjp, direction: [1.0, -2.0]}
      s: {of: scaled, wrt: q}
"""
SWEEPS = {
    "single": [],
    "grid": ["+sweep.axes={q: [1.0, 2.0, 3.0], slope: [0.01, 0.04]}"],
    "random": ["+sweep={design: random, samples: 7, axes: {q: {uniform: [1.0, 3.0]}, slope: {uniform: [0.01, 0.04]}}}"],
}


def analytic(q: Any, slope: Any) -> dict[str, Any]:
    """Every output and derivative in closed form, from y = (q / sqrt(slope))^(3/5)."""
    y = (q / np.sqrt(slope)) ** 0.6
    yq, ys = 0.6 * y / q, -0.3 * y / slope
    ey, eq = 1 - q**2 / y**3, q / y**2
    parts = np.stack([y**2 / 2, y**3 / 3], axis=-1)
    py = np.stack([y, y**2], axis=-1)
    jq, js = py * yq[..., None], py * ys[..., None]
    return {
        "depth": y, "energy": y + q**2 / (2 * y**2), "parts": parts, "scaled": 9 * q**2, "s.q": 18 * q,
        "g.q": ey * yq + eq, "g.slope": ey * ys, "j.q": jq, "j.slope": js, "t": jq + 0.5 * js,
        "w.q": jq[..., 0] - 2 * jq[..., 1], "w.slope": js[..., 0] - 2 * js[..., 1],
    }  # fmt: skip


@pytest.fixture
def channel(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize(
    "how",
    [[], ["scheduler.workers=3", "execution.chunk=2"], ["scheduler.kind=synchronous", "execution.jit=false"]],
    ids=["jit", "workers", "op by op"],
)
def test_every_kind_of_first_derivative(channel: Project, sweep: str, how: list[str]) -> None:
    ds = channel.run(*SWEEPS[sweep], *how)
    assert (ds.status == 1).all()
    q = ds.q if "q" in ds.coords else 2.0
    slope = ds.slope if "slope" in ds.coords else 0.01
    q, slope = np.broadcast_arrays(*np.meshgrid(q, slope, indexing="ij")) if sweep == "grid" else (q, slope)
    for name, value in analytic(np.asarray(q), np.asarray(slope)).items():
        np.testing.assert_allclose(ds[name].values, value, rtol=1e-7, atol=1e-9, err_msg=name)


def test_plan_says_where_derivatives_come_from(channel: Project) -> None:
    answer = channel.cli("plan", "case.yaml")
    assert answer.code == 0, answer.err
    assert "= ops.external.callback(function=model.depth)(q, slope)" in answer.out
    assert "derivatives by finite differences (central, step 6.1e-06 of the argument)" in answer.out
    assert "derivatives by finite differences (central, fourth order, step 7.4e-04 of the argument)" in answer.out
    assert "derivatives declared (jacobian scaled_slope)" in answer.out
    rules = [stage["derivatives"] for stage in channel.cli("plan", "case.yaml", "--json").json["stages"]]
    assert "declared (jacobian scaled_slope)" in rules
    assert any(rule and rule.startswith("by finite differences (central, step") for rule in rules)


def test_check_grad_believes_a_right_jacobian_and_finds_a_wrong_one(channel: Project) -> None:
    verdicts = {row.derivative: row.verdict for row in check_gradients(channel.load())}
    assert set(verdicts.values()) == {"ok"}, verdicts
    channel.model(MODEL.replace("2 * q * factor", "q * factor"))
    verdicts = {row.derivative: row.verdict for row in check_gradients(channel.load())}
    assert [name for name, verdict in verdicts.items() if verdict != "ok"] == ["s.q"]
    assert verdicts["s.q"] == "differs"


def test_a_hessian_through_a_jacobian_of_its_own(project: Project) -> None:
    """f = k^4: f' = 4 k^3 declared, f'' = 12 k^2 by differences of it."""
    project.model("""\
        def f(k):
            return k**4


        def slope(k):
            return 4 * k**3
    """).yaml("""\
        defaults: [engine, _self_]
        name: hessian
        parameters: {k: 2.0}
        stages:
          f:
            _target_:
              _target_: ops.external.callback
              function: {_target_: model.f, _partial_: true}
              jacobian: {_target_: ops.external.callback, function: {_target_: model.slope, _partial_: true}}
        sweep: {axes: {k: [1.0, 2.0]}}
        derivatives:
          h: {of: f, wrt: k, kind: hessian}
          hv: {of: f, wrt: k, kind: hvp, direction: 3.0, mode: reverse}
    """)
    ds = project.run()
    np.testing.assert_allclose(ds["h.k.k"], 12 * ds.k.values**2, rtol=1e-9)
    np.testing.assert_allclose(ds["hv.k"], 36 * ds.k.values**2, rtol=1e-9)


def test_inside_an_ode(project: Project) -> None:
    """y' = -g(k) y with g = k^2 in NumPy: y(1) = exp(-k^2), dy/dk = -2 k exp(-k^2)."""
    project.model("""\
        import numpy as np

        from ops.external import callback
        from ops.ode import solve

        rate = callback(lambda k, y: -np.square(k) * y, derivatives="complex")


        def y(k, solver):
            return solve(lambda t, y, k: rate(k, y), 1.0, k, t1=1.0, solver=solver).y
    """).yaml("""\
        defaults: [engine, {solver: tsit5}, _self_]
        name: inside
        parameters: {k: 0.7}
        solver: {rtol: 1e-8, atol: 1e-10}
        stages: {y: {_target_: model.y, solver: "${solver}"}}
        derivatives: {f: {of: y, wrt: k, mode: forward}, r: {of: y, wrt: k, mode: reverse}}
    """)
    ds = project.run()
    exact = -1.4 * np.exp(-0.49)
    np.testing.assert_allclose([ds.y, ds["f.k"], ds["r.k"]], [np.exp(-0.49), exact, exact], rtol=1e-6)


def test_a_sample_that_raises_harms_no_other(channel: Project) -> None:
    """brentq finds no root for a negative slope; values and derivatives of the neighbours are as without it."""
    good = channel.run("+sweep.axes.slope=[0.01,0.02,0.03,0.04,0.05]", store="good.zarr")
    with np.errstate(invalid="ignore"):
        bad = channel.run("+sweep.axes.slope=[0.01,0.02,0.0,0.04,0.05]", "scheduler.workers=2")
    assert bad.status.values.tolist() == [1, 1, 5, 1, 1]
    for name in ("depth", "energy", "parts", "g.slope", "j.q"):
        assert np.isnan(bad[name].isel(slope=2)).all()
        np.testing.assert_array_equal(bad[name].isel(slope=[0, 1, 3, 4]), good[name].isel(slope=[0, 1, 3, 4]))


def test_reports_a_status_as_any_stage(project: Project) -> None:
    project.model("""\
        def f(k):
            return {"y": 1.0 / k if k else 0.0, "status": 0 if k else 4}
    """).yaml("""\
        defaults: [engine, _self_]
        name: status
        parameters: {k: 1.0}
        stages:
          f:
            _target_:
              _target_: ops.external.callback
              function: {_target_: model.f, _partial_: true}
              result: {y: [], status: int}
        outputs: {y: f.y}
        sweep: {axes: {k: [0.0, 2.0]}}
    """)
    ds = project.run()
    assert ds.status.values.tolist() == [4, 1]
    assert ds.y.values[1] == 0.5


def test_dimensions_and_shapes_of_annotations(project: Project) -> None:
    project.model("""\
        import numpy as np
        from jaxtyping import Float

        from ops.external import callback


        @callback(result=(4,))
        def wave(x: Float[np.ndarray, "2"]) -> Float[np.ndarray, "time"]:
            return x[0] * np.arange(4) + x[1]
    """).yaml("""\
        defaults: [engine, _self_]
        name: annotated
        parameters: {x: [1.0, 2.0]}
        stages: {wave: {_target_: model.wave}}
    """)
    ds = project.run()
    assert ds.wave.dims == ("time",)
    assert ds.wave.values.tolist() == [2, 3, 4, 5]


def test_numbers_that_fill_a_shape_of_a_model(project: Project) -> None:
    """An integer parameter reaches NumPy as an integer, in a sweep too."""
    project.model("""\
        from ops.external import callback


        @callback(result="int[3]")
        def powers(n):
            return [n**i for i in range(3)]
    """).yaml("""\
        defaults: [engine, _self_]
        name: powers
        parameters: {n: 2}
        stages: {powers: {_target_: model.powers}}
        sweep: {axes: {n: [1, 2, 3]}}
    """)
    ds = project.run()
    assert ds.powers.encoding["dtype"].kind == "i"
    assert ds.powers.values.tolist() == [[1, 1, 1], [1, 2, 4], [1, 3, 9]]


def test_editing_the_function_is_another_question(channel: Project) -> None:
    one = channel.load().draft.fingerprint
    assert channel.load().draft.fingerprint == one
    for old, new in (
        ("(5 / 3)", "(4 / 3)"),
        ("depth**2)", "depth**3)"),
        ("* factor", "/ factor"),
        ("order=4", "order=2"),
    ):
        assert old in MODEL
        channel.model(MODEL.replace(old, new))
        assert channel.load().draft.fingerprint != one, new
    channel.model(MODEL + "\n\n    def unrelated():\n        return 1\n")
    assert channel.load().draft.fingerprint == one
    assert channel.load("stages.scaled._target_.function.factor=4.0").draft.fingerprint != one


def test_the_same_command_finds_its_results(channel: Project) -> None:
    assert channel.cli("run", "case.yaml", "store.path=s.zarr").code == 0
    again = channel.cli("run", "case.yaml", "store.path=s.zarr")
    assert again.code == 0
    assert "nothing to do" in again.out


def test_many_threads_and_large_arrays(project: Project) -> None:
    """More chunks in flight than cores, each with arrays that are too large to be copied in passing: none waits for ever."""
    project.model("""\
        import numpy as np
        import jax.numpy as jnp

        from ops.external import callback

        flip = callback(lambda x: -x, result=(50_001,), derivatives="none")


        def total(k):
            return jnp.sum(flip(k * jnp.ones(50_001)))
    """).yaml("""\
        defaults: [engine, _self_]
        name: large
        parameters: {k: 1.0}
        stages: {total: {_target_: model.total}}
        sweep: {axes: {k: {linspace: [0, 1, 48]}}}
        execution: {chunk: 2}
        scheduler: {workers: 8}
    """)
    ds = project.run()
    np.testing.assert_allclose(ds.total, -50_001 * ds.k, rtol=1e-12)


def test_quadrature_with_a_tolerance_needs_longer_steps() -> None:
    """d/da of the integral of exp(-a t) over [0, 1] is known; a coarse quadrature is noise to short steps."""

    def coarse(a: Any) -> Any:
        value = scipy.integrate.quad(lambda t: np.exp(-a * t), 0, 1)[0]
        return float(np.round(value, 9))

    a = 1.3
    exact = -1 / a**2 + np.exp(-a) * (1 / a + 1 / a**2)
    assert jax.grad(callback(coarse, step=1e-2, order=4))(a) == pytest.approx(exact, rel=1e-6)
    assert jax.grad(callback(coarse))(a) != pytest.approx(exact, rel=1e-6)
