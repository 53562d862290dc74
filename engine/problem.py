"""`optimize` × traced pipeline → the design problem.

In: the checked node, the pipeline and the shapes that tracing found. Out: a `Problem`: objective, variables, constraints, measurements,
starts and the method, with the derivatives that a search needs of them; or everything that is wrong with it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.axes import collecting
from engine.derivatives import Request
from engine.design_variables import Starts, read_starts, read_variables
from engine.designs import Design
from engine.errors import PlanError, listed, nearest
from engine.measurements import Measurements
from engine.methods import read_method
from engine.outputs import Leaf, find_output
from engine.reductions import Reduction, read_reduction
from engine.scaling import Variable

if TYPE_CHECKING:
    from engine.config import Config
    from engine.pipeline import Pipeline
    from engine.schema import Optimize

Array = np.ndarray[Any, Any]

START = "start"
"""The dimension of the starts in a store."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """Limits of an output's elements, in the output's own units. Static."""

    name: str
    leaf: Leaf
    low: float
    high: float

    @property
    def key(self) -> str:
        """The name of its derivative."""
        return f"constraint.{self.name}"


@dataclass(frozen=True, eq=False)
class Problem:
    """What is minimized, over what, and how. Static."""

    settings: Optimize
    variables: tuple[Variable, ...]
    choices: Mapping[str, Array]
    """Enumerated parameter -> its values."""

    starts: Starts
    objective: Leaf | None
    """None where measurements are fitted."""

    sign: float
    """-1 where the objective is maximized."""

    reduction: Reduction | None
    """Of the objective's elements, or over the sweep."""

    constraints: tuple[Constraint, ...]
    measurements: Measurements | None
    compared: tuple[Leaf, ...]
    """The outputs that are compared with measurements."""

    method: Any
    sweep: Design
    """The points for each of which the problem is solved, or over which it is reduced."""

    @property
    def over(self) -> bool:
        """Whether the objective is reduced over the sweep."""
        return self.settings.over is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The variables."""
        return tuple(v.name for v in self.variables)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the searches: the sweep's, unless it is reduced, and `start` if there are several."""
        sweep = () if self.over else self.sweep.dims
        return (*sweep, START) if self.starts.several else sweep

    @property
    def shape(self) -> tuple[int, ...]:
        """Searches along each dimension."""
        sweep = () if self.over else self.sweep.shape
        return (*sweep, self.starts.count) if self.starts.several else sweep

    @property
    def searches(self) -> int:
        """Searches in all."""
        return math.prod(self.shape)

    @property
    def residual(self) -> bool:
        """Whether measurements are fitted."""
        return self.measurements is not None

    def requests(self) -> tuple[Request, ...]:
        """The derivatives that a search needs of one sample."""
        leaves = [] if self.objective is None else [("objective", self.objective)]
        leaves += [(c.key, c.leaf) for c in self.constraints]
        leaves += [(f"data.{leaf.name}", leaf) for leaf in self.compared]
        return tuple(
            Request(name, leaf, self.names, "jacobian" if leaf.shape else "gradient", "auto") for name, leaf in leaves
        )

    def leaves(self) -> tuple[Leaf, ...]:
        """The outputs that a search looks at, each once."""
        found = [] if self.objective is None else [self.objective]
        found += [c.leaf for c in self.constraints]
        return tuple({leaf.name: leaf for leaf in (*found, *self.compared)}.values())

    @property
    def stands_for(self) -> str:
        """The problem in one line."""
        if self.objective is None:
            goal = f"fit {listed(leaf.name for leaf in self.compared)} to {self.settings.data['file']}"  # type: ignore[index]
        else:
            what = self.objective.name if self.reduction is None else f"{self.reduction}({self.objective.name})"
            goal = f"{'maximize' if self.sign < 0 else 'minimize'} {what}"
        return f"{goal} over {', '.join(self.names)}"

    @property
    def identity(self) -> str:
        """What tells two problems apart, beside the traced program."""
        table = hashlib.sha256()
        for name, column in sorted(self.starts.columns.items()):
            table.update(f"{name}{column.dtype}{column.shape}".encode() + np.ascontiguousarray(column).tobytes())
        for v in self.variables:
            table.update(f"{v.name}{v.scale}".encode() + v.lower.tobytes() + v.upper.tobytes())
        s = self.settings
        asked = (s.minimize, s.maximize, str(self.reduction), s.over, s.allow_failed, repr(self.method))
        ends = (s.max_steps, s.tolerance, s.max_bad_steps, s.warm_start, s.hessian)
        limits = [(c.name, c.low, c.high) for c in self.constraints]
        data = None if self.measurements is None else (self.measurements.digest, self.measurements.confidence)
        return repr((asked, ends, limits, data, table.hexdigest()))


