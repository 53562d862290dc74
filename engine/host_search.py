"""Searches by methods outside JAX: one at a time, each evaluation a call of one compiled program.

In: an optimization whose method is SciPy's. Out: the same state and history as of a search inside JAX. Such a method cannot be carried on
from the middle: what was killed begins again at its best point.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from engine import checkpoints
from engine.evaluation import Box, Evaluation
from engine.reasons import REASONS
from engine.scipy_methods import search
from engine.search import FAR, FEASIBLE, Search, constraint_sizes, gradient_limit, infeasibility, projected

if TYPE_CHECKING:
    from engine.optimization import Optimization
    from engine.searches import Searches

Array = np.ndarray[Any, Any]
SECONDS = 2.0
"""Between two checkpoints, about."""


class Ended(Exception):
    """A search is to end, for a reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HostSearches:
    """What searches outside JAX share."""

    def __init__(self, plan: Optimization, shared: Any, warnings: set[str]) -> None:
        """`warnings`: where to put what a user is to know."""
        self.plan = plan
        self.shared = shared
        self.warnings = warnings
        z, point = plan.starts(np.zeros(1, np.int64))[0], self.point(0)
        function = jax.jit(lambda shared, z, point: plan.searcher.evaluate(shared, z, point))
        self.compiled = function.lower(shared, z, point).compile() if plan.results.jit else plan.searcher.evaluate
        self.lock = threading.Lock()
        self.times: Any = self.products(z, point) if plan.products else None

    def products(self, z: Array, point: Any) -> Any:
        """The compiled products with the Hessian of the Lagrangian; None where second derivatives do not go through a stage."""
        searcher = self.plan.searcher

        def times(shared: Any, z: Any, point: Any, parts: Any) -> Any:
            reference, sizes, weight, multipliers, direction = parts

            def slope(z: Any) -> Any:
                seen = searcher.scaled(searcher.evaluate(shared, z, point, True), reference, sizes)
                return weight * seen.gradient + multipliers @ seen.constraint_jacobian

            return jax.jvp(slope, (z,), (direction,))[1]

        sizes = np.ones(len(searcher.low))
        given = (self.shared, z, point, self.typed(1.0, sizes, 1.0, sizes, z))
        try:
            return jax.jit(times).lower(*given).compile() if self.plan.results.jit else times
        except Exception as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            self.warnings.add(
                f"`optimize.method` {self.plan.problem.method} should get products with the Hessian, but {said[:160].rstrip('.')}. It "
                "learns the curvature from the gradients."
            )
            return None

    def typed(self, *parts: Any) -> tuple[Array, ...]:
        """Arrays in the dtype of the search."""
        return tuple(np.asarray(part, self.plan.dtype) for part in parts)

    def point(self, number: int) -> Any:
        """What tells a search apart."""
        return jax.tree_util.tree_map(lambda x: x[0], self.plan.objective.points(np.array([number])))

    def evaluated(self, z: Array, point: Any) -> Evaluation:
        """The evaluation at scaled variables, not scaled itself."""
        found = jax.device_get(self.compiled(self.shared, np.asarray(z, self.plan.dtype), point))
        return Evaluation(*(np.asarray(part) for part in found))

    def search(self, number: int, searches: Array, run: Searches) -> tuple[Search, dict[str, Array]] | None:
        """Carry the one search of a batch to its end; None if the run was stopped meanwhile."""
        plan = self.plan
        z = run.warm(searches)
        z = (plan.starts(searches) if z is None else z[:1])[0]
        kept = run.store.read_checkpoint(number)
        steps = 0
        before = None if kept is None else checkpoints.unpack(kept, (z, np.int32(0)))
        if before is not None:
            z, steps = np.array(before[0]), int(before[1])
            with run.lock:
                run.restarted += 1
        history = run.blank_history(1)
        if before is not None:
            history = {name: run.store.read_block(number, name).copy() for name in history}
        one = HostSearch(self, run, plan.problem.method.name, int(searches[0]), z, steps, history, number)
        if not one.carried_out():
            return None
        run.store.write_values(number, history)
        return one.state(), history

    def polished(self, run: Searches, search: int, z: Array) -> Search | None:
        """The end of a search that goes on from a point that another method found; None if the run was stopped meanwhile."""
        name = "slsqp" if self.plan.problem.constraints else "lbfgsb"
        one = HostSearch(self, run, name, search, z, 0, run.blank_history(1))
        return one.state() if one.carried_out() else None


