"""`sweep` → the sample points.

In: the config's sweep and the nominal parameters. Out: a `Design`: each swept parameter's values along its dimension. A point is
computed when a chunk asks for it; the outer product of a grid is never formed.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import SweepError, listed, nearest

Array = np.ndarray[Any, Any]

SAMPLED = ("random", "sobol", "halton", "latin_hypercube")
CONSTRUCTORS = {"linspace": "[start, stop, n]", "geomspace": "[start, stop, n]", "arange": "[start, stop, step]"}
DISTRIBUTIONS = {
    "uniform": "[low, high]",
    "loguniform": "[low, high]",
    "normal": "[mean, std]",
    "lognormal": "[mean, std]",
    "choice": "[value, value, ...]",
}
OTHER_NAMES = {"logspace": "geomspace", "range": "arange", "gaussian": "normal", "log_normal": "lognormal"}

MOST_VALUES = 2**28
"""Numbers that one axis may hold (2 GiB); an axis is kept in memory, unlike the sweep."""

MOST_SAMPLES = 2**62
"""Samples of a whole sweep, so that a flat index fits an int64 with room for arithmetic."""

MOST_SOBOL = 21201
"""Dimensions for which SciPy has direction numbers."""

MOST_PROBLEMS = 5
"""Problems of one axis or table that are shown."""

BATCH = 2**16
"""Rows of a table that are text at a time."""

TRUTHS = {"true", "false"}
"""What a cell of a table may say, in any case, for a boolean parameter."""

LEAST_UNIT = {"sobol": 2.0**-31}
"""Half the resolution of a sampler, where it is not that of a double: a draw of 0 stands for the cell above it."""

KINDS = {"b": np.bool_, "i": np.int64, "f": np.float64, "c": np.complex128}


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
        parameters: the nominal values: numbers or nested lists of them.
        seed: of the sampled designs. As `samples` grows, the first points of random, sobol and halton stay; those of
            latin_hypercube cannot, as its strata depend on the number of samples. In a random design an axis depends on the seed
            and its own name only.
        folder: what the path of a table is relative to.

    Raises:
        SweepError: with everything that is wrong.
    """
    node = {key: value for key, value in (sweep or {}).items() if value is not None}
    kind, axes = node.get("design", "grid"), node.get("axes", {})
    problems: list[str] = []
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


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Keep the problems of what is inside, and go on."""
    try:
        yield
    except SweepError as error:
        problems.extend(error.problems)


def require(fact: Any, problem: str) -> None:
    """Raise `problem` unless `fact` holds."""
    if not fact:
        raise SweepError(problem)


# ---- the keys of the node


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
            f"`sweep.axes` must name a parameter for the design {kind}, but is empty. Write axes: {{parameter: axis}}."
        )
    if kind in SAMPLED and "samples" not in node:
        problems.append(
            f"`sweep.samples` must be given for the design {kind}, but is missing. Write samples: 1024, for instance."
        )
    if problems:
        raise SweepError(problems)


def read_count(key: str, value: Any, remedy: str) -> int:
    """A positive integer; an integral float such as 1e3 is one."""
    whole = isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer())
    require(
        whole and not isinstance(value, bool) and value >= 1,
        f"`{key}` must be a positive integer, but is {shown(value)}. {remedy}",
    )
    require(
        value <= MOST_VALUES,
        f"`{key}` must be at most {MOST_VALUES}, but is {shown(value)}. Use fewer: the values are kept in memory.",
    )
    return int(value)


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


# ---- axes that are written out


def read_axis(key: str, axis: Any, nominal: Array) -> Array:
    """The values of an axis of a grid or a zip: a list, or one of NumPy's constructors."""
    if isinstance(axis, list | tuple | np.ndarray):
        return as_column(read_list(key, axis, nominal), nominal)
    name, arguments = read_constructor(key, axis, CONSTRUCTORS)
    if name in DISTRIBUTIONS:
        raise SweepError(
            f"`{key}` must list values for the designs grid and zip, but is the distribution {name}. Write a list or "
            f"{listed(CONSTRUCTORS)}, or draw from it: `sweep.design: random` or sobol, with `sweep.samples`."
        )
    key = f"{key}.{name}"
    refuse_boolean(key, nominal)
    values = {"linspace": linspace, "geomspace": geomspace, "arange": arange}[name](key, arguments, nominal.shape)
    check_finite(key, arguments, values)
    return as_column(values, nominal)


