"""The compiled program: XLA's own account of it, what it lends its memory to, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest

from engine import runtime
from engine.errors import PlanError
from engine.plan import resized
from engine.program import fit
from engine.schema import Execution
from engine.transforms import donatable
from tests.project import Project

MODEL = """
    import jax.numpy as jnp
    def wide(a, b):
        x = jnp.sin(a * jnp.arange(2000.0))
        return {"sum": jnp.sum(jnp.sort(x)) + b, "twice": 2 * a}
    def held(a):
        return jnp.sum(jnp.exp(-a * jnp.arange(100_000.0)) * jnp.arange(100_000.0))
"""
CASE = """
    defaults: [engine, _self_]
    name: program
    parameters: {a: 1.0, b: 0.0}
    stages: {wide: {_target_: model.wide}}
    sweep: {design: random, samples: 5000, axes: {a: {uniform: [0.0, 1.0]}, b: {normal: [0.0, 1.0]}}}
"""


@pytest.fixture
def wide(project: Project) -> Project:
    return project.model(MODEL).yaml(CASE)


def test_a_chunk_fits_the_memory_by_xlas_own_account(wide: Project) -> None:
    plan = wide.load("execution.memory=8 MiB", "scheduler.kind=synchronous")
    program = fit(plan)
    assert 0 < program.cost.bytes <= 8 * 2**20
    assert program.cost.bytes > 4 * 2**20  # and makes use of it
    assert program.cost.flops > 0
    done = wide.cli("run", "case.yaml", "execution.memory=8 MiB", "scheduler.kind=synchronous", "--json")
    assert done.code == 0, done.err
    assert done.json["memory"] == dict(program.cost.memory)


def test_a_wrong_estimate_is_put_right(wide: Project) -> None:
    """One sample takes 1.6 MB: two arrays of 100,000, and not the three of the estimate."""
    case = CASE.replace("wide: {_target_: model.wide}", "held: {_target_: model.held}")
    wide.yaml(case.replace(", b: 0.0", "").replace(", b: {normal: [0.0, 1.0]}", ""))
    plan = wide.load("execution.memory=16.1 MiB", "scheduler.kind=synchronous")
    for width in (plan.blocks.width, 1, 100):  # too high, much too high, too low
        program = fit(resized(plan, width))
        assert 7 <= program.plan.blocks.width <= 10  # a single sample takes more than its share
        assert program.cost.bytes <= 16.1 * 2**20


def test_a_chunk_asked_for_or_stored_is_kept(wide: Project) -> None:
    assert fit(wide.load("execution.memory=1 MiB", "execution.chunk=500")).plan.blocks.width == 500
    plan = wide.load("execution.memory=8 MiB")
    assert fit(plan, fixed_width=True).plan is plan


def test_inputs_give_their_memory_to_outputs(wide: Project) -> None:
    """Both parameters are donated to the two outputs, silently, and the caller's arrays stay as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fit(wide.load("execution.chunk=1000"))
        program.prepare()
        swept = {"a": np.linspace(0.0, 1.0, 1000), "b": np.ones(1000)}
        kept = {name: value.copy() for name, value in swept.items()}
        for _ in range(2):
            outputs, status = program(swept, np.arange(1000, dtype=np.uint32))
    assert program.donated == ("a", "b")
    assert program.cost.memory["aliased"] == 2 * 1000 * 8
    np.testing.assert_array_equal(outputs["wide.twice"], 2 * kept["a"])
    assert (status == 1).all()
    for name in swept:
        np.testing.assert_array_equal(swept[name], kept[name])


def test_only_what_an_output_can_take_is_donated() -> None:
    a, b, c = np.zeros((4,)), np.zeros((4,)), np.zeros((4, 2))
    assert donatable({"a": a, "b": b, "c": c}, [np.zeros((4,)), np.zeros((4,), np.float32), np.zeros((3, 2))]) == ("a",)
    assert donatable({"a": a, "b": b}, [np.zeros(4)] * 3) == ("a", "b")


@pytest.mark.slow
def test_a_profile_is_written(wide: Project) -> None:
    done = wide.cli("run", "case.yaml", "sweep.samples=10", "execution.profile=trace", "--json")
    assert done.code == 0, done.err
    found = [p for p in (wide.folder / "trace").rglob("*") if p.is_file()]
    assert any(p.name.endswith(".xplane.pb") for p in found)
    taken = wide.folder / "file"
    taken.write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(PlanError, match=r"`execution\.profile` must be a folder that can be written"):
            wide.load("sweep.samples=11", f"execution.profile={wide.folder / path}")


def test_the_plan_tells_memory_and_work(wide: Project) -> None:
    plan = wide.cli("plan", "case.yaml").out
    assert "by XLA's account" in plan
    assert "flops for each chunk" in plan
    data = json.loads(wide.cli("plan", "case.yaml", "--json").out)["compiled"]
    assert data["flops"] > 0
    assert set(data["memory"]) == {"arguments", "outputs", "temporaries", "aliased"}


@pytest.mark.parametrize(
    ("part", "expected"), [(False, ("false", None)), (True, ("true", None)), (0.5, ("true", "0.5"))]
)
def test_preallocation(monkeypatch: pytest.MonkeyPatch, part: bool | float, expected: tuple[str, str | None]) -> None:
    names = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runtime, "SET_HERE", set())
    runtime.set_preallocation(Execution(preallocate=part).preallocate)
    assert tuple(os.environ.get(name) for name in names) == expected
    runtime.set_preallocation(False)  # another config in the same process
    assert os.environ[names[0]] == "false"


def test_preallocation_set_by_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SET_HERE", set())
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    runtime.set_preallocation(False)
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


NARROW = """\
    import jax.numpy as jnp
    import numpy as np
    from ops.external import callback


    def rounded(k):
        return {"x": k.astype(jnp.float32), "y": (k * jnp.ones(3, jnp.float32)).sum(), "n": k.astype(int)}


    asked = callback(lambda k: np.sin(k), result="float32")
"""


def test_an_output_that_a_stage_rounds_is_told_of(project: Project) -> None:
    """In float64, with the stage, the output and the line; not in float32, where all is."""
    project.model(NARROW).yaml(
        "{defaults: [engine, _self_], name: a, parameters: {k: 0.5}, stages: {s: {_target_: model.rounded}, "
        "t: {_target_: model.asked}}, sweep: {axes: {k: [0.1, 0.2]}}}"
    )
    first, second = sorted(w for w in project.load().warnings if "`precision` must be float64" in w)
    assert "the output 's.x' of stage 's' is float32 (model.py:7: return" in first
    assert "the output 't' of stage 't' is float32" in second
    assert not [w for w in project.load("precision=float32").warnings if "`precision`" in w]
