"""The same designs whatever is computed together: batches, schedulers, and samples of a reduced sweep at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.project import Project

MODEL = """
import jax.numpy as jnp
from ops.ode import solve

def swing(k, c, x0):
    found = solve(lambda t, y, a: jnp.stack([y[1], -a[0] * y[0] - a[1] * y[1]]), jnp.stack([x0, 0 * x0]), (k, c), t1=2.0)
    return {"loss": (found.y[0] - 0.3) ** 2 + 0.01 * k, "x": found.y, "status": found.status}
"""
CONFIG = """
defaults: [engine, {{scheduler: {scheduler}}}, _self_]
name: swing
parameters: {{k: 1.0, c: 0.1, x0: 1.0}}
stages: {{swing: {{_target_: model.swing}}}}
outputs: {{loss: swing.loss, x: swing.x}}
sweep: {{axes: {{x0: {{linspace: [0.8, 1.2, 3]}}}}}}
execution: {{chunk: {chunk}}}
optimize:
  minimize: loss
  variables: {{k: {{bounds: [0.1, 10]}}, c: {{bounds: [0, 2]}}}}
  starts: {{samples: 4}}
  max_steps: 60
  {more}
"""
COMPARED = {"objective": 1e-11, "loss": 1e-11, "variables.k": 1e-6, "variables.c": 1e-6}
"""An objective is flat at its minimum: variables are known to half as many digits."""

WAYS = [("synchronous", 1), ("synchronous", 5), ("threads", 2), ("threads", 12)]


def run(project: Project, scheduler: str, chunk: int | str, more: str = "") -> Any:
    project.model(MODEL).yaml(CONFIG.format(scheduler=scheduler, chunk=chunk, more=more))
    return project.run(store=f"{scheduler}-{chunk}.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "over: sweep"], ids=["for each", "over"])
def test_batches_and_schedulers_give_the_same_designs(project: Project, more: str) -> None:
    whole = run(project, "synchronous", "auto", more)
    for scheduler, chunk in WAYS:
        found = run(project, scheduler, chunk, more)
        np.testing.assert_array_equal(found.status, whole.status)
        for name, tolerance in COMPARED.items():
            np.testing.assert_allclose(found[name], whole[name], rtol=tolerance, err_msg=f"{name} {scheduler} {chunk}")
        for name in ("history.objective", "history.gradient_norm", "history.k"):
            first = {"step": slice(0, 3)}  # roundings of the values grow from step to step
            np.testing.assert_allclose(found[name].isel(first), whole[name].isel(first), rtol=1e-11, err_msg=name)


@pytest.mark.slow
def test_a_warm_start_begins_at_the_neighbours_optimum(project: Project) -> None:
    warm = "warm_start: x0"
    project.model(MODEL).yaml(
        CONFIG.format(scheduler="threads", chunk="auto", more="").replace("starts: {samples: 4}", "")
    )
    cold_found = project.run(store="cold.zarr")
    project.yaml(CONFIG.format(scheduler="threads", chunk="auto", more=warm).replace("starts: {samples: 4}", ""))
    found = project.run(store="warm.zarr")
    np.testing.assert_allclose(found.objective, cold_found.objective, rtol=1e-6)
    k = found["variables.k"].values
    np.testing.assert_allclose(found["history.k"][1:, 0], k[:-1], rtol=1e-12)
