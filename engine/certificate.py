"""The end of a search → what can be said of it: a minimum, with the conditions that prove it, or the reason why not.

In: the best point, its evaluation and, where it is affordable, the Hessian of the Lagrangian; all in scaled variables. Out: a
`Certificate`, by the conditions of Karush, Kuhn and Tucker: Nocedal & Wright, Numerical Optimization (2006), theorems 12.1 and 12.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.distributions import bounded_least_squares
from engine.evaluation import Box, Evaluation
from engine.search import FEASIBLE, gradient_limit, infeasibility, projected
from engine.status import OPTIMIZE_STATUS, STATUS

Array = np.ndarray[Any, Any]

NEGATIVE = 1e-7
"""An eigenvalue below minus this part of the largest is negative curvature, above that a rounding."""

SINGULAR = 1e-10
"""An eigenvalue below this part of the largest is none: the objective is flat along its direction."""

FALLEN = 1e-3
"""Part of the slope at the start below which it has fallen."""

SMALLEST = 1e-2
"""A scaled variable nearer to 0 than this is judged as if it were here."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """What is known of a search's best point. Arrays of elements are in scaled units."""

    reason: str
    """Of `engine.reasons`."""

    status: int
    """As in a store."""

    gradient_norm: float
    """The largest element of the projected gradient of the Lagrangian."""

    active: Array
    """(n,) int8: -1 at the lower bound, 1 at the upper, 0 between."""

    bound_multipliers: Array
    """(n,) the derivative of the Lagrangian by each variable at a bound."""

    multipliers: Array
    """(k,) of the constraints: positive at an upper limit, negative at a lower one."""

    eigenvalues: tuple[float, float]
    """The least and the largest of the Hessian of the Lagrangian, where the active bounds and constraints leave room; NaN if unknown."""

    newton_step: float
    """The largest element of the step to the minimum of the quadratic model, relative to the variable; NaN if unknown."""

    newton: Array | None = None
    """(n,) that step, and back onto the active constraints; None where curvature is unknown or not that of a minimum."""


class Stationarity(NamedTuple):
    """First-order conditions at a point, in scaled units."""

    slope: Array
    """(n,) gradient of the Lagrangian."""

    norm: float
    """The largest element of its projection."""

    multipliers: Array
    """(k,)"""

    held: Array
    """(k,) bool: the constraints that are active."""

    violated: float


def stationarity(z: Array, found: Evaluation, box: Box) -> Stationarity:
    """How near a point is to the first-order conditions, with the multipliers that bring it nearest."""
    free = (z > box.lower) & (z < box.upper)
    multipliers, held = multipliers_of(found, box, free)
    slope = found.gradient + multipliers @ found.constraint_jacobian
    norm = float(np.max(np.abs(projected(slope, z, box)), initial=0))
    return Stationarity(slope, norm, multipliers, held, float(infeasibility(found.constraints, box)))


def is_candidate(seen: Stationarity, ended: str, first_norm: float) -> bool:
    """Whether the curvature at the end of a search is worth its cost: where the slope has hardly fallen it would say nothing."""
    if ended in ("start_failed", "unbounded") or seen.violated > FEASIBLE:
        return False
    return ended == "gradient" or not seen.norm > FALLEN * first_norm


def certify(
    z: Array,
    found: Evaluation,
    box: Box,
    seen: Stationarity,
    hessian: Array | None,
    *,
    ended: str,
    trouble: int,
    steps: int,
    first: tuple[float, float],
    tolerance: float,
    logarithmic: Array,
) -> Certificate:
    """Judge the best point of a search. All in scaled units, the objective too.

    Args:
        z: scaled variables, (n,).
        found: the evaluation there.
        box: the limits.
        seen: the first-order conditions there.
        hessian: of the Lagrangian, (n, n); None if it is not known.
        ended: the reason why the search ended.
        trouble: status of the last evaluation that could not be used.
        steps: that the search did.
        first: objective and gradient norm at the start.
        tolerance: as the config has it.
        logarithmic: which variables are logarithms, (n,).
    """
    if ended == "start_failed":
        return failed(len(z), len(found.constraints), trouble or STATUS["nonfinite"])
    value = float(found.value)
    limit = gradient_limit(value, *first, tolerance)
    eigenvalues, step, newton = (math.nan, math.nan), math.nan, None
    if ended == "unbounded":
        reason = "unbounded"
    elif seen.violated > FEASIBLE:
        reason = "infeasible"
    elif hessian is None:
        untouched = steps == 0 and first[1] == 0
        reason = "flat" if untouched else "converged" if seen.norm <= limit else ended
    else:
        scale = max(abs(value), math.sqrt(tolerance) * max(abs(first[0]), first[1]))
        eigenvalues, step, reason, newton = judged(hessian, seen, found, box, z, logarithmic, tolerance, scale)
        small = max(limit, FALLEN * first[1])
        if reason == "far" or (reason == "saddle" and seen.norm > small):
            reason = reason if ended == "gradient" else ended
    if reason == "converged" and is_blocked(seen.slope, z, box, limit, hessian is not None):
        reason = "far" if ended == "gradient" else ended
    status = {"converged": "ok", "infeasible": "infeasible", "unbounded": "unbounded"}.get(reason, "not_converged")
    active = np.where(z >= box.upper, 1, np.where(z <= box.lower, -1, 0)).astype(np.int8)
    active[box.lower == box.upper] = -1
    bound_multipliers = np.where(active != 0, seen.slope, 0.0)
    code = OPTIMIZE_STATUS[status]
    return Certificate(reason, code, seen.norm, active, bound_multipliers, seen.multipliers, eigenvalues, step, newton)


