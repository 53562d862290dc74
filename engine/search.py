"""`Objective` × method → searches that run side by side, a bounded number of steps at a time.

In: the state of a batch of searches. Out: their state some steps later, and the history of these steps. One program, with one evaluation
of the simulation in it, starts the searches and carries them on; each goes its own way and ends for its own reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from engine.evaluation import Box, Evaluation
from engine.reasons import REASONS
from engine.scaling import Scaling, numeric

FEASIBLE = 1e-6
"""A constraint counts as kept within this, relative to its own size."""

FAR = 1e12
"""Scaled variables beyond this, or an objective this many times below its start, are taken as unbounded."""

FLOOR = 1e-8
"""Part of the slope at the start below which a tolerance relative to the objective is not driven."""


LEVEL = 1e-14
"""Relative difference below which two objectives are equal."""


class Search(NamedTuple):
    """The state of one search: what is needed to carry it on, to the last bit."""

    method: Any
    """The method's own state."""

    z: Any
    """(n,) the accepted point, at first the start."""

    value: Any
    gradient_norm: Any
    infeasibility: Any
    """Of the accepted point; the objective as it is minimized, the others in scaled units."""

    best_z: Any
    best_value: Any
    best_gradient_norm: Any
    best_infeasibility: Any
    best: Any
    """Of the best point so far, with its scaled evaluation: the lowest objective among those that keep the constraints, else the least
    infeasible."""

    first_value: Any
    first_norm: Any
    """Objective and gradient norm at the start."""

    reference: Any
    """What the objective is divided by."""

    sizes: Any
    """(k,) what the constraints are divided by."""

    trial: Any
    """(n,) the point that was evaluated last."""

    steps: Any
    """int32: steps done; -1 before the start is evaluated."""

    bad: Any
    """int32: steps in a row whose evaluation could not be used."""

    trouble: Any
    """int8: the status of the last such evaluation."""

    excluded: Any
    """int32: samples that the last evaluation left out."""

    reason: Any
    """int8: why the search ended, 0 while it goes on."""


class Step(NamedTuple):
    """What the history holds of a step: of the accepted point, but for the status, which is the trial's."""

    z: Any
    value: Any
    gradient_norm: Any
    infeasibility: Any
    status: Any
    excluded: Any
    going: Any
    """Whether the search was still going on."""


