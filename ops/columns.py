"""A table of measured data on disk → columns of numbers, each with the row that it stands in. CSV and Zarr."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

MISSING = ("", "nan", "na", "n/a", "null", "none")
"""What a missing value may be written as, in small letters."""


@dataclass(frozen=True)
class Rows:
    """Where the rows of a table stand. Static; without a file, positions in a list."""

    file: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The table in words."""
        return self.file or "the forcing"

    def place(self, i: int) -> str:
        """A row in words; in a CSV file the header is row 1, as in an editor."""
        return f"row {self.numbers[i]}" if self.file else f"knot {i}"

    def kept(self, keep: Any) -> Rows:
        """Those of the rows that are kept."""
        return replace(self, numbers=tuple(n for n, k in zip(self.numbers, keep, strict=True) if k))


def read_columns(path: str, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """The columns with some names, as float64, NaN where a value is missing.

    Raises:
        ValueError: the file is not there, of another kind, has no such column, or a cell is no number.
    """
    file = Path(path)
    readers = {".csv": read_csv, ".zarr": read_zarr}
    if file.suffix not in readers:
        remedy = " Write it as CSV: pandas.read_parquet(path).to_csv(...)." if file.suffix in (".parquet", ".pq") else ""
        raise ValueError(f"`path` must end in .csv or .zarr, but is {path!r}.{remedy}")
    if not file.exists():
        raise ValueError(f"`path` must be a file that is there, but there is no {path!r} in {Path.cwd()}.")
    return readers[file.suffix](file, names)


def read_csv(file: Path, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """Columns of a CSV file with a header row."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream)
        header = [cell.strip() for cell in next(reader, [])]
        places = [_place(name, header, file) for name in names]
        columns: list[list[float]] = [[] for _ in names]
        numbers = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            numbers.append(reader.line_num)
            if len(cells) != len(header):
                raise ValueError(
                    f"`path` must have {len(header)} cells in every row, as its header, but row {reader.line_num} of {file.name} has "
                    f"{len(cells)}."
                )
            for column, name, i in zip(columns, names, places, strict=True):
                column.append(_number(cells[i].strip(), name, reader.line_num, file))
    return [np.asarray(column, float) for column in columns], Rows(file.name, tuple(numbers))


def _place(name: str, header: Sequence[str], file: Path) -> int:
    """The position of a column."""
    if header.count(name) != 1:
        found = f"{header.count(name)} of that name" if name in header else "none of that name"
        close = difflib.get_close_matches(name, header, 1)
        hint = f" Did you mean {close[0]!r}?" if close and close[0] != name else ""
        raise ValueError(
            f"`path` must have one column {name!r}, but {file.name} has {found}.{hint} There are {', '.join(header) or 'none'}."
        )
    return header.index(name)


def _number(cell: str, name: str, row: int, file: Path) -> float:
    """The number in a cell."""
    if cell.lower() in MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"`{name}` must be a number, but row {row} of {file.name} has {cell!r}.") from None


def read_zarr(file: Path, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """Arrays of one dimension in a Zarr store; the rows are counted from 0."""
    import xarray  # not needed by who has no such table, and slow to import

    with xarray.open_zarr(str(file)) as data:
        there = sorted(map(str, data.variables))
        columns = []
        for name in names:
            if name not in data.variables:
                _place(name, there, file)
            array = data[name]
            if array.ndim != 1 or array.dtype.kind not in "fiu":
                raise ValueError(
                    f"`{name}` must be an array of numbers along one dimension, but in {file.name} is {array.dtype} with the shape "
                    f"{array.shape}."
                )
            columns.append(np.asarray(array.values, float))
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ValueError(f"`time` and `value` must be of one length, but in {file.name} have {sorted(lengths)}.")
    return columns, Rows(file.name, tuple(range(len(columns[0]))))
