"""Rodas5P against closed forms and published values: its coefficients, orders, derivatives, and equations with a mass matrix."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import ensemble
from ops.ode import default_adjoint, solve
from ops.rosenbrock import A_ROWS, C_ROWS, GAMMA, NODES, OF_TIME, PLAIN, between, factored, solved, step
from pipelines import hires, oregonator, robertson, van_der_pol
from tests.refusals import assert_refused

GIVEN = np.linalg.inv(np.eye(8) / GAMMA - C_ROWS)
ALPHA = A_ROWS @ GIVEN
BETA = ALPHA + GIVEN
WEIGHTS = [*A_ROWS[-1][:7], 1.0] @ GIVEN
EMBEDDED = A_ROWS[-1] @ GIVEN


def conditions(b: Any) -> dict[int, list[float]]:
    """What is left of the order conditions of Rosenbrock methods (Hairer and Wanner, Solving ODEs II, IV.7), by order."""
    a, e = ALPHA.sum(1), BETA.sum(1)
    return {
        1: [b.sum() - 1],
        2: [b @ e - 1 / 2],
        3: [b @ a**2 - 1 / 3, b @ BETA @ e - 1 / 6],
        4: [b @ a**3 - 1 / 4, b @ (a * (ALPHA @ e)) - 1 / 8, b @ BETA @ a**2 - 1 / 12, b @ BETA @ BETA @ e - 1 / 24],
        5: [
            b @ a**4 - 1 / 5,
            b @ (a**2 * (ALPHA @ e)) - 1 / 10,
            b @ (ALPHA @ e) ** 2 - 1 / 20,
            b @ (a * (ALPHA @ a**2)) - 1 / 15,
            b @ (a * (ALPHA @ BETA @ e)) - 1 / 30,
            b @ BETA @ a**3 - 1 / 20,
            b @ BETA @ (a * (ALPHA @ e)) - 1 / 40,
            b @ BETA @ BETA @ a**2 - 1 / 60,
            b @ BETA @ BETA @ BETA @ e - 1 / 120,
        ],
    }


def test_the_coefficients_fulfil_the_order_conditions() -> None:
    for order, left in conditions(WEIGHTS).items():
        np.testing.assert_allclose(left, 0, atol=3e-14, err_msg=str(order))
    embedded = conditions(EMBEDDED)
    for order in (1, 2, 3, 4):
        np.testing.assert_allclose(embedded[order], 0, atol=3e-14, err_msg=str(order))
    assert max(map(abs, embedded[5])) > 1e-3
    np.testing.assert_allclose(ALPHA.sum(1), NODES, atol=1e-13)
    np.testing.assert_allclose(GIVEN.sum(1), OF_TIME, atol=1e-13)
    np.testing.assert_allclose(WEIGHTS, BETA[-1], atol=1e-14)  # stiffly accurate
    np.testing.assert_allclose(EMBEDDED[:7], BETA[-2, :7], atol=1e-14)


def test_damping_of_stiff_components() -> None:
    """A-stable: |R(iy)| <= 1 on the imaginary axis; L-stable: R falls as 1 / z; the embedded method too."""
    for b in (WEIGHTS, EMBEDDED):
        growth = [
            1 + 1j * y * (b @ np.linalg.solve(np.eye(8) - 1j * y * BETA, np.ones(8))) for y in np.logspace(-2, 4, 200)
        ]
        assert max(map(abs, growth)) <= 1 + 1e-9
        assert abs(growth[-1]) < 2e-3
    found = solve(lambda t, y, a: -1e12 * y, 1.0, t1=1.0, solver="rodas5p", step=0.5)
    assert abs(float(found.y)) < 1e-20


def rotation(t: Any, y: Any) -> Any:
    """Nonlinear and of time: y = (exp sin t^2, exp cos t^2)."""
    return jnp.stack([2 * t * y[0] * jnp.log(y[1]), -2 * t * y[1] * jnp.log(y[0])])


def rotated(t: float) -> Any:
    return np.exp([math.sin(t * t), math.cos(t * t)])


def test_orders_of_one_step() -> None:
    """The error of a step falls with h^6, that of the embedded method and of the polynomial between with h^5."""
    errors = []
    for h in (0.1, 0.05, 0.025):
        found = step(lambda part, y, h=h: h * rotation(0.5 + part * h, y), jnp.array(rotated(0.5)))
        inside = between(0.4, rotated(0.5), found.y, found.dense)
        both = [found.y, found.y - found.error]
        errors.append(
            [*(np.linalg.norm(y - rotated(0.5 + h)) for y in both), np.linalg.norm(inside - rotated(0.5 + 0.4 * h))]
        )
    _, rate = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert rate == pytest.approx([6, 5, 5], abs=0.45)


def test_the_order_of_a_solve_and_of_what_is_between_its_steps() -> None:
    """y' = -50 (y - cos t) - sin t + (y - cos t)^2, from beside its slow solution."""

    def exact(t: Any) -> Any:  # u' = -50 u + u^2
        return 1 / (1 / 50 + (1 / 0.5 - 1 / 50) * jnp.exp(50 * t)) + jnp.cos(t)

    def field(t: Any, y: Any, args: Any) -> Any:
        return -50 * (y - jnp.cos(t)) - jnp.sin(t) + (y - jnp.cos(t)) ** 2

    @jax.jit
    def errors(h: Any) -> Any:
        found = solve(field, 1.5, t1=0.1, solver="rodas5p", step=h, dense=True, max_steps=200)
        inside = found.interpolation((jnp.arange(5) + 0.5) * 0.02)
        return jnp.abs(found.y - exact(0.1)), jnp.max(jnp.abs(inside - exact((jnp.arange(5) + 0.5) * 0.02)))

    coarse, fine = errors(0.1 / 80), errors(0.1 / 160)
    rates = [math.log2(a / b) for a, b in zip(coarse, fine, strict=True)]
    assert rates[0] == pytest.approx(5, abs=0.2)
    assert rates[1] > 3.8


