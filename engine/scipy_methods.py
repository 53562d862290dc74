"""SciPy's L-BFGS-B, SLSQP and trust-constr with exact derivatives, one search at a time on the host.

In: a function that evaluates objective, constraints and their derivatives at a point. Out: the point where the method ended, and what it
said. What these methods lack is added around them: no point outside the bounds is evaluated, and an evaluation that is not fine shortens
the step. The latter cannot be told to them: the search begins again at its last iterate, inside a box that reaches half as far as the
point that failed; a box that turns out to be in the way grows again.

Sources: R. Byrd, P. Lu, J. Nocedal, C. Zhu, SIAM J. Sci. Comput. 16 (1995) 1190-1208; D. Kraft, A software package for sequential
quadratic programming, DFVLR-FB 88-28 (1988); R. Byrd, M. Hribar, J. Nocedal, SIAM J. Optim. 9 (1999) 877-900.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import optimize
from scipy.sparse.linalg import LinearOperator

from engine.evaluation import Box, Evaluation

Array = np.ndarray[Any, Any]

Product = Callable[[Array, float, Array, Array], Array]
"""The Hessian of a Lagrangian at z, for a weight of the objective and multipliers, times a direction."""

NAMES = ("lbfgsb", "slsqp", "trust_constr")
"""The methods."""

KEPT = 64
"""Evaluations that are kept: objective, gradient, constraints and Jacobian of a point are asked for one after the other."""

EDGE = 1e-2
"""How far inside the bounds trust-constr begins, as a part of their distance, and at most in scaled units."""

LEAST_ROOM = 1e-6
"""Half the width of a box below which what a method claims says nothing of the problem: next to it nothing is finite."""

LEAST_SLOPE = 1e-5
"""The projected gradient above which the other methods, which end by tests of their own, have not found a minimum."""

SETTLED = 1e-5
"""Distance from a bound within which a barrier may have kept a variable that belongs onto it."""


@dataclass(frozen=True)
class SciPyMethod:
    """One of SciPy's methods. Static."""

    name: str
    """One of `NAMES`."""

    reason: str = ""
    """Why it was chosen, where that was left to the engine."""

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    on_host: ClassVar[bool] = True

    @property
    def constrained(self) -> bool:
        """Whether it honours constraints."""
        return self.name != "lbfgsb"

    @property
    def takes_products(self) -> bool:
        """Whether it works with products of the Hessian."""
        return self.name == "trust_constr"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"SciPyMethod({self.name!r})"


class SciPyOutcome(NamedTuple):
    """Where a search ended."""

    z: Array
    """The last iterate, (n,)."""

    message: str
    """What the method said."""

    success: bool
    """Whether its conditions of a minimum hold there."""


class NotFine(Exception):
    """An evaluation could not be used."""

    def __init__(self, z: Array) -> None:
        super().__init__("an evaluation is not finite")
        self.z = z


def search(
    name: str,
    evaluate: Callable[[Array], Evaluation],
    z0: Array,
    box: Box,
    max_steps: int,
    tolerance: float,
    on_step: Callable[[Array, Evaluation], Any],
    product: Product | None = None,
) -> SciPyOutcome:
    """Minimize from one start.

    Args:
        name: one of `NAMES`.
        evaluate: the evaluation, in NumPy arrays, at z, (n,).
        z0: the start, (n,), in the box; its evaluation is fine.
        box: the limits.
        max_steps: iterations after which to give up.
        tolerance: of the projected gradient; of trust-constr's also of the Lagrangian's.
        on_step: called with each iterate and its evaluation; an exception that it raises ends the search and is passed on.
        product: the Hessian of `weight` x objective + `multipliers` (k,) x constraints at z, (n,), times a direction, (n,): trust-constr
            takes it, and without it learns the curvature from the gradients by BFGS. The others have no use for it.
    """
    whole = Points(evaluate, np.array(z0, dtype=np.float64), box, on_step, product)
    if not whole.free.any():
        return SciPyOutcome(whole.last, "all variables are fixed by their bounds", True)
    radius, message = np.inf, ""
    while whole.steps < max_steps:
        inner = whole.within(radius)
        try:
            found = METHODS[name](whole, inner, max_steps - whole.steps, tolerance)
        except NoCurvature:
            whole.product = None
            continue
        except NotFine as failed:
            radius = 0.5 * float(np.max(np.abs(failed.z - whole.last)))
            if radius <= np.finfo(np.float64).eps * max(1.0, float(np.max(np.abs(whole.last)))):
                return SciPyOutcome(whole.last, "no finite evaluation next to the last iterate", False)
            continue
        start, end, message = inner.center, whole.filled(found.x), str(found.message)
        whole.last = end
        if not inner.hindered(end) or np.array_equal(start, end):
            if name == "trust_constr":
                end = whole.settled()
            return SciPyOutcome(
                end,
                message,
                whole.succeeded(
                    name, end, bool(found.success) and radius > LEAST_ROOM and not inner.hindered(end), tolerance
                ),
            )
        radius *= 4
    return SciPyOutcome(whole.last, message or f"{max_steps} steps are done", False)


