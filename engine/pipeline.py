"""`Config` → `Pipeline`: stages wired into a graph by the names of their arguments.

In: a checked config. Out: stages in an order in which they can run, each argument resolved to where its value comes from. Every
mistake that shows without tracing (imports, references, arguments, cycles) is found here, all at once.
"""

from __future__ import annotations

import graphlib
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.config import Config, build
from engine.diagnosis import explain_import
from engine.errors import PipelineError, listed, nearest

HYDRA_KEYS = {"_target_", "_inputs_", "_convert_", "_recursive_"}


@dataclass(frozen=True)
class Reference:
    """A dotted name: the parameter or stage at its root, and the path into its value."""

    root: str
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Reference:
        """`"motion.y.x"` -> the leaf `y.x` of what `motion` returns."""
        root, *path = text.split(".")
        return cls(root, tuple(path))

    def __str__(self) -> str:
        return ".".join((self.root, *self.path))


NEEDED = ("ops", "engine", "jax", "numpy", "diffrax", "equinox", "zarr", "xarray", "dask", "hydra")
"""Packages that a file of the same name beside a config would hide."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A pure function with the source of each of its arguments. Static."""

    name: str
    target: str
    function: Callable[..., Any]
    constants: Mapping[str, Any]
    """Arguments fixed by the config."""

    inputs: Mapping[str, Any]
    """Argument -> a `Reference`, or a nested list or mapping of them."""

    key_argument: str | None
    """The argument that takes the PRNG key, if any."""

    defaults: tuple[str, ...] = ()
    """Arguments left to the default of the signature."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """Every reference among the inputs."""
        return tuple(references_in(self.inputs))


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A graph of stages, each after all that it needs. Static."""

    stages: tuple[Stage, ...]
    parameters: Mapping[str, Any]
    """Nominal values: numbers or nested lists."""

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


