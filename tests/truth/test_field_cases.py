"""Failures that people met with other tools, as small configs with the value that is right."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest

from engine.errors import UserError
from tests.project import Project

RELAXATION = """\
    import jax.numpy as jnp

    from ops.ode import Solution, solve


    def relax(k, solver) -> Solution:
        return solve(lambda t, y, k: -k * (y - jnp.cos(t)), 0.0, k, t1=2.0, solver=solver)
"""
STIFF = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: stiff
    parameters: {k: 1.0}
    solver: {rtol: 1e-6, atol: 1e-9, max_steps: 1000}
    stages:
      relax: {_target_: model.relax, solver: "${solver}"}
    outputs: {y: relax.y}
    sweep:
      axes: {k: [1, 10, 1e3, 1e5]}
"""
SCALE = """\
    import jax.numpy as jnp


    def scale(k):
        return 2.0 * k
"""
SWEEP = """\
    defaults: [engine, _self_]
    name: scale
    parameters: {k: 1.0}
    stages:
      scale: {_target_: model.scale}
    sweep:
      axes: {k: {linspace: [0, 1, 10]}}
"""


@pytest.fixture
def scale(project: Project) -> Project:
    return project.model(SCALE).yaml(SWEEP)


def test_a_stiff_lane_is_marked_and_the_others_are_kept(project: Project) -> None:
    """patrick-kidger/diffrax#207: out of steps, a solver hands back the state where it stopped."""
    project.model(RELAXATION).yaml(STIFF)
    answer = project.cli("run", "case.yaml", "store.path=store.zarr")
    assert answer.code == 3
    assert "max_steps" in answer.out + answer.err
    assert "100000" in answer.out + answer.err
    import engine

    ds = engine.open_store(project.folder / "store.zarr").load()
    assert ds.status.values.tolist() == [1, 1, 1, 2]
    np.testing.assert_allclose(ds.y.values, [0.1789076535, -0.3219971247, -0.4152371239, np.nan], rtol=1e-5)
    implicit = project.run("solver=kvaerno5", "solver.max_steps=1000", "solver.rtol=1e-8", store="implicit.zarr")
    np.testing.assert_allclose(
        implicit.y.values, [0.1789076535, -0.3219971247, -0.4152371239, -0.4161377435], rtol=1e-6
    )


