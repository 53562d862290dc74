"""A CSV file → the columns of a sweep.

In: a file whose header names parameters. Out: a column for each; a cell that is no number of the parameter's kind is refused with its row.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from engine.axes import MOST_PROBLEMS, Array, as_column, float_remedy, require, shorten, shown
from engine.errors import SweepError, listed, nearest

BATCH = 2**16
"""Rows of a table that are text at a time."""

TRUTHS = {"true", "false"}
"""What a cell of a table may say, in any case, for a boolean parameter."""


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


def rows_of(path: Path, file: Iterable[str], key: str = "sweep.table") -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with its line number, without the empty cells at its end.

    `key` is the key of the config that names the file.
    """
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
            f"`{key}` row {reader.line_num} of {path.name} must be comma-separated values, but cannot be read: {error}. "
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
