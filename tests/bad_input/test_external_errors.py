"""What `ops.external.callback` and a `_target_` that is a node refuse, in words and as early as can be."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.errors import PipelineError, StageError
from ops.external import callback
from tests.project import Project


def square(x: Any) -> Any:
    return x * x


def annotated(x: float) -> np.ndarray[Any, Any]:
    return np.array([x, x])


DECLARED: dict[str, tuple[Any, str]] = {
    "text": (lambda: callback("model.f"), r"`function` must .*_partial_: true"),  # type: ignore[arg-type]
    "under jit": (lambda: callback(jax.jit(square)), "`function` must be outside JAX"),
    "callback of a callback": (lambda: callback(callback(square)), "`function` must be outside JAX"),
    "unknown derivatives": (lambda: callback(square, derivatives="finit"), "finite, complex or none.*'finit'"),
    "two sources": (lambda: callback(square, derivatives="finite", jacobian=square), "`derivatives` must be left out"),
    "two functions": (lambda: callback(square, jvp=square, jacobian=square), "`jacobian` must be left out"),
    "jacobian that is none": (lambda: callback(square, jacobian="model.g"), "`jacobian` must be a function"),  # type: ignore[arg-type]
    "jvp under jit": (lambda: callback(square, jvp=jax.jit(square)), "`jvp` must be outside JAX"),
    "step ignored": (lambda: callback(square, derivatives="none", step=1e-3), "`step` must be left out"),
    "order ignored": (lambda: callback(square, jacobian=square, order=4), "`order` must be left out"),
    "odd order": (lambda: callback(square, order=3), "`order` must be 2 or 4, but is 3"),
    "negative step": (lambda: callback(square, step=-1.0), "`step` must be a positive number, but is -1.0"),
    "text as size": (lambda: callback(square, typical="wide"), "`typical` must be a positive number, but is 'wide'"),
    "step of another": (lambda: callback(square, step={"y": 1e-3}), r"`step\.y` must be an argument.*There are x"),
    "unknown kind": (lambda: callback(square, result="flot[3]"), r"`result` must .*'flot\[3\]'"),
    "open bracket": (lambda: callback(square, result="float[3"), "`result` must"),
    "negative size": (lambda: callback(square, result=(-1,)), "`result` must .*-1"),
    "nothing": (lambda: callback(square, result={}), r"`result` must .*\{\}"),
    "array without result": (lambda: callback(annotated), "`result` must be given where annotated .* ndarray"),
    "lock in words": (lambda: callback(square, lock="maybe"), "`lock` must be true or false, but is 'maybe'"),  # type: ignore[arg-type]
    "vectorized as a number": (lambda: callback(square, vectorized=1), "`vectorized` must be true or false, but is 1"),  # type: ignore[arg-type]
    "vectorized as null": (lambda: callback(square, vectorized=None), "`vectorized` must be true or false, but is N"),  # type: ignore[arg-type]
    "complex steps to complex": (lambda: callback(square, result=complex, derivatives="complex"), "`derivatives` must"),
}


@pytest.mark.parametrize("case", DECLARED, ids=lambda name: name.replace(" ", "_"))
def test_declaration(case: str) -> None:
    act, expected = DECLARED[case]
    with pytest.raises(ValueError, match=expected) as caught:
        act()
    check(str(caught.value))


def check(message: str) -> None:
    """The grammar of errors."""
    assert message.startswith("`")
    assert " must " in message
    assert "but" in message


def test_no_signature() -> None:
    class Opaque:
        __signature__ = 1

        def __call__(self) -> None: ...

    with pytest.raises(ValueError, match=r"`function` must have a signature.*Wrap it") as caught:
        callback(Opaque())
    check(str(caught.value))


X = jnp.array([1.0, 2.0])
TRACED: dict[str, tuple[Any, str]] = {
    "none": (lambda: jax.grad(callback(square, derivatives="none"))(2.0), "`derivatives` of square .*none"),
    "none in reverse": (
        lambda: jax.jit(jax.jacrev(callback(square, result=(2,), derivatives="none")))(X),
        "`derivatives` of square",
    ),
    "complex": (lambda: jax.jvp(callback(square, result=complex), (1j,), (1j,)), "`x` of square must be real"),
    "second of differences": (lambda: jax.hessian(callback(square))(2.0), "`jacobian` of square .*finite differences"),
    "second of a jacobian": (
        lambda: jax.jacfwd(jax.jacfwd(callback(square, jacobian=lambda x: 2 * x)))(2.0),
        r"`jacobian` of square .*declared \(jacobian <lambda>\)",
    ),
    "second in reverse": (lambda: jax.jacrev(jax.jacrev(callback(square)))(2.0), "`jacobian` of square"),
    "traced jacobian of another shape": (
        lambda: jax.jacfwd(callback(square, result=(2,), jacobian=jax.jit(lambda x: 2 * x)))(X),
        r"`jacobian of square by x` must be \[2, 2\], but is \[2\]",
    ),
}


@pytest.mark.parametrize("case", TRACED, ids=lambda name: name.replace(" ", "_"))
def test_refused_while_traced(case: str) -> None:
    """Before anything is called."""
    act, expected = TRACED[case]
    with pytest.raises(ValueError, match=expected) as caught:
        act()
    check(str(caught.value))


def two(a: Any, b: Any) -> Any:
    return a * b


ANSWERED: dict[str, tuple[Any, str]] = {
    "shape": (lambda: callback(square, result=(3,))(X), r"`square` must be float64\[3\], but is float64\[2\]"),
    "array for a number": (
        lambda: callback(square)(X),
        r"`square` must be float64\[\], but is float64\[2\]. Return that",
    ),
    "float for int": (lambda: callback(square, result="int[2]")(X), r"must be int64\[2\], but is float64"),
    "complex for float": (lambda: callback(lambda x: 1j * x)(1.0), "must be float64.*complex128"),
    "text": (lambda: callback(lambda x: "one")(1.0), "must be float64"),
    "none": (lambda: callback(lambda x: None)(1.0), "must be float64.*NoneType"),
    "ragged": (lambda: callback(lambda x: [[1.0], [1.0, 2.0]], result=(2, 2))(1.0), r"must be float64\[2, 2\]"),
    "array of JAX": (lambda: callback(lambda x: jnp.asarray(1.0))(1.0), "must not call JAX"),
    "not a dict": (lambda: callback(square, result={"y": ()})(1.0), "`square` must be a dict of y, but is a float"),
    "other names": (lambda: callback(lambda x: {"z": x}, result={"y": ()})(1.0), "a dict of y, but is a dict of z"),
    "inside": (lambda: callback(lambda x: {"y": [x]}, result={"y": ()})(1.0), r"`<lambda>\.y` must be float64\[\]"),
    "too few": (lambda: callback(lambda x: (x,), result=[[], []])(1.0), "a list or tuple of 2, but is a tuple of 1"),
    "too large": (lambda: callback(lambda x: 2**40, result="int32")(1.0), r"must be int32\[\], but is int64"),
    "axes dropped": (
        lambda: jax.vmap(callback(lambda x: np.sum(x), vectorized=True))(X),
        r"must be float64\[\] after the leading axes \[2\]",
    ),
    "jacobian of another shape": (
        lambda: jax.jacfwd(callback(square, result=(2,), jacobian=lambda x: 2 * x))(X),
        r"`jacobian of square by x` must be float64\[2, 2\], but is float64\[2\]",
    ),
    "jacobian of one": (
        lambda: jax.grad(callback(two, jacobian=lambda a, b: {"a": b}), (0, 1))(1.0, 2.0),
        r"`jacobian` of two must be by each argument, \{a: ..., b: ...\}, but is a dict of a",
    ),
    "jvp of another shape": (
        lambda: jax.grad(callback(square, jvp=lambda p, t: [t["x"]]))(1.0),
        "`jvp of square` must",
    ),
}


@pytest.mark.parametrize("case", ANSWERED, ids=lambda name: name.replace(" ", "_"))
def test_answer_that_is_not_as_declared(case: str) -> None:
    act, expected = ANSWERED[case]
    with pytest.raises(Exception, match=expected):
        jax.block_until_ready(act())


# ---- in the engine

MODEL = """\
    import numpy as np

    from ops.external import callback


    def beam(load, length=1.0):
        return load * length**3


    def many(load):
        return [load, load]


    number = 3.0


    @callback(derivatives="none")
    def closed(load):
        return load**2
