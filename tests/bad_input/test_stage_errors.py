"""Stages that JAX cannot trace: the stage, the user's own line, the remedy, and nothing of JAX's insides."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from engine.diagnosis import StageContext, explain, explain_bad_output, explain_import, explain_no_return
from engine.errors import PipelineError, StageError, UserError
from tests.project import REPOSITORY, Project

MODEL = """\
import json, math
import jax, jax.numpy as jnp, numpy as np, scipy.special


class Odd(Exception):
    def __init__(self, first, second, *, third):
        super().__init__()


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Thing:
    pass


def helper(z):
    return math.exp(z)


def source(k):
    return {"x": k * jnp.arange(3.0), "state": {"position": k, "velocity": k}}


"""
FIRST = MODEL.count("\n") + 1
CONFIG = """\
defaults: [engine, _self_]
name: stages
parameters: {k: 0.5}
stages:
  source: {_target_: model.source}
  motion: {_target_: model.motion, c: [1.0, 2.0], _inputs_: {x: source.x, state: source.state}}
outputs: {y: motion}
sweep: {axes: {k: [0.1, 0.2]}}
"""


def check_screen(message: str) -> None:
    """One screen, without a trace of the machinery."""
    assert len(message.splitlines()) <= 14
    assert " must " in message and " but " in message
    for inside in ("Traceback", "jax._src", "site-packages", "Tracer", "docs.jax.dev", "<class"):
        assert inside not in message


def message_of(project: Project, body: str, define: str = "def motion(k, x, state, c):") -> str:
    """What loading says about a stage `motion` with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    project.model(f"{MODEL}{define}\n{lines}").yaml(CONFIG)
    with pytest.raises(UserError) as caught:
        project.load()
    message = str(caught.value)
    assert isinstance(caught.value, StageError)
    assert message.startswith("`stages.motion` must ")
    check_screen(message)
    return message


CASES = {
    "if": (
        "if k > 0:\n    return x\nreturn -x",
        "if k > 0:",
        ["`if`", "jnp.where", "lax.cond", "constant", "k: float64[]"],
    ),
    "while": ("while k < 3:\n    k = 2 * k\nreturn k", "while k < 3:", ["jax.lax.while_loop", "{k: 3}"]),
    "ternary": ("return x if k > 0 else -x", "return x if k > 0 else -x", ["`if`", "jnp.where", "{k: 3}"]),
    "and": ("return jnp.where(k > 0 and k < 1, x, 0.0)", "return jnp.where(k > 0 and", ["`and`", "`&`"]),
    "max": ("return max(k, 0.0)", "return max(k, 0.0)", ["jnp.maximum(a, b)"]),
    "assert": ("assert k > 0\nreturn k", "assert k > 0", ["`assert`", "status"]),
    "float": ("return float(k)", "return float(k)", ["`float()`", "astype(float)", "constant"]),
    "item": ("return k.item()", "return k.item()", ["`item()`", "constant"]),
    "math": ("return math.sin(k)", "return math.sin(k)", ["`math.sin`", "`jnp.sin`"]),
    "numpy": ("return np.exp(k)", "return np.exp(k)", ["`np.exp`", "`jnp.exp`"]),
    "scipy": ("return scipy.special.erf(k)", "return scipy.special.erf(k)", ["SciPy", "jax.scipy"]),
    "range": (
        "for i in range(k.astype(int)):\n    x = x + i\nreturn x",
        "for i in range(k.astype(int)):",
        ["{k: 3}", "fori_loop"],
    ),
    "index": ("return [1.0, 2.0][k.astype(int)]", "return [1.0, 2.0][k.astype(int)]", ["constant", "jnp.asarray"]),
    "assign": (
        "x[0] = 1\nreturn x",
        "x[0] = 1",
        ["JAX arrays are immutable", "x.at[0].set(1)", "source.x: float64[3]"],
    ),
    "add": ("x[1, ...] += k\nreturn x", "x[1, ...] += k", ["x = x.at[1, ...].add(k)"]),
    "leak": (
        "box = []\njax.jit(box.append)(k)\nreturn box[0] + k",
        "return box[0] + k",
        ["leaked", "inside the stage"],
    ),
    "mask": ("return x[x > k]", "return x[x > k]", ["boolean mask", "jnp.where(mask, x, 0.0)"]),
    "nonzero": ("return jnp.nonzero(x)[0]", "return jnp.nonzero(x)[0]", ["fixed shape", "jnp.where"]),
    "size": ("return jnp.zeros(k.astype(int))", "return jnp.zeros(k.astype(int))", ["size", "{k: 3}"]),
    "slice": ("return x[: k.astype(int)]", "return x[: k.astype(int)]", ["dynamic_slice"]),
    "broadcast": ("return x + jnp.zeros(4)", "return x + jnp.zeros(4)", ["(3,), (4,)", "source.x: float64[3]"]),
    "matmul": ("return x @ jnp.ones((4, 4))", "return x @ jnp.ones((4, 4))", ["source.x: float64[3]", "shapes"]),
    "reshape": ("return jnp.reshape(x, (2, 2))", "return jnp.reshape(x, (2, 2))", ["(2, 2)", "source.x: float64[3]"]),
    "scan": (
        "return jax.lax.scan(lambda s, _: (s * x, None), k, None, length=3)[0]",
        "return jax.lax.scan(",
        ["carry", "float64[3]", "jnp.asarray(0.0)"],
    ),
    "loop": (
        "return jax.lax.while_loop(lambda s: s.sum() < 1, lambda s: jnp.stack([s, s]), k)",
        "return jax.lax.while_loop(",
        ["carry", "float64[2]", ".astype"],
    ),
    "branches": ("return jax.lax.cond(k > 0, lambda: x, lambda: k)", "return jax.lax.cond(", ["branch", "float64[3]"]),
    "no return": ("k + 1", "def motion(k, x, state, c):", ["`return` is missing"]),
    "text": (
        'return {"a": {"b": "stable"}}',
        "def motion(k, x, state, c):",
        ["'a.b'", "str 'stable'", "Leave the text out"],
    ),
    "object": ("return Thing()", "def motion(k, x, state, c):", ["an object of type Thing", "in a dict"]),
    "function": ("return [helper]", "def motion(k, x, state, c):", ["a function (helper)", "Call it"]),
    "set": ("return {1.0}", "def motion(k, x, state, c):", ["set {1.0}", "in place of a set"]),
    "generator": ("yield k", "def motion(k, x, state, c):", ["generator", "`return` the arrays"]),
    "key": (
        'return state["velocty"]',
        'return state["velocty"]',
        ["no 'velocty'", "Did you mean 'velocity'?", "'position'"],
    ),
    "dict attribute": (
        "return state.velocity",
        "return state.velocity",
        ["Write `['velocity']` in place of `.velocity`"],
    ),
    "array attribute": ("return k.foo", "return k.foo", ["an array has no attribute 'foo'"]),
    "module attribute": ("return jnp.sun(x)", "return jnp.sun(x)", ["Did you mean 'sum'?"]),
    "whole dict": (
        "return state * k",
        "return state * k",
        ["'state' is a dict of 'position', 'velocity'", "source.state.position"],
    ),
    "library": ('return json.loads("{") * k', 'return json.loads("{") * k', ["JSONDecodeError: Expecting"]),
    "own": ("raise Odd(1, 2, third=3)", "raise Odd(1, 2, third=3)", ["it raised Odd"]),
    "mute": ("raise Mute", "raise Mute", ["it raised Mute"]),
    "value": ('raise ValueError(f"bad {k}")', "raise ValueError(f", ["ValueError: bad array of float64[]"]),
    "list": ("return jnp.sin(c)", "return jnp.sin(c)", ["constant 'c' is a list", "c = jnp.asarray(c)"]),
}


