"""What the commands answer: one JSON object, a code that means what the help says, an end within a moment."""

from __future__ import annotations

import signal
import time

import pytest

from tests.project import Project

CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 1.0}
    stages: {f: {_target_: model.f}}
    sweep: {axes: {k: [1.0, 2.0]}}
"""


def test_what_a_model_prints_does_not_break_json(project: Project) -> None:
    project.model("""\
        import os

        import jax

        print("imported")


        def f(k):
            print("traced")
            os.write(1, b"written\\n")
            jax.debug.print("k {k}", k=k)
            return 2 * k
    """).yaml(CONFIG)
    for command in ("plan", "run"):
        answer = project.cli(command, "case.yaml", "--json")
        assert answer.code == 0, answer.err
        assert answer.json["status"] in ("planned", "complete")
        assert "imported" in answer.err


@pytest.mark.parametrize("how", ["import", "call"])
def test_a_model_that_exits_is_no_success(project: Project, how: str) -> None:
    inside = "    raise SystemExit(0)\n" if how == "call" else ""
    before = "raise SystemExit(0)\n" if how == "import" else ""
    project.model(f"{before}\n\ndef f(k):\n{inside}    return k\n").yaml(CONFIG)
    answer = project.cli("run", "case.yaml")
    assert answer.code == 2
    assert "SystemExit" in answer.err
    assert "model.py" in answer.err


@pytest.mark.parametrize(
    "model", ["import jax\njax.config.update('jax_enable_x64', False)\n", ""], ids=["off", "plain"]
)
def test_precision_is_what_the_config_says(project: Project, model: str) -> None:
    project.model(f"{model}\n\ndef f(k):\n    return k / 3\n").yaml(CONFIG)
    assert project.run().f.values.tolist() == [1 / 3, 2 / 3]


def test_two_precisions_in_one_process(project: Project) -> None:
    import engine

    project.model("import jax.numpy as jnp\n\n\ndef f(k):\n    return jnp.sin(k)\n").yaml(CONFIG)
    double = project.load(f"store.path={project.folder / 'd.zarr'}")
    single = project.load("precision=float32", f"store.path={project.folder / 's.zarr'}")
    assert str(engine.run(single).f.dtype) == "float32"
    import math

    assert engine.run(double).f.values.tolist() == pytest.approx([math.sin(1), math.sin(2)], rel=1e-15)
    project.load()


@pytest.mark.parametrize("name", ["store.compression=foo", "store.path=case.yaml", "outputs={__x: f}"])
def test_plan_refuses_what_run_would(project: Project, name: str) -> None:
    project.model("def f(k):\n    return k\n").yaml(CONFIG)
    answers = [project.cli(command, "case.yaml", name) for command in ("plan", "run")]
    assert [a.code for a in answers] == [2, 2]
    assert answers[0].err == answers[1].err


def test_a_terminal_without_unicode(project: Project) -> None:
    project.model("def f(k):\n    return k\n").yaml(CONFIG)
    answer = project.cli("plan", "case.yaml", PYTHONIOENCODING="ascii")
    assert answer.code == 0
    assert "vmap[2]" in answer.out


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_while_libraries_load(project: Project, as_json: bool) -> None:
    project.model("import time\n\ntime.sleep(30)\n\n\ndef f(k):\n    return k\n").yaml(CONFIG)
    process = project.start("run", "case.yaml", *(["--json"] if as_json else []))
    try:
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not as_json or '"interrupted"' in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("defaults: [_self_, engine]\nname: a\n", ["`defaults` must name engine before _self_"]),
        ("defaults: [engine]\nname: a\n", ["`defaults`", "_self_"]),
        ("defaults: engine\nname: a\n", ["`defaults` must be a list"]),
        ("defaults: [case]\nname: a\n", ["`defaults`"]),
        ("defaults: [engine, _self_]\nsweep: {axes: [k]}\nname: a\n", ["`sweep.axes` must be a mapping", "line 2"]),
        ("defaults: [engine, _self_]\nstages: [f]\nname: a\n", ["`stages` must be a mapping", "_target_"]),
        ("defaults: [engine, _self_]\nparameters: {k: !foo 3}\n", ["case.yaml", "!foo"]),
        ("defaults: [engine, _self_]\nparameters: {k: &a [*a]}\n", ["case.yaml"]),
        ("a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n"
         for p, c in zip("abcdefgh", "bcdefghi", strict=True)), ["case.yaml", "at most"]),
        ("defaults: [engine, _self_]\nparameters: {null: 1}\nname: a\n", ["`parameters`", "names as keys"]),
        ("x: " + "[" * 3000 + "]" * 3000, ["case.yaml"]),
    ],
)  # fmt: skip
def test_odd_files_are_refused_in_words(project: Project, text: str, words: list[str]) -> None:
    project.config.write_text(text, encoding="utf-8")
    answer = project.cli("plan", "case.yaml", timeout=30)
    assert answer.code == 2, answer.err
    for word in words:
        assert word in answer.err, answer.err


def test_a_file_that_would_replace_the_defaults_is_refused(project: Project) -> None:
    project.model("def f(k):\n    return k\n").yaml(CONFIG)
    (project.folder / "engine.yaml").write_text("seed: 3\n")
    answer = project.cli("plan", "case.yaml")
    assert answer.code == 2
    assert "engine.yaml" in answer.err
    assert "Rename" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["`run` must be called", "CONFIG"]),
        (["show"], ["`show` must be called", "STORE"]),
        (["show", "."], ["`STORE` must be a store"]),
        (["show", "case.yaml"], ["`STORE` must be a store"]),
        (["show", "nope.zarr"], ["`STORE` must be the path of a store", "engine run"]),
        (["rn", "case.yaml"], ["'rn'", "Did you mean 'run'"]),
        (["case.yaml"], ["Did you mean 'run case.yaml'"]),
        (["run", "case.yaml", "--jsn"], ["`--jsn`", "Did you mean '--json'"]),
        (["check-grad", "case.yaml", "--samples", "x"], ["--samples", "'x'"]),
    ],
)
def test_a_command_that_is_called_wrongly(project: Project, arguments: list[str], words: list[str]) -> None:
    project.model("def f(k):\n    return k\n").yaml(CONFIG)
    for more in ([], ["--json"]):
        answer = project.cli(*arguments, *more)
        assert answer.code == 2
        for word in words:
            assert word in answer.err
    assert answer.json["status"] == "error"
    assert project.cli("--json", *arguments).json["status"] == "error"


def test_a_file_that_hides_a_package_is_named(project: Project) -> None:
    project.model("def f(k):\n    return k\n").yaml(CONFIG)
    (project.folder / "ops.py").touch()
    answer = project.cli("plan", "case.yaml")
    assert answer.code == 2
    assert "`ops.py`" in answer.err
    assert "Rename it" in answer.err