"""


def config(target: str, more: str = "") -> str:
    return f"""\
    defaults: [engine, _self_]
    name: case
    parameters: {{load: 2.0}}
    stages:
      beam:
        _target_: {target}
        {more}
    sweep: {{axes: {{load: [1.0, 2.0]}}}}
"""


NODES = {
    "unknown builder": ("{_target_: ops.external.calback}", "", r"`stages\.beam\._target_\._target_` must .*Did you mean 'callback'"),
    "unknown function": (
        "{_target_: ops.external.callback, function: {_target_: model.baem, _partial_: true}}",
        "",
        r"`stages\.beam\._target_\.function\._target_` must .*Did you mean 'beam'",
    ),
    "unknown setting": (
        "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true}, ordr: 4}",
        "",
        r"`stages\.beam\._target_\.ordr` must be an argument .*Did you mean 'order'",
    ),
    "wrong setting": (
        "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true}, order: 5}",
        "",
        r"`stages\.beam\._target_` must be built .*`order` must be 2 or 4",
    ),
    "path as text": ("{_target_: ops.external.callback, function: model.beam}", "", "`function` must be a function"),
    "no function": ("{_target_: model.beam, load: 1.0}", "", r"build a function, but model\.beam gives float\. Write `_partial_: true`"),
    "no target": ("{function: model.beam}", "", r"`stages\.beam\._target_` must be the import path .*or a node"),
    "number": ("3", "", r"`stages\.beam\._target_` must be the import path .*is 3"),
    "unknown constant": (
        "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true}}",
        "lenght: 2.0",
        r"`stages\.beam\.lenght` must be an argument of the function.*Did you mean 'length'",
    ),
    "fixed constant": (
        "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true, length: 2.0}}",
        "length: 2.0",
        r"`stages\.beam\.length` must be an argument of the function.*It takes 'load'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES, ids=lambda name: name.replace(" ", "_"))
def test_a_node_as_target(project: Project, case: str) -> None:
    target, more, expected = NODES[case]
    with pytest.raises(PipelineError, match=expected) as caught:
        project.model(MODEL).yaml(config(target, more)).load()
    check(str(caught.value))


@pytest.mark.parametrize(
    ("target", "derivative", "expected"),
    [
        ("model.closed", "{of: beam, wrt: load}", r"`derivatives` of closed must .*Write derivatives: finite"),
        (
            "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true}}",
            "{of: beam, wrt: load, kind: hessian}",
            r"`jacobian` of beam must be given for a second derivative",
        ),
        (
            "{_target_: ops.external.callback, function: {_target_: model.beam, _partial_: true}}",
            "{of: beam, wrt: load, order: 2}",
            r"`jacobian` of beam must be given for a second derivative",
        ),
    ],
    ids=["none", "hessian", "second order"],
)
def test_a_derivative_that_is_not_there_is_refused_before_the_run(
    project: Project, target: str, derivative: str, expected: str
) -> None:
    project.model(MODEL).yaml(config(target))
    with pytest.raises(StageError, match=r"`stages\.beam` must") as caught:
        project.load(f"+derivatives.d={derivative}")
    message = " ".join(str(caught.value).split())
    assert re.search(expected, message), message
    assert "model.py:" in message


def test_a_result_of_another_shape_is_said_in_the_log(project: Project) -> None:
    project.model(MODEL).yaml(
        config("{_target_: ops.external.callback, function: {_target_: model.many, _partial_: true}, result: [3]}")
    )
    answer = project.cli("run", "case.yaml", "store.path=s.zarr")
    assert answer.code == 3
    assert engine.open_store(project.folder / "s.zarr").status.values.tolist() == [5, 5]
    assert "`many` must be float64[3], but is float64[2]" in (project.folder / "s.log").read_text()
    assert "Traceback" not in answer.out + answer.err


PLAIN = """\
    import jax
    import numpy as np


    def ask(k):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), k.dtype), k)


    @jax.custom_jvp
    def sine(k):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), k.dtype), k, vmap_method="sequential")


    @sine.defjvp
    def tangent(primals, tangents):
        return sine(*primals), ask(*primals) * tangents[0]


    def inside(k):
        return jax.lax.fori_loop(0, 2, lambda i, x: ask(x), k)


    def drawn(k, key):
        return k * ask(jax.random.uniform(key))


    def same(k):
        return k * ask(jax.numpy.float64(1.0))
