"""`transforms` → the stack as data: which transforms are composed, in which order, over what.

In: a checked config, its stages and the dimensions of its sweep. Out: a `Stack`, or every reason why the order written cannot mean
anything. `engine.transforms` composes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.config import Config, build
from engine.errors import PlanError, listed, nearest
from engine.pipeline import Pipeline

RANKS = {"derivatives": 1, "map": 2, "vmap": 2, "devices": 3, "jit": 4}
"""What must stand inside what; a checkpoint and a function of the user's own go inside the batching."""

LAYERS = ("checkpoint", *RANKS)
EXAMPLE = "transforms: [derivatives, vmap, devices, jit]"


@dataclass(frozen=True, eq=False)
class Custom:
    """A transform of the user's own: a function in, a function out. Static."""

    target: str
    settings: str
    """Its node, as text that tells two apart."""

    apply: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Stack:
    """What is composed around the pipeline. Static."""

    of_values: tuple[Custom, ...] = ()
    """Applied to `f(parameters, key) -> values`, innermost first: derivatives are those of what they return."""

    of_sample: tuple[Custom, ...] = ()
    """Applied outside the derivatives, to the function of one sample."""

    checkpoint: tuple[str, ...] = ()
    """Stages whose values are computed again in a reverse pass instead of kept."""

    mapped: tuple[str, ...] = ()
    """Sweep dimensions that a chunk goes along one batch after the other."""

    batch: int = 1
    """Points along those dimensions that are computed at once."""

    devices: int | None = None
    """Devices that a chunk is split over; None for all that there are."""

    jit: bool = True

    def formula(self, passes: tuple[Any, ...], names: tuple[str, ...], width: int | None, at_once: int, n: int) -> str:
        """The stack as it is composed, outermost first.

        Args:
            passes: the derivatives.
            names: of the stages, in order.
            width: samples of a chunk, None for a single evaluation.
            at_once: samples that are computed at once on one device.
            n: devices.
        """
        parts = ["jit"] if self.jit else []
        parts += [f"devices({n})"] if n > 1 else []
        parts += [f"map[{', '.join(self.mapped)}]"] if self.mapped else []
        if width is not None:
            parts.append(f"vmap[{min(at_once, width)}]")
        parts += [custom.target for custom in reversed(self.of_sample)]
        parts += [str(one) for one in passes]
        parts += [custom.target for custom in reversed(self.of_values)]
        parts += [f"checkpoint({', '.join(self.checkpoint)})"] if self.checkpoint else []
        return " ∘ ".join([*parts, "(" + " ∘ ".join(reversed(names)) + ")"])


def read_stack(config: Config, pipeline: Pipeline, dims: tuple[str, ...]) -> Stack:
    """The stack that a config asks for.

    Args:
        config: with `transforms`: auto, or a list of layers, innermost first.
        pipeline: its stages.
        dims: of its sweep.

    Raises:
        PlanError: an unknown layer, an order that cannot mean anything, a stage or an axis that is not there; all at once.
    """
    written, jit = config.settings.transforms, config.settings.execution.jit
    if written == "auto":
        return Stack(jit=jit)
    if not isinstance(written, list) or not written:
        raise PlanError(f"`transforms` must be auto or a list of layers, but is {written!r}. Write {EXAMPLE}.")
    problems: list[str] = []
    layers = [read_layer(f"transforms.{i}", node, problems) for i, node in enumerate(written)]
    if problems:
        raise PlanError(problems)
    names = [name for name, _ in layers]
    problems += order_problems(names, bool(config.settings.derivatives), dims)
    inner = names.index("derivatives") if "derivatives" in names else len(names)
    customs = [(i, node) for i, (name, node) in enumerate(layers) if name == "custom"]
    options = {name: node for name, node in layers if name not in ("custom", "derivatives", "vmap", "jit")}
    checkpoint = (
        read_checkpoint(options, names.index("checkpoint"), pipeline, config, problems) if "checkpoint" in names else ()
    )
    mapped, batch = read_map(options["map"], names, dims, problems) if "map" in names else ((), 1)
    if problems:
        raise PlanError(problems)
    return Stack(
        tuple(build_custom(f"transforms.{i}", node) for i, node in customs if i < inner),
        tuple(build_custom(f"transforms.{i}", node) for i, node in customs if i > inner),
        checkpoint,
        mapped,
        batch,
        options.get("devices") if "devices" in names else 1,
        jit and "jit" in names,
    )


def read_layer(key: str, node: Any, problems: list[str]) -> tuple[str, Any]:
    """The name of a layer and its options; `custom` for a node with a `_target_`."""
    if isinstance(node, Mapping) and "_target_" in node:
        return "custom", node
    name, options = next(iter(node.items())) if isinstance(node, Mapping) and len(node) == 1 else (node, None)
    if name not in LAYERS:
        problems.append(
            f"`{key}` must be one of {', '.join(LAYERS)}, or a node with `_target_`, but is {node!r}.{nearest(str(name), LAYERS)} "
            f"Write {EXAMPLE}."
        )
    elif name == "devices" and options is not None and (type(options) is not int or options < 1):
        problems.append(
            f"`{key}.devices` must be a positive integer, but is {options!r}. Write devices, for all there are."
        )
    elif name in ("derivatives", "vmap", "jit") and options is not None:
        problems.append(f"`{key}.{name}` must have no options, but has {options!r}. Write {name}.")
    return str(name), options