@dataclass(frozen=True, eq=False)
class Searcher:
    """How a batch of searches is carried on. Static."""

    evaluate: Callable[..., Evaluation]
    """Of what all share, scaled variables, what tells a search apart, and whether the gradient is to be differentiated."""

    method: Any
    scaling: Scaling
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    """(k,) limits of the constraints in their own units."""

    max_steps: int
    max_bad_steps: int
    tolerance: float
    dtype: Any
    residuals: int
    """Numbers that are compared with measurements."""

    @property
    def n(self) -> int:
        """Variables."""
        return self.scaling.n

    def box(self, sizes: Any) -> Box:
        """The limits in scaled units, for constraints divided by `sizes` (k,); NumPy's for NumPy's."""
        lower, upper = (end.astype(self.dtype) for end in self.scaling.box)
        return Box(lower, upper, self.low.astype(self.dtype) / sizes, self.high.astype(self.dtype) / sizes)

    def begin(self, z: Any) -> Search:
        """The state before anything is evaluated, for one start (n,)."""
        nan, one = jnp.full((), jnp.nan, self.dtype), jnp.ones((), self.dtype)
        whole, code = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int8)
        z, sizes, blank = jnp.asarray(z, self.dtype), jnp.ones(len(self.low), self.dtype), self.blank()
        return Search(
            method=self.method.init(z, blank, self.box(sizes)),
            z=z,
            value=nan,
            gradient_norm=nan,
            infeasibility=nan,
            best_z=z,
            best_value=nan,
            best_gradient_norm=nan,
            best_infeasibility=nan,
            best=blank,
            first_value=nan,
            first_norm=nan,
            reference=one,
            sizes=sizes,
            trial=z,
            steps=whole - 1,
            bad=whole,
            trouble=code,
            excluded=whole,
            reason=code,
        )

    def blank(self) -> Evaluation:
        """An evaluation of zeros, which gives a method's state its shape."""
        n, k, m = self.n, len(self.low), self.residuals

        def zeros(*shape: int) -> Any:
            return jnp.zeros(shape, self.dtype)

        return Evaluation(
            zeros(), zeros(n), zeros(m), zeros(m, n), zeros(k), zeros(k, n), jnp.array(True), jnp.int8(1), jnp.int32(0)
        )  # fmt: skip

    def scaled(self, found: Evaluation, reference: Any, sizes: Any) -> Evaluation:
        """An evaluation as a method sees it: objective and constraints near 1."""
        root = numeric(found.value).sqrt(reference)
        return found._replace(
            value=found.value / reference,
            gradient=found.gradient / reference,
            residuals=found.residuals / root,
            jacobian=found.jacobian / root,
            constraints=found.constraints / sizes,
            constraint_jacobian=found.constraint_jacobian / sizes[:, None],
        )

    def step(self, search: Search, shared: Any, point: Any) -> tuple[Search, Step]:
        """Carry one search on by one evaluation: that of its start, or of the method's next trial."""
        fresh = search.steps < 0
        box = self.box(search.sizes)

        def evaluate(z: Any) -> Evaluation:
            found = apart(self.evaluate(shared, jnp.where(fresh, search.z, z), point))
            return self.scaled(found, search.reference, search.sizes)

        state, iterate = apart(self.method.step(search.method, evaluate, box))
        begun = apart(self.started(search, iterate.tried))
        gone = apart(self.moved(search, state, iterate))
        after, seen = jax.tree_util.tree_map(lambda a, b: jnp.where(fresh, a, b), begun, (gone, iterate.evaluation))
        after = self.with_best(after, seen)
        after = after._replace(reason=self.reason_of(after, fresh, iterate))
        tried = iterate.tried
        return after, Step(
            after.z,
            after.value,
            after.gradient_norm,
            after.infeasibility,
            tried.status,
            tried.excluded,
            search.reason == 0,
        )

    def started(self, search: Search, first: Evaluation) -> tuple[Search, Evaluation]:
        """The state after the evaluation of the start, whose magnitudes set the scales of objective and constraints."""
        fine = first.fine
        safe = jax.tree_util.tree_map(lambda x, zero: jnp.where(fine, x, zero), first, self.blank())
        sizes = constraint_sizes(safe, self.low, self.high)
        box = self.box(sizes)
        norm = jnp.max(jnp.abs(projected(safe.gradient, search.z, box)), initial=0)
        reference = jnp.maximum(jnp.abs(safe.value), norm)
        rescale = getattr(self.method, "rescales", bool(len(self.low)))
        reference = jnp.where((reference > 0) & rescale, reference, 1.0)
        seen = self.scaled(safe, reference, sizes)
        state = self.method.init(search.z, seen, box)
        lagrangian = self.gradient_norm(state, seen, search.z, box) * reference
        nan = jnp.full((), jnp.nan, self.dtype)
        after = search._replace(
            method=state,
            value=jnp.where(fine, safe.value, nan),
            gradient_norm=jnp.where(fine, lagrangian, nan),
            infeasibility=jnp.where(fine, infeasibility(seen.constraints, box), nan),
            first_value=safe.value,
            first_norm=norm,
            reference=reference,
            sizes=sizes,
            trial=search.z,
            steps=jnp.int32(0),
            bad=jnp.where(fine, 0, 1).astype(jnp.int32),
            trouble=jnp.where(fine, 0, first.status).astype(jnp.int8),
            excluded=first.excluded,
        )
        return after, seen

    def moved(self, search: Search, state: Any, iterate: Any) -> Search:
        """The state after a step of the method."""
        box, seen, fine = self.box(search.sizes), iterate.evaluation, iterate.tried.fine
        return search._replace(
            method=state,
            z=iterate.z,
            value=seen.value * search.reference,
            gradient_norm=self.gradient_norm(state, seen, iterate.z, box) * search.reference,
            infeasibility=infeasibility(seen.constraints, box),
            trial=iterate.trial,
            steps=search.steps + 1,
            bad=jnp.where(fine, 0, search.bad + 1).astype(jnp.int32),
            trouble=jnp.where(fine, search.trouble, iterate.tried.status).astype(jnp.int8),
            excluded=iterate.tried.excluded,
        )

    def gradient_norm(self, state: Any, seen: Evaluation, z: Any, box: Box) -> Any:
        """The largest element of the projected gradient; with constraints, of the Lagrangian."""
        gradient = seen.gradient
        if len(self.low):
            gradient = gradient + self.method.multipliers(state) @ seen.constraint_jacobian
        return jnp.max(jnp.abs(projected(gradient, z, box)), initial=0)

    def with_best(self, search: Search, seen: Evaluation) -> Search:
        """The state with the best point brought up to date by the accepted one and its evaluation."""
        value, best = search.value, search.best_value
        kept, was = search.infeasibility <= FEASIBLE, search.best_infeasibility <= FEASIBLE
        # Of equally good points that with the smaller gradient: near a minimum the objective no longer tells them apart.
        level = jnp.abs(value - best) <= LEVEL * jnp.abs(best)
        lower = jnp.where(level, search.gradient_norm < search.best_gradient_norm, value < best)
        less = search.infeasibility < search.best_infeasibility
        better = jnp.where(kept & was, lower, jnp.where(kept | was, kept, less))
        better = (better | jnp.isnan(best)) & ~jnp.isnan(value)
        pairs = (
            (search.z, value, search.gradient_norm, search.infeasibility, seen),
            (search.best_z, best, search.best_gradient_norm, search.best_infeasibility, search.best),
        )
        z, value, norm, violated, found = jax.tree_util.tree_map(lambda a, b: jnp.where(better, a, b), *pairs)
        return search._replace(
            best_z=z, best_value=value, best_gradient_norm=norm, best_infeasibility=violated, best=found
        )

    def reason_of(self, search: Search, fresh: Any, iterate: Any) -> Any:
        """Why a search ends here, or 0."""
        small = search.gradient_norm <= gradient_limit(
            search.value, search.first_value, search.first_norm, self.tolerance
        )
        flat = fresh & (search.first_norm == 0)
        fallen = search.first_value - search.value > FAR * jnp.maximum(jnp.abs(search.first_value), search.first_norm)
        away = jnp.max(jnp.abs(search.z), initial=0) > FAR * self.magnitude
        checks = [
            ("start_failed", fresh & (search.bad > 0)),
            ("gradient", (small | flat) & (search.infeasibility <= FEASIBLE)),
            ("unbounded", ~fresh & (fallen | away)),
            ("bad_steps", search.bad >= self.max_bad_steps),
            ("stalled", ~fresh & iterate.stalled),
            ("max_steps", search.steps >= self.max_steps),
        ]
        reason = jnp.int8(0)
        for name, holds in reversed(checks):
            reason = jnp.where(holds, REASONS[name], reason).astype(jnp.int8)
        return reason

    @property
    def magnitude(self) -> float:
        """What scaled variables reach anyway: 1, or their largest finite bound."""
        ends = np.abs(np.concatenate(self.scaling.box))
        return max(1.0, float(np.max(ends[np.isfinite(ends)], initial=0)))

    def advance(self, searches: Search, shared: Any, points: Any, most: Any, room: int) -> tuple[Search, Step, Any]:
        """Carry a batch of searches on until all have ended or `most` steps are done.

        Args:
            searches: state of the batch, each leaf with a leading axis.
            shared: what all share.
            points: what tells each apart, with that axis.
            most: steps to do at most, int32, no more than `room`.
            room: steps of history that are returned, unused ones NaN.
        """
        kinds = jax.eval_shape(jax.vmap(self.step, in_axes=(0, None, 0)), searches, shared, points)[1]
        history = jax.tree_util.tree_map(lambda x: jnp.zeros((room, *x.shape), x.dtype), kinds)

        def going(carry: Any) -> Any:
            count, searches, _ = carry
            return (count < most) & jnp.any(searches.reason == 0)

        def body(carry: Any) -> Any:
            count, searches, history = carry
            after, step = jax.vmap(self.step, in_axes=(0, None, 0))(searches, shared, points)
            ended = searches.reason != 0
            after = jax.tree_util.tree_map(lambda a, b: jnp.where(over(ended, a), a, b), searches, after)
            history = jax.tree_util.tree_map(lambda rows, row: rows.at[count].set(row), history, step)
            return count + 1, after, history

        count, searches, history = jax.lax.while_loop(going, body, (jnp.int32(0), searches, history))
        return searches, history, count


