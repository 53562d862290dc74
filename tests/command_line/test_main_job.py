"""The main job, as a user types it: conf/oscillator.yaml to a store, against the closed form."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.project import REPOSITORY, Project

OSCILLATOR = str(REPOSITORY / "conf" / "oscillator.yaml")


def closed_form(omega: Any, zeta: Any, t: Any) -> tuple[Any, Any]:
    """x and v of x'' + 2 zeta omega x' + omega^2 x = 0, x(0) = 1, v(0) = 0 (zeta < 1)."""
    wd = omega * np.sqrt(1 - zeta**2)
    decay = np.exp(-zeta * omega * t)
    x = decay * (np.cos(wd * t) + zeta * omega / wd * np.sin(wd * t))
    v = -decay * omega**2 / wd * np.sin(wd * t)
    return x, v


def energy(omega: Any, zeta: Any) -> Any:
    """Mechanical energy per mass at t = 20 s [J/kg]."""
    x, v = closed_form(omega, zeta, 20.0)
    return 0.5 * v**2 + 0.5 * omega**2 * x**2


def derivative(function: Any, x: Any, h: float = 1e-30) -> Any:
    """The exact derivative of a real-analytic function: the complex step (Squire and Trapp, SIAM Review 40, 1998)."""
    return np.imag(function(x + 1j * h)) / h


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("main")
    project = Project(folder, Path(OSCILLATOR))
    answer = project.cli("run", OSCILLATOR, "--json", timeout=300)
    assert answer.code == 0, answer.err
    return project, answer.json


def opened(main_job: tuple[Project, dict[str, Any]]) -> Any:
    import xarray

    project, summary = main_job
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return xarray.open_zarr(project.folder / summary["store"])


def test_summary(main_job: tuple[Project, dict[str, Any]]) -> None:
    _, summary = main_job
    assert summary["status"] == "complete"
    assert (summary["samples"], summary["ok"], summary["failed"], summary["skipped"]) == (2048, 2048, 0, 0)
    assert 1 <= summary["compilations"] <= 2
    assert {"compile_seconds", "run_seconds", "seconds", "store"} <= set(summary)
    assert summary["store"] == f"results/oscillator-{summary['fingerprint']}.zarr"


def test_displacement_and_energy(main_job: tuple[Project, dict[str, Any]]) -> None:
    ds = opened(main_job)
    omega, zeta, t = (ds[name].values for name in ("omega", "zeta", "time"))
    assert ds.x.dims == ("omega", "zeta", "time")
    assert ds.x.attrs["units"] == "m"
    x, _ = closed_form(omega[:, None, None], zeta[:, None], t)
    assert np.abs(ds.x.values - x).max() < 1e-6
    np.testing.assert_allclose(ds.energy.values, energy(omega[:, None], zeta), rtol=1e-6, atol=1e-6)


def test_derivatives(main_job: tuple[Project, dict[str, Any]]) -> None:
    ds = opened(main_job)
    omega, zeta = np.meshgrid(ds.omega.values, ds.zeta.values, indexing="ij")
    for name, exact in {
        "denergy.omega": derivative(lambda w: energy(w, zeta), omega),
        "denergy.zeta": derivative(lambda z: energy(omega, z), zeta),
    }.items():
        assert np.abs(ds[name].values - exact).max() < 1e-5 * np.abs(exact).max(), name


def test_selection_by_value(main_job: tuple[Project, dict[str, Any]]) -> None:
    ds = opened(main_job)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        point = ds.sel(omega=2.0, zeta=0.05, method="nearest").energy.values
    assert np.isfinite(point)
    assert (ds.status == 1).all()


def test_again_runs_nothing(main_job: tuple[Project, dict[str, Any]]) -> None:
    project, summary = main_job
    before = {file: file.stat().st_mtime_ns for file in (project.folder / summary["store"]).rglob("*")}
    start = time.perf_counter()
    answer = project.cli("run", OSCILLATOR)
    seconds = time.perf_counter() - start
    assert answer.code == 0
    assert "nothing to do, already complete" in answer.out
    assert seconds < 20, "a finished run must not compile or solve again"
    assert before == {file: file.stat().st_mtime_ns for file in (project.folder / summary["store"]).rglob("*")}


def test_show(main_job: tuple[Project, dict[str, Any]]) -> None:
    project, summary = main_job
    answer = project.cli("show", summary["store"])
    assert answer.code == 0
    for part in ("complete", "denergy.omega", "2048", "[J/kg]", "value_and_jacfwd(energy; omega, zeta)"):
        assert part in answer.out
    data = project.cli("show", summary["store"], "--json").json
    assert data["counts"] == {"ok": 2048}
    assert data["provenance"]["versions"]["jax"]


def test_plan_costs_no_run(project: Project) -> None:
    answer = project.cli("plan", OSCILLATOR)
    assert answer.code == 0, answer.err
    for part in ("jit ∘ vmap[", "(energy ∘ motion)", "float64", "MiB", "compilations", "forward mode"):
        assert part in answer.out
    assert list(project.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "in a pool of lanes"),
        pytest.param(
            ["solver=kvaerno3"],
            "in lockstep: Kvaerno3 is neither an explicit Runge-Kutta method nor Rodas5P",
            marks=pytest.mark.slow,
        ),
        (
            ["+derivatives.denergy.mode=reverse", "solver.checkpoints=16"],
            "in lockstep: solver.checkpoints bounds its memory",
        ),
    ],
)
def test_plan_says_how_a_sweep_is_solved(project: Project, options: list[str], words: str) -> None:
    answer = project.cli("plan", OSCILLATOR, "--json", *options)
    assert answer.code == 0, answer.err
    assert answer.json["solves"] == [["motion", words]]


def test_help_is_fast_and_teaches(project: Project) -> None:
    start = time.perf_counter()
    answer = project.cli("--help")
    assert time.perf_counter() - start < 5
    assert answer.code == 0
    for part in ("run", "plan", "show", "list", "doctor", "exit codes", "conf/oscillator.yaml"):
        assert part in answer.out


def test_list_and_doctor(project: Project) -> None:
    listed = project.cli("list").out
    for part in ("pipelines.oscillator.motion", "tsit5", "kvaerno5", "sobol", "optimizers"):
        assert part in listed
    assert project.cli("list", "solvrs").code == 2
    doctor = project.cli("doctor", "--json").json
    assert doctor["versions"]["jax"]
    assert doctor["devices"]