def order_problems(names: list[str], derivatives: bool, dims: tuple[str, ...]) -> list[str]:
    """Why layers in this order, innermost first, cannot mean anything."""
    problems = [
        f"`transforms` must hold {name} once, but holds it {names.count(name)} times. Remove the others."
        for name in LAYERS
        if names.count(name) > 1
    ]
    if derivatives and "derivatives" not in names:
        problems.append(
            f"`transforms` must hold derivatives, which the config asks for, but does not. Write {EXAMPLE}."
        )
    if dims and not {"vmap", "map"} & set(names):
        problems.append(f"`transforms` must hold vmap or map to go over a sweep, but holds neither. Write {EXAMPLE}.")
    ranked = [(name, RANKS[name]) for name in names if name in RANKS]
    for (inner, a), (outer, b) in pairwise(ranked):
        if a > b:
            problems.append(
                f"`transforms` must have {outer} inside {inner}, but has it outside (the list is innermost first). "
                f"Write {outer} before {inner}."
            )
    batching = min((i for i, name in enumerate(names) if RANKS.get(name, 0) > 1), default=len(names))
    for i, name in enumerate(names):
        if name in ("custom", "checkpoint") and i > batching:
            problems.append(
                f"`transforms.{i}` must act on one sample, but stands outside {names[batching]}. Write it before {names[batching]}."
            )
    return problems


def read_checkpoint(
    options: Mapping[str, Any], at: int, pipeline: Pipeline, config: Config, problems: list[str]
) -> tuple[str, ...]:
    """The stages of a checkpoint; all if none is named."""
    key, node = f"transforms.{at}.checkpoint", options["checkpoint"]
    if not config.settings.derivatives:
        problems.append(f"`{key}` must serve a derivative, but the config asks for none. Remove it.")
    if node is None:
        return pipeline.names
    stages = node.get("stages") if isinstance(node, Mapping) and set(node) == {"stages"} else None
    if not isinstance(stages, list) or not stages:
        problems.append(
            f"`{key}` must be {{stages: [name, ...]}}, but is {node!r}. There are {listed(pipeline.names)}."
        )
        return ()
    problems += [
        f"`{key}.stages` must name stages, but {name!r} is none.{nearest(str(name), pipeline.names)} There are {listed(pipeline.names)}."
        for name in stages
        if name not in pipeline.names
    ]
    return tuple(map(str, stages))


def read_map(node: Any, names: list[str], dims: tuple[str, ...], problems: list[str]) -> tuple[tuple[str, ...], int]:
    """The dimensions of a map, and how many of their points are computed at once."""
    key = f"transforms.{names.index('map')}.map"
    node = {} if node is None else node
    if not isinstance(node, Mapping) or not set(node) <= {"axes", "batch"}:
        problems.append(
            f"`{key}` must be {{axes: [dimension, ...], batch: n}}, but is {node!r}. There are {listed(dims)}."
        )
        return (), 1
    axes, batch = node.get("axes", list(dims)), node.get("batch", 1)
    if not isinstance(axes, list) or not axes:
        problems.append(
            f"`{key}.axes` must be a list of the sweep's dimensions, but is {axes!r}. There are {listed(dims)}."
        )
        return (), 1
    problems += [
        f"`{key}.axes` must name dimensions of the sweep, but {axis!r} is none.{nearest(str(axis), dims)} There are {listed(dims)}."
        for axis in axes
        if axis not in dims
    ]
    left = [dim for dim in dims if dim not in axes]
    if left and "vmap" not in names:
        problems.append(
            f"`{key}.axes` must hold every dimension of the sweep where there is no vmap, but lacks {listed(left)}. Add vmap before map."
        )
    if type(batch) is not int or batch < 1:
        problems.append(f"`{key}.batch` must be a positive integer, but is {batch!r}. Write 1.")
        batch = 1
    return tuple(dim for dim in dims if dim in axes), batch


def build_custom(key: str, node: Mapping[str, Any]) -> Custom:
    """A transform of the user's own, built by Hydra: the node itself where it is one, or the function that it names.

    Raises:
        PlanError: it cannot be built, or is not callable.
    """
    try:
        built = build({**node, "_partial_": True})
    except Exception as error:
        cause = error.__cause__ or error
        raise PlanError(
            f"`{key}` must be built by its `_target_`, but {type(cause).__name__}: {str(cause).rstrip('.')}. Mend the node."
        ) from error
    return Custom(str(node["_target_"]), repr(dict(node)), built)