@pytest.mark.parametrize("case", CASES)
def test_stage_error_shows_line_and_remedy(project: Project, case: str) -> None:
    body, line, words = CASES[case]
    message = message_of(project, body)
    source = (project.folder / "model.py").read_text().splitlines()
    number = next(n for n, text in enumerate(source, 1) if n >= FIRST and text.strip().startswith(line))
    assert f"model.py:{number}: {line}" in message
    for word in words:
        assert word in message, message


def test_coroutine_function(project: Project) -> None:
    message = message_of(project, "return k", "async def motion(k, x, state, c):")
    assert f"model.py:{FIRST}: async def motion" in message
    assert "Write `def`" in message


def test_innermost_line_of_the_user_is_shown(project: Project) -> None:
    message = message_of(project, "return helper(k)")
    assert f"model.py:{MODEL.splitlines().index('    return math.exp(z)') + 1}: return math.exp(z)" in message
    assert "`jnp.exp`" in message
    assert "k: float64[]" in message


def test_definition_is_found_under_decorators(project: Project) -> None:
    message = message_of(project, "k", "@jax.jit\ndef motion(k, x, state, c):")
    assert f"model.py:{FIRST + 1}: def motion" in message


def test_function_of_a_library_is_named_by_its_target(project: Project) -> None:
    wired = "model.motion, c: [1.0, 2.0], _inputs_: {x: source.x, state: source.state}"
    library = "jax.numpy.reshape, shape: [2, 2], _inputs_: {a: source.x}"
    project.model(MODEL).yaml(CONFIG.replace(wired, library))
    with pytest.raises(StageError) as caught:
        project.load()
    check_screen(str(caught.value))
    assert "_target_: jax.numpy.reshape" in str(caught.value)
    assert "source.x: float64[3]" in str(caught.value)


def import_message(project: Project, target: str, source: str) -> str:
    """What loading says about the import of a stage `decay`."""
    project.model(source, "mymodel").yaml(
        "defaults: [engine, _self_]\nname: imports\nparameters: {k: 0.5}\n"
        f"stages: {{decay: {{_target_: {target}}}}}\n"
        "outputs: {y: decay}\nsweep: {axes: {k: [0.1, 0.2]}}\n"
    )
    with pytest.raises(PipelineError) as caught:
        project.load()
    message = str(caught.value)
    assert message.startswith("`stages.decay._target_` must ")
    check_screen(message)
    return message


