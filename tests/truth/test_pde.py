"""Operators on grids: orders of convergence, conservation, total variation, spectra and derivatives, against closed forms."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.ode import solve
from ops.pde import (
    LIMITERS,
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
    second_derivative,
    spectral_derivative,
    spectral_laplacian,
)
from ops.pde.differences import ORDERS
from ops.pde.grid import POINTS

LOW, HIGH, RATE = 0.2, 1.2, 2.7
FLOWS: dict[str, str | None] = {**{name: name for name in LIMITERS}, "upwind": None}
CONDITIONS = ("Dirichlet", "Neumann", "Robin", "Free", "mixed")


@pytest.fixture(autouse=True)
def _double() -> Any:
    with jax.enable_x64(True):
        yield


def field(x: Any) -> Any:
    """A function whose derivatives do not vanish where an error is looked for; its slope and curvature follow."""
    return jnp.exp(RATE * x) - 3 * x


def slope(x: Any) -> Any:
    return RATE * jnp.exp(RATE * x) - 3


def curvature(x: Any) -> Any:
    return RATE**2 * jnp.exp(RATE * x)


def given(kind: str, factor: Any = 1.0) -> Any:
    """Conditions at LOW and HIGH that `factor * field` satisfies."""

    def end(kind: str, x: float, sign: int) -> Any:
        u, outward = factor * field(x), factor * sign * slope(x)
        conditions = {
            "Dirichlet": Dirichlet(u),
            "Neumann": Neumann(outward),
            "Robin": Robin(2.0, 0.5, 2 * u + 0.5 * outward),
        }
        return conditions.get(kind, Free())

    both = ("Dirichlet", "Neumann") if kind == "mixed" else (kind, kind)
    return end(both[0], LOW, -1), end(both[1], HIGH, 1)


def largest(found: Any, exact: Any) -> Any:
    return jnp.max(jnp.abs(found - exact))


def convergence(coarse: dict[Any, Any], fine: dict[Any, Any], case: Any) -> float:
    """The order by the errors of a case on two grids, each beside its spacing."""
    (error, h), (smaller, shorter) = coarse[case], fine[case]
    return float(np.log(error / smaller) / np.log(h / shorter))


@cache
def differences(n: int) -> dict[Any, Any]:
    """The largest error of both derivatives for every layout, boundary and order, in one program."""
    spacings = {}

    def errors() -> Any:
        found = {}
        for points in POINTS:
            grid = Grid((LOW, HIGH), n, points=points)
            spacings[points] = grid.spacing[0]
            x = grid.coordinates()
            for kind in CONDITIONS:
                for order in ORDERS:
                    first = derivative(field(x), grid, given(kind), order=order)
                    second = second_derivative(field(x), grid, given(kind), order=order)
                    found[points, kind, order, 1] = largest(first, slope(x))
                    found[points, kind, order, 2] = largest(second, curvature(x))
        for points in ("nodes", "cells"):
            grid = Grid((0.0, 2 * np.pi), n, points=points, periodic=True)
            x = grid.coordinates()
            spacings[points, "periodic"] = grid.spacing[0]
            u = jnp.exp(jnp.sin(x))
            for order in ORDERS:
                found[points, "periodic", order, 1] = largest(derivative(u, grid, order=order), jnp.cos(x) * u)
                exact = (jnp.cos(x) ** 2 - jnp.sin(x)) * u
                found[points, "periodic", order, 2] = largest(second_derivative(u, grid, order=order), exact)
        return found

    errors_found = jax.jit(errors)()
    return {
        case: (float(e), spacings[case[:2]] if case[1] == "periodic" else spacings[case[0]])
        for case, e in errors_found.items()
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("kind", [*CONDITIONS, "periodic"])
def test_order_of_differences(kind: str, points: str, order: int) -> None:
    """At all points, the first and the last included, with every boundary."""
    if kind == "periodic" and points == "inner":
        assert Grid((0, 1), 8, points="inner", periodic=True).axes == Grid((0, 1), 8, periodic=True).axes
        return
    for times in (1, 2):
        found = convergence(differences(48), differences(72), (points, kind, order, times))
        assert found == pytest.approx(order, abs=0.2), f"derivative {times}"


@cache
def planar(n: int) -> dict[Any, Any]:
    """The largest errors in the plane: values along an end as arrays, one axis periodic or both with ends."""

    def errors() -> Any:
        found = {}
        for order in ORDERS:
            grid = Grid([(LOW, HIGH), (0.0, 2 * np.pi)], [n, n], points="cells", periodic=[False, True])
            x, y = grid.mesh()
            wave, wave_slope = jnp.exp(jnp.sin(y)), jnp.cos(y) * jnp.exp(jnp.sin(y))
            boundary = (given("Robin", wave[0]), None)
            u = field(x) * wave
            exact = (curvature(x) + field(x) * (jnp.cos(y) ** 2 - jnp.sin(y))) * wave
            found["laplacian", order] = largest(laplacian(u, grid, boundary, order=order), exact)
            exact_gradient = jnp.stack([slope(x) * wave, field(x) * wave_slope])
            found["gradient", order] = largest(gradient(u, grid, boundary, order=order), exact_gradient)
            grid = Grid([(LOW, HIGH)] * 2, [n, n])
            x, y = grid.mesh()
            v = jnp.stack([field(x) * field(y), 2 * field(x) * field(y)])
            along = given("Neumann", field(y[0])), given("Dirichlet", 2 * field(x[:, 0]))
            exact = slope(x) * field(y) + 2 * field(x) * slope(y)
            found["divergence", order] = largest(divergence(v, grid, along, order=order), exact)
        return found

    return {case: (float(error), 1 / n) for case, error in jax.jit(errors)().items()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("operator", ["laplacian", "gradient", "divergence"])
def test_order_in_the_plane(operator: str, order: int) -> None:
    found = convergence(planar(48), planar(72), (operator, order))
    assert found == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize("points", POINTS)
def test_laplacians_have_no_growing_modes(points: str) -> None:
    """No eigenvalue has a positive real part, for any order and boundary: u' = laplacian(u) decays."""
    grid = Grid((0.0, 1.0), 24, points=points)
    cases = (Dirichlet(), Neumann(), Robin(1.0, 1.0), (Dirichlet(), Neumann()))

    @jax.jit
    def matrices() -> Any:
        return [
            jax.jacfwd(lambda u, c=c, o=o: laplacian(u, grid, c, order=o))(jnp.zeros(24)) for c in cases for o in ORDERS
        ]

    for matrix in matrices():
        values = np.linalg.eigvals(matrix) * grid.spacing[0] ** 2
        assert values.real.max() < 1e-9
        assert values.real.min() < -3.5, "the shortest wave is damped"


