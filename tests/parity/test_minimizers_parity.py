"""Methods of a search against the libraries that they come from, in either precision; what SciPy's methods tell on the way."""

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
from scipy import optimize

from engine.evaluation import Box, Evaluation
from engine.methods import read_method
from engine.scipy_methods import search

START = [-1.2, 1.0]
EDGE = [0.5, 0.25]
"""The minimum of Rosenbrock's function where x <= 0.5: on the valley's floor y = x^2, with value 0.25."""

OURS = ("bfgs", "lbfgs", "nonlinear_cg", "levenberg_marquardt", "gauss_newton", "dogleg")


def residuals(z: Any) -> Any:
    """Of Rosenbrock's function: half their square is the objective."""
    return jnp.sqrt(2.0).astype(z.dtype) * jnp.stack([10 * (z[1] - z[0] ** 2), 1 - z[0]])


def evaluate(z: Any) -> Evaluation:
    r, jacobian = residuals(z), jax.jacfwd(residuals)(z)
    none = jnp.zeros(0, z.dtype)
    value = 0.5 * r @ r
    return Evaluation(value, jacobian.T @ r, r, jacobian, none, jnp.zeros((0, 2), z.dtype), jnp.isfinite(value))


def box_of(lower: Any, upper: Any, dtype: Any = jnp.float64) -> Box:
    ends = (jnp.broadcast_to(jnp.asarray(end, dtype), (2,)) for end in (lower, upper))
    return Box(*ends, jnp.zeros(0, dtype), jnp.zeros(0, dtype))


OPEN = box_of(-jnp.inf, jnp.inf)
BOUNDED = box_of([-2.0, -2.0], [0.5, 2.0])


def stepped(node: Any, box: Box, steps: int, dtype: Any = jnp.float64) -> list[Any]:
    """The iterates of so many steps, or until no more progress can be made."""
    method = read_method(
        node, bounds=box is not OPEN, constraints=False, residuals=True, starts=1, sweep=False, variables=2
    )
    z = jnp.asarray(START, dtype)
    state = method.init(z, evaluate(z), box)
    step = jax.jit(lambda state: method.step(state, evaluate, box))
    found: list[Any] = []
    while len(found) < steps and not (found and found[-1].stalled):
        state, iterate = step(state)
        found.append(jax.device_get(iterate))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(jax.device_get(state)))
    return found


TRANSFORMATIONS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "one that needs the value": (
        {"_target_": "optax.polyak_sgd", "max_learning_rate": 0.01},
        lambda: optax.polyak_sgd(max_learning_rate=0.01),
    ),
    "lbfgs without its line search": (
        {"_target_": "optax.lbfgs", "learning_rate": 0.1, "linesearch": None},
        lambda: optax.lbfgs(learning_rate=0.1, linesearch=None),
    ),
    "a chain with a schedule": (
        {
            "_target_": "optax.chain",
            "_args_": [
                {"_target_": "optax.clip_by_global_norm", "max_norm": 1.0},
                {"_target_": "optax.scale_by_adam"},
                {
                    "_target_": "optax.scale_by_learning_rate",
                    "learning_rate": {"_target_": "optax.cosine_decay_schedule", "init_value": 0.1, "decay_steps": 40},
                },
            ],
        },
        lambda: optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 40)),
        ),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_transformation_is_a_loop_of_optax(name: str) -> None:
    node, made = TRANSFORMATIONS[name]
    found = stepped(node, OPEN, 30)[-1]
    by_hand = optax.with_extra_args_support(made())
    z = jnp.asarray(START)
    state = by_hand.init(z)

    @jax.jit
    def step(z: Any, state: Any) -> Any:
        at = evaluate(z)
        updates, state = by_hand.update(at.gradient, state, z, value=at.value, grad=at.gradient)
        return optax.apply_updates(z, updates), state

    for _ in range(30):
        z, state = step(z, state)
    np.testing.assert_allclose(found.z, z, rtol=1e-7)


@pytest.mark.parametrize("solver", ["LevenbergMarquardt", "GaussNewton", "Dogleg"])
def test_a_fit_of_optimistix_ends_where_optimistix_does(solver: str) -> None:
    node = {"_target_": f"optimistix.{solver}", "rtol": 1e-9, "atol": 1e-9}
    found = stepped(node, OPEN, 100)[-1]
    made = getattr(optimistix, solver)(1e-9, 1e-9)
    right = optimistix.least_squares(lambda z, _: residuals(z), made, jnp.asarray(START))
    np.testing.assert_allclose(found.z, right.value, atol=1e-8)


