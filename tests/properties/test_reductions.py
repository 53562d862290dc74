"""Laws of the reductions over a sweep: against NumPy, their weights against differences, and failed samples left out."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PlanError
from engine.reductions import Reduction, read_reduction

LOSSES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12, unique=True)
KINDS = [
    Reduction("mean"),
    Reduction("sum"),
    Reduction("max"),
    Reduction("quantile", 0.3),
    Reduction("quantile", 1.0),
    Reduction("cvar", 0.0),
    Reduction("cvar", 0.7),
]


def by_hand(reduction: Reduction, losses: np.ndarray) -> float:
    """The definitions: NumPy's quantile, and the mean of the worst part of the samples."""
    if reduction.kind == "quantile":
        return float(np.quantile(losses, reduction.level))
    if reduction.kind == "cvar":
        tail = (1 - reduction.level) * len(losses)
        worst = np.sort(losses)[::-1]
        whole = int(np.floor(tail + 1e-12))
        rest = (tail - whole) * worst[whole] if whole < len(losses) else 0.0
        return float((worst[:whole].sum() + rest) / tail)
    return float(getattr(np, reduction.kind)(losses))


@pytest.mark.parametrize("reduction", KINDS, ids=str)
@given(losses=LOSSES)
def test_reductions_are_those_of_the_definitions(reduction: Reduction, losses: list[float]) -> None:
    values = np.array(losses)
    found = float(reduction(jnp.asarray(values), jnp.ones(len(values), bool)))
    np.testing.assert_allclose(found, by_hand(reduction, values), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("reduction", KINDS, ids=str)
@given(losses=LOSSES, seed=st.integers(0, 2**16))
def test_what_does_not_count_changes_nothing(reduction: Reduction, losses: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.array(losses)
    places = np.sort(random.choice(2 * len(values), len(values), replace=False))
    padded, counts = random.choice([np.nan, np.inf, 1e9], 2 * len(values)), np.zeros(2 * len(values), bool)
    padded[places], counts[places] = values, True
    whole = reduction(jnp.asarray(values), jnp.ones(len(values), bool))
    assert float(reduction(jnp.asarray(padded), jnp.asarray(counts))) == pytest.approx(
        float(whole), rel=1e-12, abs=1e-9
    )
    weights = np.asarray(reduction.weights(jnp.asarray(padded), jnp.asarray(counts)))
    assert np.isfinite(weights).all()
    assert not weights[~counts].any()


@pytest.mark.parametrize("reduction", KINDS, ids=str)
@given(losses=LOSSES)
def test_weights_are_the_derivative(reduction: Reduction, losses: list[float]) -> None:
    """By Euler's theorem for functions that scale with their argument: their sum with the losses is the value."""
    values = jnp.asarray(losses)
    counts = jnp.ones(len(losses), bool)
    weights = reduction.weights(values, counts)
    np.testing.assert_allclose(float(weights @ values), float(reduction(values, counts)), rtol=1e-9, atol=1e-6)
    if reduction.kind != "sum":
        assert float(jnp.sum(weights)) == pytest.approx(1.0, rel=1e-9)


def test_no_sample_gives_no_number() -> None:
    for reduction in KINDS:
        assert np.isnan(float(reduction(jnp.array([1.0, 2.0]), jnp.zeros(2, bool))))


@pytest.mark.parametrize(
    ("node", "over", "said"),
    [
        ("median", True, "must be mean, max, sum, {quantile: 0.95} or {cvar: 0.95}, but is 'median'"),
        ({"cvar": 1.0}, True, "`optimize.reduce.cvar` must be a level from 0 to below 1, but is 1.0"),
        ({"quantile": "x"}, True, "`optimize.reduce.quantile` must be a level from 0 to 1, but is 'x'"),
        ({"cvar": 0.5}, False, "needs `over: sweep`"),
    ],
)
def test_other_reductions_are_refused(node: object, over: bool, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_reduction(node, over)
    assert said in str(caught.value)
