"""Standard errors at a least-squares optimum: NIST's certified ones, the closed form of a straight line, and what data cannot tell.

NIST Statistical Reference Datasets, nonlinear regression: https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml; parameters and standard
deviations are certified to 11 digits.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.estimation import Estimate, estimate
from tests.project import REPOSITORY

PROBLEMS = {p["id"]: p for p in json.loads((REPOSITORY / "tests/reference/problems.json").read_text(encoding="utf-8"))}
MISRA = PROBLEMS["inv_nist_misra1a_ode"]["data"]
RAT42 = PROBLEMS["inv_nist_rat42_ode"]["data"]
MGH09 = {
    "x": [4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625],
    "y": [0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246],
}
BOXBOD = {"x": [1, 2, 3, 5, 7, 10], "y": [109, 149, 149, 191, 213, 224]}

NIST: dict[str, tuple[Any, Any, list[float], list[float], float]] = {
    "Misra1a": (
        lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)), MISRA,
        [2.3894212918e2, 5.5015643181e-4], [2.7070075241, 7.2668688436e-6], 1.2455138894e-1,
    ),
    "Misra1b": (
        lambda b, x: b[0] * (1 - (1 + b[1] * x / 2) ** -2), MISRA,
        [3.3799746163e2, 3.9039091287e-4], [3.1643950207, 4.2547321834e-6], 7.5464681533e-2,
    ),
    "Misra1c": (
        lambda b, x: b[0] * (1 - (1 + 2 * b[1] * x) ** -0.5), MISRA,
        [6.3642725809e2, 2.0813627256e-4], [4.6638326572, 1.7728423155e-6], 4.0966836971e-2,
    ),
    "Misra1d": (
        lambda b, x: b[0] * b[1] * x / (1 + b[1] * x), MISRA,
        [4.3736970754e2, 3.0227324449e-4], [3.6489174345, 2.9334354479e-6], 5.6419295283e-2,
    ),
    "Rat42": (
        lambda b, x: b[0] / (1 + jnp.exp(b[1] - b[2] * x)), RAT42,
        [7.2462237576e1, 2.6180768402, 6.7359200066e-2], [1.7340283401, 8.8295217536e-2, 3.4465663377e-3], 8.0565229338,
    ),
    "MGH09": (
        lambda b, x: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]), MGH09,
        [1.9280693458e-1, 1.9128232873e-1, 1.2305650693e-1, 1.3606233068e-1],
        [1.1435312227e-2, 1.9633220911e-1, 8.0842031232e-2, 9.0025542308e-2], 3.0750560385e-4,
    ),
    "BoxBOD": (
        lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)), BOXBOD,
        [2.1380940889e2, 5.4723748542e-1], [1.2354515176e1, 1.0455993237e-1], 1.1680088766e3,
    ),
}  # fmt: skip


def fitted(model: Any, data: Any, b: Any, scales: Any, **settings: Any) -> Estimate:
    """The estimate at b, with derivatives in the variables b / scales."""
    x, y = (np.asarray(data[name], float) for name in ("x", "y"))
    weight = settings.pop("weight", 1.0)
    residuals = lambda b: (model(b, x) - y) * weight  # noqa: E731
    b = jnp.asarray(b, float)
    names = [f"b{i + 1}" for i in range(len(b))]
    jacobian = np.asarray(jax.jacfwd(residuals)(b)) * np.asarray(scales)
    return estimate(
        np.asarray(residuals(b)), jacobian, values=np.asarray(b), scales=np.asarray(scales), names=names, **settings
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", NIST)
def test_certified_standard_deviations(name: str, scaled: bool) -> None:
    model, data, b, deviations, rss = NIST[name]
    found = fitted(model, data, b, np.asarray(b) * [1e-3, 7.0, 1e4, 1.0][: len(b)] if scaled else np.ones(len(b)))
    np.testing.assert_allclose(found.sum_of_squares, rss, rtol=1e-9)
    np.testing.assert_allclose(found.standard_errors, deviations, rtol=1e-8)
    np.testing.assert_allclose(found.residual_deviation, np.sqrt(rss / (len(data["x"]) - len(b))), rtol=1e-9)
    np.testing.assert_allclose(np.diag(found.correlation), 1.0, rtol=1e-12)
    assert found.warnings == ()


def test_a_straight_line() -> None:
    """y = b1 + b2 x: var b2 = s^2 / Sxx, var b1 = s^2 (1/m + x̄^2 / Sxx), cov = -x̄ s^2 / Sxx; t(0.975, 3) = 3.1824463."""
    x, y = np.array([1.0, 2, 3, 4, 5]), np.array([1.1, 1.9, 3.2, 3.8, 5.1])
    slope, intercept = np.polyfit(x, y, 1)
    s2 = ((y - intercept - slope * x) ** 2).sum() / 3
    found = fitted(lambda b, x: b[0] + b[1] * x, {"x": x, "y": y}, [intercept, slope], [1.0, 1.0])
    expected = s2 / 10 * np.array([[10 / 5 + 9, -3], [-3, 1]])
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-12)
    half = 3.182446305284263 * np.sqrt(np.diag(expected))
    np.testing.assert_allclose(found.upper - found.values, half, rtol=1e-12)
    np.testing.assert_allclose(found.values - found.lower, half, rtol=1e-12)
    np.testing.assert_allclose(found.correlation[0, 1], -3 / np.sqrt(11), rtol=1e-12)
    # Given standard deviations are taken as they are, with the normal's quantile.
    known = fitted(
        lambda b, x: b[0] + b[1] * x, {"x": x, "y": y}, [intercept, slope], [1, 1], weight=1 / 0.2, known_sigma=True
    )
    np.testing.assert_allclose(known.covariance, expected / s2 * 0.04, rtol=1e-12)
    np.testing.assert_allclose((known.upper - known.values) / known.standard_errors, 1.959963984540054, rtol=1e-12)
    assert 0.3 < known.probability < 0.7


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Over 400 repetitions of a line measured with noise, 95 % +- 3 standard deviations of the count."""
    rng = np.random.default_rng(1)
    x = np.linspace(0, 1, 8)
    hits = 0
    for _ in range(400):
        y = 2 - 3 * x + 0.1 * rng.standard_normal(8)
        slope, intercept = np.polyfit(x, y, 1)
        jacobian = np.stack([np.ones(8), x], 1)
        found = estimate(
            intercept + slope * x - y,
            jacobian,
            values=np.array([intercept, slope]),
            scales=np.ones(2),
            names=["a", "b"],
        )
        hits += bool(found.lower[1] <= -3 <= found.upper[1])
    assert abs(hits - 380) <= 3 * np.sqrt(400 * 0.95 * 0.05)