@pytest.mark.parametrize("name", ["bfgs", "lbfgs", "nonlinear_cg"])
def test_a_bounded_search_ends_where_scipys_does(name: str) -> None:
    found = stepped(name, BOUNDED, 200)[-1]
    pair = jax.jit(lambda z: (evaluate(z).value, evaluate(z).gradient))
    right = optimize.minimize(
        lambda z: tuple(map(np.asarray, pair(z))),
        START,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-2, 0.5), (-2, 2)],
        options={"ftol": 0, "gtol": 1e-10},
    )
    np.testing.assert_allclose(right.x, EDGE, atol=1e-7)
    np.testing.assert_allclose(found.z, right.x, atol=1e-7)
    assert found.z[0] == 0.5


@pytest.mark.parametrize("name", OURS)
def test_single_precision_keeps_the_box_and_finds_the_minimum(name: str) -> None:
    """In single precision 0.1 is no number of its own: the bound is what it is rounded to, and no trial lies beyond it."""
    box = box_of([-2.0, -2.0], [0.1, 2.0], jnp.float32)
    found = stepped(name, box, 150, jnp.float32)
    for iterate in found:
        assert iterate.trial.dtype == iterate.evaluation.value.dtype == np.float32
        assert (iterate.trial >= box.lower).all() and (iterate.trial <= box.upper).all()
    np.testing.assert_allclose(found[-1].z, [0.1, 0.01], atol=2e-4)


@pytest.mark.parametrize("name", OURS)
def test_an_accepted_step_decreases_sufficiently(name: str) -> None:
    """By Armijo's test with 1e-4 of what the slope promises, until rounding hides the decrease."""
    z, at = np.array(START), jax.device_get(evaluate(jnp.asarray(START)))
    for iterate in stepped(name, OPEN, 60):
        promised = float(at.gradient @ (iterate.trial - z))
        gained = float(iterate.tried.value - at.value)
        if iterate.accepted:
            assert gained <= 1e-4 * promised * (1 - 1e-9) + 1e-11 * abs(float(at.value))
            np.testing.assert_array_equal(iterate.z, iterate.trial)
        else:
            np.testing.assert_array_equal(iterate.z, z)
        z, at = iterate.z, iterate.evaluation


class Stopped(Exception):
    """Raised by a caller."""


def told(name: str, most: int = 1000, steps: int = 500) -> tuple[Any, list[Any]]:
    """The outcome of a bounded search and what it told; the caller stops it after `most` iterates."""
    program = jax.jit(evaluate)
    seen: list[Any] = []

    def note(z: Any, at: Evaluation) -> None:
        seen.append((np.array(z), at))
        if len(seen) == most:
            raise Stopped

    def numbers(z: Any) -> Any:
        return jax.tree_util.tree_map(np.asarray, program(z))

    arrays = Box(*(np.asarray(end) for end in BOUNDED))
    return search(name, numbers, np.array(START), arrays, steps, 1e-8, note), seen


@pytest.mark.parametrize("name", ["lbfgsb", "slsqp", "trust_constr"])
def test_scipy_tells_each_iterate_with_its_own_evaluation(name: str) -> None:
    found, seen = told(name)
    np.testing.assert_allclose(found.z, EDGE, atol=1e-5)
    np.testing.assert_array_equal(seen[-1][0], found.z)
    for z, at in seen:
        assert (z >= BOUNDED.lower).all() and (z <= BOUNDED.upper).all()
        assert float(at.value) == pytest.approx(float(evaluate(jnp.asarray(z)).value), rel=1e-12)
    assert all(not np.array_equal(one[0], other[0]) for one, other in pairwise(seen))


@pytest.mark.parametrize("name", ["lbfgsb", "slsqp", "trust_constr"])
def test_what_the_caller_raises_ends_scipys_search(name: str) -> None:
    with pytest.raises(Stopped):
        told(name, most=3)
    found, seen = told(name, steps=4)
    assert len(seen) <= 5
    assert not found.success