"""
PLAIN_CONFIG = """\
    defaults: [engine, _self_]
    name: plain
    parameters: {k: 0.5}
    stages:
      stage: {_target_: model.ask}
    sweep: {axes: {k: [0.1, 0.2]}}
"""
UNBATCHED = {
    "swept": [],
    "in a loop": ["stages.stage._target_=model.inside"],
    "of the key alone": ["stages.stage._target_=model.drawn", "sweep.axes={}"],
    "of a derivative": ["stages.stage._target_=model.sine", "+derivatives.d={of: stage, wrt: k}"],
}


@pytest.mark.parametrize("case", UNBATCHED)
def test_a_call_of_python_that_vmap_cannot_batch(project: Project, case: str) -> None:
    """Refused before the run, with the line and the remedy; what one sample's values do not reach may stay as it is."""
    project.model(PLAIN).yaml(PLAIN_CONFIG)
    with pytest.raises(
        StageError, match=r'`stages\.stage` must say how .*\n  model\.py:6: .*\nWrite `vmap_method="seq'
    ) as caught:
        project.load(*UNBATCHED[case])
    assert len(caught.value.problems) == 1


def test_a_call_of_python_that_is_not_batched_needs_no_method(project: Project) -> None:
    project.model(PLAIN).yaml(PLAIN_CONFIG)
    found = project.run("stages.stage._target_=model.same")
    np.testing.assert_allclose(found.stage, np.array([0.1, 0.2]) * np.sin(1.0), rtol=1e-15)
    assert float(project.run("sweep.axes={}", store="one.zarr").stage) == np.sin(0.5)
