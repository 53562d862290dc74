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
        safe.hypot(x[0], x[1]),
        safe.power(abs(x), 0.3),
        safe.power(x, -2.0),
        safe.arctan2(x[0], x[1]),
        safe.arcsin(x / 1e3),
        safe.arccos(x / 1e3),
    )
)


@pytest.fixture(autouse=True)
def _double() -> Any:
    with jax.enable_x64(True):
        yield


@settings(max_examples=30, deadline=None)
@given(x=arrays(float, (2, 3), elements=FINITE))
def test_values_are_those_of_numpy(x: Any) -> None:
    whole, rows, columns, root, log, ratio, length, power, inverse, angle, arcsin, arccos = VALUES(x)
    np.testing.assert_allclose(whole, np.sqrt((x**2).sum()), rtol=1e-14)
    np.testing.assert_allclose(rows, np.linalg.norm(x, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(columns, np.linalg.norm(x, axis=0, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(root, np.sqrt(abs(x)), rtol=1e-14)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log, np.log(abs(x)), rtol=1e-14)
        np.testing.assert_allclose(ratio, np.where(x == 0, 7.0, 2.0 / x), rtol=1e-14)
        np.testing.assert_allclose(inverse, x**-2.0, rtol=1e-14)
    np.testing.assert_allclose(length, np.hypot(x[0], x[1]), rtol=1e-14)
    np.testing.assert_allclose(power, abs(x) ** 0.3, rtol=1e-14)
    np.testing.assert_allclose(angle, np.arctan2(x[0], x[1]), rtol=1e-14)
    np.testing.assert_allclose(arcsin, np.arcsin(x / 1e3), rtol=1e-13)
    np.testing.assert_allclose(arccos, np.arccos(x / 1e3), rtol=1e-13)


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_at_the_singular_point_are_zero(mode: str) -> None:
    d, zero = MODES[mode], jnp.zeros(())
    cases: list[tuple[Any, Any]] = [
        (safe.norm, jnp.zeros(3)),
        (safe.sqrt, zero),
        (safe.log, zero),
        (lambda b: safe.divide(1.0, b), zero),
        (lambda v: safe.hypot(v[0], v[1]), jnp.zeros(2)),
        (lambda v: safe.arctan2(v[0], v[1]), jnp.zeros(2)),
        (safe.arcsin, 1 + zero),
        (safe.arccos, zero - 1),
        (lambda x: safe.power(x, 0.5), zero),
        (lambda x: safe.power(x, -1.0), zero),
    ]
    twice = jax.jit(
        lambda at: [
            (d(f)(x), *(outer(d(f))(x) for outer in MODES.values())) for (f, _), x in zip(cases, at, strict=True)
        ]
    )
    for found in twice([x for _, x in cases]):
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


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_powers(mode: str) -> None:
    """d^k x^p / dx^k = p! / (p - k)! x^(p - k), also at zero where it is finite; d x^p / dp = x^p log x."""
    d = MODES[mode]

    @jax.jit
    def three(x: Any, p: Any) -> list[Any]:
        by_x = [safe.power]
        for _ in range(3):
            by_x.append(d(by_x[-1]))
        return [f(x, p) for f in by_x]

    for p, at_zero in {
        1.0: [0, 1, 0, 0],
        2.0: [0, 0, 2, 0],
        3.0: [0, 0, 0, 6],
        2.5: [0] * 4,
        0.0: [1, 0, 0, 0],
    }.items():
        np.testing.assert_array_equal(three(0.0, p), at_zero)
        for x in (2.0, -2.0) if p == round(p) else (2.0,):
            exact = [np.prod(p - np.arange(k)) * x ** (p - k) for k in range(4)]
            np.testing.assert_allclose(three(x, p), exact, rtol=1e-14)
    np.testing.assert_allclose(d(safe.power, 1)(2.0, 3.0), 8 * np.log(2), rtol=1e-15)
    np.testing.assert_allclose(d(d(safe.power, 1), 0)(2.0, 3.0), 4 + 12 * np.log(2), rtol=1e-15)
    assert d(safe.power, 1)(0.0, 0.5) == d(safe.power, 1)(0.0, 0.0) == 0
    assert np.isnan(d(safe.power, 1)(-2.0, 3.0))


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_angles(mode: str) -> None:
    d = MODES[mode]
    for size in (1e-300, 1.0, 1e300):
        found = d(safe.arctan2, (0, 1))(3.0 * size, 4.0 * size)
        np.testing.assert_allclose(np.array(found) * size, [4 / 25, -3 / 25], rtol=1e-14)
    np.testing.assert_allclose(d(d(safe.arctan2))(3.0, 4.0), -2 * 3 * 4 / 25**2, rtol=1e-14)
    np.testing.assert_allclose([d(safe.arcsin)(0.6), d(safe.arccos)(0.6)], [1.25, -1.25], rtol=1e-15)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_norms_of_tiny_and_huge_vectors(size: float) -> None:
    x = jnp.array([3.0, 4.0]) * size
    np.testing.assert_allclose(safe.norm(x), 5 * size, rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.grad(safe.norm))(x), [0.6, 0.8], rtol=1e-14)


def test_what_is_no_number_stays_so() -> None:
    assert np.isnan(safe.norm(jnp.array([0.0, jnp.nan]))) and safe.norm(jnp.array([jnp.inf, 0.0])) == jnp.inf
    assert np.isnan(safe.sqrt(-1.0)) and np.isnan(safe.log(-1.0)) and np.isnan(safe.divide(jnp.nan, 1.0))
    assert np.isnan(safe.power(-1.0, 0.5)) and np.isnan(safe.power(jnp.nan, 2.0)) and np.isnan(safe.arccos(1.5))
    assert np.isnan(safe.arctan2(jnp.nan, 0.0)) and safe.arctan2(0.0, -0.0) == np.pi
    assert safe.norm(jnp.zeros((0,))) == 0 and safe.norm(jnp.array([3, 4])) == 5
    assert safe.sqrt(jnp.float32(2)).dtype == jnp.float32