@pytest.mark.parametrize(("stiffness", "bound"), [(1e3, 5e-9), (1e6, 1e-11)])
def test_a_stiff_solution_that_is_smooth(stiffness: float, bound: float) -> None:
    """The problem of Prothero and Robinson: of the stiffness the error has no more than a part, and falls with h^3 at least."""

    @jax.jit
    def error(h: Any) -> Any:
        found = solve(
            lambda t, y, a: -stiffness * (y - jnp.sin(t)) + jnp.cos(t),
            0.0,
            t1=2.0,
            solver="rodas5p",
            step=h,
            ts="steps",
            max_steps=99,
        )
        return jnp.nanmax(jnp.abs(found.y - jnp.sin(found.t)))

    coarse, fine = float(error(0.1)), float(error(0.05))
    assert coarse < bound and math.log2(coarse / fine) > 2.9


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
"""Field, start, args, end, atol, and the end state in the test set for IVP solvers of Bari."""


@pytest.mark.parametrize("problem", PUBLISHED)
def test_published_values_of_stiff_problems(problem: str) -> None:
    field, start, args, end, atol, exact = PUBLISHED[problem]
    found = jax.jit(lambda: solve(field, start, args, t1=end, solver="rodas5p", rtol=1e-8, atol=atol))()
    assert int(found.status) == 0
    np.testing.assert_allclose(np.ravel(jnp.stack(jax.tree_util.tree_leaves(found.y))), exact, rtol=2e-6)
    assert int(found.steps) < 3000


@pytest.mark.parametrize("shape", [(3, 3), (9, 9), (PLAIN + 4, PLAIN + 4), (3, 3, 5)])
def test_elimination(shape: tuple[int, ...]) -> None:
    """Also where a pivot is zero, for each lane, and with the derivatives of the inverse."""
    random = np.random.default_rng(3)
    matrix, right = random.normal(size=shape), random.normal(size=shape[1:])
    matrix[0, 0] = 0

    def ours(matrix: Any, right: Any) -> Any:
        factors, matrix = factored(matrix)
        return solved(matrix, factors, right)

    def exact(matrix: Any, right: Any) -> Any:
        if matrix.ndim == 2:
            return jnp.linalg.solve(matrix, right)
        return jnp.moveaxis(jnp.linalg.solve(jnp.moveaxis(matrix, -1, 0), right.T[..., None])[..., 0], 0, -1)

    np.testing.assert_allclose(ours(matrix, right), exact(matrix, right), rtol=1e-10)
    for by in (
        lambda f: jax.jacrev(f, (0, 1)),
        lambda f: jax.jacfwd(f, (0, 1)),
        lambda f: jax.hessian(lambda m, r: jnp.sum(f(m, r)[0])),
    ):
        if len(shape) == 2 and shape[0] == 3:
            jax.tree_util.tree_map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9),
                by(ours)(matrix, right),
                by(exact)(matrix, right),
            )
    assert not bool(jnp.all(factored(jnp.zeros(shape))[0].regular))


