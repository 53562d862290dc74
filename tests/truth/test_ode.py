"""`ops.ode.solve` against closed forms and independent references: values, gradients, statuses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.ode import Solver, default_adjoint, solve


def relaxation(t: Any, y: Any, k: Any) -> Any:
    """y' = -k (y - cos t): stiff for large k."""
    return -k * (y - jnp.cos(t))


def relaxation_at(k: float, t: float = 2.0) -> float:
    """Its solution from y(0) = 0: (k^2 cos t + k sin t - k^2 exp(-k t)) / (k^2 + 1)."""
    return (k * k * math.cos(t) + k * math.sin(t) - k * k * math.exp(-k * t)) / (k * k + 1)


STIFFNESSES = jnp.array([1.0, 10.0, 1e3, 1e5])


def test_a_lane_out_of_steps_is_nan_and_says_so() -> None:
    found = jax.vmap(lambda k: solve(relaxation, 0.0, k, t1=2.0, max_steps=1000))(STIFFNESSES)
    assert found.status.tolist() == [0, 0, 0, 2]
    assert np.isnan(found.y[3])
    exact = [relaxation_at(k) for k in (1.0, 10.0, 1e3)]
    np.testing.assert_allclose(found.y[:3], exact, rtol=1e-6)
    np.testing.assert_allclose(exact, [0.1789076535, -0.3219971247, -0.4152371239], rtol=1e-9)


def test_an_implicit_method_solves_every_lane() -> None:
    found = jax.vmap(lambda k: solve(relaxation, 0.0, k, t1=2.0, max_steps=1000, solver="kvaerno5", rtol=1e-8))(
        STIFFNESSES
    )
    assert found.status.tolist() == [0] * 4
    np.testing.assert_allclose(found.y, [relaxation_at(float(k)) for k in STIFFNESSES], rtol=1e-6)


def test_a_failed_lane_does_not_poison_the_gradient_of_the_others() -> None:
    def total(shift: Any, ks: Any) -> Any:
        return jnp.nansum(jax.vmap(lambda k: solve(relaxation, shift, k, t1=2.0, max_steps=1000).y)(ks))

    with_failed = jax.grad(total)(0.0, STIFFNESSES)
    without = jax.grad(total)(0.0, STIFFNESSES[:3])
    np.testing.assert_allclose(with_failed, without, rtol=1e-12)
    np.testing.assert_allclose(without, math.exp(-2) + math.exp(-20), rtol=1e-5)


@pytest.mark.parametrize("number", [1, 30])
def test_an_overflow_does_not_poison_the_gradient_by_what_samples_share(number: int) -> None:
    """y' = p k y^2 from 1, by fixed steps, which overflow for large k; the derivative by p of those that do not."""
    rates = jnp.array([0.1, 0.5, 300.0])

    def total(p: Any) -> Any:
        found = jax.vmap(lambda k: solve(lambda t, y, a: jnp.sum(a[0]) * a[1] * y**2, 1.0, (p, k), t1=1.0, step=0.05))(
            rates
        )
        assert found.status.shape == (3,)
        return jnp.sum(jnp.where(found.status == 0, found.y, 0))

    slope = jax.grad(total)(jnp.ones(number) / number)
    np.testing.assert_allclose(slope, sum(k / (1 - k) ** 2 for k in (0.1, 0.5)), rtol=1e-3)


def test_a_second_derivative_where_the_first_is_zero() -> None:
    """Of y(1)^2, with y(1) = (x - 1) e: where it is least nobody asks for the derivative of y."""
    found = jax.vmap(jax.hessian(lambda x: solve(lambda t, y, a: y, x - 1, t1=1.0).y ** 2))(jnp.array([1.0]))
    np.testing.assert_allclose(found, 2 * math.e**2, rtol=1e-3)