def test_second_order_by_hand() -> None:
    """With a value of 1 and a slope of 2 at the ends: inner points see the value, cells a mirror image."""
    u = jnp.array([1.0, 4.0, 9.0, 16.0])
    assert laplacian(u, Grid((0, 5), 4, points="inner"), Dirichlet(0.0)).tolist()[1:3] == [2.0, 2.0]
    inner = laplacian(u, Grid((0, 5), 4, points="inner"), (Dirichlet(0.0), Dirichlet(25.0)))
    np.testing.assert_allclose(inner, [2.0] * 4, rtol=1e-14)
    nodes = laplacian(u, Grid((1, 4), 4), (Neumann(-2.0), Neumann(8.0)))
    np.testing.assert_allclose(nodes, [2.0] * 4, rtol=1e-14)


def test_nodes_take_the_given_values_whatever_the_array_holds() -> None:
    grid = Grid((0.0, 1.0), 12)
    exact, boundary = grid.coordinates() ** 2, (Dirichlet(0.0), Dirichlet(1.0))
    wrong = exact.at[0].set(7.0).at[-1].set(jnp.nan)
    np.testing.assert_array_equal(impose(wrong, grid, boundary), exact)
    np.testing.assert_allclose(laplacian(wrong, grid, boundary, order=4), np.full(12, 2.0), rtol=1e-10)


