"""What is asked for → named, labelled leaves of the stages' values.

In: the config's `outputs`, `coords` and `derivatives`, and the shapes that tracing found. Out: one `Leaf` for each array to store.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from engine import values
from engine.config import Config
from engine.errors import PipelineError, listed, nearest
from engine.lowering import STATUS_FIELD, look_up
from engine.pipeline import Pipeline, refer
from engine.references import Reference

RESERVED = ("status",)


@dataclass(frozen=True)
class Leaf:
    """One array of each sample, named and labelled. Static."""

    name: str
    reference: Reference
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prng: str | None = None
    """The implementation of a typed PRNG key, whose data is stored."""
    length: str | None = None
    """The output that says how many entries of the first axis hold a value; NaN beyond them is no failure."""

    @property
    def max_abs(self) -> float | None:
        """The largest absolute value that is believed."""
        return self.attributes.get("max_abs")


def resolve(config: Config, pipeline: Pipeline, shapes: Mapping[str, Any]) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
    """The outputs and the coordinates.

    Raises:
        PipelineError: what is wrong with either, all at once.
    """
    found: list[tuple[Leaf, ...]] = []
    problems: list[str] = []
    for step in (resolve_outputs, resolve_coords):
        try:
            found.append(step(config, pipeline, shapes))
        except PipelineError as error:
            problems.extend(error.problems)
    if problems:
        raise PipelineError(problems)
    return found[0], found[1]


def resolve_outputs(config: Config, pipeline: Pipeline, shapes: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """Every output, each of its leaves one variable.

    Raises:
        PipelineError: a reference leads nowhere, or names, dimensions and shapes do not fit together; all at once.
    """
    asked = config.settings.outputs
    coordinates = set(config.settings.coords.values())
    if asked is None:
        found = [
            leaf
            for name in pipeline.terminal()
            for leaf in stage_leaves(pipeline, name, shapes)
            if str(leaf.reference) not in coordinates
        ]
        if not found:
            raise PipelineError(
                "`outputs` must hold at least one value, but no stage returns any array. Name an output."
            )
        return tuple(found)
    if not asked:
        raise PipelineError(
            "`outputs` must hold at least one value, but is empty. Name one, or leave it out for what no stage takes."
        )
    leaves_found: list[Leaf] = []
    problems: list[str] = []
    for name, output in asked.items():
        try:
            attributes = {
                "units": output.units,
                "description": output.description,
                "length": output.length,
                "max_abs": output.max_abs,
            }
            leaves = output_leaves(
                f"outputs.{name}",
                name,
                output.source,
                output.dims,
                {k: v for k, v in attributes.items() if v},
                pipeline,
                shapes,
            )
            leaves_found += [replace(leaf, length=output.length) for leaf in leaves]
        except PipelineError as error:
            problems.extend(error.problems)
    problems += length_problems(leaves_found)
    if problems:
        raise PipelineError(problems)
    return tuple(leaves_found)


def length_problems(leaves_found: list[Leaf]) -> Iterator[str]:
    """What is wrong with the lengths of outputs."""
    by_name = {leaf.name: leaf for leaf in leaves_found}
    for leaf in leaves_found:
        if leaf.length is None:
            continue
        key, length = f"outputs.{leaf.name}.length", by_name.get(leaf.length)
        if length is None:
            yield f"`{key}` must be an output, but {leaf.length!r} is none.{nearest(leaf.length, by_name)}"
        elif length.shape or not np.issubdtype(length.dtype, np.integer):
            yield f"`{key}` must be an integer, but {leaf.length!r} is {length.dtype}{list(length.shape)}. Refer to a count."
        elif not leaf.shape:
            yield f"`{key}` must be left out for a single number, but is {leaf.length!r}."


def output_leaves(
    key: str,
    name: str,
    source: str,
    dims: list[str] | None,
    attributes: Mapping[str, Any],
    pipeline: Pipeline,
    shapes: Mapping[str, Any],
) -> Iterator[Leaf]:
    """The leaves under one reference: one named `name`, or `name.field` for each field."""
    for before, reference in values.leaves(refer(key, source, pipeline.names, pipeline.parameters)):
        if not isinstance(reference, Reference):
            continue
        for path, aval in values.leaves(look_up(reference, shapes, key)):
            full = Reference(reference.root, (*reference.path, *path))
            label = ".".join((name, *before, *path))
            yield make_leaf(key, label, full, aval, dims, attributes, pipeline)


def stage_leaves(pipeline: Pipeline, name: str, shapes: Mapping[str, Any]) -> Iterator[Leaf]:
    """Every leaf of a stage's value but those called `status`, named by its dotted path."""
    for path, aval in values.leaves(shapes[name]):
        if path[-1:] != (STATUS_FIELD,):
            reference = Reference(name, path)
            yield make_leaf(f"stages.{name}", str(reference), reference, aval, None, {}, pipeline)


def make_leaf(
    key: str,
    name: str,
    reference: Reference,
    aval: Any,
    dims: list[str] | None,
    attributes: Mapping[str, Any],
    pipeline: Pipeline,
) -> Leaf:
    """One leaf with its dimensions: as asked, else as annotated, else `name_0`, `name_1`."""
    shape, prng = tuple(aval.shape), None
    if values.is_key(aval.dtype):
        data, prng = key_data_of(aval)
        shape, dtype = tuple(data.shape), np.dtype(data.dtype)
        attributes = {**attributes, "prng_impl": prng}
    else:
        dtype = np.dtype(aval.dtype)
    if dims is not None and len(dims) != len(shape):
        raise PipelineError(
            f"`{key}.dims` must name each of the {len(shape)} axes of the value, but is {dims} and {reference!s} has the shape "
            f"{shape}. Write {len(shape)} name{'' if len(shape) == 1 else 's'}."
        )
    if dims is None:
        dims = annotated_dims(pipeline, reference, len(shape)) or [f"{name}_{i}" for i in range(len(shape))]
    if len(set(dims)) < len(dims):
        raise PipelineError(f"`{key}.dims` must not repeat a name, but is {dims}. Give each axis its own name.")
    return Leaf(name, reference, shape, dtype, tuple(dims), attributes, prng)