def test_a_solution_that_blows_up_is_not_an_answer() -> None:
    found = solve(lambda t, y, args: y**2, 1.0, t1=2.0, max_steps=2000)  # y = 1 / (1 - t)
    assert int(found.status) in (2, 3, 4)
    assert np.isnan(found.y)


def test_empty_interval() -> None:
    def grow(t: Any, y: Any, args: Any) -> Any:
        return y

    assert solve(grow, 3.0, t0=1.0, t1=1.0).y == 3.0
    assert solve(grow, 3.0, t0=1.0, ts=[1.0, 1.0]).y.tolist() == [3.0, 3.0]
    durations = jax.vmap(lambda t1: solve(grow, 3.0, t1=t1))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(durations.y, [3.0, 3.0 * math.e], rtol=1e-6)
    assert durations.status.tolist() == [0, 0]


def test_backward_in_time() -> None:
    found = solve(lambda t, y, a: -2 * y, 1.0, t0=1.0, ts=[0.75, 0.5, 0.0], rtol=1e-9)
    np.testing.assert_allclose(found.y, [1.6487212707, 2.7182818285, 7.3890560989], rtol=1e-7)


def test_complex_state() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffrax's own caution
        found = solve(lambda t, y, a: -1.5j * y, 1.0 + 0.0j, t1=2.0, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.y, -0.98999250 - 0.14112001j, rtol=1e-6)


@pytest.mark.parametrize("number", [1, 16])
def test_derivative_by_complex_arguments(number: int) -> None:
    """y' = sum(z) y gives exp(sum(z)): by few arguments, and by many, both parts of the gradient are there."""
    z = jnp.full(number, -0.2 + 0.5j) / number

    def final(z: Any) -> Any:
        return jnp.real(solve(lambda t, y, z: jnp.sum(z) * y, 1.0 + 0.0j, z, t1=1.0, rtol=1e-9, atol=1e-11).y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = jax.jit(jax.vmap(jax.grad(final)))(jnp.stack([z, 2 * z]))
    expected = jax.vmap(jax.grad(lambda z: jnp.real(jnp.exp(jnp.sum(z)))))(jnp.stack([z, 2 * z]))
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("field", "y0"),
    [
        (lambda t, y, k: 1, 0.0),
        (lambda t, y, k: 1.0, 0),
        (lambda t, y, k: jnp.ones((), int), 0.0),
        (lambda t, y, k: jnp.ones((), jnp.float32), jnp.zeros((), jnp.float32)),
        (lambda t, y, k: {"a": 1.0, "none": y["none"]}, {"a": 0.0, "none": jnp.zeros((0, 2))}),
        (lambda t, y, k: {"a": jnp.ones(2, bool), "b": None}, {"a": [0, 0], "b": None}),
    ],
)
def test_states_and_slopes_of_every_dtype(field: Any, y0: Any) -> None:
    """y' = 1 from 0, alone and in an ensemble: computed in the precision in force, as the times are."""
    ends = jnp.array([0.5, 2.0, 0.0])
    found = jax.vmap(lambda t1: solve(field, y0, 1.0, t1=t1))(ends)
    one = solve(field, y0, 1.0, t1=2.0)
    for leaf, single in zip(jax.tree_util.tree_leaves(found.y), jax.tree_util.tree_leaves(one.y), strict=True):
        assert leaf.dtype == single.dtype == np.float64
        np.testing.assert_allclose(leaf, jnp.broadcast_to(ends.reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape))
        np.testing.assert_allclose(single, 2.0)
    assert found.status.tolist() == [0, 0, 0]


def test_a_state_without_a_number() -> None:
    found = jax.vmap(lambda t1: solve(lambda t, y, a: y, jnp.zeros(0), t1=t1))(jnp.array([0.5, 2.0]))
    assert found.y.shape == (2, 0)
    assert found.status.tolist() == [0, 0]


