"""Killed at any instant, resumed, and equal to an undisturbed run bit for bit; no finished chunk is computed twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

MODEL = '''\
import jax
import jax.numpy as jnp


def grind(a, b, key):
    """A few milliseconds of work for each sample, with a random number in it."""
    noise = jax.random.normal(key)
    x = jax.lax.fori_loop(0, 20_000, lambda i, x: jnp.sin(x) + a * 1e-3, b + noise)
    return {"x": x, "noise": noise, "status": jnp.where(a > 0.9, 4, 0)}
'''
CONFIG = """\
defaults: [engine, {scheduler: threads}, _self_]
name: grind
seed: 3
parameters: {a: 0.0, b: 1.0}
stages:
  grind: {_target_: grind.grind}
sweep:
  axes:
    a: {linspace: [0.0, 1.0, 16]}
    b: {linspace: [0.0, 1.0, 25]}
execution: {chunk: 25}
"""
KILLS = 20


def command(folder: Path, store: str) -> list[str]:
    return [sys.executable, "-m", "engine", "run", str(folder / "grind.yaml"), f"store.path={folder / store}", "--json"]


def run(folder: Path, store: str) -> dict[str, object]:
    done = subprocess.run(command(folder, store), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr  # some samples fail by design
    return json.loads(done.stdout)


def finished_files(store: Path) -> dict[Path, int]:
    """Every file of a chunk whose status file is there, with the time when it was written."""
    found = {}
    for status in store.glob("status/c/*/*"):
        block = status.relative_to(store / "status")
        for file in store.glob(f"*/{block}*"):
            found[file] = file.stat().st_mtime_ns
    return found


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    (tmp_path / "grind.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "grind.yaml").write_text(CONFIG, encoding="utf-8")
    run(tmp_path, "calm.zarr")  # fills the compile cache
    start = time.perf_counter()
    run(tmp_path, "calm_again.zarr")
    duration = time.perf_counter() - start
    rng = random.Random(7)
    store = tmp_path / "killed.zarr"
    kills = finished = 0
    while kills < KILLS:
        before = finished_files(store)
        process = subprocess.Popen(
            command(tmp_path, "killed.zarr"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(rng.uniform(0.2, 1.0) * duration)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        after = finished_files(store)
        assert all(after[file] == written for file, written in before.items()), "a finished chunk was computed again"
        if process.returncode == 3:
            assert_same(tmp_path / "calm.zarr", store)
            shutil.rmtree(store)
            finished += 1
    before = finished_files(store)
    summary = run(tmp_path, "killed.zarr")
    after = finished_files(store)
    assert all(after[file] == written for file, written in before.items())
    assert summary["pending"] == 0
    assert_same(tmp_path / "calm.zarr", store)


def assert_same(calm: Path, killed: Path) -> None:
    import zarr

    one, other = zarr.open_group(calm, mode="r"), zarr.open_group(killed, mode="r")
    names = set(one.array_keys())
    assert names == set(other.array_keys())
    assert "grind.x" in names
    for name in names:
        a, b = np.asarray(one[name][...]), np.asarray(other[name][...])
        assert a.tobytes() == b.tobytes(), name