@pytest.mark.parametrize("points", POINTS)
def test_values_at_the_ends_that_depend_on_time(points: str) -> None:
    """u = exp(-t) cos x solves u_t = u_xx; its value is given at one end, its slope and value at the other."""
    grid = Grid((0.0, 1.0), 25, points=points)
    x = grid.coordinates()

    def vector_field(t: Any, u: Any, args: Any) -> Any:
        now = jnp.exp(-t)
        right = Robin(1.0, 2.0, now * (np.cos(1.0) - 2 * np.sin(1.0)))
        rate = laplacian(u, grid, (Dirichlet(now), right), order=6)
        return impose(rate, grid, (Dirichlet(-now), Free())) if points == "nodes" else rate

    found = jax.jit(lambda: solve(vector_field, jnp.cos(x), t1=0.5, rtol=1e-10, atol=1e-12))()
    assert int(found.status) == 0
    np.testing.assert_allclose(found.y, np.exp(-0.5) * np.cos(x), rtol=1e-8)


def averages(primitive: Any, grid: Grid) -> Any:
    """Of the cells, of the function with this primitive."""
    return jnp.diff(primitive(grid.faces())) / grid.spacing[0]


@cache
def flows(n: int) -> dict[Any, Any]:
    """The mean error of `advect` and `diffuse` for every limiter and boundary, in one program."""

    def speed(x: Any) -> Any:
        return 1 + 0.3 * jnp.sin(x)

    def primitive(x: Any) -> Any:
        return jnp.exp(RATE * x) / RATE - 1.5 * x**2

    def errors() -> Any:
        found = {}
        for flow, limiter in FLOWS.items():
            ring = Grid((0.0, 2 * np.pi), n, points="cells", periodic=True)
            u = averages(lambda x: 2 * x - jnp.cos(x), ring)
            exact = -averages(lambda x: speed(x) * (2 + jnp.sin(x)), ring)
            rate = advect(u, speed(ring.faces()), ring, limiter=limiter)
            found["advect", "periodic", flow] = jnp.mean(jnp.abs(rate - exact))
            grid = Grid((LOW, HIGH), n, points="cells")
            u = averages(primitive, grid)
            for side, sign, ends in (
                ("lower", 1.0, (Dirichlet(field(LOW)), Free())),
                ("upper", -1.0, (Free(), Dirichlet(field(HIGH)))),
            ):
                exact = -averages(lambda x, s=sign: s * speed(x) * field(x), grid)
                rate = advect(u, sign * speed(grid.coordinates()), grid, ends, limiter=limiter)
                found["advect", side, flow] = jnp.mean(jnp.abs(rate - exact))
        ring = Grid((0.0, 2 * np.pi), n, points="cells", periodic=True)
        u = averages(lambda x: 2 * x - jnp.cos(x), ring)
        exact = averages(lambda x: speed(x) * jnp.cos(x), ring)
        found["diffuse", "periodic", "faces"] = largest(diffuse(u, speed(ring.faces()), ring), exact)
        # The solution of (k u')' = f is what converges at the ends.
        for kind in ("Dirichlet", "Robin", "mixed"):
            boundary = given(kind)
            exact = averages(primitive, grid)
            for name, k in (("faces", speed(grid.faces())), ("cells", speed(grid.coordinates()))):
                operator = partial(diffuse, coefficient=k, grid=grid, boundary=boundary)
                zero = jnp.zeros(n)
                source = averages(lambda x: speed(x) * slope(x), grid)
                solution = jnp.linalg.solve(jax.jacfwd(operator)(zero), source - operator(zero))
                found["diffuse", kind, name] = largest(solution, exact)
        return found

    return {case: (float(error), 1 / n) for case, error in jax.jit(errors)().items()}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("inflow", ["periodic", "lower", "upper"])
def test_order_of_advection(inflow: str, flow: str) -> None:
    """In the mean: a limiter falls back to first order at an extremum, in two cells or so."""
    found = convergence(flows(80), flows(160), ("advect", inflow, flow))
    assert found == pytest.approx(1 if flow == "upwind" else 2, abs=0.2)