def key_data_of(aval: Any) -> tuple[Any, str]:
    """Shape and dtype of the data of a typed PRNG key, and the name of its implementation."""
    names: list[str] = []

    def data(key: jax.Array) -> jax.Array:
        names.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    return jax.eval_shape(data, aval), names[0]


def annotated_dims(pipeline: Pipeline, reference: Reference, rank: int) -> list[str] | None:
    """Dimension names from the jaxtyping annotation of what the stage returns, if they name every axis."""
    if reference.root not in pipeline.names:
        return None
    try:
        hint: Any = typing.get_type_hints(pipeline[reference.root].function, include_extras=True).get("return")
        for part in reference.path:
            hint = typing.get_type_hints(hint, include_extras=True).get(part) if isinstance(hint, type) else None
    except Exception:  # annotations that only resolve under TYPE_CHECKING
        return None
    names = getattr(hint, "dim_str", "").split()
    plain = [name.lstrip("*#?_") for name in names]
    usable = len(names) == rank and all(name.isidentifier() for name in plain)
    return plain if usable and rank else None


def resolve_coords(config: Config, pipeline: Pipeline, shapes: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The coordinate of each dimension named in `coords`.

    Raises:
        PipelineError: a reference leads nowhere, or to something that is not one array of one dimension.
    """
    found: list[Leaf] = []
    problems: list[str] = []
    for name, source in config.settings.coords.items():
        key = f"coords.{name}"
        try:
            reference = refer(key, source, pipeline.names, pipeline.parameters)
            aval = look_up(reference, shapes, key) if isinstance(reference, Reference) else None
            if aval is None or not values.is_array(aval) or len(aval.shape) != 1:
                raise PipelineError(
                    f"`{key}` must refer to an array with one axis, but {source!r} is {values.in_words(aval)}. "
                    "Refer to the values along that dimension."
                )
            found.append(make_leaf(key, name, reference, aval, [name], {}, pipeline))
        except PipelineError as error:
            problems.extend(error.problems)
    if problems:
        raise PipelineError(problems)
    return tuple(found)


def find_output(
    key: str, name: str, outputs: tuple[Leaf, ...], pipeline: Pipeline, shapes: Mapping[str, Any], problems: list[str]
) -> Leaf | None:
    """The leaf that `of` names: an output, or a reference to one leaf."""
    by_name = {leaf.name: leaf for leaf in outputs}
    if name in by_name:
        return by_name[name]
    if name.split(".")[0] in pipeline.names:
        try:
            found = list(output_leaves(f"{key}.of", name, name, None, {}, pipeline, shapes))
        except PipelineError as error:
            problems.extend(error.problems)
            return None
        if len(found) == 1:
            return found[0]
        problems.append(
            f"`{key}.of` must be one array, but {name!r} has the leaves {listed(leaf.name for leaf in found)}."
        )
        return None
    problems.append(
        f"`{key}.of` must be an output, but {name!r} is none.{nearest(name, by_name)} There are {listed(by_name)}."
    )
    return None


def check_labels(
    leaves_found: tuple[Leaf, ...], coords: tuple[Leaf, ...], sweep: Mapping[str, int], axes: tuple[str, ...]
) -> None:
    """Names and dimensions must fit together over all variables before any is written.

    Args:
        leaves_found: outputs and derivatives.
        coords: coordinates of dimensions.
        sweep: the sweep's dimensions and their lengths.
        axes: the names that the sweep's own coordinates take.

    Raises:
        PipelineError: two variables of one name, one dimension of two lengths, a clash with the sweep.
    """
    problems = []
    sizes = {dim: (n, "the sweep") for dim, n in sweep.items()}
    names: dict[str, str] = {name: "a coordinate of the sweep" for name in axes} | {
        dim: "a dimension of the sweep" for dim in sweep
    }
    names |= {name: "the status of the samples" for name in RESERVED}
    for leaf in (*coords, *leaves_found):
        if leaf.name in names:
            problems.append(
                f"`outputs.{leaf.name}` must have a name of its own, but {leaf.name!r} is {names[leaf.name]} already. Rename it."
            )
        elif leaf.name in leaf.dims and leaf not in coords:
            problems.append(f"`outputs.{leaf.name}` must not be called like its own dimension. Rename one of them.")
        elif "/" in leaf.name:
            problems.append(f"`outputs.{leaf.name}` must not hold a slash, but does. Rename it.")
        names[leaf.name] = "an output"
        for dim, n in zip(leaf.dims, leaf.shape, strict=True):
            known, where = sizes.setdefault(dim, (n, leaf.name))
            if where == "the sweep":
                problems.append(
                    f"`outputs.{leaf.name}.dims` must differ from the sweep's dimensions, but holds {dim!r}. Rename it."
                )
            elif known != n:
                problems.append(
                    f"`outputs.{leaf.name}.dims` must give one length to {dim!r}, but it has {n} here and {known} in {where!r}. "
                    "Give them different names."
                )
    if problems:
        raise PipelineError(problems)
