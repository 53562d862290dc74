"""`python -m engine repro STORE --sample N`: one sample again, alone, and the line where it went wrong."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import zarr

from engine.reports import describe_run
from engine.repro import reproduce
from tests.project import Answer, Project

MODEL = """\
    import jax
    import jax.numpy as jnp
    import numpy as np

    from ops.ode import solve


    def depth(k, b, key):
        noise = 1e-3 * jax.random.normal(key)
        return {"level": jnp.log(k + noise), "k": k, "shift": b}


    def field(t, y, k):
        return -y * jnp.sqrt(1.5 - k * t)


    def decay(k):
        found = solve(field, 1.0, k, ts=jnp.linspace(0.0, 1.0, 5), max_steps=300)
        return {"y": found.y, "status": found.status}


    def raising(k):
        def look_up(k):
            if k > 1.5:
                raise LookupError(f"no entry for {float(k)}")
            return np.asarray(2.0 * k)

        return jax.pure_callback(look_up, jax.ShapeDtypeStruct((), k.dtype), k, vmap_method="sequential")


    def distance(k):
        return jnp.sqrt(k * k)
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 1.0, b: 2.0}
    stages:
      depth: {_target_: model.depth}
    outputs: {level: depth.level, twice: depth.k, shift: depth.shift}
    sweep: {axes: {k: [3.0, -2.0, 5.0], b: [1.0, 4.0]}}