@pytest.mark.parametrize("case", ["periodic", "Dirichlet", "Robin", "mixed"])
def test_order_of_diffusion(case: str) -> None:
    for coefficient in ("faces",) if case == "periodic" else ("faces", "cells"):
        assert convergence(flows(80), flows(160), ("diffuse", case, coefficient)) == pytest.approx(2, abs=0.2)


def test_heat_flows_through_a_jump_of_the_coefficient() -> None:
    """Layers in series, k = 1 and 100: the flux is (1 - 0) / (0.5 / 1 + 0.5 / 100), exactly on any grid."""
    grid = Grid((0.0, 1.0), 8, points="cells")
    k = jnp.where(grid.coordinates() < 0.5, 1.0, 100.0)
    operator = partial(diffuse, coefficient=k, grid=grid, boundary=(Dirichlet(1.0), Dirichlet(0.0)))
    steady = np.linalg.solve(jax.jit(jax.jacfwd(operator))(jnp.zeros(8)), -operator(jnp.zeros(8)))
    flux = 1 / 0.505
    x = np.asarray(grid.coordinates())
    np.testing.assert_allclose(steady, np.where(x < 0.5, 1 - flux * x, flux * (1 - x) / 100), rtol=1e-12)


RANDOM = np.random.default_rng(5)


def test_the_total_changes_by_what_crosses_the_ends_alone() -> None:
    """To rounding, for any values, velocities and coefficients: on a ring and a torus, between walls, and with given fluxes."""
    ring = Grid((0.0, 1.0), 50, points="cells", periodic=True)
    torus = Grid([(0.0, 1.0), (0.0, 2.0)], [12, 9], points="cells", periodic=True)
    rod = Grid((0.0, 1.0), 50, points="cells")
    u, k = RANDOM.normal(size=(3, 50)), RANDOM.uniform(0.1, 1.0, 51)
    v, w = RANDOM.normal(size=51), RANDOM.normal(size=(2, 12, 9))
    walls = v.copy()
    walls[[0, -1]] = 0

    @jax.jit
    def totals() -> Any:
        found = {}
        for flow, limiter in FLOWS.items():
            found["ring", flow] = advect(u, v, ring, limiter=limiter).sum(-1) / 50
            found["torus", flow] = advect(w[0], (w[1], w[0]), torus, limiter=limiter).sum() / 108
            found["walls", flow] = advect(u, walls, rod, Free(), limiter=limiter).sum(-1) / 50
            through = advect(u, 0.5, rod, (Dirichlet(3.0), Free()), limiter=limiter).sum(-1) / 50
            out = u[:, -1] + (0 if limiter is None else (u[:, -1] - u[:, -2]) / 2)
            found["through", flow] = through - 0.5 * (3.0 - out)
        found["diffusion", "ring"] = diffuse(u, k, ring).sum(-1) / 50
        found["diffusion", "torus"] = diffuse(w[0], w[1] ** 2, torus).sum() / 108
        found["diffusion", "walls"] = diffuse(u, k, rod, Neumann(0.0)).sum(-1) / 50
        given = diffuse(u, k, rod, (Neumann(2.0), Neumann(-5.0))).sum(-1) / 50
        found["diffusion", "fluxes"] = given - (2.0 * k[0] - 5.0 * k[-1])
        return found

    for case, total in totals().items():
        assert np.abs(total).max() < 1e-11, case  # rates are of the size of 1e3 and 1e4


def variation(u: Any, *, ring: bool) -> Any:
    steps = np.diff(np.concatenate([u, u[..., :1]], -1) if ring else u, axis=-1)
    return np.abs(steps).sum(-1)