def failed(n: int, k: int, status: int) -> Certificate:
    """Of a search whose start cannot be evaluated."""
    nan, nothing = math.nan, np.full(n, math.nan)
    return Certificate("start_failed", status, nan, np.zeros(n, np.int8), nothing, np.full(k, nan), (nan, nan), nan)


def is_blocked(slope: Array, z: Array, box: Box, limit: float, curved: bool) -> bool:
    """Whether a variable at a bound would lower the objective by moving inside: then this is no minimum."""
    at_bound = ((z <= box.lower) | (z >= box.upper)) & (box.lower < box.upper)
    inward = np.abs(projected(slope, z, box))[at_bound]
    scale = max(limit, FALLEN**2 * float(np.max(np.abs(slope), initial=0))) if curved else limit
    return bool((inward > scale).any())


def multipliers_of(found: Evaluation, box: Box, free: Array) -> tuple[Array, Array]:
    """The multipliers that come nearest to a stationary Lagrangian, (k,), and which constraints are active."""
    c, rows = np.asarray(found.constraints), np.asarray(found.constraint_jacobian)
    multipliers = np.zeros(len(c))
    near = 10 * FEASIBLE
    at_low, at_high = c <= box.low + near, c >= box.high - near
    held = at_low | at_high
    if not held.any():
        return multipliers, held
    lower = np.where(at_low[held], -np.inf, 0.0)
    upper = np.where(at_high[held], np.inf, 0.0)
    if free.any():
        multipliers[held] = bounded_least_squares(
            rows[held][:, free].T, -np.asarray(found.gradient)[free], lower, upper
        )
    return multipliers, held & ((multipliers != 0) | (box.low == box.high))


def judged(
    hessian: Array,
    seen: Stationarity,
    found: Evaluation,
    box: Box,
    z: Array,
    logarithmic: Array,
    tolerance: float,
    scale: float,
) -> tuple[tuple[float, float], float, str, Array | None]:
    """Extreme eigenvalues, the relative Newton step, the verdict and the step, in the space that active bounds and constraints leave.

    A minimum is near where the quadratic model says that the variables would move by less than the root of the tolerance, and that the
    objective would fall by less than the tolerance, relative to `scale`.
    """
    nan = (math.nan, math.nan)
    whole = np.eye(len(z))[:, (z > box.lower) & (z < box.upper)]
    rows = np.asarray(found.constraint_jacobian)[seen.held] @ whole
    basis, back = whole, np.zeros(len(z))
    if rows.size:
        _, singular, directions = np.linalg.svd(rows)
        rank = int((singular > SINGULAR * max(float(singular[0]), np.finfo(float).tiny)).sum())
        basis = whole @ directions[rank:].T
        c = np.asarray(found.constraints)[seen.held]
        back = whole @ np.linalg.pinv(rows) @ (np.clip(c, box.low[seen.held], box.high[seen.held]) - c)
    if basis.shape[1] == 0:
        return nan, 0.0, "converged", back
    if not np.isfinite(hessian).all():
        return nan, math.nan, "gradient", None
    values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
    extremes, largest = (float(values[0]), float(values[-1])), float(np.max(np.abs(values)))
    downhill = -vectors.T @ (basis.T @ seen.slope)
    if largest == 0:
        return extremes, 0.0, "far" if downhill.any() else "flat", None
    if values[0] < -NEGATIVE * largest:
        return extremes, math.nan, "saddle", None
    curved = values > SINGULAR * largest
    along = np.where(curved, downhill / np.where(curved, values, 1.0), 0.0)
    step, fall = basis @ (vectors @ along), 0.5 * float(along @ downhill)
    size = np.where(logarithmic, 1.0, np.maximum(np.abs(z), SMALLEST))
    relative = float(np.max(np.abs(step) / size))
    near = relative <= math.sqrt(tolerance) and fall <= tolerance * scale
    return extremes, relative, "converged" if near else "far", step + back