X = np.linspace(0.5, 3, 6)
UNTOLD: dict[str, tuple[Any, list[float], str]] = {
    "product": (
        lambda b, x: b[0] * b[1] * x,
        [2.0, 5.0],
        "b1 and b2 cannot be told apart by these data: only their product is det",
    ),
    "quotient": (lambda b, x: jnp.exp(-b[0] / b[1] * x), [2.0, 5.0], "only their quotient is determined"),
    "sum": (lambda b, x: jnp.exp(-(b[0] + b[1]) * x), [0.2, 0.5], "only their sum is determined"),
    "difference": (lambda b, x: jnp.exp(-(b[1] - b[0]) * x), [0.2, 0.5], "only their difference is determined"),
    "either": (lambda b, x: b[0] * b[1] * x, [2.0, 2.0], "only their product \\(or, here the same, their sum\\) is"),
    "power": (lambda b, x: b[0] * b[1] ** 2 * x, [2.0, 5.0], "under \\+1 % of b1, -0.5 % of b2 together is determined"),
    "silent": (lambda b, x: b[0] * x + 0 * b[1], [2.0, 5.0], "b2 has no effect on what was measured"),
    "three": (
        lambda b, x: b[0] * b[1] * b[2] * x,
        [1.0, 2.0, 3.0],
        "b[12] and b[23] cannot be told apart by these data: only their product",
    ),
    "weak": (
        lambda b, x: b[0] * x + b[1] * x**1.0001,
        [1.0, 2.0],
        "can hardly be told apart by these data: little but their sum",
    ),
}


