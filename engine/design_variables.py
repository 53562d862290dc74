"""`optimize.variables` and `optimize.starts` → what a search moves, from where, within which bounds.

In: the nodes and the nominal parameters. Out: `Variable`s, the values that are enumerated, and the starts, or every problem at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.axes import shown
from engine.designs import SAMPLED, design
from engine.errors import PlanError, SweepError, nearest
from engine.parameters import Parameters
from engine.references import flat
from engine.scaling import Variable
from engine.schema import DesignVariable, Optimize

Array = np.ndarray[Any, Any]
MOST_CHOICES = 10_000
"""Combinations of enumerated values."""


@dataclass(frozen=True, eq=False)
class Starts:
    """Where the searches begin. Static."""

    columns: Mapping[str, Array]
    """Variable or enumerated parameter -> its value at each start, (starts, *shape)."""

    count: int

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return self.count > 1


def variable_names(optimize: Optimize, parameters: Parameters) -> dict[str, list[str]]:
    """The parameters at or below each name in `optimize.variables` that are searched as real numbers."""
    nodes = flat(optimize.variables, parameters.nominal)
    return {
        name: parameters.continuous(name) for name, node in nodes.items() if node.values is None and not node.integer
    }


def read_variables(
    optimize: Optimize, parameters: Parameters, ranges: Mapping[str, Any]
) -> tuple[tuple[Variable, ...], dict[str, Array]]:
    """The variables that are searched, and the values of those that are enumerated.

    Raises:
        PlanError: with everything that is wrong.
    """
    problems: list[str] = []
    found: list[Variable] = []
    choices: dict[str, Array] = {}
    limits = flat(ranges, parameters.nominal)
    for name, node in optimize.variables.items():
        key = f"optimize.variables.{name}"
        names = parameters.continuous(name)
        if node.values is not None or node.integer:
            if name not in parameters.nominal:
                problems.append(unknown(key, name, parameters))
            else:
                choices[name] = read_choices(key, node, np.asarray(parameters.nominal[name]), problems)
        elif not names:
            problems.append(unknown(key, name, parameters))
        else:
            for one in names:
                variable = read_variable(
                    key, one, node, np.asarray(parameters.nominal[one]), limits.get(one, limits.get(name)), problems
                )
                found += [] if variable is None else [variable]
    if not found and not problems:
        problems.append(
            "`optimize.variables` must hold a variable that is not enumerated, but holds none. Sweep the values instead: "
            "`sweep: {axes: {...}}`."
        )
    repeated = sorted(
        {v.name for v in found if [w.name for w in found].count(v.name) > 1} | {*choices} & {v.name for v in found}
    )
    problems += [f"`optimize.variables` must name {name!r} once, but does so twice. Remove one." for name in repeated]
    if problems:
        raise PlanError(problems)
    return tuple(found), choices


def unknown(key: str, name: str, parameters: Parameters) -> str:
    """A variable that is no real parameter."""
    inside = [other for other in parameters.nominal if other == name or other.startswith(f"{name}.")]
    if inside:
        return (
            f"`{key}` must be a real floating-point parameter, but {name!r} is {np.asarray(parameters.nominal[inside[0]]).dtype}. "
            "Let its `_target_` make floats, or enumerate it: {values: [1, 2, 3]}."
        )
    return (
        f"`{key}` must be a parameter, but {name!r} is none.{nearest(name, parameters.nominal)} "
        f"There are {', '.join(map(repr, parameters.nominal))}."
    )


def read_variable(
    key: str, name: str, node: DesignVariable, nominal: Array, limits: Any, problems: list[str]
) -> Variable | None:
    """One parameter that is searched; None with its problems taken down."""
    before = len(problems)
    start = read_array(f"{key}.start", node.start, nominal.astype(float), problems)
    bounds = node.bounds if node.bounds is not None else limits
    lower, upper = read_bounds(f"{key}.bounds", bounds, nominal.shape, problems)
    scale = node.scale
    if len(problems) > before:
        return None
    if (lower > upper).any():
        problems.append(f"`{key}.bounds` must be [low, high], but is {shown(bounds)}. Swap them.")
    elif ((start < lower) | (start > upper)).any():
        worst = start[(start < lower) | (start > upper)].flat[0]
        problems.append(
            f"`{key}.start` must lie within its bounds, but is {worst:g} with bounds {shown(bounds)}. Move the start, or the bounds."
        )
    elif scale == "log" and ((start <= 0).any() or np.isfinite(lower[lower <= 0]).any()):
        problems.append(
            f"`{key}.scale` must be linear or auto where zero or negative values may occur, but is log, with start {shown(start.tolist())} "
            f"and bounds {shown(bounds)}. Use bounds above 0."
        )
    if limits is not None and node.bounds is not None and len(problems) == before:
        problems += beyond_range(key, name, lower, upper, limits)
    if len(problems) > before:
        return None
    if scale == "log":
        lower = np.maximum(lower, np.finfo(float).tiny)
    return Variable(name, start, lower, upper, scale)


def beyond_range(key: str, name: str, lower: Array, upper: Array, limits: Any) -> list[str]:
    """Bounds must lie within the declared range of the parameter."""
    low, high = read_bounds(f"ranges.{name}", limits, lower.shape, [])
    if (lower >= low).all() and (upper <= high).all():
        return []
    return [
        f"`{key}.bounds` must lie within `ranges.{name}`, but reach beyond {shown(list(limits))}. Narrow the bounds, or leave "
        "them out for the range."
    ]


def read_array(key: str, given: Any, nominal: Array, problems: list[str]) -> Array:
    """A number for all elements, or an array of the parameter's shape; the nominal value if None."""
    if given is None:
        return nominal
    try:
        if isinstance(given, str | bool):
            raise ValueError
        array = np.asarray(given, float)
        if array.shape not in ((), nominal.shape) or not np.isfinite(array).all():
            raise ValueError
    except (ValueError, TypeError):
        problems.append(
            f"`{key}` must be a finite number{f' or have shape {nominal.shape}' if nominal.shape else ''}, but is {shown(given)}. "
            "Write a number, or leave it out for the nominal value."
        )
        return nominal
    return np.broadcast_to(array, nominal.shape).copy()