def read_problem(
    config: Config,
    pipeline: Pipeline,
    shapes: Mapping[str, Any],
    outputs: tuple[Leaf, ...],
    sweep: Design,
    measurements: Measurements | None,
) -> Problem:
    """The design problem of a config.

    Raises:
        PlanError: an unknown output or variable, an objective that is no number, bounds that exclude the start, a method that cannot
            honour what is asked; all at once.
    """
    node = config.settings.optimize
    assert node is not None
    problems: list[str] = []
    with collecting(problems):
        check_goal(node)
    objective, reduction = None, None
    with collecting(problems):
        reduction = read_reduction(node.reduce, node.over is not None)
    goal = node.minimize or node.maximize
    if goal is not None:
        key = "optimize.minimize" if node.minimize else "optimize.maximize"
        objective = find_leaf(key, goal, outputs, pipeline, shapes, problems)
        problems += [] if objective is None else wrong_objective(key, objective, node, reduction)
    constraints = tuple(read_constraints(node, outputs, pipeline, shapes, problems))
    compared = tuple(compared_outputs(measurements, outputs, problems)) if measurements else ()
    variables: tuple[Variable, ...] = ()
    starts = None
    choices: dict[str, Array] = {}
    with collecting(problems):
        variables, choices = read_variables(node, pipeline.parameters, config.settings.ranges)
        starts = read_starts(node.starts, variables, choices, seed=config.settings.seed, folder=config.folder)
    problems += list(sweep_problems(node, sweep, variables, choices))
    method = None
    if variables and starts is not None:
        with collecting(problems):
            method = method_of(config, variables, constraints, measurements is not None, starts.count, sweep)
    if problems:
        raise PlanError(problems)
    assert starts is not None
    sign = -1.0 if node.maximize else 1.0
    return Problem(
        node, variables, choices, starts, objective, sign, reduction, constraints, measurements, compared, method, sweep
    )


def method_of(
    config: Config, variables: tuple[Variable, ...], constraints: Any, residuals: bool, starts: int, sweep: Design
) -> Any:
    """The method that is asked for, or the one that fits."""
    node = config.settings.optimize
    assert node is not None
    chosen = config.settings.optimizer
    if node.method is not None and chosen not in (None, "auto", {"name": "auto"}):
        raise PlanError(
            f"`optimize.method` must be left out where `optimizer` says how to search, but is {node.method!r}. Take it out "
            "(`optimize.method=null`), or the optimizer."
        )
    asked = node.method if node.method is not None else chosen
    searches = starts * (1 if node.over else sweep.samples)
    bounded = any(np.isfinite(v.lower).any() or np.isfinite(v.upper).any() for v in variables)
    return read_method(
        "auto" if asked is None else asked,
        bounds=bounded,
        constraints=bool(constraints),
        residuals=residuals,
        starts=searches,
        sweep=bool(sweep.dims) and not node.over,
        variables=sum(v.start.size for v in variables),
    )


def check_goal(node: Optimize) -> None:
    """Exactly one of minimize, maximize and data must say what is wanted."""
    given = [name for name in ("minimize", "maximize", "data") if getattr(node, name) is not None]
    if len(given) != 1:
        raise PlanError(
            f"`optimize` must have one of minimize, maximize or data, but has {' and '.join(given) or 'none'}. "
            "Write minimize: loss, say; an objective beside data belongs into a constraint."
        )
    if node.data is not None and node.over is not None:
        raise PlanError(
            "`optimize.over` must be left out where data are fitted, but is sweep. Let a stage evaluate all conditions, and compare "
            "its output."
        )
    if node.allow_failed and node.over is None:
        raise PlanError("`optimize.allow_failed` must be left out without `over: sweep`, but is given. Remove it.")


def find_leaf(
    key: str, name: str, outputs: tuple[Leaf, ...], pipeline: Pipeline, shapes: Mapping[str, Any], problems: list[str]
) -> Leaf | None:
    """The one array that a name stands for: an output, or a stage's value."""
    found: list[str] = []
    leaf = find_output(key, name, outputs, pipeline, shapes, found)
    problems += [problem.replace(f"`{key}.of`", f"`{key}`") for problem in found]
    return leaf