def logistic(t: Any, y: Any, r: Any) -> Any:
    return {"n": r * y["n"] * (1 - y["n"]), "t": jnp.cos(t)}


def test_derivatives_in_both_modes() -> None:
    """n = 1 / (1 + 9 exp(-r t)) from 0.1, by the rate, by the start, by the end; the steps resolve them."""

    def final(r: Any, start: Any, end: Any) -> Any:
        found = solve(logistic, {"n": start, "t": 0.0}, r, t1=end, solver="rodas5p", rtol=1e-8, atol=1e-10)
        return found.y["n"]

    def exact(r: Any, start: Any, end: Any) -> Any:
        return 1 / (1 + (1 / start - 1) * jnp.exp(-r * end))

    at = 2.0, 0.1, 1.5
    expected = jax.grad(exact, (0, 1, 2))(*at)
    for mode, derivative in (("checkpointed", jax.grad), ("forward", jax.jacfwd)):
        with default_adjoint(mode):
            found = jax.jit(derivative(final, (0, 1, 2)))(*at)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_times_events_jumps_and_both_precisions() -> None:
    """What the other methods do: each against y = exp(-t), or its like."""
    decay: Any = lambda t, y, a: -y  # noqa: E731
    found = solve(decay, jnp.ones((2, 1)), ts=[0.0, 0.3, 1.0, 2.0], solver="rodas5p", rtol=1e-8)
    np.testing.assert_allclose(found.y[:, 1, 0], np.exp(-np.array([0.0, 0.3, 1.0, 2.0])), rtol=1e-6)
    back = solve(decay, math.exp(-1), t0=1.0, t1=0.0, solver="rodas5p", rtol=1e-8)
    np.testing.assert_allclose(back.y, 1, rtol=1e-6)
    met = solve(decay, 1.0, t1=5.0, event=lambda t, y, a: y - 0.1, solver="rodas5p", rtol=1e-9)
    np.testing.assert_allclose(met.event_time, math.log(10), rtol=1e-7)
    pulse = solve(
        lambda t, y, a: jnp.where(t < 0.5, 1.0, -1.0) - y, 0.0, t1=1.0, jumps=[0.5], solver="rodas5p", rtol=1e-9
    )
    np.testing.assert_allclose(pulse.y, (2 - math.exp(-0.5)) * math.exp(-0.5) - 1, rtol=1e-7)
    with jax.enable_x64(False):
        single = solve(decay, 1.0, t1=1.0, solver="rodas5p", rtol=1e-5)
    assert single.y.dtype == np.float32
    np.testing.assert_allclose(single.y, math.exp(-1), rtol=1e-4)


def test_each_sample_of_an_ensemble_takes_the_steps_that_it_takes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Robertson's reaction in the pool of lanes, and by diffrax: steps, states at times of saving, and derivatives."""

    def states(rate: Any) -> Any:
        return solve(
            robertson.vector_field,
            robertson.Concentrations(1.0, 0.0, 0.0),
            (rate, 3e7, 1e4),
            ts=[1.0, 100.0],
            solver="rodas5p",
            atol=1e-10,
        )

    def together(rates: Any) -> tuple[Any, Any]:
        with default_adjoint("checkpointed"):
            slopes = jax.jit(jax.vmap(jax.grad(lambda k: jnp.sum(states(k).y[0]))))(rates)
        return jax.jit(jax.vmap(states))(rates), slopes

    rates = jnp.logspace(-3, 0, 5)
    pooled, slopes = together(rates)
    monkeypatch.setattr(ensemble, "hindrance", lambda *_: "compared")
    alone, expected = together(rates)
    np.testing.assert_array_equal(pooled.accepted, alone.accepted)
    np.testing.assert_array_equal(pooled.rejected, alone.rejected)
    assert len(set(pooled.accepted.tolist())) > 2
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), (pooled.y, slopes), (alone.y, expected)
    )


