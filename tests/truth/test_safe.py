"""Functions at their singular points: the values of NumPy, and finite derivatives of every order and mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ops import safe

MODES = {"forward": jax.jacfwd, "reverse": jax.jacrev}
FINITE = st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-3)

VALUES = jax.jit(
    lambda x: (
        safe.norm(x),
        safe.norm(x, axis=-1),
        safe.norm(x, axis=0, keepdims=True),
        safe.sqrt(abs(x)),
        safe.log(abs(x)),
        safe.divide(2.0, x, at_zero=7.0),
    )
)


@pytest.fixture(autouse=True)
def _double() -> Any:
    with jax.enable_x64(True):
        yield


@settings(max_examples=30, deadline=None)
@given(x=arrays(float, (2, 3), elements=FINITE))
def test_values_are_those_of_numpy(x: Any) -> None:
    whole, rows, columns, root, log, ratio = VALUES(x)
    np.testing.assert_allclose(whole, np.sqrt((x**2).sum()), rtol=1e-14)
    np.testing.assert_allclose(rows, np.linalg.norm(x, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(columns, np.linalg.norm(x, axis=0, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(root, np.sqrt(abs(x)), rtol=1e-14)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log, np.log(abs(x)), rtol=1e-14)
        np.testing.assert_allclose(ratio, np.where(x == 0, 7.0, 2.0 / x), rtol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_at_the_singular_point_are_zero(mode: str) -> None:
    d = MODES[mode]
    for function, at in (
        (safe.norm, jnp.zeros(3)),
        (safe.sqrt, jnp.zeros(())),
        (safe.log, jnp.zeros(())),
        (lambda b: safe.divide(1.0, b), jnp.zeros(())),
    ):
        found = jax.jit(lambda x, f=function: [d(f)(x), *(outer(d(f))(x) for outer in MODES.values())])(at)
        assert all((derivative == 0).all() for derivative in found)


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_elsewhere_are_the_usual_ones(mode: str) -> None:
    d, x = MODES[mode], jnp.array([3.0, 0.0, -4.0])
    np.testing.assert_allclose(jax.jit(d(safe.norm))(x), x / 5, rtol=1e-14)
    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(d(safe.norm)))(x), (np.eye(3) - np.outer(x, x) / 25) / 5, rtol=1e-14, atol=1e-16
    )
    np.testing.assert_allclose(d(safe.sqrt)(9.0), 1 / 6, rtol=1e-15)
    np.testing.assert_allclose(d(safe.log)(4.0), 0.25, rtol=1e-15)
    np.testing.assert_allclose(jax.grad(safe.divide, (0, 1))(3.0, 2.0), (0.5, -0.75), rtol=1e-15)
    z = jnp.array([1 + 2j, 2 - 2j, 0])
    np.testing.assert_allclose(safe.norm(z), np.sqrt(13), rtol=1e-15)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_norms_of_tiny_and_huge_vectors(size: float) -> None:
    x = jnp.array([3.0, 4.0]) * size
    np.testing.assert_allclose(safe.norm(x), 5 * size, rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.grad(safe.norm))(x), [0.6, 0.8], rtol=1e-14)


def test_what_is_no_number_stays_so() -> None:
    assert np.isnan(safe.norm(jnp.array([0.0, jnp.nan]))) and safe.norm(jnp.array([jnp.inf, 0.0])) == jnp.inf
    assert np.isnan(safe.sqrt(-1.0)) and np.isnan(safe.log(-1.0)) and np.isnan(safe.divide(jnp.nan, 1.0))
    assert safe.norm(jnp.zeros((0,))) == 0 and safe.norm(jnp.array([3, 4])) == 5
    assert safe.sqrt(jnp.float32(2)).dtype == jnp.float32
