"""A sample's result does not depend on the chunk, the scheduler, the workers, its neighbours, or an interruption."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp


    def decay(k, y0, key):
        def step(i, y):
            return y * (1 - 0.01 * k)

        y = jax.lax.fori_loop(0, 100, step, y0)
        noise = jax.random.normal(key, (3,))
        return {"y": y, "noise": noise, "count": jnp.int32(7) + (k > 0.5), "status": jnp.where(k > 0.9, 4, 0)}
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: decay
    seed: 11
    parameters: {k: 0.5, y0: 1.0}
    stages:
      decay: {_target_: model.decay}
    sweep:
      design: random
      samples: 8
      axes:
        k: {uniform: [0.0, 1.0]}
        y0: {normal: [1.0, 0.1]}
    derivatives:
      dy: {of: decay.y, wrt: [k, y0]}
"""
VARIANTS = [
    ["execution.chunk=1"],
    ["execution.chunk=3"],
    ["execution.chunk=8"],
    ["execution.chunk=auto"],
    ["execution.chunk=2", "scheduler.kind=synchronous"],
    ["execution.chunk=1", "scheduler.workers=4"],
    ["execution.chunk=3", "scheduler.workers=1"],
    ["execution.chunk=2", "store.shard=4"],
    ["execution.jit=false"],
]


@pytest.fixture
def decay(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def assert_close(a: Any, b: Any) -> None:
    assert set(a.variables) == set(b.variables)
    for name in a.variables:
        np.testing.assert_allclose(a[name].values, b[name].values, rtol=1e-12, atol=1e-12, err_msg=str(name))


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_same_numbers_however_it_is_run(decay: Project, overrides: list[str]) -> None:
    plain = decay.run("scheduler.kind=synchronous", store="plain.zarr")
    assert_close(plain, decay.run(*overrides))


def test_the_first_samples_stay_when_more_are_asked_for(decay: Project) -> None:
    eight, sixteen = decay.run(store="8.zarr"), decay.run("sweep.samples=16", store="16.zarr")
    assert_close(eight, sixteen.isel(sample=slice(8)))
    draws = sixteen["decay.noise"].values[:, 0]
    assert len(np.unique(draws[np.isfinite(draws)])) == np.isfinite(draws).sum()


@pytest.mark.parametrize("stops", [1, 2, 3])
def test_interrupted_and_resumed(decay: Project, stops: int) -> None:
    plain = decay.run("execution.chunk=2", store="plain.zarr")
    stop, seen = threading.Event(), []

    class Stopper:
        def on_start(self, samples: int) -> None: ...

        def on_chunk(self, event: Any) -> None:
            seen.append(event.number)
            if len(seen) == stops:
                stop.set()

        def on_end(self) -> None: ...

    options = ["execution.chunk=2", "scheduler.kind=synchronous"]
    first = decay.summary(*options, observers=[Stopper()], stop=stop)
    assert first.status == "interrupted"
    assert first.pending == 8 - 2 * stops
    second = decay.summary(*options, observers=[Stopper()])
    assert second.skipped == 2 * stops
    assert sorted(seen) == [0, 1, 2, 3], "a chunk was computed twice or never"
    import engine

    resumed = engine.open_store(decay.folder / "store.zarr").load()
    for name in plain.variables:
        assert plain[name].values.tobytes() == resumed[name].values.tobytes(), name


@pytest.mark.parametrize("samples", [1, 7, 50, 203])
def test_two_compilations_at_most(decay: Project, samples: int) -> None:
    summary = decay.summary(f"sweep.samples={samples}", "execution.chunk=50")
    assert 1 <= summary.compilations <= 2


def test_masked_samples_and_their_neighbours(decay: Project) -> None:
    ds = decay.run("sweep.samples=64")
    bad = ds.k.values > 0.9
    assert 0 < bad.sum() < 64
    assert (ds.status.values == np.where(bad, 4, 1)).all()
    for name in ("decay.y", "dy.k", "dy.y0", "decay.count"):
        assert (np.isnan(ds[name].values) == bad).all(), name
    good = ~bad
    expected = ds.y0.values * (1 - 0.01 * ds.k.values) ** 100
    np.testing.assert_allclose(ds["decay.y"].values[good], expected[good], rtol=1e-12)
    np.testing.assert_allclose(ds["dy.y0"].values[good], (expected / ds.y0.values)[good], rtol=1e-12)
    slope = -0.01 * 100 * expected / (1 - 0.01 * ds.k.values)
    np.testing.assert_allclose(ds["dy.k"].values[good], slope[good], rtol=1e-12)


def test_a_stage_draws_the_key_of_the_contract(decay: Project) -> None:
    import zlib

    import jax

    ds = decay.run("sweep.samples=64")
    for sample in (0, 5):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(11), sample), zlib.crc32(b"decay"))
        if ds.status.values[sample] == 1:
            np.testing.assert_array_equal(ds["decay.noise"].values[sample], jax.random.normal(key, (3,)))
