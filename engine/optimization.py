"""`Draft` with a problem → `Optimization`: checked, scaled, cut into batches of searches, with the layout of what they find.

In: a traced pipeline and its design problem. Out: all that is known before a search begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from engine import runtime
from engine.chunks import Blocks, cut
from engine.config import Config
from engine.disconnection import warn_of_zero_derivatives
from engine.draft import Draft, derivative_leaves
from engine.encoding import Layout, Variable
from engine.errors import PlanError
from engine.objective import Objective, all_limits, make_objective
from engine.outputs import Leaf
from engine.plan import Plan, attributes_of, make_plan
from engine.problem import Problem, with_starts
from engine.reasons import REASONS
from engine.scaling import Scaling, make_scaling
from engine.search import Searcher
from engine.status import OPTIMIZE_STATUS

WIDEST_BATCH = 1024
"""Searches that are carried on side by side."""

HESSIAN_LIMIT = 32
"""Variables up to which `hessian: auto` computes the Hessian for the certificate."""

STEP, BOUND, EXTREME = "step", "bound", "extreme"
"""Dimensions of the histories, of intervals and bounds, and of the least and the largest eigenvalue."""


@dataclass(frozen=True, eq=False)
class Optimization:
    """A design problem that is ready to be solved. Static."""

    draft: Draft
    objective: Objective
    scaling: Scaling
    results: Plan
    """Of the outputs and derivatives at the variables that a search found."""

    blocks: Blocks
    """Searches that run side by side."""

    workers: int
    batch: int
    """Samples of a reduced sweep that are evaluated at once."""

    warnings: tuple[str, ...]

    @property
    def problem(self) -> Problem:
        """What is asked."""
        return self.objective.problem

    @property
    def config(self) -> Config:
        """The config that it was made from."""
        return self.draft.config

    @property
    def on_host(self) -> bool:
        """Whether the method runs outside JAX, one search at a time."""
        return bool(getattr(self.problem.method, "on_host", False))

    @property
    def dtype(self) -> np.dtype[Any]:
        """In which the search computes."""
        return np.dtype(self.config.settings.precision)

    @property
    def seed(self) -> np.ndarray[Any, Any]:
        """The run's seed as two words."""
        seed = self.config.settings.seed
        return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)

    @property
    def hessian(self) -> bool:
        """Whether the certificate holds the Hessian."""
        asked = self.problem.settings.hessian
        return self.scaling.n <= HESSIAN_LIMIT if asked == "auto" else bool(asked)

    @property
    def products(self) -> bool:
        """Whether the method gets products with the Hessian."""
        return getattr(self.problem.method, "takes_products", False) and self.problem.settings.hessian is not False

    @property
    def formula(self) -> str:
        """The search as it is composed."""
        inner = self.objective.draft.stack.formula(
            self.objective.passes, self.objective.draft.pipeline.names, None, 1, 1
        ).removeprefix("jit ∘ ")
        problem = self.problem
        if problem.over:
            inner = f"{problem.reduction} ∘ vmap[{self.batch}] ∘ {inner}"
        if self.on_host:
            return f"{problem.method} ∘ jit ∘ {inner}"
        batch = f"vmap[{self.blocks.width}] ∘ " if problem.dims else ""
        return f"jit ∘ {batch}{problem.method} ∘ {inner}"

    @cached_property
    def searcher(self) -> Searcher:
        """How the searches are carried on."""
        settings = self.problem.settings
        low, high = all_limits(self.problem)
        return Searcher(
            lambda shared, z, point, smooth=False: self.objective.evaluate(
                shared, self.scaling, z, point, self.batch, smooth
            ),
            self.problem.method,
            self.scaling,
            low,
            high,
            settings.max_steps,
            settings.max_bad_steps,
            settings.tolerance,
            self.dtype,
            0 if self.problem.measurements is None else self.problem.measurements.size,
        )

    def starts(self, searches: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The scaled variables at which searches begin, (len(searches), n)."""
        starts = self.problem.starts
        rows = {name: starts.columns[name][searches % starts.count] for name in self.problem.names}
        return self.scaling.scaled(self.scaling.gathered(rows, 1)).astype(self.dtype)

    def layout(self) -> Layout:
        """What is stored, and how it is cut."""
        variables = (*self.found(), *self.told(), *self.outputs(), *self.coordinates())
        compression = self.config.settings.store.compression
        vocabulary = dict(OPTIMIZE_STATUS)
        return Layout(self.problem.dims, self.blocks, variables, compression, None, vocabulary)

    def variable(
        self,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: Any,
        text: str,
        **more: Any,
    ) -> Variable:
        """One array with a value for each search."""
        attributes = {"long_name": text} | more
        problem = self.problem
        return Variable(
            name, (*problem.dims, *dims), (*problem.shape, *shape), np.dtype(dtype), True, attributes
        )  # fmt: skip

    def found(self) -> Iterator[Variable]:
        """What a search finds, and the certificate."""
        problem, real = self.problem, self.dtype
        units = {} if problem.objective is None else dict(problem.objective.attributes)
        units = {"units": units["units"]} if "units" in units else {}
        for v in problem.variables:
            dims = tuple(f"{v.name}_{i}" for i in range(v.start.ndim))
            yield self.variable(f"variables.{v.name}", dims, v.start.shape, real, f"{v.name} at the best point")
            yield self.variable(
                f"active.{v.name}", dims, v.start.shape, np.int8, "bound that is active: -1 lower, 1 upper"
            )
            yield self.variable(
                f"multipliers.{v.name}",
                dims,
                v.start.shape,
                real,
                f"change of the objective with {v.name} at an active bound",
            )
        for name, values in problem.choices.items():
            kind = problem.starts.columns[name].dtype
            yield self.variable(f"variables.{name}", (), (), kind, f"{name}, one of {values.tolist()}")
        yield self.variable("objective", (), (), real, "objective at the best point", **units)
        yield self.variable(
            "gradient_norm", (), (), real, "largest element of the projected gradient by the scaled variables", **units
        )
        yield self.variable("infeasibility", (), (), real, "largest violation of a constraint, relative to its size")
        yield self.variable("steps", (), (), np.int32, "steps of the search")
        flags = {"flag_values": list(REASONS.values()), "flag_meanings": " ".join(REASONS)}
        yield self.variable("reason", (), (), np.int8, "why the search ended, and what its certificate says", **flags)
        yield self.variable(
            "trouble", (), (), np.int8, "status of the last evaluation that could not be used, 0 if none"
        )
        yield self.variable(
            "eigenvalues",
            (EXTREME,),
            (2,),
            real,
            "least and largest of the Hessian by the scaled variables, where they are free",
        )
        yield self.variable("newton_step", (), (), real, "largest relative step to the minimum of the quadratic model")
        for c in problem.constraints:
            dims, shape = self.of_samples(c.leaf)
            yield self.variable(
                f"multipliers.{c.name}",
                dims,
                shape,
                real,
                f"change of the objective with the limit of {c.name}, its sign reversed",
            )
        if problem.residual:
            yield from self.estimated()

    def estimated(self) -> Iterator[Variable]:
        """What a fit says of its variables."""
        real, n = self.dtype, self.scaling.n
        for v in self.problem.variables:
            dims = tuple(f"{v.name}_{i}" for i in range(v.start.ndim))
            yield self.variable(f"standard_error.{v.name}", dims, v.start.shape, real, f"standard error of {v.name}")
            yield self.variable(
                f"confidence.{v.name}",
                (*dims, BOUND),
                (*v.start.shape, 2),
                real,
                f"ends of the confidence interval of {v.name}",
            )
        yield self.variable("covariance", ("element", "element_"), (n, n), real, "covariance of the estimates")
        yield self.variable("correlation", ("element", "element_"), (n, n), real, "correlation of the estimates")
        yield self.variable("residual_deviation", (), (), real, "standard deviation of one residual")

    def told(self) -> Iterator[Variable]:
        """The histories."""
        problem, real = self.problem, self.dtype
        count = problem.settings.max_steps + 1
        for v in problem.variables:
            dims = tuple(f"{v.name}_{i}" for i in range(v.start.ndim))
            yield self.variable(
                f"history.{v.name}",
                (STEP, *dims),
                (count, *v.start.shape),
                real,
                f"{v.name} after each step, first its start",
            )
        yield self.variable("history.objective", (STEP,), (count,), real, "objective after each step")
        yield self.variable("history.gradient_norm", (STEP,), (count,), real, "projected gradient after each step")
        yield self.variable(
            "history.infeasibility", (STEP,), (count,), real, "violation of constraints after each step"
        )
        yield self.variable("history.status", (STEP,), (count,), np.int8, "status of the step's evaluation, 0 for none")
        if problem.over:
            yield self.variable(
                "history.excluded", (STEP,), (count,), np.int32, "failed samples left out of the evaluation"
            )

    def of_samples(self, leaf: Leaf) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Dimensions and shape of an output: with those of a sweep that is reduced."""
        sweep = self.problem.sweep
        dims, shape = (sweep.dims, sweep.shape) if self.problem.over else ((), ())
        return (*dims, *leaf.dims), (*shape, *leaf.shape)

    @property
    def repeats_objective(self) -> bool:
        """Whether an output called `objective` is the objective, which is stored under that name anyway."""
        leaf = self.problem.objective
        return leaf is not None and leaf.name == "objective" and not leaf.shape and not self.problem.over

    def outputs(self) -> Iterator[Variable]:
        """Outputs and derivatives at the best point."""
        swept = {v.name for v in self.results.variables if v.swept}
        for leaf in (*self.draft.outputs, *derivative_leaves(self.draft.requests, self.draft.shapes)):
            if leaf.name == "objective" and self.repeats_objective:
                continue
            if leaf.name in swept:
                dims, shape = self.of_samples(leaf)
                one = self.variable(leaf.name, dims, shape, leaf.dtype, "")
                yield replace(one, attributes=dict(leaf.attributes))
            else:
                yield Variable(leaf.name, leaf.dims, leaf.shape, leaf.dtype, False, dict(leaf.attributes))

    def coordinates(self) -> Iterator[Variable]:
        """Coordinates of the outputs and of the sweep, and which start is the best."""
        for leaf in self.draft.coords:
            yield Variable(leaf.name, leaf.dims, leaf.shape, leaf.dtype, False, dict(leaf.attributes), coordinate=True)
        for c in self.problem.sweep.coordinates():
            yield Variable(c.name, c.dims, c.values.shape, c.values.dtype, False, {}, coordinate=True)
        if self.problem.starts.several:
            dims, shape = self.problem.dims[:-1], self.problem.shape[:-1]
            text = {"long_name": "index of the best start, -1 if none converged to a feasible point"}
            yield Variable("best", dims, shape, np.dtype(np.int64), False, text, coordinate=True)

    def attributes(self) -> dict[str, Any]:
        """What the store records of where its numbers come from."""
        return attributes_of(self.results) | {
            "fingerprint": self.draft.fingerprint,
            "parts": self.draft.parts,
            "transforms": self.formula,
            "chunk": self.blocks.width,
            "optimize": {
                "problem": self.problem.stands_for,
                "sense": "maximize" if self.problem.sign < 0 else "minimize",
                "method": str(self.problem.method),
                "why": getattr(self.problem.method, "reason", ""),
                "variables": self.variable_facts(),
                "constraints": {
                    c.name: {k: v for k, v in (("min", c.low), ("max", c.high)) if math.isfinite(v)}
                    for c in self.problem.constraints
                },
                "searches": self.problem.searches,
            },
        }

    def variable_facts(self) -> dict[str, Any]:
        """Start, bounds and scale of each variable, in its own units."""
        sizes = self.scaling.parted(self.scaling.size)
        return {
            v.name: {
                "start": v.start.tolist(),
                "bounds": [one_or_all(v.lower), one_or_all(v.upper)],
                "scale": "log" if v.logarithmic else "linear",
                "size": float(np.max(sizes[v.name])),
            }
            for v in self.problem.variables
        }


def one_or_all(values: np.ndarray[Any, Any]) -> Any:
    """A bound as a number if it is the same for all elements; null for none."""
    plain = [None if not math.isfinite(value) else float(value) for value in values.ravel()]
    return plain[0] if len(set(plain)) == 1 else plain


def make_optimization(draft: Draft, chunk: int | None = None) -> Optimization:
    """Trace, scale, check and cut a design problem.

    Args:
        draft: with a problem.
        chunk: searches of a batch that an existing store already has; else chosen.

    Raises:
        PlanError: a derivative cannot go through, or a name is taken.
    """
    problem = draft.problem
    assert problem is not None
    settings = draft.config.settings
    if settings.store.shard is not None:
        raise PlanError(
            f"`store.shard` must be left out with `optimize`, but is {settings.store.shard}: a batch of searches is one file. Remove it."
        )
    runtime.check_profile(settings.execution.profile)
    objective = make_objective(draft, problem)
    workers = settings.scheduler.workers or runtime.workers(settings.scheduler.kind, jax.default_backend())
    if problem.settings.warm_start is not None:
        workers = 1  # each batch along the axis begins where the one before ended
    blocks, batch = batches(objective, problem, settings.execution, workers, chunk)
    results = make_plan(replace(draft, design=with_starts(problem)), chunk=min(blocks.width, WIDEST_BATCH))
    scaling = make_scaling(problem.variables, guessed_sizes(objective, problem))
    made = Optimization(
        draft, objective, scaling, results, blocks, workers, batch, (*results.warnings, *warn_of_idle_variables(draft))
    )
    check_names(made)
    return made


def batches(
    objective: Objective, problem: Problem, execution: Any, workers: int, chunk: int | None
) -> tuple[Blocks, int]:
    """How many searches run side by side, and how many samples of a reduced sweep each evaluates at once."""
    each = max(1, objective.sample_bytes)
    samples = problem.sweep.samples if problem.over else 1
    fits = max(1, execution.memory // (workers * each))
    if getattr(problem.method, "on_host", False):
        width = 1
    elif chunk is not None:
        width = chunk
    elif execution.chunk != "auto":
        width = execution.chunk
    else:
        width = max(1, min(WIDEST_BATCH, fits // min(samples, 64), -(-problem.searches // workers)))
    batch = max(1, min(samples, fits // width, 2048))
    shape = problem.shape
    if problem.settings.warm_start is None:
        return cut(shape, width), batch
    along = problem.dims.index(problem.settings.warm_start)
    block = [min(n, width) for n in shape]
    block[along] = 1
    while math.prod(block) > width and max(block) > 1:
        widest = block.index(max(block))
        block[widest] = -(-block[widest] // 2)
    return Blocks(shape, tuple(block)), batch


def guessed_sizes(objective: Objective, problem: Problem) -> np.ndarray[Any, Any] | None:
    """Sizes from the gradient at the first start, for variables that start at 0 without bounds: how far the objective's slope takes
    to change it by its own size."""
    if all(v.size is not None for v in problem.variables):
        return None
    scaling = make_scaling(problem.variables)
    seed = np.zeros(2, np.uint32)
    first = objective.points(np.zeros(1, np.int64))
    point = jax.tree_util.tree_map(lambda x: x[0], first)
    starts = {v.name: problem.starts.columns[v.name][:1] for v in problem.variables}
    z = scaling.scaled(scaling.gathered(starts, 1))[0]
    shared = objective.shared(seed)
    found = jax.device_get(
        jax.jit(lambda shared, z, point: objective.evaluate(shared, scaling, z, point))(shared, z, point)
    )
    with np.errstate(all="ignore"):
        sizes = np.abs(float(found.value) / np.asarray(found.gradient, float))
    usable = np.isfinite(sizes) & (sizes > 0)
    return np.where(usable, sizes, 1.0)


def warn_of_idle_variables(draft: Draft) -> list[str]:
    """A warning for each variable that moves nothing that a search looks at: by a rounding, a comparison, or because no stage takes it."""
    problem = draft.problem
    assert problem is not None
    requests = problem.requests()
    idle = []
    for name in problem.names:
        alone = [replace(request, wrt=(name,)) for request in requests]
        said = [warning for one in alone for warning in warn_of_zero_derivatives(replace(draft, requests=(one,)))]
        if len(said) == len(requests):
            key = f"`{requests[0].key}.wrt.0`"
            idle.append(
                said[0].replace(key, f"`optimize.variables.{name}`").replace("remove it from wrt", "enumerate it")
            )
    return idle


def check_names(made: Optimization) -> None:
    """The names of outputs must leave room for what an optimization stores.

    Raises:
        PlanError: one does not.
    """
    own = {v.name for v in (*made.found(), *made.told())} | {"best"}
    labels = [
        leaf.name
        for leaf in (
            *made.draft.outputs,
            *made.draft.coords,
            *derivative_leaves(made.draft.requests, made.draft.shapes),
        )
    ]
    problems = [
        f"`outputs.{name}` must have another name, but an optimization stores its own {name!r}. Rename the output."
        for name in labels
        if name in own and not (name == "objective" and made.repeats_objective)
    ]
    if problems:
        raise PlanError(problems)
