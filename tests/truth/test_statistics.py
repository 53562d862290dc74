"""Statistics against SciPy, closed forms and published values; what does not exist is NaN."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ops import statistics
from ops.lyapunov import lyapunov_flow, lyapunov_map

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)) ** 3
T = np.sort(RNG.uniform(0.0, 5.0, 30))
CONSTANT = np.full(7, 0.1)


def test_moments_are_those_of_scipy() -> None:
    for found, exact in (
        (statistics.mean(X), X.mean(0)),
        (statistics.variance(X, ddof=1), X.var(0, ddof=1)),
        (statistics.std(X, axis=1), X.std(1)),
        (statistics.skewness(X), stats.skew(X)),
        (statistics.kurtosis(X, axis=-1), stats.kurtosis(X, axis=-1)),
        (statistics.quantile(X, [0.1, 0.5, 1.0]), np.quantile(X, [0.1, 0.5, 1.0], axis=0)),
    ):
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert np.isnan([statistics.skewness(CONSTANT), statistics.kurtosis(CONSTANT)]).all()
    assert statistics.std(CONSTANT) == 0 and (jax.grad(statistics.std)(CONSTANT) == 0).all()


def test_moments_over_time() -> None:
    """Of sin t over whole periods: 0, 1/2, 0 and -3/2 whatever the spacing; integrals of what is there by the trapezoid rule."""
    t = 2 * np.pi * np.linspace(0.0, 1.0, 4001) ** 1.5
    found = [f(np.sin(t), t) for f in (statistics.mean, statistics.variance, statistics.skewness, statistics.kurtosis)]
    np.testing.assert_allclose(found, [0.0, 0.5, 0.0, -1.5], atol=1e-5)
    mean = np.trapezoid(X, T, axis=0) / (T[-1] - T[0])
    np.testing.assert_allclose(statistics.mean(X, T), mean, rtol=1e-13)
    np.testing.assert_allclose(statistics.mean(X[::-1], T[::-1]), mean, rtol=1e-13)
    spread = np.trapezoid((X - mean) ** 2, T, axis=0) / (T[-1] - T[0])
    np.testing.assert_allclose(statistics.variance(X, T), spread, rtol=1e-12)
    slope = jax.grad(lambda x: statistics.std(x, T))(X[:, 0])
    weights = np.convolve(np.diff(T), [0.5, 0.5]) / (T[-1] - T[0])
    np.testing.assert_allclose(slope, weights * (X[:, 0] - mean[0]) / np.sqrt(spread[0]), rtol=1e-11)


def test_quantiles_are_differentiated_through_the_sort() -> None:
    """The 0.3 quantile of five lies a fifth of the way from the second to the third."""
    slope = jax.grad(statistics.quantile)(jnp.array([4.0, 1.0, 3.0, 2.0, 5.0]), 0.3)
    np.testing.assert_allclose(slope, [0.0, 0.0, 0.2, 0.8, 0.0], atol=1e-15)
    tied = jax.grad(statistics.quantile)(jnp.array([2.0, 1.0, 2.0]), 0.5)
    np.testing.assert_array_equal(tied, [1.0, 0.0, 0.0])


def test_extremes_between_entries() -> None:
    """A parabola is found as it is, with dv/dc = 1 for v = c - (t - m)^2 and dt/dm = 1; a sine to the fourth power of the spacing."""

    def top(c: Any, m: Any) -> Any:
        return statistics.maximum(c - (T - m) ** 2, T)

    (value, at), slopes = jax.jit(lambda c, m: (top(c, m), jax.jacfwd(top, (0, 1))(c, m)))(3.0, 2.1)
    np.testing.assert_allclose([value, at], [3.0, 2.1], rtol=1e-12)
    np.testing.assert_allclose([slopes.value[0], slopes.value[1]], [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose([slopes.at[0], slopes.at[1]], [0.0, 1.0], atol=1e-10)
    t = np.linspace(0.3, 6.0, 58)
    high, low = statistics.maximum(np.sin(t), t), statistics.minimum(np.sin(t), t)
    np.testing.assert_allclose([high.value, low.value], [1.0, -1.0], atol=1e-5)
    np.testing.assert_allclose([high.at, low.at], [np.pi / 2, 3 * np.pi / 2], atol=1e-4)
    np.testing.assert_allclose(statistics.amplitude(np.sin(t), t), 1.0, atol=1e-5)
    assert statistics.maximum(np.sin(t), t, refine="none").value == np.sin(t).max()
    both = statistics.maximum(np.stack([t, -t]), t, axis=1)
    np.testing.assert_array_equal(both, [[6.0, -0.3], [6.0, 0.3]])
    assert np.isnan(statistics.maximum([0.0, 1.0, np.nan, 0.0])).all()
    np.testing.assert_array_equal(statistics.maximum([2.0, 2.0, 2.0]), [2.0, 0.0])


def test_of_tied_extremes_the_first_is_taken() -> None:
    tied = jnp.array([0.0, 2.0, 1.0, 2.0, 0.0])
    slope = jax.grad(lambda x: statistics.maximum(x, refine="none").value)(tied)
    np.testing.assert_array_equal(slope, [0.0, 1.0, 0.0, 0.0, 0.0])


def test_crossings_and_peaks() -> None:
    x = np.array([1.0, -1.0, 3.0, 0.0, 0.0, -2.0, 0.0])
    gap = np.array([-1.0, 1.0, 0.0, 2.0, 0.0, 1.0, np.nan])
    up, down, both, timed, tops, flat, gap_up, gap_tops = jax.jit(
        lambda x: (
            *(statistics.crossings(x, direction=direction) for direction in statistics.DIRECTIONS),
            statistics.crossings(x, np.arange(7.0) ** 2, level=1.0),
            statistics.peaks(np.array([0.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0])),
            statistics.peaks(np.array([2.0, 1.0, 1.0, 2.0])),
            statistics.crossings(gap),
            statistics.peaks(gap),
        )
    )(x)
    np.testing.assert_array_equal(up, [1.25, 6.0, *[np.nan] * 4])
    np.testing.assert_array_equal(down, [0.5, 4.0, *[np.nan] * 4])
    np.testing.assert_array_equal(both, [0.5, 1.25, 4.0, 6.0, *[np.nan] * 2])
    np.testing.assert_array_equal(timed, [2.5, *[np.nan] * 5])
    np.testing.assert_array_equal(tops, [3.5, *[np.nan] * 4])
    assert np.isnan(flat).all() and np.isnan(gap_up).all() and np.isnan(gap_tops).all()


KINDS = ("up", "down", "peaks")


def test_periods_and_their_derivatives() -> None:
    """Of 1 + cos(w t): 2 pi / w, and d/dw = -2 pi / w^2."""
    t = jnp.linspace(0.0, 20.0, 801)

    def periods(w: Any) -> Any:
        return jnp.stack([statistics.period(1 + jnp.cos(w * t + 0.3), t, of=of) for of in KINDS])

    value, slope = jax.jit(lambda w: (periods(w), jax.jacrev(periods)(w)))(2.0)
    np.testing.assert_allclose(value, [np.pi] * 3, rtol=1e-4)
    np.testing.assert_allclose(slope, [-np.pi / 2] * 3, rtol=1e-2)


def test_what_does_not_repeat_has_no_period() -> None:
    t = np.linspace(0.0, 1.0, 50)
    repeats = np.sin(60 * t)
    once = np.stack([repeats, t, np.sin(2 * t), np.cos(7 * t), np.ones(50), np.where(t > 0.5, np.nan, repeats)])
    found = jax.jit(lambda x: jnp.stack([statistics.period(x, t, of=of, axis=1) for of in KINDS]))(once)
    assert np.isfinite(found[:, 0]).all() and np.isnan(found[:, 1:]).all()


def test_autocovariance_by_its_definition() -> None:
    d = X - X.mean(0)
    exact = [(d[: 30 - k] * d[k:]).sum(0) / 30 for k in range(30)]
    np.testing.assert_allclose(statistics.autocovariance(X, 29), exact, atol=1e-12 * X.var())
    found = statistics.autocorrelation(X.T, 3, axis=1)
    np.testing.assert_allclose(found, np.array(exact)[:4] / exact[0], rtol=1e-10)
    assert np.isnan(statistics.autocorrelation(CONSTANT, 2)).all()


def test_sobol_indices_of_a_sum_and_a_product() -> None:
    """f = x + 2 y + 3 x y of normal x, y: mean 0, variance 1 + 4 + 9, first 1/14 and 4/14, total 10/14 and 13/14."""
    from numpy.polynomial.hermite_e import hermegauss

    def f(x: Any, y: Any) -> Any:
        return x + 2 * y + 3 * x * y

    points, weights = hermegauss(5)
    grid = statistics.sobol_indices_of_grid(f(*np.meshgrid(points, points, indexing="ij")), [weights, weights])
    exact = statistics.Sensitivity(0.0, 14.0, np.array([1, 4]) / 14, np.array([10, 13]) / 14)
    for part, wanted in zip(grid, exact, strict=True):
        np.testing.assert_allclose(part, wanted, atol=1e-13)
    a, b = RNG.normal(size=(2, 2, 100_000))
    sampled = statistics.sobol_indices(f(*a), f(*b), [f(b[0], a[1]), f(a[0], b[1])])
    for part, wanted in zip(sampled, exact, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=0.02, atol=0.02)
    assert np.isnan(statistics.sobol_indices(np.ones(3), np.ones(3), np.ones((1, 3))).first).all()


@pytest.mark.slow
def test_exponents_of_a_linear_flow() -> None:
    """The real parts of the eigenvalues of A: -1 and -a, and their derivatives by a."""

    def smaller(a: Any) -> Any:
        matrix = jnp.array([[-1.0, 3.0], [0.0, -a]])
        settings = {"t1": 60.0, "transient": 30.0, "interval": 5.0, "rtol": 1e-10}
        found = lyapunov_flow(lambda t, y, m: m @ y, [1.0, 1.0], matrix, count=2, **settings).exponents
        return found[1], found

    (_, values), slope = jax.jit(jax.value_and_grad(smaller, has_aux=True))(2.0)
    np.testing.assert_allclose(values, [-1.0, -2.0], atol=1e-6)
    np.testing.assert_allclose(slope, -1.0, atol=1e-5)


def test_exponents_of_maps() -> None:
    """x -> 4 x (1 - x): log 2. Henon's: 0.41922 (Sprott 2003), and log 0.3 for the sum. The cat map: log of (3 +- sqrt 5) / 2."""

    def henon(state: Any, b: Any) -> Any:
        return {"x": 1 - 1.4 * state["x"] ** 2 + state["y"], "y": b * state["x"]}

    logistic = lyapunov_map(lambda x, r: r * x * (1 - x), 0.3, 4.0, steps=20_000, transient=100)
    np.testing.assert_allclose(logistic.exponents, [np.log(2)], atol=2e-3)
    found = lyapunov_map(henon, {"x": 0.1, "y": 0.1}, 0.3, steps=20_000, transient=100, count=2)
    np.testing.assert_allclose(found.exponents[0], 0.41922, atol=4e-3)
    np.testing.assert_allclose(found.exponents.sum(), np.log(0.3), rtol=1e-12)
    np.testing.assert_allclose(found.exponents[0], found.rates[:, 0].mean(), rtol=1e-12)
    cat = lyapunov_map(
        lambda v, _: jnp.array([[2.0, 1.0], [1.0, 1.0]]) @ v % 1.0, [0.1, 0.2], steps=50, transient=30, count=2
    )
    np.testing.assert_allclose(cat.exponents, np.log((3 + np.sqrt([5, 5]) * [1, -1]) / 2), rtol=1e-12)


def test_what_escapes_has_no_exponent() -> None:
    found = lyapunov_map(lambda x, r: r * x * (1 - x), 0.3, 5.0, steps=100)
    assert np.isnan(found.exponents).all() and np.isnan(found.rates).all() and found.status == 3
    with_end = lyapunov_flow(lambda t, y, _: y * y, 1.0, t1=3.0, max_steps=300)  # y = 1 / (1 - t)
    assert np.isnan(with_end.exponents).all() and with_end.status != 0
