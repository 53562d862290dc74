"""`plan --check`: a stage that is not pure is found by tracing and evaluating it twice, and told with its line and the remedy."""

from __future__ import annotations

import sys
import textwrap

import pytest

import engine
from engine.config import read_config
from engine.draft import make_draft
from engine.errors import StageError
from engine.purity import Purity, Verdict, check_purity, compare_processes
from tests.project import REPOSITORY, Project

MODEL = """\
import datetime, functools, random, time
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
from ops.ode import solve

COUNT = 0
ITEMS = []
TABLE = {}
LAST = None
RNG = np.random.default_rng(0)


class Counter:
    n = 0

    def next(self):
        self.n += 1
        return self.n


COUNTER = Counter()


@functools.lru_cache
def grid(n):
    return jnp.linspace(0.0, 1.0, n)


@jax.jit
def jitted(x):
    return x + np.random.normal()


def helper(x):
    global COUNT
    COUNT += 1
    return x


def bump(v):
    COUNTER.n += 1
    return np.float64(v + COUNTER.n)


def double(v):
    return np.float64(2 * v)


def first(x):
    return {"a": x, "b": [x, 2 * x]}


def stage(x, first, acc=[]):
    global COUNT, LAST
"""
START = MODEL.count("\n") + 1
CONFIG = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: case
    parameters: {x: 0.5}
    stages:
      first: {_target_: model.first}
      stage: {_target_: model.stage}
    sweep: {axes: {x: [0.1, 0.2]}}
