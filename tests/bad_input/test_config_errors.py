"""Bad configs: exit code 2, one screen, the key first, the remedy last, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.config import MAPPINGS, read_config
from engine.errors import UserError
from tests.project import Project

MODEL = """\
    import jax.numpy as jnp


    def decay(k, y0=1.0):
        return {"y": y0 * jnp.exp(-k), "grid": jnp.arange(3.0)}


    def double(x):
        return 2 * x


    def nothing(k):
        k + 1


    def total(k):
        return k[1] + k[2] ** 2


    def switch(k, w):
        return w * (k["1"] + k["x"])


    VALUE = 3
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: decay
    parameters: {k: 0.5}
    stages:
      decay: {_target_: model.decay}
    outputs: {y: decay.y}
    sweep: {axes: {k: [0.1, 0.2]}}
"""


@pytest.fixture
def decay(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def problems(decay: Project, *overrides: str) -> str:
    before = set(os.listdir(decay.folder))
    with pytest.raises(UserError) as caught:
        decay.run(*overrides)
    assert set(os.listdir(decay.folder)) - before <= {"__pycache__"}, "something was written"
    text = "\n".join(caught.value.problems)
    assert all(p.startswith("`") for p in caught.value.problems), text
    assert "Traceback" not in text
    return text


CASES = {
    "unknown section": (["+sed=1"], ["`sed`", "'seed'"]),
    "unknown key": (["+execution.chunks=1"], ["`execution.chunks`", "'chunk'"]),
    "unknown override": (["execution.chnk=1"], ["`execution.chnk`", "'chunk'"]),
    "wrong type": (["execution.chunk=many"], ["`execution.chunk`", "positive integer", "'many'"]),
    "zero chunk": (["execution.chunk=0"], ["`execution.chunk`", "but is 0"]),
    "bad memory": (["execution.memory=lots"], ["`execution.memory`", "2 GiB", "'lots'"]),
    "bad choice": (["precision=float46"], ["`precision`", "'float64'"]),
    "text for a number": (["parameters.k=abc"], ["`parameters.k`", "text 'abc'"]),
    "arithmetic": (["parameters.k=1/3"], ["`parameters.k`", "not evaluated"]),
    "missing": (["parameters.k=???", "name=???"], ["`parameters.k`", "`name`", "missing"]),
    "infinite seed": (["seed=-1"], ["`seed`", "but is -1"]),
    "grammar": (["name=a=b"], ["`name`", "Quote"]),
    "list without brackets": (["parameters.k=1,2"], ["`parameters.k`", "[1,2]", "-m"]),
    "misspelt target": (["stages.decay._target_=model.decya"], ["`stages.decay._target_`", "'decay'"]),
    "misspelt module": (["stages.decay._target_=modle.decay"], ["`stages.decay._target_`", "modle"]),
    "no function": (["stages.decay._target_=model.VALUE"], ["`stages.decay._target_`", "int"]),
    "superfluous constant": (["+stages.decay.y1=3"], ["`stages.decay.y1`", "'y0'"]),
    "unknown reference": (["+stages.decay._inputs_.y0=parm"], ["`stages.decay._inputs_.y0`", "'parm'"]),
    "unknown output": (["outputs.y=decay.z"], ["`outputs.y`", "'decay.z'", "'grid', 'y'"]),
    "unknown stage": (["outputs.y=dcay.y"], ["`outputs.y`", "'decay'"]),
    "wrong rank of dims": (["outputs.y={from: decay.grid, dims: [a, b]}"], ["`outputs.y.dims`", "(3,)"]),
    "missing argument": (
        ["+stages.double._target_=model.double"],
        ["`stages.double`", "'x'", "_inputs_"],
    ),
    "cycle": (
        [
            "+stages.a={_target_: model.double, _inputs_: {x: b}}",
            "+stages.b={_target_: model.double, _inputs_: {x: a}}",
        ],
        ["cycle", "a -> b -> a"],
    ),
    "no return": (["stages.decay._target_=model.nothing", "outputs=null"], ["`stages.decay", "return"]),
    "unused parameter": (["+parameters.kk=1"], ["`parameters.kk`", "'k'"]),
    "unknown axis": (["+sweep.axes.kk=[1]"], ["`sweep.axes.kk", "'k'"]),
    "empty axis": (["sweep.axes.k=[]"], ["`sweep.axes.k", "empty"]),
    "samples for a grid": (["sweep.samples=3"], ["`sweep.samples`"]),
    "infinite samples": (
        ["sweep.design=random", "sweep.samples=1e400", "sweep.axes={k: {uniform: [0, 1]}}"],
        ["`sweep.samples`", "inf"],
    ),
    "negative samples": (
        ["sweep.design=random", "sweep.samples=-3", "sweep.axes={k: {uniform: [0, 1]}}"],
        ["`sweep.samples`", "-3"],
    ),
    "unequal zip": (["sweep.design=zip", "sweep.axes={k: [1,2], y0: [1]}", "+parameters.y0=1.0"], ["zip", "2", "1"]),
    "gradient of a vector": (
        ["outputs.y=decay.grid", "+derivatives.d={of: y, wrt: k}"],
        ["`derivatives.d.of`", "(3,)", "jacobian"],
    ),
    "gradient of nothing": (["+derivatives.d={of: z, wrt: k}"], ["`derivatives.d.of`", "'z'"]),
    "gradient by nothing": (["+derivatives.d={of: y, wrt: kk}"], ["`derivatives.d.wrt.0`", "'k'"]),
    "output named like the axis": (["outputs={k: decay.y}"], ["`outputs.k`", "Rename"]),
    "output named status": (["outputs={status: decay.y}"], ["`outputs.status`", "Rename"]),
    "coordinate by the sweep": (["outputs={y: {from: decay.grid, dims: [x]}}", "+coords.x=decay.y"], ["`coords.x`"]),
    "unknown group option": (["+solver=tsit6"], ["`solver`", "'tsit5'"]),
    "absent device": (["execution.device=tpu"], ["`execution.device`", "cpu"]),
    "folder as name": (["name=a/b"], ["`name`"]),
    "optimize": (["optimize={minimize: y}"], ["`optimize.variables` must be given"]),
    "dotted parameter": (["+parameters={a.b: 1}"], ["`parameters.a.b`", "a_b"]),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(decay: Project, case: str) -> None:
    overrides, expected = CASES[case]
    text = problems(decay, *overrides)
    for part in expected:
        assert part in text, text


def test_every_problem_at_once(decay: Project) -> None:
    text = problems(decay, "precision=float46", "parameters.k=abc", "+execution.foo=1", "+stagess=1")
    for key in ("`precision`", "`parameters.k`", "`execution.foo`", "`stagess`"):
        assert key in text


FILES = {
    "empty": ("", "empty"),
    "not yaml": ("name: [1, 2\nb: }", "YAML"),
    "a list": ("- 1\n- 2\n", "mapping"),
    "twice": ("name: a\nname: b\n", "lines 1 and 2"),
    "off": ("defaults: [engine, _self_]\nname: a\nexecution: {jit: off}\n", "Write false"),
    "nan": ("defaults: [engine, _self_]\nname: a\nparameters: {k: .nan}\n", "finite"),
    "octal": ("defaults: [engine, _self_]\nname: a\nparameters: {k: 010}\n", "decimal"),
    "interpolation": (
        "defaults: [engine, _self_]\nname: a\nparameters: {k: 1}\nstages: {s: {_target_: a.b, c: '${constantz.g}'}}\n",
        "'constantz.g'",
    ),
    "no solver": ("defaults: [engine, _self_]\nname: a\nstages: {s: {_target_: a.b, c: '${slver}'}}\n", "'solver'"),
    "unknown default": ("defaults: [engine, {solver: none_such}, _self_]\nname: a\n", "tsit5"),
}


@pytest.mark.parametrize("case", FILES, ids=lambda name: name.replace(" ", "_"))
def test_file(project: Project, case: str) -> None:
    text, expected = FILES[case]
    project.config = project.folder / "bad.yaml"
    project.config.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        project.load()
    assert expected in str(caught.value)


def test_not_utf8(project: Project) -> None:
    project.config = project.folder / "bad.yaml"
    project.config.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(UserError, match="UTF-8"):
        project.load()


@pytest.mark.parametrize(
    ("name", "expected"), [("absent.yaml", "not there"), (".", "folder"), ("case.yml", "'case.yaml'")]
)
def test_path(decay: Project, name: str, expected: str) -> None:
    decay.config = decay.folder / name
    with pytest.raises(UserError) as caught:
        decay.load()
    assert expected in str(caught.value)


def test_store_path_is_a_file(decay: Project) -> None:
    (decay.folder / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="file"):
        decay.run(store="taken")
    assert (decay.folder / "taken").read_text(encoding="utf-8") == "mine"


def test_store_path_cannot_be_written(decay: Project) -> None:
    with pytest.raises(UserError, match=r"store\.path"):
        decay.run("store.path=/proc/nowhere/a.zarr")


def test_text_settings_stay_text(decay: Project) -> None:
    for name in ("695e0514", "1e234", "0x1F", "007", "off"):
        assert decay.load(f"name={name}").config.settings.name == name
    path = decay.folder / "names.yaml"
    path.write_text(decay.config.read_text(encoding="utf-8").replace("name: decay", "name: 695e0514"), encoding="utf-8")
    decay.config = path
    assert decay.load().config.settings.name == "695e0514"


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "+1e-6", "0.01e-4", "1.0e-06"])
def test_scientific_notation_is_a_number_everywhere(decay: Project, text: str) -> None:
    assert decay.load(f"parameters.k={text}").config.node["parameters"]["k"] == 1e-6
    source = decay.config.read_text(encoding="utf-8").replace("k: 0.5", f"k: {text}")
    Path(decay.config).write_text(source, encoding="utf-8")
    assert decay.load().config.node["parameters"]["k"] == 1e-6


@pytest.mark.parametrize("written", ["[x]", "3", "null", "abc"])
@pytest.mark.parametrize("key", MAPPINGS)
def test_a_section_that_is_no_mapping(decay: Project, key: str, written: str) -> None:
    """The key, what it is, its line, and an example, for each section; some may be left empty, and a solver be named."""
    head, _, axes = key.partition(".")
    text = f"{head}: {{{axes}: {written}}}" if axes else f"{head}: {written}"
    decay.config.write_text(f"defaults: [engine, _self_]\nname: a\n{text}\n")
    with pytest.raises(UserError) as caught:
        read_config(decay.config)
    told = [p for p in caught.value.problems if p.startswith(f"`{key}` must be a mapping")]
    if (written == "null" and key in ("solver", "adjoint")) or (key, written) == ("solver", "abc"):
        assert not told
        return
    found = {"[x]": "a list", "abc": "text 'abc'"}.get(written, written)
    assert told == [f"`{key}` must be a mapping, but is {found} (line 3). Write {MAPPINGS[key]}."]


def test_a_list_where_a_mapping_stands(decay: Project) -> None:
    """On the command line, and in a file that the config takes in."""
    assert "`ranges` must be a mapping, but is [x]. Write ranges: {parameter:" in problems(decay, "ranges=[x]")
    (decay.folder / "base.yaml").write_text("ranges: [x]\n")
    decay.config.write_text(decay.config.read_text().replace("[engine,", "[engine, base,"))
    assert "`base.yaml` must hold a mapping wherever" in problems(decay)
    (decay.folder / "base.yaml").write_text("solver: 3\n")
    assert "`solver` must be a mapping of settings, the name of" in problems(decay)


READ_OTHERWISE = [
    (
        "parameters: {k: 0.5, on: 1.0}",
        "`parameters` must have text as keys, but has true, as YAML reads on and yes too",
    ),
    ("parameters: {k: {on: 1.0, x: 2.0}}", "`parameters.k` must have text as keys, but has true"),
    ("parameters: {k: 0.5}\nconstants: {a: {no: 1.0}}", "`constants.a` must have text as keys, but has false"),
    ("parameters: {k: 0.5}\nsweep: {axes: {off: [1.0]}}", "`sweep.axes` must have text as keys, but has false"),
    (
        "parameters: {k: 0.5}\nsweep: {axes: {1: [1.0]}}",
        "`sweep.axes` must have text as keys, but has the number 1. Quote it: '1'",
    ),
    ("parameters: {k: 0.5}\noutputs: {1.5: decay.y}", "`outputs` must have text as keys, but has the number 1.5"),
    (
        "parameters: {k: 0.5}\nderivatives: {yes: {of: decay.y, wrt: k}}",
        "`derivatives` must have text as keys, but has true",
    ),
    ("parameters: {k: 0.5}\nconstants: {1: 2}", "`constants` must have text as keys, but has the number 1"),
    ("parameters: {k: 0.5, 1: 1.0}", "`parameters.1` must be a plain name (letters, digits, _), but is 1"),
    ("parameters: {k: 0.5}\n1: 2.0", "`1` must be a known key of a config"),
    ("parameters: {k: 0.5, null: 2.0}", "`parameters` must have names as keys, but has one that is null"),
    ("parameters: {k: 0.5, [1, 2]: 2.0}", "line 3 must have a name as key, but has a list"),
    (
        "parameters: {k: {1: 1.0, x: 2.0}}",
        "`parameters.k` must have keys of one kind, but has the number 1 and the text 'x'",
    ),
    ("parameters: {k: [{1: 1.0, x: 2.0}]}", "`parameters.k.0` must have keys of one kind"),
]


@pytest.mark.parametrize(("text", "expected"), READ_OTHERWISE)
def test_keys_that_yaml_reads_as_something_else(decay: Project, text: str, expected: str) -> None:
    decay.yaml(f"defaults: [engine, _self_]\nname: keys\n{text}\nstages: {{decay: {{_target_: model.decay}}}}\n")
    found = problems(decay)
    assert expected in found
    assert len(found.splitlines()) == 1, found


def test_a_stage_and_its_inputs_have_text_as_keys(decay: Project) -> None:
    base = "defaults: [engine, _self_]\nname: keys\nparameters: {k: 0.5}\nstages:\n  decay: "
    for node, expected in (
        ("{_target_: model.decay, on: 1.0}", "`stages.decay` must have text as keys, but has true"),
        ("{_target_: model.decay, 1: 1.0}", "`stages.decay` must have text as keys, but has the number 1"),
        ("{_target_: model.decay, _inputs_: {yes: k}}", "`stages.decay._inputs_` must have text as keys"),
        (
            "{_target_: model.decay, _inputs_: {k: {1: k, x: k}}}",
            "`stages.decay._inputs_.k` must have keys of one kind",
        ),
    ):
        decay.yaml(base + node + "\n")
        assert expected in problems(decay)
    decay.yaml(base.replace("decay: ", "on: ") + "{_target_: model.decay}\n")
    assert "`stages` must have text as keys, but has true" in problems(decay)


def test_a_number_as_key_is_overridden_inside_its_mapping(decay: Project) -> None:
    decay.yaml("""
        defaults: [engine, _self_]
        name: keys
        parameters: {k: {1: 1.0, 2: 2.0}}
        stages: {total: {_target_: model.total}}
        sweep: {axes: {k.1: [1.0, 3.0]}}
        derivatives: {d: {of: total, wrt: [k.2]}}
        """)
    assert "Write 'parameters.k={2: 4.0}'" in problems(decay, "parameters.k.2=4.0")
    ds = decay.run("parameters.k={2: 4.0}")
    assert ds.total.values.tolist() == [1 + 16, 3 + 16]
    assert ds["d.k.2"].values.tolist() == 8


def test_quoted_names_are_names(decay: Project) -> None:
    ds = decay.yaml("""
        defaults: [engine, _self_]
        name: keys
        parameters: {k: {"on": 1.0, "null": 2.0}, "off": 3.0}
        stages: {"yes": {_target_: model.switch, _inputs_: {k: {"1": k.on, x: k.null}, w: "off"}}}
        outputs: {"1": "yes"}
        sweep: {axes: {k.on: [1.0, 3.0]}}
        derivatives: {"no": {of: "1", wrt: ["off"]}}
        """).run("parameters.k.null=4.0")
    assert ds["1"].values.tolist() == [3 * 5, 3 * 7]
    assert ds["no.off"].values.tolist() == [5, 7]
