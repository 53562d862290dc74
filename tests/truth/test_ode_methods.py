"""Every method of `ops.ode` against closed forms: orders, parts of a vector field, times, guards, what is kept of the steps."""

from __future__ import annotations

import math
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.ode import METHODS, Separable, Split, default_adjoint, solve


def velocity(t: Any, p: Any, args: Any) -> Any:
    """Of a pendulum seen from a point that moves as -3 sin 2 t."""
    return p + 6 * jnp.cos(2 * t)


def force(t: Any, q: Any, args: Any) -> Any:
    """On it."""
    return -jnp.sin(q - 3 * jnp.sin(2 * t))


def separatrix(t: float) -> tuple[float, float]:
    """With just the energy that reaches the top: q = 4 atan tanh(t / 2) + 3 sin 2 t, p = 2 / cosh t."""
    return 4 * math.atan(math.tanh(t / 2)) + 3 * math.sin(2 * t), 2 / math.cosh(t)


PENDULUM = Separable(velocity, force)
SUM = Split(lambda t, y, args: (velocity(t, y[1], args), 0 * y[1]), lambda t, y, args: (0 * y[0], force(t, y[0], args)))


ALIKE = ("implicit_euler", "kvaerno3", "kvaerno4", "kencarp3", "kencarp5")
"""Methods that differ from others in their coefficients alone, and take long to compile."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in METHODS]
)
def test_order_of_fixed_steps(method: str) -> None:
    order = METHODS[method].order
    coarse = 2.5 / {1: 256, 2: 128, 3: 64, 4: 48, 5: 96, 8: 14}[order]
    field = SUM if method.startswith(("ken", "sil")) else PENDULUM

    @jax.jit
    def final(h: Any) -> Any:
        return solve(field, separatrix(-1.5), t0=-1.5, t1=1.0, solver=method, step=h, rtol=1e-12, atol=1e-13)

    found = [final(h) for h in (coarse, coarse / 2)]
    assert [int(f.status) for f in found] == [0, 0]
    errors = [np.linalg.norm(np.array(f.y) - separatrix(1.0)) for f in found]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2), errors


@pytest.mark.parametrize(("mode", "derivative"), [("forward", jax.jacfwd), ("checkpointed", jax.grad)])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"rtol": 1e-9, "atol": 1e-11}, id="adaptive"),
        pytest.param({"step": 0.02}, id="fixed"),
        pytest.param({"solver": "kvaerno5", "rtol": 1e-10, "atol": 1e-12}, id="implicit", marks=pytest.mark.slow),
    ],
)
def test_derivatives_by_times(settings: dict[str, Any], mode: str, derivative: Any) -> None:
    """y' = -(a cos t + b) y in an ensemble, of which each member has its own times; in the last one nothing is to be integrated."""

    def total(times: Any, rates: Any) -> Any:
        field = lambda t, y, rates: -(rates[0] * jnp.cos(t) + rates[1]) * y  # noqa: E731
        return solve(field, 1.0, rates, t0=times[0], ts=times[1:], max_steps=512, **settings).y.sum()

    times = np.array([[0.0, 0.5, 1.5], [0.2, 0.5, 1.5], [0.0, 0.1, 0.4], [0.3, 0.3, 0.3]])
    rates = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    with default_adjoint(mode):
        found = jax.jit(jax.vmap(derivative(total)))(times, rates)
    a, b = rates[:, :1], rates[:, 1:]
    y = np.exp(a * (np.sin(times[:, :1]) - np.sin(times)) + b * (times[:, :1] - times))
    slope = -(a * np.cos(times) + b) * y
    exact = np.concatenate([-slope[:, :1] * y[:, 1:].sum(axis=1, keepdims=True), slope[:, 1:]], axis=1)
    published = [exact[0, 2], exact[1, 0] * y[1, 2] / y[1, 1:].sum(), *exact[2, 1:]]
    np.testing.assert_allclose(published, [-0.0260880313, 0.4408897526, -2.22245466, -0.90358264], rtol=1e-8)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_a_pair_is_a_sum_for_a_method_that_splits() -> None:
    """y' = cos t - k y from 0: (k cos t + sin t - k exp(-k t)) / (k^2 + 1), as a pair, as a Split, and implicit as a whole."""
    k = 50.0
    exact = (k * math.cos(1) + math.sin(1) - k * math.exp(-k)) / (k * k + 1)
    drive, decay = lambda t, y, k: jnp.cos(t), lambda t, y, k: -k * y
    for method, field in (
        ("kencarp4", (drive, decay)),
        ("tsit5", Split(drive, decay)),
        ("sil3", lambda t, y, k: jnp.cos(t) - k * y),
    ):
        found = solve(field, 0.0, k, t1=1.0, solver=method, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(found.y, exact, rtol=1e-6, err_msg=method)


@pytest.mark.slow
def test_gradient_through_a_split_field() -> None:
    """y' = a - k y from 0: y(1) = a (1 - exp(-k)) / k, by a and by k."""

    def final(a: Any, k: Any) -> Any:
        field = lambda t, y, args: a + 0 * y, lambda t, y, args: -k * y
        return solve(field, 0.0, t1=1.0, solver="kencarp4", rtol=1e-9, atol=1e-12).y

    with default_adjoint("checkpointed"):
        by_a, by_k = jax.grad(final, (0, 1))(2.0, 3.0)
    np.testing.assert_allclose(by_a, (1 - math.exp(-3)) / 3, rtol=1e-7)
    np.testing.assert_allclose(by_k, 2 * (math.exp(-3) / 3 - (1 - math.exp(-3)) / 9), rtol=1e-6)


def test_a_symplectic_method_keeps_the_energy() -> None:
    """A harmonic oscillator for 160 periods: Euler's energy grows without bound, that of its symplectic sister swings by h / 2."""
    pair = lambda t, p, args: p, lambda t, q, args: -q
    found = solve(pair, [1.0, 0.0], ts=jnp.linspace(0.0, 1000.0, 101), solver="semi_implicit_euler", step=0.05)
    energy = (found.y[0] ** 2 + found.y[1] ** 2) / 2
    assert np.abs(energy - 0.5).max() < 0.5 * 0.05
    plain = solve(Separable(*pair), (1.0, 0.0), t1=1000.0, solver="euler", step=0.05)
    assert (plain.y[0] ** 2 + plain.y[1] ** 2) / 2 > 1e10


def test_a_method_without_an_error_estimate_by_halving_its_steps() -> None:
    found = solve(lambda t, y, a: -y, 1.0, t1=1.0, solver=diffrax.HalfSolver(diffrax.Euler()), rtol=1e-5)
    np.testing.assert_allclose(found.y, math.exp(-1), rtol=3e-3)


def test_newton_goes_on_while_it_converges() -> None:
    """Van der Pol at 1000 up to its first swing, and Robertson: some hundred steps, as with other codes, and not thousands."""
    swing = solve(
        lambda t, y, mu: [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]], [2.0, 0.0], 1000.0, t1=2000.0, solver="kvaerno5", rtol=1e-8,
        atol=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(swing.y[0], 1.7061677321, rtol=1e-6)
    assert int(swing.steps) < 2000


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, -1.0)], ids=["forward", "backward"])
def test_every_step(ends: tuple[float, float]) -> None:
    t0, t1 = ends
    found = solve(lambda t, y, a: {"x": -y["x"]}, {"x": jnp.ones(2)}, t0=t0, t1=t1, ts="steps", max_steps=64, rtol=1e-7)
    n = int(found.length)
    assert n == int(found.accepted) + 1 == int(found.steps) - int(found.rejected) + 1
    assert found.t.shape == (65,) and found.y["x"].shape == (65, 2)
    assert (float(found.t[0]), float(found.t[n - 1])) == ends
    assert (np.diff(found.t[:n]) * np.sign(t1 - t0) > 0).all()
    np.testing.assert_allclose(found.y["x"][:n, 1], np.exp(t0 - found.t[:n]), rtol=1e-6)
    assert np.isnan(found.t[n:]).all() and np.isnan(found.y["x"][n:]).all()