def read_constructor(key: str, axis: Any, known: Mapping[str, str]) -> tuple[str, list[Any]]:
    """The name and the arguments of `{name: [argument, ...]}`."""
    every = CONSTRUCTORS | DISTRIBUTIONS
    forms = ", ".join(f"{{{name}: {words}}}" for name, words in known.items())
    if not isinstance(axis, Mapping):
        extra = "a list of values or " if known is CONSTRUCTORS else ""
        raise SweepError(f"`{key}` must be {extra}one of {forms}, but is {shown(axis)}.{axis_remedy(axis, known)}")
    if not axis:
        raise SweepError(f"`{key}` must be one of {forms}, but is empty. Write one of them, or remove the axis.")
    if len(axis) > 1:
        raise SweepError(f"`{key}` must be a single one of {forms}, but has the keys {listed(axis)}. Keep one of them.")
    name, arguments = next(iter(axis.items()))
    if name not in every:
        raise SweepError(
            f"`{key}.{name}` must be one of {listed(known)}, but {str(name)!r} is none of them.{name_remedy(str(name), known)}"
        )
    words = every[name]
    length = len(words.split(",")) if name != "choice" else None
    if not isinstance(arguments, list | tuple):
        raise SweepError(f"`{key}.{name}` must be {words}, but is {shown(arguments)}. Write {{{name}: {words}}}.")
    if length is not None and len(arguments) != length:
        raise SweepError(
            f"`{key}.{name}` must be the {length} values {words}, but has {len(arguments)}: {shown(list(arguments))}. "
            f"Write {{{name}: {words}}}."
            + (" For a plain list of values leave the name out." if name in CONSTRUCTORS else "")
        )
    return str(name), list(arguments)


def axis_remedy(axis: Any, known: Mapping[str, str]) -> str:
    """What to do about an axis that is neither a list nor a mapping."""
    if isinstance(axis, str):
        words = (CONSTRUCTORS | DISTRIBUTIONS).get(axis.strip())
        if words is not None:
            return f" Write {{{axis.strip()}: {words}}}."
        return text_remedy(axis, " Write the values in brackets: [1, 2].")
    if axis is None:
        return " Write the values, or remove the axis."
    single = f"[{shown(axis)}] for a single value" if known is CONSTRUCTORS else f"{{choice: [{shown(axis)}]}}"
    return f" Write {single}, or fix the parameter in `parameters`."


def name_remedy(name: str, known: Mapping[str, str]) -> str:
    """What to write instead of a constructor or a distribution that there is not."""
    if name == "logspace":
        return " Did you mean 'geomspace'? Give it the first and the last value, not their exponents."
    other = OTHER_NAMES.get(name)
    guess = f" Did you mean {other!r}?" if other else nearest(name, CONSTRUCTORS | DISTRIBUTIONS)
    if guess:
        return guess
    return f" Write {'a list of the values' if known is CONSTRUCTORS else 'your own draws to a CSV file for `sweep.table`'}."


