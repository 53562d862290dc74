"""`ops.roots.find_root` against closed forms: values, derivatives, and where there is no root to be had."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

import engine
from ops.ode import default_adjoint, solve
from ops.roots import METHODS, find_root
from tests.project import REPOSITORY

nan = math.nan


def square(y: Any, a: Any) -> Any:
    return y * y - a


def root_of(a: Any) -> Any:
    return find_root(square, 1.0, a).value


def test_square_root_and_its_derivatives() -> None:
    """sqrt(a), 1 / (2 sqrt(a)), -1 / (4 a**1.5), in every mode."""
    found = find_root(square, 1.0, 2.0)
    np.testing.assert_allclose(found.value, math.sqrt(2), rtol=1e-15)
    assert int(found.status) == 0
    assert found.error < 1e-15 and found.residual < 1e-15
    for derivative in (jax.grad, jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(root_of)(2.0), 0.5 / math.sqrt(2), rtol=1e-14)
    for second in (jax.hessian(root_of), jax.grad(jax.grad(root_of))):
        np.testing.assert_allclose(jax.jit(second)(2.0), -0.25 / 2**1.5, rtol=1e-13)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.hessian(root_of)))(2.0), 0.375 / 2**2.5, rtol=1e-12)


def test_lanes_without_a_root_say_so_and_harm_no_other() -> None:
    """a = 0 is the fold: the root is double, its derivative infinite."""
    a = jnp.array([4.0, 0.0, -1.0, nan, 9.0])
    found = jax.jit(jax.vmap(lambda a: find_root(square, 1.0, a)))(a)
    assert found.status.tolist() == [0, 4, 4, 3, 0]
    np.testing.assert_allclose(found.value, [2, nan, nan, nan, 3], rtol=1e-14)

    def total(shift: Any) -> Any:
        return jnp.nansum(jax.vmap(root_of)(jnp.array([4.0, 0.0, -1.0, 9.0]) + shift * jnp.array([1.0, 0.0, 1.0, 1.0])))

    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(total)(0.0), 1 / 4 + 1 / 6, rtol=1e-14)


def kepler(anomaly: Any, orbit: Any) -> Any:
    mean, eccentricity = orbit
    return anomaly - eccentricity * jnp.sin(anomaly) - mean


def test_keplers_equation_between_two_points() -> None:
    """dE/dM = 1 / (1 - e cos E), dE/de = sin E / (1 - e cos E); E(1, 0.9) from Newton's method with 30 digits."""

    def anomaly(orbit: Any) -> Any:
        return find_root(kepler, None, orbit, bracket=(0.0, 2 * math.pi))

    found = anomaly((1.0, 0.9))
    exact = 1.86208668687453
    assert int(found.status) == 0
    np.testing.assert_allclose(found.value, exact, rtol=1e-13)
    slope = 1 - 0.9 * math.cos(exact)
    by_mean, by_eccentricity = jax.grad(lambda orbit: anomaly(orbit).value)((1.0, 0.9))
    np.testing.assert_allclose([by_mean, by_eccentricity], [1 / slope, math.sin(exact) / slope], rtol=1e-13)
    means = jnp.linspace(0.0, 6.0, 50)
    every = jax.vmap(lambda m: anomaly((m, 0.99)))(means)
    assert (every.status == 0).all()
    np.testing.assert_allclose(every.value - 0.99 * np.sin(every.value), means, atol=1e-12)


def test_cubic_with_a_parameter() -> None:
    """y**3 - a y - 6 = 0 at a = 1 has y = 2, dy/da = y / (3 y**2 - a) = 2 / 11."""
    found, slope = jax.value_and_grad(
        lambda a: find_root(lambda y, a: y**3 - a * y - 6, None, a, bracket=(0.0, 5.0)).value
    )(1.0)
    np.testing.assert_allclose([found, slope], [2, 2 / 11], rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "bracket"),
    [
        (lambda x, a: jnp.tan(x), (1.0, 2.0)),
        (lambda x, a: 1 / (x - 0.3), (-1.0, 2.0)),
        (lambda x, a: jnp.where(x < 0.3, -1.0, 1.0) + 0.1 * x, (-1.0, 2.0)),
        (lambda x, a: x**3, (-1.0, 2.0)),
    ],
    ids=["pole", "simple pole", "jump", "triple root"],
)
def test_a_change_of_sign_that_is_no_root(function: Any, bracket: Any) -> None:
    """A pole and a jump are none; a triple root has no derivative."""
    found = find_root(function, bracket=bracket)
    assert int(found.status) in (2, 4)
    assert np.isnan(found.value)


