"""Memory is bounded by the chunk, not by the sweep."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import engine
from tests.project import REPOSITORY, Project

RUN = """\
import resource, runpy, sys
sys.argv = ["engine", "run", "case.yaml", "store.path=store.zarr"]
try:
    runpy.run_module("engine", run_name="__main__")
except SystemExit as done:
    assert not done.code, done.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_samples_in_little_memory(project: Project) -> None:
    project.model("""\
        import jax.numpy as jnp


        def closed(omega, zeta):
            return {"x": jnp.exp(-zeta) * jnp.cos(omega), "v": -jnp.exp(-zeta) * jnp.sin(omega)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: cheap
        parameters: {omega: 2.0, zeta: 0.05}
        stages:
          closed: {_target_: model.closed}
        sweep:
          design: random
          samples: 1000000
          axes: {omega: {uniform: [0.5, 20.0]}, zeta: {uniform: [0.0, 0.5]}}
    """)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=project.folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout.split()[-1])
    assert kilobytes < 1.5 * 2**20
    ds = engine.open_store(project.folder / "store.zarr")
    assert int((ds.status == 1).sum()) == 1_000_000
