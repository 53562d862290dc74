"""Solver auto: as tsit5 where a problem is mild, as a method for stiff problems where it is not, for each sample by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.ode import OK, default_adjoint, solve
from pipelines import hires, oregonator, robertson, van_der_pol
from tests.refusals import assert_refused


def relaxing(t: Any, y: Any, rate: Any) -> Any:
    """To cos t, so fast: stiff if the rate is large."""
    return -rate * (y - jnp.cos(t))


def relaxed(t: Any, rate: Any, start: Any = 0.0) -> Any:
    """Its solution."""
    slow = (rate**2 * jnp.cos(t) + rate * jnp.sin(t)) / (rate**2 + 1)
    return slow + (start - rate**2 / (rate**2 + 1)) * jnp.exp(-rate * t)


def vibrating(t: Any, y: Any, mu: Any) -> Any:
    return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


def assert_same(left: Any, right: Any) -> None:
    jax.tree_util.tree_map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("ts", [None, [0.5, 2.0, 2.1, 10.0]])
def test_a_mild_ensemble_takes_the_steps_of_tsit5(ts: Any) -> None:
    """To the last bit, values and counts."""

    def ensembles(method: str) -> Any:
        return jax.jit(jax.vmap(lambda mu: solve(vibrating, [2.0, 0.0], mu, t1=10.0, ts=ts, solver=method)))

    mus = jnp.linspace(0.1, 2.0, 70)
    assert_same(ensembles("auto")(mus), ensembles("tsit5")(mus))


PUBLISHED: dict[str, Any] = {
    "robertson": (
        robertson.vector_field, robertson.Concentrations(1.0, 0.0, 0.0), (0.04, 3e7, 1e4), 1e11, 1e-14,
        [0.2083340149701255e-07, 0.8333360770334713e-13, 0.9999999791665050],
    ),
    "hires": (
        hires.vector_field, jnp.array(hires.START), (0.0007, 280.0), 321.8122, 1e-12,
        [0.7371312573325668e-3, 0.1442485726316185e-3, 0.5888729740967575e-4, 0.1175651343283149e-2, 0.2386356198831331e-2,
         0.6238968252742796e-2, 0.2849998395185769e-2, 0.2850001604814231e-2],
    ),
    "oregonator": (
        oregonator.vector_field, oregonator.Species(1.0, 2.0, 3.0), (77.27, 8.375e-6, 0.161), 360.0, 1e-10,
        [0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3],
    ),
    "van der pol": (
        van_der_pol.vector_field, van_der_pol.State(2.0, 0.0), 1e-6, 2.0, 1e-10, [0.1706167732170483e01, -0.8928097010247975e00],
    ),
}  # fmt: skip
"""Field, start, args, end, atol, and the end state in the test set for IVP solvers of Bari; van der Pol's mu is 1000."""


@pytest.mark.parametrize("problem", PUBLISHED)
def test_published_values_in_about_the_steps_of_rodas5p(problem: str) -> None:
    """Those of tsit5, before the problem is stiff, are cheaper ones."""
    field, start, args, end, atol, exact = PUBLISHED[problem]
    found, stiff = (
        jax.jit(lambda method=method: solve(field, start, args, t1=end, solver=method, rtol=1e-8, atol=atol))()
        for method in ("auto", "rodas5p")
    )
    assert int(found.status) == OK
    np.testing.assert_allclose(np.ravel(jnp.stack(jax.tree_util.tree_leaves(found.y))), exact, rtol=2e-6)
    assert int(found.steps) < 2 * int(stiff.steps)
    assert int(found.steps) == int(found.accepted) + int(found.rejected)


