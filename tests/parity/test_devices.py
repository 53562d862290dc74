"""Several devices, simulated on the CPU: the numbers of one, no collective operation, and clear words where there are too few."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import xarray

from tests.project import REPOSITORY, Project

FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
MODEL = """
    import jax
    from ops.ode import solve

    def swing(omega, solver):
        # The cost of a sample grows with omega: lanes of one device end long before those of another.
        found = solve(lambda t, y, w: [y[1], -w * w * y[0]], [1.0, 0.0], omega, t1=5.0, solver=solver)
        return {"x": found.y[0], "steps": found.steps, "status": found.status}

    def noise(key):
        return jax.random.normal(key, (3,))
"""
CASE = """
    defaults: [engine, {solver: tsit5}, _self_]
    name: devices
    solver: {max_steps: 400}
    parameters: {omega: 1.0}
    stages:
      swing: {_target_: model.swing, solver: "${solver}"}
      noise: {_target_: model.noise}
    outputs: {x: swing.x, steps: swing.steps, noise: noise}
    sweep: {axes: {omega: {geomspace: [0.1, 60.0, 37]}}}
    derivatives: {dx: {of: x, wrt: [omega]}}
"""


@pytest.fixture
def swing(project: Project) -> Project:
    return project.model(MODEL).yaml(CASE)


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["execution.chunk=5"], marks=pytest.mark.slow),
        pytest.param(["execution.devices=3", "scheduler.kind=synchronous"], marks=pytest.mark.slow),
    ],
)
def test_four_devices_give_the_values_of_one(swing: Project, options: list[str]) -> None:
    """Bit for bit, failed samples, random numbers and a ragged last chunk included."""
    one = swing.run(*options[:0], store="one.zarr")
    done = swing.cli("run", "case.yaml", "store.path=four.zarr", "--json", *options, **FOUR)
    assert done.code == 3, done.err  # the fastest oscillators run out of steps
    assert "not usable" not in done.err
    four = xarray.open_zarr(swing.folder / "four.zarr").load()
    assert four.attrs["device"]["used"] == (3 if "execution.devices=3" in options else 4)
    assert 0 < int((one["status"] == 2).sum()) < 37
    for name in one:
        np.testing.assert_array_equal(one[name], four[name], err_msg=str(name))


def test_no_device_waits_for_another(swing: Project) -> None:
    """The compiled program holds no collective operation: each device's loops end by themselves."""
    script = """
import engine
from engine.program import fit
text = fit(engine.load("case.yaml")).compiled.as_text()
assert "while" in text
found = [w for w in ("all-reduce", "all-gather", "collective-permute", "all-to-all", "reduce-scatter") if w in text]
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=swing.folder,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "", "HOME": str(swing.folder), **FOUR},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_plan_shows_the_devices(swing: Project) -> None:
    done = swing.cli("plan", "case.yaml", "--json", **FOUR)
    assert "devices(4)" in done.json["transforms"]
    assert done.json["devices"] == 4
    text = swing.cli("plan", "case.yaml", "transforms=[derivatives,vmap,{devices:2},jit]", **FOUR).out
    assert "jit ∘ devices(2) ∘ vmap[" in text
    assert "on 2 devices" in text


def test_more_devices_than_there_are(swing: Project) -> None:
    done = swing.cli("plan", "case.yaml", "execution.devices=5", **FOUR)
    assert done.code == 2
    assert "`execution.devices` must ask for at most" in done.err
    assert "there are 4 (cpu)" in done.err


def test_an_absent_device(swing: Project) -> None:
    done = swing.cli("run", "case.yaml", "execution.device=gpu")
    assert done.code == 2
    assert "`execution.device` must be a device of this machine, but is 'gpu'" in done.err
    assert not (swing.folder / "results").exists()


def test_a_sweep_smaller_than_the_devices(swing: Project) -> None:
    done = swing.cli(
        "run", "case.yaml", "sweep={axes:{omega:[1.0,2.0,3.0]}}", "store.path=three.zarr", "--json", **FOUR
    )
    assert done.code == 0, done.err
    assert xarray.open_zarr(swing.folder / "three.zarr").attrs["device"]["used"] == 3
