"""Indices past the end of an array and integers that overflow: refused before anything runs, since JAX goes on in silence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from jax import lax

from engine import bounds
from engine.designs import Design, design
from engine.errors import UserError
from engine.parameters import as_parameter
from tests.project import Project

MODEL = """\
    import functools

    import jax
    import jax.numpy as jnp
    from jax import lax

    TABLE = jnp.array([0.0, 1.0, 2.0])
    WHOLE = jnp.array([0, 1, 5])
    GRID = jnp.arange(12.0).reshape(3, 4)


    @jax.jit
    def look_up(table, i):
        return table[i]


    def stage({arguments}):
        return {expression}
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {parameters}
    stages:
      stage: {{_target_: model.stage}}
    sweep: {sweep}
"""
LINE = 18
"""Where the expression stands in the model."""


def write(project: Project, expression: str, parameters: str, sweep: str) -> Project:
    """A project of one stage that returns an expression of the parameters, and of a key if it names one."""
    names = [*yaml.safe_load(parameters), *(["key"] if "key" in expression else [])]
    model = MODEL.format(arguments=", ".join(names), expression=expression)
    return project.model(model).yaml(CONFIG.format(parameters=parameters, sweep=sweep))


def found(project: Project, expression: str, parameters: str, sweep: str) -> list[str]:
    """The problems of such a project, without the engine around the check."""
    write(project, expression, parameters, sweep)
    jax.config.update("jax_enable_x64", True)  # a config of another test may have asked for float32
    model: dict[str, Any] = {}
    path = project.folder / "model.py"
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), model)
    values = yaml.safe_load(parameters)
    node = {"design": "grid", "axes": {}} | yaml.safe_load(sweep)
    points = design(node, values, seed=0, folder=project.folder)
    nominal = {name: as_parameter(name, value, points, set(), "float64") for name, value in values.items()}

    def stage(given: dict[str, Any], key: jax.Array) -> Any:
        return model["stage"](**given, **({"key": key} if "key" in expression else {}))

    return bounds.out_of_range(jax.make_jaxpr(stage)(nominal, jax.random.key(0)), nominal, points)


def problems(project: Project, *overrides: str) -> str:
    """What a config is refused with."""
    with pytest.raises(UserError) as caught:
        project.load(*overrides)
    assert all(p.startswith("`") and " must " in p and ", but " in p for p in caught.value.problems)
    return str(caught.value)


ROWS = "{design: zip, axes: {i: [0, 1, 2], j: [2, 1, %s]}}"
GUARDED = (
    "jnp.where((i + jnp.arange(-1, 2) >= 0) & (i + jnp.arange(-1, 2) < %s), TABLE[i + jnp.arange(-1, 2)], 0).sum()"
)

REFUSED: dict[str, tuple[str, str, str, list[str]]] = {
    # expression, parameters, sweep, words of the message
    "plain": (
        "TABLE[i]",
        "{i: 0}",
        "{axes: {i: [0, 2, 10]}}",
        ["`sweep.axes.i`", "array of 3", "but is 10:", "Remove"],
    ),
    "not swept": ("TABLE[i]", "{i: 3}", "{}", ["`parameters.i`", "but is 3:", "Change that value"]),
    "negative": ("TABLE[i]", "{i: -4}", "{}", ["-3 to -1", "but is -4:"]),
    "sum in a grid": (
        "TABLE[i + j]",
        "{i: 0, j: 0}",
        "{axes: {i: [0, 1, 2], j: [0, 1]}}",
        ["`sweep.axes.i` and `sweep.axes.j` must together", "but are 2 and 1, which give the index 3"],
    ),
    "sum in rows": ("TABLE[i + j]", "{i: 0, j: 0}", ROWS % 1, ["but are 2 and 1, which give the index 3"]),
    "half": ("TABLE[i // 2]", "{i: 0}", "{axes: {i: [0, 5, 9]}}", ["but is 9, which gives the index 4"]),
    "modulo": ("TABLE[i % 4]", "{i: 0}", "{axes: {i: [-5, 0]}}", ["but is -5, which gives the index 3"]),
    "modulo of another": ("TABLE[i % n]", "{i: 0, n: 5}", "{axes: {i: [1, 4]}}", ["but are 4 and 5", "`parameters.n`"]),
    "absolute": ("TABLE[abs(i)]", "{i: -3}", "{}", ["the index 3"]),
    "sign": ("TABLE[2 * jnp.sign(i) + 1]", "{i: 7}", "{}", ["the index 3"]),
    "where": ("TABLE[jnp.where(i < 5, i, 0)]", "{i: 0}", "{axes: {i: [1, 4, 9]}}", ["but is 4:"]),
    "shift": ("TABLE[i >> 1]", "{i: 6}", "{}", ["the index 3"]),
    "bits": ("TABLE[(i & 7) | (~i & 1)]", "{i: 2}", "{}", ["the index 3"]),
    "truncated float": ("TABLE[jnp.int32(x)]", "{x: 3.5}", "{}", ["`parameters.x`", "but is 3.5", "the index 3"]),
    "floor": ("TABLE[jnp.floor(x / 0.5).astype(int)]", "{x: 0.5}", "{axes: {x: [0.1, 1.7]}}", ["1.7", "the index 3"]),
    "round": ("TABLE[jnp.round(x).astype(int)]", "{x: 2.6}", "{}", ["the index 3"]),
    "linspace": (
        "TABLE[i.astype(int)]",
        "{i: 0}",
        "{axes: {i: {linspace: [0, 5, 3]}}}",
        ["`sweep.axes.i`", "but is 5.0:"],
    ),
    "array": ("TABLE[i]", "{i: [0, 1, 7]}", "{}", ["`parameters.i`", "[0, 1, 7]", "the index 7"]),
    "swept array": ("TABLE[i]", "{i: [0, 1]}", "{design: zip, axes: {i: [[0, 1], [2, 3]]}}", ["but is [2, 3]"]),
    "element": ("TABLE[i[1]]", "{i: [0, 4]}", "{}", ["the index 4"]),
    "two axes": ("GRID[i, j]", "{i: 0, j: 0}", "{axes: {i: [0, 2], j: [3, 4]}}", ["`sweep.axes.j`", "array of 4"]),
    "beside an unknown": ("GRID[i, jax.random.randint(key, (2,), 0, 4)]", "{i: 3}", "{}", ["array of 3", "but is 3:"]),
    "through a table": ("TABLE[WHOLE[i]]", "{i: 2}", "{}", ["but is 2, which gives the index 5"]),
    "strides": ("TABLE[jnp.dot(i, jnp.array([2, 1]))]", "{i: [1, 1]}", "{}", ["the index 3"]),
    "beyond 32 bits": ("GRID[i, 0]", "{i: 4294967296}", "{}", ["but is 4294967296:"]),
    "under jit": ("look_up(TABLE, i)", "{i: 3}", "{}", ["(model.py:14)"]),
    "under vmap": ("jax.vmap(lambda row: row[i])(GRID)", "{i: 4}", "{}", ["array of 4"]),
    "under checkpoint": ("jax.checkpoint(lambda n: TABLE[n])(i)", "{i: 3}", "{}", ["array of 3"]),
    "mapped": ("jax.vmap(lambda row, n: row[n])(GRID, i + jnp.arange(3))", "{i: 2}", "{}", ["the index 4"]),
    "set": ("TABLE.at[i].set(1.0)", "{i: 3}", "{}", ["leave that update out", 'mode="drop"']),
    "add": ("GRID.at[:, i].add(1.0)", "{i: 4}", "{}", ["array of 4", "leave that update out"]),
    "several updates": ("TABLE.at[i].max(1.0)", "{i: [0, 3]}", "{}", ["the index 3"]),
    "slice": ("lax.dynamic_slice(TABLE, (i,), (2,))", "{i: 2}", "{}", ["a slice of 2 in an array of 3 (0 to 1,"]),
    "update of a slice": ("lax.dynamic_update_slice(TABLE, TABLE[:2], (i,))", "{i: 2}", "{}", ["a wrong place"]),
    "take": ("jnp.take(TABLE, i)", "{i: 5}", "{}", ["with nan", 'mode="fill"']),
    "take of integers": ("jnp.take(WHOLE, i)", "{i: 5}", "{}", ["with -9223372036854775808"]),
    "take along": ("jnp.take_along_axis(TABLE, i, 0)", "{i: [0, 5]}", "{}", ["the index 5"]),
    "promise": ('TABLE.at[i].get(mode="promise_in_bounds")', "{i: 3}", "{}", ["clamp"]),
    "no mode": ("TABLE.at[i].get(mode=None)", "{i: 3}", "{}", ["clamp"]),
    "mode of another": ('TABLE.at[jnp.take(WHOLE, i, mode="clip")].get()', "{i: 9}", "{}", ["the index 5"]),
    "mask too wide": ("jnp.where(i < 4, TABLE[i], 0.0)", "{i: 3}", "{}", ["but is 3:"]),
    "neighbours": (GUARDED % 4, "{i: 0}", "{axes: {i: [0, 1, 2]}}", ["but is 2, which gives the index 3"]),
    "unknown mask": ("jnp.where(jax.random.uniform(key) < 0.5, TABLE[i], 0.0)", "{i: 3}", "{}", ["but is 3:"]),
    "mask of rows": ("jnp.where(j > 0, TABLE[i + 1], 0.0)", "{i: 0, j: 0}", ROWS % 1, ["`sweep.axes.i`", "but is 2,"]),
    "branch": ("lax.cond(i < 4, lambda: TABLE[i], lambda: 0.0)", "{i: 3}", "{}", ["but is 3:"]),
    "switch": ("lax.switch(i, [lambda: 1.0, lambda: 2.0])", "{i: 2}", "{}", ["one of 2 branches (0 to 1), but is 2:"]),
    "loop": ("lax.fori_loop(0, 3, lambda k, s: s + TABLE[i + k], 0.0)", "{i: 1}", "{}", ["the index 3"]),
    "long loop": ("lax.fori_loop(0, 3000, lambda k, s: s + TABLE[i + k // 1500], 0.0)", "{i: 2}", "{}", ["index 3"]),
    "length of a loop": (
        "lax.fori_loop(0, n, lambda k, s: s + TABLE[k], 0.0)",
        "{n: 4}",
        "{}",
        ["but is 4", "index 3"],
    ),
    "while": (
        "lax.while_loop(lambda s: s[0] < x, lambda s: (s[0] + TABLE[i] + 1.0, 0), (0.0, 0))[0]",
        "{i: 3, x: 5.0}",
        "{}",
        ["`parameters.i`", "but is 3:"],
    ),
    "scan": ("lax.map(lambda n: TABLE[n], i)", "{i: [0, 3]}", "{}", ["the index 3"]),
    "corner of a large grid": (
        "jnp.ones(19998)[i + j]",
        "{i: 0, j: 0}",
        "{axes: {i: {arange: [0, 10000, 1]}, j: {arange: [0, 10000, 1]}}}",
        ["but are 9999 and 9999, which give the index 19998"],
    ),
    "random": (
        "TABLE[i]",
        "{i: 0}",
        "{design: random, samples: 50000, axes: {i: {choice: [0, 1, 5]}}}",
        ["`sweep.axes.i`", "but is 5:"],
    ),
    # integers that overflow
    "square": (
        "E**2 * 1e-9",
        "{E: 210000000000}",
        "{}",
        ["`parameters.E`", "such as 2.1e11", "integer 210000000000", "64 bits"],
    ),
    "product": ("E * E", "{E: 210000000000}", "{}", ["2.1e11"]),
    "negative power": ("10**nu", "{nu: -3}", "{}", ["`parameters.nu`", "such as -3.0", "integer -3", "negative power"]),
    "negative power of 64": ("10**nu", "{nu: -64}", "{}", ["negative power"]),
    "power of 64": ("10**n", "{n: 64}", "{}", ["overflows 64 bits"]),
    "power of zero": ("b**n", "{b: 0, n: -1}", "{}", ["`parameters.n`", "negative power"]),
    "swept power": ("10**n", "{n: 1}", "{axes: {n: [3, 18, 19]}}", ["`sweep.axes.n`", "such as 19.0", "integer 19,"]),
    "swept cube": ("n**3", "{n: 1}", "{axes: {n: [1, 2000000, 3000000]}}", ["`sweep.axes.n`", "integer 3000000"]),
    "product in a grid": ("n * m", "{n: 1, m: 1}", "{axes: {n: [1, 4294967296], m: [1, 2147483648]}}", ["4294967296"]),
    "sum": ("jnp.sum(a)", "{a: [4611686018427387904, 4611686018427387904]}", "{}", ["holds the integers"]),
    "difference": ("-a - 5", "{a: 9223372036854775807}", "{}", ["overflows"]),
    "narrowed": ("E.astype(jnp.int32) * 2.0", "{E: 210000000000}", "{}", ["fit 32 bits", "is converted"]),
    "float converted": ("x.astype(int) * 2.0", "{x: 1.0e+20}", "{}", ["`parameters.x`", "fit 64 bits"]),
    "index that overflows": ("TABLE[E**2 % 3]", "{E: 210000000000}", "{}", ["written as a float"]),
}

ALLOWED: dict[str, tuple[str, str, str]] = {
    "in range": ("TABLE[i]", "{i: 0}", "{axes: {i: [-3, 0, 2]}}"),
    "sum in rows": ("TABLE[i + j]", "{i: 0, j: 0}", ROWS % 0),
    "clipped": ("TABLE[jnp.clip(i, 0, 2)]", "{i: 0}", "{axes: {i: [-9, 2, 10]}}"),
    "modulo": ("TABLE[i % 3]", "{i: 0}", "{axes: {i: [-7, 100]}}"),
    "half": ("TABLE[i // 2]", "{i: 0}", "{axes: {i: [-6, 5]}}"),
    "truncated float": ("TABLE[jnp.int32(x)]", "{x: 2.99}", "{}"),
    "masked index": ("jnp.where(i < 3, TABLE[jnp.minimum(i, 2)], 0)", "{i: 0}", "{axes: {i: [0, 9]}}"),
    "masked value": ("jnp.where(i < 3, TABLE[i], 0)", "{i: 0}", "{axes: {i: [0, 9]}}"),
    "masked by a factor": ("(i < 3) * TABLE[i]", "{i: 0}", "{axes: {i: [0, 9]}}"),
    "masked by another": ("jnp.where(j > 0, TABLE[i + 1], 0.0)", "{i: 0, j: 0}", ROWS % 0),
    "neighbours": (GUARDED % 3, "{i: 0}", "{axes: {i: [0, 1, 2]}}"),
    "unused": ("[TABLE[i], 1.0 * i][1]", "{i: 9}", "{}"),
    "branch": ("lax.cond(i < 3, lambda: TABLE[i], lambda: 0.0)", "{i: 0}", "{axes: {i: [0, 9]}}"),
    "switch": ("lax.switch(jnp.clip(i, 0, 1), [lambda: 1.0, lambda: 2.0])", "{i: 9}", "{}"),
    "loop": ("lax.fori_loop(0, 3, lambda k, s: s + TABLE[i + k], 0.0)", "{i: 0}", "{}"),
    "length of a loop": ("lax.fori_loop(0, n, lambda k, s: s + TABLE[k], 0.0)", "{n: 0}", "{axes: {n: [-5, 0, 3]}}"),
    "get clip": ('TABLE.at[i].get(mode="clip")', "{i: 9}", "{}"),
    "get fill": ('TABLE.at[i].get(mode="fill", fill_value=0)', "{i: 9}", "{}"),
    "get clip of an array": ('TABLE.at[i].get(mode="clip")', "{i: [0, 9]}", "{}"),
    "get clip under vmap": ('jax.vmap(lambda row: row.at[i].get(mode="clip"))(GRID)', "{i: 9}", "{}"),
    "take clip": ('jnp.take(TABLE, i, mode="clip")', "{i: 9}", "{}"),
    "take wrap": ('jnp.take(TABLE, i, mode="wrap")', "{i: 9}", "{}"),
    "take fill": ('jnp.take(TABLE, i, mode="fill")', "{i: 9}", "{}"),
    "take clip in a partial": ('functools.partial(jnp.take, mode="clip")(TABLE, i)', "{i: 9}", "{}"),
    "set drop": ('TABLE.at[i].set(1.0, mode="drop")', "{i: 9}", "{}"),
    "set clip": ('TABLE.at[i].set(1.0, mode="clip")', "{i: [9]}", "{}"),
    "over two lines": ('TABLE.at[i].set(\n            1.0, mode="drop"\n        )', "{i: 9}", "{}"),
    "segments": ("jax.ops.segment_sum(TABLE, i, num_segments=2)", "{i: [0, 1, 2]}", "{}"),
    "bins": ("jnp.bincount(i, length=2)", "{i: [0, 1, 2]}", "{}"),
    "roll": ("jnp.roll(TABLE, i)", "{i: 30}", "{}"),
    "one hot": ("jax.nn.one_hot(i, 3) @ TABLE", "{i: 30}", "{}"),
    "interpolation": ("jnp.interp(x, jnp.arange(3.0), TABLE)", "{x: 9.0}", "{}"),
    "interpolation of an image": ("jax.scipy.ndimage.map_coordinates(TABLE, [x[None]], order=1)", "{x: 9.0}", "{}"),
    "seed": (
        "jax.random.normal(jax.random.fold_in(key, n)) + jax.random.uniform(jax.random.key(n))",
        "{n: 1099511627776}",
        "{}",
    ),
    "not followed": ("TABLE[jnp.sort(i)[0] % 3] + jnp.abs(jnp.fft.fft(i * 1.0)).sum()", "{i: [2, 9]}", "{}"),
    "in floats": ("E * 1.5 + E // 7 + E % 11 + E**2.0", "{E: 210000000000}", "{}"),
    "float": ("E**2", "{E: 2.1e+11}", "{}"),
    "power": ("b**n", "{b: 3, n: 1}", "{axes: {n: [0, 39]}}"),
    "power of minus one": ("b**n", "{b: -1, n: -3}", "{}"),
    "float to a negative power": ("10.0**n", "{n: -3}", "{}"),
    "largest": ("a + a - 1", "{a: 4611686018427387903}", "{}"),
    "masked overflow": ("jnp.where(n < 100, n**10, 0)", "{n: 1000000}", "{}"),
    "product in rows": ("i * j", "{i: 1, j: 1}", "{design: zip, axes: {i: [1, 4294967296], j: [2147483648, 1]}}"),
    "hash": ("(n.astype(jnp.uint32) * jnp.uint32(1664525)) >> 3", "{n: 1099511627776}", "{}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(project: Project, case: str) -> None:
    expression, parameters, sweep, words = REFUSED[case]
    (text,) = found(project, expression, parameters, sweep)
    assert text.startswith("`") and " must " in text and ", but " in text
    for word in (*words, "model.py:14" if case == "under jit" else f"model.py:{LINE}"):
        assert word in text


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed(project: Project, case: str) -> None:
    assert found(project, *ALLOWED[case]) == []


@pytest.mark.parametrize("case", ["sum in a grid", "linspace", "square"])
def test_a_config_is_refused(project: Project, case: str) -> None:
    expression, parameters, sweep, words = REFUSED[case]
    text = problems(write(project, expression, parameters, sweep))
    for word in (*words, f"model.py:{LINE}"):
        assert word in text


def test_what_is_allowed_is_right(project: Project) -> None:
    write(project, "jnp.where(i < 3, TABLE[i], 7.0)", "{i: 0}", "{axes: {i: [0, 2, 9]}}")
    assert project.run().stage.values.tolist() == [0.0, 2.0, 7.0]


def test_the_remedy_helps(project: Project) -> None:
    write(project, "10**n", "{n: 1}", "{axes: {n: [3, 19]}}")
    assert "Write 19.0" in problems(project)
    project.load("sweep.axes.n=[3,19.0]")
    assert "Write -3.0" in problems(project, "parameters.n=-3", "sweep.axes.n=[-3]")
    project.load("parameters.n=-3.0", "sweep.axes.n=[-3]")


def test_several_problems_are_told_at_once(project: Project) -> None:
    write(project, "TABLE[i] + WHOLE[j] + GRID[i, j] + E**2", "{i: 3, j: 4, E: 210000000000}", "{}")
    text = problems(project)
    assert [line.split()[0] for line in text.splitlines()] == ["`parameters.i`", "`parameters.j`", "`parameters.E`"]


def test_32_bits(project: Project) -> None:
    write(project, "n**2", "{n: 100000}", "{}").load()
    assert "overflows 32 bits" in problems(project, "precision=float32")


def test_the_key_of_a_table(project: Project) -> None:
    (project.folder / "rows.csv").write_text("i,j\n0,2\n2,1\n", encoding="utf-8")
    write(project, "TABLE[i + j]", "{i: 0, j: 0}", "{design: table, table: rows.csv}")
    assert problems(project).startswith("`sweep.table` column 'i' and `sweep.table` column 'j' must together index")


def test_nothing_is_computed_where_no_integer_depends_on_the_sweep(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "Samples", None)
    sweep = "{design: random, samples: 100000, axes: {x: {uniform: [0, 1]}}}"
    assert found(project, "jnp.sin(x) * TABLE[1] + GRID[0] @ GRID[2]", "{x: 1.0}", sweep) == []


def test_what_fails_is_not_followed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setitem(bounds.RULES, "add", fail)
    assert found(project, "TABLE[i + 1]", "{i: 9}", "{}") == []


def test_numpy_agrees_with_jax() -> None:
    """What is computed before a run is what JAX computes in it."""
    cube, backwards = jnp.arange(24).reshape(2, 3, 4), jnp.arange(5)[::-1]

    def f(i: jax.Array, x: jax.Array) -> list[Any]:
        some = jnp.arange(6) * i
        return [
            *(i + 3, i - 7, i * i, i // 4, i // -3, i % 4, i % -4, -i, abs(i), jnp.sign(i), i**3),
            *(lax.rem(i, jnp.int64(3)), lax.div(i, jnp.int64(-3)), i & 5, i | 8, i ^ 3, ~i, i << 2, i >> 1),
            *(lax.shift_right_logical(i, jnp.int64(2)), lax.shift_left(jnp.int64(3), i)),
            *(lax.shift_right_logical(jnp.int64(-3), i), lax.shift_right_arithmetic(jnp.int64(-300), i)),
            *(
                jnp.clip(i, -2, 5),
                jnp.where(i > x, i, 7),
                i.astype(jnp.uint8),
                jnp.select([i < 0, i < 3], [i, 2 * i], -1),
            ),
            *(
                jnp.floor(x),
                jnp.ceil(x),
                jnp.round(x),
                lax.round(x),
                jnp.trunc(x),
                x.astype(int),
                (x * 1e30).astype(int),
            ),
            *(x % 1.7, x // 1.7, x**2, jnp.isfinite(x / 0), jnp.exp(x), jnp.arctan2(x, 2.0)),
            *(jnp.stack([i, i + 1])[::-1], jnp.tile(i, 3), some.reshape(2, 3).T, jnp.split(some, 3)[1], some[1:5:2]),
            *(
                some.reshape(2, 3).sum(1),
                some.max(),
                (some + 1).prod(),
                jnp.cumsum(some),
                lax.cummax(some, reverse=True),
            ),
            *(jnp.argmax(some), jnp.all(some > 0), jnp.any(some > 9), jnp.dot(some, some[::-1])),
            jnp.einsum("bij,bj->bi", (jnp.arange(12) * i).reshape(2, 2, 3), some.reshape(2, 3)),
            *(backwards[i % 5], cube[i % 2], cube[:, i % 3], cube[i % 2, :, i % 4], cube[i % 2, jnp.array([0, 2])]),
            jnp.take_along_axis(cube, jnp.broadcast_to(abs(i) % 4, (2, 3, 1)), 2),
            jax.vmap(lambda row, k: row[k])(cube[0], (jnp.arange(3) + i) % 4),
            jax.vmap(lambda block, k: lax.dynamic_slice(block, (k, 1), (2, 2)))(cube, jnp.arange(2) * (i % 2)),
            *(lax.dynamic_slice(cube, (0, i, i), (1, 2, 2)), some[i % 6] + backwards[backwards[i % 5]]),
            *(
                lax.cond(i > 2, lambda: i, lambda: 2 * i),
                lax.switch(jnp.clip(i, 0, 2), [lambda: i, lambda: 0 * i, lambda: -i]),
            ),
        ]

    jax.config.update("jax_enable_x64", True)
    i, x = np.array([-7, -1, 0, 1, 3, 8, 64]), np.array([-7.3, -2.5, -0.5, 0.5, 2.5, 3.0, 9.9])
    jaxpr = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((), np.int64), jax.ShapeDtypeStruct((), np.float64))
    nominal = {"i": np.array(0), "x": np.array(0.0)}
    points = Design("zip", ("sample",), (len(i),), {"i": i, "x": x}, {"i": 0, "x": 0}, 1)
    program = bounds.Unfolded(jaxpr, nominal)
    samples = bounds.Samples(frozenset("ix"), program.outs, nominal, points)
    for value, expected in zip(program.outs, jax.jit(jax.vmap(f))(i, x), strict=True):
        found = samples.get(value)
        assert found is not None, value.name
        np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, rtol=1e-13, err_msg=value.name)


def test_a_drawn_index_past_the_end(project: Project) -> None:
    """There is no value in the config to remove."""
    sweep = "{design: random, samples: 20, axes: {x: {uniform: [0, 9]}}}"
    (message,) = found(project, "TABLE[x.astype(int)]", "{x: 1.0}", sweep)
    assert "`sweep.axes.x` must index an array of 3" in message
    assert "Narrow what it is drawn from, or write jnp.clip" in message