# ---- with a mass matrix


def conserving(t: Any, y: Any, k: Any) -> Any:
    """Robertson's reaction with the conservation of mass instead of the last rate."""
    slow = -k[0] * y[0] + k[2] * y[1] * y[2]
    return jnp.stack([slow, -slow - k[1] * y[1] ** 2, y[0] + y[1] + y[2] - 1])


TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]


@pytest.mark.parametrize("written", ["diagonal", "matrix", "turned", "traced"])
def test_robertson_with_conservation_as_an_equation(written: str) -> None:
    """In several forms of the matrix; the third concentration, which the equation determines, is given wrong."""
    matrix: Any = {"diagonal": [1.0, 1.0, 0.0], "turned": TURN @ np.diag([1.0, 1, 0])}.get(
        written, np.diag([1.0, 1, 0])
    )
    turn = TURN if written == "turned" else np.eye(3)

    @jax.jit
    def final(matrix: Any) -> Any:
        return solve(
            lambda t, y, k: turn @ conserving(t, y, k), [1.0, 0.0, 0.3], jnp.array([0.04, 3e7, 1e4]), t1=1e11, solver="rodas5p",
            rtol=1e-8, atol=1e-14, mass_matrix=matrix if written == "traced" else MATRIX,
        )  # fmt: skip

    MATRIX = matrix
    found = final(np.asarray(matrix))
    assert int(found.status) == 0
    np.testing.assert_allclose(found.y, PUBLISHED["robertson"][-1], rtol=2e-6)


def linear(t: Any, y: Any, p: Any) -> Any:
    """x' = -a x + z, 0 = z - b x - c sin t."""
    return {"x": -p[0] * y["x"] + y["z"], "z": y["z"] - p[1] * y["x"] - p[2] * jnp.sin(t)}


def linear_solution(p: Any, t: Any) -> Any:
    """Its x and z from x(0) = 1."""
    rate = p[1] - p[0]
    sine, cosine = -p[2] * rate / (rate**2 + 1), -p[2] / (rate**2 + 1)
    x = sine * jnp.sin(t) + cosine * jnp.cos(t) + (1 - cosine) * jnp.exp(rate * t)
    return jnp.stack([x, p[1] * x + p[2] * jnp.sin(t)])


def test_a_linear_equation_with_its_derivatives() -> None:
    """By the parameters, of which one moves the consistent start, at the start itself and at the end."""
    p, ts = jnp.array([2.0, 0.5, 0.7]), [0.0, 1.5]

    def states(p: Any) -> Any:
        found = solve(
            linear,
            {"x": 1.0, "z": 0.0},
            p,
            ts=ts,
            solver="rodas5p",
            rtol=1e-9,
            atol=1e-11,
            mass_matrix={"x": 1.0, "z": 0.0},
        )
        return jnp.stack([found.y["x"], found.y["z"]], -1)

    def exact(p: Any) -> Any:
        return jnp.stack([linear_solution(p, t) for t in ts])

    np.testing.assert_allclose(jax.jit(states)(p), exact(p), rtol=1e-8, atol=1e-12)
    expected = jax.jacfwd(exact)(p)
    for mode, derivative in (("checkpointed", jax.jacrev), ("forward", jax.jacfwd)):
        with default_adjoint(mode):
            np.testing.assert_allclose(jax.jit(derivative(states))(p), expected, rtol=1e-7, atol=1e-10)


def test_an_event_and_dense_output_of_an_algebraic_component() -> None:
    p = jnp.array([2.0, 0.5, 0.7])
    found = solve(
        linear, {"x": 1.0, "z": 0.5}, p, t1=3.0, solver="rodas5p", rtol=1e-9, atol=1e-11, mass_matrix=[1.0, 0.0], dense=True,
        event=lambda t, y, a: y["z"] - 0.8,
    )  # fmt: skip
    np.testing.assert_allclose(linear_solution(p, found.event_time)[1], 0.8, rtol=1e-7)
    inside = found.interpolation(jnp.array([0.1, 0.7]))
    np.testing.assert_allclose(
        jnp.stack([inside["x"], inside["z"]]), linear_solution(p, jnp.array([0.1, 0.7])), rtol=1e-7
    )