def test_every_step_up_to_an_event_and_in_an_ensemble() -> None:
    """y' = -k y from 1 falls to 0.9 at -log 0.9 / k; the last state is that of the event. The gradient goes through padding."""
    found = jax.vmap(
        lambda k: solve(
            lambda t, y, k: -k * y, 1.0, k, t1=1.0, ts="steps", max_steps=128, event=lambda t, y, k: y - 0.9, rtol=1e-8
        )
    )(jnp.array([0.5, 1.0]))
    last = found.length - 1
    np.testing.assert_allclose(found.t[jnp.arange(2), last], -np.log(0.9) / np.array([0.5, 1.0]), rtol=1e-7)
    np.testing.assert_allclose(found.y[jnp.arange(2), last], 0.9, rtol=1e-9)

    def end(k: Any) -> Any:
        steps = solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, ts="steps", max_steps=64, rtol=1e-9)
        return steps.y[steps.length - 1]

    np.testing.assert_allclose(jax.grad(end)(2.0), -math.exp(-2), rtol=1e-6)


def test_the_solution_as_a_function_of_time() -> None:
    """y' = -2 t y: y = exp(-t^2), with its derivative; NaN outside the interval; inside a transformed function too."""

    def read(k: Any, t: Any) -> Any:
        path = solve(lambda t, y, k: -2 * k * t * y, 1.0, k, t1=2.0, dense=True, max_steps=256, rtol=1e-9).interpolation
        return path(t), path.derivative(t)

    times = jnp.array([[0.0, 0.5], [1.3, 2.0]])
    value, rate = jax.jit(read)(1.0, times)
    np.testing.assert_allclose(value, np.exp(-(times**2)), rtol=1e-7)
    np.testing.assert_allclose(rate, -2 * times * np.exp(-(times**2)), rtol=1e-5, atol=1e-6)
    by_k = jax.grad(lambda k: read(k, 1.3)[0])(1.0)
    np.testing.assert_allclose(by_k, -(1.3**2) * math.exp(-(1.3**2)), rtol=1e-6)
    assert np.isnan(read(1.0, jnp.array([-0.1, 2.1]))[0]).all()
    backward = solve(lambda t, y, a: -y, 1.0, t1=-1.0, dense=True, max_steps=64, rtol=1e-9).interpolation
    assert backward is not None
    np.testing.assert_allclose(backward(jnp.array([-0.3, 0.3])), [math.exp(0.3), math.nan], rtol=1e-7)
    failed = solve(lambda t, y, a: y**2, 1.0, t1=2.0, dense=True, max_steps=64).interpolation
    assert failed is not None and np.isnan(failed(0.5))
    assert not any(np.isinf(leaf).any() for leaf in jax.tree.leaves((backward, failed)))