def test_a_first_step_within_the_bounds_of_steps() -> None:
    """Alone and in an ensemble: one that is given is neither longer nor shorter than steps may be."""
    decay: Callable[..., Any] = lambda k, **steps: solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, **steps).accepted  # noqa: E731
    rates = jnp.array([0.01, 0.02])
    assert jax.vmap(lambda k: decay(k, dt0=0.5, dtmax=0.05))(rates).tolist() == [20, 20]
    assert int(decay(0.01, dt0=0.5, dtmax=0.05)) == 20
    assert jax.vmap(lambda k: decay(k, dt0=1e-6, dtmin=0.5))(rates).tolist() == [2, 2]


class FlooredEuler(diffrax.Euler):
    """Euler's method, whose state does not fall below 0.5."""

    def step(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any) -> Any:
        y, *rest = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        return jnp.maximum(y, 0.5), *rest


class FlooredHeun(diffrax.Heun):
    """Heun's method, likewise."""

    def step(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any) -> Any:
        y, *rest = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        return jnp.maximum(y, 0.5), *rest


@pytest.mark.parametrize("solver", [FlooredEuler(), FlooredHeun()], ids=["Euler", "Heun"])
def test_a_solver_with_a_step_of_its_own(solver: Any) -> None:
    """It takes that step in an ensemble too."""
    found = jax.vmap(lambda k: solve(lambda t, y, k: -k * y, 1.0, k, t1=5.0, step=0.1, solver=solver).y)(
        jnp.array([0.01, 1.0])
    )
    np.testing.assert_allclose(found, [math.exp(-0.05), 0.5], rtol=1e-4)


@pytest.mark.parametrize(("start", "exact"), [(10.0, 0.1649935903), (25.5, 0.3581337880), (40.0, 0.7394499701)])
def test_a_short_pulse_with_its_jumps_is_seen(start: float, exact: float) -> None:
    def field(t: Any, y: Any, args: Any) -> Any:
        return -0.05 * y + jnp.where((t >= start) & (t < start + 0.2), 10.0, 0.0)

    found = solve(field, 0.0, t1=60.0, jumps=[start, start + 0.2])
    np.testing.assert_allclose(found.y, exact, rtol=1e-5)
    with pytest.warns(UserWarning, match=r"the time is compared in test_ode.py:\d+"):
        missed = solve(field, 0.0, t1=60.0)
    assert missed.y == 0.0, "without its jumps the pulse is stepped over: the premise of this test"


def test_jumps_with_an_implicit_method() -> None:
    def robertson(t: Any, y: Any, k: Any) -> Any:
        forward, back, pair = k * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return jnp.array([back - forward, forward - back - pair, pair])

    rates = jnp.array([0.02, 0.04, 0.08])
    found = jax.vmap(lambda k: solve(robertson, [1.0, 0.0, 0.0], k, t1=100.0, solver="kvaerno5", jumps=[30.0]))(rates)
    np.testing.assert_allclose(found.y[:, 0], [0.74180636, 0.61723488, 0.46129610], rtol=1e-6)


@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_time_of_an_event_and_its_derivative(derivative: Any) -> None:
    def fall(g: Any) -> Any:
        return solve(
            lambda t, y, g: (y[1], -g), (20.0, 0.0), g, t1=10.0, event=lambda t, y, args: y[0], rtol=1e-9
        ).event_time

    mode = "forward" if derivative is jax.jacfwd else "checkpointed"
    with default_adjoint(mode):
        np.testing.assert_allclose(fall(9.81), math.sqrt(40 / 9.81), rtol=1e-9)
        np.testing.assert_allclose(derivative(fall)(9.81), -0.5 * math.sqrt(40 / 9.81) / 9.81, rtol=1e-7)


def test_an_event_that_does_not_happen() -> None:
    found = solve(lambda t, y, a: 1.0 + 0 * y, 0.0, t1=1.0, event=lambda t, y, a: y - 5.0)
    assert int(found.status) == 0
    assert np.isnan(found.event_time)
    np.testing.assert_allclose(found.y, 1.0, rtol=1e-9)


