"""`optimize.data` → what was measured.

In: a node that pairs the columns of a table, or the arrays of a Zarr store, with parameters and outputs. Out: `Measurements`,
each array of the shape that its output must have.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.axes import Array, shown
from engine.errors import ConfigError, UserError, listed, nearest
from engine.measured_columns import DATA, Columns, columns_of


@dataclass(frozen=True, eq=False)
class Measurements:
    """What the outputs are compared with."""

    values: Mapping[str, Array]
    """For each output, in its units and of its shape."""

    sigma: Mapping[str, Array]
    """Standard deviations, like `values`; empty if they are unknown."""

    inputs: Mapping[str, Array]
    """Values of parameters, in the parameter's units."""

    confidence: float
    """Of the intervals, between 0 and 1."""

    digest: str
    """Names the numbers above: equal numbers have equal digests."""

    @property
    def size(self) -> int:
        """Numbers that are compared."""
        return sum(values.size for values in self.values.values())


def read_measurements(node: Mapping[str, Any], folder: Path) -> Measurements:
    """What the file of `optimize.data` says.

    A CSV file has a header row that names its columns; those that are not asked for may hold anything. A Zarr group has
    arrays in the place of columns; a bare Zarr array goes by the name of its folder. An output (or parameter) that is
    paired with a list of columns gets one array with these along its last axis.

    Args:
        node: `file`, `inputs`, `outputs`, `sigma` and `confidence`.
        folder: what a relative `file` is relative to.

    Raises:
        ConfigError: all that is wrong with the node, or else all that is wrong with the file.
    """
    problems = list(wrong_node(node))
    if problems:
        raise ConfigError(problems)
    columns = columns_of(folder / str(node["file"]))
    problems = []
    values = read_group("outputs", node["outputs"], columns, problems)
    inputs = read_group("inputs", node.get("inputs") or {}, columns, problems)
    sigma = read_sigma(node.get("sigma") or {}, values, columns, problems)
    if problems:
        raise ConfigError(problems)
    confidence = float(node.get("confidence", 0.95))
    return Measurements(values, sigma, inputs, confidence, digest_of(values, sigma, inputs))