"""
SAME = "give the same program whenever it is traced"
NOTHING = "change nothing that outlives a call"
IMPURE = {
    # body, line, words
    "numpy": ("return x + np.random.normal()", "return x + np", [SAME, "drawn once", "argument called `key`"]),
    "numpy alone": ("return np.random.normal()", "return np", [SAME, "drawn once", "jax.random"]),
    "numpy, used later": ("y = np.random.normal()\nreturn x * y", "y = np", [SAME, "drawn once"]),
    "random": ("y = random.random()\nreturn x * y", "y = random", [SAME, "drawn once", "argument called `key`"]),
    "generator": ("return x + RNG.normal()", "return x + RNG", [SAME, "drawn once", "argument called `key`"]),
    "time": ("return x + time.time()", "return x + time", [SAME, "time is read once", "Make the time a parameter"]),
    "date": ("t = datetime.datetime.now()\nreturn x * t.timestamp()", "t = datetime", [SAME, "time is read once"]),
    "scan": (
        "return jax.lax.scan(lambda c, _: (c + np.random.normal(), None), x, None, length=3)[0]",
        "return jax.lax.scan",
        [SAME, "drawn once"],
    ),
    "vector field": (
        "return solve(lambda t, y, a: -y * np.random.normal(), x, t1=1.0).y",
        "return solve",
        [SAME, "drawn once"],
    ),
    "something else": (
        "return x * id(object())",
        "return x * id",
        [SAME, "differ here", "constant in the stage's node"],
    ),
    "list": (
        "ITEMS.append(x)\nreturn x",
        "ITEMS.append",
        [NOTHING, "traced value in the global 'ITEMS'", "Return that value"],
    ),
    "global": ("LAST = x\nreturn x", "LAST = x", [NOTHING, "traced value in the global 'LAST'"]),
    "counter": ("COUNT += 1\nreturn x + COUNT", "COUNT += 1", [NOTHING, "the global 'COUNT'", "carry of a loop"]),
    "counter not used": ("COUNT += 1\nreturn x", "COUNT += 1", [NOTHING, "the global 'COUNT'"]),
    "object": ("return x + COUNTER.next()", "return x + COUNTER", [NOTHING, "the global 'COUNTER'"]),
    "dict": ("TABLE[len(TABLE)] = 1.0\nreturn x", "TABLE[len", [NOTHING, "the global 'TABLE'"]),
    "attribute": ("stage.n = getattr(stage, 'n', 0) + 1\nreturn x", "stage.n =", [NOTHING, "attribute 'stage.n'"]),
    "default": ("acc.append(1)\nreturn x * len(acc)", "acc.append", [NOTHING, "default argument 'acc'", "`acc=None`"]),
    "default, traced": ("acc.append(x)\nreturn sum(acc)", "return sum", ["leaked value", "inside the stage"]),
    "cache": ("return x + grid(5).sum()", "return x + grid", ["depend on its arguments only", "leaked", "lru_cache"]),
    "input": (
        "first['a'] = 2 * x\nreturn first['a']",
        "first['a'] =",
        ["leave its arguments", "'first' in place", "{**state"],
    ),
    "list inside": (
        "first['b'].append(x)\nreturn sum(first['b'])",
        "first['b'].append",
        ["leave its arguments", "[*items"],
    ),
    "io_callback": (
        "return io_callback(double, x, x, ordered=True)",
        "return io_callback",
        ["act on nothing outside", "`io_callback`", "Return the value"],
    ),
    "io_callback without order": ("return io_callback(double, x, x)", "return io_callback", ["act on nothing outside"]),
    "callback with a state": (
        "return jax.pure_callback(bump, x, x)",
        "return jax.pure_callback",
        ["the same numbers for the same parameters and key", "at the nominal point", "keeps a state"],
    ),
    "asks for the trace": (
        "return 2 * x if isinstance(x, jax.core.Tracer) else 3 * x",
        "def stage",
        ["the same numbers compiled and op by op", "at the nominal point stage is another number"],
    ),
}
PURE = {
    "arithmetic": "return x * first['a']",
    "local list": "out = []\nfor i in range(3):\n    out.append(i * x)\nreturn sum(out)",
    "local random numbers": "return x * np.random.default_rng(0).normal(size=3)",
    "a table that is filled once": "return x * TABLE.setdefault('a', 3.0)",
    "a copy": "new = {**first, 'a': 2 * x}\nreturn new['a']",
    "not finite": "return jnp.log(-x)",
    "chaos": "return jax.lax.fori_loop(0, 200, lambda i, c: 3.9 * c * (1 - c), x)",
    "solve": "return solve(lambda t, y, a: -y, x, t1=1.0)",
    "callback": "return jax.pure_callback(double, x, x)",
}


def checked(project: Project, body: str, config: str = CONFIG) -> Purity:
    project.model(MODEL + textwrap.indent(body, "    ") + "\n").yaml(config)
    return check_purity(make_draft(read_config(project.config)))


def verdict(found: Purity, stage: str = "stage") -> Verdict:
    return next(v for v in found.verdicts if v.stage == stage)


@pytest.mark.parametrize("case", IMPURE)
def test_an_impure_stage_is_told_with_its_line(project: Project, case: str) -> None:
    body, line, words = IMPURE[case]
    found = checked(project, body)
    assert verdict(found, "first").pure
    (message,) = verdict(found).problems
    assert message.startswith("`stages.stage` must ")
    assert ", but " in message.splitlines()[0]
    source = (project.folder / "model.py").read_text().splitlines()
    number = next(n for n, text in enumerate(source, 1) if n >= START - 3 and text.strip().startswith(line))
    assert f"model.py:{number}: {line}" in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("case", PURE)
def test_a_pure_stage_is_called_so(project: Project, case: str) -> None:
    found = checked(project, PURE[case])
    assert found.problems == []
    assert found.points == ("the nominal point", "the first sample", "the last sample")


@pytest.mark.parametrize(("body", "line"), [("return jitted(x)", "return x + np"), ("return helper(x)", "COUNT += 1")])
def test_the_line_of_a_helper_is_shown(project: Project, body: str, line: str) -> None:
    """Also of one under `jax.jit`, which JAX would not trace a second time."""
    (message,) = verdict(checked(project, body)).problems
    number = next(n for n, text in enumerate(MODEL.splitlines(), 1) if text.strip().startswith(line))
    assert f"model.py:{number}: {line}" in message


NOTES = {
    "print": ("print(x)\nreturn x", "prints while it is traced (model.py:{line}): once for all samples"),
    "debug.print": ("jax.debug.print('{}', x)\nreturn x", "prints for each sample (model.py:{line})"),
    "debug.callback": (
        "jax.debug.callback(lambda v: None, x)\nreturn x",
        "calls Python for each sample (jax.debug.callback)",
    ),
    "pure_callback": ("return jax.pure_callback(double, x, x)", "calls Python for each sample (jax.pure_callback)"),
}


@pytest.mark.parametrize("case", NOTES)
def test_what_is_let_pass_is_noted(project: Project, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    body, words = NOTES[case]
    found = verdict(checked(project, body))
    assert found.pure
    (note,) = found.notes
    assert note.startswith(words.format(line=START))
    assert capsys.readouterr().out.count("\n") <= 1, "the check prints again what the stages print"


def test_a_stage_that_moves_another(project: Project) -> None:
    """By a global that one changes and another reads: the one that changes it is named."""
    project.model("""\
        GAIN = [1.0]


        def first(x):
            GAIN[0] += 1.0
            return x


        def second(x, first):
            return first * GAIN[0]
    """).yaml(CONFIG.replace("stage: {_target_: model.stage}", "second: {_target_: model.second}"))
    found = check_purity(make_draft(read_config(project.config)))
    assert verdict(found, "second").pure
    (message,) = verdict(found, "first").problems
    assert "the global 'GAIN'" in message
    assert "model.py:5: GAIN[0] += 1.0" in message


def test_a_global_that_changed_since_the_plan(project: Project) -> None:
    """The plan's own trace is one of those that are compared."""
    project.model("GAIN = 1.0\n\n\ndef stage(x):\n    return x * GAIN\n", "gained").yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {x: 0.5}
        stages: {stage: {_target_: gained.stage}}
    """)
    draft = make_draft(read_config(project.config))
    assert check_purity(draft).problems == []
    sys.modules["gained"].GAIN = 2.0
    (message,) = check_purity(draft).problems
    assert "`stages.stage` must give the same program" in message
    assert "gained.py:5: return x * GAIN" in message


@pytest.mark.parametrize("case", ["numpy", "time", "counter", "object", "cache", "default, traced"])
def test_no_run_begins_with_a_stage_whose_traces_differ(project: Project, case: str) -> None:
    """Without being asked, as far as tracing shows it: such numbers are frozen, the same in every sample and others in each run."""
    body, line, words = IMPURE[case]
    project.model(MODEL + textwrap.indent(body, "    ") + "\n").yaml(CONFIG)
    with pytest.raises(StageError) as caught:
        project.run()
    assert f": {line}" in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert not (project.folder / "store.zarr").exists()


TABLES = """\
    import functools
    import jax.numpy as jnp
    import numpy as np

    KEPT = {}


    @functools.lru_cache
    def cached(n):
        return jnp.linspace(0.0, 1.0, n)


    def kept(n):
        if n not in KEPT:
            KEPT[n] = jnp.linspace(0.0, 1.0, n)
        return KEPT[n]


    @functools.lru_cache
    def constant(n):
        return np.linspace(0.0, 1.0, n)


    def first(x, table):
        return jnp.sum({"cached": cached, "kept": kept, "constant": constant}[table](4)) * x


    def second(first, table):
        return jnp.sum({"cached": cached, "kept": kept, "constant": constant}[table](4)) + first