def linspace(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's linspace; start and stop may be arrays of the parameter's shape."""
    n, start, stop = read_range(key, arguments, shape)
    with np.errstate(all="ignore"):
        return np.linspace(start, stop, n)


def geomspace(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's geomspace; start and stop may be arrays of the parameter's shape."""
    n, start, stop = read_range(key, arguments, shape)
    require(
        np.all(np.sign(start) * np.sign(stop) > 0),
        f"`{key}` must start and stop at numbers that are not 0 and have the same sign, but goes from {shown(arguments[0])} to "
        f"{shown(arguments[1])}. Start at a small number of the same sign, or use linspace.",
    )
    with np.errstate(all="ignore"):
        return np.geomspace(start, stop, n)


def arange(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's arange: the stop is left out."""
    start, stop, step = (value.item() for value in read_arguments(key, arguments, ()))
    require(
        not shape, f"`{key}` must be for a scalar, but the parameter has shape {shape}. Write the list of its values."
    )
    written = shown(arguments)
    require(
        step != 0,
        f"`{key}` must have a step that is not 0, but is {written}. For n values use linspace: [start, stop, n].",
    )
    require(
        math.isfinite(stop - start),
        f"`{key}` must span a range that a double holds, but is {written}. Use smaller numbers.",
    )
    count = (stop - start) / step
    require(count > 0, f"`{key}` must hold a value, but {written} is empty. Change the sign of the step, or the stop.")
    require(
        count <= MOST_VALUES,
        f"`{key}` must hold at most {MOST_VALUES} values, but {written} holds {count:.3g}. Use a larger step.",
    )
    return np.arange(start, stop, step)


def read_range(key: str, arguments: list[Any], shape: tuple[int, ...]) -> tuple[int, Array, Array]:
    """The `n`, `start` and `stop` of linspace and geomspace."""
    problems: list[str] = []
    n, ends = 0, [np.zeros(shape)] * 2
    with collecting(problems):
        n = read_count(
            f"{key}[2]", arguments[2], "It is n, the number of values; for a step write arange: [start, stop, step]."
        )
        require(
            n * math.prod(shape) <= MOST_VALUES,
            f"`{key}` must hold at most {MOST_VALUES} numbers, but n is {n}. Lower n.",
        )
    with collecting(problems):
        ends = read_arguments(key, arguments[:2], shape)
        require(
            any(end.shape == shape for end in ends),
            f"`{key}` must start or stop at a list of shape {shape}, as the nominal value has, but goes from "
            f"{shown(arguments[0])} to {shown(arguments[1])}. Give one number for each element of the parameter.",
        )
    if problems:
        raise SweepError(problems)
    return n, ends[0], ends[1]


def read_arguments(key: str, arguments: list[Any], shape: tuple[int, ...]) -> list[Array]:
    """Finite real numbers, or arrays of the parameter's shape."""
    problems: list[str] = []
    found = []
    for i, argument in enumerate(arguments):
        with collecting(problems):
            try:
                value = read_numbers(f"{key}[{i}]", argument, "f")
            except RaggedError:
                value = None
            if value is None or value.shape not in ((), shape):
                raise SweepError(
                    f"`{key}[{i}]` must be a number{f' or have shape {shape}' if shape else ''}, but is "
                    f"{shape_in_words(argument)}: {shown(argument)}. "
                    f"Give one number{' for each element of the parameter' if shape else ''}."
                )
            found.append(value)
    if problems:
        raise SweepError(problems)
    return found


# ---- numbers


def read_list(key: str, values: Any, nominal: Array) -> Array:
    """The values of a list, enumerated along the leading axis."""
    require(len(values), f"`{key}` must hold at least one value, but is empty. Add values, or remove the axis.")
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        array = read_numbers(key, plain, "b" if nominal.dtype.kind == "b" else "c")
    except RaggedError:
        array = None
    check_shapes(key, plain if array is None else array, nominal.shape)
    if array is None:
        raise SweepError(
            f"`{key}` must be a list of equal shapes, but is ragged: {shown(plain)}. Make the lists equally long."
        )
    return array


class RaggedError(Exception):
    """A nested list is no array; who knows the right shape says which element is wrong."""


def read_numbers(key: str, value: Any, kind: str) -> Array:
    """A number or a nested list of numbers, checked: all finite, boolean if `kind` is "b", real if it is "f"."""
    problems = list(wrong_numbers(key, value, kind))
    if problems:
        more = (
            [f"`{key}` has {len(problems) - MOST_PROBLEMS} more problems of this kind."]
            if len(problems) > MOST_PROBLEMS
            else []
        )
        raise SweepError(problems[:MOST_PROBLEMS] + more)
    try:
        return np.asarray(value)
    except ValueError:
        raise RaggedError from None


def wrong_numbers(key: str, value: Any, kind: str) -> Iterator[str]:
    """A message for each element that is not a finite number of the kind."""
    if not isinstance(value, list | tuple):
        if (problem := wrong_number(value, kind)) is not None:
            yield f"`{key}` {problem}"
    elif not clean(value, kind):
        for i, child in enumerate(value):
            yield from wrong_numbers(f"{key}[{i}]", child, kind)


def clean(values: Any, kind: str) -> bool:
    """Whether a list holds good numbers only: quick for a million of them, silent on what is wrong."""
    kinds: dict[str, set[type]] = {"b": {bool}, "f": {int, float}, "c": {int, float, complex}}
    allowed = kinds[kind]
    if not set(map(type, values)) <= allowed:
        return False
    array = np.asarray(values)
    return array.dtype.kind in KINDS and bool(np.isfinite(array).all())


def wrong_number(value: Any, kind: str) -> str | None:
    """What is wrong with a number, from "must" on."""
    if kind == "b":
        good, wanted = isinstance(value, bool), "true or false, as the nominal value is"
    else:
        good = isinstance(value, int | float | (complex if kind == "c" else float)) and not isinstance(value, bool)
        wanted = "a number"
    if not good:
        remedy = kind_remedy(value, kind) if kind == "b" else text_remedy(value) or kind_remedy(value, kind)
        return f"must be {wanted}, but is {shown(value)}.{remedy}"
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**63
        return None if fits else f"must fit in 64 bits, but is {shown(value)}. {float_remedy(value)}"
    return (
        None
        if np.isfinite(value)
        else f"must be a finite number, but is {value}. Remove it: no result could follow from it."
    )


def float_remedy(value: int) -> str:
    """What to do about an integer that is too large."""
    try:
        return f"Write it as a float: {value:.6e}."
    except OverflowError:
        return "Write a smaller number: the largest float is 1.8e308."


def kind_remedy(value: Any, kind: str) -> str:
    """What to do about a value of another kind."""
    if isinstance(value, bool):
        return " Write 1 or 0, or make the nominal value true or false."
    return " Write true or false." if kind == "b" else " Write a number."


CHOICE_REMEDY = " Write a number; a choice that changes the program is swept with `-m` on the command line."


def text_remedy(value: Any, otherwise: str = CHOICE_REMEDY) -> str:
    """What to do about text where a number or an axis belongs."""
    if not isinstance(value, str):
        return ""
    if re.fullmatch(r"\[.*\]|\{.*\}", value.strip()):
        return " Write it without quotes."
    if "," in value:
        return f" Write a list: [{value.strip()}]."
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", value, re.IGNORECASE):
        return " Write it without quotes."
    if re.fullmatch(r"(?=.*\d|.*pi)(?=.*[-+*/^%(])(?:[\d.\s()+\-*/^%]|e[+-]?\d|pi|sqrt|np\.)+", value, re.IGNORECASE):
        return " Arithmetic is not evaluated: write the number."
    return otherwise


def check_shapes(key: str, values: Any, shape: tuple[int, ...]) -> None:
    """Each value must have the shape of the parameter."""
    if isinstance(values, np.ndarray) and values.shape[1:] == shape:
        return
    problems = []
    for i, value in enumerate(values):
        found = shape_in_words(value)
        if found != (shape_in_words(np.zeros(shape)) if shape else "a single number"):
            wanted = (
                f"have shape {shape}, as the nominal value has"
                if shape
                else "be a single number, as the nominal value is"
            )
            remedy = (
                "Write each value as a nested list of that shape."
                if shape
                else "Give the parameter a nominal value of that shape."
            )
            written = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            problems.append(f"`{key}[{i}]` must {wanted}, but is {found}: {shown(written)}. {remedy}")
        if len(problems) == MOST_PROBLEMS:
            break
    if problems:
        raise SweepError(problems)


def shape_in_words(value: Any) -> str:
    """`a single number`, `an array of shape (2,)` or `a ragged list`."""
    try:
        shape = np.shape(value)
    except ValueError:
        return "a ragged list"
    return f"an array of shape {shape}" if shape else "a single number"


def as_column(values: Array, nominal: Array) -> Array:
    """The values in the wider of their kind and the nominal value's: bool, int64, float64 or complex128."""
    kind = max(values.dtype.kind, nominal.dtype.kind, key="biufc".index)
    return np.ascontiguousarray(values, KINDS["i" if kind == "u" else kind])


def refuse_boolean(key: str, nominal: Array) -> None:
    """A range or a distribution has no booleans."""
    require(
        nominal.dtype.kind != "b",
        f"`{key}` must be for a number, but the nominal value is true or false. Write [true, false], or {{choice: [true, false]}}.",
    )


def check_finite(key: str, arguments: list[Any], values: Array) -> None:
    """What was computed must not overflow."""
    if not np.isfinite(values).all():
        raise SweepError(
            f"`{key}` must give finite numbers, but {shown(arguments)} overflows the range of a double. Use smaller numbers."
        )


def shown(value: Any) -> str:
    """A value of the config as a message shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    kind = "text " if isinstance(value, str) else "the mapping " if isinstance(value, dict) else ""
    return kind + shorten(repr(value))


def shorten(text: str, limit: int = 60) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---- distributions


@dataclass(frozen=True, eq=False)
class Draw:
    """A distribution of one parameter. Static."""

    key: str
    size: int
    """Sampler dimensions it takes: one for each element of the parameter."""

    quantile: Callable[[Array], Array]
    """Unit samples, (n, size), to values, (n, *shape of the parameter)."""

    numbers: int
    """Numbers in one value."""


def read_distribution(key: str, axis: Any, nominal: Array) -> Draw:
    """A distribution; its arguments may be arrays of the parameter's shape."""
    if isinstance(axis, list | tuple | np.ndarray):
        raise SweepError(
            f"`{key}` must be a distribution for a sampled design, but is the list {shown(list(axis))}. "
            "Write {choice: [...]} to draw from it, or `sweep.design: zip` or grid to take each value."
        )
    name, arguments = read_constructor(key, axis, DISTRIBUTIONS)
    if name in CONSTRUCTORS:
        raise SweepError(
            f"`{key}` must be a distribution for a sampled design, but is {name}. "
            f"Write one of {listed(DISTRIBUTIONS)}, such as {{uniform: [low, high]}}, or `sweep.design: grid`."
        )
    key, shape = f"{key}.{name}", nominal.shape
    if name == "choice":
        return choice(key, arguments, nominal)
    refuse_boolean(key, nominal)
    make = {"uniform": uniform, "loguniform": loguniform, "normal": normal, "lognormal": lognormal}[name]
    inverse = make(key, *read_arguments(key, arguments, shape))

    def quantile(unit: Array) -> Array:
        with np.errstate(over="ignore"):
            values = inverse(unit.reshape(len(unit), *shape))
        check_finite(key, arguments, values)
        return as_column(values, nominal)

    return Draw(key, nominal.size, quantile, nominal.size)


Inverse = Callable[[Array], Array]


def uniform(key: str, low: Array, high: Array) -> Inverse:
    """Uniform on [low, high)."""
    check_order(key, low, high)
    return lambda unit: low + (high - low) * unit


def loguniform(key: str, low: Array, high: Array) -> Inverse:
    """Uniform in the logarithm."""
    check_order(key, low, high)
    require(
        np.all(low > 0),
        f"`{key}` must have a low above 0, but low is {shown(low.tolist())}. Use a small positive number, or uniform.",
    )
    with np.errstate(over="ignore"):
        ratio = high / low
    span = np.where(np.isfinite(ratio), np.log(ratio), np.log(high) - np.log(low))
    return lambda unit: np.clip(np.exp(np.log(low) + span * unit), low, high)


def normal(key: str, mean: Array, std: Array) -> Inverse:
    """Normal."""
    check_std(key, std)
    return lambda unit: mean + std * standard_normal(unit)


def lognormal(key: str, mean: Array, std: Array) -> Inverse:
    """The exponential of a normal; `mean` and `std` are those of the underlying normal, as in NumPy."""
    check_std(key, std)
    return lambda unit: np.exp(mean + std * standard_normal(unit))


def standard_normal(unit: Array) -> Array:
    """The inverse of the standard normal's distribution function."""
    from scipy.special import ndtri

    return np.asarray(ndtri(unit))


def check_order(key: str, low: Array, high: Array) -> None:
    """The low must be below the high."""
    require(
        np.all(low < high),
        f"`{key}` must have low < high, but low is {shown(low.tolist())} and high is {shown(high.tolist())}. "
        "Swap them, or fix the parameter in `parameters`.",
    )


def check_std(key: str, std: Array) -> None:
    """The standard deviation must be positive."""
    require(
        np.all(std > 0),
        f"`{key}` must have std > 0, but std is {shown(std.tolist())}. Give the standard deviation, or fix the parameter.",
    )


def choice(key: str, options: list[Any], nominal: Array) -> Draw:
    """One of the options, all equally likely; an option that stands twice counts twice.

    Options of the parameter's shape are drawn whole; single numbers are drawn for each element.
    """
    require(options, f"`{key}` must hold at least one value, but is empty. Add values, or remove the axis.")
    whole = nominal.ndim == 0 or any(isinstance(option, list | tuple) for option in options)
    values = as_column(read_list(key, options, nominal if whole else nominal.reshape(-1)[0]), nominal)

    def quantile(unit: Array) -> Array:
        picked = values[np.minimum((unit * len(values)).astype(np.int64), len(values) - 1)]
        return picked[:, 0] if whole else picked.reshape(len(unit), *nominal.shape)

    return Draw(key, 1 if whole else nominal.size, quantile, nominal.size)


def draw(kind: str, draws: Mapping[str, Draw], samples: int, seed: int) -> dict[str, Array]:
    """The columns of a sampled design, by the inverse of each distribution function."""
    problems: list[str] = []
    for one in draws.values():
        if samples * one.numbers > MOST_VALUES:
            problems.append(
                f"`sweep.samples` must give at most {MOST_VALUES} numbers for each axis, but {samples} samples of "
                f"{one.numbers} are asked for by `{one.key}`. Use fewer samples."
            )
    size = sum(one.size for one in draws.values())
    if kind == "sobol" and size > MOST_SOBOL:
        problems.append(
            f"`sweep.design` must have at most {MOST_SOBOL} dimensions for sobol, but the axes have {size}. Use random."
        )
    if problems:
        raise SweepError(problems)
    columns: dict[str, Array] = {}
    for name, unit in unit_samples(kind, {name: one.size for name, one in draws.items()}, samples, seed).items():
        with collecting(problems):
            columns[name] = draws[name].quantile(np.clip(unit, LEAST_UNIT.get(kind, 2.0**-54), 1 - 2.0**-53))
    if problems:
        raise SweepError(problems)
    return columns


def unit_samples(kind: str, sizes: Mapping[str, int], samples: int, seed: int) -> dict[str, Array]:
    """Points of the unit cube, (samples, size) for each parameter, in the order written."""
    if not sizes:
        return {}
    if kind == "random":
        return {name: stream(seed, name).random((samples, size)) for name, size in sizes.items()}
    from scipy.stats import qmc

    sampler = {"sobol": qmc.Sobol, "halton": qmc.Halton, "latin_hypercube": qmc.LatinHypercube}[kind]
    with warnings.catch_warnings():
        # SciPy warns that a Sobol sequence is balanced only at a power of two; the number is the user's choice.
        warnings.simplefilter("ignore", UserWarning)
        unit = sampler(sum(sizes.values()), rng=np.random.default_rng(seed)).random(samples)
    ends = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(unit, ends, axis=1), strict=True))


