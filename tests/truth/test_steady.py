"""`ops.steady` against closed forms: steady states, their derivatives, and whether they are stable."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from ops.steady import find_steady_state, leading_eigenvalue
from tests.project import REPOSITORY


def logistic(t: Any, y: Any, args: Any) -> Any:
    r, capacity = args
    return r * y * (1 - y / capacity)


def test_logistic_growth() -> None:
    """y = capacity, with the growth rate -r, from the state's own way; Newton's method alone may find the unstable state 0."""
    found = find_steady_state(logistic, 2.0, (0.5, 3.0))
    np.testing.assert_allclose([found.value, found.growth], [3.0, -0.5], rtol=1e-12)

    def state(args: Any) -> Any:
        return find_steady_state(logistic, 0.1, args, after=30.0, solver="tsit5")

    np.testing.assert_allclose(jax.jit(state)((0.5, 3.0)).value, 3.0, rtol=1e-12)
    by_r, by_capacity = jax.jit(jax.grad(lambda args: state(args).value))((0.5, 3.0))
    np.testing.assert_allclose([by_r, by_capacity], [0.0, 1.0], atol=1e-12)
    unstable = find_steady_state(logistic, 0.1, (0.5, 3.0))
    np.testing.assert_allclose([unstable.value, unstable.growth], [0.0, 0.5], atol=1e-12)


def brusselator(t: Any, y: Any, args: Any) -> Any:
    a, b = args
    return a + y[0] ** 2 * y[1] - (b + 1) * y[0], b * y[0] - y[0] ** 2 * y[1]


def test_hopf_bifurcation_of_the_brusselator() -> None:
    """(a, b / a); the eigenvalues have the sum b - 1 - a**2 and the product a**2: stability is lost at b = 1 + a**2.

    Beyond their collision at b = (a + 1)**2 the leading one is (s + sqrt(s**2 - 4 a**2)) / 2.
    """
    b = jnp.array([1.5, 2.0, 2.5, 4.5])
    growth = jax.jit(
        jax.vmap(jax.value_and_grad(lambda b: find_steady_state(brusselator, (1.0, 1.0), (1.0, b)).growth))
    )(b)
    s = np.asarray(b) - 2
    real = np.sqrt(np.maximum(s**2 - 4, 0))
    np.testing.assert_allclose(growth[0], (s + real) / 2, atol=1e-12)
    np.testing.assert_allclose(growth[1], [0.5, 0.5, 0.5, (1 + s[3] / real[3]) / 2], rtol=1e-10)
    point = find_steady_state(brusselator, (1.0, 1.0), (2.0, 3.0))
    np.testing.assert_allclose(point.value, [2.0, 1.5], rtol=1e-12)


def chain(t: Any, y: Any, k: Any) -> Any:
    """A <-> B <-> C."""
    first, second = k[0] * y["a"] - k[1] * y["b"], k[2] * y["b"] - k[3] * y["c"]
    return {"a": -first, "b": first - second, "c": second}


def total(y: Any, k: Any) -> Any:
    return y["a"] + y["b"] + y["c"]


RATES, PURE = jnp.array([1.0, 2.0, 3.0, 4.0]), {"a": 2.0, "b": 0.0, "c": 0.0}


def test_a_conserved_quantity_chooses_the_state() -> None:
    """a : b : c = 1 : k0/k1 : k0 k2 / (k1 k3), with the sum that the initial state has; derivatives by it and by the rates."""

    def state(y0: Any, k: Any) -> Any:
        return find_steady_state(chain, y0, k, conserved=total)

    shares = np.array([1.0, 0.5, 0.375]) / 1.875
    found = state(PURE, RATES)
    np.testing.assert_allclose(list(found.value.values()), 2 * shares, rtol=1e-13)
    np.testing.assert_allclose(found.growth, -5 + math.sqrt(10), rtol=1e-12)  # of the eigenvalues 0, -5 +- sqrt(10)
    by_state = jax.jacrev(lambda y0: state(y0, RATES).value)(PURE)
    for share, row in zip(shares, by_state.values(), strict=True):
        np.testing.assert_allclose(list(row.values()), share, rtol=1e-12)
    second = jax.jit(jax.hessian(lambda k0: state(PURE, RATES.at[0].set(k0)).value["a"]))(1.0)
    slope = 0.875  # a = 2 / (1 + 7/8 k0)
    np.testing.assert_allclose(second, 2 * 2 * slope**2 / (1 + slope) ** 3, rtol=1e-12)


def test_a_family_of_steady_states_is_no_answer() -> None:
    """Without what is conserved the Jacobian is singular."""
    found = find_steady_state(chain, PURE, RATES)
    assert int(found.status) == 4
    assert np.isnan(found.value["a"]) and np.isnan(found.growth)


def robertson(t: Any, y: Any, args: Any) -> Any:
    forward, back, pair = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return [back - forward, forward - back - pair, pair]


def test_robertsons_end_is_degenerate() -> None:
    """(0, 0, 1) is approached like 1 / t: another eigenvalue is zero there. With an outflow of C and an inflow of A there is one.

    Then a' + b' + c' = 0 gives c = inflow / outflow, and b = sqrt(inflow / 3e7).
    """
    found = find_steady_state(robertson, [1.0, 0.0, 0.0], conserved=lambda y, args: jnp.sum(y))
    assert int(found.status) == 4
    assert np.isnan(found.value).all()

    def open_to(t: Any, y: Any, rates: Any) -> Any:
        a, b, c = robertson(t, y, None)
        return [a + rates[0], b, c - rates[1] * y[2]]

    inflow, outflow = 1e-3, 1e-2
    state = find_steady_state(open_to, [1.0, 1e-5, 0.1], jnp.array([inflow, outflow]), atol=1e-16)
    b, c = math.sqrt(inflow / 3e7), inflow / outflow
    np.testing.assert_allclose(state.value, [(inflow + 1e4 * b * c) / 0.04, b, c], rtol=1e-9)
    assert state.growth < 0


def test_a_false_conserved_quantity() -> None:
    def state(k: Any) -> Any:
        return find_steady_state(chain, PURE, k, conserved=lambda y, k: y["a"] + y["b"])

    with pytest.raises(ValueError, match="`conserved` must return what the vector field leaves"):
        state(RATES)
    assert int(jax.jit(state)(RATES).status) == 4


def test_a_fold_and_beyond() -> None:
    """y' = r + y**2: y = -sqrt(-r), growth -2 sqrt(-r); none for r >= 0."""
    r = jnp.array([-1.0, -1e-4, 0.0, 0.1])
    found = jax.vmap(lambda r: find_steady_state(lambda t, y, r: r + y * y, -1.0, r))(r)
    assert found.status.tolist() == [0, 0, 4, 4]
    np.testing.assert_allclose(found.value[:2], [-1.0, -0.01], rtol=1e-12)
    np.testing.assert_allclose(found.growth[:2], [-2.0, -0.02], rtol=1e-12)
    assert np.isnan(found.value[2:]).all() and np.isnan(found.growth[2:]).all()


