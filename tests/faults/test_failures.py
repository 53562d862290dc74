"""Samples that raise, runs that are stopped, stores that are in the way: nothing is lost, nothing hidden."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.errors import UserError
from engine.purity import check_purity
from engine.reports import describe_run, purity_lines
from tests.project import Project

CALLBACK = """\
    from pathlib import Path

    import jax
    import numpy as np


    def lookup(k):
        low = 0.5 if Path(__file__).with_name("mended").exists() else 0.3
        if low < k < 0.6:
            raise LookupError(f"no entry for {float(k):.2f}")
        return np.float64(2.0 * k)


    def stage(k):
        return jax.pure_callback(lookup, jax.ShapeDtypeStruct((), k.dtype), k, vmap_method="sequential")
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: lookup
    parameters: {k: 0.0}
    stages:
      stage: {_target_: model.stage}
    sweep:
      axes: {k: {linspace: [0, 1, 12]}}
    execution: {chunk: 4}
"""


@pytest.fixture
def lookup(project: Project) -> Project:
    return project.model(CALLBACK).yaml(CONFIG)


def test_samples_that_raise_are_listed_and_the_others_are_kept(lookup: Project) -> None:
    answer = lookup.cli("run", "case.yaml", "store.path=store.zarr")
    assert answer.code == 3
    ds = engine.open_store(lookup.folder / "store.zarr").load()
    k = ds.k.values
    bad = (k > 0.3) & (k < 0.6)
    assert bad.sum() == 3
    assert ds.status.values.tolist() == np.where(bad, 5, 1).tolist()
    np.testing.assert_array_equal(ds.stage.values, np.where(bad, np.nan, 2 * k))
    said = answer.out + answer.err
    for sample in np.flatnonzero(bad):
        assert f"{k[sample]:.6g}"[:6] in said, "the failed sample is listed with its parameters"
    log = (lookup.folder / "store.log").read_text()
    assert log.count("Traceback") >= 3
    assert log.count("LookupError: no entry for") >= 3
    assert "store.log" in said
    assert "Traceback" not in said


def test_all_samples_failed_is_no_success(lookup: Project) -> None:
    answer = lookup.cli("run", "case.yaml", "store.path=store.zarr", "sweep.axes.k=[0.4,0.5]", "--json")
    assert answer.code == 3
    assert answer.json["status"] == "failed"
    assert answer.json["failed"] == 2


def test_stop_at_the_first_failure(lookup: Project) -> None:
    options = ["execution.on_error=stop", "scheduler.kind=synchronous", "execution.chunk=1"]
    summary = lookup.summary(*options)
    assert summary.status == "stopped"
    assert summary.failed == 1
    assert summary.pending > 0
    answer = lookup.cli("run", "case.yaml", "store.path=again.zarr", *options)
    assert answer.code == 3
    assert "on_error" in answer.out + answer.err


def test_resume_computes_what_is_missing_and_failed_samples_only_if_asked(lookup: Project) -> None:
    done: list[int] = []

    class Watch:
        def on_start(self, samples: int) -> None: ...

        def on_chunk(self, event: object) -> None:
            done.append(event.number)  # type: ignore[attr-defined]

        def on_end(self) -> None: ...

    first = lookup.summary("execution.chunk=1", "scheduler.kind=synchronous", observers=[Watch()])
    assert (first.ok, first.failed, first.status) == (9, 3, "partial")
    done.clear()
    again = lookup.summary("execution.chunk=1", observers=[Watch()])
    assert done == []
    assert (again.skipped, again.status, again.exit_code) == (12, "partial", 3)
    (lookup.folder / "mended").touch()
    retried = lookup.summary("execution.chunk=1", observers=[Watch()], retry_failed=True)
    k = np.linspace(0, 1, 12)
    assert sorted(done) == np.flatnonzero((k > 0.3) & (k < 0.6)).tolist()
    assert (retried.ok, retried.failed) == (11, 1)


def test_another_question_is_refused_with_what_differs(lookup: Project) -> None:
    lookup.run("sweep.axes.k=[0.0,0.1]")
    before = engine.open_store(lookup.folder / "store.zarr").load()
    with pytest.raises(UserError, match=r"`store\.path` must .*sweep\.axes\.k.*--fresh"):
        lookup.run("sweep.axes.k=[0.0,0.2]")
    assert before.identical(engine.open_store(lookup.folder / "store.zarr").load())
    replaced = lookup.run("sweep.axes.k=[0.0,0.2]", fresh=True)
    assert replaced.k.values.tolist() == [0.0, 0.2]


def test_a_changed_model_is_another_question(lookup: Project) -> None:
    one = lookup.load().draft.fingerprint
    lookup.model(CALLBACK.replace("return jax", "return 3.0 * jax"))
    other = lookup.load().draft.fingerprint
    assert one != other
    lookup.model(CALLBACK)
    assert lookup.load().draft.fingerprint == one


def test_multirun_makes_a_store_for_each_choice(lookup: Project) -> None:
    answer = lookup.cli("run", "case.yaml", "-m", "parameters.k=1", "seed=0,1", "sweep.axes.k=[0.0],[1.0]")
    assert answer.code == 0, answer.err
    assert len(list((lookup.folder / "results").glob("*.zarr"))) == 4
    again = lookup.cli("run", "case.yaml", "-m", "parameters.k=1", "seed=0,1", "sweep.axes.k=[0.0],[1.0]")
    assert again.code == 0
    assert len(list((lookup.folder / "results").glob("*.zarr"))) == 4, "numbered by what is asked, not by a counter"


def test_a_mistake_in_one_run_of_many_does_not_stop_the_others(lookup: Project) -> None:
    answer = lookup.cli("run", "case.yaml", "-m", "seed=0,x,1", "sweep.axes.k=[0.0]", "--json")
    assert answer.code == 2
    assert [run["status"] for run in answer.json["runs"]] == ["complete", "error", "complete"]
    assert "`seed` must be" in answer.err


SLOW = """\
    import time

    import jax
    import numpy as np


    def wait(k):
        time.sleep(0.1)
        return np.asarray(2.0 * k)


    def stage(k):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), k.dtype), k, vmap_method="sequential")
