"""A model that never ends: the run stops, says where, keeps what is finished, and the process ends."""

from __future__ import annotations

import sys

import pytest

from engine.errors import ConfigError
from engine.schema import read_seconds
from tests.project import Project

MODEL = """\
    import os

    import jax


    def f(a):
        hangs = (a > 2.5) & (not os.environ.get("MENDED"))
        grown = jax.lax.while_loop(lambda c: (c[0] < 10) | hangs, lambda c: (c[0] + 1, c[1] * 2), (0, a))
        return grown[1]


    def scale(f, b):
        return f * b
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: loop
    parameters: {a: 1.0, b: 1.0}
    stages: {f: {_target_: model.f}, scale: {_target_: model.scale}}
    outputs: {y: scale}
    sweep: {axes: {a: [0.0, 1.0, 2.0, 3.0, 1.5, 2.5, 0.5, 0.25]}}
    store: {path: loop.zarr}
    execution: {chunk: 1, time_limit: 1 s}
"""


@pytest.fixture
def loop(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def test_a_loop_without_end_stops_the_run_and_the_process(loop: Project) -> None:
    answer = loop.cli("run", "case.yaml", "scheduler.kind=synchronous", "--json", timeout=60)
    assert answer.code == 3, answer.err
    said = answer.json
    assert said["status"] == "timed_out"
    assert 0 < said["ok"] == 8 - said["pending"]
    (late,) = said["overdue"]
    assert (late["samples"], late["first"], late["at_first"]) == (1, 3, {"a": 3.0})
    assert "sample 3 (a=3)" in answer.err
    again = loop.cli("run", "case.yaml", "execution.time_limit=0.5", timeout=60)
    assert again.code == 3
    assert f"resuming loop.zarr: {said['ok']} of 8 samples are done" in again.err
    import engine

    ds = engine.open_store(loop.folder / "loop.zarr").load()
    done = ds.status.values == 1
    assert ds.status.values[3] == 0
    assert ds.y.values[done].tolist() == (1024 * ds.a.values[done]).tolist()


def test_the_samples_of_a_wide_chunk_are_named(loop: Project) -> None:
    answer = loop.cli("run", "case.yaml", "execution.chunk=8", timeout=60)
    assert answer.code == 3, answer.err
    assert "8 samples, 0 (a=0) to 7 (a=0.25)" in answer.out
    assert "execution.chunk=1" in answer.out


def test_what_all_samples_share_is_watched_too(loop: Project) -> None:
    answer = loop.cli("run", "case.yaml", "sweep.axes={b: [1.0, 2.0]}", "parameters.a=3.0", timeout=60)
    assert answer.code == 2, answer.out
    assert (
        "`execution.time_limit` must be enough for 'f', computed once for all samples, but 1 s are not." in answer.err
    )


@pytest.mark.parametrize("caught", [True, False])
def test_a_script_ends_too(loop: Project, caught: bool) -> None:
    import os
    import subprocess

    from tests.project import REPOSITORY

    call = "engine.run('case.yaml')"
    script = (
        f"import engine\ntry:\n    {call}\nexcept engine.PlanError as error:\n    print(error)"
        if caught
        else f"import engine\n{call}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=loop.folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if caught else 1)
    assert "`execution.time_limit` must be enough for a chunk, but 1 s are not for" in done.stdout + done.stderr


def test_a_limit_that_is_kept_changes_nothing(loop: Project) -> None:
    ds = loop.run("sweep.axes.a=[0.0,1.0,2.0]", "execution.time_limit=1 h")
    assert ds.y.values.tolist() == [0.0, 1024.0, 2048.0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 min", 600.0), ("1.5h", 5400.0), ("2 s", 2.0), (3, 3), ("1e1 s", 10.0)]
)
def test_times(text: object, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["10 parsec", "0", "-1 s", "soon"])
def test_a_time_that_is_none(loop: Project, text: str) -> None:
    with pytest.raises(ConfigError, match=r"`execution\.time_limit` must be a time such as '10 min'"):
        loop.load(f"execution.time_limit='{text}'")


def test_a_smallest_step_that_is_forced_never_hangs_a_run(project: Project) -> None:
    """patrick-kidger/diffrax#703: steps that the controller may not refuse. Here they are lost in the rounding of the time, 6e-5 in
    float32, so that it stands still for ever: with a bound on the steps a status, without one the end by the limit."""
    project.model("""\
        import diffrax
        import jax.numpy as jnp


        def f(t0, most):
            control = diffrax.PIDController(rtol=1e-6, atol=1e-9, dtmin=1e-5, dtmax=1e-5, force_dtmin=True)
            term, end = diffrax.ODETerm(lambda t, y, _: -y), t0 + 1.0
            found = diffrax.diffeqsolve(
                term, diffrax.Tsit5(), t0, end, 1e-5, 1.0, stepsize_controller=control, max_steps=most, throw=False
            )
            return {"y": found.ys[0], "status": jnp.where(found.result == diffrax.RESULTS.successful, 0, 2)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: stuck
        precision: float32
        parameters: {t0: 967.0}
        stages: {f: {_target_: model.f, most: 500}}
        outputs: {y: f.y}
        execution: {time_limit: 1 s}
    """)
    assert project.summary().counts == {"max_steps": 1}
    answer = project.cli("run", "case.yaml", "stages.f.most=null", "--json", timeout=90)
    assert (answer.code, answer.json["status"]) == (3, "timed_out")