@pytest.mark.parametrize("scale", [1.0, 1e8])
@pytest.mark.parametrize("case", UNTOLD)
def test_what_data_cannot_tell(case: str, scale: float) -> None:
    """In words, whatever the scaling; standard errors are infinite, and a variable that does not take part keeps its own."""
    model, b, said = UNTOLD[case]
    y = np.asarray(model(jnp.asarray(b), X)) + 0.01 * np.cos(9 * X)
    scales = np.ones(len(b))
    scales[-1] = scale
    found = fitted(model, {"x": X, "y": y}, b, scales)
    assert re.search(said, found.warnings[0]), found.warnings
    if case != "weak":
        assert len(found.warnings) == len(b) - 1
        assert np.isinf(found.standard_errors[-1]) and np.isinf(found.upper[-1])
    if case == "silent":
        assert np.isfinite(found.standard_errors[0]) and np.isfinite(found.lower[0])


def test_a_variable_that_takes_no_part_keeps_its_error() -> None:
    model = lambda b, x: b[0] * b[1] * x + b[2] * x**2  # noqa: E731
    y = np.asarray(model(jnp.asarray([2.0, 5.0, 1.0]), X)) + 0.01 * np.cos(9 * X)
    three = fitted(model, {"x": X, "y": y}, [2.0, 5.0, 1.0], [1, 1, 1], known_sigma=True)
    two = fitted(lambda b, x: b[0] * x + b[1] * x**2, {"x": X, "y": y}, [10.0, 1.0], [1, 1], known_sigma=True)
    np.testing.assert_allclose(three.standard_errors[2], two.standard_errors[1], rtol=1e-9)
    assert np.isinf(three.standard_errors[:2]).all()


def test_a_variable_at_a_bound_is_held() -> None:
    """The others have the errors of a fit without it."""
    model = lambda b, x: b[0] + b[1] * x + b[2] * x**2  # noqa: E731
    y = 1 + 2 * X + 0.1 * np.cos(9 * X)
    held = fitted(model, {"x": X, "y": y}, [1.0, 2.0, 0.0], [1, 1, 1], fixed=np.array([False, False, True]))
    without = fitted(lambda b, x: b[0] + b[1] * x, {"x": X, "y": y}, [1.0, 2.0], [1, 1])
    np.testing.assert_allclose(held.standard_errors[:2], without.standard_errors, rtol=1e-12)
    assert np.isnan(held.standard_errors[2]) and np.isnan(held.covariance[2]).all()
    assert held.warnings == ("'b3': at a bound and held there; the other standard errors take it as known.",)
    everything = fitted(model, {"x": X, "y": y}, [1.0, 2.0, 0.0], [1, 1, 1], fixed=np.ones(3, bool))
    assert np.isnan(everything.standard_errors).all() and everything.degrees_of_freedom == 6


def test_too_few_values() -> None:
    line = lambda b, x: b[0] + b[1] * x  # noqa: E731
    found = fitted(line, {"x": [1.0, 2.0], "y": [1.0, 2.0]}, [0.0, 1.0], [1, 1])
    assert np.isnan(found.standard_errors).all()
    assert "2 values for 2 free variables" in found.warnings[0]
    known = fitted(line, {"x": [1.0, 2.0], "y": [1.0, 2.0]}, [0.0, 1.0], [1, 1], known_sigma=True)
    np.testing.assert_allclose(known.standard_errors, np.sqrt([5, 2]), rtol=1e-12)
    one = fitted(line, {"x": [1.0], "y": [1.0]}, [0.4, 0.6], [1, 1], known_sigma=True)
    assert np.isinf(one.standard_errors).all() and "only their sum is determined" in one.warnings[0]


def test_standard_deviations_that_are_too_small() -> None:
    y = 1 + 2 * X + 0.1 * np.cos(9 * X)
    found = fitted(
        lambda b, x: b[0] + b[1] * x, {"x": X, "y": y}, [1.0, 2.0], [1, 1], weight=1 / 0.01, known_sigma=True
    )
    assert found.probability < 1e-3 and "times as large as `sigma` says" in found.warnings[0]