def test_a_state_that_grows_too_large_ends_its_own_lane() -> None:
    """y' = k y up to t = 5: exp(5 k), or status 3 where that is more than 10, in few steps."""
    for settings in ({}, {"step": 0.01}):
        found = jax.vmap(lambda k: solve(lambda t, y, k: k * y, 1.0, k, t1=5.0, max_abs=10.0, **settings))(  # noqa: B023
            jnp.array([0.1, 0.4, 1.0, 10.0])
        )
        assert found.status.tolist() == [0, 0, 3, 3]
        np.testing.assert_allclose(found.y[:2], np.exp([0.5, 2.0]), rtol=1e-5)
        assert np.isnan(found.y[2:]).all()
        assert found.steps[3] < found.steps[2] or not settings


def test_no_step_is_short_enough() -> None:
    """A solve ends in bounded time, with a status, where steps shrink to nothing, or to the shortest that is allowed."""
    drain = solve(lambda t, h, a: -jnp.sqrt(h), 1.0, t1=3.0)  # no number after t = 2
    blown = solve(lambda t, y, a: y**2, 1.0, t1=2.0)  # y = 1 / (1 - t)
    short = solve(lambda t, y, a: -50 * (y - jnp.cos(t)), 1.0, t0=967.0, t1=1000.0, dtmin=0.2)
    for found in (drain, blown, short):
        assert int(found.status) == 4
        assert np.isnan(found.y)
        assert int(found.steps) < 1000
    fine = solve(lambda t, y, a: -50 * (y - jnp.cos(t)), 1.0, t0=967.0, t1=1000.0, dtmin=1e-9)
    exact = (2500 * math.cos(1000) + 50 * math.sin(1000)) / 2501
    np.testing.assert_allclose(fine.y, exact, rtol=1e-4)


