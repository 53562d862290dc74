"""Searches killed at any step and resumed: the same history and optimum as undisturbed ones, or, outside JAX, a start from the best
point that is said to be one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import engine

MODEL = '''\
import jax
import jax.numpy as jnp


def grind(x, y, times):
    """Rosenbrock's function after some work, so that a step takes a while; as a curve for a fit."""
    x = jax.lax.fori_loop(0, 200_000, lambda i, s: s + 1e-9 * jnp.sin(s), x)
    f = (1 - x) ** 2 + 100 * (y - x**2) ** 2
    return {"f": f, "curve": x * jnp.exp(-y * times)}
'''
CONFIG = """\
defaults: [engine, {{scheduler: threads}}, _self_]
name: grind
parameters: {{x: -1.2, y: 1.0, times: [0.0, 0.3, 0.7, 1.1, 2.0]}}
stages:
  grind: {{_target_: grind.grind}}
outputs: {{f: grind.f, curve: grind.curve}}
optimize:
  variables: {{x: {{bounds: [-2, 4]}}, y: {{bounds: [-1, 3]}}}}
  starts: {{design: sobol, samples: 4}}
  max_steps: {steps}
  method: {method}
  {goal}
"""
DATA = "t,curve\n0.0,2.1\n0.3,1.5\n0.7,1.0\n1.1,0.7\n2.0,0.3\n"
KILLS = 6


def write(folder: Path, method: str, steps: int) -> None:
    fit = method == "levenberg_marquardt"
    goal = "data: {file: curve.csv, inputs: {times: t}, outputs: {curve: curve}}" if fit else "minimize: f"
    (folder / "grind.py").write_text(MODEL)
    (folder / "curve.csv").write_text(DATA)
    (folder / "grind.yaml").write_text(CONFIG.format(method=method, steps=steps, goal=goal))


def command(folder: Path, store: str) -> list[str]:
    return [sys.executable, "-m", "engine", "run", str(folder / "grind.yaml"), f"store.path={folder / store}"]


def killed(folder: Path, store: str, seed: int) -> None:
    """Start the run again and again, and kill it at a random moment after it began to search."""
    chance = random.Random(seed)
    for _ in range(KILLS):
        run = subprocess.Popen(command(folder, store), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("compiled"):
                break
        time.sleep(chance.uniform(0.0, 2.5))
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), [("adam", 150), ("lbfgs", 150), ("levenberg_marquardt", 60)])
def test_a_killed_search_goes_on_to_the_same_numbers(tmp_path: Path, method: str, steps: int) -> None:
    write(tmp_path, method, steps)
    undisturbed = subprocess.run(
        command(tmp_path, "whole.zarr"), capture_output=True, text=True, timeout=300, check=False
    )
    assert undisturbed.returncode in (0, 3), undisturbed.stderr
    killed(tmp_path, "killed.zarr", seed=steps)
    resumed = subprocess.run(command(tmp_path, "killed.zarr"), capture_output=True, text=True, timeout=300, check=False)
    assert resumed.returncode == undisturbed.returncode, resumed.stderr
    whole, again = (engine.open_store(tmp_path / f"{name}.zarr").load() for name in ("whole", "killed"))
    assert set(whole) == set(again)
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name], err_msg=name)


@pytest.mark.slow
def test_a_killed_search_outside_jax_begins_again_at_its_best_point(tmp_path: Path) -> None:
    write(tmp_path, "slsqp", 100)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    run = subprocess.Popen(
        command(tmp_path, "killed.zarr"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 120
    while (
        not list(tmp_path.glob("killed.zarr/checkpoints/state/c/*/*"))
        and time.monotonic() < deadline
        and run.poll() is None
    ):
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    resumed = subprocess.run(command(tmp_path, "killed.zarr"), capture_output=True, text=True, timeout=300, check=False)
    assert resumed.returncode == 0, resumed.stderr
    found = engine.open_store(tmp_path / "killed.zarr").load()
    best = int(found.best)
    assert float(found.objective[best]) < 1e-8
    if list(tmp_path.glob("killed.zarr/checkpoints/state/c/*/*")):
        assert "began again from their best points" in resumed.stderr
