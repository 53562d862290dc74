"""What a config names by `_target_` → the object: a function imported, a node built by Hydra.

In: import paths and nodes. Out: users' functions and objects, from the code that is on disk now.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.config import build
from engine.diagnosis import explain_import
from engine.errors import PipelineError, listed, nearest

NEEDED = ("ops", "engine", "jax", "numpy", "diffrax", "equinox", "zarr", "xarray", "dask", "hydra")
"""Packages that a file of the same name beside a config would hide."""


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


def check_nodes(key: str, value: Any, folder: Path, problems: list[str]) -> None:
    """Every nested `_target_` must be importable, and take the keys that its node gives."""
    if isinstance(value, list):
        for i, child in enumerate(value):
            check_nodes(f"{key}.{i}", child, folder, problems)
    if not isinstance(value, dict):
        return
    for name, child in value.items():
        check_nodes(f"{key}.{name}", child, folder, problems)
    if not isinstance(target := value.get("_target_"), str):
        return
    try:
        signature = inspect.signature(import_target(target, f"{key}._target_", folder))
    except PipelineError as error:
        problems.extend(error.problems)
        return
    except (TypeError, ValueError):
        return
    given = {k: v for k, v in value.items() if not (k.startswith("_") and k.endswith("_"))}
    check_arguments(key, signature, given, {}, problems)


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


def build_node(key: str, value: Any, problems: list[str]) -> Any:
    """What Hydra makes of a value with nodes in it; the value itself, and a problem, if it cannot."""
    try:
        return build(value)
    except Exception as error:
        cause = error.__cause__ or error
        problems.append(f"`{key}` must be built by its `_target_`, but {type(cause).__name__}: {cause}")
        return value


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