@pytest.mark.parametrize("adjoint", ["checkpointed", "direct", "forward"])
def test_gradient_by_each_adjoint(adjoint: str) -> None:
    """y' = -a (y - sin t), y(0) = 0, contracting: dy(5)/da at a = 20 is 4.6532e-4."""

    def final(a: Any) -> Any:
        return solve(
            lambda t, y, a: -a * (y - jnp.sin(t)), 0.0, a, t1=5.0, adjoint=adjoint, rtol=1e-9, atol=1e-11, max_steps=512
        ).y

    derivative = jax.jacfwd(final) if adjoint == "forward" else jax.grad(final)
    np.testing.assert_allclose(derivative(20.0), 4.6532e-4, rtol=1e-4)


def test_second_derivative_by_forward_mode() -> None:
    """y' = -k y: d2 y(1) / dk2 = y(1)."""
    with default_adjoint("forward"):

        def final(k: Any) -> Any:
            return solve(lambda t, y, k: -k * y, 2.0, k, t1=1.0, rtol=1e-10, atol=1e-12).y

        np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(final))(1.3), 0.5450635861, rtol=1e-6)


def test_pytrees_and_lists_of_numbers() -> None:
    start = {"x": [1, 2], "v": (1.0, jnp.ones((2, 2)))}
    found = solve(lambda t, y, a: jax.tree.map(jnp.negative, y), start, t1=1.0)
    np.testing.assert_allclose(found.y["x"], np.exp(-1) * np.array([1, 2]), rtol=1e-5)
    assert found.y["v"][1].shape == (2, 2)


def test_times_asked_for_come_back_as_they_are() -> None:
    ts = jnp.linspace(0.0, 1.0, 5)
    found = solve(lambda t, y, a: -y, 1.0, ts=ts)
    assert found.t is ts
    np.testing.assert_allclose(found.y, np.exp(-np.asarray(ts)), rtol=1e-5)


def test_a_diffrax_solver_and_settings_that_win() -> None:
    loose = solve(lambda t, y, a: -y, 1.0, t1=1.0, solver=Solver(rtol=1e-2, atol=1e-2))
    tight = solve(lambda t, y, a: -y, 1.0, t1=1.0, solver=Solver(rtol=1e-2, atol=1e-2), rtol=1e-10, atol=1e-12)
    own = solve(lambda t, y, a: -y, 1.0, t1=1.0, solver=diffrax.Dopri8(), rtol=1e-10, atol=1e-12)
    assert abs(loose.y - math.exp(-1)) > 1e-7 > abs(tight.y - math.exp(-1))
    np.testing.assert_allclose(own.y, math.exp(-1), rtol=1e-9)


def test_a_long_oscillation_at_the_default_tolerance() -> None:
    """x'' = -x over 100 periods stays within 1e-3 of (1, 0)."""
    found = solve(lambda t, y, a: jnp.array([y[1], -y[0]]), [1.0, 0.0], t1=200 * math.pi)
    assert np.abs(np.asarray(found.y) - [1.0, 0.0]).max() < 1e-3


def test_no_call_back_into_python_in_the_program() -> None:
    text = str(jax.make_jaxpr(lambda k: solve(relaxation, 0.0, k, t1=2.0).y)(1.0))
    assert "callback" not in text


def test_square_root_drain() -> None:
    """h' = -sqrt(h) from 1 is empty at t = 2: guarded it stays empty; unguarded it fails and says so."""
    guarded = solve(lambda t, h, a: -jnp.sqrt(jnp.maximum(h, 0.0)), 1.0, t1=3.0, rtol=1e-8)
    assert int(guarded.status) == 0
    assert abs(float(guarded.y)) < 1e-6
    bare = solve(lambda t, h, a: -jnp.sqrt(h), 1.0, t1=3.0, max_steps=4000)
    assert int(bare.status) != 0
    assert np.isnan(bare.y)