@pytest.mark.parametrize("velocity", [1.0, -1.0])
def test_total_variation_does_not_grow(velocity: float) -> None:
    """A square wave around a ring, and a step that comes in at an end, at the largest Courant number, in 120 steps."""
    ring = Grid((0.0, 1.0), 64, points="cells", periodic=True)
    rod = Grid((0.0, 1.0), 64, points="cells")
    step, x = 0.5 / 64, np.asarray(ring.coordinates())
    square = jnp.asarray(np.where(np.abs(x - 0.5) < 0.2, 1.0, 0.0))

    def path(operator: Any) -> Any:
        def heun(u: Any, _: Any) -> Any:
            first = operator(u)
            u = u + step / 2 * (first + operator(u + step * first))
            return u, u

        _, states = jax.lax.scan(heun, square, length=120)
        return jnp.concatenate([square[None], states])

    @jax.jit
    def paths() -> Any:
        around, into = {}, {}
        for flow, limiter in FLOWS.items():
            around[flow] = path(lambda u, f=limiter: advect(u, velocity, ring, limiter=f))
            into[flow] = path(lambda u, f=limiter: advect(u, velocity, rod, Dirichlet(1.0), limiter=f))
        return around, into, path(lambda u: -velocity * derivative(u, ring))

    around, into, central = paths()
    for flow in FLOWS:
        assert np.diff(variation(around[flow], ring=True)).max() < 1e-12
        assert around[flow].min() > -1e-12
        assert around[flow].max() < 1 + 1e-12
        inflow = np.ones((121, 1))
        beside = [inflow, into[flow]] if velocity > 0 else [into[flow], inflow]
        assert np.diff(variation(np.concatenate(beside, -1), ring=False)).max() < 1e-12
    assert variation(central, ring=True).max() > 3.0, "central differences do let it grow"
    exact = np.roll(square, round(velocity * 60))
    errors = {flow: float(np.abs(around[flow][-1] - exact).mean()) for flow in FLOWS}
    sharpest_last = ["upwind", "minmod", "van_leer", "mc", "superbee"]
    assert sorted(errors, key=lambda f: -errors[f]) == sharpest_last


def test_advection_in_the_plane_is_of_second_order() -> None:
    """A rotating shear on the torus: v = (cos y, 2 + sin x)."""

    def error(n: int) -> float:
        torus = Grid([(0.0, 2 * np.pi)] * 2, [n, n], points="cells", periodic=True)

        @jax.jit
        def mean_error() -> Any:
            x, y = torus.mesh()
            found = advect(jnp.sin(x + y), (jnp.cos(y), 2 + jnp.sin(x)), torus)
            return jnp.mean(jnp.abs(found + (jnp.cos(y) + 2 + jnp.sin(x)) * jnp.cos(x + y)))

        return float(mean_error())

    assert np.log2(error(40) / error(80)) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("n", [32, 33])
@pytest.mark.parametrize("points", ["nodes", "cells"])
def test_spectral_derivatives_are_exact_for_waves(points: str, n: int) -> None:
    grid = Grid((-1.0, 3.0), n, points=points, periodic=True)
    x, k = grid.coordinates(), 2 * np.pi / 4
    u = jnp.sin(5 * k * x + 0.3)
    found = jax.jit(lambda u: [spectral_derivative(u, grid, times=times) for times in (1, 2, 3)])(u)
    exact = jnp.cos(5 * k * x + 0.3)
    np.testing.assert_allclose(found[0], 5 * k * exact, atol=1e-11)
    np.testing.assert_allclose(found[1], -((5 * k) ** 2) * u, atol=1e-10)
    np.testing.assert_allclose(found[2], -((5 * k) ** 3) * exact, atol=1e-9)
    wave = jnp.exp(-3j * k * x)
    np.testing.assert_allclose(spectral_derivative(wave, grid), -3j * k * wave, atol=1e-11)


def test_spectral_errors_fall_faster_than_any_power() -> None:
    """Of exp(sin x), whose waves decay as 1 / (2^k k!)."""

    def error(n: int) -> float:
        grid = Grid((0.0, 2 * np.pi), n, periodic=True)
        x = grid.coordinates()
        u = jnp.exp(jnp.sin(x))
        return float(largest(spectral_derivative(u, grid), jnp.cos(x) * u))

    errors = [error(n) for n in (4, 8, 16, 32)]
    orders = np.log2(errors[:-1]) - np.log2(errors[1:])
    assert (np.diff(orders) > 3).all()
    assert errors[-1] < 1e-13