class NoCurvature(Exception):
    """A product with the Hessian is not finite, where the evaluation is: at a kink, or where a second derivative overflows."""


class Inner(NamedTuple):
    """The bounds of one run of a method."""

    center: Array
    lower: Array
    upper: Array
    box: Box

    def hindered(self, z: Array) -> bool:
        """Whether a point is held by a bound that the problem does not have, or kept close to it by a barrier."""
        near = EDGE * np.minimum(1.0, self.upper - self.lower)
        low = (z <= self.lower + near) & (self.lower > self.box.lower)
        return bool(np.any(low | ((z >= self.upper - near) & (self.upper < self.box.upper))))


class Points:
    """The evaluations of a search, in the variables that their bounds do not fix."""

    def __init__(
        self,
        evaluate: Callable[[Array], Evaluation],
        z0: Array,
        box: Box,
        on_step: Callable[[Array, Evaluation], Any],
        product: Product | None = None,
    ) -> None:
        self.evaluate, self.box, self.on_step = evaluate, Box(*(np.asarray(end, np.float64) for end in box)), on_step
        self.product = product
        self.last = np.clip(z0, self.box.lower, self.box.upper)
        self.free = self.box.lower < self.box.upper
        self.known: dict[bytes, Evaluation] = {}
        self.steps = 0

    def within(self, radius: float) -> Inner:
        """The bounds no farther than `radius` from the last iterate."""
        lower, upper = (
            np.maximum(self.box.lower, self.last - radius),
            np.minimum(self.box.upper, self.last + radius),
        )
        return Inner(self.last, lower, upper, self.box)

    def bounds(self, inner: Inner) -> optimize.Bounds:
        """The same for SciPy."""
        return optimize.Bounds(inner.lower[self.free], inner.upper[self.free], keep_feasible=True)

    def filled(self, x: Array) -> Array:
        """The whole point for its free variables, inside the bounds."""
        z = self.last.copy()
        z[self.free] = x
        inside: Array = np.clip(z, self.box.lower, self.box.upper)
        return inside

    def at(self, x: Array) -> Evaluation:
        """The evaluation for the free variables.

        Raises:
            NotFine: it cannot be used.
        """
        z = self.filled(x)
        key = z.tobytes()
        if key not in self.known:
            found = self.evaluate(z)
            if not found.fine:
                raise NotFine(z)
            while len(self.known) >= KEPT:
                self.known.pop(next(iter(self.known)))
            self.known[key] = found
        return self.known[key]

    def value(self, x: Array) -> float:
        """The objective."""
        return float(self.at(x).value)

    def gradient(self, x: Array) -> Array:
        """Its gradient in the free variables."""
        slope: Array = np.asarray(self.at(x).gradient, np.float64)[self.free]
        return slope

    def constraints(self, x: Array) -> Array:
        """The constrained outputs, (k,)."""
        return np.asarray(self.at(x).constraints, np.float64)

    def jacobian(self, x: Array) -> Array:
        """Their Jacobian in the free variables, (k, free)."""
        return np.asarray(self.at(x).constraint_jacobian, np.float64)[:, self.free]

    def curvature(self, x: Array, weight: float, multipliers: Array) -> LinearOperator:
        """The Hessian of the weighted objective and constraints in the free variables, as its products.

        Raises:
            NoCurvature: when it is applied, where a product is not finite.
        """
        assert self.product is not None
        times, z, free = self.product, self.filled(x), self.free

        def image(p: Array) -> Array:
            direction = np.zeros(free.size)
            direction[free] = np.ravel(p)
            found: Array = np.asarray(times(z, weight, multipliers, direction), np.float64)[free]
            if not np.isfinite(found).all():
                raise NoCurvature
            return found

        size = int(np.count_nonzero(free))
        return LinearOperator((size, size), matvec=image, rmatvec=image, dtype=np.float64)

    def iterate(self, x: Array, *_: Any) -> None:
        """Take an iterate down."""
        z, found = self.filled(x), self.at(x)
        if self.steps and np.array_equal(z, self.last):
            return
        self.last = z
        self.steps += 1
        self.on_step(z, found)

    def settled(self) -> Array:
        """The last iterate, with the variables that a barrier keeps off their bounds put on them, if that is no worse."""
        z, found = self.last, self.at(self.last[self.free])
        gradient = np.asarray(found.gradient, np.float64)
        low, high = z - self.box.lower < SETTLED, self.box.upper - z < SETTLED
        put = np.where(low & (gradient > 0), self.box.lower, np.where(high & (gradient < 0), self.box.upper, z))
        if np.array_equal(put, z):
            return z
        try:
            there = self.at(put[self.free])
        except NotFine:
            return z
        if there.value <= found.value and self.violation(put) <= max(self.violation(z), 1e-9):
            self.iterate(put[self.free])
        return self.last

    def violation(self, z: Array) -> float:
        """By how much the worst constraint is violated."""
        values = self.constraints(z[self.free])
        return float(np.max(np.maximum(self.box.low - values, values - self.box.high), initial=0))

    def succeeded(self, name: str, z: Array, claimed: bool, tolerance: float) -> bool:
        """Whether the conditions of a minimum hold where a method ended."""
        if self.box.low.size:
            return claimed and self.violation(z) <= 1e-6
        gradient = np.asarray(self.at(z[self.free]).gradient, np.float64)
        step = z - np.clip(z - gradient, self.box.lower, self.box.upper)
        least = tolerance if name == "lbfgsb" else max(tolerance, LEAST_SLOPE)
        return (claimed or name == "lbfgsb") and bool(np.max(np.abs(step), initial=0) <= least)


