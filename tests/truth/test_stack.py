"""The written-out transform stack: what each layer does to the numbers, and which orders are refused."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import PlanError
from tests.project import Project

MODEL = """
    import jax
    import jax.numpy as jnp

    def wave(a, b):
        return {"f": jnp.sin(a) * b**2, "path": a * b ** jnp.arange(3.0)}

    def end(wave):
        return wave["f"] ** 2

    def noisy(a, key):
        return a**3 + 0 * jax.random.normal(key)

    def smoothed(function, width=0.1):
        # The mean over two points around `a`: its derivative is that of the mean.
        def mean(parameters, key):
            both = [function({**parameters, "a": parameters["a"] + s * width}, key) for s in (-1, 1)]
            return {n: (both[0][n] + both[1][n]) / 2 if n != "status" else both[0][n] for n in both[0]}
        return mean

    def doubled(function):
        def twice(parameters, key):
            return {n: v if n == "status" else 2 * v for n, v in function(parameters, key).items()}
        return twice

    def renamed(function):
        return lambda parameters, key: {"other": function(parameters, key)["f"]}

    def reshaped(function):
        def wrong(parameters, key):
            found = function(parameters, key)
            return {**found, "f": found["f"][None]}
        return wrong

    def nothing(function):
        return None
"""
CASE = """
    defaults: [engine, _self_]
    name: stack
    parameters: {a: 0.3, b: 2.0}
    stages: {wave: {_target_: model.wave}, end: {_target_: model.end}}
    outputs: {f: wave.f, path: {from: wave.path, dims: [n]}, end: end}
    sweep: {axes: {a: {linspace: [0.0, 1.0, 7]}, b: [0.5, 1.0, 2.0]}}
    derivatives: {df: {of: f, wrt: [a, b]}, dend: {of: end, wrt: [a], mode: reverse}}
"""


@pytest.fixture
def wave(project: Project) -> Project:
    return project.model(MODEL).yaml(CASE)


def truth(ds: object, width: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """f and df/da at the samples, smoothed over ±width."""
    a, b = np.meshgrid(ds["a"], ds["b"], indexing="ij")  # type: ignore[index]
    f = b**2 * (np.sin(a - width) + np.sin(a + width)) / 2
    return f, b**2 * (np.cos(a - width) + np.cos(a + width)) / 2


@pytest.mark.parametrize(
    ("stack", "formula"),
    [
        ("[derivatives,vmap,jit]", "jit ∘ vmap[21] ∘"),
        ("[derivatives,vmap,devices,jit]", "jit ∘ vmap[21] ∘"),
        ("[derivatives,vmap]", "vmap[21] ∘"),
        ("[derivatives,{map:{axes:[a,b]}},jit]", "jit ∘ map[a, b] ∘ vmap[1] ∘"),
        ("[derivatives,map,jit]", "jit ∘ map[a, b] ∘ vmap[1] ∘"),
        ("[derivatives,vmap,{map:{axes:[a],batch:2}},jit]", "jit ∘ map[a] ∘ vmap[6] ∘"),
        ("[derivatives,{checkpoint:{stages:[wave]}},vmap,jit]", "∘ checkpoint(wave) ∘ (end ∘ wave)"),
        ("[checkpoint,derivatives,vmap,jit]", "∘ checkpoint(wave, end) ∘ (end ∘ wave)"),
    ],
)
def test_layers_that_leave_the_numbers_alone(wave: Project, stack: str, formula: str) -> None:
    plan = wave.load(f"transforms={stack}")
    assert formula in plan.formula
    assert plan.draft.fingerprint == wave.load().draft.fingerprint
    ds = wave.run(f"transforms={stack}")
    f, slope = truth(ds)
    np.testing.assert_allclose(ds["f"], f, rtol=1e-14)
    np.testing.assert_allclose(ds["df.a"], slope, rtol=1e-14)
    np.testing.assert_allclose(ds["dend.a"], 2 * f * slope, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 4, 21])
def test_a_map_within_chunks_of_any_width(wave: Project, chunk: int) -> None:
    ds = wave.run("transforms=[derivatives,vmap,{map:{axes:[a],batch:3}},jit]", f"execution.chunk={chunk}")
    np.testing.assert_allclose(ds["df.a"], truth(ds)[1], rtol=1e-14)


def test_a_map_holds_few_samples_at_once(project: Project) -> None:
    """XLA's own account: temporaries are those of a batch, not of the chunk."""
    from engine.program import fit

    project.model("""
        import jax.numpy as jnp
        def big(a):
            x = jnp.sin(a * jnp.arange(100_000.0))
            return jnp.sum(jnp.sort(x) * jnp.arange(100_000.0))
    """).yaml("""
        defaults: [engine, _self_]
        name: big
        parameters: {a: 1.0}
        stages: {big: {_target_: model.big}}
        sweep: {axes: {a: {linspace: [0.0, 1.0, 64]}}}
        execution: {chunk: 64}
    """)
    whole = fit(project.load()).cost.memory["temporaries"]
    mapped = fit(project.load("transforms=[{map:{batch:4}},jit]")).cost.memory["temporaries"]
    assert mapped < whole / 8


def test_the_derivative_is_that_of_the_transformed_values(wave: Project) -> None:
    inside = wave.run("transforms=[{_target_:model.smoothed,width:0.2},derivatives,vmap,jit]", store="inside.zarr")
    f, slope = truth(inside, 0.2)
    np.testing.assert_allclose(inside["f"], f, rtol=1e-14)
    np.testing.assert_allclose(inside["df.a"], slope, rtol=1e-14)