def test_a_sweep_over_durations_may_hold_zero(project: Project) -> None:
    """patrick-kidger/diffrax#488: an empty interval."""
    project.model("""\
        from ops.ode import solve


        def grow(duration):
            return solve(lambda t, y, args: y, 3.0, t1=duration, rtol=1e-9)
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {duration: 1.0}
        stages:
          grow: {_target_: model.grow}
        outputs: {y: grow.y}
        sweep: {axes: {duration: [0.0, 1.0, 2.0]}}
    """)
    np.testing.assert_allclose(project.run().y.values, 3 * np.exp([0.0, 1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize("samples", [200, 203])
def test_two_compilations_whatever_the_number_of_samples(scale: Project, samples: int) -> None:
    """jax-ml/jax#4274: a compilation for every value."""
    summary = scale.summary(f"sweep.axes.k.linspace=[0,1,{samples}]", "execution.chunk=50")
    assert summary.samples == samples
    assert summary.compilations <= 2
    answer = scale.cli("run", "case.yaml", f"sweep.axes.k.linspace=[0,1,{samples}]", "execution.chunk=50")
    assert "compilation" in answer.out


def test_a_constant_made_at_import_is_double(project: Project) -> None:
    """A module that makes arrays while it is imported still gets 64 bit, whoever imports it."""
    project.model("""\
        import jax.numpy as jnp

        from ops.ode import solve

        START = jnp.array(0.1)


        def decay(k):
            return solve(lambda t, y, k: -k * y, START, k, t1=1.0, rtol=1e-11, atol=1e-14).y
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {k: 1.0}
        stages:
          decay: {_target_: model.decay}
        sweep: {replicates: 4}
        execution: {chunk: 1}
        scheduler: {workers: 4}
    """)
    answer = project.cli("run", "case.yaml", "store.path=store.zarr", JAX_ENABLE_X64="false")
    assert answer.code == 0, answer.err
    import engine

    ds = engine.open_store(project.folder / "store.zarr").load()
    np.testing.assert_allclose(ds.decay.values, 0.0367879441171, atol=1e-11, rtol=0)
    assert ds.decay.dtype == np.float64
    assert ds.attrs["precision"] == "float64"


def test_a_lambda_is_no_stage(scale: Project) -> None:
    """A stage is known by its importable name, so that any process can find it."""
    scale.model(
        "scale = lambda k: 2.0 * k\n\n\ndef outer():\n    def inner(k):\n        return k\n\n    return inner\n"
    )
    assert scale.run().scale.values[-1] == 2.0, "a named lambda can be imported"
    with pytest.raises(
        UserError, match=r"`stages\.scale\._target_` must name a function, but 'model\.outer\.inner' is not there"
    ):
        scale.load("stages.scale._target_=model.outer.inner")


def test_time_waits_for_the_device(project: Project) -> None:
    """Dispatch is not work: a chunk's time holds the computation, and compiling is told apart."""
    project.model("""\
        import jax
        import jax.numpy as jnp


        def spin(k):
            return jax.lax.fori_loop(0, 4_000_000, lambda i, x: jnp.cos(x + k), 0.0)
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {k: 1.0}
        stages:
          spin: {_target_: model.spin}
        sweep: {axes: {k: [0.1, 0.2]}}
        execution: {chunk: 1}
        scheduler: {kind: synchronous}
    """)
    seconds = []

    class Watch:
        def on_start(self, samples: int) -> None: ...

        def on_chunk(self, event: Any) -> None:
            seconds.append(event.seconds)

        def on_end(self) -> None: ...

    start = time.perf_counter()
    summary = project.summary(observers=[Watch()])
    wall = time.perf_counter() - start
    assert summary.run_seconds + summary.compile_seconds < wall
    assert sum(seconds) > 0.9 * summary.run_seconds - 0.05, "the chunks' times hold the run"
    assert min(seconds) > 0.01, "four million cosines take longer than this on any machine"


def test_lists_and_mappings_are_constants(project: Project) -> None:
    """jax-ml/jax#4274: a list is not hashable."""
    project.model("""\
        import jax.numpy as jnp


        def weigh(k, weights, table, powers=(1, 2)):
            return k * jnp.dot(jnp.asarray(weights), jnp.array([1.0, 10.0])) + table["offset"] + k ** powers[1]
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {k: 1.0}
        stages:
          weigh: {_target_: model.weigh, weights: [1, 2], table: {offset: 0.5, names: [a, b]}}
        sweep: {axes: {k: [1.0, 2.0]}}
    """)
    assert project.run().weigh.values.tolist() == [22.5, 46.5]


def test_an_index_out_of_range_is_refused(project: Project) -> None:
    """jax-ml/jax#4383: an index beyond the end is clamped in silence."""
    project.model("""\
        import jax.numpy as jnp

        TABLE = jnp.array([0.0, 1.0, 2.0])


        def pick(row):
            return TABLE[row]
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {row: 0}
        stages:
          pick: {_target_: model.pick}
        sweep: {axes: {row: [0, 2]}}
    """)
    assert project.run().pick.values.tolist() == [0.0, 2.0]
    with pytest.raises(UserError) as caught:
        project.load("sweep.axes.row=[0,2,10]")
    for part in ("row", "10", "3"):
        assert part in str(caught.value)


@pytest.mark.parametrize("samples", [64, 61])
@pytest.mark.parametrize("layout", [[], ["store.shard=16"]], ids=["chunks", "shards"])
def test_no_two_tasks_write_into_one_stored_chunk(project: Project, samples: int, layout: list[str]) -> None:
    """pydata/xarray#8371: concurrent writes into one chunk lose data without an error."""
    project.model("def block(i):\n    return i // 4 + 1\n").yaml(f"""\
        defaults: [engine, _self_]
        name: case
        parameters: {{i: 0}}
        stages:
          block: {{_target_: model.block}}
        sweep: {{axes: {{i: {{arange: [0, {samples}, 1]}}}}}}
        execution: {{chunk: 4}}
        scheduler: {{workers: 16}}
    """)
    for repeat in range(5):
        ds = project.run(*layout, store=f"{repeat}.zarr")
        assert ds.block.values.tolist() == [i // 4 + 1 for i in range(samples)]


def test_all_zeros_and_all_nan_are_results(project: Project) -> None:
    """zarr-developers/zarr-python#587: a chunk of fill values has no file, and looks as if never computed."""
    project.model(
        "import jax.numpy as jnp\n\n\ndef zero(k):\n    return {'zero': 0.0 * k, 'whole': (k > 5).astype(jnp.int32)}\n"
    ).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {k: 1.0}
        stages:
          zero: {_target_: model.zero}
        sweep: {axes: {k: [1.0, 2.0, 3.0, 4.0]}}
        execution: {chunk: 2}
        scheduler: {kind: synchronous}
    """)
    import threading

    stop, seen = threading.Event(), []

    class Stopper:
        def on_start(self, samples: int) -> None: ...

        def on_chunk(self, event: Any) -> None:
            seen.append(event.number)
            stop.set()

        def on_end(self) -> None: ...

    assert project.summary(observers=[Stopper()], stop=stop).status == "interrupted"
    assert project.summary(observers=[Stopper()]).skipped == 2
    assert sorted(seen) == [0, 1], "the first block of zeros was done"
    ds = project.run()
    assert ds["zero.zero"].values.tolist() == [0.0] * 4
    assert ds["zero.whole"].values.tolist() == [0] * 4


def test_running_twice_adds_nothing(scale: Project) -> None:
    """pydata/xarray#4958: appending again duplicates samples."""
    first, second = scale.run(), scale.run()
    assert first.identical(second)
    assert second.sizes == {"k": 10}


def test_an_output_that_cannot_be_stored_is_refused_before_anything_is_written(scale: Project) -> None:
    """pydata/xarray#10766: one variable written and another not."""
    scale.model("""\
        import jax
        import jax.numpy as jnp


        def scale(k):
            return {"good": 2.0 * k, "bad": k.astype(jnp.float8_e4m3fn)}
    """)
    with pytest.raises(UserError, match="float8_e4m3fn"):
        scale.run()
    assert not (scale.folder / "store.zarr").exists()


@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 10, 11])
def test_ragged_last_chunk(scale: Project, chunk: int) -> None:
    """pydata/xarray#9767: a last chunk that is shorter."""
    ds = scale.run(f"execution.chunk={chunk}")
    np.testing.assert_allclose(ds.scale.values, 2 * np.linspace(0, 1, 10), rtol=1e-15)


def test_a_file_for_each_sample_is_warned_about(scale: Project) -> None:
    """xarray-simlab#116: thousands of files with one number each."""
    many = "sweep.axes.k.linspace=[0,1,20000]"
    assert not scale.load(many).warnings
    warned = scale.load(many, "execution.chunk=1").warnings
    assert any("store.shard" in text and "files" in text for text in warned), warned
    assert not scale.load(many, "execution.chunk=1", "store.shard=10000").warnings


def test_every_output_is_listed_when_opened(scale: Project) -> None:
    """A store whose consolidated metadata is older than its arrays hides them."""
    import xarray

    scale.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = set(xarray.open_zarr(scale.folder / "store.zarr").variables)
        assert names == set(xarray.open_zarr(scale.folder / "store.zarr", consolidated=False).variables)
    assert names == {"k", "scale", "status"}


def test_two_parameters_are_two_dimensions(project: Project) -> None:
    """xarray-simlab#193: a sweep as a multi-index cannot be stored or selected from."""
    project.model("def add(a, b):\n    return a + 10 * b\n").yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {a: 0.0, b: 0.0}
        stages:
          add: {_target_: model.add}
        sweep: {axes: {a: [1.0, 2.0], b: [1.0, 2.0, 3.0]}}
    """)
    ds = project.run()
    assert ds["add"].dims == ("a", "b")
    assert float(ds["add"].sel(a=2.0, b=3.0)) == 32.0
    listed = project.run("sweep.design=zip", "sweep.axes.b=[1.0,2.0]", store="zip.zarr")
    assert listed["add"].dims == ("sample",)
    assert listed["a"].dims == ("sample",)
    assert listed["add"].values.tolist() == [11.0, 22.0]


def test_numbers_that_look_like_text_and_the_other_way_round(scale: Project) -> None:
    """PyYAML reads 1e-6 as text, and a run called 695e0514 as infinity."""
    for text in ("1e-6", "1E-6", "+1e-6", "0.000001"):
        assert scale.load(f"parameters.k={text}", "~sweep").draft.nominal["k"] == 1e-6
    assert scale.load("name=695e0514").config.settings.name == "695e0514"
    assert scale.load("name=1e234").config.node["name"] == "1e234"


def test_paths_are_relative_to_the_config(project: Project) -> None:
    """facebookresearch/hydra#922: the working directory changes, relative paths break."""
    (project.folder / "data").mkdir()
    (project.folder / "data" / "points.csv").write_text("k\n1.5\n2.5\n")
    project.model(SCALE).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {k: 1.0}
        stages:
          scale: {_target_: model.scale}
        sweep: {design: table, table: data/points.csv}
    """)
    (project.folder / "elsewhere").mkdir()
    here = Project(project.folder / "elsewhere", project.config)
    answer = here.cli("run", str(project.config), "store.path=s.zarr", "--json")
    assert answer.code == 0, answer.err
    import engine

    ds = engine.open_store(project.folder / "elsewhere" / "s.zarr")
    assert ds.scale.values.tolist() == [3.0, 5.0]


def test_one_stage_used_twice_is_one_stage(project: Project) -> None:
    """facebookresearch/hydra#1430: what is referred to twice is built twice."""
    project.model("""\
        import jax


        def draw(key):
            return jax.random.normal(key)


        def difference(left, right):
            return left - right
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        stages:
          draw: {_target_: model.draw}
          difference: {_target_: model.difference, _inputs_: {left: draw, right: draw}}
        outputs: {difference: difference, draw: draw}
        sweep: {replicates: 4}
    """)
    ds = project.run()
    assert ds.difference.values.tolist() == [0.0] * 4
    assert len(set(ds.draw.values.tolist())) == 4


def test_an_error_of_an_odd_class_is_not_hidden(scale: Project) -> None:
    """facebookresearch/hydra#2679: an exception with a constructor of its own hides what happened."""
    scale.model("""\
        class Odd(Exception):
            def __init__(self, code, *, detail):
                super().__init__(f"code {code}: {detail}")


        def scale(k):
            raise Odd(7, detail="no such material")
    """)
    with pytest.raises(UserError, match=r"Odd: code 7: no such material"):
        scale.load()


def test_a_solver_that_is_exact_stays_exact_through_the_engine(project: Project) -> None:
    """x'' = -omega^2 x with derivatives by omega: state and gradient in closed form."""
    project.model("""\
        import jax.numpy as jnp

        from ops.ode import solve


        def swing(omega, t1):
            y = solve(lambda t, y, w: jnp.array([y[1], -w * w * y[0]]), [1.0, 0.0], omega, t1=t1, rtol=1e-11, atol=1e-13)
            return y.y[0]
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {omega: 1.0}
        stages:
          swing: {_target_: model.swing, t1: 3.0}
        sweep: {axes: {omega: {linspace: [0.5, 3.0, 6]}}}
        derivatives: {slope: {of: swing, wrt: omega}}
    """)
    ds = project.run()
    omega = ds.omega.values
    np.testing.assert_allclose(ds.swing.values, np.cos(3 * omega), atol=1e-9)
    np.testing.assert_allclose(ds["slope.omega"].values, -3 * np.sin(3 * omega), atol=1e-8)
    assert math.isclose(float(ds.swing.sel(omega=1.0)), math.cos(3.0), abs_tol=1e-9)
