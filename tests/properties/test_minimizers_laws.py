"""Laws of the methods of a search: the box is never left, bad evaluations leave no trace, neighbours do not matter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from engine.evaluation import Box, Evaluation
from engine.methods import read_method

GRADIENT = ("bfgs", "lbfgs", "nonlinear_cg", "adam", "sgd", "rmsprop")
RESIDUALS = ("levenberg_marquardt", "gauss_newton", "dogleg")
MONOTONE = ("bfgs", "lbfgs", "nonlinear_cg", *RESIDUALS)
SEEDS = st.integers(0, 2**16)
N = 3


def method_of(node: Any, bounds: bool = True) -> Any:
    return read_method(
        node, bounds=bounds, constraints=False, residuals=node in RESIDUALS, starts=1, sweep=False, variables=N
    )


def valley(seed: int, hole: bool = False, dtype: Any = jnp.float64) -> tuple[Callable[[Any], Evaluation], Box, Any]:
    """A stretched, turned valley with its minimum inside or outside a box, as residuals; it may be NaN in a part of the box."""
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(N, N)))[0]
    matrix = jnp.asarray(turn @ np.diag([1.0, 3.0, 10.0]) @ turn.T, dtype)
    centre, corner = random.uniform(-2, 2, N), random.uniform(-1, 1, N)
    lower, upper = corner - random.uniform(0.5, 2, N), corner + random.uniform(0.5, 2, N)
    wall = float(lower[0] + random.uniform(0.2, 0.6) * (upper[0] - lower[0]))
    middle = jnp.asarray(centre, dtype)

    def residuals(z: Any) -> Any:
        r = matrix @ (z - middle) + 0.1 * jnp.sin(z)
        return jnp.where(z[0] > wall, jnp.nan, r) if hole else r

    def evaluate(z: Any) -> Evaluation:
        r, jacobian = residuals(z), jax.jacfwd(residuals)(z)
        value, gradient = 0.5 * r @ r, jacobian.T @ r
        fine = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        return Evaluation(value, gradient, r, jacobian, jnp.zeros(0, dtype), jnp.zeros((0, N), dtype), fine)

    box = Box(jnp.asarray(lower, dtype), jnp.asarray(upper, dtype), jnp.zeros(0, dtype), jnp.zeros(0, dtype))
    start = jnp.asarray(lower + (upper - lower) * random.choice([0.0, 0.1, 0.15], N), dtype)
    return evaluate, box, jnp.clip(start, box.lower, box.upper)


def searched(method: Any, evaluate: Any, box: Box, start: Any, steps: int) -> list[tuple[Any, Any]]:
    """The states and iterates of so many steps."""
    state = method.init(start, evaluate(start), box)
    step = jax.jit(lambda state: method.step(state, evaluate, box))
    found = []
    for _ in range(steps):
        state, iterate = step(state)
        found.append((jax.device_get(state), jax.device_get(iterate)))
    return found


@pytest.mark.parametrize("name", [*GRADIENT, *RESIDUALS])
@given(seed=SEEDS)
@settings(max_examples=3)
def test_the_box_is_kept_and_a_bad_trial_is_taken_back_and_shortened(name: str, seed: int) -> None:
    evaluate, box, start = valley(seed, hole=True)
    steps = searched(method_of(name), evaluate, box, start, 25)
    before = np.asarray(start)
    for state, iterate in steps:
        assert (iterate.trial >= box.lower).all()
        assert (iterate.trial <= box.upper).all()
        assert iterate.evaluation.fine
        for leaf in jax.tree_util.tree_leaves((state, iterate.z)):
            assert not np.isnan(leaf).any()
        if not iterate.tried.fine:
            np.testing.assert_array_equal(iterate.z, before)
        before = iterate.z
    for (_, bad), (_, after) in pairwise(steps):
        if not bad.tried.fine:
            assert np.linalg.norm(after.trial - bad.z) <= 0.75 * np.linalg.norm(bad.trial - bad.z)


@pytest.mark.parametrize("name", ["bfgs", "adam", "levenberg_marquardt"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_state_keeps_its_shapes_and_types(name: str, dtype: str) -> None:
    evaluate, box, start = valley(1, dtype=jnp.dtype(dtype))
    method = method_of(name)
    state = method.init(start, evaluate(start), box)
    after = jax.eval_shape(lambda state: method.step(state, evaluate, box)[0], state)
    assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(after)
    for one, other in zip(jax.tree_util.tree_leaves(state), jax.tree_util.tree_leaves(after), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.dtype.kind != "f" or one.dtype == dtype


@pytest.mark.parametrize("name", MONOTONE)
@given(seed=SEEDS)
@settings(max_examples=3)
def test_the_bounded_minimum_is_found_from_bounds_too(name: str, seed: int) -> None:
    evaluate, box, start = valley(seed)
    steps = searched(method_of(name), evaluate, box, start, 60)
    values = [float(iterate.evaluation.value) for _, iterate in steps]
    assert all(b <= a + 2e-12 * abs(a) for a, b in pairwise(values))
    pair = jax.jit(lambda z: (evaluate(z).value, evaluate(z).gradient))
    right = minimize(
        lambda z: tuple(map(np.asarray, pair(z))),
        np.asarray(start),
        jac=True,
        bounds=list(zip(box.lower, box.upper, strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500},
    )
    last = steps[-1][1]
    left = last.z - np.clip(last.z - last.evaluation.gradient, box.lower, box.upper)
    assert np.max(np.abs(left)) < 1e-5
    assert values[-1] <= float(right.fun) * (1 + 1e-8) + 1e-12  # SciPy's search may end early, by its own line search


@pytest.mark.parametrize("name", ["bfgs", "lbfgs", "adam", "levenberg_marquardt"])
@given(seed=SEEDS)
@settings(max_examples=2)
def test_neighbours_do_not_matter(name: str, seed: int) -> None:
    evaluate, box, start = valley(seed, hole=True)
    method = method_of(name)
    starts = start + jnp.linspace(0.0, 0.1, 4)[:, None] * (box.upper - box.lower)
    state = jax.vmap(lambda z: method.init(z, evaluate(z), box))(starts)
    step = jax.jit(jax.vmap(lambda state: method.step(state, evaluate, box)))
    for _ in range(12):
        state, together = step(state)
    for i, one in enumerate(starts):
        alone = searched(method, evaluate, box, one, 12)[-1][1]
        np.testing.assert_allclose(alone.z, together.z[i], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_an_optax_method_is_a_loop_of_optax(name: str) -> None:
    evaluate, box, start = valley(7)
    open_box = box._replace(lower=-jnp.inf * jnp.ones(N), upper=jnp.inf * jnp.ones(N))
    schedule = {"_target_": "optax.exponential_decay", "init_value": 0.02, "transition_steps": 5, "decay_rate": 0.9}
    method = method_of({"_target_": f"optax.{name}", "learning_rate": schedule}, bounds=False)
    found = searched(method, evaluate, open_box, start, 30)[-1][1]
    by_hand = getattr(optax, name)(optax.exponential_decay(0.02, 5, 0.9))
    z, state = start, by_hand.init(start)
    for _ in range(30):
        updates, state = by_hand.update(evaluate(z).gradient, state, z)
        z = optax.apply_updates(z, updates)
    np.testing.assert_allclose(found.z, z, rtol=1e-7)  # schedules count in single precision


def test_a_chain_of_optax_is_built_from_targets() -> None:
    clip = {"_target_": "optax.clip_by_global_norm", "max_norm": 1.0}
    adam = {"_target_": "optax.adam", "learning_rate": 0.1}
    evaluate, box, start = valley(3)
    steps = searched(method_of({"_target_": "optax.chain", "_args_": [clip, adam]}), evaluate, box, start, 60)
    assert float(steps[-1][1].evaluation.value) < float(steps[0][1].evaluation.value)


def test_an_optimistix_method_arrives_where_optimistix_does() -> None:
    evaluate, box, start = valley(5)
    method = method_of({"_target_": "optimistix.BFGS", "rtol": 1e-9, "atol": 1e-9}, bounds=False)
    found = searched(method, evaluate, box, start, 60)[-1][1]
    right = optimistix.minimise(lambda z, _: evaluate(z).value, optimistix.BFGS(1e-9, 1e-9), start)
    np.testing.assert_allclose(found.z, right.value, atol=1e-6)