def check_shapes(measured: Measurements, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Each output that is compared must be there, in the shape of its measurements.

    Args:
        measured: what was measured.
        shapes: the shape of each output of the pipeline.

    Raises:
        ConfigError: with a message for each output.
    """
    problems = []
    for name, values in measured.values.items():
        key = f"`{DATA}.outputs.{name}`"
        if name not in shapes:
            problems.append(
                f"{key} must be an output, but there is no output {name!r}.{nearest(name, shapes)} There are {listed(shapes)}."
            )
        elif shapes[name] != values.shape:
            problems.append(
                f"{key} must have the shape of the output, {shapes[name]}, but the measurements have {values.shape}. "
                + remedy_of_shape(measured, shapes[name], values.shape)
            )
    if problems:
        raise ConfigError(problems)


def remedy_of_shape(measured: Measurements, wanted: tuple[int, ...], found: tuple[int, ...]) -> str:
    """What may mend measurements of another shape than the output."""
    if wanted == found[::-1]:
        return "The axes are in the other order: transpose the output, or the measurements."
    if not measured.inputs and len(wanted) == len(found):
        return f"Compute the output where it was measured: give its points to the model with `{DATA}.inputs`."
    return "Compute the output at each point of the measurements, no more and no fewer."


# ---- the node


def wrong_node(node: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the node itself, before the file is looked at."""
    if not isinstance(node.get("file"), str | Path) or not str(node["file"]):
        yield f"`{DATA}.file` must be the path of a CSV file or a Zarr store, but is {shown(node.get('file'))}. Write it."
    if not node.get("outputs"):
        yield (
            f"`{DATA}.outputs` must pair at least one output with a column, but is {shown(node.get('outputs'))}. "
            "Write {output: column}."
        )
    for group in ("outputs", "inputs"):
        pairs = node.get(group) or {}
        if not isinstance(pairs, Mapping):
            yield f"`{DATA}.{group}` must be a mapping of names to columns, but is {shown(pairs)}. Write {{name: column}}."
            continue
        for name, column in pairs.items():
            names = column if isinstance(column, list | tuple) and column else [column]
            if not all(isinstance(one, str) for one in names):
                yield f"`{DATA}.{group}.{name}` must be the name of a column, or a list of names, but is {shown(column)}. Name one."
    yield from wrong_sigma(node.get("sigma") or {}, node.get("outputs"))
    level = node.get("confidence", 0.95)
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        yield f"`{DATA}.confidence` must be between 0 and 1, but is {shown(level)}. Write 0.95 for intervals of 95 %."


def wrong_sigma(sigma: Any, outputs: Any) -> Iterator[str]:
    """What is wrong with the pairs of `sigma`."""
    if not isinstance(sigma, Mapping):
        yield (
            f"`{DATA}.sigma` must be a mapping of outputs to numbers or columns, but is {shown(sigma)}. "
            "Write {output: number}, or leave it out: it is then estimated."
        )
        return
    if not isinstance(outputs, Mapping):
        return
    for name, value in sigma.items():
        key = f"`{DATA}.sigma.{name}`"
        if name not in outputs:
            yield (
                f"{key} must be for one of `{DATA}.outputs`, but {name!r} is not among them."
                f"{nearest(str(name), outputs)} There are {listed(outputs)}."
            )
        for one in value if isinstance(value, list | tuple) and value else [value]:
            if isinstance(one, bool) or not isinstance(one, int | float | str):
                yield f"{key} must be a number or the name of a column, but is {shown(value)}. Write the standard deviation."
            elif not isinstance(one, str) and not 0 < one < math.inf:
                yield f"{key} must be above 0 and finite, but is {shown(value)}. Write the standard deviation."
    left = [name for name in outputs if sigma and name not in sigma]
    if left:
        yield (
            f"`{DATA}.sigma` must give the standard deviation of each output or of none, but leaves out {listed(left)}. "
            "Add them, or leave out `sigma`: one variance for all is then estimated."
        )


# ---- the file


def read_group(group: str, pairs: Mapping[str, Any], columns: Columns, problems: list[str]) -> dict[str, Array]:
    """The columns of each name, side by side on the last axis if there is a list of them."""
    read: dict[str, Array] = {}
    for name, column in pairs.items():
        key = f"`{DATA}.{group}.{name}`"
        try:
            read[name] = one_or_several(key, column, columns)
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return read


def one_or_several(key: str, column: Any, columns: Columns) -> Array:
    """A column, or several of the same shape."""
    if isinstance(column, str):
        return columns(key, column)
    parts = [columns(key, name) for name in column]
    if len({part.shape for part in parts}) > 1:
        raise ConfigError(
            f"{key} must name arrays of one shape, but {listed(column)} have {', '.join(str(p.shape) for p in parts)}. "
            "Name each for an output of its own."
        )
    return np.stack(parts, axis=-1)


def read_sigma(
    sigma: Mapping[str, Any], values: Mapping[str, Array], columns: Columns, problems: list[str]
) -> dict[str, Array]:
    """The standard deviation of each value of each output."""
    read: dict[str, Array] = {}
    for name, given in sigma.items():
        if name not in values:
            continue
        try:
            read[name] = one_sigma(f"`{DATA}.sigma.{name}`", given, values[name].shape, columns)
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return read


def one_sigma(key: str, given: Any, shape: tuple[int, ...], columns: Columns) -> Array:
    """A number, a column, or one of these for each column of the output; all above 0, in the shape of the values."""
    several = isinstance(given, list | tuple)
    parts = [
        columns(key, one) if isinstance(one, str) else np.asarray(float(one)) for one in (given if several else [given])
    ]
    try:
        if several:
            found = np.stack(np.broadcast_arrays(*parts), axis=-1)
        else:
            # A column beside an output of several columns: the rows agree, not the last axes.
            found = parts[0][..., None] if parts[0].ndim and parts[0].ndim == len(shape) - 1 else parts[0]
        spread = np.ascontiguousarray(np.broadcast_to(found, shape))
    except ValueError:
        raise ConfigError(
            f"{key} must have the shape of the values, {shape}, but has {', '.join(str(part.shape) for part in parts)}. "
            "Give one number, or one for each value."
        ) from None
    wrong = np.argwhere(spread <= 0)
    if wrong.size:
        raise ConfigError(
            f"{key} must be above 0 everywhere, but is {spread[tuple(wrong[0])]:g} at {wrong[0].tolist()}. "
            "Give every value its standard deviation, or leave out what was not measured."
        )
    return spread


def digest_of(*groups: Mapping[str, Array]) -> str:
    """SHA-256 of the names, shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for place, group in enumerate(groups):
        for name in sorted(group):
            digest.update(f"{place} {name} {group[name].dtype.str} {group[name].shape}\n".encode())
            digest.update(np.ascontiguousarray(group[name]).tobytes())
    return digest.hexdigest()