def read_bounds(key: str, given: Any, shape: tuple[int, ...], problems: list[str]) -> tuple[Array, Array]:
    """Lower and upper bounds, infinite where null stands."""
    ends = [np.full(shape, -math.inf), np.full(shape, math.inf)]
    if given is None:
        return ends[0], ends[1]
    if not isinstance(given, list | tuple) or len(given) != 2:
        problems.append(
            f"`{key}` must be [low, high], with null for an open end, but is {shown(given)}. Write [0, 10], say."
        )
        return ends[0], ends[1]
    for i, end in enumerate(given):
        if end is None or (isinstance(end, float) and math.isinf(end) and (end > 0) == bool(i)):
            continue
        ends[i] = read_array(f"{key}.{i}", end, ends[i], problems)
    return ends[0], ends[1]


def read_choices(key: str, node: DesignVariable, nominal: Array, problems: list[str]) -> Array:
    """The values of an enumerated parameter."""
    if nominal.shape:
        problems.append(
            f"`{key}` must be a single number to be enumerated, but has shape {nominal.shape}. Sweep it instead."
        )
        return np.zeros(1)
    values: Any = node.values
    if values is None:
        low, high = read_bounds(f"{key}.bounds", node.bounds, (), problems)
        if not (np.isfinite(low) and np.isfinite(high)) or float(low) > float(high):
            problems.append(
                f"`{key}.bounds` must be two integers for an enumeration, but is {shown(node.bounds)}. Write bounds: [1, 5]."
            )
            return np.zeros(1)
        values = list(range(math.ceil(float(low)), math.floor(float(high)) + 1))
    good = values and all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if not good or len(set(values)) < len(values):
        problems.append(
            f"`{key}.values` must be a list of different finite numbers, but is {shown(values)}. Mend the list."
        )
        return np.zeros(1)
    return np.asarray(values)


