"""The same question has the same fingerprint in any process and folder; an edit that may change a number, another one."""

from __future__ import annotations

import os
import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import engine
from engine.config import read_config
from engine.draft import make_draft
from engine.errors import StoreError
from engine.tracing import fresh
from tests.project import REPOSITORY, Project

CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 2.0}
    stages:
      stage: {_target_: model.stage}
    sweep:
      axes: {k: {linspace: [1.0, 2.0, 4]}}
"""
HEAD = """\
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from equinox.internal import noinline
from jax.experimental import io_callback

C = 1.0


def call(function, k):
    return jax.pure_callback(function, jax.ShapeDtypeStruct((), k.dtype), k, vmap_method="sequential")


"""
MODELS = {
    "pure_callback": """\
        def inner(k):
            return np.asarray(k) * C


        def stage(k):
            return call(inner, k)
    """,
    "io_callback": """\
        def stage(k):
            return io_callback(lambda k: np.asarray(k) * C, jax.ShapeDtypeStruct((), k.dtype), k)
    """,
    "filter_pure_callback": """\
        def stage(k):
            shape = jax.ShapeDtypeStruct((), k.dtype)
            return eqx.filter_pure_callback(lambda k: np.asarray(k) * C, k, result_shape_dtypes=shape)
    """,
    "callback in a loop in a jit": """\
        @jax.jit
        def stage(k):
            return jax.lax.fori_loop(0, 3, lambda i, y: call(lambda y: np.asarray(y) * C, y), k)
    """,
    "function of a function": """\
        def factor():
            return C


        def inner(k):
            return np.asarray(k) * factor()


        def stage(k):
            return call(inner, k)
    """,
    "partial": """\
        def stage(k):
            return call(functools.partial(lambda factor, k: np.asarray(k) * factor, C), k)
    """,
    "closed-over array": """\
        def stage(k):
            table = np.full(100, C)
            return call(lambda k: np.asarray(k) * table[3], k)
    """,
    "dict, list and set": """\
        TABLE = {"b": [1.0, {"x": C}], "a": {"u", "v", "w"}}


        def stage(k):
            return call(lambda k: np.asarray(k) * TABLE["b"][1]["x"], k)
    """,
    "method": """\
        class Law:
            def factor(self):
                return C


        class Steep(Law):
            def __call__(self, k):
                return np.asarray(k) * super().factor()


        def stage(k):
            return call(Steep(), k)
    """,
    "named tuple": """\
        class Law(NamedTuple):
            factor: float

            def of(self, k):
                return np.asarray(k) * self.factor


        def stage(k):
            return call(Law(C).of, k)
    """,
    "equinox module": """\
        class Law(eqx.Module):
            factor: jax.Array
            power: int = eqx.field(static=True, default=1)


        LAW = Law(jnp.array([C]))


        def stage(k):
            return call(lambda k: np.asarray(k) * np.asarray(LAW.factor[0]) ** LAW.power, k)
    """,
    "jit and lru_cache": """\
        @jax.jit
        def scaled(k):
            return k * factor()


        @functools.lru_cache
        def factor():
            return C


        def stage(k):
            return call(lambda k: np.asarray(scaled(k)), k)
    """,
    "library's decorator": """\
        @jax.named_scope("law")
        def inner(k):
            return np.asarray(k) * C


        def stage(k):
            return call(inner, k)
    """,
    "key of a callback": """\
        KEY = jax.random.key(int(C))


        def stage(k):
            return call(lambda k: np.asarray(jax.random.normal(KEY, (), k.dtype)), k)
    """,
    "key of a stage": """\
        KEY = jax.random.key(int(C))


        def stage(k):
            return k + jax.random.key_data(KEY)[1]
    """,
    "made at run time": """\
        def stage(k):
            names = {}
            exec(f"def inner(k): return k * {C}", names)
            return call(names["inner"], k)
    """,
    "hidden in a ufunc": """\
        LAW = np.frompyfunc(lambda k: k * C, 1, 1)


        def stage(k):
            return call(lambda k: np.asarray(LAW(k), float), k)
    """,
    "by name": """\
        def stage(k):
            return call(lambda k: np.asarray(k) * globals()["C"], k)
    """,
    "primitive": """\
        law = jax.extend.core.Primitive("law")
        law.def_impl(lambda k: k * C)
        law.def_abstract_eval(lambda k: k)


        def stage(k):
            return law.bind(k)
    """,
    "lineax operator": """\
        def stage(k):
            operator = lx.FunctionLinearOperator(lambda v: v * C, jax.ShapeDtypeStruct((), k.dtype))
            return lx.linear_solve(operator, k, lx.GMRES(1e-6, 1e-6)).value
    """,
    "noinline": """\
        def stage(k):
            return noinline(lambda k: k * C)(k)
    """,
    "noinline with a shape of its own": """\
        def stage(k):
            return noinline(lambda k: k * C, lambda _, k: k)(k)
    """,
    "custom_root": """\
        def solve(f, y):
            return jax.lax.fori_loop(0, 20, lambda i, y: y - 0.2 * f(y), y)


        def stage(k):
            return jax.lax.custom_root(lambda y: C * y - k, k, solve, lambda g, y: y / g(1.0))
    """,
    "custom_root's tangent": """\
        def solve(f, y):
            return jax.lax.fori_loop(0, 20, lambda i, y: y - 0.2 * f(y), y)


        def stage(k):
            return jax.lax.custom_root(lambda y: y - k, k, solve, lambda g, y: C * y / g(1.0))
    """,
    "custom_linear_solve": """\
        def stage(k):
            return jax.lax.custom_linear_solve(lambda v: 2.0 * v, k, lambda f, b: b / f(C), symmetric=True)
    """,
    "custom_vmap": """\
        @jax.custom_batching.custom_vmap
        def law(k):
            return 2.0 * k


        @law.def_vmap
        def law_of_many(size, batched, k):
            return k * (1.0 + C), True


        def stage(k):
            return law(k)
    """,
    "custom_jvp": """\
        @jax.custom_jvp
        def law(k):
            return 2.0 * k


        @law.defjvp
        def slope(primals, tangents):
            return law(*primals), tangents[0] * C


        def stage(k):
            return law(k)
    """,
    "custom_vjp": """\
        @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
        def law(rule, k):
            return 2.0 * k


        law.defvjp(lambda rule, k: (law(rule, k), k), lambda rule, k, slope: (rule(slope),))


        def stage(k):
            return law(lambda slope: slope * C, k)
    """,
    "equinox's custom_vjp": """\
        @eqx.filter_custom_vjp
        def law(k):
            return 2.0 * k


        @law.def_fwd
        def forward(perturbed, k):
            return 2.0 * k, None


        @law.def_bwd
        def backward(residual, slope, perturbed, k):
            return slope * C


        def stage(k):
            return law(k)
    """,
}


def model_of(text: str) -> str:
    """A whole model."""
    return HEAD + textwrap.dedent(text)


def with_comments(source: str) -> str:
    """The model with a docstring and comments in all that takes them."""
    body = re.sub(
        r"^( *)((?:def|class) .*:)$", r'\1\2\n\1    """What it does."""\n\n\1    # Why.', source, flags=re.MULTILINE
    )
    return f'"""A model."""\n\n# A comment.\n{body}'.replace(", k)\n", ", k)  # the law\n")


def fingerprint(project: Project, source: str, *overrides: str) -> str:
    """The fingerprint of a model, in this process."""
    return project.model(source).load(*overrides).draft.fingerprint


@pytest.mark.parametrize("name", MODELS)
def test_edits_are_seen_and_comments_are_not(project: Project, name: str) -> None:
    config = read_config(project.yaml(CONFIG).config)
    source = model_of(MODELS[name])
    found = []
    for text in (source, source.replace("C = 1.0", "C = 4.0"), with_comments(source)):
        project.model(text)
        found.append(make_draft(config).fingerprint)
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_hidden_code_in_another_module(project: Project) -> None:
    """A ufunc shows nothing of its function, so all modules count."""
    source = model_of(MODELS["hidden in a ufunc"].replace("k * C", "k * FACTOR")) + "\n\nfrom factors import FACTOR\n"
    project.yaml(CONFIG).model(source)
    found = []
    for text in ("FACTOR = 1.0\n", "FACTOR = 4.0\n", "# A comment.\nFACTOR = 1.0\n"):
        project.model(text, "factors")
        found.append(project.load().draft.fingerprint)
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_how_it_is_run_is_no_part_of_the_question(project: Project) -> None:
    project.yaml(CONFIG)
    source = model_of(MODELS["custom_jvp"])
    one = fingerprint(project, source, "parameters.k=3.0", "seed=1")
    for overrides in (
        ["seed=1", "parameters.k=3.0"],
        ["parameters.k=3.0", "seed=1", "execution.chunk=2", "execution.jit=false"],
        ["parameters.k=3.0", "seed=1", "scheduler.kind=synchronous", "name=other"],
    ):
        assert fingerprint(project, source, *overrides) == one
    assert fingerprint(project, source, "parameters.k=3.0", "seed=2") != one


def test_a_run_does_not_change_it(project: Project) -> None:
    """Nor do the derivatives that are traced, which fill JAX's memos."""
    text = CONFIG + "    derivatives: {slope: {of: stage, wrt: [k]}}\n"
    project.model(model_of(MODELS["custom_vjp"])).yaml(text)
    before = project.load().draft.fingerprint
    project.run()
    assert project.load().draft.fingerprint == before
    assert project.summary().skipped == 4