def lbfgsb(points: Points, inner: Inner, max_steps: int, tolerance: float) -> Any:
    """L-BFGS-B. It ends by its own test of the objective only where rounding hides all progress."""
    options = {"maxiter": max_steps, "maxfun": 100 * max_steps, "gtol": tolerance, "ftol": 0.0, "maxls": 50}
    return optimize.minimize(
        points.value,
        points.last[points.free],
        jac=points.gradient,
        bounds=points.bounds(inner),
        method="L-BFGS-B",
        callback=lambda x: points.iterate(x),
        options=options,
    )


def slsqp(points: Points, inner: Inner, max_steps: int, tolerance: float) -> Any:
    """SLSQP. Near a minimum the objective changes by the square of the gradient, which is what its tolerance is for."""
    low, high = points.box.low, points.box.high
    size = max(1.0, abs(points.value(points.last[points.free])))
    equal = np.isfinite(low) & (low == high)
    rows = [("eq", equal, low, 1.0), ("ineq", np.isfinite(low) & ~equal, low, 1.0)]
    rows += [("ineq", np.isfinite(high) & ~equal, high, -1.0)]
    constraints = [
        {
            "type": kind,
            "fun": lambda x, which=which, end=end, sign=sign: sign * (points.constraints(x) - end)[which],
            "jac": lambda x, which=which, sign=sign: sign * points.jacobian(x)[which],
        }
        for kind, which, end, sign in rows
        if which.any()
    ]
    return optimize.minimize(
        points.value,
        points.last[points.free],
        jac=points.gradient,
        bounds=points.bounds(inner),
        method="SLSQP",
        constraints=constraints,
        callback=lambda x: points.iterate(x),
        options={"maxiter": max_steps, "ftol": max(tolerance**1.75, 1e-15) * size},
    )


def trust_constr(points: Points, inner: Inner, max_steps: int, tolerance: float) -> Any:
    """The interior point and trust region method. It begins inside the bounds, where its barrier is finite."""
    free, bounds = points.free, points.bounds(inner)
    edge = EDGE * np.minimum(1.0, bounds.ub - bounds.lb)
    start = np.clip(points.last[free], bounds.lb + edge, bounds.ub - edge)
    low, high = points.box.low, points.box.high
    second: tuple[Any, Any] = (optimize.BFGS(), optimize.BFGS())
    if points.product is not None:
        none = np.zeros(low.size)
        second = (lambda x: points.curvature(x, 1.0, none), lambda x, v: points.curvature(x, 0.0, v))
    rows = optimize.NonlinearConstraint(points.constraints, low, high, jac=points.jacobian, hess=second[1])
    inequalities = np.isfinite([*bounds.lb, *bounds.ub]).any() or (low < high).any()
    # With these its test of the gradient says nothing of complementarity: an exact step meets it while the barrier still holds off.
    gtol = 0.0 if inequalities else 1e-13
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # linear constraints have no curvature to learn, which is no news
        found = optimize.minimize(
            points.value,
            start,
            jac=points.gradient,
            hess=second[0],
            bounds=bounds,
            method="trust-constr",
            constraints=[rows] if low.size else [],
            callback=points.iterate,
            options={"maxiter": max_steps, "gtol": gtol, "xtol": 1e-10, "barrier_tol": tolerance},
        )
    found.success = found.status in (1, 2, 4)  # 4: a violation above gtol, which is judged by the search's own measure
    return found


METHODS: dict[str, Callable[[Points, Inner, int, float], Any]] = {
    "lbfgsb": lbfgsb,
    "slsqp": slsqp,
    "trust_constr": trust_constr,
}