def read_starts(
    node: Mapping[str, Any] | None,
    variables: Sequence[Variable],
    choices: Mapping[str, Array],
    *,
    seed: int,
    folder: Path,
) -> Starts:
    """The points from which searches start: the nominal one, or those of a sweep's design, each with every combination of the
    enumerated values.

    Raises:
        PlanError: the design is wrong, or a start lies outside the bounds; all at once.
    """
    if node is None:
        columns = {v.name: v.start[None] for v in variables}
        count = 1
    else:
        columns, count = designed(node, variables, seed, folder)
    combinations = list(itertools.product(*choices.values()))
    if len(combinations) * count > MOST_CHOICES * 100 or len(combinations) > MOST_CHOICES:
        raise PlanError(
            f"`optimize.variables` must enumerate at most {MOST_CHOICES} combinations, but {len(combinations)} are asked for. "
            "Give fewer values."
        )
    every = len(combinations)
    columns = {name: np.tile(column, (every, *(1,) * (column.ndim - 1))) for name, column in columns.items()}
    for i, name in enumerate(choices):
        columns[name] = np.repeat(np.array([c[i] for c in combinations]), count)
    return Starts(columns, count * every)


def designed(
    node: Mapping[str, Any], variables: Sequence[Variable], seed: int, folder: Path
) -> tuple[dict[str, Array], int]:
    """The columns of a design of starts; an axis that is left out is drawn between the bounds."""
    known = {"design", "axes", "samples", "table"}
    if odd := [key for key in node if key not in known]:
        raise PlanError(
            f"`optimize.starts.{odd[0]}` must be one of design, axes, samples or table, but is {odd[0]!r}.{nearest(odd[0], known)} "
            "Write starts: {design: sobol, samples: 16}."
        )
    kind = node.get("design", "sobol" if "samples" in node else "grid")
    axes = dict(node.get("axes") or {})
    problems: list[str] = []
    if kind in SAMPLED:
        for variable in variables:
            if variable.name not in axes and (variable.lower < variable.upper).any():
                axis = drawn_between(variable)
                if axis is None:
                    problems.append(
                        f"`optimize.starts.axes.{variable.name}` must be given for a variable without finite bounds, but is missing. "
                        f"Write axes: {{{variable.name}: {{uniform: [low, high]}}}}, or bounds."
                    )
                else:
                    axes[variable.name] = axis
    if problems:
        raise PlanError(problems)
    nominal = {v.name: v.start for v in variables}
    sweep = {"design": kind, "axes": axes, "samples": node.get("samples"), "table": node.get("table")}
    try:
        points = design(sweep, nominal, seed=seed, folder=folder)
    except SweepError as error:
        raise PlanError([problem.replace("`sweep.", "`optimize.starts.") for problem in error.problems]) from None
    count = points.samples
    taken = points.take(np.arange(count))
    columns = {
        v.name: np.asarray(taken.get(v.name, np.broadcast_to(v.start, (count, *v.start.shape))), float)
        for v in variables
    }
    for variable in variables:
        column = columns[variable.name]
        outside = (column < variable.lower) | (column > variable.upper)
        if outside.any():
            problems.append(
                f"`optimize.starts.axes.{variable.name}` must stay within the bounds of the variable, but gives "
                f"{column[outside].flat[0]:g}. Narrow the axis, or widen the bounds."
            )
    if problems:
        raise PlanError(problems)
    return columns, count


def drawn_between(variable: Variable) -> dict[str, Any] | None:
    """The distribution of a start within bounds; None if one is open."""
    if not (np.isfinite(variable.lower).all() and np.isfinite(variable.upper).all()):
        return None
    kind = "loguniform" if variable.logarithmic else "uniform"
    low, high = variable.lower, variable.upper
    if not variable.start.shape or ((low == low.flat[0]).all() and (high == high.flat[0]).all()):
        return {kind: [float(low.flat[0]), float(high.flat[0])]}
    return {kind: [low.tolist(), high.tolist()]}