def test_times_too_coarse_for_the_interval() -> None:
    """y' = cos 2 pi (t - 1e6) for a quarter of a second, in float32, whose times are 1/16 s apart there."""

    def field(t: Any, y: Any, args: Any) -> Any:
        return jnp.cos(2 * jnp.pi * (t - 1e6))

    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="too coarse for an interval of 0.25"):
            found = solve(field, 0.0, t0=1e6, t1=1e6 + 0.25)
        assert int(found.status) == 4 and np.isnan(found.y)
    np.testing.assert_allclose(solve(field, 0.0, t0=1e6, t1=1e6 + 0.25).y, 1 / (2 * math.pi), rtol=1e-6)


def test_times_out_of_order_that_are_known_only_when_it_runs() -> None:
    found = jax.jit(lambda t0, ts: solve(lambda t, y, a: -y, 1.0, t0=t0, ts=ts))(1.0, jnp.array([0.0, 0.5]))
    assert int(found.status) == 3 and np.isnan(found.y).all() and int(found.steps) == 0


def test_a_complex_state_that_is_conjugated() -> None:
    """y' = -i conj(y): real and imaginary part are cosh and -sinh; the Jacobian of an implicit method is none over complex numbers."""
    exact = math.cosh(1) - 1j * math.sinh(1)
    for method in ("dopri8", "kvaerno5"):
        found = solve(
            lambda t, y, a: {"z": -1j * jnp.conj(y["z"]), "x": -y["x"]}, {"z": 1 + 0j, "x": 1.0}, ts=[0.5, 1.0], solver=method,
            rtol=1e-9, atol=1e-12,
        )  # fmt: skip
        assert found.y["z"].dtype == np.complex128 and found.y["x"].dtype == np.float64
        np.testing.assert_allclose(found.y["z"][1], exact, rtol=1e-7)


def test_an_end_beyond_the_times_asked_for() -> None:
    """An event is looked for up to `t1`, and the states at times before it are kept."""
    found = solve(lambda t, y, a: -y, 1.0, t1=5.0, ts=[0.5, 1.0], event=lambda t, y, a: y - 0.1, rtol=1e-9)
    np.testing.assert_allclose(found.event_time, math.log(10), rtol=1e-8)
    np.testing.assert_allclose(found.y, np.exp([-0.5, -1.0]), rtol=1e-7)
    assert int(found.length) == 2


def test_control_of_the_step_size() -> None:
    """A PI controller and a longest step take other steps to the same state."""
    field = lambda t, y, a: -y + jnp.sin(20 * t)  # noqa: E731
    exact = (421 * math.exp(-2) + math.sin(40) - 20 * math.cos(40)) / 401
    taken = []
    for settings in ({}, {"pcoeff": 0.4, "icoeff": 0.3}, {"dtmax": 0.01}, {"factormax": 1.5, "safety": 0.5}):
        found = solve(field, 1.0, t1=2.0, rtol=1e-7, atol=1e-9, **settings)
        np.testing.assert_allclose(found.y, exact, rtol=1e-5)
        taken.append(int(found.steps))
    assert len(set(taken)) == 4
    assert taken[2] >= 200


IMPLICIT = ("rodas5p", "kvaerno5", "kvaerno3", "kvaerno4", "kencarp3", "kencarp4", "kencarp5", "implicit_euler")


@pytest.mark.parametrize(
    "method", [name if name == "rodas5p" else pytest.param(name, marks=pytest.mark.slow) for name in IMPLICIT]
)
def test_states_at_times_of_a_stiff_problem_are_as_good_as_steps(method: str) -> None:
    """y' = -k (y - cos t) from 0, whose interpolation between steps may have no digits at all."""
    ts = jnp.linspace(0.0, 10.0, 41)
    k = jnp.array([1.0, 1e3, 1e6])[:, None]
    smooth = k / (1 + k * k)
    exact = k * smooth * (jnp.cos(ts) - jnp.exp(-k * ts)) + smooth * jnp.sin(ts)
    found = jax.vmap(lambda k: solve(lambda t, y, k: -k * (y - jnp.cos(t)), 0.0, k, ts=ts, solver=method))(k[:, 0])
    np.testing.assert_allclose(found.y, exact, rtol=0, atol=1e-3 if method == "implicit_euler" else 1e-5)
    assert found.status.tolist() == [0, 0, 0]
