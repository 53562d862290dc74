"""Config → `Draft`: imported, wired and traced, with the identity of its question.

In: a checked config. Out: all that says which question is asked; nothing yet on how it is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine import fingerprint, jax_settings, jaxprs, outputs, runtime, transforms, values
from engine.bounds import out_of_range
from engine.config import Config, build
from engine.derivatives import (
    Request,
    resolve_derivatives,
)
from engine.design_variables import variable_names
from engine.designs import Design, design
from engine.diagnosis import line_of
from engine.errors import PlanError, nearest
from engine.lowering import abstract_key, evaluate, status_of
from engine.measurements import Measurements, read_measurements
from engine.outputs import Leaf
from engine.parameters import as_parameter, has_nodes, read_parameters, widened
from engine.pipeline import Pipeline, build_pipeline, check_parameters_used, with_reasons
from engine.problem import Problem, read_problem
from engine.randomness import check_keys
from engine.ranges import check_ranges
from engine.sites import stage_of
from engine.stack import Stack, read_stack
from engine.tracing import find_leak

MOST_SAMPLES = 2**32
"""A sample's index is folded into its PRNG key as one 32-bit word."""

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

    jax_settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of JAX's settings that change numbers and are not its defaults."""

    warnings: tuple[str, ...] = ()
    problem: Problem | None = None
    """With `optimize`: the design problem."""

    @cached_property
    def parts(self) -> dict[str, str]:
        """Digest of each part of the question: what differs between two stores can be named."""
        table = hashlib.sha256()
        for name, column in self.design.columns.items():
            table.update(f"{name}:{self.design.along[name]}:{column.dtype}{column.shape}".encode())
            table.update(np.ascontiguousarray(column).tobytes())
        fixed = {k: (str(v.dtype), v.tolist()) for k, v in self.nominal.items() if k not in self.design.columns}
        labels = [
            (
                leaf.name,
                str(leaf.reference),
                leaf.dims,
                *([leaf.length] if leaf.length else []),
                *([leaf.max_abs] if leaf.max_abs else []),
            )
            for leaf in (*self.outputs, *self.coords)
        ]
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
        if self.problem is not None:
            parts["optimize"] = self.problem.identity
        if customs:  # the other transforms leave the numbers as they are
            groups = (self.stack.of_values, self.stack.of_sample)
            parts["transforms"] = repr([[custom.settings for custom in group] for group in groups])
        parts |= {name: repr(value) for name, value in self.jax_settings.items()}
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


def make_draft(config: Config) -> Draft:
    """Import, wire and trace a config's pipeline.

    Raises:
        UserError: the sweep, a stage, a reference or a label is wrong.
    """
    refuse_what_this_version_lacks(config)
    measurements = measured(config)
    if measurements is not None:
        config = with_inputs(config, measurements)
    settings = config.settings
    debugging: list[str] = []
    if has_nodes(settings.parameters):
        debugging += runtime.configure(settings)  # what a `_target_` makes is made in the run's precision
    parameters = read_parameters(config)
    points = design(settings.sweep.model_dump(), parameters.nominal, seed=settings.seed, folder=config.folder)
    if points.samples > MOST_SAMPLES:
        raise PlanError(
            f"`sweep` must have at most 2**32 samples, but has {points.samples}. Split it into several runs."
        )
    check_ranges(settings.ranges, parameters.nominal, settings.sweep.axes, points)
    debugging += runtime.configure(settings)
    pipeline = build_pipeline(config, parameters)
    check_parameters_used(pipeline, config)
    stack = read_stack(config, pipeline, points.dims)
    adjoint = adjoint_context(config)
    debugging += runtime.configure(settings)  # again: a user's module may have set precision on import
    asked = [(name, key) for key, derivative in settings.derivatives.items() for name in derivative.wrt]
    wrt = {one: f"derivatives.{key}.wrt" for name, key in asked for one in parameters.continuous(name)}
    if settings.optimize is not None:
        found = variable_names(settings.optimize, parameters)
        wrt |= {one: f"optimize.variables.{name}" for name, below in found.items() for one in below}
    nominal = {
        name: as_parameter(name, value, points, set(wrt), settings.precision)
        for name, value in parameters.nominal.items()
    }
    pipeline = with_reasons(pipeline, widened(parameters.nominal, nominal, points, wrt))
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

    with adjoint("none"):
        jaxpr = jax.make_jaxpr(forward)(shapes.copy(), abstract_key())
    if leak := find_leak(jaxpr, pipeline, shapes):
        raise leak[1]
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
    problem = None
    if settings.optimize is not None:
        problem = read_problem(config, pipeline, shapes, resolved["outputs"], points, measurements)
    warnings = (
        *warn_of_debugging(debugging),
        *warn_of_narrow_constants(jaxpr, settings.precision),
        *warn_of_narrow_outputs((*resolved["outputs"], *resolved["coords"]), jaxpr, settings.precision),
        *repeated,
    )
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
        jax_settings.unusual(),
        warnings,
        problem,
    )


