"""Methods of a search on problems whose minima are published, stepped by a plain loop: unbounded, bounded, constrained, fits.

Sources: W. Hock, K. Schittkowski, Test Examples for Nonlinear Programming Codes, Lecture Notes in Economics and Mathematical Systems 187,
Springer (1981); J. More, B. Garbow, K. Hillstrom, Testing unconstrained optimization software, ACM TOMS 7 (1981) 17-41; NIST Statistical
Reference Datasets, nonlinear regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.scipy_methods import search
from ops.minimize import BFGS, LBFGS, AugmentedLagrangian, Dogleg, GaussNewton, LevenbergMarquardt, NonlinearCG
from ops.minimize.iterates import Box, Evaluation

INF = math.inf
Function = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Problem:
    """A function to minimize, or residuals; limits; the start and what is published of the minimum."""

    start: list[float]
    value: float
    at: list[float] | None = None
    objective: Function | None = None
    residuals: Function | None = None
    constraints: Function = lambda x: jnp.zeros(0)
    lower: Any = -INF
    upper: Any = INF
    low: Any = ()
    high: Any = ()

    @property
    def box(self) -> Box:
        """Its limits."""
        n, k = len(self.start), np.size(self.low)
        ends = ((self.lower, n), (self.upper, n), (self.low, k), (self.high, k))
        return Box(*(jnp.broadcast_to(jnp.asarray(end, float), (size,)) for end, size in ends))

    def evaluate(self, z: jax.Array) -> Evaluation:
        """Value, residuals, constraints and their derivatives."""
        if self.residuals is not None:
            r, jacobian = self.residuals(z), jax.jacfwd(self.residuals)(z)
            value, gradient = 0.5 * r @ r, jacobian.T @ r
        else:
            assert self.objective is not None
            r, jacobian = jnp.zeros(0), jnp.zeros((0, z.size))
            value, gradient = jax.value_and_grad(self.objective)(z)
        c, slopes = self.constraints(z), jax.jacfwd(self.constraints)(z)
        numbers = (value, gradient, r, jacobian, c, slopes)
        fine = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in numbers]))
        return Evaluation(*numbers, fine)


def solved(method: Any, problem: Problem, steps: int = 1000, tolerance: float = 1e-8) -> tuple[Any, int]:
    """The last iterate, whose conditions hold within the tolerance, and the steps it took."""
    box = problem.box
    state = method.init(jnp.asarray(problem.start, float), problem.evaluate(jnp.asarray(problem.start, float)), box)

    @jax.jit
    def step(state: Any) -> Any:
        state, iterate = method.step(state, problem.evaluate, box)
        at, multipliers = iterate.evaluation, method.multipliers(state) if method.constrained else jnp.zeros(0)
        slope = at.gradient + multipliers @ at.constraint_jacobian
        left = jnp.max(jnp.abs(iterate.z - jnp.clip(iterate.z - slope, box.lower, box.upper)))
        broken = jnp.max(jnp.maximum(box.low - at.constraints, at.constraints - box.high), initial=0)
        return state, iterate, jnp.maximum(left, broken)

    for count in range(1, steps + 1):
        state, iterate, left = step(state)
        if left <= tolerance:
            return iterate, count
        assert not iterate.stalled, f"stalled after {count} steps at {iterate.z}, where {left} is left"
    raise AssertionError(f"not solved in {steps} steps: {left} is left at {iterate.z}")


def confirm(problem: Problem, z: Any, value: float, atol: float = 1e-6) -> None:
    """The minimum is the published one."""
    assert float(value) == pytest.approx(problem.value, rel=1e-7, abs=1e-9)
    if problem.at is not None:
        np.testing.assert_allclose(z, problem.at, atol=atol)


def rosenbrock(x: jax.Array) -> jax.Array:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def wood(x: jax.Array) -> jax.Array:
    return (
        100 * (x[1] - x[0] ** 2) ** 2
        + (1 - x[0]) ** 2
        + 90 * (x[3] - x[2] ** 2) ** 2
        + (1 - x[2]) ** 2
        + 10.1 * ((x[1] - 1) ** 2 + (x[3] - 1) ** 2)
        + 19.8 * (x[1] - 1) * (x[3] - 1)
    )


HS2_X = 2 * math.sqrt(598 / 1200) * math.cos(math.acos(1 / (400 * math.sqrt(598 / 1200) ** 3)) / 3)
"""The root of the published closed form for problem 2 of Hock and Schittkowski."""

BOUNDED = {
    "hs1": Problem([-2, 1], 0.0, [1, 1], rosenbrock, lower=[-INF, -1.5]),
    "hs3": Problem([10, 1], 0.0, None, lambda x: x[1] + 1e-5 * (x[1] - x[0]) ** 2, lower=[-INF, 0]),
    "hs4": Problem([1.125, 0.125], 8 / 3, [1, 0], lambda x: (x[0] + 1) ** 3 / 3 + x[1], lower=[1, 0]),
    "hs5": Problem(
        [0, 0],
        -math.sqrt(3) / 2 - math.pi / 3,
        [-math.pi / 3 + 0.5, -math.pi / 3 - 0.5],
        lambda x: jnp.sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1,
        lower=[-1.5, -3],
        upper=[4, 3],
    ),
    "hs38": Problem([-3, -1, -3, -1], 0.0, [1, 1, 1, 1], wood, lower=-10, upper=10),
    "corner": Problem([0, 0], 2.0, [2, 0], lambda x: (x[0] - 3) ** 2 + (x[1] + 1) ** 2, lower=0, upper=2),
    "edge of a logarithm": Problem(
        [0.2], 2.0123562735, [0.8381966011], lambda x: -jnp.log(1 - x[0]) + 50 * (x[0] - 0.9) ** 2, lower=0, upper=1
    ),
    "all fixed but one": Problem([2, 5, 1], 30.0, [2, 5, 1], lambda x: x @ x, lower=[2, 5, 1], upper=[2, 5, 9]),
}

CONSTRAINED = {
    "hs6": Problem([-1.2, 1], 0.0, [1, 1], lambda x: (1 - x[0]) ** 2, None, lambda x: 10 * (x[1:] - x[:1] ** 2), low=[0], high=[0]),
    "hs7": Problem(
        [2, 2], -math.sqrt(3), [0, math.sqrt(3)], lambda x: jnp.log(1 + x[0] ** 2) - x[1], None,
        lambda x: ((1 + x[0] ** 2) ** 2 + x[1] ** 2)[None], low=[4], high=[4],
    ),
    "hs26": Problem(
        [-2.6, 2, 2], 0.0, None, lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4, None,
        lambda x: ((1 + x[1] ** 2) * x[0] + x[2] ** 4)[None], low=[3], high=[3],
    ),
    "hs28": Problem(
        [-4, 1, 1], 0.0, [0.5, -0.5, 0.5], lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2, None,
        lambda x: (x[0] + 2 * x[1] + 3 * x[2])[None], low=[1], high=[1],
    ),
    "hs35": Problem(
        [0.5, 0.5, 0.5], 1 / 9, [4 / 3, 7 / 9, 4 / 9],
        lambda x: 9 - 8 * x[0] - 6 * x[1] - 4 * x[2] + 2 * x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 + 2 * x[0] * (x[1] + x[2]), None,
        lambda x: (x[0] + x[1] + 2 * x[2])[None], lower=0, low=[-INF], high=[3],
    ),
    "hs43": Problem(
        [0, 0, 0, 0], -44.0, [0, 1, 2, -1],
        lambda x: x[0] ** 2 + x[1] ** 2 + 2 * x[2] ** 2 + x[3] ** 2 - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3], None,
        lambda x: jnp.stack([
            8 - x @ x - x[0] + x[1] - x[2] + x[3],
            10 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - 2 * x[3] ** 2 + x[0] + x[3],
            5 - 2 * x[0] ** 2 - x[1] ** 2 - x[2] ** 2 - 2 * x[0] + x[1] + x[3],
        ]), low=[0, 0, 0], high=[INF, INF, INF],
    ),
    "hs48": Problem(
        [3, 5, -3, 2, -2], 0.0, [1, 1, 1, 1, 1], lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2, None,
        lambda x: jnp.stack([x.sum(), x[2] - 2 * (x[3] + x[4])]), low=[5, -3], high=[5, -3],
    ),
    "hs71": Problem(
        [1, 5, 5, 1], 17.0140173, [1, 4.7429994, 3.8211503, 1.3794082],
        lambda x: x[0] * x[3] * x[:3].sum() + x[2], None,
        lambda x: jnp.stack([jnp.prod(x), x @ x]), lower=1, upper=5, low=[25, 40], high=[INF, 40],
    ),
    "half plane": Problem([3, 0], 0.5, [0.5, 0.5], lambda x: x @ x, None, lambda x: x.sum()[None], low=[1], high=[INF]),
}  # fmt: skip

MISRA = np.array(
    [
        [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78],
        [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0],
    ]
)
RAT = np.array([[8.93, 10.8, 18.59, 22.33, 39.35, 56.11, 61.73, 64.62, 67.08], [9, 14, 21, 28, 42, 57, 63, 70, 79]])


def misra1a(start: tuple[float, float]) -> Problem:
    """Misra1a of NIST in units of its start; the objective is half the certified residual sum of squares."""
    right = [238.94212918 / start[0], 5.5015643181e-04 / start[1]]
    return Problem(
        [1, 1],
        1.2455138894e-01 / 2,
        right,
        residuals=lambda b: b[0] * start[0] * (1 - jnp.exp(-b[1] * start[1] * MISRA[1])) - MISRA[0],
    )


def rat42(start: list[float]) -> Problem:
    """Rat42 of NIST."""
    right = [72.462237576, 2.6180768402, 0.067359200066]
    return Problem(
        start, 8.0565229338 / 2, right, residuals=lambda b: b[0] / (1 + jnp.exp(b[1] - b[2] * RAT[1])) - RAT[0]
    )


FITS = {
    "rosenbrock": Problem(
        [-1.2, 1], 0.0, [1, 1], residuals=lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    ),
    "rosenbrock in a box": Problem(
        [-1.2, 1], 0.125, [0.5, 0.25], None, lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]), lower=-2, upper=[0.5, 2]
    ),
    "misra1a, first start": misra1a((500, 1e-4)),
    "misra1a, second start": misra1a((250, 5e-4)),
    "rat42, first start": rat42([100, 1, 0.1]),
    "rat42, second start": rat42([75, 2.5, 0.07]),
    "powell, badly scaled": Problem(
        [0, 1],
        0.0,
        [1.098159e-5, 9.106147],
        residuals=lambda x: jnp.stack([1e4 * x[0] * x[1] - 1, jnp.exp(-x[0]) + jnp.exp(-x[1]) - 1.0001]),
    ),
    "jennrich and sampson": Problem(
        [0.3, 0.4],
        124.36218235561 / 2,
        [0.257825, 0.257825],
        residuals=lambda x: 2 + 2 * jnp.arange(1, 11) - jnp.exp(jnp.arange(1, 11) * x[0]) - jnp.exp(jnp.arange(1, 11) * x[1]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", [BFGS(), LBFGS(), NonlinearCG()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("n", [2, 5, 20])
def test_rosenbrock(method: Any, n: int) -> None:
    problem = Problem([-1.2, 1, *[-1.2, 1] * 9][:n], 0.0, [1.0] * n, rosenbrock)
    found, steps = solved(method, problem, tolerance=1e-8)
    confirm(problem, found.z, found.evaluation.value)
    assert steps <= (1000 if isinstance(method, NonlinearCG) else 25 + 15 * n)


@pytest.mark.parametrize("method", [BFGS(), LBFGS(), NonlinearCG()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounded(method: Any, name: str) -> None:
    found, _ = solved(method, BOUNDED[name])
    confirm(BOUNDED[name], found.z, found.evaluation.value)


@pytest.mark.parametrize("method", [BFGS(), LBFGS(), NonlinearCG()], ids=lambda m: type(m).__name__)
def test_a_minimum_with_an_active_bound_that_curves(method: Any) -> None:
    """Problem 2 of Hock and Schittkowski has two minima on the bound; from its start the one or the other is found."""
    problem = Problem([-2, 1.5], 0.0, None, rosenbrock, lower=[-INF, 1.5])
    found, _ = solved(method, problem)
    assert found.z[1] == 1.5
    right = [0.0504261879, 4.94122931799]
    assert min(abs(float(found.evaluation.value) - value) for value in right) < 1e-8
    if found.z[0] > 0:
        assert float(found.z[0]) == pytest.approx(HS2_X, abs=1e-7)


@pytest.mark.parametrize("method", [GaussNewton(), LevenbergMarquardt(), Dogleg()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("name", FITS)
def test_fits(method: Any, name: str) -> None:
    if isinstance(method, GaussNewton) and name == "jennrich and sampson":
        return  # its columns become equal on the way, where Gauss and Newton's method is known to fail
    found, _ = solved(method, FITS[name], steps=400, tolerance=1e-6)
    assert float(found.evaluation.value) == pytest.approx(FITS[name].value, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(found.z, FITS[name].at, rtol=1e-6)


@pytest.mark.parametrize("method", [GaussNewton(), LevenbergMarquardt(), Dogleg()], ids=lambda m: type(m).__name__)
def test_a_fit_whose_parameters_cannot_be_told_apart(method: Any) -> None:
    """Only the product is determined: the point of the line of minima that is near the start, in few steps."""
    t = jnp.arange(1.0, 6.0)
    problem = Problem([1, 1], 0.0, [math.sqrt(3)] * 2, residuals=lambda x: x[0] * x[1] * t - 3 * t)
    found, steps = solved(method, problem)
    confirm(problem, found.z, found.evaluation.value)
    assert steps < 10


@pytest.mark.parametrize("name", CONSTRAINED)
def test_augmented_lagrangian(name: str) -> None:
    found, _ = solved(AugmentedLagrangian(), CONSTRAINED[name])
    confirm(CONSTRAINED[name], found.z, found.evaluation.value)


def test_multipliers() -> None:
    """Of x + y >= 1 at the least x^2 + y^2: the gradient (1, 1) is held by a multiplier of -1 on (1, 1)."""
    problem, method = CONSTRAINED["half plane"], AugmentedLagrangian()
    state = method.init(jnp.asarray([3.0, 0.0]), problem.evaluate(jnp.asarray([3.0, 0.0])), problem.box)
    step = jax.jit(lambda state: method.step(state, problem.evaluate, problem.box)[0])
    for _ in range(30):
        state = step(state)
    np.testing.assert_allclose(method.multipliers(state), [-1.0], rtol=1e-7)


def test_constraints_that_cannot_be_met_end_the_search() -> None:
    """x + y <= 0 and >= 1: the least violation of both is one half."""
    problem = Problem(
        [3, 0], 0, None, lambda x: x @ x, None, lambda x: jnp.stack([x.sum(), x.sum()]), low=[-INF, 1], high=[0, INF]
    )
    method = AugmentedLagrangian()
    state = method.init(jnp.asarray([3.0, 0.0]), problem.evaluate(jnp.asarray([3.0, 0.0])), problem.box)
    step = jax.jit(lambda state: method.step(state, problem.evaluate, problem.box))
    for _ in range(400):
        state, iterate = step(state)
        if iterate.stalled:
            break
    assert iterate.stalled
    np.testing.assert_allclose(iterate.z, [0.25, 0.25], atol=1e-6)


def by_scipy(name: str, problem: Problem, steps: int = 600, product: Any = None) -> tuple[Any, list[Any]]:
    """The outcome of one of SciPy's methods and the points that it evaluated."""
    box, evaluate, points = problem.box, jax.jit(problem.evaluate), []

    def noted(z: Any) -> Evaluation:
        points.append(np.array(z))
        return jax.tree_util.tree_map(np.asarray, evaluate(z))

    arrays = Box(*(np.asarray(end) for end in box))
    start = np.asarray(problem.start, float)
    return search(name, noted, start, arrays, steps, 1e-8, lambda *_: None, product), points