def test_the_highest_wave_has_no_odd_derivative() -> None:
    """(-1)^j is cos(n x / 2) at the points, whose slope is zero there."""
    grid = Grid((0.0, 2 * np.pi), 8, periodic=True)
    u = jnp.cos(4 * grid.coordinates())
    np.testing.assert_allclose(spectral_derivative(u, grid), np.zeros(8), atol=1e-13)
    np.testing.assert_allclose(spectral_derivative(u, grid, times=2), -16 * u, rtol=1e-13)


def test_spectral_laplacian_in_the_plane() -> None:
    grid = Grid([(0.0, 2 * np.pi), (0.0, np.pi)], [16, 12], periodic=True)
    x, y = grid.mesh()
    u = jnp.stack([jnp.sin(3 * x) * jnp.cos(4 * y), jnp.cos(x)])
    exact = jnp.stack([-25 * u[0], -u[1]])
    np.testing.assert_allclose(jax.jit(lambda u: spectral_laplacian(u, grid))(u), exact, atol=1e-12)


def test_dealiased_products_hold_no_aliases() -> None:
    """sin 7x squared is (1 - cos 14x) / 2; on 24 points cos 14x is the alias cos 10x, which the filter removes."""
    grid = Grid((0.0, 2 * np.pi), 24, periodic=True)
    u = jnp.sin(7 * grid.coordinates())
    np.testing.assert_allclose(dealias(u, grid), u, atol=1e-14)
    np.testing.assert_allclose(dealias(u * u, grid), np.full(24, 0.5), atol=1e-14)
    assert float(jnp.std(u * u)) > 0.3
    np.testing.assert_allclose(dealias(jnp.cos(8 * grid.coordinates()), grid), np.zeros(24), atol=1e-14)


def everything() -> dict[str, Any]:
    """Each operator once, as a function of values on 12 points and one number."""
    cells, nodes = Grid((0.0, 1.0), 12, points="cells"), Grid((0.0, 1.0), 12)
    inner, ring = Grid((0.0, 1.0), 12, points="inner"), Grid((0.0, 1.0), 12, points="cells", periodic=True)
    shape = jnp.linspace(1.0, 2.0, 13)
    cases: dict[str, Any] = {
        "Dirichlet": lambda u, p: laplacian(u, cells, Dirichlet(p), order=4),
        "Dirichlet at nodes": lambda u, p: derivative(u, nodes, Dirichlet(p), order=4),
        "Neumann": lambda u, p: laplacian(u, inner, Neumann(p), order=6),
        "Robin": lambda u, p: laplacian(u, inner, Robin(1.0 + p, p, p), order=4),
        "Robin at nodes": lambda u, p: derivative(u, nodes, (Robin(1.0, p, 2.0), Free())),
        "diffuse": lambda u, p: diffuse(u, shape.astype(u.dtype) * p, cells, (Robin(p, 1.0, p), Dirichlet(p))),
        "diffuse by cells": lambda u, p: diffuse(u, 1 + p * u**2, cells, Neumann(p)),
        "spectral": lambda u, p: p * spectral_derivative(u, ring) + spectral_laplacian(u, ring) + dealias(u, ring),
    }
    for flow, limiter in FLOWS.items():
        cases[f"advect {flow}"] = lambda u, p, f=limiter: advect(u, p, cells, (Dirichlet(p), Free()), limiter=f)
        cases[f"ring {flow}"] = lambda u, p, f=limiter: advect(u, -p * shape.astype(u.dtype), ring, limiter=f)
    return cases


VALUES = RANDOM.uniform(0.5, 1.5, (3, 12))