def test_the_depth_of_the_calls_is_no_part_of_the_question() -> None:
    """A run from a notebook finds the store of one from the command line: Equinox keeps the Python stack of its errors."""

    def traced(depth: int) -> str:
        if depth:
            return traced(depth - 1)
        with fresh():
            return make_draft(read_config(REPOSITORY / "conf" / "oscillator.yaml")).fingerprint

    assert traced(0) == traced(7)


def test_constants_of_a_stage(project: Project) -> None:
    source = model_of(
        """\
        class Law:
            def __init__(self, factor, table):
                self.factor, self.table = factor, table

            def __call__(self, k):
                return np.asarray(k) * self.factor * C


        def stage(k, law, options):
            return call(functools.partial(lambda law, options, k: law(k) + options["shift"], law, options), k)
        """
    )
    project.yaml(
        CONFIG.replace(
            "{_target_: model.stage}",
            "{_target_: model.stage, law: {_target_: model.Law, factor: 2.0, table: [1, 2]}, options: {shift: 0.5}}",
        )
    )
    one = fingerprint(project, source)
    for override in ("law.factor=3.0", "law.table=[1,3]", "options.shift=0.6"):
        assert fingerprint(project, source, f"stages.stage.{override}") != one
    assert fingerprint(project, source.replace("* C", "/ C")) != one
    assert fingerprint(project, source) == one