def product_of(problem: Problem) -> Any:
    """The Hessian of a problem's Lagrangian times a direction."""

    @jax.jit
    def times(z: Any, weight: Any, multipliers: Any, direction: Any) -> Any:
        def slope(z: Any) -> Any:
            seen = problem.evaluate(z)
            return weight * seen.gradient + multipliers @ seen.constraint_jacobian

        return jax.jvp(slope, (z,), (direction,))[1]

    return times


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("method", ["lbfgsb", "slsqp", "trust_constr"])
def test_scipy_bounded(method: str, name: str) -> None:
    problem = BOUNDED[name]
    found, points = by_scipy(method, problem)
    assert all((z >= problem.box.lower).all() and (z <= problem.box.upper).all() for z in points)
    assert float(problem.evaluate(found.z).value) == pytest.approx(problem.value, rel=1e-6, abs=1e-7)
    if problem.at is not None:
        np.testing.assert_allclose(found.z, problem.at, atol=1e-5)


@pytest.mark.parametrize("name", CONSTRAINED)
@pytest.mark.parametrize("method", ["slsqp", "trust_constr"])
def test_scipy_constrained(method: str, name: str) -> None:
    found, _ = by_scipy(method, CONSTRAINED[name])
    value = float(CONSTRAINED[name].evaluate(found.z).value)
    flat = (method, name) == ("trust_constr", "hs26")  # of fourth order around its minimum
    assert value == pytest.approx(CONSTRAINED[name].value, rel=1e-6, abs=1e-4 if flat else 1e-7)