def test_derivatives_of_every_operator() -> None:
    """Forward and reverse mode agree to rounding, and with central differences, by the array and by a number."""
    u, p, h, along = jnp.asarray(VALUES[0]), 0.7, 1e-6, VALUES[1] - VALUES[2]

    @jax.jit
    def all_ways(u: Any, p: Any) -> Any:
        found = {}
        for name, f in everything().items():
            near = [(f(u + h * along, p + h * q) - f(u - h * along, p - h * q)) / (2 * h) for q in (0, 1)]
            found[name] = jax.jacfwd(f, (0, 1))(u, p), jax.jacrev(f, (0, 1))(u, p), near
        return found

    for name, (forward, reverse, near) in all_ways(u, p).items():
        scale = np.abs(forward[0]).max()
        for one, other in zip(forward, reverse, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * scale, err_msg=name)
        for q in (0, 1):
            np.testing.assert_allclose(forward[0] @ along + q * forward[1], near[q], atol=1e-6 * scale, err_msg=name)


def test_batches_and_precision() -> None:
    """Leading axes, and `vmap` over values and numbers: one answer; float32 stays float32."""
    u, p = jnp.asarray(VALUES), jnp.array([0.5, 0.7, 0.9])

    @jax.jit
    def all_ways(u: Any) -> Any:
        cases = everything()
        return {
            name: (f(u, p[1]), jax.vmap(f, (0, None))(u, p[1]), jax.vmap(f)(u, p)[1], f(u[1], p[1]))
            for name, f in cases.items()
        }

    for name, (leading, mapped, both, single) in all_ways(u).items():
        np.testing.assert_allclose(leading, mapped, rtol=1e-13, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(both, single, rtol=1e-13, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(leading[1], single, rtol=1e-13, atol=1e-10, err_msg=name)
    for name, f in everything().items():
        found = jax.eval_shape(f, jax.ShapeDtypeStruct((12,), jnp.float32), 0.5)
        assert (found.shape, found.dtype) == ((12,), jnp.float32), name


def test_values_of_conditions_along_an_end_are_those_of_each_row() -> None:
    grid, row = Grid([(0.0, 1.0), (0.0, 1.0)], [9, 5], points="cells"), Grid((0.0, 1.0), 9, points="cells")
    u, value = jnp.asarray(RANDOM.normal(size=(9, 5))), jnp.arange(5.0)
    whole = second_derivative(u, grid, (Dirichlet(value), Neumann()), order=4)
    rows = jax.vmap(lambda u, c: second_derivative(u, row, Dirichlet(c), order=4), (1, 0), 1)(u, value)
    np.testing.assert_allclose(whole, rows, rtol=1e-12)


def test_equal_grids_compile_once() -> None:
    traced = []

    @partial(jax.jit, static_argnums=1)
    def rate(u: Any, grid: Grid) -> Any:
        traced.append(grid)
        return laplacian(u, grid, Dirichlet(0.0))

    for grid in (Grid((0, 1), 8, points="inner"), Grid([(0.0, 1.0)], [8], points="inner", periodic=[False])):
        rate(jnp.ones(8), grid)
    assert len(traced) == 1


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_the_decay_of_a_mode_and_its_derivative_by_the_diffusivity(mode: Any) -> None:
    """sin(pi x) decays as exp(-lambda D t), lambda = (2 sin(pi h / 2) / h)^2 on inner points."""
    grid = Grid((0.0, 1.0), 9, points="inner")
    start = jnp.sin(jnp.pi * grid.coordinates())

    def middle(diffusivity: Any) -> Any:
        field = lambda t, u, d: d * laplacian(u, grid, Dirichlet(0.0))  # noqa: E731
        return solve(field, start, diffusivity, t1=0.1, rtol=1e-9, atol=1e-12, adjoint="direct", max_steps=256).y[4]

    rate = (2 * np.sin(np.pi / 20) / 0.1) ** 2 * 0.1
    value, slope = jax.jit(lambda d: (middle(d), mode(middle)(d)))(1.3)
    np.testing.assert_allclose(value, np.exp(-1.3 * rate), rtol=1e-8)
    np.testing.assert_allclose(slope, -rate * np.exp(-1.3 * rate), rtol=1e-7)