"""


@pytest.mark.parametrize("table", ["cached", "kept", "constant"])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_table_that_stages_share(project: Project, table: str, command: str) -> None:
    """One that `jnp` makes while a stage is traced is a value of that trace alone; one of NumPy is a constant."""
    project.model(TABLES).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {x: 0.5}
        constants: {table: cached}
        stages:
          first: {_target_: model.first, table: "${constants.table}"}
          second: {_target_: model.second, table: "${constants.table}"}
        outputs: {y: second}
        derivatives: {d: {of: y, wrt: x}}
        sweep: {axes: {x: [0.1, 0.2]}}
    """)
    answer = project.cli(command, "case.yaml", f"constants.table={table}")
    if table == "constant":
        assert answer.code == 0, answer.err
        return
    assert answer.code == 2, answer.err
    assert "`stages.first` must depend on its arguments only, but it uses a leaked value" in answer.err
    assert "made with np, not jnp" in answer.err


def test_a_plan_is_run_as_it_was_traced(project: Project) -> None:
    """Also if the module changed since: it is a snapshot."""
    project.model("GAIN = 2.0\n\n\ndef stage(x):\n    return x * GAIN\n", "amplified").yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {x: 0.5}
        stages: {stage: {_target_: amplified.stage}}
    """)
    plan = project.load(f"store.path={project.folder / 'store.zarr'}")
    sys.modules["amplified"].GAIN = 7.0
    assert float(engine.run(plan)["stage"]) == 1.0


def test_a_callback_that_raises_is_no_matter_of_purity(project: Project) -> None:
    found = checked(project, "return jax.pure_callback(lambda v: 1 / 0, x, x)")
    assert found.problems == []
    assert found.points == ()


def test_random_numbers_of_the_key_are_pure(project: Project) -> None:
    project.model("import jax\n\n\ndef noise(x, key):\n    return x + jax.random.normal(key)\n").yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {x: 0.5}
        stages: {noise: {_target_: model.noise}}
        sweep: {replicates: 4}
    """)
    assert check_purity(make_draft(read_config(project.config))).problems == []


