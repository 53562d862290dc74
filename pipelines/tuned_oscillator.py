"""An oscillator whose frequency and damping are chosen so that it swings as far as wanted, when wanted.

Let go at x = 1, the oscillator of `pipelines.oscillator` turns for the first time after half a period, at t = pi / wd with
wd = omega sqrt(1 - zeta^2), and there x = -exp(-pi zeta / sqrt(1 - zeta^2)). A turn at the time T at x = -r thus needs
zeta = l / sqrt(pi^2 + l^2) with l = -log r, and omega = sqrt(pi^2 + l^2) / T; for r = 0.1, T = 0.5 s: zeta = 0.59115503,
omega = 7.7901226 rad/s.
"""

from __future__ import annotations

from typing import Any

from pipelines.oscillator import State


def miss(y: State, t: Any, *, turn: float = -0.1) -> Any:
    """How far the motion is from a turn at the displacement `turn` [m] at its last time: squares [m^2], of the velocity too."""
    return (y.x[-1] - turn) ** 2 + (t[-1] * y.v[-1]) ** 2
