"""Stores that were damaged: what is gone is computed again, what is broken is told, nothing wrong is read in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engine
from tests.project import Project

CONFIG = """\
    defaults: [engine, _self_]
    name: double
    parameters: {k: 0.0}
    stages:
      double: {_target_: model.double}
      shared: {_target_: model.shared}
    sweep: {axes: {k: [1.0, 2.0, 3.0]}}
    execution: {chunk: 1}
"""


@pytest.fixture
def double(project: Project) -> Project:
    project.model(
        "import jax.numpy as jnp\n\n\ndef double(k):\n    return 2 * k\n\n\ndef shared():\n    return jnp.arange(3.0)\n"
    )
    project.yaml(CONFIG)
    project.run()
    return project


def remove(*parts: str) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        place = store.joinpath(*parts)
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return act


def empty(*parts: str) -> Callable[[Path], None]:
    return lambda store: store.joinpath(*parts).write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [remove("double", "c", "1"), remove("double", "c"), empty("double", "c", "2"), remove("k", "c", "0"),
     remove("shared", "c"), remove("status", "c", "1")],
    ids=["chunk", "all chunks", "empty chunk", "coordinate", "shared output", "status"],
)  # fmt: skip
def test_what_is_gone_is_computed_again(double: Project, damage: Callable[[Path], None]) -> None:
    whole = engine.open_store(double.folder / "store.zarr").load()
    damage(double.folder / "store.zarr")
    assert double.summary().status == "complete"
    again = engine.open_store(double.folder / "store.zarr").load()
    for name in whole.variables:
        np.testing.assert_array_equal(whole[name].values, again[name].values, err_msg=str(name))


def test_a_broken_status_is_told(double: Project) -> None:
    (double.folder / "store.zarr" / "status" / "c" / "0").write_bytes(b"")
    for command in (["show", "store.zarr"], ["run", "case.yaml", "store.path=store.zarr"]):
        answer = double.cli(*command)
        assert answer.code == 2
        assert "is damaged" in answer.err
        assert "--fresh" in answer.err
    assert double.cli("run", "case.yaml", "store.path=store.zarr", "--fresh").code == 0


def test_attributes_that_are_cut_are_told(double: Project) -> None:
    file = double.folder / "store.zarr" / "zarr.json"
    data = json.loads(file.read_text())
    del data["attributes"]["layout"]["shape"]
    file.write_text(json.dumps(data))
    answer = double.cli("show", "store.zarr")
    assert answer.code == 2
    assert "'shape'" in answer.err


def test_no_store_inside_a_store(double: Project) -> None:
    answer = double.cli("run", "case.yaml", "store.path=store.zarr/inner.zarr")
    assert answer.code == 2
    assert "must not lie inside a store" in answer.err


def test_units_follow_the_config(double: Project) -> None:
    double.run("outputs={double: {from: double, units: m}, shared: shared}", store="units.zarr")
    ds = double.run(
        "outputs={double: {from: double, units: km, description: twice}, shared: shared}", store="units.zarr"
    )
    assert ds.double.attrs["units"] == "km"
    assert ds.double.attrs["description"] == "twice"