def references_in(tree: Any) -> Iterator[Reference]:
    """Every reference in a nested mapping or list."""
    if isinstance(tree, Reference):
        yield tree
    elif isinstance(tree, Mapping):
        for child in tree.values():
            yield from references_in(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from references_in(child)


def build_pipeline(config: Config) -> Pipeline:
    """Import the stages of a config and wire them.

    Raises:
        PipelineError: with every import, argument, reference and cycle that is wrong.
    """
    make_importable(config.folder)
    problems: list[str] = []
    stages = {}
    for name, node in config.settings.stages.items():
        stage = build_stage(name, node, config, problems)
        if stage is not None:
            stages[name] = stage
    if problems:
        raise PipelineError(problems)
    order = sort(stages)
    return Pipeline(tuple(stages[name] for name in order), config.settings.parameters)


def build_stage(name: str, node: Mapping[str, Any], config: Config, problems: list[str]) -> Stage | None:
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
    inputs = read_inputs(f"{key}._inputs_", node.get("_inputs_", {}), config, problems)
    before = len(problems)
    check_arguments(key, signature, constants, inputs, problems)
    constants = {k: build_constant(f"{key}.{k}", v, signature, config, problems) for k, v in constants.items()}
    key_argument, defaults = resolve(key, name, signature, constants, inputs, config, problems)
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
    check_nodes(key, target, config, problems)
    built = None if problems else build_node(key, target, problems)
    if problems:
        raise PipelineError(problems)
    if not callable(built):
        raise PipelineError(
            f"`{key}` must build a function, but {target['_target_']} gives {type(built).__name__}. "
            "Write `_partial_: true` there for the function itself."
        )
    return spelled(target), built


def spelled(node: Any) -> str:
    """A node as the call that it stands for: `ops.external.callback(function=model.beam)`."""
    if isinstance(node, list):
        return "[" + ", ".join(map(spelled, node)) + "]"
    if not isinstance(node, dict):
        return str(node)
    given = ", ".join(f"{k}={spelled(v)}" for k, v in node.items() if k not in ("_target_", "_partial_", "_convert_"))
    if "_target_" not in node:
        return f"{{{given}}}"
    return f"{node['_target_']}({given})" if given or not node.get("_partial_") else str(node["_target_"])


def read_inputs(key: str, node: Any, config: Config, problems: list[str]) -> dict[str, Any]:
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
        reference = Reference.parse(value)
        check_root(where, reference, config, problems)
        return reference

    return {str(argument): read(f"{key}.{argument}", value) for argument, value in node.items()}


def check_root(where: str, reference: Reference, config: Config, problems: list[str]) -> None:
    """A reference must start with a stage or a parameter."""
    names = [*config.settings.stages, *config.settings.parameters]
    if reference.root not in names:
        problems.append(
            f"`{where}` must refer to a stage or a parameter, but {str(reference)!r} starts with {reference.root!r}, which is "
            f"neither.{nearest(reference.root, names)} There are {listed(names)}."
        )


def check_arguments(
    key: str, signature: inspect.Signature, constants: Mapping[str, Any], inputs: Mapping[str, Any], problems: list[str]
) -> None:
    """Constants and inputs must be arguments of the function, each once."""
    accepted = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for section, names in (("", constants), ("._inputs_", inputs)):
        for name in names:
            if name not in accepted and not open_ended:
                problems.append(
                    f"`{key}{section}.{name}` must be an argument of the function, but is not."
                    f"{nearest(name, accepted)} It takes {listed(accepted)}."
                )
    for name in set(constants) & set(inputs):
        problems.append(f"`{key}.{name}` must be given once, but is a constant and in `_inputs_` too. Remove one.")


def build_constant(key: str, value: Any, signature: inspect.Signature, config: Config, problems: list[str]) -> Any:
    """A constant as the function takes it: nodes with `_target_` built, files found beside the config."""
    if isinstance(value, str):
        return file_beside(value, signature.parameters.get(key.rpartition(".")[2]), config.folder)
    if not isinstance(value, dict | list):
        return value
    before = len(problems)
    check_nodes(key, value, config, problems)
    return value if len(problems) > before else build_node(key, value, problems)


def build_node(key: str, value: Any, problems: list[str]) -> Any:
    """What Hydra makes of a value with nodes in it; the value itself, and a problem, if it cannot."""
    try:
        return build(value)
    except Exception as error:
        cause = error.__cause__ or error
        problems.append(f"`{key}` must be built by its `_target_`, but {type(cause).__name__}: {cause}")
        return value


def file_beside(text: str, parameter: inspect.Parameter | None, folder: Path) -> Any:
    """Text that is a path by the function's annotation, or names a file beside the config, as an absolute path."""
    annotated = parameter is not None and any(
        hint is Path or hint is os.PathLike or "Path" in str(hint)
        for hint in (parameter.annotation, *typing.get_args(parameter.annotation))
    )
    if annotated:
        return (folder / text).resolve()
    return str((folder / text).resolve()) if Path(text).suffix and (folder / text).is_file() else text


def check_nodes(key: str, value: Any, config: Config, problems: list[str]) -> None:
    """Every nested `_target_` must be importable, and take the keys that its node gives."""
    if isinstance(value, list):
        for i, child in enumerate(value):
            check_nodes(f"{key}.{i}", child, config, problems)
    if not isinstance(value, dict):
        return
    for name, child in value.items():
        check_nodes(f"{key}.{name}", child, config, problems)
    if not isinstance(target := value.get("_target_"), str):
        return
    try:
        signature = inspect.signature(import_target(target, f"{key}._target_", config.folder))
    except PipelineError as error:
        problems.extend(error.problems)
        return
    except (TypeError, ValueError):
        return
    given = {k: v for k, v in value.items() if not (k.startswith("_") and k.endswith("_"))}
    check_arguments(key, signature, given, {}, problems)


def resolve(
    key: str,
    stage: str,
    signature: inspect.Signature,
    constants: Mapping[str, Any],
    inputs: dict[str, Any],
    config: Config,
    problems: list[str],
) -> tuple[str | None, tuple[str, ...]]:
    """Give each argument left its source: a stage, a parameter, the key, its default, in this order."""
    stages, parameters = config.settings.stages, config.settings.parameters
    key_argument, defaults = None, []
    for argument in signature.parameters.values():
        name = argument.name
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or name in inputs or name in constants:
            continue
        if (name in stages and name != stage) or name in parameters:
            inputs[name] = Reference(name)
        elif name == "key":
            key_argument = name
        elif argument.default is not argument.empty:
            defaults.append(name)
        else:
            names = [*(s for s in stages if s != stage), *parameters]
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


def make_importable(folder: Path) -> None:
    """Put the config's folder and the working directory first on the import path.

    Raises:
        PipelineError: a file there would hide a package that the engine needs.
    """
    for place in dict.fromkeys((folder.resolve(), Path.cwd())):
        for name in NEEDED:
            if (file := place / f"{name}.py").is_file():
                raise PipelineError(
                    f"`{file.name}` in {place} must have another name, since it hides the package {name!r}, which the engine needs. "
                    "Rename it."
                )
    for entry in (str(Path.cwd()), str(folder)):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)
    forget_stale_modules(folder.resolve())
    importlib.invalidate_caches()