def test_a_stiff_sample_leaves_the_others_as_they_were() -> None:
    final = jax.jit(jax.vmap(lambda rate: solve(relaxing, 0.0, rate, t1=20.0, ts=[1.0, 5.0, 20.0], solver="auto")))
    mild = jnp.linspace(0.5, 1.0, 40)
    all_mild, one_stiff = final(mild), final(mild.at[17].set(1e3))
    others = np.arange(40) != 17
    assert_same(*(jax.tree_util.tree_map(lambda x: x[others], found) for found in (all_mild, one_stiff)))
    assert int(one_stiff.steps[17]) < 1000
    np.testing.assert_allclose(one_stiff.y[17], relaxed(jnp.array([1.0, 5.0, 20.0]), 1e3), rtol=1e-5)


@pytest.mark.parametrize("backwards", [pytest.param(False, marks=pytest.mark.slow), True])
def test_states_at_times_before_and_after_the_change(backwards: bool) -> None:
    """Also of time that runs backwards, at the start, and twice at one time; then with derivatives."""
    sign = -1.0 if backwards else 1.0
    ts = sign * jnp.array([0.0, 1e-4, 1e-3, 0.003, 0.01, 0.1, 0.1, 1.0, 3.0])

    def states(rate: Any) -> Any:
        field = (lambda t, y, r: -relaxing(-t, y, r)) if backwards else relaxing
        return solve(field, 0.0, rate, ts=ts, t1=sign * 4.0, solver="auto")

    exact = jax.vmap(lambda rate: relaxed(jnp.abs(ts), rate))
    rates = jnp.array([1.0, 1e3, 2e3])
    found = jax.jit(jax.vmap(states))(rates)
    assert found.status.tolist() == [OK] * 3 and np.max(found.steps) < 600
    np.testing.assert_allclose(found.y, exact(rates), atol=2e-5)
    if backwards:
        return
    for mode, by in (("forward", jax.jacfwd), ("checkpointed", jax.jacrev)):
        with default_adjoint(mode):
            slopes = jax.jit(jax.vmap(by(lambda rate: states(rate).y)))(rates)
        np.testing.assert_allclose(
            slopes, jax.vmap(jax.jacfwd(lambda rate: relaxed(jnp.abs(ts), rate)))(rates), atol=2e-5
        )


@pytest.mark.parametrize("mode", ["checkpointed", "forward"])
def test_derivatives_of_a_stiff_linear_problem(mode: str) -> None:
    """By the rate, the start, both ends of time: the closed form's, and those of rodas5p."""

    def final(rate: Any, start: Any, begin: Any, end: Any, method: str) -> Any:
        return solve(relaxing, start, rate, t0=begin, t1=end, solver=method, rtol=1e-9, atol=1e-11).y

    def exact(rate: Any, start: Any, begin: Any, end: Any) -> Any:
        gone = jnp.exp(-rate * (end - begin))
        return relaxed(end, rate, 0.0) - relaxed(begin, rate, 0.0) * gone + start * gone

    at = jnp.array(300.0), jnp.array(0.5), jnp.array(0.1), jnp.array(1.3)
    with default_adjoint(mode):
        by = jax.jacfwd if mode == "forward" else jax.grad
        ours, stiff = (jax.jit(lambda *at, m=m: by(final, (0, 1, 2, 3))(*at, m))(*at) for m in ("auto", "rodas5p"))
    np.testing.assert_allclose(ours, jax.grad(exact, (0, 1, 2, 3))(*at), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours, stiff, rtol=1e-6, atol=1e-8)


def test_a_derivative_by_a_start_that_is_not_forgotten() -> None:
    """One component decays fast, the other slowly: its derivative passes through the change of methods."""

    def final(start: Any, begin: Any) -> Any:
        field = lambda t, y, a: jnp.stack([-500 * (y[0] - y[1]), -y[1] * t])  # noqa: E731
        return solve(field, jnp.stack([0.0 * start, start]), t0=begin, t1=2.0, solver="auto", rtol=1e-9, atol=1e-11).y[
            1
        ]

    exact = jax.grad(lambda start, begin: start * jnp.exp((begin**2 - 4) / 2), (0, 1))(1.5, 0.2)
    for by in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(by(final, (0, 1)))(1.5, 0.2), exact, rtol=1e-7)