def test_tolerance_beyond_the_precision_is_warned_about() -> None:
    with jax.enable_x64(False), pytest.warns(UserWarning, match="rounding is larger"):
        solve(lambda t, y, a: -y, 1.0, t1=1.0, rtol=1e-10)


@pytest.mark.parametrize(("mode", "derivative"), [("forward", jax.jacfwd), ("checkpointed", jax.grad)])
@pytest.mark.parametrize("solver", ["tsit5", "kvaerno5"])
def test_derivatives_of_a_state_at_rest(mode: str, derivative: Any, solver: str) -> None:
    """x'' = -w^2 x from x0 = 0: dx(20)/dx0 = cos(20 w), though the state itself asks for no step at all."""
    with default_adjoint(mode):

        def final(x0: Any) -> Any:
            found = solve(
                lambda t, y, w: [y[1], -w * w * y[0]], jnp.array([x0, 0.0]), 2.0, t1=20.0, solver=solver, rtol=1e-8
            )
            return found.y[0]

        np.testing.assert_allclose(derivative(final)(0.0), math.cos(40.0), rtol=1e-4)
        np.testing.assert_allclose(derivative(final)(1e-10), math.cos(40.0), rtol=1e-4)


@pytest.mark.parametrize(("mode", "derivative"), [("forward", jax.jacfwd), ("checkpointed", jax.grad)])
def test_derivative_with_respect_to_a_forcing_that_is_off(mode: str, derivative: Any) -> None:
    """y' = -y + a cos(5 t), y(0) = 0 at a = 0, the amplitude closed over: dy(3)/da = (cos 15 + 5 sin 15 - exp(-3)) / 26."""
    with default_adjoint(mode):

        def final(a: Any) -> Any:
            return solve(lambda t, y, args: -y + a * jnp.cos(5 * t), 0.0, t1=3.0, rtol=1e-8).y

        exact = (math.cos(15) + 5 * math.sin(15) - math.exp(-3)) / 26
        np.testing.assert_allclose(derivative(final)(0.0), exact, rtol=1e-4)


def test_event_with_saved_times() -> None:
    """y' = -k y from 1 falls to 0.1 at log(10) / k, whatever times are saved, forward and backward."""

    def stop(k: Any, ts: Any) -> Any:
        return solve(lambda t, y, k: -k * y, 1.0, k, ts=ts, event=lambda t, y, k: y - 0.1, rtol=1e-9)

    found = stop(1.0, jnp.linspace(0.0, 20.0, 21))
    np.testing.assert_allclose(found.event_time, math.log(10), rtol=1e-8)
    assert int(found.status) == 0
    assert np.isfinite(found.y[:3]).all()
    assert np.isnan(found.y[3:]).all()
    np.testing.assert_allclose(stop(1.0, [5.0, 6.0]).event_time, math.log(10), rtol=1e-8)
    np.testing.assert_allclose(stop(-1.0, [-1.0, -2.0, -5.0]).event_time, -math.log(10), rtol=1e-8)
    with default_adjoint("forward"):
        slope = jax.jacfwd(lambda k: stop(k, jnp.linspace(0.0, 20.0, 21)).event_time)(1.0)
    np.testing.assert_allclose(slope, -math.log(10), rtol=1e-5)


def test_the_first_crossing_is_the_one_reported() -> None:
    """x = sin t crosses h at arcsin h and comes back; a ball thrown up passes h on its way."""
    heights = jnp.linspace(0.05, 0.95, 40)
    found = jax.vmap(
        lambda h: solve(
            lambda t, y, h: [y[1], -y[0]], [0.0, 1.0], h, t1=10.0, solver="dopri8", event=lambda t, y, h: y[0] - h
        )
    )(heights)
    np.testing.assert_allclose(found.event_time, np.arcsin(heights), rtol=1e-5)
    np.testing.assert_allclose(found.t, found.event_time, rtol=1e-12)
    ball = jax.vmap(
        lambda h: solve(lambda t, y, h: [y[1], -9.81], [0.0, 10.0], h, t1=5.0, event=lambda t, y, h: y[0] - h)
    )(heights * 5)
    assert ball.status.tolist() == [0] * 40
    np.testing.assert_allclose(ball.event_time, (10 - np.sqrt(100 - 2 * 9.81 * heights * 5)) / 9.81, rtol=1e-6)


