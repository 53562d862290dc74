"""`sweep` → the sample points.

In: the config's sweep and the nominal parameters. Out: a `Design`: each swept parameter's values along its dimension. A point is
computed when a chunk asks for it; the outer product of a grid is never formed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.axes import Array, collecting, read_axis, read_count, require, shorten, shown
from engine.distributions import Draw, draw, read_distribution
from engine.errors import SweepError, listed, nearest
from engine.references import flat, repeated
from engine.tables import read_table

SAMPLED = ("random", "sobol", "halton", "latin_hypercube")
MOST_SAMPLES = 2**62
"""Samples of a whole sweep, so that a flat index fits an int64 with room for arithmetic."""


@dataclass(frozen=True, eq=False)
class Coordinate:
    """What the store writes beside the data. Static."""

    name: str
    dims: tuple[str, ...]
    values: Array


@dataclass(frozen=True, eq=False)
class Design:
    """The points of a sweep, as one column for each swept parameter. Static."""

    kind: str
    """grid, zip, latin_hypercube, sobol, halton, random, table, or none."""

    dims: tuple[str, ...]
    """The sweep's dimensions, in order; `replicate` is the last if there is one."""

    shape: tuple[int, ...]
    """Samples along each dimension."""

    columns: dict[str, Array]
    """Swept parameter -> its values along its dimension: (n, *shape of the parameter)."""

    along: dict[str, int]
    """Swept parameter -> the dimension that indexes its column."""

    replicates: int
    """Samples at each point; they differ in their PRNG keys only."""

    @property
    def samples(self) -> int:
        """Samples in the whole sweep."""
        return math.prod(self.shape)

    def source(self, name: str) -> str:
        """Where the config gives a swept parameter's values."""
        return f"`sweep.table` column {name!r}" if self.kind == "table" else f"`sweep.axes.{name}`"

    def take(self, samples: Array) -> dict[str, Array]:
        """Each swept parameter's values, (len(samples), *shape of the parameter), at flat indices in C order."""
        index = np.unravel_index(samples, self.shape) if self.shape else ()
        return {name: column[index[self.along[name]]] for name, column in self.columns.items()}

    def point(self, sample: int) -> dict[str, object]:
        """One sample's swept parameters as Python numbers and lists, for messages."""
        return {name: values[0].tolist() for name, values in self.take(np.array([sample], np.int64)).items()}

    def coordinates(self) -> list[Coordinate]:
        """The values of the sweep along its dimensions; an array-valued axis of a grid is indexed by position."""
        found = []
        for name, column in self.columns.items():
            dim = self.dims[self.along[name]]
            dims = (dim, *(f"{name}_{axis}" for axis in range(column.ndim - 1)))
            if name == dim and column.ndim > 1:
                found.append(Coordinate(name, (name,), np.arange(len(column), dtype=np.int64)))
                found.append(Coordinate(f"{name}_values", dims, column))
            else:
                found.append(Coordinate(name, dims, column))
        if self.replicates > 1:
            found.append(Coordinate("replicate", ("replicate",), np.arange(self.replicates, dtype=np.int64)))
        return found


def design(sweep: Mapping[str, Any], parameters: Mapping[str, Any], *, seed: int, folder: Path) -> Design:
    """The points that a sweep describes.

    Args:
        sweep: the keys `design`, `axes`, `samples`, `replicates` and `table` of the config.
        parameters: the nominal values by dotted name: numbers or nested lists of them.
        seed: of the sampled designs. As `samples` grows, the first points of random, sobol and halton stay; those of
            latin_hypercube cannot, as its strata depend on the number of samples. In a random design an axis depends on the seed
            and its own name only.
        folder: what the path of a table is relative to.

    Raises:
        SweepError: with everything that is wrong.
    """
    node = {key: value for key, value in (sweep or {}).items() if value is not None}
    kind, written = node.get("design", "grid"), node.get("axes", {})
    axes = flat(written, parameters)
    problems = [
        f"`sweep.axes.{name}` must be given once, but stands dotted and nested. Remove one."
        for name in repeated(written, parameters)
    ]
    with collecting(problems):
        check_keys(kind, node)
    replicates = 1
    with collecting(problems):
        replicates = read_count(
            "sweep.replicates", node.get("replicates", 1), "Give the number of samples at each point."
        )
    columns: dict[str, Array] = {}
    with collecting(problems):
        nominal = {name: np.asarray(value) for name, value in parameters.items()}
        columns = read_columns(kind, node, axes, nominal, seed, folder)
    with collecting(problems):
        check_names(kind, columns, replicates)
    if problems:
        raise SweepError(problems)
    return assemble(kind if columns else "none", columns, replicates)


def assemble(kind: str, columns: dict[str, Array], replicates: int) -> Design:
    """The design of checked columns."""
    if kind == "grid":
        dims, shape = tuple(columns), tuple(len(column) for column in columns.values())
    else:
        dims, shape = (("sample",), (len(next(iter(columns.values()))),)) if columns else ((), ())
    along = {name: position if kind == "grid" else 0 for position, name in enumerate(columns)}
    if replicates > 1:
        dims, shape = (*dims, "replicate"), (*shape, replicates)
    if math.prod(shape) > MOST_SAMPLES:
        sizes = " x ".join(f"{n} ({dim})" for n, dim in zip(shape, dims, strict=True))
        raise SweepError(
            f"`sweep` must have at most 2**62 samples, but has {sizes}. Use fewer values, or a sampled design such as sobol."
        )
    return Design(kind, dims, shape, columns, along, replicates)


