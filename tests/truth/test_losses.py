"""Losses against SciPy, closed forms and loops by hand, with derivatives at the points where they are easily lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from engine.gradient_check import check_gradients
from ops import losses
from tests.project import Project

RNG = np.random.default_rng(0)
MODEL = RNG.uniform(1.0, 3.0, (4, 3))
DATA = np.abs(MODEL + RNG.normal(size=(4, 3))) + 0.1
COUNTS = RNG.poisson(MODEL)
GAPS = np.zeros((4, 3), bool)
GAPS[0, 1] = GAPS[2] = True
WITH_GAPS = np.where(GAPS, np.nan, DATA)
COVARIANCE = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 0.7]])


class Pair(NamedTuple):
    """A state of two parts."""

    a: Any
    b: Any


def test_least_squares() -> None:
    r = MODEL - DATA
    sigma = np.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(losses.sum_of_squares(MODEL, DATA), (r**2).sum(), rtol=1e-14)
    np.testing.assert_allclose(losses.sum_of_squares(MODEL, DATA, sigma=sigma), ((r / sigma) ** 2).sum(), rtol=1e-14)
    np.testing.assert_allclose(losses.mean_square(MODEL, DATA), (r**2).mean(), rtol=1e-14)
    np.testing.assert_allclose(losses.root_mean_square(MODEL, DATA), np.sqrt((r**2).mean()), rtol=1e-14)
    exact = sum(x @ np.linalg.solve(COVARIANCE, x) for x in r)
    np.testing.assert_allclose(losses.sum_of_squares(MODEL, DATA, covariance=COVARIANCE), exact, rtol=1e-13)


@pytest.mark.parametrize("loss", sorted(losses.ROBUST))
def test_robust_losses_are_those_of_scipy(loss: str) -> None:
    r = 3 * (MODEL - DATA).ravel()
    assert (abs(r) < 0.7).any() and (abs(r) > 0.7).any()
    if loss == "tukey":  # Beaton and Tukey (1974): c^2 / 6 (1 - (1 - (r / c)^2)^3), at most c^2 / 6
        exact = (0.7**2 / 6 * (1 - np.maximum(1 - (r / 0.7) ** 2, 0) ** 3)).sum()
    else:
        exact = optimize.least_squares(lambda x: r + 0 * x[0], [0.0], loss=loss, f_scale=0.7, max_nfev=1).cost
    np.testing.assert_allclose(losses.robust(3 * MODEL, 3 * DATA, loss=loss, scale=0.7), exact, rtol=1e-13)


def test_likelihoods_are_those_of_scipy() -> None:
    for found, exact in (
        (losses.normal(MODEL, DATA, sigma=2.0), stats.norm.logpdf(DATA, MODEL, 2.0)),
        (losses.student_t(MODEL, DATA, scale=0.5, df=3.0), stats.t.logpdf(DATA, 3.0, MODEL, 0.5)),
        (losses.log_normal(MODEL, DATA, sigma=0.5), stats.lognorm.logpdf(DATA, 0.5, scale=MODEL)),
        (losses.poisson(MODEL, COUNTS), stats.poisson.logpmf(COUNTS, MODEL)),
        (losses.binomial(MODEL / 4, COUNTS, trials=9), stats.binom.logpmf(COUNTS, 9, MODEL / 4)),
    ):
        np.testing.assert_allclose(found, -exact.sum(), rtol=1e-13)


def test_scores_by_hand() -> None:
    """d/dm of the five: (m - d) / s^2, (df + 1) r / (df s^2 + r^2), log(m / d) / (s^2 m), 1 - k / m, (n m - k) / (m (1 - m))."""
    r, p = MODEL - DATA, MODEL / 4
    cases: list[tuple[Any, Any, Any]] = [
        (lambda m: losses.normal(m, DATA, sigma=2.0), MODEL, r / 4),
        (lambda m: losses.student_t(m, DATA, scale=0.5, df=3.0), MODEL, 4 * r / (0.75 + r**2)),
        (lambda m: losses.log_normal(m, DATA, sigma=0.5), MODEL, 4 * np.log(MODEL / DATA) / MODEL),
        (lambda m: losses.poisson(m, COUNTS), MODEL, 1 - COUNTS / MODEL),
        (lambda m: losses.binomial(m, COUNTS, trials=9), p, (9 * p - COUNTS) / (p * (1 - p))),
    ]
    found = jax.jit(lambda at: [jax.grad(f)(m) for (f, _, _), m in zip(cases, at, strict=True)])(
        [m for _, m, _ in cases]
    )
    for slope, (_, _, exact) in zip(found, cases, strict=True):
        np.testing.assert_allclose(slope, exact, rtol=1e-12)
    by_sigma = jax.grad(lambda s: losses.normal(MODEL, DATA, sigma=s))(2.0)
    np.testing.assert_allclose(by_sigma, (1 / 2 - r**2 / 8).sum(), rtol=1e-13)


def test_what_is_missing_counts_nothing() -> None:
    kept = ~GAPS
    few = {"model": MODEL[kept], "data": DATA[kept]}
    sigma = np.where(GAPS, np.nan, 0.5)
    every: list[tuple[Any, Any]] = [
        (lambda m, d: losses.mean_square(m, d, missing="omit"), losses.mean_square(**few)),
        (lambda m, d: losses.robust(m, d, missing="omit"), losses.robust(**few)),
        (lambda m, d: losses.normal(m, d, sigma=sigma, missing="omit"), losses.normal(**few, sigma=0.5)),
        (lambda m, d: losses.log_normal(m, d, sigma=0.5, missing="omit"), losses.log_normal(**few, sigma=0.5)),
        (
            lambda m, d: losses.sum_of_squares(m, d, covariance=COVARIANCE, missing="omit"),
            sum(
                x[k] @ np.linalg.solve(COVARIANCE[np.ix_(k, k)], x[k]) for x, k in zip(MODEL - DATA, kept, strict=True)
            ),
        ),
    ]
    bad = MODEL.copy()
    bad[2, 0] = np.inf
    at_bad = jax.jit(lambda m: [f(m, WITH_GAPS) for f, _ in every])(bad)
    found = jax.jit(lambda m, d: [(f(m, d), jax.grad(f)(m, d)) for f, _ in every])(MODEL, WITH_GAPS)
    empty = jax.jit(lambda m, d: [f(m, d) for f, _ in every])(MODEL, np.full((4, 3), np.nan))
    for (value, slope), (_, exact) in zip(found, every, strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-13)
        assert np.isfinite(slope).all() and (slope[GAPS] == 0).all() and (slope[kept] != 0).all()
    assert np.isnan(at_bad).all(), "a model value that is no number is hidden by a gap"
    assert np.isnan(empty).all(), "no data, and yet a number"


def test_a_model_that_is_not_finite_is_never_hidden() -> None:
    """Bounded losses and counts of zero would do so."""
    for value in (np.nan, np.inf):
        model = MODEL.copy()
        model[1, 1] = value
        found = jax.jit(
            lambda m: [
                *(losses.robust(m, DATA, loss=loss) for loss in losses.ROBUST),
                losses.poisson(m, np.zeros((4, 3))),
                losses.binomial(m, np.zeros((4, 3)), trials=0),
            ]
        )(model)
        assert not np.isfinite(found).any()
    assert np.isnan(jax.jit(losses.sum_of_squares)(MODEL, WITH_GAPS)), "data missing, and not allowed to"


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_where_model_and_data_agree(mode: Any) -> None:
    """1/2 r^2 (1 + c r^2 + ...): the slope 0, the curvature 1 and the third derivative 0; a norm has the derivative 0."""

    @jax.jit
    def three(x: Any) -> Any:
        every = [lambda x, loss=loss: losses.robust(x, 2.0, loss=loss) for loss in losses.ROBUST]
        return [(mode(f)(x), jax.jacfwd(mode(f))(x), jax.jacfwd(jax.jacfwd(mode(f)))(x)) for f in every]

    np.testing.assert_allclose(three(2.0), [(0.0, 1.0, 0.0)] * len(losses.ROBUST), atol=1e-15)
    t = np.linspace(0.0, 1.0, 4)
    for f in (losses.root_mean_square, lambda m, d: losses.l2_distance(m, d, t)):
        np.testing.assert_array_equal(jax.jit(mode(f))(DATA, DATA), np.zeros((4, 3)))


def test_likelihoods_at_the_ends_of_what_is_possible() -> None:
    """p(0; rate) = exp(-rate), p(0; p) = (1 - p)^n, p(n; p) = p^n: all finite at the ends, as are their derivatives."""
    np.testing.assert_allclose(jax.grad(losses.poisson)(jnp.array([0.0, 2.0]), [0, 2]), [1.0, 0.0])
    by_p = jax.grad(lambda p: losses.binomial(p, [0, 3], trials=3))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(by_p, [3.0, -3.0])
    assert losses.poisson([0.0], [1]) == np.inf, "impossible"
    assert jax.jit(losses.poisson)(jnp.ones(1), jnp.array([0.5])) == np.inf, "no count"
    outside = losses.poisson([-1.0], [0]), losses.binomial([1.2], [3], trials=3), losses.binomial([-0.2], [0], trials=3)
    assert np.isnan(outside).all()
    assert losses.binomial([0.3], [0], trials=0) == 0
    of_sigma = jax.jit(lambda s: [losses.normal(MODEL, DATA, sigma=s), losses.sum_of_squares(MODEL, DATA, sigma=s)])
    assert np.isnan(of_sigma(-1.0)).all()


def test_pytrees_and_lists() -> None:
    model, data = Pair(MODEL, MODEL[0]), Pair(DATA, DATA[0])
    whole = ((MODEL - DATA) ** 2).sum() + 4 * ((MODEL - DATA)[0] ** 2).sum()
    np.testing.assert_allclose(losses.sum_of_squares(model, data, sigma=Pair(1.0, 0.5)), whole, rtol=1e-14)
    listed = [jnp.asarray(row) for row in MODEL]  # as wired in a config
    np.testing.assert_allclose(losses.sum_of_squares(listed, DATA.tolist()), ((MODEL - DATA) ** 2).sum(), rtol=1e-14)


def test_distance_over_time() -> None:
    """Of 3 t and t over (0, 2): sqrt(4 * 8 / 3) by the integral, and by the trapezoid rule what NumPy says."""
    t = np.sort(RNG.uniform(0.0, 2.0, 30))
    distance = jax.jit(losses.l2_distance, static_argnames=("missing", "squared"))
    found = distance(MODEL[:, 0], DATA[:, 0], t[:4])
    np.testing.assert_allclose(found**2, np.trapezoid((MODEL - DATA)[:, 0] ** 2, t[:4]), rtol=1e-14)
    fine = np.linspace(0.0, 2.0, 2001)
    np.testing.assert_allclose(distance(3 * fine, fine, fine), np.sqrt(32 / 3), rtol=1e-6)
    back = distance(3 * fine[::-1], fine[::-1], fine[::-1])
    np.testing.assert_allclose(back, np.sqrt(32 / 3), rtol=1e-6)
    gappy = np.where((fine > 0.9995) & (fine < 1.0005), np.nan, fine)
    found = distance(3 * fine, gappy, fine, missing="omit", squared=True)
    np.testing.assert_allclose(found, 32 / 3 - 4 * 0.002, rtol=1e-6)
    alternating = np.array([0.0, np.nan, 0.0, np.nan])
    assert np.isnan(distance(np.ones(4), alternating, np.arange(4), missing="omit")), "no interval left"
    nowhere = np.array([1.0, np.nan, 1.0, 1.0])
    assert np.isnan(distance(nowhere, 0 * nowhere, np.arange(4), missing="omit")), "hidden by a gap"


def aligned(x: Any, y: Any, gamma: float) -> Any:
    """The recursion of soft dynamic time warping, by loops."""
    best = np.full((len(x) + 1, len(y) + 1), np.inf)
    best[0, 0] = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            options = np.array([best[i, j], best[i, j + 1], best[i + 1, j]])
            best[i + 1, j + 1] = ((x[i] - y[j]) ** 2).sum() - gamma * np.logaddexp.reduce(-options / gamma)
    return best[-1, -1]


def test_warped_distance() -> None:
    x, y = RNG.normal(size=(7, 2)), RNG.normal(size=(5, 2))
    distance = jax.jit(jax.value_and_grad(lambda x, gamma: losses.soft_dtw(x, y, gamma=gamma)))
    for gamma in (1e-3, 0.5, 10.0):
        value, slope = distance(x, gamma)
        np.testing.assert_allclose(value, aligned(x, y, gamma), rtol=1e-12)
    h = 1e-5 * np.eye(14).reshape(14, 7, 2)
    differences = [(aligned(x + e, y, 10.0) - aligned(x - e, y, 10.0)) / 2e-5 for e in h]
    np.testing.assert_allclose(slope.ravel(), differences, rtol=1e-6, atol=1e-8)
    itself, slope = jax.jit(jax.value_and_grad(lambda z: losses.soft_dtw(z, x, divergence=True)))(x)
    np.testing.assert_allclose(itself, 0.0, atol=1e-13)
    np.testing.assert_allclose(slope, np.zeros((7, 2)), atol=1e-13)
    assert np.isnan(distance(np.where(x == x[3, 1], np.nan, x), 0.5)[0])


def test_as_a_stage(project: Project) -> None:
    """y = exp(-k t) against data with a gap: the loss, its gradient and Hessian by hand; finite differences agree."""
    project.model("""\
        import jax.numpy as jnp


        def decay(k):
            return jnp.exp(-k * jnp.array([0.0, 1.0, 2.0]))
    """).yaml("""\
        defaults: [engine, _self_]
        name: fit
        parameters: {k: 0.5}
        stages:
          decay: {_target_: model.decay}
          loss: {_target_: ops.losses.sum_of_squares, _inputs_: {model: decay}, data: [1.0, 0.5, null], missing: omit}
        outputs: [loss]
        sweep: {axes: {k: [0.5, 1.0]}}
        derivatives: {d: {of: loss, wrt: k}, h: {of: loss, wrt: k, kind: hessian}}
    """)
    ds = project.run()
    e = np.exp(-np.array([0.5, 1.0]))
    np.testing.assert_allclose(ds.loss, (e - 0.5) ** 2, rtol=1e-13)
    np.testing.assert_allclose(ds["d.k"], -2 * (e - 0.5) * e, rtol=1e-13)
    np.testing.assert_allclose(ds["h.k.k"], 2 * e**2 + 2 * (e - 0.5) * e, rtol=1e-13)
    assert [row.verdict for row in check_gradients(project.load())] == ["ok", "ok"]
