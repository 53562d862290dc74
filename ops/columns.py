"""A table of measured data on disk → columns of numbers, each with the row that it stands in. CSV, Parquet and Zarr."""

from __future__ import annotations

import csv
import difflib
import sys
from collections.abc import Mapping, Sequence
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
    numbers: Sequence[int] = ()
    ends: tuple[float, float] | None = None
    """The first and the last time, where a forcing knows them."""

    @property
    def name(self) -> str:
        """The table in words."""
        return self.file or "the forcing"

    def place(self, i: int) -> str:
        """A row in words; in a CSV file the header is row 1, as in an editor."""
        return f"row {self.numbers[i]}" if self.file else f"knot {i}" if i >= 0 else "its last knot"

    def kept(self, keep: Any) -> Rows:
        """Those of the rows that are kept."""
        return self if all(keep) else replace(self, numbers=tuple(np.asarray(self.numbers)[keep].tolist()))


def read_columns(path: str, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """The columns with some names, as float64, NaN where a value is missing.

    Raises:
        ValueError: the file is not there, of another kind, has no such column, or a cell is no number.
    """
    readers = {".csv": read_csv, ".parquet": read_parquet, ".zarr": read_zarr}
    if Path(path).suffix not in readers:
        raise ValueError(f"`path` must end in {', '.join(readers)}, but is {path!r}.")
    # The first entry of the import path is the folder of a config, or of a script.
    folders = dict.fromkeys((Path(sys.path[0]).resolve(), Path.cwd()))
    file = next((folder / path for folder in folders if (folder / path).exists()), None)
    if file is None:
        raise ValueError(
            f"`path` must be a file that is there, but there is no {path!r} in {' or '.join(map(str, folders))}."
        )
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
    in_order = range(2, 2 + len(numbers))  # quick to hash
    rows = Rows(file.name, in_order if numbers == list(in_order) else tuple(numbers))
    return [np.asarray(column, float) for column in columns], rows


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


def read_parquet(file: Path, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """Columns of a Parquet file; the rows are counted from 0."""
    import pandas  # as xarray below: not needed by who has no such table, and slow to import

    try:
        data = pandas.read_parquet(file)
    except ImportError:
        raise ValueError(
            f"`path` must be a CSV file or a Zarr store where pyarrow is not installed, but is {file.name}. Install pyarrow."
        ) from None
    return numbered(file, names, {str(name): data[name].to_numpy() for name in data.columns})


def read_zarr(file: Path, names: Sequence[str]) -> tuple[list[Any], Rows]:
    """Arrays of one dimension in a Zarr store; the rows are counted from 0."""
    import xarray

    with xarray.open_zarr(str(file), consolidated=False) as data:
        return numbered(file, names, data.variables)


def numbered(file: Path, names: Sequence[str], data: Mapping[Any, Any]) -> tuple[list[Any], Rows]:
    """The arrays with some names."""
    columns = []
    for name in names:
        _place(name, sorted(map(str, data)), file)
        array = data[name]
        if array.ndim != 1 or array.dtype.kind not in "fiu":
            raise ValueError(
                f"`{name}` must be an array of numbers along one dimension, but in {file.name} is {array.dtype} with the shape "
                f"{array.shape}."
            )
        columns.append(np.asarray(array, float))
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ValueError(f"`time` and `value` must be of one length, but in {file.name} have {sorted(lengths)}.")
    return columns, Rows(file.name, range(len(columns[0])))