def check_keys(kind: str, node: Mapping[str, Any]) -> None:
    """Every key must be used by the design, and what the design needs must be there."""
    problems = []
    if "samples" in node and kind not in SAMPLED:
        rows = {"table": "the rows of the table", "zip": "the lengths of the axes"}.get(kind, "the lengths of the axes")
        problems.append(
            f"`sweep.samples` must not be given for the design {kind}, but is {shown(node['samples'])}: {rows} set the number of "
            f"samples. Remove it, or choose `sweep.design` from {listed(SAMPLED)}."
        )
    if "table" in node and kind != "table":
        problems.append(
            f"`sweep.table` must not be given for the design {kind}, but is {shown(node['table'])}. "
            "Write `sweep.design: table`, or remove it."
        )
    if kind == "table":
        if "table" not in node:
            problems.append(
                "`sweep.table` must name a CSV file for the design table, but is missing. Write table: file.csv."
            )
        if node.get("axes"):
            problems.append(
                f"`sweep.axes` must not be given for the design table, but names {listed(node['axes'])}: the columns of the "
                "table are the axes. Remove the axes, or add them to the table as columns."
            )
    elif kind != "grid" and not node.get("axes"):
        problems.append(
            f"`sweep.axes` must name a parameter for the design {kind}, but is empty. Write axes: {{parameter: axis}}, "
            "or repeat the nominal point with other keys: `sweep: {{replicates: n}}`."
        )
    if kind in SAMPLED and "samples" not in node:
        problems.append(
            f"`sweep.samples` must be given for the design {kind}, but is missing. Write samples: 1024, for instance."
        )
    if problems:
        raise SweepError(problems)


def read_columns(
    kind: str, node: Mapping[str, Any], axes: Mapping[str, Any], nominal: Mapping[str, Array], seed: int, folder: Path
) -> dict[str, Array]:
    """The column of each swept parameter."""
    problems: list[str] = []
    samples = 1
    if kind == "table":
        return read_table(folder / str(node["table"]), nominal) if "table" in node else {}
    if "samples" in node and kind in SAMPLED:
        with collecting(problems):
            samples = read_count("sweep.samples", node["samples"], "Give the number of points to draw.")
    columns: dict[str, Array] = {}
    draws: dict[str, Draw] = {}
    for name, axis in axes.items():
        with collecting(problems):
            parameter = find_parameter(f"sweep.axes.{name}", name, axis, nominal)
            if kind in SAMPLED:
                draws[name] = read_distribution(f"sweep.axes.{name}", axis, parameter)
            else:
                columns[name] = read_axis(f"sweep.axes.{name}", axis, parameter)
                if kind == "grid":
                    check_distinct(f"sweep.axes.{name}", columns[name])
    if kind == "zip":
        with collecting(problems):
            check_lengths(columns)
    if problems:
        raise SweepError(problems)
    return draw(kind, draws, samples, seed) if kind in SAMPLED else columns


def find_parameter(key: str, name: str, axis: Any, nominal: Mapping[str, Array]) -> Array:
    """The nominal value of a swept parameter."""
    if name in nominal:
        return nominal[name]
    hint = ""
    if isinstance(axis, list) and any(isinstance(value, str) for value in axis):
        choices = ",".join(map(str, axis))
        hint = f" A choice that changes the program is swept on the command line: -m {name}={shorten(choices)}."
    raise SweepError(
        f"`{key}` must be one of `parameters`, but there is no parameter {name!r}.{nearest(name, nominal)} "
        f"There are {listed(nominal)}.{hint}"
    )


def check_names(kind: str, columns: Mapping[str, Array], replicates: int) -> None:
    """A parameter must not bear a name that the store needs for a dimension or for another coordinate."""
    taken = {"replicate"} if replicates > 1 else set()
    if kind != "grid" and columns:
        taken.add("sample")
    for name, column in columns.items():
        taken.update(f"{name}_{axis}" for axis in range(column.ndim - 1))
        if kind == "grid" and column.ndim > 1:
            taken.add(f"{name}_values")
    clashes = [
        f"`sweep.axes.{name}` must not bear that name, but does: the store needs {name!r} itself. Rename the parameter."
        for name in columns
        if name in taken
    ]
    if clashes:
        raise SweepError(clashes)


def check_lengths(columns: Mapping[str, Array]) -> None:
    """The axes of a zip must be equally long."""
    lengths = {name: len(column) for name, column in columns.items()}
    require(
        len(set(lengths.values())) <= 1,
        f"`sweep.axes` must be equally long for the design zip, but are {shorten(str(lengths)[1:-1], 200)}. "
        "Make them equally long, or use `sweep.design: grid` for the outer product.",
    )


def check_distinct(key: str, column: Array) -> None:
    """A value must not stand twice in an axis of a grid: it could not be selected, and would be computed twice."""
    _, first, inverse = np.unique(column, axis=0, return_index=True, return_inverse=True)
    earlier = first[inverse.reshape(-1)]
    repeated = np.flatnonzero(earlier != np.arange(len(column)))
    if len(repeated):
        again = int(repeated[0])
        raise SweepError(
            f"`{key}` must not repeat a value in a grid, but {shown(column[again].tolist())} stands at positions "
            f"{int(earlier[again])} and {again}. Remove one, or repeat points with `sweep.replicates`."
        )