class HostSearch:
    """One search outside JAX."""

    def __init__(
        self,
        all: HostSearches,
        run: Searches,
        method: str,
        search: int,
        z: Array,
        steps: int,
        history: dict[str, Array],
        number: int | None = None,
    ) -> None:
        """`number`: the batch whose checkpoints are kept; none if None."""
        self.all, self.run, self.number, self.method = all, run, number, method
        self.plan, self.searcher = all.plan, all.plan.searcher
        self.point = all.point(search)
        self.start, self.steps, self.history = z, steps, history
        self.bad = self.trouble = 0
        self.reason = "stalled"
        self.reference = 1.0
        self.sizes = np.ones(len(self.searcher.low))
        self.first = (np.nan, np.nan)
        self.best: tuple[Array, Evaluation, float, float, float] | None = None
        self.rank: tuple[bool, float, float, float] = (True, np.inf, np.inf, np.inf)
        self.saved = time.monotonic()

    @property
    def box(self) -> Box:
        """The limits in scaled units."""
        return Box(*(np.asarray(end, float) for end in self.searcher.box(self.sizes)))

    def evaluate(self, z: Array) -> Evaluation:
        """The scaled evaluation at a point; counts those in a row that cannot be used.

        Raises:
            Ended: too many of them, or the run is being stopped.
        """
        if self.run.stop.is_set():
            raise Ended("stopped")
        found = self.all.evaluated(z, self.point)
        self.bad = 0 if found.fine else self.bad + 1
        if not found.fine:
            self.trouble = int(found.status)
            if self.bad >= self.plan.problem.settings.max_bad_steps:
                raise Ended("bad_steps")
        return self.scaled(found)

    def scaled(self, found: Evaluation) -> Evaluation:
        """An evaluation as a method sees it."""
        return self.searcher.scaled(found, np.asarray(self.reference), np.asarray(self.sizes))

    def carried_out(self) -> bool:
        """Search to the end; whether it was reached."""
        settings = self.plan.problem.settings
        first = self.evaluate(self.start)
        if not first.fine:
            self.reason = "start_failed"
            return True
        self.begin(first)
        try:
            left = max(1, settings.max_steps - self.steps)
            outcome = search(
                self.method,
                self.evaluate,
                np.asarray(self.start, float),
                self.box,
                left,
                settings.tolerance,
                self.step,
                None if self.all.times is None else self.product,
            )
            self.reason = (
                "max_steps" if self.steps >= settings.max_steps else "gradient" if outcome.success else "stalled"
            )
        except Ended as ended:
            self.reason = ended.reason
        return self.reason != "stopped"

    def product(self, z: Array, weight: float, multipliers: Array, direction: Array) -> Array:
        """The Hessian of the scaled Lagrangian times a direction.

        Raises:
            Ended: the run is being stopped.
        """
        if self.run.stop.is_set():
            raise Ended("stopped")
        z, *parts = self.all.typed(z, self.reference, self.sizes, weight, multipliers, direction)
        return np.asarray(self.all.times(self.all.shared, z, self.point, tuple(parts)))

    def begin(self, first: Evaluation) -> None:
        """Take the scales from the start."""
        self.sizes = constraint_sizes(first, self.searcher.low, self.searcher.high)
        norm = float(np.max(np.abs(projected(first.gradient, self.start, self.box)), initial=0))
        reference = max(abs(float(first.value)), norm)
        self.first = (float(first.value), norm)
        self.reference = reference if reference > 0 else 1.0
        seen = self.scaled(first)
        if self.steps == 0:
            self.note(self.start, seen, 0)
        self.consider(self.start, seen)
        if norm == 0 and not len(self.searcher.low):
            self.reason = "gradient"

    def step(self, z: Array, seen: Evaluation) -> None:
        """An iteration is done.

        Raises:
            Ended: it is the last.
        """
        self.steps += 1
        self.note(z, seen, self.steps)
        norm, violated = self.consider(z, seen)
        settings = self.plan.problem.settings
        value = float(seen.value) * self.reference
        if not len(self.searcher.low) and norm <= gradient_limit(value, *self.first, settings.tolerance):
            raise Ended("gradient")
        if self.first[0] - value > FAR * max(abs(self.first[0]), self.first[1]) and violated <= FEASIBLE:
            raise Ended("unbounded")
        if np.max(np.abs(z), initial=0) > FAR * self.searcher.magnitude:
            raise Ended("unbounded")
        if self.steps >= settings.max_steps:
            raise Ended("max_steps")
        if self.number is not None and time.monotonic() - self.saved > SECONDS:
            self.save(self.number)

    def save(self, number: int) -> None:
        """Keep what a killed run begins again from, and tell of it."""
        assert self.best is not None
        self.saved = time.monotonic()
        self.run.store.write_values(number, self.history)
        content = checkpoints.pack((np.asarray(self.best[0], self.plan.dtype), np.int32(self.steps)))
        self.run.store.write_checkpoint(number, content)
        self.run.tell(number, self.state(), 1, self.steps, self.plan.problem.settings.max_steps)

    def consider(self, z: Array, seen: Evaluation) -> tuple[float, float]:
        """Keep a point if it is the best; its gradient norm and its infeasibility."""
        box = self.box
        norm = float(np.max(np.abs(projected(seen.gradient, z, box)), initial=0)) * self.reference
        violated = float(infeasibility(seen.constraints, box))
        value = float(seen.value) * self.reference
        rank = (violated > FEASIBLE, violated if violated > FEASIBLE else 0.0, value, norm)
        if self.best is None or rank <= self.rank:
            self.best, self.rank = (np.array(z), seen, value, norm, violated), rank
        return norm, violated

    def note(self, z: Array, seen: Evaluation, at: int) -> None:
        """Take a step down in the history."""
        box, problem, scaling = self.box, self.plan.problem, self.plan.scaling
        if at >= next(iter(self.history.values())).shape[1]:
            return
        x = scaling.parted(scaling.unscaled(np.asarray(z, self.plan.dtype)))
        for name, value in x.items():
            self.history[f"history.{name}"][0, at] = value
        norm = float(np.max(np.abs(projected(seen.gradient, z, box)), initial=0)) * self.reference
        violated = infeasibility(seen.constraints, box)
        self.history["history.objective"][0, at] = problem.sign * float(seen.value) * self.reference
        self.history["history.gradient_norm"][0, at] = norm
        self.history["history.infeasibility"][0, at] = violated
        self.history["history.status"][0, at] = seen.status
        if "history.excluded" in self.history:
            self.history["history.excluded"][0, at] = seen.excluded

    def blank(self) -> Evaluation:
        """An evaluation of zeros."""
        shapes = jax.eval_shape(self.searcher.blank)
        return Evaluation(*(np.zeros(x.shape, x.dtype) for x in shapes))

    def state(self) -> Search:
        """The end of the search as one inside JAX would have it, with a leading axis."""
        real = self.plan.dtype
        best = self.best or (self.start, self.blank(), np.nan, np.nan, np.nan)
        z, seen, value, norm, violated = best
        state = Search(
            method=np.zeros(0),
            z=z,
            value=value,
            gradient_norm=norm,
            infeasibility=violated,
            best_z=np.asarray(z, real),
            best_value=value,
            best_gradient_norm=norm,
            best_infeasibility=violated,
            best=seen,
            first_value=self.first[0],
            first_norm=self.first[1],
            reference=np.asarray(self.reference, real),
            sizes=np.asarray(self.sizes, real),
            trial=z,
            steps=np.int32(self.steps),
            bad=np.int32(self.bad),
            trouble=np.int8(self.trouble),
            excluded=np.int32(0),
            reason=np.int8(REASONS.get(self.reason, 0)),
        )
        batch: Search = jax.tree_util.tree_map(lambda x: np.asarray(x)[None], state)
        return batch
