"""On a GPU: the numbers of the CPU. Run with `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

import os

import numpy as np
import pytest
import xarray

from tests.parity.test_combinations import CASE, MODEL, SWEEPS
from tests.project import Project

pytestmark = pytest.mark.gpu
# Tests keep JAX on the CPU where the environment says so; processes of their own must see every platform.
ANY_PLATFORM = {"JAX_PLATFORMS": "", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


def run_on(project: Project, device: str, *overrides: str) -> xarray.Dataset:
    """The results of the case on a device."""
    store = f"{device}.zarr"
    done = project.cli(
        "run",
        "case.yaml",
        f"execution.device={device}",
        f"store.path={store}",
        "--json",
        *overrides,
        timeout=600,
        **ANY_PLATFORM,
    )
    if done.code == 2 and "execution.device" in done.err:
        pytest.skip(f"there is no {device}: {done.err.strip()}")
    assert done.code == 0, done.err
    assert "not usable" not in done.err
    return xarray.open_zarr(project.folder / store).load()


@pytest.mark.parametrize("solver", ["tsit5", "kvaerno5"])
@pytest.mark.parametrize("sweep", list(SWEEPS))
def test_values_and_every_derivative_agree_with_the_cpu(project: Project, sweep: str, solver: str) -> None:
    """float64 on both, to 1e-9 of the largest."""
    case = CASE.format(solver=solver, precision="float64", rtol="1.0e-10", atol="1.0e-12", sweep=SWEEPS[sweep])
    project.model(MODEL).yaml(case)
    gpu, cpu = run_on(project, "gpu"), run_on(project, "cpu")
    assert gpu.attrs["device"]["platform"] == "gpu"
    assert cpu.attrs["device"]["platform"] == "cpu"
    for name in cpu.data_vars:
        size = max(1.0, float(np.abs(cpu[name]).max()))
        np.testing.assert_allclose(gpu[name], cpu[name], rtol=0, atol=1e-9 * size, err_msg=str(name))


def test_memory_is_not_taken_at_the_start(project: Project) -> None:
    """Two runs at once share the device, since neither takes three quarters of its memory."""
    case = CASE.format(solver="tsit5", precision="float64", rtol="1.0e-8", atol="1.0e-10", sweep=SWEEPS["random"])
    project.model(MODEL).yaml(case)
    run_on(project, "gpu")
    both = [project.start("run", "case.yaml", "execution.device=gpu", f"store.path={i}.zarr") for i in range(2)]
    for process in both:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
