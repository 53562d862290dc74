"""One bad sample or one bad stage: what fails is marked, what does not is right, whatever the chunk."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import UserError
from tests.project import Project

CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 1.0}
    stages: {f: {_target_: model.f}}
    sweep: {axes: {k: [-1.0, -4.0, 0.5, -2.25, -9.0]}}
"""
ROOT = """\
    import jax.numpy as jnp
    import optimistix


    def f(k):
        return optimistix.root_find(lambda z, k: z * z + k, optimistix.Newton(1e-9, 1e-9), 1.0, k, max_steps=30).value
"""
CHECK = """\
    import equinox
    import jax.numpy as jnp


    def f(k):
        return jnp.sqrt(-equinox.error_if(k, k > 0, "k must be negative"))
"""


@pytest.mark.parametrize("model", [ROOT, CHECK], ids=["root", "check"])
@pytest.mark.parametrize("chunk", ["auto", "1", "2"])
def test_a_check_that_fails_stops_its_own_sample_only(project: Project, model: str, chunk: str) -> None:
    ds = project.model(model).yaml(CONFIG).run(f"execution.chunk={chunk}")
    assert ds.status.values.tolist() == [1, 1, 5, 1, 1]
    np.testing.assert_allclose(np.abs(ds.f.values), [1.0, 2.0, np.nan, 1.5, 3.0], rtol=1e-7)


def test_a_status_counts_at_any_depth(project: Project) -> None:
    project.model("""\
        import jax.numpy as jnp


        def f(k):
            bad = jnp.where(k > 0, 4, 0)
            return {"a": [{"y": k, "status": bad}], "b": 2 * k}
    """).yaml(CONFIG)
    ds = project.run()
    assert ds.status.values.tolist() == [1, 1, 4, 1, 1]
    assert set(ds.data_vars) == {"f.a.0.y", "f.b", "status"}
    assert np.isnan(ds["f.b"].values[2])


def test_what_all_samples_share_may_fail_too(project: Project) -> None:
    project.model("""\
        import jax.numpy as jnp


        def shared():
            return {"v": jnp.array(2.0), "n": jnp.array(3), "status": jnp.array(4)}


        def f(k, shared):
            return k * shared["v"]
    """).yaml(CONFIG)
    ds = project.run("+stages.shared={_target_: model.shared}", "outputs={f: f, v: shared.v, n: shared.n}")
    assert ds.status.values.tolist() == [4] * 5
    assert np.isnan(ds.v.values).all()
    assert np.isnan(ds.n.values).all(), "an integer that is no answer is masked"


def test_a_shared_stage_that_raises_is_an_error_and_leaves_no_store(project: Project) -> None:
    project.model("""\
        import jax
        import numpy as np


        def raises(x):
            raise ValueError("too big")


        def shared():
            return jax.pure_callback(raises, jax.ShapeDtypeStruct((), np.float64), 1.0)


        def f(k, shared):
            return k * shared
    """).yaml(CONFIG)
    answer = project.cli("run", "case.yaml", "+stages.shared={_target_: model.shared}", "store.path=store.zarr")
    assert answer.code == 2
    assert "'shared'" in answer.err
    assert "too big" in answer.err
    assert not (project.folder / "store.zarr").exists()


def test_the_program_is_what_was_traced(project: Project) -> None:
    """A module that changes after `load` does not mix into the run."""
    import sys

    import engine

    project.model("C = 1.0\n\n\ndef shared():\n    return C\n\n\ndef f(k, shared):\n    return k * C + 100 * shared\n")
    project.yaml(CONFIG)
    plan = project.load("+stages.shared={_target_: model.shared}", f"store.path={project.folder / 's.zarr'}")
    sys.modules["model"].C = 5.0  # type: ignore[attr-defined]
    np.testing.assert_array_equal(engine.run(plan).f.values, plan.draft.design.columns["k"] + 100)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["precision=float32", "sweep.axes.k=[1.0,1e39]"], ["`sweep.axes.k` must fit float32", "1e+39"]),
        (["precision=float32", "parameters.k=1", "sweep.axes.k=[1,3000000000]"], ["`sweep.axes.k` must fit int32"]),
        (["precision=float32", "parameters.k=1e39"], ["`parameters.k` must fit float32"]),
        (["+derivatives.d={of: f, wrt: [k, k]}"], ["`derivatives.d.wrt` must name each parameter once", "'k'"]),
        (["outputs={}"], ["`outputs` must hold at least one value"]),
    ],
)
def test_refused_before_the_run(project: Project, overrides: list[str], words: list[str]) -> None:
    project.model("def f(k):\n    return 1 / k\n").yaml(CONFIG)
    with pytest.raises(UserError) as caught:
        project.load(*overrides)
    for word in words:
        assert word in str(caught.value)


def test_jit_on_a_stage_keeps_no_trace_of_another_mode(project: Project) -> None:
    project.model("""\
        import jax

        from ops.ode import solve


        @jax.jit
        def f(k):
            return solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, rtol=1e-9).y
    """).yaml(CONFIG)
    nodes = ["+derivatives.r={of: f, wrt: k, mode: reverse}", "+derivatives.s={of: f, wrt: k, mode: forward}"]
    ds = project.run("sweep.axes.k=[1.0,2.0]", *nodes)
    for name in ("r.k", "s.k"):
        np.testing.assert_allclose(ds[name].values, -np.exp([-1.0, -2.0]), rtol=1e-6)