def stream(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on the seed and a parameter's name."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))


# ---- tables


def read_table(path: Path, nominal: Mapping[str, Array]) -> dict[str, Array]:
    """The columns of a CSV file whose header names parameters."""
    found = "is a folder" if path.is_dir() else "is not there"
    require(path.is_file(), f"`sweep.table` must be a CSV file, but {path} {found}.{beside(path)}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = rows_of(path, file)
            names = read_header(path, rows)
            check_header(path, names, nominal)
            parts = read_cells(path, rows, names, nominal)
    except UnicodeDecodeError:
        raise SweepError(undecodable(path)) from None
    except OSError as error:
        raise SweepError(
            f"`sweep.table` must be readable, but {path.name} is not: {error.strerror}. Check its permissions."
        ) from None
    require(parts, f"`sweep.table` must have a row for each point, but {path.name} has a header only. Add rows.")
    return {name: as_column(np.concatenate([part[name] for part in parts]), nominal[name]) for name in names}


def beside(path: Path) -> str:
    """The CSV files that a missing table may have been meant to be."""
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        return f" There is no folder {folder} either. The path is relative to the config's folder."
    files = sorted(file.name for file in folder.glob("*.csv") if file.is_file())
    return f"{nearest(path.name, files)} The folder's CSV files: {listed(files)}. The path is relative to the config's folder."


def undecodable(path: Path) -> str:
    """The message for a file that is not UTF-8, with the row of its first wrong byte."""
    row = 0
    with path.open("rb") as file:
        try:
            for line in file:
                row += 1
                line.decode("utf-8")
        except UnicodeDecodeError as error:
            return (
                f"`sweep.table` must be UTF-8 text, but row {row} of {path.name} has the byte {line[error.start]:#04x}. "
                "Save it as UTF-8."
            )
    return f"`sweep.table` must stay as it is while it is read, but {path.name} changes. Start again."


def rows_of(path: Path, file: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with its line number, without the empty cells at its end."""
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) > 1 or any(cells):
                while cells and not cells[-1]:
                    cells.pop()
                yield reader.line_num, cells
    except csv.Error as error:
        raise SweepError(
            f"`sweep.table` row {reader.line_num} of {path.name} must be comma-separated values, but cannot be read: {error}. "
            "Check its quotes, and save the table as comma-separated text."
        ) from None


def read_header(path: Path, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    """The names in the first row."""
    for _, row in rows:
        return row
    raise SweepError(f"`sweep.table` must have a header row that names parameters, but {path.name} is empty. Add one.")


def check_header(path: Path, names: list[str], nominal: Mapping[str, Array]) -> None:
    """Each column must be a scalar parameter, once."""
    if not names or any(as_number(name) is not None for name in names if name not in nominal):
        raise SweepError(
            f"`sweep.table` must start with a header row that names parameters, but the first row of {path.name} is "
            f"{shown(','.join(names))}. Add a row such as {shorten(','.join(nominal))}."
        )
    problems = []
    for name in dict.fromkeys(names):
        here = f"`sweep.table` column {name!r} of {path.name}"
        if name and names.count(name) > 1:
            problems.append(f"{here} must stand once, but stands {names.count(name)} times. Remove or rename one.")
        if not name:
            position = names.index(name) + 1
            problems.append(
                f"`sweep.table` column {position} of {path.name} must name a parameter, but has no name. Name it, or remove it."
            )
        elif name not in nominal:
            separator = " Separate the columns by commas." if re.search(r"[;\t|]", name) else nearest(name, nominal)
            problems.append(
                f"{here} must be one of `parameters`, but there is no parameter {name!r}.{separator} There are {listed(nominal)}."
            )
        elif nominal[name].ndim:
            problems.append(
                f"{here} must be a scalar parameter, but {name!r} has shape {nominal[name].shape}. "
                "Sweep it with `sweep.design: zip`, as a list of lists."
            )
    if problems:
        raise SweepError(problems)


def read_cells(
    path: Path, rows: Iterator[tuple[int, list[str]]], names: list[str], nominal: Mapping[str, Array]
) -> list[dict[str, Array]]:
    """The columns of each batch of rows: the text of a long table is never held whole."""
    parts: list[dict[str, Array]] = []
    problems: list[str] = []
    more = 0
    while batch := list(islice(rows, BATCH)):
        columns = columns_of(batch, names, nominal)
        if columns is not None:
            parts.append(columns)
            continue
        wrong = list(wrong_cells(path, batch, names, nominal))
        room = MOST_PROBLEMS - len(problems)
        problems, more = problems + wrong[:room], more + len(wrong[room:])
    if problems:
        rest = [f"`sweep.table` has {more} more problems of this kind in {path.name}."] if more else []
        raise SweepError(problems + rest)
    return parts


def columns_of(
    batch: list[tuple[int, list[str]]], names: list[str], nominal: Mapping[str, Array]
) -> dict[str, Array] | None:
    """The columns of some rows, or None if a cell is wrong: quick, and silent on which."""
    if {len(row) for _, row in batch} != {len(names)}:
        return None
    columns: dict[str, Array] = {}
    for name, cells in zip(names, zip(*(row for _, row in batch), strict=True), strict=True):
        column = column_of(cells, nominal[name].dtype.kind)
        if column is None:
            return None
        columns[name] = column
    return columns


def column_of(cells: Sequence[str], kind: str) -> Array | None:
    """Cells as booleans if `kind` is "b", else as int64 or float64; None unless each is right."""
    if kind == "b":
        return np.array([c.lower() == "true" for c in cells]) if {c.lower() for c in cells} <= TRUTHS else None
    try:
        return np.fromiter(map(int, cells), np.int64, len(cells))
    except (ValueError, OverflowError):
        pass
    try:
        column = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    large = np.flatnonzero(~(np.abs(column) < 2.0**63))
    return None if any(wrong_cell(cells[int(i)], kind) for i in large) else column


def wrong_cells(
    path: Path, batch: list[tuple[int, list[str]]], names: list[str], nominal: Mapping[str, Array]
) -> Iterator[str]:
    """A message for each cell that is missing, superfluous or no number, with its row in the file."""
    for line, row in batch:
        if len(row) > len(names):
            yield (
                f"`sweep.table` row {line} of {path.name} must have one cell for each of the columns {listed(names)}, but has "
                f"{len(row)} cells: {shorten(','.join(row))!r}. Remove what is too much; a decimal point is '.', not ','."
            )
            continue
        for name, cell in zip_longest(names, row, fillvalue=""):
            if (problem := wrong_cell(cell, nominal[name].dtype.kind)) is not None:
                yield f"`sweep.table` row {line}, column {name!r} of {path.name} {problem}"


def wrong_cell(cell: str, kind: str) -> str | None:
    """What is wrong with a cell, from "must" on."""
    found = as_number(cell)
    wanted = "true or false, as the nominal value is" if kind == "b" else "a number"
    remedy = "Mend the cell, or remove the row."
    if not cell:
        return f"must be {wanted}, but is missing. Fill the cell, or remove the row."
    if found is None and re.fullmatch(r"[-+]?\d*,\d+", cell):
        return f"must be {wanted}, but is text {cell!r}. Write the decimal point as '.'."
    if found is None or isinstance(found, bool) != (kind == "b"):
        return f"must be {wanted}, but is {shown(cell if found is None else found)}. {remedy}"
    if kind == "i" and isinstance(found, int) and not -(2**63) <= found < 2**63:
        return f"must fit in 64 bits, but is {shown(found)}. {float_remedy(found)}"
    return (
        None
        if math.isfinite(float(cell) if kind != "b" else 0)
        else f"must be finite, but is {shorten(cell)}. {remedy}"
    )


def as_number(cell: str) -> bool | int | float | None:
    """What a cell of a CSV file says; None for text."""
    if cell.lower() in TRUTHS:
        return cell.lower() == "true"
    for read in (int, float):
        try:
            return read(cell)
        except ValueError:
            continue
    return None