def test_files_that_a_callback_reads(project: Project) -> None:
    source = model_of(
        """\
        from pathlib import Path

        HERE = Path(__file__).parent
        FILE = HERE / "table.csv"


        def stage(k):
            return call(lambda k: np.asarray(k) * np.loadtxt(FILE), k)
        """
    )
    file = project.yaml(CONFIG).folder / "table.csv"
    file.write_text("1.0")
    one = fingerprint(project, source)
    file.write_text("2.0")
    assert fingerprint(project, source) != one
    file.write_text("1.0")
    assert fingerprint(project, source) == one


EVERYTHING = """\
    import enum
    from pathlib import Path

    from helpers import laws
    from helpers.laws import law

    HERE = Path(__file__).parent
    KEY = jax.random.key(3)
    NAMES = {"alpha", "beta", "gamma", "delta"}
    TABLE = {"b": np.arange(5.0), "a": frozenset(NAMES), None: (1, 2.5, "x", b"y", 1j)}


    class Kind(enum.Enum):
        SLOW = 1
        FAST = 2


    class Law(eqx.Module):
        factor: jax.Array
        kind: Kind = eqx.field(static=True)

        def __call__(self, k):
            return k * self.factor


    LAW = Law(jnp.arange(3.0), Kind.FAST)


    def inner(k):
        from helpers.late import FACTOR

        local = {name: len(name) for name in NAMES}
        shift = len(TABLE) + Kind.SLOW.value + len(local) + float(jax.random.normal(KEY, ()))
        return np.asarray(k) * FACTOR * laws.SCALE + shift + np.asarray(LAW(k)).sum() + HERE.exists()


    def stage(k):
        operator = lx.FunctionLinearOperator(lambda v: 2.0 * v, jax.ShapeDtypeStruct((), k.dtype))
        solved = lx.linear_solve(operator, k, lx.GMRES(1e-6, 1e-6)).value
        return call(inner, law(k)) + noinline(lambda k: k * C)(eqx.error_if(solved, k > 9, "too large"))
"""
LAWS = """\
import jax

SCALE = 1.0


@jax.custom_jvp
def law(k):
    return k * 2.0


law.defjvps(lambda tangent, out, k: tangent * SCALE)
"""


