"""Partial differential equations by the worked pipelines, with lines and steps fine enough for the digits that are trusted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.ode import Solver
from ops.pde import Dirichlet, Grid, derivative
from pipelines import burgers, fisher_kpp, heat
from tests.reference.answers import Answer


def computed(stage: Any) -> Any:
    """The result of a stage that must not fail."""
    found = jax.jit(stage)()
    assert int(found.status) == 0
    return found


def pde_heat_semidiscrete() -> Answer:
    rod = computed(lambda: heat.rod(1.0, n=49, order=2, points=2, solver=Solver("dopri8", rtol=1e-13, atol=1e-15)))
    return Answer({"u_mol": float(heat.middle(rod.u))}, tolerance=1e-13)


def pde_burgers_basdevant(n: int = 255, stretch: float = 5.0) -> Answer:
    """The slope at x = 0 over time, and its largest value by a parabola through the three points around it."""
    solver = Solver("dopri8", rtol=1e-9, atol=1e-11)
    t1, points = 1.605 / np.pi, 1606
    wave = computed(lambda: burgers.wave(0.01 / jnp.pi, n=n, stretch=stretch, t1=t1, points=points, solver=solver))
    grid = Grid((-1.0, 1.0), n, points="inner")
    metric = stretch / np.sinh(stretch)  # dx/ds at x = 0
    steep = [-float(derivative(u, grid, Dirichlet(0.0), order=6)[n // 2]) / metric for u in wave.u[-4:]]
    i = 1 + int(np.argmax(steep[1:-1]))
    a, b = (steep[i + 1] + steep[i - 1]) / 2 - steep[i], (steep[i + 1] - steep[i - 1]) / 2
    h = t1 / (points - 1)
    at, slope = wave.t[len(wave.t) - 4 + i] - h * b / (2 * a), steep[i] - b**2 / (4 * a)
    return Answer({"slope": slope, "pi_t": float(np.pi * at)}, tolerance=1e-9, recomputed=6)


def pde_fisher_kpp_wave() -> Answer:
    solver = Solver("dopri8", rtol=1e-12, atol=1e-14)
    front = computed(lambda: fisher_kpp.front(1.0, 1.0, n=1601, order=6, points=2, solver=solver))
    return Answer({"u0": float(fisher_kpp.middle(front.u))}, tolerance=1e-12)