def import_target(target: str, key: str, folder: Path) -> Callable[..., Any]:
    """Import `module.attribute`.

    Raises:
        PipelineError: the module or attribute is not there, raises on import, or is not callable.
    """
    parts = target.split(".")
    before = set(sys.modules)
    try:
        found: Any = import_module_of(parts)
    except (Exception, SystemExit) as error:
        raise explain_import(key, target, error) from None
    finally:
        mark_modules(before, folder)
    if not callable(found):
        raise PipelineError(f"`{key}` must be a function, but {target} is {type(found).__name__}. Name a function.")
    return found  # type: ignore[no-any-return]


def import_module_of(parts: list[str]) -> Any:
    """The object at a dotted path: the longest prefix that is a module, then attributes."""
    if len(parts) < 2 or not all(parts):
        raise ImportError(f"{'.'.join(parts)!r} is not of the form module.function")
    found: Any = importlib.import_module(parts[0])
    for depth, name in enumerate(parts[1:], 2):
        if not hasattr(found, name) and isinstance(found, ModuleType) and hasattr(found, "__path__"):
            importlib.import_module(".".join(parts[:depth]))
        found = getattr(found, name)
    return found


def forget_stale_modules(folder: Path) -> None:
    """Forget users' modules that have changed on disk, or that shadow one of the same name in `folder`.

    Two configs in one process may each have a `model.py`, and a notebook edits its own between two runs: the code that runs
    must be the code that is there. Only modules that a config brought in are ever forgotten.
    """
    brought = {name: module for name, module in list(sys.modules.items()) if hasattr(module, "__engine_stamp__")}
    stale = any(stamp(module) != module.__engine_stamp__ for module in brought.values())
    for name, module in brought.items():
        shadow = folder.joinpath(*name.split("."))
        own = any(p.is_file() and p != source(module) for p in (shadow.with_suffix(".py"), shadow / "__init__.py"))
        if stale or own:
            del sys.modules[name]


def mark_modules(before: set[str], folder: Path) -> None:
    """Remember the state on disk of the users' modules that came in since `before`."""
    for name in set(sys.modules) - before:
        module, roots = sys.modules[name], (folder.resolve(), Path.cwd())
        file = source(module)
        if file is not None and "site-packages" not in file.parts and any(file.is_relative_to(root) for root in roots):
            module.__engine_stamp__ = stamp(module)  # type: ignore[attr-defined]


def source(module: ModuleType) -> Path | None:
    """The file a module was read from."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def stamp(module: ModuleType) -> tuple[int, int] | None:
    """When a module's file was last written, and its size; None if it is gone."""
    file = source(module)
    try:
        status = file.stat() if file else None
    except OSError:
        status = None
    return (status.st_mtime_ns, status.st_size) if status else None