@pytest.mark.parametrize("where", ["t0", "t1", "ts", "y0", "args"])
def test_not_a_number_is_no_start(where: str) -> None:
    found = jax.jit(
        lambda bad: solve(
            lambda t, y, k: -k * y, bad if where == "y0" else 1.0, bad if where == "args" else 1.0,
            t0=bad if where == "t0" else 0.0,
            **({"ts": jnp.stack([jnp.array(0.5), bad])} if where == "ts" else {"t1": bad if where == "t1" else 1.0}),
        )
    )(jnp.array(jnp.nan))  # fmt: skip
    assert int(found.status) == 3
    assert np.isnan(found.y).all()
    assert int(found.steps) < 10, "nothing to integrate"


def test_an_empty_interval_moves_with_its_ends() -> None:
    """y' = -3 y from 2: dy/dt1 = -6 and dy/dt0 = 6, also where t1 = t0."""
    for adjoint, derivative in (("forward", jax.jacfwd), ("checkpointed", jax.grad)):

        def final(t0: Any, t1: Any, adjoint: str = adjoint) -> Any:
            return solve(lambda t, y, a: -3 * y, 2.0, t0=t0, t1=t1, adjoint=adjoint, max_steps=64).y

        assert float(derivative(final, 1)(1.0, 1.0)) == -6.0
        assert float(derivative(final, 0)(1.0, 1.0)) == 6.0
        np.testing.assert_allclose(derivative(final, 1)(0.0, 1.0), -6 * math.exp(-3), rtol=1e-5)


def test_a_slope_that_is_no_number_at_the_end_spoils_nothing() -> None:
    """y' = -1 from 1 reaches exactly 0 at t = 1, where the field's own derivative by y is infinite: dy/dk = -t there."""

    def final(k: Any, t1: Any) -> Any:
        return solve(
            lambda t, y, k: -k * jnp.where(t < 2, 1.0, jnp.sqrt(y)), 1.0, k, t1=t1, solver="euler", step=0.25, jumps=()
        ).y

    assert float(final(1.0, 1.0)) == 0.0
    np.testing.assert_allclose(jax.grad(final)(1.0, 1.0), -1.0, rtol=1e-12)
    assert float(solve(lambda t, y, a: 1 / t, 3.0, t0=0.0, t1=jnp.array(0.0)).y) == 3.0


def test_events_backward_of_any_size_and_from_zero_at_the_start() -> None:
    """x = t - t0 meets t = 1, in whatever units the condition is; backward too; and it leaves a zero at the start without an event."""

    def lane(t1: Any, mark: Any, unit: Any) -> Any:
        return solve(lambda t, y, a: 1.0 + 0 * y, 0.0, t1=t1, event=lambda t, y, a: unit * (t - mark)).event_time

    units = jnp.array([1e-9, 1e9, 1.0, 1.0])
    found = jax.jit(jax.vmap(lane))(jnp.array([3.0, 3.0, -3.0, 3.0]), jnp.array([1.0, 1.0, -1.0, 0.0]), units)
    np.testing.assert_allclose(found[:3], [1.0, 1.0, -1.0], rtol=1e-14)
    assert np.isnan(found[3])


def test_an_event_in_single_precision() -> None:
    with jax.enable_x64(False):
        found = solve(lambda t, y, g: [y[1], -g], [20.0, 0.0], 9.81, t1=10.0, event=lambda t, y, g: y[0], rtol=1e-5)
        assert int(found.status) == 0
        np.testing.assert_allclose(found.event_time, math.sqrt(40 / 9.81), rtol=1e-5)