def test_outside_the_derivatives_it_transforms_them_too(wave: Project) -> None:
    plan = wave.load("transforms=[derivatives,{_target_:model.doubled},vmap,jit]")
    assert "∘ model.doubled ∘ value_and" in plan.formula
    ds = wave.run("transforms=[derivatives,{_target_:model.doubled},vmap,jit]")
    f, slope = truth(ds)
    np.testing.assert_allclose(ds["f"], 2 * f, rtol=1e-14)
    np.testing.assert_allclose(ds["df.a"], 2 * slope, rtol=1e-14)


def test_another_transform_is_another_question(wave: Project) -> None:
    stacks = ["width:0.2", "width:0.3"]
    prints = {
        wave.load(f"transforms=[{{_target_:model.smoothed,{s}}},derivatives,vmap,jit]").draft.fingerprint
        for s in stacks
    }
    assert len(prints | {wave.load().draft.fingerprint}) == 3


def test_function_of_the_plan_is_the_transformed_one(wave: Project) -> None:
    plan = wave.load("transforms=[{_target_:model.smoothed,width:0.2},derivatives,vmap,jit]")
    found = plan.function({"a": 0.4, "b": 2.0})
    np.testing.assert_allclose(found["f"], 2 * (np.sin(0.2) + np.sin(0.6)), rtol=1e-14)
    assert set(found) == {"f", "path", "end"}


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("[jit,derivatives,vmap]", ["`transforms` must have derivatives inside jit", "before jit"]),
        ("[derivatives,devices,vmap,jit]", ["`transforms` must have vmap inside devices"]),
        ("[vmap,derivatives,jit]", ["`transforms` must have derivatives inside vmap"]),
        ("[vmap,jit]", ["must hold derivatives, which the config asks for"]),
        ("[derivatives,jit]", ["must hold vmap or map"]),
        ("[derivatives,vmap,vmap,jit]", ["must hold vmap once", "2 times"]),
        ("[derivatives,vmpa,jit]", ["`transforms.1`", "Did you mean 'vmap'?"]),
        ("[derivatives,vmap,{devices:0},jit]", ["`transforms.2.devices` must be a positive integer"]),
        ("[derivatives,vmap,{devices:64},jit]", ["`transforms` must ask for at most", "asks for 64"]),
        ("[derivatives,{map:{axes:[c]}},vmap,jit]", ["`transforms.1.map.axes`", "'c' is none"]),
        ("[derivatives,{map:{axes:[a]}},jit]", ["lacks 'b'", "Add vmap"]),
        ("[derivatives,{map:{axes:[a,b],batch:0}},jit]", ["`transforms.1.map.batch` must be a positive integer"]),
        ("[derivatives,{map:{axis:[a]}},jit]", ["`transforms.1.map` must be {axes"]),
        ("[derivatives,{checkpoint:{stages:[wav]}},vmap,jit]", ["checkpoint.stages", "Did you mean 'wave'?"]),
        ("[derivatives,vmap,{checkpoint:{stages:[wave]}},jit]", ["must act on one sample", "before vmap"]),
        ("[derivatives,vmap,{_target_:model.doubled},jit]", ["must act on one sample", "before vmap"]),
        ("[derivatives,{_target_:model.dubled},vmap,jit]", ["`transforms.1` must be built", "dubled"]),
        ("[{_target_:model.renamed},derivatives,vmap,jit]", ["model.renamed must give the names", "other"]),
        (
            "[{_target_:model.reshaped},derivatives,vmap,jit]",
            ["model.reshaped must keep 'f' as float64[]", "float64[1]"],
        ),
        ("[{_target_:model.nothing},derivatives,vmap,jit]", ["model.nothing must return a function"]),
        ("[]", ["`transforms` must be auto or a list"]),
        ("vmap", ["`transforms` must be auto or a list"]),
    ],
)
def test_what_cannot_mean_anything_is_refused(wave: Project, stack: str, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        wave.load(f"transforms={stack}")
    for word in words:
        assert word in str(caught.value)


def test_a_checkpoint_without_derivatives_is_refused(wave: Project) -> None:
    with pytest.raises(PlanError, match="must serve a derivative"):
        wave.load("transforms=[checkpoint,vmap,jit]", "~derivatives")


def test_a_checkpoint_keeps_nothing_of_its_stages(project: Project) -> None:
    """The reverse pass holds a rematerialized call for each stage named, and no other; the numbers are the same.

    (What that saves depends on how a backend orders its work: XLA's CPU backend often recomputes at once.)
    """
    from engine import jaxprs

    project.model("""
        import jax
        import jax.numpy as jnp
        def first(a):
            return jax.lax.scan(lambda y, _: (jnp.cos(jnp.sin(y) * a), None), jnp.ones(10), None, length=20)[0]
        def second(first, a):
            return jnp.sum(jnp.tanh(a * first))
    """).yaml("""
        defaults: [engine, _self_]
        name: deep
        parameters: {a: 0.7}
        stages: {first: {_target_: model.first}, second: {_target_: model.second}}
        derivatives: {d: {of: second, wrt: [a], mode: reverse}}
    """)
    stacks = {0: "auto", 1: "[{checkpoint:{stages:[first]}},derivatives,jit]", 2: "[checkpoint,derivatives,jit]"}
    found = {}
    for count, stack in stacks.items():
        program = project.load(f"transforms={stack}").sample_jaxpr
        again = [name for name in jaxprs.primitives(program) if name in ("checkpoint", "remat2")]
        assert len(again) >= count
        assert bool(again) == bool(count)
        found[count] = float(project.run(f"transforms={stack}", store=f"{count}.zarr")["d.a"])
    assert found[1] == pytest.approx(found[0], rel=1e-12)
    assert found[2] == pytest.approx(found[0], rel=1e-12)
