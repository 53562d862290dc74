"""Config → `Draft` (traced, fingerprinted) → `Plan` (checked, costed, chunked).

In: a checked config. Out: all that is known before anything runs: shapes, the transform stack, memory, chunks, layout.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engine import fingerprint, jaxprs, outputs, runtime, transforms, values
from engine.bounds import out_of_range
from engine.chunks import Blocks, cut
from engine.config import Config, build, encode
from engine.derivatives import (
    Differentiation,
    RefusedModeError,
    Request,
    choose_passes,
    chosen_adjoints,
    resolve_derivatives,
)
from engine.designs import Design, design
from engine.disconnection import warn_of_zero_derivatives
from engine.errors import PlanError
from engine.lowering import abstract_key, evaluate, find_leak, status_of
from engine.outputs import Leaf
from engine.parameters import as_parameter, has_nodes, read_parameters
from engine.pipeline import Pipeline, build_pipeline, check_parameters_used
from engine.randomness import check_keys
from engine.ranges import check_ranges
from engine.stack import Stack, read_stack
from engine.store import Layout, Variable

MOST_SAMPLES = 2**32
"""A sample's index is folded into its PRNG key as one 32-bit word."""

WIDEST_CHUNK = 262_144
WIDEST_LOOP = 2048
"""Samples of a chunk of a program with loops: all wait for the slowest, and their state should stay in the cache."""

MANY_FILES = 10_000
"""Files of a store above which file systems and listings become slow."""
SMALLEST_SHARE = 256
"""Samples of a chunk below which splitting a sweep further, only to occupy the workers, does not pay."""

SMALLEST_CALLS = 16
"""The same where samples call back into Python: they may be slow, and one that raises has its chunk run again in halves."""

SCHEME = 1
"""Version of what the fingerprint covers."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A traced pipeline with the identity of its question; enough to find its store. Static."""

    config: Config
    pipeline: Pipeline
    design: Design
    nominal: Mapping[str, np.ndarray[Any, Any]]
    """The parameters' nominal values, in the dtype in which they are computed."""

    shapes: Mapping[str, Any]
    """Shape and dtype of every parameter and of every stage's value."""

    outputs: tuple[Leaf, ...]
    coords: tuple[Leaf, ...]
    requests: tuple[Request, ...]
    jaxpr: Any
    """The traced `f(parameters, key) -> (outputs, status)`."""

    stack: Stack
    """The transforms around it."""

    warnings: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> dict[str, str]:
        """Digest of each part of the question: what differs between two stores can be named."""
        table = hashlib.sha256()
        for name, column in self.design.columns.items():
            table.update(f"{name}:{self.design.along[name]}:{column.dtype}{column.shape}".encode())
            table.update(np.ascontiguousarray(column).tobytes())
        fixed = {k: (str(v.dtype), v.tolist()) for k, v in self.nominal.items() if k not in self.design.columns}
        labels = [(leaf.name, str(leaf.reference), leaf.dims) for leaf in (*self.outputs, *self.coords)]
        asked = [(r.name, r.of.name, r.wrt, r.kind, r.mode, r.order, repr(r.direction)) for r in self.requests]
        settings = self.config.settings
        customs = (*self.stack.of_values, *self.stack.of_sample)
        functions = [*(stage.function for stage in self.pipeline.stages), *(custom.apply for custom in customs)]
        parts = {
            "program": fingerprint.digest(self.jaxpr, functions, self.config.folder),
            "parameters": repr(fixed),
            "sweep": repr((self.design.dims, self.design.shape, self.design.replicates, table.hexdigest())),
            "outputs": repr(labels),
            "derivatives": repr(asked),
            "seed": repr(settings.seed),
            "precision": settings.precision,
            "scheme": repr(SCHEME),
        }
        if customs:  # the other transforms leave the numbers as they are
            groups = (self.stack.of_values, self.stack.of_sample)
            parts["transforms"] = repr([[custom.settings for custom in group] for group in groups])
        return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the question: the same config and the same traced program have the same one."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def store_path(self) -> str:
        """Where the results go."""
        settings = self.config.settings
        return settings.store.path or f"results/{settings.name}-{self.fingerprint}.zarr"


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