@pytest.mark.parametrize("name", [*BOUNDED, *CONSTRAINED])
def test_trust_constr_by_products_with_the_hessian(name: str) -> None:
    """The same minima as without; those of fourth order are found too, since the curvature is known where it vanishes."""
    problem = (BOUNDED | CONSTRAINED)[name]
    found, points = by_scipy("trust_constr", problem, product=product_of(problem))
    assert all((z >= problem.box.lower).all() and (z <= problem.box.upper).all() for z in points)
    assert float(problem.evaluate(found.z).value) == pytest.approx(problem.value, rel=1e-6, abs=1e-7)


def test_products_that_are_not_finite_are_done_without() -> None:
    """The search goes on as if no products were given."""
    problem = Problem([3.0, -1.0], 0.0, [1.0, 2.0], lambda x: jnp.sum((x - jnp.array([1.0, 2.0])) ** 2))
    asked: list[bool] = []

    def product(z: Any, weight: Any, multipliers: Any, direction: Any) -> Any:
        asked.append(True)
        return np.full(2, np.nan)

    found, _ = by_scipy("trust_constr", problem, product=product)
    assert len(asked) == 1
    np.testing.assert_allclose(found.z, [1.0, 2.0], atol=1e-5)


@pytest.mark.parametrize("method", ["lbfgsb", "slsqp", "trust_constr"])
def test_scipy_is_led_back_from_where_nothing_is_finite(method: str) -> None:
    """The minimum at 0.25 is found although the first steps lead to where the square root is NaN."""
    problem = Problem([3.0], -0.25, [0.25], lambda x: x[0] - jnp.sqrt(x[0]), lower=-100, upper=100)
    found, points = by_scipy(method, problem)
    assert found.success
    assert any(z[0] < 0 for z in points)
    np.testing.assert_allclose(found.z, [0.25], atol=1e-6)


def test_scipy_claims_no_minimum_at_the_edge_of_what_is_finite() -> None:
    problem = Problem(
        [-3.0], -1, None, lambda x: jnp.where(x[0] >= 0.5, jnp.nan, (x[0] - 0.5) ** 2 - x[0]), lower=-10, upper=10
    )
    for method in ("lbfgsb", "slsqp", "trust_constr"):
        found, _ = by_scipy(method, problem)
        assert float(found.z[0]) == pytest.approx(0.5, abs=1e-3)
        assert not found.success