def test_an_algebraic_component_jumps_with_the_equation() -> None:
    """x' = -z, 0 = z^3 + z - u x, where u jumps from 2 to 10."""

    def field(t: Any, y: Any, at: Any) -> Any:
        return jnp.stack([-y[1], y[1] ** 3 + y[1] - jnp.where(t < at, 2.0, 10.0) * y[0]])

    def final(at: Any) -> Any:
        return solve(
            field, [1.0, 0.0], at, t1=1.0, jumps=[at], solver="rodas5p", rtol=1e-9, atol=1e-11, mass_matrix=[1.0, 0.0]
        )

    found = jax.jit(final)(0.5)
    assert int(found.status) == 0 and int(found.rejected) < 30
    np.testing.assert_allclose(found.y[1] ** 3 + found.y[1], 10 * found.y[0], rtol=1e-7)
    by_time = jax.jit(jax.grad(lambda at: final(at).y[0]))(0.5)
    moved = jax.jit(jax.vmap(lambda at: final(at).y[0]))(jnp.array([0.4999, 0.5001]))
    np.testing.assert_allclose(by_time, (moved[1] - moved[0]) / 2e-4, rtol=1e-5)


def test_a_regular_matrix_that_is_differentiated_and_batched() -> None:
    """M y' = -y: y = exp(-M^-1 t) y0."""
    matrix = jnp.array([[2.0, 1.0], [0.0, 3.0]])

    def final(matrix: Any) -> Any:
        return solve(
            lambda t, y, a: -y, [1.0, 2.0], t1=1.0, solver="rodas5p", mass_matrix=matrix, rtol=1e-9, atol=1e-12
        ).y

    def exact(matrix: Any) -> Any:
        return jax.scipy.linalg.expm(-jnp.linalg.inv(matrix)) @ jnp.array([1.0, 2.0])

    some = jnp.stack([matrix, 2 * matrix])
    np.testing.assert_allclose(jax.jit(jax.vmap(final))(some), jax.vmap(exact)(some), rtol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.jacrev(final))(matrix), jax.jacrev(exact)(matrix), rtol=1e-7)


def test_equations_without_a_solution_or_of_higher_index() -> None:
    """A failure among others: no real root, and an equation that does not hold what it is for."""
    for last in (lambda y: y[1] ** 2 + 1, lambda y: y[0] - 1):
        found = solve(
            lambda t, y, a, last=last: jnp.stack([-y[0], last(y)]),
            [1.0, 1.0],
            t1=1.0,
            solver="rodas5p",
            mass_matrix=[1.0, 0.0],
        )
        assert int(found.status) == 4 and np.isnan(found.y).all() and int(found.steps) == 0

    def final(c: Any) -> Any:
        field = lambda t, y, a: jnp.stack([-y[0], y[1] ** 2 - c])  # noqa: E731
        return solve(field, [1.0, 1.0], t1=1.0, solver="rodas5p", mass_matrix=[1.0, 0.0])

    sums = jax.jit(jax.vmap(final))(jnp.array([-1.0, 4.0]))
    assert sums.status.tolist() == [4, 0]
    np.testing.assert_allclose(sums.y[1], [math.exp(-1), 2], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "kvaerno5", "mass_matrix": [1.0, 0.0]}, "with solver kvaerno5.*rodas5p"),
        ({"mass_matrix": [1.0, 0.0, 0.0]}, r"shape \(2, 2\).*\(3,\)"),
        ({"mass_matrix": {"x": 1.0}}, "in its structure"),
        ({"mass_matrix": [1.0, math.nan]}, "finite"),
        ({"mass_matrix": [1.0, 1j]}, "real"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    assert_refused(
        lambda: solve(linear, {"x": 1.0, "z": 0.0}, [2.0, 0.5, 0.7], t1=1.0, **{"solver": "rodas5p"} | settings),
        message,
    )