def make_draft(config: Config) -> Draft:
    """Import, wire and trace a config's pipeline.

    Raises:
        UserError: the sweep, a stage, a reference or a label is wrong.
    """
    settings = config.settings
    refuse_what_this_version_lacks(config)
    if has_nodes(settings.parameters):
        runtime.configure(settings)  # what a `_target_` makes is made in the run's precision
    parameters = read_parameters(config)
    points = design(settings.sweep.model_dump(), parameters.nominal, seed=settings.seed, folder=config.folder)
    if points.samples > MOST_SAMPLES:
        raise PlanError(
            f"`sweep` must have at most 2**32 samples, but has {points.samples}. Split it into several runs."
        )
    check_ranges(settings.ranges, parameters.nominal, settings.sweep.axes, points)
    runtime.configure(settings)
    pipeline = build_pipeline(config, parameters)
    runtime.configure(settings)  # again: a user's module may have set precision on import
    check_parameters_used(pipeline, config)
    stack = read_stack(config, pipeline, points.dims)
    asked = {name for derivative in settings.derivatives.values() for name in derivative.wrt}
    wrt = {one for name in asked for one in parameters.continuous(name)}
    nominal = {
        name: as_parameter(name, value, points, wrt, settings.precision) for name, value in parameters.nominal.items()
    }
    shapes: dict[str, Any] = dict(values.abstract(dict(nominal)))
    resolved: dict[str, Any] = {}

    def forward(parameters: dict[str, Any], key: jax.Array) -> Any:
        found = evaluate(
            pipeline, parameters, key, watch=lambda name, value: shapes.update({name: values.abstract(value)})
        )
        resolved["outputs"], resolved["coords"] = outputs.resolve(config, pipeline, shapes)
        return transforms.outputs_of(found, (*resolved["outputs"], *resolved["coords"])), status_of(
            found, pipeline.names
        )

    adjoint = adjoint_context(config)
    with adjoint("none"):
        jaxpr = jax.make_jaxpr(forward)(shapes.copy(), abstract_key())
        if jaxprs.leaks(jaxpr) and (leak := find_leak(pipeline, shapes)):
            raise leak
    requests = resolve_derivatives(config, resolved["outputs"], pipeline, shapes)
    labels = (*resolved["outputs"], *derivative_leaves(requests, shapes))
    sweep = dict(zip(points.dims, points.shape, strict=True))
    outputs.check_labels(
        labels, resolved["coords"], sweep, tuple(c.name for c in points.coordinates() if c.name not in sweep)
    )
    problems = out_of_range(jaxpr, nominal, points)
    if problems:
        raise PlanError(problems)
    repeated = check_keys(pipeline, shapes, jaxpr, swept=bool(points.dims))
    found = (*warn_of_narrow_constants(jaxpr, settings.precision), *repeated)
    return Draft(
        config,
        pipeline,
        points,
        nominal,
        shapes,
        resolved["outputs"],
        resolved["coords"],
        requests,
        jaxpr,
        stack,
        found,
    )


def refuse_what_this_version_lacks(config: Config) -> None:
    """Refuse settings that would be ignored, all at once."""
    settings = config.settings
    problems = []
    if settings.optimize is not None:
        problems.append("`optimize` must be left out in this version, but is given. Remove it, or sweep the variables.")
    if settings.scheduler.kind not in ("threads", "synchronous"):
        problems.append(
            f"`scheduler.kind` must be 'threads' or 'synchronous' in this version, but is {settings.scheduler.kind!r}. "
            "Write scheduler=threads."
        )
    if problems:
        raise PlanError(problems)


def adjoint_context(config: Config) -> Callable[[str], AbstractContextManager[Any]]:
    """What tells the solves inside stages which adjoint `auto` is; the config's `adjoint` brings it."""
    node = config.settings.adjoint
    if node is None:
        return lambda _: nullcontext()
    try:
        built = build(node)
    except Exception as error:
        raise PlanError(
            f"`adjoint` must be a node that Hydra can build, but {node!r} raised {type(error).__name__}: "
            f"{str(error).splitlines()[0].rstrip('.')}. Leave it out, for the engine's own."
        ) from error
    if not callable(built):
        raise PlanError(
            f"`adjoint` must be a context manager that takes a mode, but {node!r} gives {built!r}. "
            "Leave it out, and write `solver: {adjoint: ...}` to choose the adjoint of a solver."
        )
    return built  # type: ignore[no-any-return]


def warn_of_narrow_constants(jaxpr: Any, precision: str) -> list[str]:
    """A float32 array made before precision was set spoils float64 results without a word."""
    if precision != "float64":
        return []
    narrow = [c for c in jaxprs.constants(jaxpr) if getattr(c, "dtype", None) == np.float32 and np.size(c)]
    if not narrow:
        return []
    return [
        f"`precision` must be float64 throughout, but the stages hold {len(narrow)} constant(s) in float32, such as "
        f"{np.ravel(np.asarray(narrow[0]))[0]}. Make them inside the stage, or import the module after engine.load has set precision."
    ]


def derivative_leaves(requests: tuple[Request, ...], shapes: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The variables of the derivatives."""
    return tuple(leaf for request in requests for leaf in request.leaves(shapes))


def make_plan(draft: Draft, chunk: int | None = None) -> Plan:
    """Choose, check and cost all that a run needs.

    Args:
        draft: the traced pipeline.
        chunk: samples of a chunk that an existing store already has; else chosen.

    Raises:
        PlanError: a derivative cannot go through, or a coordinate depends on the sweep.
    """
    settings = draft.config.settings
    sample, jaxpr, labels = differentiated(draft)
    passes, hoisted = sample.passes, tuple(name for name in draft.pipeline.names if name in sample.hoisted)
    swept = swept_labels(jaxpr, labels, draft)
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


def swept_labels(jaxpr: Any, labels: tuple[str, ...], draft: Draft) -> set[str]:
    """The outputs that differ between samples. A single evaluation has no others.

    Raises:
        PlanError: a coordinate is among them.
    """
    if not draft.design.dims:
        names = set(labels)
    else:
        swept = len(jax.tree_util.tree_leaves(split(draft)[1]))
        inputs = len(jaxpr.jaxpr.invars)
        marks = [False] * (inputs - swept - 2) + [True] * swept + [False, True]
        names = {name for name, mark in zip(labels, jaxprs.depends(jaxpr, marks), strict=False) if mark}
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
