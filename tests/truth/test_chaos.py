"""Chaotic systems: what is published of their periods and exponents, and what holds exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests.project import REPOSITORY


def run(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


@pytest.mark.slow
def test_driven_pendulum_doubles_its_period(tmp_path: Path) -> None:
    """Baker and Gollub's windows: 1 at 0.9 and 1.35, 2 at 1.07 and 1.45, 4 at 1.47, chaos at 1.15 and 1.5."""
    ds = run(tmp_path, "driven_pendulum")
    np.testing.assert_array_equal(ds.drive, [0.9, 1.07, 1.15, 1.35, 1.45, 1.47, 1.5])
    np.testing.assert_array_equal(ds.period, [1, 2, 0, 1, 2, 4, 0])
    chaotic = ds.period == 0
    assert (ds.exponent[chaotic] > 0.05).all() and (ds.exponent[~chaotic] < -0.01).all()


@pytest.mark.slow
def test_the_orbit_of_a_driven_pendulum_moves_with_the_drive(tmp_path: Path) -> None:
    """An orbit x = P(x, drive) of period 1 has dx/d(drive) = (1 - dP/dx)^-1 dP/d(drive); P by SciPy."""
    from scipy.integrate import solve_ivp
    from scipy.optimize import fsolve

    derivative = "+derivatives.d={of: rate, wrt: [drive], kind: jacobian}"
    ds = run(tmp_path, "driven_pendulum", "outputs={rate: section.y.rate}", "sweep.axes.drive=[0.9]", derivative)

    def once(x: Any, drive: float) -> Any:
        field = lambda t, y: [y[1], -y[1] / 2 - np.sin(y[0]) + drive * np.cos(2 * t / 3)]  # noqa: E731
        return solve_ivp(field, (0, 3 * np.pi), x, "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]

    orbit = fsolve(lambda x: once(x, 0.9) - x, [0.0, float(ds.rate[0, -1])], xtol=1e-12)
    np.testing.assert_allclose(float(ds.rate[0, -1]), orbit[1], rtol=1e-7)
    h = 1e-5
    by_x = np.stack([(once(orbit + e, 0.9) - once(orbit - e, 0.9)) / (2 * h) for e in h * np.eye(2)], axis=1)
    by_drive = (once(orbit, 0.9 + h) - once(orbit, 0.9 - h)) / (2 * h)
    exact = np.linalg.solve(np.eye(2) - by_x, by_drive)[1]
    np.testing.assert_allclose(float(ds["d.drive"][0, -1]), exact, rtol=1e-5)


def test_exponents_of_lorenz_s_system(tmp_path: Path) -> None:
    """Their sum is -(sigma + 1 + beta); where the motion comes to rest they are the real parts of the eigenvalues there.

    At rho 28 they are 0.9056, 0 and -14.572 (Sprott 2003), here as averages over 180 units of time.
    """
    ds = run(tmp_path, "lorenz_lyapunov")
    np.testing.assert_allclose(ds.exponents.sum("exponent"), -(10 + 1 + 8 / 3), rtol=1e-6)
    for i, rho in enumerate((0.5, 10.0, 14.0)):
        c = np.sqrt(8 / 3 * (rho - 1)) if rho > 1 else 0.0
        z = max(rho - 1, 0.0)
        jacobian = np.array([[-10.0, 10.0, 0.0], [rho - z, -1.0, -c], [c, c, -8 / 3]])
        exact = np.sort(np.linalg.eigvals(jacobian).real)[::-1]
        np.testing.assert_allclose(ds.exponents[i], exact, atol=0.02)
    largest, middle, _ = ds.exponents.sel(rho=28.0).values
    np.testing.assert_allclose(largest, 0.9056, atol=0.04)
    np.testing.assert_allclose(middle, 0.0, atol=0.02)
