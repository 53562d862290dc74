"""`Config` → `Pipeline`: stages wired into a graph by the names of their arguments.

In: a checked config. Out: stages in an order in which they can run, each argument resolved to where its value comes from. Every
mistake that shows without tracing (imports, references, arguments, cycles) is found here, all at once.
"""

from __future__ import annotations

import graphlib
import inspect
import os
import typing
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from engine import values
from engine.config import Config
from engine.errors import PipelineError, listed, nearest
from engine.parameters import Parameters
from engine.references import Reference
from engine.targets import build_node, check_arguments, check_nodes, import_target, make_importable, spelled

HYDRA_KEYS = {"_target_", "_inputs_", "_convert_", "_recursive_"}


@dataclass(frozen=True, eq=False)
class Stage:
    """A pure function with the source of each of its arguments. Static."""

    name: str
    target: str
    function: Callable[..., Any]
    constants: Mapping[str, Any]
    """Arguments fixed by the config."""

    inputs: Mapping[str, Any]
    """Argument -> a `Reference`, or a pytree of them; what else is in it is static."""

    key_argument: str | None
    """The argument that takes the PRNG key, if any."""

    defaults: tuple[str, ...] = ()
    """Arguments left to the default of the signature."""

    widened: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are floats though the config writes integers, with the reason."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """Every reference among the inputs."""
        leaves = jax.tree_util.tree_leaves(dict(self.inputs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Reference))


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A graph of stages, each after all that it needs. Static."""

    stages: tuple[Stage, ...]
    parameters: Parameters

    def __getitem__(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The stages' names, in the order in which they run."""
        return tuple(stage.name for stage in self.stages)

    def upstream(self, roots: set[str]) -> set[str]:
        """The stages among `roots`, and all stages that they need."""
        needed = set(roots)
        for stage in reversed(self.stages):
            if stage.name in needed:
                needed |= {reference.root for reference in stage.references}
        return needed & set(self.names)

    def downstream(self, parameters: set[str], with_key: bool) -> set[str]:
        """The stages whose value depends on one of `parameters`, or on the PRNG key if asked."""
        moved = set(parameters)
        for stage in self.stages:
            if (with_key and stage.key_argument) or any(reference.root in moved for reference in stage.references):
                moved.add(stage.name)
        return moved & set(self.names)

    def terminal(self) -> tuple[str, ...]:
        """The stages whose value no other stage takes."""
        consumed = {reference.root for stage in self.stages for reference in stage.references}
        return tuple(name for name in self.names if name not in consumed)


def build_pipeline(config: Config, parameters: Parameters) -> Pipeline:
    """Import the stages of a config and wire them.

    Raises:
        PipelineError: with every import, argument, reference and cycle that is wrong.
    """
    make_importable(config.folder)
    problems: list[str] = []
    stages = {}
    for name, node in config.settings.stages.items():
        stage = build_stage(name, node, config, parameters, problems)
        if stage is not None:
            stages[name] = stage
    if problems:
        raise PipelineError(problems)
    order = sort(stages)
    return Pipeline(tuple(stages[name] for name in order), parameters)


def with_reasons(pipeline: Pipeline, reasons: Mapping[str, str]) -> Pipeline:
    """The pipeline with what its errors need to say of parameters that were made floats."""

    def explained(stage: Stage) -> Stage:
        taken = {name: str(tree) for name, tree in stage.inputs.items() if isinstance(tree, Reference)}
        return replace(stage, widened={name: reasons[source] for name, source in taken.items() if source in reasons})

    return replace(pipeline, stages=tuple(map(explained, pipeline.stages)))


def build_stage(
    name: str, node: Mapping[str, Any], config: Config, parameters: Parameters, problems: list[str]
) -> Stage | None:
    """One stage; what is wrong with it is appended to `problems`."""
    key = f"stages.{name}"
    for forbidden in ("_partial_", "_args_"):
        if forbidden in node:
            problems.append(f"`{key}.{forbidden}` must not be given, but is: a stage is called by name. Remove it.")
            return None
    try:
        target, function = stage_function(f"{key}._target_", node.get("_target_"), config)
        signature = inspect.signature(function)
    except PipelineError as error:
        problems.extend(error.problems)
        return None
    except (TypeError, ValueError):
        problems.append(f"`{key}._target_` must have a signature, but {target} has none. Wrap it in a Python function.")
        return None
    constants = {k: v for k, v in node.items() if k not in HYDRA_KEYS}
    inputs = read_inputs(f"{key}._inputs_", node.get("_inputs_", {}), config, parameters, problems)
    before = len(problems)
    check_arguments(key, signature, constants, inputs, problems)
    constants = {k: build_constant(f"{key}.{k}", v, signature, config, problems) for k, v in constants.items()}
    key_argument, defaults = resolve(key, name, signature, constants, inputs, config, parameters, problems)
    if len(problems) > before:
        return None
    return Stage(name, target, function, constants, inputs, key_argument, defaults)


def stage_function(key: str, target: Any, config: Config) -> tuple[str, Callable[..., Any]]:
    """The function of a stage and its name in a plan: imported by its path, or built by Hydra from a node.

    Raises:
        PipelineError: it cannot be imported or built, or is not callable.
    """
    if isinstance(target, str):
        return target, import_target(target, key, config.folder)
    if not isinstance(target, dict) or not isinstance(target.get("_target_"), str):
        found = "is missing" if target is None else f"is {target!r}"
        raise PipelineError(
            f"`{key}` must be the import path of a function, or a node that builds one, but {found}. Write module.function."
        )
    problems: list[str] = []
    check_nodes(key, target, config.folder, problems)
    built = None if problems else build_node(key, target, problems)
    if problems:
        raise PipelineError(problems)
    if not callable(built):
        raise PipelineError(
            f"`{key}` must build a function, but {target['_target_']} gives {type(built).__name__}. "
            "Write `_partial_: true` there for the function itself."
        )
    return spelled(target), built


def read_inputs(key: str, node: Any, config: Config, parameters: Parameters, problems: list[str]) -> dict[str, Any]:
    """`_inputs_`: argument -> reference, or a nested list or mapping of references."""
    if not isinstance(node, Mapping):
        problems.append(f"`{key}` must be a mapping from argument to reference, but is {node!r}.")
        return {}

    def read(where: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: read(f"{where}.{k}", v) for k, v in value.items()}
        if isinstance(value, list):
            return [read(f"{where}.{i}", v) for i, v in enumerate(value)]
        if not isinstance(value, str):
            problems.append(
                f"`{where}` must be a reference such as stage.field, but is {value!r}. "
                "A constant stands directly in the stage's node."
            )
            return value
        try:
            return refer(where, value, config.settings.stages, parameters)
        except PipelineError as error:
            problems.extend(error.problems)
            return None

    return {str(argument): read(f"{key}.{argument}", value) for argument, value in node.items()}


def refer(where: str, text: str, stages: Collection[str], parameters: Parameters) -> Any:
    """The pytree of references that a dotted name stands for: of one for a stage's value, or an array.

    Raises:
        PipelineError: it starts with neither a stage nor a parameter, or leads nowhere in a parameter.
    """
    reference = Reference.parse(text)
    if reference.root in stages:
        return reference
    if reference.root not in parameters.trees:
        names = [*stages, *parameters.trees]
        raise PipelineError(
            f"`{where}` must refer to a stage or a parameter, but {text!r} starts with {reference.root!r}, which is "
            f"neither.{nearest(reference.root, names)} There are {listed(names)}."
        )
    try:
        return parameters.refer(reference)
    except values.PathError as error:
        raise PipelineError(
            f"`{where}` must refer to a value, but {text!r} has no {error.part!r}."
            f"{nearest(error.part, error.available)} It has {listed(error.available)}."
        ) from None


def build_constant(key: str, value: Any, signature: inspect.Signature, config: Config, problems: list[str]) -> Any:
    """A constant as the function takes it: nodes with `_target_` built, files found beside the config."""
    if isinstance(value, str):
        return file_beside(value, signature.parameters.get(key.rpartition(".")[2]), config.folder)
    if not isinstance(value, dict | list):
        return value
    before = len(problems)
    check_nodes(key, value, config.folder, problems)
    return value if len(problems) > before else build_node(key, value, problems)


def file_beside(text: str, parameter: inspect.Parameter | None, folder: Path) -> Any:
    """Text that is a path by the function's annotation, or names a file beside the config, as an absolute path."""
    annotated = parameter is not None and any(
        hint is Path or hint is os.PathLike or "Path" in str(hint)
        for hint in (parameter.annotation, *typing.get_args(parameter.annotation))
    )
    if annotated:
        return (folder / text).resolve()
    return str((folder / text).resolve()) if Path(text).suffix and (folder / text).is_file() else text


def resolve(
    key: str,
    stage: str,
    signature: inspect.Signature,
    constants: Mapping[str, Any],
    inputs: dict[str, Any],
    config: Config,
    parameters: Parameters,
    problems: list[str],
) -> tuple[str | None, tuple[str, ...]]:
    """Give each argument left its source: a stage, a parameter, the key, its default, in this order."""
    stages = config.settings.stages
    key_argument, defaults = None, []
    for argument in signature.parameters.values():
        name = argument.name
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or name in inputs or name in constants:
            continue
        if name in stages and name != stage:
            inputs[name] = Reference(name)
        elif name in parameters.trees:
            inputs[name] = parameters.trees[name]
        elif name == "key":
            key_argument = name
        elif argument.default is not argument.empty:
            defaults.append(name)
        else:
            names = [*(s for s in stages if s != stage), *parameters.trees]
            problems.append(
                f"`{key}` must find its argument {name!r}, but no constant, stage or parameter has that name."
                f"{nearest(name, names)} There are {listed(names)}; or write `_inputs_: {{{name}: reference}}`."
            )
    return key_argument, tuple(defaults)


def sort(stages: Mapping[str, Stage]) -> list[str]:
    """The stages in an order in which each stands after all that it needs."""
    graph = {name: [r.root for r in stage.references if r.root in stages] for name, stage in stages.items()}
    sorter = graphlib.TopologicalSorter(graph)
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = list(reversed(error.args[1]))
        arrows = " -> ".join(cycle)
        raise PipelineError(
            f"`stages.{cycle[0]}` must not need its own result, but the stages form a cycle: {arrows}. "
            "Break it: take one of these inputs from a parameter, or solve for it inside one stage."
        ) from None


def check_parameters_used(pipeline: Pipeline, config: Config) -> None:
    """A parameter that nothing takes is a misspelt one."""
    settings = config.settings
    used = {reference.root for stage in pipeline.stages for reference in stage.references}
    sources = [output.source for output in (settings.outputs or {}).values()] + list(settings.coords.values())
    for source in sources:
        with suppress(PipelineError):  # told of with the outputs
            found = jax.tree_util.tree_leaves(refer("outputs", source, pipeline.names, pipeline.parameters))
            used |= {leaf.root for leaf in found if isinstance(leaf, Reference)}
    parts = {
        part for name in used for part in pipeline.parameters.beside(name)
    }  # of what a node makes, one part is enough
    problems = []
    for name in pipeline.parameters.nominal:
        if name not in used | parts:
            arguments = [a for stage in pipeline.stages for a in stage.defaults]
            problems.append(
                f"`parameters.{name}` must be taken by a stage, but none has an argument of that name."
                f"{nearest(name, arguments)} The stages take {listed(sorted(used | set(arguments)))}. Rename or remove it."
            )
    if problems:
        raise PipelineError(problems)