def apart(values: Any) -> Any:
    """The same values, computed before what uses them: XLA would compute them again in each use, and take minutes to arrange it."""
    return jax.lax.optimization_barrier(values)


def over(mask: Any, like: Any) -> Any:
    """A mask of the leading axis with the rank of another array."""
    return mask.reshape((-1, *(1,) * (like.ndim - 1)))


def projected(gradient: Any, z: Any, box: Box) -> Any:
    """The gradient without what points out of the bounds at which variables are, (n,)."""
    module = numeric(gradient)
    at_lower = module.where(z <= box.lower, module.minimum(gradient, 0.0), gradient)
    return module.where(z >= box.upper, module.maximum(at_lower, 0.0), at_lower) * (box.lower < box.upper)


def infeasibility(constraints: Any, box: Box) -> Any:
    """By how much the worst constraint is violated, in scaled units."""
    module = numeric(constraints)
    return module.max(module.maximum(box.low - constraints, constraints - box.high), initial=0)


def constraint_sizes(first: Evaluation, low: Any, high: Any) -> Any:
    """What each constraint is divided by: its limit, or where that is 0 its value and slope at the start."""
    module = numeric(first.constraints)
    ends = np.maximum(np.where(np.isfinite(low), np.abs(low), 0), np.where(np.isfinite(high), np.abs(high), 0))
    slope = module.max(module.abs(first.constraint_jacobian), axis=1, initial=0)
    size = module.where(ends > 0, ends, module.maximum(module.abs(first.constraints), slope))
    return module.where(size > 0, size, 1.0).astype(first.constraints.dtype)


def gradient_limit(value: Any, first_value: Any, first_norm: Any, tolerance: float) -> Any:
    """The projected gradient at which a search stops: relative to the objective, but to no more than the slope at the start.

    An objective with a large constant in it would else stop early, and one that falls to zero never.
    """
    module = numeric(value)
    scale = module.minimum(abs(value), first_norm)
    return tolerance * module.maximum(scale, FLOOR * module.maximum(abs(first_value), first_norm))