"""


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_ends_the_run_soon_and_leaves_a_store_that_goes_on(project: Project, sent: signal.Signals) -> None:
    project.model(SLOW).yaml(CONFIG)
    arguments = ["case.yaml", "sweep.axes.k.linspace=[0,1,200]", "execution.chunk=2", "store.path=store.zarr"]
    process = project.start("run", *arguments)
    try:
        wait_until(lambda: len(list((project.folder / "store.zarr" / "status").rglob("c/*"))) >= 3, process)
        process.send_signal(sent)
        start = time.monotonic()
        out, err = process.communicate(timeout=30)
        seconds = time.monotonic() - start
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert seconds < 10
    assert "interrupted" in out + err
    assert "Traceback" not in out + err
    done = int((engine.open_store(project.folder / "store.zarr").status == 1).sum())
    assert 0 < done < 200
    answer = project.cli("run", *arguments, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["skipped"] == done
    ds = engine.open_store(project.folder / "store.zarr").load()
    np.testing.assert_allclose(ds.stage.values, 2 * np.linspace(0, 1, 200), rtol=1e-15)


def wait_until(condition: object, process: subprocess.Popen[str]) -> None:
    """Until the condition holds; fails if the process ends first, or after a minute."""
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_folder_that_is_no_store_is_left_alone(lookup: Project) -> None:
    half = lookup.folder / "store.zarr"
    half.mkdir()
    (half / "zarr.json").write_text("{")
    with pytest.raises(UserError, match=r"store"):
        lookup.run()
    with pytest.raises(UserError, match=r"never replaced"):
        lookup.run(fresh=True)
    assert (half / "zarr.json").read_text() == "{"


def test_no_space_left(lookup: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails names the cause, keeps what was stored, and the run goes on when there is room again."""
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if {"stage", "c", "1"} <= set(Path(target).parts[-4:]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"`store\.path` must have room.*Free space and run the same command"):
        lookup.run("scheduler.workers=1")
    stored = int((engine.open_store(lookup.folder / "store.zarr").status > 0).sum())
    assert stored in (0, 4, 8)
    monkeypatch.setattr(Path, "replace", replace)
    resumed = lookup.summary()
    assert (resumed.skipped, resumed.pending) == (stored, 0)


