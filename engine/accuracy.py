"""What in a config decides how accurate its numbers are, and the config with another value of it.

In: a config and its pipeline. Out: a `Knob` for each tolerance, fixed step and number of grid points that its stages are given,
whether it stands in the file or is left to a default.

The rules go by names, so that they serve solvers of anyone's, wherever they are nested in a stage's node:

    tolerance    a positive number called rtol, atol, reltol, abstol or tol
    step         a number called step or dt, beside a tolerance or in a node whose `_target_` is called a solver; a tolerance beside
                 it is not in force
    resolution   integers called n, cells, nx, ny, nz or shape in a node whose `_target_` is called a grid or a mesh; and an integer
                 argument of a stage that, when it is raised, refines one of the config's `coords` over the same range
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine import schema
from engine.config import Config
from engine.pipeline import Pipeline, Stage
from engine.targets import import_target

TOLERANCES = ("rtol", "atol", "reltol", "abstol", "tol")
ABSOLUTE = ("atol", "abstol")
STEPS = ("step", "dt")
COUNTS = ("n", "cells", "nx", "ny", "nz", "shape")
LIMITS = ("max_steps",)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Knob:
    """One setting of a stage. Static."""

    kind: str
    """tolerance | step | resolution | count: an integer that may be a resolution | limit: the most steps of a solver."""

    path: Path
    """Below `stages`."""

    value: Any
    default: Any = None
    """What the stage's argument is where the file leaves it to the default of the signature."""

    @property
    def key(self) -> str:
        """Its dotted key."""
        return ".".join(map(str, ("stages", *self.path)))

    @property
    def name(self) -> str:
        """The last part of its key."""
        return str(self.path[-1])


def knobs(config: Config, pipeline: Pipeline) -> list[Knob]:
    """Every knob of every stage, in order."""
    found = []
    for stage in pipeline.stages:
        node = config.settings.stages[stage.name]
        left = {name: value for name, value in defaults_of(stage.function).items() if name in stage.defaults}
        for argument, value in {**node, **left}.items():
            if argument != "_inputs_":
                start = left.get(argument)
                found += [replace(knob, default=start) for knob in within((stage.name, argument), value, config)]
        found += settings((stage.name,), {**node, **left}, "", config)
        found += counts(stage, {**node, **left})
    return found


def within(path: Path, value: Any, config: Config) -> Iterator[Knob]:
    """The knobs inside a value: a node, plain data, a partial, or an object with fields."""
    if isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from within((*path, i), child, config)
        return
    inside = members(value, config)
    yield from settings(path, inside, called(value), config)
    for name, child in inside.items():
        yield from within((*path, name), child, config)


def settings(path: Path, inside: Mapping[str, Any], called: str, config: Config) -> Iterator[Knob]:
    """The knobs right in a mapping of settings, of something called so."""
    tolerances = [name for name in TOLERANCES if is_positive(inside.get(name))]
    solves = bool(tolerances) or "solver" in called
    steps = [name for name in STEPS if solves and is_positive(inside.get(name))]
    gridded = "grid" in called or "mesh" in called
    named = {"step": steps, "tolerance": [] if steps else tolerances}
    named["resolution"] = [name for name in COUNTS if gridded and is_counts(inside.get(name))]
    named["limit"] = [name for name in LIMITS if is_counts(inside.get(name))]
    for kind, names in named.items():
        for name in names:
            yield Knob(kind, (*path, name), inside[name])


def counts(stage: Stage, inside: Mapping[str, Any]) -> Iterator[Knob]:
    """The integers that a stage is given directly."""
    for name, value in inside.items():
        if name not in LIMITS and isinstance(value, int) and is_counts(value):
            yield Knob("count", (stage.name, name), value, value)


def members(value: Any, config: Config) -> dict[str, Any]:
    """What a value holds by name: of a node, the defaults of its target too."""
    if isinstance(value, Mapping):
        target = value.get("_target_")
        inside = defaults_of(import_target(target, "_target_", config.folder)) if isinstance(target, str) else {}
        return inside | {name: child for name, child in value.items() if isinstance(name, str)}
    if isinstance(value, functools.partial):
        return dict(value.keywords)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return {}


def called(value: Any) -> str:
    """What a node or an object calls itself, in lower case."""
    if isinstance(value, Mapping):
        target = value.get("_target_")
        return target.rpartition(".")[2].lower() if isinstance(target, str) else ""
    return type(value).__name__.lower()


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def is_positive(value: Any) -> bool:
    """Whether a value is a positive number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def is_counts(value: Any) -> bool:
    """Whether a value is a number of points, or one for each axis."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_counts, value))
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def turned(config: Config, changes: Sequence[tuple[Knob, Any]]) -> Config:
    """The config with other values of some knobs."""
    stages: Any = config.node["stages"]
    for knob, value in changes:
        stages = put(stages, knob.path, value, knob.default)
    node = {**config.node, "stages": stages}
    found, problems = schema.check(node)
    assert found is not None, problems
    return replace(config, node=node, settings=found)


def put(tree: Any, path: Path, value: Any, default: Any) -> Any:
    """A tree with another value at a path; `default` stands where the path leaves what the file holds."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return tree | {head: put(tree.get(head, default), rest, value, default)}
    if isinstance(tree, list | tuple):
        return [put(child, rest, value, default) if i == head else child for i, child in enumerate(tree)]
    if isinstance(tree, functools.partial):
        changed = {str(head): put(tree.keywords[str(head)], rest, value, default)}
        return functools.partial(tree.func, *tree.args, **{**tree.keywords, **changed})
    return replace(tree, **{str(head): put(getattr(tree, str(head)), rest, value, default)})