"""
PLAIN = ["~parameters.b", "~sweep.axes.b", "~outputs"]


@pytest.fixture
def wells(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def stage(name: str, *more: str) -> list[str]:
    """The overrides for a config with one stage and one parameter."""
    return [*PLAIN, "~stages.depth", f"+stages.{name}={{_target_: model.{name}}}", *more]


def reproduced(project: Project, overrides: list[str], sample: int) -> dict:  # type: ignore[type-arg]
    """Run, then compute a sample again."""
    project.summary(*overrides)
    answer = project.cli("repro", "store.zarr", "--sample", str(sample), "--json")
    assert answer.code == 0, answer.err
    return answer.json


def line_of(project: Project, text: str) -> int:
    """The number of the line of the model that holds a text."""
    lines = (project.folder / "model.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_a_person_is_told_where(wells: Project) -> None:
    run = wells.cli("run", "case.yaml", "store.path=store.zarr")
    assert run.code == 3
    assert run.out.splitlines()[-1].endswith("python -m engine repro store.zarr --sample 2")
    answer = wells.cli("repro", "store.zarr", "--sample", "2")
    assert answer.code == 0
    assert "importing model" in answer.err
    assert str(wells.folder.resolve()) in answer.err
    out = answer.out
    assert "sample 2 of 6 in store.zarr: nonfinite, as stored" in out
    assert "k=-2, b=1" in out
    assert "level: log(-2.000" in out
    number = line_of(wells, "jnp.log(k + noise)")
    assert f"stage 'depth', model.py:{number}: return {{" in out
    assert "Traceback" not in out + answer.err


def test_the_same_key_gives_the_same_numbers(wells: Project) -> None:
    """The noise of a sample depends on its index alone: sample 4 is computed again with the key of sample 4."""
    ds = wells.run()
    found = reproduced(wells, [], 4)
    assert (found["status"], found["outcome"], found["stored"]) == ("reproduced", "ok", "ok")
    values = {v["name"]: v for v in found["outputs"]}
    assert values["level"]["value"] == pytest.approx(float(ds.level[2, 0]), rel=1e-14)
    assert values["level"]["value"] != pytest.approx(np.log(5.0), rel=1e-9)
    assert found["origins"] == []
    said = wells.cli("repro", "store.zarr", "--sample", "4").out
    assert "all finite: nothing to find" in said
    assert "as stored" in said


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["execution.jit=false"],
        ["precision=float32"],
        ["execution.chunk=2", "scheduler.kind=synchronous"],
        ["sweep={design: zip, replicates: 2, axes: {k: [3.0, -2.0]}}"],
        ["sweep={design: latin_hypercube, samples: 4, axes: {k: {uniform: [-2.0, -1.0]}}}"],
        ["transforms=[derivatives,vmap,map,jit]"],
        ["transforms=[derivatives,{checkpoint:{stages:[depth]}},vmap,jit]", "+derivatives.d={of: shift, wrt: b}"],
    ],
    ids=str,
)
def test_any_design_precision_and_stack(wells: Project, overrides: list[str]) -> None:
    found = reproduced(wells, overrides, 2)
    assert (found["outcome"], found["stored"], found["status"]) == ("nonfinite", "nonfinite", "reproduced")
    (origin,) = found["origins"]
    assert (origin["stage"], origin["operation"], origin["variables"]) == ("depth", "log", ["level"])
    assert origin["line"] == line_of(wells, "jnp.log(k + noise)")
    assert found["parameters"]["k"] < 0


def test_a_single_evaluation(wells: Project) -> None:
    found = reproduced(wells, ["~sweep", "parameters.k=-3.0"], 0)
    assert (found["samples"], found["parameters"], found["outcome"]) == (1, {}, "nonfinite")
    assert found["origins"][0]["operation"] == "log"


@pytest.mark.slow
def test_a_solver_that_found_no_step_short_enough(wells: Project) -> None:
    found = reproduced(wells, stage("decay", "sweep.axes.k=[1.0,2.0]"), 1)
    assert (found["outcome"], found["status"]) == ("solver", "reproduced")
    (origin,) = found["origins"]
    assert (origin["kind"], origin["stage"], origin["operation"]) == ("decided", "decay", "sqrt")
    assert origin["line"] == line_of(wells, "jnp.sqrt(1.5")
    assert origin["said"].startswith("sqrt(-")
    assert "within it, first non-finite: sqrt(-" in wells.cli("repro", "store.zarr", "--sample", "1").out


def test_a_callback_that_raised(wells: Project) -> None:
    for more in ([], ["execution.jit=false"]):
        shutil.rmtree(wells.folder / "store.zarr", ignore_errors=True)
        found = reproduced(wells, stage("raising", "sweep.axes.k=[1.0,2.0]", *more), 1)
        assert (found["outcome"], found["stored"], found["status"]) == ("error", "error", "reproduced")
        (origin,) = found["origins"]
        assert (origin["kind"], origin["stage"], origin["operation"]) == ("raised", "raising", "LookupError")
        assert origin["said"] == "LookupError: no entry for 2.0"
        assert origin["line"] == line_of(wells, "raise LookupError")
    answer = wells.cli("repro", "store.zarr", "--sample", "1")
    assert answer.code == 0
    assert "Traceback" not in answer.err


OUTSIDE = """\
    import jax
    import numpy as np
    from ops.external import callback


    def value(k):
        return np.sqrt(k)


    def slope(k):
        return 0.5 / np.sqrt(k) if k > 2 else np.float64("nan")


    def along(primals, tangents):
        return slope(primals["k"]) * tangents["k"]


    declared = callback(value, jacobian=slope)
    pushed = callback(value, jvp=along)
    differences = callback(value, step=2.0)


    def plain(k):
        return jax.pure_callback(slope, k, k, vmap_method="sequential")
"""
ANSWERING = {
    "declared": ("d.k", "returned by slope (outside.py:10)"),
    "pushed": ("d.k", "returned by along (outside.py:14)"),
    "differences": (
        "d.k",
        "made by finite differences (central, step 2.0e+00 of the argument) from value (outside.py:6)",
    ),
    "plain": ("plain", "returned by slope (outside.py:10)"),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt")
@pytest.mark.parametrize("name", ANSWERING)
def test_a_number_that_python_returned(project: Project, name: str) -> None:
    """The function is named that returned it: the value's, the Jacobian's, or the tangent's."""
    variable, made = ANSWERING[name]
    derivative = "" if name == "plain" else f", derivatives: {{d: {{of: {name}, wrt: k}}}}"
    project.model(OUTSIDE, "outside").yaml(
        f"{{defaults: [engine, _self_], name: a, parameters: {{k: 1.0}}, stages: {{{name}: {{_target_: outside.{name}}}}}, "
        f"sweep: {{axes: {{k: [1.0, 9.0]}}}}{derivative}}}"
    )
    project.summary()
    (origin,) = reproduce(str(project.folder / "store.zarr"), 0).origins
    assert origin.variables == (variable,)
    assert origin.said == f"a number that is not finite, {made}"


