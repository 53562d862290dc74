"""Stochastic differential equations against their moments, their exact paths, and their orders of convergence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.gradient_check import check_gradients
from ops.adjoints import default_adjoint
from ops.brownian import BrownianPath
from ops.ode import FAILED, NONFINITE
from ops.sde import METHODS, USUAL, brownian_path, solve
from tests.project import REPOSITORY, Project


def keys(n: int, seed: int = 0) -> Any:
    return jax.random.split(jax.random.key(seed), n)


def within(samples: Any, exact: float) -> bool:
    """Whether a mean is right to three of its standard errors."""
    return bool(abs(samples.mean() - exact) <= 3 * samples.std(ddof=1) / len(samples) ** 0.5)


def products(x: Any, y: Any) -> Any:
    """Samples whose mean is the covariance of two."""
    return (x - x.mean()) * (y - y.mean())


def decay(t: Any, y: Any, args: Any) -> Any:
    return -args[0] * y


def constant(t: Any, y: Any, args: Any) -> Any:
    return args[1]


def growth(t: Any, y: Any, args: Any) -> Any:
    return args[0] * y


def proportional(t: Any, y: Any, args: Any) -> Any:
    return args[1] * y


# The path


def test_the_path_is_brownian_on_every_scale() -> None:
    """Cov(W(s), W(t)) = min(s, t), from 1e-6 to 1e6 and across the parts of which the path is made."""
    times = np.array([1e-6, 0.3, 0.7, 1.0, 1.5, 40.0, 1e6])
    w = np.asarray(jax.jit(jax.vmap(lambda key: brownian_path(key, times)))(keys(4000)))
    scaled = w / np.sqrt(times)
    for i, s in enumerate(times):
        assert within(scaled[:, i], 0.0)
        for j, t in enumerate(times[i:], i):
            assert within(scaled[:, i] * scaled[:, j], np.sqrt(s / t)), (s, t)
    assert abs(brownian_path(keys(1)[0], 0.0)) == 0


def test_increments_add_up_and_areas_have_their_law() -> None:
    """H ~ N(0, dt / 12), independent of W; over [a, c] both follow from [a, b] and [b, c] (Chen's relation).

    Across two parts of the path, and where the path is halved no more.
    """

    @jax.jit
    @jax.vmap
    def pieces(key: Any, dt: Any) -> Any:
        path = BrownianPath(key, 1.0, 1, jnp.dtype(float))
        a, b, c = 0.6, 0.6 + dt[0], 0.6 + dt[0] + dt[1]
        pairs = jnp.array([[a, b], [b, c], [a, c]])
        found: Any = jax.lax.map(lambda ends: path.evaluate(ends[0], ends[1], use_levy=True), pairs)
        return found.W[:, 0] / jnp.sqrt(dt.sum()), found.H[:, 0] / jnp.sqrt(dt.sum())

    for first, second in [(0.3, 0.5), (1.2e-7, 0.8e-7)]:
        w, h = map(np.asarray, pieces(keys(4000), np.broadcast_to([first, second], (4000, 2))))
        r, s = first / (first + second), second / (first + second)
        np.testing.assert_allclose(w[:, 2], w[:, 0] + w[:, 1], atol=1e-12)
        area = r * (w[:, 0] / 2 + h[:, 0]) + s * (w[:, 0] + w[:, 1] / 2 + h[:, 1])
        np.testing.assert_allclose(w[:, 2] / 2 + h[:, 2], area, atol=1e-6)
        for i, dt in enumerate([r, s, 1.0]):
            assert within(w[:, i] ** 2, dt)
            assert within(h[:, i] ** 2, dt / 12)
            assert within(h[:, i] * w[:, i], 0.0)
        for x, y in [(w, w), (w, h), (h, w), (h, h)]:
            assert within(x[:, 0] * y[:, 1], 0.0)


def test_a_path_depends_on_its_key_alone() -> None:
    """Not on the times that are saved, the end, the batch, or where a time lies between two steps."""
    args = (1.0, 0.3)

    def at(key: Any, **times: Any) -> Any:
        return solve(decay, constant, 1.0, args, key=key, step=0.25, **times).y

    several = keys(3)
    saved = np.asarray(jax.jit(jax.vmap(lambda key: at(key, ts=[0.0, 0.3, 1.0, 1.6])))(several))
    ended = jax.jit(lambda key, t: at(key, t1=t))  # the end unknown while it is traced, one path at a time
    for i, t in enumerate([0.3, 1.0, 1.6], 1):
        np.testing.assert_allclose([ended(key, t) for key in several], saved[:, i], rtol=1e-13)
    np.testing.assert_allclose(jax.jit(lambda key: at(key, t1=1.0))(several[1]), saved[1, 2], rtol=1e-13)
    assert (saved[:, 0] == 1).all()
    assert len(set(saved[:, 3])) == 3


MODEL = """\
    from ops.sde import Solution, solve


    def walk(start, key) -> Solution:
        return solve(lambda t, y, a: -y, lambda t, y, a: 0.3, start, key=key, t1=1.0, step=0.05)
"""
CONFIG = """\
    defaults: [engine, {scheduler: threads}, _self_]
    name: walk
    seed: 7
    parameters: {start: 1.0}
    stages: {walk: {_target_: model.walk}}
    outputs: {y: walk.y}
    sweep: {replicates: 4}
"""


def test_an_ensemble_depends_on_no_chunk_and_may_grow(project: Project) -> None:
    """SciML/DiffEqNoiseProcess.jl#123: sample i is the same for every chunk and scheduler, and when 4 paths become 8."""
    project.model(MODEL).yaml(CONFIG)

    def paths(chunk: int, scheduler: str, *more: str) -> Any:
        chosen = [f"execution.chunk={chunk}", f"scheduler={scheduler}", *more]
        return project.run(*chosen, store=f"{chunk}-{scheduler}-{len(more)}.zarr").y.values

    first = paths(4, "threads")
    assert len(set(first)) == 4
    for chunk, scheduler in [(1, "synchronous"), (2, "threads")]:
        np.testing.assert_allclose(paths(chunk, scheduler), first, rtol=1e-12)
    grown = paths(4, "synchronous", "sweep.replicates=8")
    np.testing.assert_allclose(grown[:4], first, rtol=1e-12)
    assert len(set(grown)) == 8


# Orders: of the differences between a step and half of it along the same path


def linear(t: Any, y: Any, args: Any) -> Any:
    return 0.5 * y


def strong_noise(t: Any, y: Any, args: Any) -> Any:
    return 0.6 * y


def bend(t: Any, y: Any, args: Any) -> Any:
    return jnp.sin(2 * y)


def rising(t: Any, y: Any, args: Any) -> Any:
    return 0.8 * (1 + t)


def faint(t: Any, y: Any, args: Any) -> Any:
    return 0.1 * (1 + t)


def area_drift(t: Any, y: Any, args: Any) -> Any:
    return jnp.zeros(2)


def area_noise(t: Any, y: Any, args: Any) -> Any:
    """dx = dV, dy = x dW: two noises that do not commute; y is their Lévy area, which no method here knows."""
    return jnp.array([[1.0, 0.0], [0.0, 0.0]]) + jnp.array([[0.0, 0.0], [0.0, 1.0]]) * y[0]


PROBLEMS: dict[str, Any] = {
    "additive": (bend, rising, 1.0, "additive"),
    "commutative": (linear, strong_noise, 1.0, "diagonal"),
    "additive, for the mean": (linear, faint, 1.0, "additive"),
    "general": (area_drift, area_noise, jnp.array([0.3, 0.0]), "general"),
}


def orders(method: str, noise: str, paths: int) -> tuple[float, float]:
    """The strong order, and that of the mean of the last component."""
    drift, diffusion, y0, kind = PROBLEMS[noise]
    calculus = METHODS[method].calculus

    def ends(step: Any) -> Any:
        found = lambda key: solve(  # noqa: E731
            drift, diffusion, y0, key=key, t1=1.0, step=step, method=method, calculus=calculus, noise=kind
        )
        return jax.vmap(lambda key: jnp.atleast_1d(found(key).y))(keys(paths))

    levels = np.arange(3, 7)
    y = np.asarray(jax.jit(lambda steps: jax.lax.map(ends, steps))(0.5**levels))
    difference = np.diff(y, axis=0)
    strong = np.sqrt((difference**2).sum(-1).mean(1))
    weak = np.abs(difference[..., -1].mean(1))
    slope = lambda error: -np.polyfit(levels[:-1], np.log2(error), 1)[0]  # noqa: E731
    return slope(strong), slope(weak)


@pytest.mark.parametrize(
    ("method", "noise"),
    [
        pytest.param(
            method, noise, marks=[] if (method, noise) in [("ito_milstein", "commutative")] else [pytest.mark.slow]
        )
        for method, known in METHODS.items()
        for noise in ("additive", "commutative", "general")
        if getattr(known, noise) is not None
    ],
)
def test_orders(method: str, noise: str) -> None:
    known = METHODS[method]
    strong, weak = orders(method, noise, 1000)
    assert abs(strong - getattr(known, noise)) < 0.2
    if noise == "additive" and known.commutative is None:
        _, weak = orders(method, "additive, for the mean", 1000)
    if noise == "commutative" or known.commutative is None:
        assert abs(weak - known.weak) < 0.2


def test_the_default_has_the_highest_order() -> None:
    for case, name in USUAL.items():
        noise, calculus = [*case.split(), None][:2]
        able = [m for m in METHODS.values() if calculus in (None, m.calculus) and getattr(m, noise) is not None]
        assert getattr(METHODS[name], noise) == max(getattr(m, noise) for m in able)


# Values


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return shipped(tmp_path_factory.mktemp("sde"), "geometric_brownian_motion")


def shipped(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


def test_a_share_has_its_moments_and_its_exact_path(shares: Any) -> None:
    """S(T) = S(0) exp((r - sigma^2 / 2) T + sigma W(T)); Milstein's scheme is as near as its step."""
    price, exact = shares.price.values, shares.exact.values
    assert within(exact, 100 * np.exp(0.05))
    assert within((exact - 100 * np.exp(0.05)) ** 2, 1e4 * np.exp(0.1) * np.expm1(0.04))
    assert within(np.log(exact / 100), 0.03)
    assert within(price, 100 * np.exp(0.05))
    error = np.sqrt(((price - exact) ** 2).mean())
    assert 0.01 < error < 0.1 * 0.05 * 100  # of order 1: a step of 0.05 year, in units of a tenth of the price


def test_a_call_is_worth_what_black_and_scholes_say(shares: Any) -> None:
    assert within(shares.call.values, 10.450583572185565)
    assert within(shares["dcall.spot"].values, 0.6368306511756191)
    assert within(shares["dcall.volatility"].values, 37.52403469169379)
    assert within(shares["dcall.rate"].values, 53.232481545376345)


def test_the_velocity_s_autocovariance_and_derivatives(tmp_path: Path) -> None:
    """The noise's part of every path is proportional to sigma, so that dv/dsigma = (v - mean) / sigma.

    The mean falls by 1 - gamma h + (gamma h)^2 / 2 in each step of the method, exp(-gamma h) to its order, and so does its derivative.
    """
    ds = shipped(tmp_path, "ornstein_uhlenbeck")
    t = ds.time.values
    for gamma in ds.gamma.values:
        v = ds.v.sel(gamma=gamma).values
        mean = 2 * np.exp(-gamma * t)
        variance = 0.12 * 1.5 / gamma * -np.expm1(-2 * gamma * t)
        for i in (2, 5, 15):
            assert within(v[:, i], mean[i])
            assert within(products(v[:, i], v[:, i]), variance[i])
        assert within(products(v[:, 2], v[:, 5]), np.exp(-gamma * (t[5] - t[2])) * variance[2])
        assert within(products(v[:, 12], v[:, 15]), np.exp(-gamma * 0.6) * 0.18 / gamma)
        still = ds["dv.sigma"].sel(gamma=gamma).values
        drift = v - 0.6 * still  # the path without noise
        np.testing.assert_allclose(drift, np.broadcast_to(drift[0], drift.shape), atol=1e-12)
        n, factor = t / 0.05, 1 - gamma * 0.05 + (gamma * 0.05) ** 2 / 2
        np.testing.assert_allclose(drift[0], 2 * factor**n, atol=1e-12)
        np.testing.assert_allclose(drift[0], mean, atol=0.02)
        by_gamma = 2 * n * factor ** (n - 1) * (gamma * 0.05**2 - 0.05)
        assert all(within(ds["dv.gamma"].sel(gamma=gamma).values[:, i], by_gamma[i]) for i in (2, 5, 15))


def test_calculi_differ_by_the_drift_between_them() -> None:
    """Stratonovich's X is S(0) exp(mu t + s W), Itô's has s^2 / 2 less in the exponent, along the same W; and the structures agree."""
    several = keys(8)

    def both(key: Any) -> Any:
        at = lambda calculus: solve(  # noqa: E731
            growth, proportional, 1.0, (0.5, 0.4), key=key, t1=1.0, step=1 / 64, calculus=calculus
        )
        return at("ito").y, at("stratonovich").y, brownian_path(key, 1.0)

    ito, stratonovich, w = map(np.asarray, jax.jit(jax.vmap(both))(several))
    np.testing.assert_allclose(stratonovich, np.exp(0.5 + 0.4 * w), rtol=1e-4)
    np.testing.assert_allclose(ito, np.exp(0.5 - 0.08 + 0.4 * w), rtol=2e-2)


def test_noise_of_every_shape() -> None:
    """The same equation, two components with one noise each, written as diagonal, as a matrix and as a dictionary."""
    s, y0 = jnp.array([0.3, 0.2]), jnp.array([1.0, 2.0])

    @jax.jit
    def ends(key: Any) -> Any:
        same: Any = {
            "args": (1.0,),
            "key": key,
            "t1": 1.0,
            "step": 0.25,
            "calculus": "stratonovich",
            "method": "euler_heun",
        }
        parts = solve(
            lambda t, y, a: {"a": -y["a"], "b": -y["b"]},
            lambda t, y, a: {"a": 0.3 * y["a"], "b": 0.2 * y["b"]},
            {"a": 1.0, "b": 2.0},
            **same,
        )
        found = (
            solve(decay, lambda t, y, a: s * y, y0, **same).y,
            solve(decay, lambda t, y, a: jnp.diag(s * y), y0, noise="general", **same).y,
            [parts.y["a"], parts.y["b"]],
        )
        one = (
            solve(decay, lambda t, y, a: s * y, y0, noise="scalar", **same).y,
            solve(decay, lambda t, y, a: (s * y)[:, None], y0, noise="commutative", **same).y,
        )
        return found, one

    (diagonal, matrix, parts), (scalar, column) = ends(keys(1)[0])
    np.testing.assert_allclose(matrix, diagonal, rtol=1e-13)
    np.testing.assert_allclose(parts, diagonal, rtol=1e-13)
    np.testing.assert_allclose(column, scalar, rtol=1e-13)
    assert abs(scalar[1] - diagonal[1]) > 1e-3


# Derivatives


def test_derivatives_are_those_of_the_same_recursion() -> None:
    """X <- X (1 - gamma h) + sigma dW, differentiated by complex steps; in both modes."""
    key, h = keys(1)[0], 0.125
    w = np.asarray(brownian_path(key, np.linspace(0, 1, 9)))

    def recursion(gamma: Any, sigma: Any) -> Any:
        x = 2.0
        for dw in np.diff(w):
            x = x * (1 - gamma * h) + sigma * dw
        return x

    def end(gamma: Any, sigma: Any) -> Any:
        return solve(decay, constant, 2.0, (gamma, sigma), key=key, t1=1.0, step=h, method="euler_maruyama").y

    exact = [np.imag(recursion(1.5 + 1e-30j, 0.6)) / 1e-30, np.imag(recursion(1.5, 0.6 + 1e-30j)) / 1e-30]
    np.testing.assert_allclose(jax.jit(jax.grad(end, (0, 1)))(1.5, 0.6), exact, rtol=1e-12)
    with default_adjoint("forward"):
        np.testing.assert_allclose(jax.jit(jax.jacfwd(end, (0, 1)))(1.5, 0.6), exact, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_converge_to_those_of_the_exact_path() -> None:
    """X = exp((mu - s^2 / 2) T + s W), dX/dmu = T X, dX/ds = (W - s T) X: the error halves with the step."""
    several = keys(200)

    def slopes(step: Any) -> Any:
        end = lambda args, key: solve(growth, proportional, 1.0, args, key=key, t1=1.0, step=step, adjoint="forward").y  # noqa: E731
        return jax.vmap(lambda key: jnp.stack(jax.jacfwd(end)((0.5, 0.4), key)))(several)

    steps = np.array([1 / 8, 1 / 16, 1 / 32])
    found = np.asarray(jax.jit(lambda steps: jax.lax.map(slopes, steps))(steps))
    w = np.asarray(jax.jit(jax.vmap(lambda key: brownian_path(key, 1.0)))(several))
    x = np.exp(0.5 - 0.08 + 0.4 * w)
    error = np.sqrt(((found - np.stack([x, (w - 0.4) * x], -1)) ** 2).mean(1))
    assert (error[0] < 0.3).all()
    for column in error.T:
        assert abs(-np.polyfit([3, 4, 5], np.log2(column), 1)[0] - 1) < 0.2


@pytest.mark.slow
def test_check_grad_agrees() -> None:
    few = ["stages.velocity.points=2", "stages.velocity.step=1.0"]
    plan = engine.load(
        REPOSITORY / "conf" / "ornstein_uhlenbeck.yaml", ["sweep.replicates=2", "sweep.axes.gamma=[1.5]", *few]
    )
    assert {row.derivative: row.verdict for row in check_gradients(plan)} == {"dv.sigma": "ok", "dv.gamma": "ok"}


# Failures


def test_a_path_that_fails_says_so() -> None:
    key = keys(1)[0]

    @jax.jit
    def status(rate: Any, end: Any) -> Any:
        found = solve(lambda t, y, a: a * y**3, lambda t, y, a: 0.1 * y, 1.0, rate, key=key, t1=end, step=0.1)
        return found.y, found.status

    for rate, end, expected in [(-1.0, 1.0, 0), (1e3, 9.0, NONFINITE), (np.nan, 1.0, NONFINITE), (-1.0, -1.0, FAILED)]:
        y, code = status(rate, end)
        assert int(code) == expected, (rate, end)
        assert bool(np.isfinite(y)) == (expected == 0)