def test_a_large_stiff_state_goes_on_by_kvaerno5() -> None:
    """The heat equation at 20 points, which the pool takes by no stiff method: a wave decays as its eigenvalue says."""
    n = 20
    wave = jnp.sin(jnp.pi * jnp.arange(1, n + 1) / (n + 1))
    eigenvalue = -4 * (n + 1) ** 2 * np.sin(np.pi / (2 * (n + 1))) ** 2

    def field(t: Any, y: Any, k: Any) -> Any:
        wide = jnp.pad(y, 1)
        return k * (n + 1) ** 2 * (wide[2:] - 2 * y + wide[:-2])

    def final(k: Any) -> Any:
        return solve(field, wave, k, t1=1.0, ts=[0.1, 1.0], solver="auto", rtol=1e-7, atol=1e-10)

    found = jax.jit(jax.vmap(final))(jnp.array([1e-4, 1.0]))
    assert found.status.tolist() == [OK, OK]
    np.testing.assert_allclose(found.y[0], np.exp(1e-4 * eigenvalue * np.array([[0.1], [1.0]])) * wave, rtol=1e-5)
    np.testing.assert_allclose(found.y[1], np.exp(eigenvalue * np.array([[0.1], [1.0]])) * wave, atol=1e-7)


def test_events_jumps_complex_states_and_both_precisions() -> None:
    met = solve(relaxing, 2.0, 1e4, t1=5.0, event=lambda t, y, a: y + 0.5, solver="auto", rtol=1e-8)
    np.testing.assert_allclose(met.event_time, 2 * np.pi / 3, rtol=1e-3)
    jumped = solve(
        lambda t, y, at: -1e4 * (y - jnp.where(t < at, 1.0, 2.0)), 0.0, 0.5, t1=1.0, jumps=[0.5], solver="auto"
    )
    np.testing.assert_allclose(jumped.y, 2, rtol=1e-6)
    turning = solve(lambda t, y, a: -1e4 * (y - jnp.exp(1j * t)), 0j, t1=3.0, solver="auto")
    np.testing.assert_allclose(turning.y, 1e4 / (1e4 + 1j) * np.exp(3j), rtol=1e-5)
    with jax.enable_x64(False):
        single = solve(relaxing, 0.0, 1e4, ts=[1.0, 20.0], solver="auto", rtol=1e-4, atol=1e-5)
    assert single.y.dtype == np.float32 and int(single.status) == OK and int(single.steps) < 500
    np.testing.assert_allclose(single.y, relaxed(np.array([1.0, 20.0]), 1e4), rtol=2e-3)


def test_failures_are_told_and_leave_their_neighbours() -> None:
    """Steps are counted together; what has no finite start, or none at its end, is said as by other methods."""
    short = solve(relaxing, 0.0, 1e5, t1=20.0, solver="auto", max_steps=60)
    assert int(short.status) == 2 and np.isnan(short.y)
    both = jax.jit(jax.vmap(lambda y0, rate: solve(relaxing, y0, rate, t1=20.0, solver="auto")))
    found = both(jnp.array([jnp.nan, 0.0, 0.0]), jnp.array([1e5, 1e5, 1.0]))
    assert found.status.tolist() == [3, OK, OK]
    np.testing.assert_allclose(found.y[1:], [relaxed(20.0, 1e5), relaxed(20.0, 1.0)], rtol=1e-5)
    blown = solve(lambda t, y, a: y * y, 1.0, t1=2.0, solver="auto")
    assert int(blown.status) == int(solve(lambda t, y, a: y * y, 1.0, t1=2.0, solver="tsit5").status)


def test_refusals() -> None:
    assert_refused(lambda: solve(relaxing, 0.0, 1.0, t1=1.0, solver="auto", step=0.1), "`solver.step` must be null")
    assert_refused(
        lambda: solve(relaxing, 0.0, 1.0, t1=1.0, solver="auto", mass_matrix=[1.0]), "with solver auto.*rodas5p"
    )