def test_a_bracket_without_a_change_of_sign_is_a_status_where_it_is_traced() -> None:
    found = jax.vmap(lambda a: find_root(square, None, a, bracket=(0.0, 2.0)))(jnp.array([1.0, 5.0, nan, 4.0]))
    assert found.status.tolist() == [0, 4, 3, 0]
    np.testing.assert_allclose(found.value, [1, nan, nan, 2], rtol=1e-12)


@pytest.mark.parametrize("guess", [0.0, 1e-15, 1e-5, 1.0])
def test_no_derivative_at_a_bifurcation(guess: float) -> None:
    """At a = 0 the pitchfork's three roots meet in one, and the fold's two, wherever the guess is: never a number.

    The third function is the first one, flat by rounding: zero, with any slope, as far as 1e-8 from the root.
    """
    for function in (lambda y, a: y**3 - a * y, square, lambda y, a: -0.5 * y + (1 + a) * (y - y**3) / 2):
        value, slope = jax.value_and_grad(lambda a, f=function: find_root(f, guess, a).value)(0.0)
        assert np.isnan(value)
        assert slope == 0 or not np.isfinite(slope)
        assert int(find_root(function, guess, 0.0).status) in (2, 4)


def test_statuses_of_searches_that_end_nowhere() -> None:
    assert int(find_root(lambda y, a: jnp.exp(-y), 1.0).status) == 2  # runs away
    assert int(find_root(lambda y, a: jnp.log(y), -1.0).status) == 3
    assert int(find_root(square, 1.0, 2.0, max_steps=2).status) == 2
    assert np.isnan(find_root(square, 1.0, 2.0, max_steps=2).value)


def test_damping_converges_where_newtons_method_diverges() -> None:
    """arctan from beyond 1.39 (Deuflhard, section 3.1)."""
    found = find_root(lambda y, a: jnp.arctan(y), 20.0)
    assert int(found.status) == 0
    np.testing.assert_allclose(found.value, 0.0, atol=1e-12)


def rosenbrock(y: Any, a: Any) -> Any:
    return {"x": a - y["x"], "valley": 10 * (y["y"] - y["x"] ** 2)}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_on_a_system(method: str) -> None:
    """Rosenbrock's: x = a, y = a**2."""

    def point(a: Any) -> Any:
        return find_root(rosenbrock, {"x": -1.2, "y": 1.0}, a, method=method).value

    found = point(1.5)
    np.testing.assert_allclose([found["x"], found["y"]], [1.5, 2.25], rtol=1e-13)
    slope = jax.jacrev(point)(1.5)
    np.testing.assert_allclose([slope["x"], slope["y"]], [1.0, 3.0], rtol=1e-13)


def test_a_badly_scaled_system() -> None:
    """Powell's: 1e4 x y = 1, exp(-x) + exp(-y) = 1.0001 (More, Garbow and Hillstrom 1981, problem 3), in other units too."""

    def powell(y: Any, unit: Any) -> Any:
        return [unit * (1e4 * y[0] * y[1] - 1), (jnp.exp(-y[0]) + jnp.exp(-y[1]) - 1.0001) / unit]

    for unit in (1.0, 1e8):
        found = find_root(powell, [0.0, 1.0], unit)
        assert int(found.status) == 0
        np.testing.assert_allclose(found.value, [1.098159e-5, 9.106146], rtol=1e-6)


def test_a_solver_of_optimistix() -> None:
    found = find_root(square, 1.0, 2.0, method=optimistix.BestSoFarRootFinder(optimistix.Newton(1e-6, 1e-6)))
    np.testing.assert_allclose(found.value, math.sqrt(2), rtol=1e-15)


def test_single_precision() -> None:
    found = find_root(lambda y, a: jnp.exp(y) - a, jnp.float32(0.0), jnp.float32(2.0))
    assert found.value.dtype == jnp.float32 and int(found.status) == 0
    np.testing.assert_allclose(found.value, math.log(2), rtol=1e-6)