def test_the_command_says_pure(project: Project) -> None:
    project.model(MODEL + "    jax.debug.print('{}', x)\n    return x\n").yaml(CONFIG)
    answer = project.cli("plan", "case.yaml", "--check")
    assert answer.code == 0, answer.err
    assert f"purity\n  first  pure\n  stage  pure  prints for each sample (model.py:{START})\n" in answer.out
    assert (
        "(traced twice and in another process, evaluated twice at the nominal point, the first sample, " in answer.out
    )
    data = project.cli("plan", "case.yaml", "--check", "--json").json["purity"]
    assert data["pure"] is True
    assert data["stages"]["first"] == {"pure": True, "problems": [], "notes": []}
    assert project.cli("plan", "case.yaml", "--json").json["purity"] is None


def test_the_command_refuses_what_is_not(project: Project) -> None:
    project.model(MODEL + "    return x + np.random.normal()\n").yaml(CONFIG)
    answer = project.cli("plan", "case.yaml", "--check")
    assert answer.code == 2
    assert answer.out.startswith("purity\n  first  pure\n  stage  not pure\n")
    assert answer.err.startswith("error: `stages.stage` must give the same program")
    assert f"model.py:{START}: return x + np.random.normal()" in answer.err
    answer = project.cli("plan", "case.yaml", "--check", "--json")
    assert (answer.code, answer.json["status"]) == (2, "error")
    assert answer.json["purity"]["stages"]["stage"]["problems"] == answer.json["problems"]


ELSEWHERE = {
    # what stands before the stage; its body
    "drawn at import": ("W = np.random.normal(size=3)", "return x * W.sum()"),
    "time at import": ("T = time.time()", "return x * T"),
    "a cache of random numbers": (
        "@functools.lru_cache\ndef drawn():\n    return np.random.normal()",
        "return x * drawn()",
    ),
    "process": ("import os", "return x * os.getpid()"),
    "hash": ("", "return x * (hash('abc') % 1000)"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_differs_between_processes_is_found(project: Project, case: str) -> None:
    """No run of such a model could be resumed: each would have another fingerprint."""
    before, body = ELSEWHERE[case]
    imports = "import functools, time\nimport numpy as np\n"
    project.model(f"{imports}{before}\n\n\ndef stage(x):\n    {body}\n", f"m{abs(hash(case))}").yaml(f"""\
        defaults: [engine, _self_]
        name: case
        parameters: {{x: 0.5}}
        stages: {{stage: {{_target_: m{abs(hash(case))}.stage}}}}
    """)
    draft = make_draft(read_config(project.config))
    found = check_purity(draft)
    assert found.problems == []
    compare_processes(draft, found)
    (message,) = found.problems
    assert message.startswith("`stages.stage` must give the same program in every process")


ACTS = {
    "file": ("open(PATH, 'a').close()\nreturn x", "writes the file"),
    "numpy file": ("np.savetxt(PATH, np.ones(3))\nreturn x", "writes the file"),
    "environment": ("os.environ['ENGINE_TEST'] = '1'\nreturn x", "sets a variable of the environment"),
    "command": ("subprocess.run(['true'])\nreturn x", "runs a command"),
}


@pytest.mark.parametrize("case", ACTS)
def test_what_a_stage_does_outside_is_found(project: Project, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TEST", "0")
    body, words = ACTS[case]
    path = project.folder / "written.txt"
    found = checked(project, f"import os, subprocess\nPATH = {str(path)!r}\n{body}")
    (message,) = verdict(found).problems
    assert message.startswith("`stages.stage` must act on nothing outside, but it ")
    assert words in message
    assert body.splitlines()[0] in message


def test_reading_a_file_is_let_pass(project: Project) -> None:
    (project.folder / "table.csv").write_text("1,2\n")
    path = str(project.folder / "table.csv")
    assert checked(project, f"return x * np.loadtxt({path!r}, delimiter=',').sum()").problems == []


def test_a_worked_pipeline_is_pure() -> None:
    assert check_purity(make_draft(read_config(REPOSITORY / "conf" / "oscillator.yaml"))).problems == []
