"""What `ops.pde` refuses, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from ops.pde import (
    Dirichlet,
    Free,
    Grid,
    Neumann,
    Robin,
    advect,
    dealias,
    derivative,
    diffuse,
    divergence,
    gradient,
    impose,
    laplacian,
    spectral_derivative,
    spectral_laplacian,
)
from tests.refusals import assert_refused

NODES, CELLS = Grid((0.0, 1.0), 8), Grid((0.0, 1.0), 8, points="cells")
RING = Grid((0.0, 1.0), 8, periodic=True)
PLANE = Grid([(0.0, 1.0), (0.0, 2.0)], [8, 9], periodic=[True, False])
U, V = jnp.ones(8), jnp.ones((8, 9))

CASES: dict[str, tuple[Any, str]] = {
    "one bound": (lambda: Grid((0.0,), 8), r"`grid\.bounds`.*0\.0"),
    "descending bounds": (lambda: Grid((1.0, 0.0), 8), r"`grid\.bounds`.*ascending.*1\.0"),
    "endless": (lambda: Grid((0.0, float("inf")), 8), r"`grid\.bounds`.*finite.*inf"),
    "text bound": (lambda: Grid(("0", 1.0), 8), r"`grid\.bounds`"),
    "bounds of one axis for two": (lambda: Grid([(0.0, 1.0)], [8, 9]), r"`grid\.bounds`.*each axis.*has 1"),
    "no axis": (lambda: Grid([], []), r"`grid\.bounds`.*has 0"),
    "one point": (lambda: Grid((0.0, 1.0), 1), r"`grid\.n`.*at least 2.*1"),
    "part of a point": (lambda: Grid((0.0, 1.0), 8.5), r"`grid\.n`.*8\.5"),
    "unknown points": (lambda: Grid((0.0, 1.0), 8, points="cell"), "'cells'"),
    "periodic by number": (lambda: Grid((0.0, 1.0), 8, periodic=1), r"`grid\.periodic`.*1"),
    "periodic for too many": (lambda: Grid((0.0, 1.0), 8, periodic=[True, False]), r"`grid\.periodic`.*has 2"),
    "no such axis": (lambda: NODES.coordinates(1), "`axis`.*is 1"),
    "no such axis of an operator": (lambda: derivative(U, RING, axis=2), "`axis`.*is 2"),
    "too few values": (lambda: laplacian(jnp.ones(7), RING), r"`u`.*\(\.\.\., 8\).*\(7,\)"),
    "too few axes": (lambda: laplacian(U, PLANE, Dirichlet()), r"`u`.*\(\.\.\., 8, 9\).*\(8,\)"),
    "no boundary": (lambda: laplacian(U, NODES), "`boundary`.*None.*Dirichlet, Neumann, Robin, Free"),
    "unknown boundary": (lambda: laplacian(U, NODES, "dirichlet"), "`boundary`.*'Dirichlet'"),
    "a number": (lambda: laplacian(U, NODES, (0.0, Free())), r"`boundary`.*is 0\.0"),
    "three ends": (lambda: laplacian(U, NODES, (Free(), Free(), Free())), "`boundary`.*pair.*3"),
    "three axes": (lambda: laplacian(V, PLANE, (None, Free(), Free())), "`boundary`.*2 axes.*3"),
    "periodic with ends": (lambda: laplacian(U, RING, Dirichlet()), "`boundary`.*left out.*Dirichlet"),
    "one axis periodic": (lambda: laplacian(V, PLANE, (Free(), Free())), "`boundary`.*left out.*Free"),
    "one axis without": (lambda: laplacian(V, PLANE, (None, None)), "`boundary`.*None"),
    "no slope": (lambda: laplacian(U, NODES, Robin(1, 0, 2)), r"`boundary`.*Write Dirichlet\(c / a\)"),
    "nothing given": (lambda: diffuse(U, 1.0, CELLS, Robin(0, 0.0, 2)), "`boundary`.*b other than 0"),
    "long value": (lambda: laplacian(V, PLANE, Dirichlet(jnp.ones(3))), r"`boundary\.value`.*\(8,\).*\(3,\)"),
    "long slope": (lambda: laplacian(U, CELLS, Neumann(jnp.ones(2))), r"`boundary\.slope`.*\(2,\)"),
    "advection by slopes": (lambda: advect(U, 1.0, CELLS, Neumann()), "Dirichlet, Free for advect.*no Neumann"),
    "diffusion into nothing": (lambda: diffuse(U, 1.0, CELLS, Free()), "for diffuse.*no Free"),
    "odd order": (lambda: laplacian(U, RING, order=3), "`order`.*2, 4, 6.*3"),
    "coarse": (lambda: laplacian(U[:4], Grid((0, 1), 4), Neumann(), order=4), r"`grid\.n`.*at least 5.*axis 0.*is 4"),
    "coarse with given ends": (
        lambda: laplacian(U[:7], Grid((0, 1), 7), (Dirichlet(), Neumann()), order=6),
        r"`grid\.n`.*at least 8.*is 7",
    ),
    "coarse ring": (lambda: derivative(U[:4], Grid((0, 1), 4, periodic=True), order=4), r"`grid\.n`.*at least 5"),
    "one component": (lambda: divergence(V[None], PLANE, Free()), r"`v`.*\(\.\.\., 2, 8, 9\).*\(1, 8, 9\)"),
    "no component": (lambda: divergence(V, PLANE, Free()), r"`v`.*\(8, 9\)"),
    "gradient without a boundary": (lambda: gradient(V, PLANE), "`boundary`.*None"),
    "ends of cells": (lambda: impose(U, CELLS, Dirichlet()), r"`grid\.points`.*nodes.*cells"),
    "advection at nodes": (lambda: advect(U, 1.0, NODES, Free()), r"`grid\.points`.*cells for advect.*nodes"),
    "diffusion at nodes": (lambda: diffuse(U, 1.0, NODES, Neumann()), r"`grid\.points`.*cells for diffuse.*nodes"),
    "unknown limiter": (lambda: advect(U, 1.0, CELLS, Free(), limiter="vanleer"), "`limiter`.*'van_leer'"),
    "velocity of another grid": (lambda: advect(U, jnp.ones(7), CELLS, Free()), r"`velocity`.*\(8,\).*\(9,\).*\(7,\)"),
    "one velocity in the plane": (
        lambda: advect(V, 1.0, Grid([(0, 1), (0, 1)], [8, 9], points="cells"), Free()),
        "`velocity`.*2 axes.*has 1",
    ),
    "coefficients for too many": (lambda: diffuse(U, [1.0, 2.0], CELLS, Neumann()), "`coefficient`.*1 axes.*has 2"),
    "coefficients of more components": (
        lambda: diffuse(U, jnp.ones((3, 8)), CELLS, Neumann()),
        r"`coefficient`.*\(3, 8\)",
    ),
    "spectral with ends": (lambda: spectral_derivative(U, NODES), r"`grid\.periodic`.*axis 0.*Use finite differences"),
    "spectral with one end": (lambda: spectral_laplacian(V, PLANE), r"`grid\.periodic`.*axis 1"),
    "filter with ends": (lambda: dealias(U, CELLS), r"`grid\.periodic`.*dealias"),
    "half a derivative": (lambda: spectral_derivative(U, RING, times=0.5), r"`times`.*0\.5"),  # type: ignore[arg-type]
    "no derivative": (lambda: spectral_derivative(U, RING, times=0), "`times`.*0"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(case: str) -> None:
    assert_refused(*CASES[case])