@pytest.mark.parametrize("mode", ["checkpointed", pytest.param("forward", marks=pytest.mark.slow)])
def test_a_root_of_a_solve(mode: str) -> None:
    """y' = -k y, y(1) = c: k = -log(c), dk/dc = -1 / c. Reverse mode passes a solve that has no other."""

    def rate(c: Any) -> Any:
        def misses(k: Any, _: Any) -> Any:
            return solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, rtol=1e-9, atol=1e-12).y - c

        return find_root(misses, 0.5, rtol=1e-8).value

    derivative = jax.jacfwd if mode == "forward" else jax.grad
    with default_adjoint(mode):
        values = jax.jit(jax.vmap(lambda c: (rate(c), derivative(rate)(c))))(jnp.array([0.3, 0.5]))
    np.testing.assert_allclose(values[0], [-math.log(0.3), -math.log(0.5)], rtol=1e-8)
    np.testing.assert_allclose(values[1], [-1 / 0.3, -1 / 0.5], rtol=1e-7)


def test_no_call_back_into_python_in_the_program() -> None:
    assert "callback" not in str(jax.make_jaxpr(jax.grad(root_of))(2.0))


@pytest.fixture(scope="module")
def mathieu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = tmp_path_factory.mktemp("mathieu") / "store.zarr"
    axes = ["sweep.axes.a=[-0.5,1.0,2.0,4.0]", "sweep.axes.q=[0.1,0.5,1.0,2.0]"]
    return engine.run(REPOSITORY / "conf" / "mathieu.yaml", [f"store.path={store}", *axes]).load()


@pytest.mark.slow
def test_edge_of_mathieus_first_tongue(mathieu: Any) -> None:
    """b1(q) of SciPy; b1'(0.1) of the power series 1 - q - q**2/8 + q**3/64 - q**4/1536 - 11 q**5/36864 (A & S 20.2.25)."""
    from scipy.special import mathieu_b

    exact = [mathieu_b(1, q) for q in mathieu.q.values]
    np.testing.assert_allclose(mathieu.edge.values, [exact] * 4, rtol=1e-9)
    q = 0.1
    series = -1 - q / 4 + 3 * q**2 / 64 - q**3 / 384 - 55 * q**4 / 36864
    np.testing.assert_allclose(mathieu["dedge.q"].values[:, 0], series, rtol=1e-8)


@pytest.mark.slow
def test_stability_of_mathieus_equation(mathieu: Any) -> None:
    """Inside the tongues of `scipy.special` solutions grow, elsewhere not; det M = 1."""
    from scipy.special import mathieu_a, mathieu_b

    assert np.abs(mathieu.imbalance).max() < 1e-8
    for q in mathieu.q.values:
        for a in mathieu.a.values:
            bounded = any(mathieu_a(r, q) < a < mathieu_b(r + 1, q) for r in range(4))
            assert bool(mathieu.multiplier.sel(a=a, q=q) == 1) == bounded


def test_trace_of_mathieus_monodromy_at_small_q() -> None:
    """d = 2 cos(pi sqrt(a)) at q = 0, with dd/da = -pi sin(pi sqrt(a)) / sqrt(a) and dd/dq = 0."""
    from pipelines.mathieu import stability

    a = 2.5
    with default_adjoint("forward"):
        trace, (by_a, by_q) = jax.jit(
            lambda a, q: (stability(a, q).trace, jax.jacfwd(lambda a, q: stability(a, q).trace, (0, 1))(a, q))
        )(a, 0.0)
    angle = math.pi * math.sqrt(a)
    np.testing.assert_allclose(trace, 2 * math.cos(angle), rtol=1e-9)
    np.testing.assert_allclose(by_a, -math.pi * math.sin(angle) / math.sqrt(a), rtol=1e-8)
    np.testing.assert_allclose(by_q, 0, atol=1e-8)


def test_a_guess_that_is_known_where_the_rest_is_traced() -> None:
    guess = jnp.ones(2)
    root = jax.jit(lambda a: find_root(lambda y, a: y * y - a, guess, a))(jnp.array([4.0, 9.0]))
    np.testing.assert_allclose(root.value, [2.0, 3.0], rtol=1e-12)