def measured(config: Config) -> Measurements | None:
    """What the data of a fit say, if there are any."""
    node = config.settings.optimize
    return None if node is None or node.data is None else read_measurements(node.data, config.folder)


def with_inputs(config: Config, measurements: Measurements) -> Config:
    """The config with the columns that a fit's data give to parameters."""
    given = {name: values.tolist() for name, values in measurements.inputs.items()}
    unknown = [name for name in given if name not in config.settings.parameters]
    if unknown:
        raise PlanError(
            f"`optimize.data.inputs.{unknown[0]}` must be a parameter, but {unknown[0]!r} is none."
            f"{nearest(unknown[0], config.settings.parameters)} Add `parameters: {{{unknown[0]}: [0.0]}}`: the column takes its place."
        )
    parameters = {**config.settings.parameters, **given}
    return replace(config, settings=config.settings.model_copy(update={"parameters": parameters}))


def refuse_what_this_version_lacks(config: Config) -> None:
    """Refuse settings that would be ignored, all at once."""
    settings = config.settings
    problems = []
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


def warn_of_debugging(names: Collection[str]) -> list[str]:
    """What JAX does at the first number that is not finite would end a run; the engine marks the sample."""
    if not names:
        return []
    return [
        f"`execution.debug_nans` must be what looks for numbers that are not finite, but {' and '.join(dict.fromkeys(names))} "
        "was on, by which JAX ends a run at the first. It is switched off; write execution.debug_nans=true."
    ]


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


def warn_of_narrow_outputs(leaves: Collection[Leaf], jaxpr: Any, precision: str) -> list[str]:
    """An output that a stage itself has rounded to half of the digits that the config asks for."""
    if precision != "float64":
        return []
    exact = np.finfo(np.float64).eps
    inexact = (leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, np.inexact))
    narrow = [leaf for leaf in inexact if jnp.finfo(leaf.dtype).eps > exact]  # type: ignore[no-untyped-call]
    return [
        f"`precision` must be float64 throughout, but the output {leaf.name!r} of stage {leaf.reference.root!r} is {leaf.dtype}"
        f"{where_narrowed(leaf, jaxpr)}. Leave out the dtype there, or write `precision: float32` if it is meant."
        for leaf in narrow
    ]


def where_narrowed(leaf: Leaf, jaxpr: Any) -> str:
    """The line of a stage that rounds to a dtype, in brackets; nothing if JAX did not keep it."""
    for eqn, site in jaxprs.equations(jaxpr):
        if eqn.outvars and getattr(eqn.outvars[0].aval, "dtype", None) == leaf.dtype:
            line = line_of(jaxprs.stack_of(site)) if stage_of(eqn, [leaf.reference.root]) else None
            if line is not None:
                return f" ({line})"
    return ""


def derivative_leaves(requests: tuple[Request, ...], shapes: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The variables of the derivatives."""
    return tuple(leaf for request in requests for leaf in request.leaves(shapes))