DECAY = "def decay(k):\n    return -k\n"
IMPORTS = {
    "module": ("mymodle.decay", DECAY, ["no module 'mymodle'", "Did you mean 'mymodel'?"]),
    "attribute": ("mymodel.decya", DECAY, ["no 'decya'", "Did you mean 'decay'?", "It has 'decay'"]),
    "too deep": ("mymodel.decay.rate", DECAY, ["'mymodel.decay' has no 'rate'"]),
    "package": ("scipy.speciall.erf", DECAY, ["'scipy' has no 'speciall'", "Did you mean 'special'?"]),
    "raises": ("mymodel.decay", DECAY + "1 / 0\n", ["ZeroDivisionError: division by zero", "mymodel.py:3: 1 / 0"]),
    "syntax": ("mymodel.decay", DECAY + "x = (1))\n", ["SyntaxError", "mymodel.py:3: x = (1))"]),
    "dependency": (
        "mymodel.decay",
        "import nosuchthing\n" + DECAY,
        ["imports 'nosuchthing'", "mymodel.py:1:", "Install"],
    ),
    "attribute inside": ("mymodel.decay", DECAY + "decay.rate\n", ["AttributeError", "mymodel.py:3: decay.rate"]),
    "no dot": ("mymodel", DECAY, ["module.function", "'mymodel'"]),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_import_error_names_the_cause(project: Project, case: str) -> None:
    target, source, words = IMPORTS[case]
    message = import_message(project, target, source)
    for word in words:
        assert word in message, message


SET = {
    "jax_enable_x64": ("False", "`precision`"),
    "jax_debug_nans": ("True", "`execution.debug_nans`"),
    "jax_disable_jit": ("True", "`execution.jit`"),
    "jax_threefry_partitionable": ("False", "where the module is imported"),
}


@pytest.mark.parametrize("name", SET)
def test_a_stage_that_changes_a_setting_of_jax(project: Project, name: str) -> None:
    """Else the stages after it would be computed with it; it is put back."""
    value, remedy = SET[name]
    before = getattr(jax.config, name)
    body = f'def motion(x, state, c):\n    jax.config.update("{name}", {value})\n    return x\n'
    project.model(MODEL + body).yaml(CONFIG)
    with pytest.raises(StageError) as caught:
        project.load()
    message = str(caught.value)
    check_screen(message)
    assert message.startswith("`stages.motion` must leave JAX's settings as they are")
    assert f"model.py:{FIRST + 1}: jax.config.update" in message
    assert remedy in message
    assert getattr(jax.config, name) == before


FLOATS = {
    "a column": (
        ["sweep={design: table, table: points.csv}"],
        "`sweep.table` column 'n' holds floats",
        "Write integers",
    ),
    "an axis": (["sweep.axes={n: {linspace: [0, 2, 3]}}"], "`sweep.axes.n` holds floats", "Write integers there"),
    "a derivative": (["+derivatives.d={of: y, wrt: n}"], "`derivatives.d.wrt` names it", "Take it out there"),
}


@pytest.mark.parametrize("case", FLOATS)
def test_an_index_that_something_makes_a_float(project: Project, case: str) -> None:
    """The message says what makes it one, though the config writes an integer."""
    overrides, why, remedy = FLOATS[case]
    (project.folder / "points.csv").write_text("n\n0\n1.5\n")
    project.model("import jax.numpy as jnp\ndef look(n): return jnp.arange(3.0)[n]\n").yaml(
        "{defaults: [engine, _self_], name: a, parameters: {n: 1}, stages: {look: {_target_: model.look}}, outputs: {y: look}}"
    )
    project.load()
    with pytest.raises(StageError) as caught:
        project.load(*overrides)
    message = str(caught.value)
    check_screen(message)
    assert f"must index by integers, but 'n' is a float, though written as an integer: {why}" in message
    assert remedy in message
    with pytest.raises(StageError, match="the index on this line is a float"):
        project.load("parameters.n=1.0")


class Hostile(Exception):
    """Refuses every question."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")


class NoWords:
    """Has no repr, and is callable."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __dir__(self) -> list[str]:
        raise RuntimeError("dir")


ODD = {
    "hostile": lambda: Hostile(),
    "key": lambda: KeyError(),
    "bare attribute": lambda: AttributeError(),
    "attribute": lambda: AttributeError("x", name="a", obj=NoWords()),
}
FUNCTIONS = {"builtin": len, "class": dict, "object": NoWords(), "code": compile("1", "x", "eval")}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("error", ODD)
def test_explaining_never_raises(function: str, error: str) -> None:
    stage = StageContext("odd", "m.odd", FUNCTIONS[function], {"x": "y: {a: {b: float64[]"})  # type: ignore[arg-type]
    for message in (explain(ODD[error](), stage), explain_no_return(stage), explain_bad_output(stage, "", NoWords())):
        assert str(message).startswith("`stages.odd` must ")
    assert str(explain_import("stages.odd._target_", "m.odd", ODD[error]())).startswith("`stages.odd._target_` must ")


def test_importing_the_module_leaves_jax_alone() -> None:
    code = "import sys, engine.diagnosis; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