def planned(config: Path, folder: Path, *path: Path, **environment: str) -> str:
    """The fingerprint that a process finds that starts in `folder` and has `path` on its PYTHONPATH."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join(map(str, (REPOSITORY, *path)))
    answer = Project(folder, config).cli("plan", str(config), "--json", PYTHONPATH=paths, **environment)
    assert answer.code == 0, answer.err
    return str(answer.json["fingerprint"])


def test_in_other_processes_and_folders(tmp_path: Path) -> None:
    """Helpers lie on PYTHONPATH, outside the folders of the config and of the process; all are moved, and commented."""
    found = []
    for number, comment in enumerate(("", '"""Laws."""\n\n# A comment.\n')):
        place = tmp_path / f"place{number}" / ("deep" * number)
        library, project = place / "library", Project(place / "case", place / "case" / "case.yaml")
        for folder in (library / "helpers", project.folder):
            folder.mkdir(parents=True)
        (library / "helpers" / "__init__.py").touch()
        (library / "helpers" / "laws.py").write_text(comment + LAWS)
        (library / "helpers" / "late.py").write_text("FACTOR = 1.0\n")
        project.model(model_of(EVERYTHING)).yaml(CONFIG)
        start = (place / "start", project.folder)[number]
        found.append(planned(project.config, start, library, PYTHONHASHSEED=str(number)))
    assert found[0] == found[1]
    (library / "helpers" / "laws.py").write_text(LAWS.replace("tangent * SCALE", "tangent * 3.0"))
    found.append(planned(project.config, project.folder, library))
    (library / "helpers" / "late.py").write_text("FACTOR = 3.0\n")
    found.append(planned(project.config, project.folder, library))
    assert len(set(found)) == 3


DRAWS = """\
    import jax


    def stage(k, key):
        return k * jax.random.uniform(key, (3,), "float32")
"""


def test_settings_of_jax_that_change_numbers(project: Project) -> None:
    """One that the caller sets for its own thread holds in the threads that compute, is part of the question, and leaves no trace."""
    project.model(DRAWS).yaml(CONFIG)
    usual = project.run()
    key = jax.random.fold_in(jax.random.key(0), 0)
    with jax.threefry_partitionable(False):
        plan = project.load(f"store.path={project.folder / 'other.zarr'}")
        want = plan.function({"k": 1.0}, key)["stage"]
        with pytest.raises(StoreError, match="JAX's setting jax_threefry_partitionable"):
            project.run()
    found = engine.run(plan)  # under other settings than those that it was loaded with
    np.testing.assert_array_equal(found.stage[0], want)
    assert not np.array_equal(usual.stage[0], want)
    assert {*plan.draft.parts} - {*usual.parts} == {"jax_threefry_partitionable"}  # a default is no part
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: jax.config.jax_threefry_partitionable).result()


def test_the_key_of_a_sample_is_the_same_under_any_default(project: Project) -> None:
    """A model that chooses another generator for its own keys is given the same one as ever."""
    project.model("def stage(k, key): return {'k': k, 'key': key}").yaml(CONFIG)
    usual = project.run()
    with jax.default_prng_impl("rbg"):
        found = project.run(store="other.zarr")
    np.testing.assert_array_equal(found["stage.key"], usual["stage.key"])
