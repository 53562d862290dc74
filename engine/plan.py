"""`Draft` → `Plan` (checked, costed, chunked).

In: a traced pipeline. Out: all that is known before anything runs: shapes, the transform stack, memory, chunks, layout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engine import jaxprs, runtime, transforms
from engine.batching import check_batching
from engine.chunks import Blocks, cut
from engine.config import Config, encode
from engine.derivatives import (
    Differentiation,
    RefusedModeError,
    choose_passes,
    chosen_adjoints,
)
from engine.disconnection import warn_of_zero_derivatives
from engine.draft import Draft, adjoint_context, derivative_leaves
from engine.errors import PlanError
from engine.lowering import evaluate, status_of
from engine.store import Layout, Variable
from engine.tracing import find_leak

WIDEST_CHUNK = 262_144
WIDEST_LOOP = 2048
"""Samples of a chunk of a program with loops: all wait for the slowest, and their state should stay in the cache."""

MANY_FILES = 10_000
"""Files of a store above which file systems and listings become slow."""
SMALLEST_SHARE = 256
"""Samples of a chunk below which splitting a sweep further, only to occupy the workers, does not pay."""

SMALLEST_CALLS = 16
"""The same where samples call back into Python: they may be slow, and one that raises has its chunk run again in halves."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A draft that is checked, costed and cut into chunks: ready to run. Static.

    >>> import engine
    >>> plan = engine.load("conf/oscillator.yaml", ["execution.chunk=64"])
    >>> plan.formula
    'jit ∘ vmap[64] ∘ value_and_jacfwd(energy; omega, zeta) ∘ (energy ∘ motion)'
    >>> f = plan.function
    >>> f({"omega": 1.0, "zeta": 0.0})["x"].shape
    (201,)
    """

    draft: Draft
    passes: tuple[Differentiation, ...]
    hoisted: tuple[str, ...]
    """Stages that are computed once, because nothing that is swept or differentiated moves them."""

    unswept: tuple[str, ...]
    """Outputs that do not depend on the sweep: computed and stored once."""

    variables: tuple[Variable, ...]
    """What is stored, in order."""

    blocks: Blocks
    """Chunks: what is computed at once."""

    workers: int
    devices: tuple[Any, ...]
    """Over which a chunk is split."""

    sample_bytes: int
    """Estimated peak memory of one sample inside a chunk, in bytes."""

    widest: int
    """The most samples that a chunk should hold; fewer where memory is short."""

    warnings: tuple[str, ...]
    """What may be a mistake, though the run can be done."""

    hoisted_jaxpr: Any = field(repr=False)
    """Of the fixed parameters: the leaves of the hoisted stages' values, and the status that they report."""

    sample_jaxpr: Any = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    """Names of the sample's outputs, in the order of the jaxpr."""

    @property
    def config(self) -> Config:
        """The config that the plan was made from."""
        return self.draft.config

    @property
    def formula(self) -> str:
        """The transform stack as it is composed, outermost first."""
        names = self.draft.pipeline.names
        if not self.draft.design.dims:
            return self.draft.stack.formula(self.passes, names, None, 1, 1)
        n = len(self.devices)
        return self.draft.stack.formula(self.passes, names, self.width, self.at_once or self.width // n, n)

    @property
    def width(self) -> int:
        """Samples that the program takes: those of a full block, and as many more as make the devices' shares equal."""
        n = len(self.devices)
        return -(-self.blocks.width // n) * n

    @property
    def at_once(self) -> int | None:
        """Samples of a chunk that are computed at once where the stack maps, else None."""
        stack, dims = self.draft.stack, self.draft.design.dims
        if not stack.mapped:
            return None
        return stack.batch * math.prod(b for d, b in zip(dims, self.blocks.block, strict=True) if d not in stack.mapped)

    @property
    def jit(self) -> bool:
        """Whether the program is compiled."""
        return self.draft.stack.jit

    @property
    def compilations(self) -> int:
        """Programs that a run compiles, whatever the number of chunks."""
        if not self.jit:
            return 0
        return 1 + bool(self.hoisted or self.unswept)

    @property
    def chunk_bytes(self) -> int:
        """Estimated peak memory of one chunk, in bytes."""
        return min(self.width, self.at_once or self.width) * self.sample_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of all variables before compression."""
        return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in self.variables)

    @property
    def function(self) -> Callable[[Mapping[str, Any], jax.Array | None], dict[str, jax.Array]]:
        """The pure `f(parameters, key) -> {output: array}`, for `jax.grad`, `jax.vmap` and loops of one's own.

        Parameters are taken by dotted name, as nested mappings, or as pytrees of their structure; those left out have their
        nominal values. `key` may be None where no stage draws random numbers.
        """
        draft = self.draft

        def plain(parameters: Mapping[str, Any], key: jax.Array | None) -> dict[str, jax.Array]:
            found = evaluate(draft.pipeline, parameters, key)
            status = {transforms.STATUS: status_of(found, draft.pipeline.names)}
            return transforms.outputs_of(found, draft.outputs) | status

        inner = transforms.customized(plain, draft.stack.of_values)

        def f(parameters: Mapping[str, Any], key: jax.Array | None = None) -> dict[str, jax.Array]:
            flat = draft.pipeline.parameters.flat(parameters)
            given = {name: jax.numpy.asarray(value) for name, value in flat.items()}
            found = dict(inner({**draft.nominal, **given}, key))
            found.pop(transforms.STATUS)
            return found

        return f

    def __repr__(self) -> str:
        return f"Plan({self.config.settings.name}: {self.formula}; {len(self.blocks)} chunks of {self.blocks.width})"


def make_plan(draft: Draft, chunk: int | None = None) -> Plan:
    """Choose, check and cost all that a run needs.

    Args:
        draft: the traced pipeline.
        chunk: samples of a chunk that an existing store already has; else chosen.

    Raises:
        PlanError: a derivative cannot go through, or a coordinate depends on the sweep.
    """
    settings = draft.config.settings
    runtime.check_profile(settings.execution.profile)
    sample, jaxpr, labels = differentiated(draft)
    passes, hoisted = sample.passes, tuple(name for name in draft.pipeline.names if name in sample.hoisted)
    moved = moved_inputs(jaxpr, draft)
    check_batching(draft, jaxpr, moved)
    swept = swept_labels(jaxpr, labels, moved, draft)
    variables = make_variables(draft, swept)
    devices = choose_devices(draft)
    workers = settings.scheduler.workers or runtime.workers(settings.scheduler.kind, devices[0].platform)
    bytes_out = 2 * sum(jaxprs.nbytes(v.aval) for v in jaxpr.jaxpr.outvars)
    bytes_each = jaxprs.peak_bytes(jaxpr) - closed_bytes(jaxpr) + bytes_out
    widest = widest_chunk(draft, jaxpr, workers, len(devices))
    each = bytes_out if draft.stack.mapped else bytes_each  # a map holds few samples at once, whatever the chunk
    fits = max(1, min(settings.execution.memory // (workers * max(1, each)), widest))
    asked = settings.execution.chunk
    width = chunk or (fits if asked == "auto" else asked)
    unswept = tuple(name for name in labels if name not in swept)
    blocks = cut(draft.design.shape, width)
    vain = warn_of_zero_derivatives(draft)
    warnings = (*draft.warnings, *vain, *warn_of_many_files(draft, blocks, variables))
    once = trace_hoisted(draft, hoisted)
    for traced in (jaxpr, once):
        if leak := find_leak(traced, draft.pipeline, draft.shapes):
            raise leak[1]
    return Plan(
        draft,
        passes,
        hoisted,
        unswept,
        variables,
        blocks,
        workers,
        devices,
        bytes_each,
        widest,
        warnings,
        once,
        jaxpr,
        labels,
    )


def differentiated(draft: Draft) -> tuple[transforms.Sample, Any, tuple[str, ...]]:
    """The function of one sample with its derivatives, its jaxpr, and its outputs' names; `auto` tries the other mode if one
    is refused by a stage."""
    shapes = {name: value.shape for name, value in draft.nominal.items()}
    adjoints = chosen_adjoints(draft.pipeline)
    avoid = None
    while True:
        passes = choose_passes(draft.requests, shapes, adjoints, avoid)
        wrt = {name for one in passes for name in one.wrt}
        moved = draft.pipeline.downstream({*draft.design.columns, *wrt}, with_key=True)
        hoisted = (
            frozenset(name for name in draft.pipeline.names if name not in moved) if draft.design.dims else frozenset()
        )
        adjoint = adjoint_context(draft.config)
        sample = transforms.Sample(draft.pipeline, draft.outputs, draft.coords, passes, hoisted, adjoint, draft.stack)
        try:
            return sample, *trace_sample(sample, draft)
        except RefusedModeError as error:
            if error.asked or avoid is not None:
                raise
            avoid = error.mode


def trace_hoisted(draft: Draft, hoisted: tuple[str, ...]) -> Any:
    """The jaxpr of the stages that are computed once, so that what runs is what was traced, whatever a module does since."""
    fixed, swept = split(draft)

    def once(fixed: dict[str, Any]) -> Any:
        found = evaluate(draft.pipeline, {**swept, **fixed}, None, stages=hoisted) if hoisted else {}
        return jax.tree_util.tree_leaves({name: found[name] for name in hoisted}), status_of(found, hoisted)

    with adjoint_context(draft.config)("none"):
        return jax.make_jaxpr(once)(fixed)


def trace_sample(sample: transforms.Sample, draft: Draft) -> tuple[Any, tuple[str, ...]]:
    """The jaxpr of one sample with its derivatives, and the names of its outputs in order."""
    given = {name: draft.shapes[name] for name in sample.hoisted}
    fixed, swept = split(draft)
    names: list[str] = []

    def flat(*arguments: Any) -> tuple[list[jax.Array], jax.Array]:
        found, status = sample(*arguments)
        names[:] = list(found)
        return list(found.values()), status

    seed, index = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((), np.uint32)
    jaxpr = jax.make_jaxpr(flat)(given, fixed, swept, seed, index)
    return jaxpr, tuple(names)


def split(draft: Draft) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters that are the same for every sample, and those that are swept, as shapes."""
    fixed = {name: draft.shapes[name] for name in draft.nominal if name not in draft.design.columns}
    return fixed, {name: draft.shapes[name] for name in draft.nominal if name in draft.design.columns}


def moved_inputs(jaxpr: Any, draft: Draft) -> list[bool]:
    """Which inputs of the jaxpr of a sample differ between samples: the swept parameters and the sample's index."""
    swept = len(jax.tree_util.tree_leaves(split(draft)[1]))
    inputs = len(jaxpr.jaxpr.invars)
    return [False] * (inputs - swept - 2) + [True] * swept + [False, True]


def swept_labels(jaxpr: Any, labels: tuple[str, ...], moved: list[bool], draft: Draft) -> set[str]:
    """The outputs that differ between samples. A single evaluation has no others.

    Raises:
        PlanError: a coordinate is among them.
    """
    if not draft.design.dims:
        names = set(labels)
    else:
        names = {name for name, mark in zip(labels, jaxprs.depends(jaxpr, moved), strict=False) if mark}
        problems = [
            f"`coords.{leaf.name}` must not depend on the sweep, but {leaf.reference} does. Store it as an output: "
            f"outputs: {{{leaf.name}_of_sample: {{from: {leaf.reference}, dims: [{leaf.name}]}}}}."
            for leaf in draft.coords
            if leaf.name in names
        ]
        if problems:
            raise PlanError(problems)
    return names - {leaf.name for leaf in draft.coords}


def make_variables(draft: Draft, swept: set[str]) -> tuple[Variable, ...]:
    """What is stored: outputs and derivatives, the sweep's dimensions first; coordinates once."""
    dims, shape = draft.design.dims, draft.design.shape
    found = []
    for leaf in (*draft.outputs, *derivative_leaves(draft.requests, draft.shapes)):
        lead_dims, lead_shape = (dims, shape) if leaf.name in swept else ((), ())
        found.append(
            Variable(
                leaf.name,
                (*lead_dims, *leaf.dims),
                (*lead_shape, *leaf.shape),
                leaf.dtype,
                leaf.name in swept,
                dict(leaf.attributes),
            )
        )
    for leaf in draft.coords:
        found.append(
            Variable(leaf.name, leaf.dims, leaf.shape, leaf.dtype, False, dict(leaf.attributes), coordinate=True)
        )
    for coordinate in draft.design.coordinates():
        array = coordinate.values
        found.append(Variable(coordinate.name, coordinate.dims, array.shape, array.dtype, False, {}, coordinate=True))
    return tuple(found)


def closed_bytes(jaxpr: Any) -> int:
    """Bytes of the constants of a jaxpr: held once, not for each sample."""
    return sum(jaxprs.nbytes(v.aval) for v in jaxpr.jaxpr.constvars)


def choose_devices(draft: Draft) -> tuple[Any, ...]:
    """The devices that a chunk is split over: all of the kind that computes, or as many as are asked for.

    Raises:
        PlanError: more are asked for than there are.
    """
    there = runtime.devices(draft.config.settings.execution.device)
    layer, setting = draft.stack.devices, draft.config.settings.execution.devices
    key, asked = ("transforms", layer) if layer is not None else ("execution.devices", setting)
    if isinstance(asked, int) and asked > len(there):
        raise PlanError(
            f"`{key}` must ask for at most the devices of this machine, but asks for {asked}, and there "
            f"{'is' if len(there) == 1 else 'are'} {len(there)} ({there[0].platform}). Lower it, or leave it out for all. "
            "(On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=4 makes four.)"
        )
    most = asked if isinstance(asked, int) else len(there)
    return there[: min(most, draft.design.samples) if draft.stack.jit else 1]


def widest_chunk(draft: Draft, jaxpr: Any, workers: int, devices: int) -> int:
    """The most samples that a chunk should hold: enough chunks to keep the workers busy and a kill cheap."""
    most = WIDEST_LOOP * devices if jaxprs.loops(jaxpr) and not draft.stack.mapped else WIDEST_CHUNK
    least = SMALLEST_CALLS if jaxprs.callbacks(jaxpr) else SMALLEST_SHARE
    return min(most, max(least, -(-draft.design.samples // (4 * workers))))


def resized(plan: Plan, width: int) -> Plan:
    """The plan with chunks of another width."""
    blocks = cut(plan.draft.design.shape, width)
    before = warn_of_many_files(plan.draft, plan.blocks, plan.variables)
    warnings = [warning for warning in plan.warnings if warning not in before]
    warnings += warn_of_many_files(plan.draft, blocks, plan.variables)
    return replace(plan, blocks=blocks, warnings=tuple(warnings))


def stored_blocks(draft: Draft, blocks: Blocks) -> Blocks:
    """The blocks that one task stores: a chunk, or as many whole chunks as a shard holds."""
    shard = draft.config.settings.store.shard
    if shard is None or shard <= blocks.width:
        return blocks
    outer = cut(blocks.shape, shard)
    return Blocks(blocks.shape, tuple(max(b, (o // b) * b) for b, o in zip(blocks.block, outer.block, strict=True)))


def warn_of_many_files(draft: Draft, blocks: Blocks, variables: tuple[Variable, ...]) -> list[str]:
    """A file for each chunk of each variable: many small ones are slow to write, to list and to copy."""
    each = 1 + sum(v.swept for v in variables)
    files = len(stored_blocks(draft, blocks)) * each
    if files <= MANY_FILES:
        return []
    shard = -(-draft.design.samples * each // MANY_FILES)
    return [
        f"`store.shard` should gather small chunks, but {len(blocks)} chunks of {blocks.width} sample(s) make {files} "
        f"files. Raise execution.chunk, or write store.shard={2 * shard}."
    ]


def make_layout(plan: Plan) -> Layout:
    """How the results lie in the store: each task's region is one stored chunk, or one shard of several."""
    blocks, stored = plan.blocks, stored_blocks(plan.draft, plan.blocks)
    inner = None if stored is blocks else blocks.block
    compression = plan.config.settings.store.compression
    return Layout(plan.draft.design.dims, stored, plan.variables, compression, inner)


def folder_of(config: Config, store: str) -> dict[str, str]:
    """Where the config's folder is: as seen from the store and from the working directory, which may move together, and in full."""
    places = {"from_working_directory": Path.cwd()}
    if "://" not in store:
        places["from_store"] = Path(store).resolve().parent
    folder = config.folder.resolve()
    found = {"absolute": str(folder)}
    for name, place in places.items():
        with suppress(ValueError):  # another drive
            found[name] = Path(os.path.relpath(folder, place)).as_posix()
    return found


def attributes_of(plan: Plan) -> dict[str, Any]:
    """What a store records of where its numbers come from."""
    config = plan.config
    return {
        "name": config.settings.name,
        "fingerprint": plan.draft.fingerprint,
        "parts": plan.draft.parts,
        "config": encode(dict(config.node)),
        "config_file": config.path.name,
        "config_folder": folder_of(config, plan.draft.store_path),
        "overrides": list(config.overrides),
        "seed": config.settings.seed,
        "precision": config.settings.precision,
        "transforms": plan.formula,
        "versions": runtime.versions(),
        "git": runtime.git_state(config.folder),
        "device": runtime.device_facts() | {"used": len(plan.devices)},
        "chunk": plan.blocks.width,
        "runs": [],
    }