def test_a_trajectory_that_blows_up_on_the_way() -> None:
    found = find_steady_state(lambda t, y, r: 1 + y * y, 0.0, after=3.0, solver="tsit5")
    assert int(found.status) in (2, 3, 4)
    assert np.isnan(found.value)


def test_eigenvalue_of_a_matrix_and_its_second_derivative() -> None:
    """[[0, 1], [-1, p]]: (p + sqrt(p**2 - 4)) / 2 beyond p = 2, half of p before."""

    def leading(p: Any) -> Any:
        return leading_eigenvalue(jnp.array([[0.0, 1.0], [-1.0, 0.0]]).at[1, 1].set(p), jnp.array(True))

    np.testing.assert_allclose(jax.jit(jax.hessian(leading))(3.0), -2 / 5**1.5, rtol=1e-11)
    np.testing.assert_allclose(jax.jit(jax.grad(leading))(1.0), 0.5, rtol=1e-12)


def test_kuramoto_above_and_below_its_threshold(tmp_path: Path) -> None:
    """r = sqrt(1 - 2 g / K), dr/dK = g / (K**2 r), dr/dg = -1 / (K r), growth 2 g - K; r = 0 and K / 2 - g below."""
    ds = engine.run(
        REPOSITORY / "conf" / "kuramoto.yaml",
        [f"store.path={tmp_path}/k.zarr", "sweep.axes.coupling=[0.5,1.0,2.0,3.0]", "+stages.order.settle=20.0"],
    ).load()
    assert ds.status.values.tolist() == [1, 4, 1, 1], "at the threshold the steady state has no derivative"
    k = np.array([2.0, 3.0])
    r = np.sqrt(1 - 1 / k)
    np.testing.assert_allclose(ds.limit.values[[0, 2, 3]], [0, *r], atol=1e-12)
    np.testing.assert_allclose(ds.growth.values[[0, 2, 3]], [-0.25, -1, -2], rtol=1e-10)
    np.testing.assert_allclose(ds["dlimit.coupling"].values[2:], 0.5 / (k**2 * r), rtol=1e-10)
    np.testing.assert_allclose(ds["dlimit.width"].values[2:], -1 / (k * r), rtol=1e-10)
    np.testing.assert_allclose(ds.order.values[2:], r, atol=0.01)
    assert ds.order.values[0] < 2 / math.sqrt(200)