def test_what_a_module_switches_on_does_not_end_the_run(project: Project) -> None:
    """JAX's own search for NaN raises at the first; the engine marks the sample, and says that it has switched that off."""
    model = 'import jax\njax.config.update("jax_debug_nans", True)\njax.config.update("jax_debug_infs", True)\n'
    project.model(model + "def stage(k): return {'x': jax.numpy.log(k), 'y': 1 / k}\n")
    summary = project.yaml(CONFIG).summary("sweep.axes.k=[-1.0,0.0,1.0]")
    assert summary.counts == {"nonfinite": 2, "ok": 1}
    assert any("execution.debug_nans=true" in w and "jax_debug_infs" in w for w in summary.warnings)


def test_the_first_exception_is_told(lookup: Project) -> None:
    """In the summary, and by a check of the stages, with the user's line; not only in the log."""
    words = "LookupError: no entry for 0.36 in stage 'stage', model.py:10: raise LookupError(f\"no entry for {float(k):.2f}\")"
    summary = lookup.summary("scheduler.kind=synchronous")
    assert [str(trouble) for trouble in summary.raised] == [words]
    assert "the first that raised:\n    LookupError: no entry for 0.36\n" in describe_run(summary)
    told = describe_run(lookup.summary("execution.debug_nans=true", store="hunted.zarr"))
    assert told.count("LookupError: no entry") == 1
    purity = check_purity(lookup.load("parameters.k=0.4").draft)
    assert purity.points == ("the first sample", "the last sample")
    assert {at: str(trouble) for at, trouble in purity.raised.items()} == {
        "the nominal point": words.replace("0.36", "0.40")
    }
    assert f"raised at the nominal point: {words.replace('0.36', '0.40')}" in "\n".join(purity_lines(purity))


def test_a_value_beyond_max_abs_is_a_failure_with_a_reason(project: Project) -> None:
    """exp(20) is no answer where at most 1e6 makes sense; exp(800) is none anywhere; the derivative has no limit."""
    project.model("""\
        import jax.numpy as jnp


        def f(a, b):
            return {"x": jnp.exp(a), "v": jnp.stack([b, -2 * b]), "n": jnp.round(a).astype(int)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: big
        parameters: {a: 1.0, b: 1.0}
        stages: {f: {_target_: model.f}}
        outputs: {x: {from: f.x, max_abs: 1e6}, v: f.v, n: {from: f.n, max_abs: 20}}
        sweep: {axes: {a: [1.0, 13.0, 20.0, 21.0, 800.0]}}
        derivatives: {d: {of: x, wrt: a}}
    """)
    summary = project.summary("execution.chunk=2")
    assert summary.counts == {"nonfinite": 3, "ok": 2}
    said = [str(one) for one in summary.nonfinite]
    assert said[:2] == [
        "x is not finite in 1 sample, first sample 4 (a=800)",
        "x is beyond its max_abs of 1e+06 in 2 samples, first sample 2 (a=20)",
    ]
    assert "n is beyond its max_abs of 20 in 2 samples, first sample 3 (a=21)" in said
    assert "x is beyond its max_abs of 1e+06 in 2 samples" in project.cli("show", "store.zarr").out
    ds = engine.open_store(project.folder / "store.zarr").load()
    np.testing.assert_array_equal(ds.status, [1, 1, 3, 3, 3])
    np.testing.assert_allclose(ds.x, [np.exp(1), np.exp(13), np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(np.isfinite(ds["d.a"]), [True, True, False, False, False])
    assert "one is beyond the max_abs of its output" in project.cli("repro", "store.zarr", "--sample", "2").out
    shared = project.summary("+outputs.v={from: f.v, max_abs: 1.5}", "sweep.axes.a=[1.0,2.0]", store="shared.zarr")
    assert [str(one) for one in shared.nonfinite] == [
        "v is beyond its max_abs of 1.5 in 2 samples, first sample 0 (a=1)"
    ]
    assert np.isnan(engine.open_store(project.folder / "shared.zarr").v).all()


def test_max_abs_is_part_of_the_question(project: Project) -> None:
    project.model("def f(a):\n    return {'x': 3.0 * a}\n").yaml("""\
        defaults: [engine, _self_]
        name: part
        parameters: {a: 1.0}
        stages: {f: {_target_: model.f}}
        outputs: {x: {from: f.x, max_abs: 10}}
    """)
    assert project.load().draft.fingerprint != project.load("outputs.x.max_abs=2").draft.fingerprint
    for value in ("0", "-1", "big"):
        with pytest.raises(UserError, match=r"`outputs\.x\.max_abs` must be a positive number, or null, but is"):
            project.load(f"outputs.x.max_abs={value}")