def wrong_objective(key: str, leaf: Leaf, node: Optimize, reduction: Reduction | None) -> Iterator[str]:
    """An objective must be one real number."""
    where = f"{leaf.name!r} ({leaf.reference!s} of stage {leaf.reference.root!r})"
    if leaf.dtype.kind != "f":
        yield (
            f"`{key}` must be a real floating-point output, but {where} is {leaf.dtype}. A search needs its slope: return a float that "
            "changes with the variables."
        )
    elif leaf.shape and (node.over or reduction is None):
        remedy = (
            "Reduce it in its stage."
            if node.over
            else "Write `reduce: mean` or `reduce: sum`, or refer to one number of it."
        )
        yield f"`{key}` must be a single number, but {where} has the shape {leaf.shape}. {remedy}"
    elif not leaf.shape and node.reduce is not None and not node.over:
        yield (
            f"`optimize.reduce` must be left out for a single number, but is {node.reduce!r} and {where} is one. Remove it, or write "
            "`over: sweep`."
        )


def read_constraints(
    node: Optimize, outputs: tuple[Leaf, ...], pipeline: Pipeline, shapes: Mapping[str, Any], problems: list[str]
) -> Iterator[Constraint]:
    """The constraints, each with its output."""
    for name, limit in node.constraints.items():
        key = f"optimize.constraints.{name}"
        leaf = find_leaf(key, name, outputs, pipeline, shapes, problems)
        given = {k: v for k in ("min", "max", "equals") if (v := getattr(limit, k)) is not None}
        if not given or ("equals" in given and len(given) > 1):
            problems.append(
                f"`{key}` must have min, max, both, or equals, but has {' and '.join(given) or 'none'}. Write {{max: 1.0}}, say."
            )
        elif any(not math.isfinite(v) for v in given.values()):
            problems.append(f"`{key}` must hold finite numbers, but is {given}. Leave an open side out.")
        elif given.get("min", -math.inf) > given.get("max", math.inf):
            problems.append(f"`{key}` must have min <= max, but is {given}. Swap them.")
        elif leaf is not None and leaf.dtype.kind != "f":
            problems.append(
                f"`{key}` must be a real floating-point output, but {name!r} is {leaf.dtype}. Return a float."
            )
        elif leaf is not None:
            low = given.get("equals", given.get("min", -math.inf))
            yield Constraint(name, leaf, low, given.get("equals", given.get("max", math.inf)))


def compared_outputs(measurements: Measurements, outputs: tuple[Leaf, ...], problems: list[str]) -> Iterator[Leaf]:
    """The outputs that measurements belong to, in their order."""
    by_name = {leaf.name: leaf for leaf in outputs}
    for name, values in measurements.values.items():
        key, leaf = f"optimize.data.outputs.{name}", by_name.get(name)
        if leaf is None:
            problems.append(
                f"`{key}` must be an output, but {name!r} is none.{nearest(name, by_name)} There are {listed(by_name)}."
            )
        elif leaf.dtype.kind != "f":
            problems.append(
                f"`{key}` must be a real floating-point output, but {name!r} is {leaf.dtype}. Return floats."
            )
        elif leaf.shape != values.shape:
            problems.append(
                f"`{key}` must have a value for each of the output's numbers, but the output has the shape {leaf.shape} and the data "
                f"{values.shape}. Evaluate the model where it was measured: `inputs: {{parameter: column}}` gives it the column."
            )
        else:
            yield leaf


def sweep_problems(
    node: Optimize, sweep: Design, variables: tuple[Variable, ...], choices: Mapping[str, Array]
) -> Iterator[str]:
    """What does not go together with the sweep."""
    names = {v.name for v in variables} | set(choices)
    for name in sweep.columns:
        if name in names:
            yield (
                f"`optimize.variables.{name}` must not be swept too, but `sweep.axes` gives it values. Remove it from one; points to start "
                "from belong into `optimize.starts`."
            )
    if START in sweep.dims:
        yield "`sweep.axes.start` must have another name, but is the name of the starts' dimension. Rename the parameter."
    if node.over and not sweep.dims:
        yield "`optimize.over` must have a sweep to reduce over, but `sweep` has no axes. Add some, or remove `over`."
    if node.warm_start is not None:
        if node.over:
            yield "`optimize.warm_start` must be left out with `over: sweep`, but is given. Remove it."
        elif node.warm_start not in sweep.dims:
            yield (
                f"`optimize.warm_start` must be a dimension of the sweep, but is {node.warm_start!r}."
                f"{nearest(node.warm_start, sweep.dims)} There are {listed(sweep.dims)}."
            )


def with_starts(problem: Problem) -> Design:
    """The points of the searches as a design: the sweep's columns, and the variables along `start`.

    A search's variables are its own; the columns here hold where they start, and give them their place and shape.
    """
    sweep, starts = problem.sweep, problem.starts
    dims, shape = (*sweep.dims, START), (*sweep.shape, starts.count)
    columns = {**sweep.columns, **starts.columns}
    along = {**sweep.along, **dict.fromkeys(starts.columns, len(sweep.dims))}
    return replace(sweep, kind="grid", dims=dims, shape=shape, columns=columns, along=along)