def test_a_derivative_that_is_not_finite(wells: Project) -> None:
    found = reproduced(wells, stage("distance", "sweep.axes.k=[0.0,2.0]", "+derivatives.d={of: distance, wrt: k}"), 0)
    (origin,) = found["origins"]
    assert (origin["variables"], origin["operation"], origin["in_derivative"]) == (["d.k"], "div", True)
    assert origin["line"] == line_of(wells, "jnp.sqrt(k * k)")
    answer = wells.cli("repro", "store.zarr", "--sample", "0")
    assert "sqrt, log or divide of ops.safe, or try mode: reverse" in answer.out


def test_a_sample_that_was_not_computed_yet(wells: Project) -> None:
    wells.run("sweep.axes.k=[2.0,3.0,4.0]")
    zarr.open_group(wells.folder / "store.zarr")["status"][-1] = 0  # as a kill leaves it
    found = json.loads(wells.cli("repro", "store.zarr", "--sample", "5", "--json").out)
    assert (found["outcome"], found["stored"], found["status"]) == ("ok", "pending", "reproduced")
    assert "not computed before" in wells.cli("repro", "store.zarr", "--sample", "5").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["store.zarr", "--sample", "6"], ["`--sample` must be from 0 to 5", "is 6"]),
        (["store.zarr", "--sample", "-1"], ["`--sample` must be from 0 to 5", "is -1"]),
        (["store.zarr", "--sample", "x"], ["`repro` must be called", "--sample"]),
        (["store.zarr"], ["`repro` must be called", "--sample"]),
        (["no.zarr", "--sample", "0"], ["`STORE` must be the path of a store"]),
        (["case.yaml", "--sample", "0"], ["`STORE` must be a store"]),
        (["store.zarr", "--sample", "0", "--config", "other.yaml"], ["'other.yaml' is not there", "case.yaml"]),
    ],
)
def test_mistakes(wells: Project, arguments: list[str], words: list[str]) -> None:
    wells.summary()
    answer = wells.cli("repro", *arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert "importing" not in answer.err, "nothing is imported before the question is known to make sense"
    for word in words:
        assert word in answer.err


def test_a_model_that_changed_is_said_and_run_as_it_is(wells: Project) -> None:
    wells.summary()
    wells.model(MODEL.replace("jnp.log(k + noise)", "jnp.log(jnp.abs(k + noise))"))
    answer = wells.cli("repro", "store.zarr", "--sample", "2", "--json")
    assert answer.code == 0
    found = answer.json
    assert "What differs: the code of the stages" in found["warnings"][0]
    assert "What differs: the code of the stages" in answer.err
    assert (found["outcome"], found["stored"], found["status"]) == ("ok", "nonfinite", "differs")
    assert "ok, but nonfinite in the store" in wells.cli("repro", "store.zarr", "--sample", "2").out


def test_values_that_changed(wells: Project) -> None:
    wells.summary()
    wells.model(MODEL.replace("1e-3 *", "2e-3 *"))
    found = wells.cli("repro", "store.zarr", "--sample", "4", "--json").json
    assert (found["outcome"], found["stored"], found["status"]) == ("ok", "ok", "differs")
    values = {v["name"]: v for v in found["outputs"]}
    assert values["level"]["difference"] > 1e-6
    assert values["twice"]["difference"] == 0
    assert "with other values than those stored" in wells.cli("repro", "store.zarr", "--sample", "4").out


def test_another_config_shows_whether_a_change_mends_it(wells: Project) -> None:
    wells.summary()
    wells.yaml(CONFIG.replace("-2.0", "2.0"), "mended")
    answer = wells.cli("repro", "store.zarr", "--sample", "2", "--config", "mended.yaml", "--json")
    assert answer.code == 0, answer.err
    assert "sweep.axes.k" in answer.json["warnings"][0]
    assert answer.json["outcome"] == "ok"


def moved(project: Project) -> Answer:
    """The answer after config and store moved together, asked for from elsewhere."""
    new = project.folder / "new"
    new.mkdir()
    for name in ("model.py", "case.yaml", "store.zarr"):
        (project.folder / name).rename(new / name)
    return project.cli("repro", "new/store.zarr", "--sample", "2", "--json")


def test_a_project_that_moved_is_found_beside_its_store(wells: Project) -> None:
    wells.summary()
    answer = moved(wells)
    assert answer.code == 0, answer.err
    assert str(wells.folder / "new") in answer.err
    assert answer.json["origins"][0]["operation"] == "log"


def test_a_config_that_is_gone_can_be_pointed_at(wells: Project) -> None:
    wells.summary()
    (wells.folder / "elsewhere").mkdir()
    for name in ("model.py", "case.yaml"):
        (wells.folder / name).rename(wells.folder / "elsewhere" / name)
    answer = wells.cli("repro", "store.zarr", "--sample", "2")
    assert answer.code == 2
    assert "`case.yaml`" in answer.err
    assert "--config FILE" in answer.err
    assert "importing" not in answer.err
    again = wells.cli("repro", "store.zarr", "--sample", "2", "--config", "elsewhere/case.yaml")
    assert again.code == 0, again.err
    assert "log(-2.000" in again.out


def test_nothing_is_written(wells: Project) -> None:
    wells.summary()
    before = {path: path.stat().st_mtime_ns for path in wells.folder.rglob("*") if "__pycache__" not in path.parts}
    assert wells.cli("repro", "store.zarr", "--sample", "2").code == 0
    after = {path: path.stat().st_mtime_ns for path in wells.folder.rglob("*") if "__pycache__" not in path.parts}
    assert {p for p in after if p not in before} == set()
    assert [p for p in before if p.is_file() and after[p] != before[p]] == []


def test_opening_and_showing_import_nothing(wells: Project) -> None:
    wells.summary()
    (wells.folder / "model.py").write_text("raise SystemExit('imported')\n")
    for arguments in (["show", "store.zarr"], ["show", "store.zarr", "--json"]):
        answer = wells.cli(*arguments)
        assert answer.code == 0, answer.err
        assert "level" in answer.out


def test_what_a_store_records_of_where_its_config_is(wells: Project) -> None:
    wells.summary()
    attributes = json.loads((wells.folder / "store.zarr" / "zarr.json").read_text())["attributes"]
    assert attributes["config_file"] == "case.yaml"
    assert attributes["config_folder"]["from_store"] == "."
    assert attributes["config_folder"]["absolute"] == str(wells.folder.resolve())


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_run_looks_for_the_failure_that_tells_most(project: Project, chunk: int) -> None:
    """A sample that merely ran out of steps comes first, and says nothing; the one that is not finite is found all the same."""
    project.model("""\
        import jax.numpy as jnp
        from ops.ode import solve


        def stage(k):
            found = solve(lambda t, y, k: -k * y, 1.0, jnp.maximum(k, 0), t1=1.0, max_steps=30)
            return {"y": found.y + jnp.log(1000.5 + k), "status": found.status}
    """).yaml("""\
        defaults: [engine, {scheduler: synchronous}, _self_]
        name: case
        parameters: {k: 1.0}
        stages: {stage: {_target_: model.stage}}
        sweep: {axes: {k: [1.0, 5000.0, 2.0, -1001.0]}}
    """)
    summary = project.summary("execution.debug_nans=true", f"execution.chunk={chunk}")
    assert summary.counts == {"ok": 2, "max_steps": 1, "nonfinite": 1}
    (origin,) = summary.origins
    assert origin.operation == "log"
    assert "jnp.log(1000.5 + k)" in origin.text
    assert "where one went wrong:\n    stage.y: log(-0.5) = nan\n" in describe_run(summary)
