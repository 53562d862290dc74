"""A CSV file or a Zarr store → its columns, by name.

In: the path of `optimize.data`. Out: a function from a name to the numbers of that column (or array); one that is missing, no number or
not finite is refused with the key that asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.axes import MOST_PROBLEMS, Array, shorten
from engine.errors import ConfigError, UserError, listed, nearest
from engine.store import arrays_at
from engine.tables import beside, rows_of, wrong_cell

DATA = "optimize.data"

Columns = Callable[[str, str], Array]
"""A column (or array) of the file as float64, given the key of the config that asks for it and its name."""


def columns_of(path: Path) -> Columns:
    """A reader of a table's columns or a store's arrays."""
    if path.is_file():
        return table(path)
    if not path.exists():
        raise ConfigError(f"`{DATA}.file` must be a CSV file or a Zarr store, but {path} is not there.{beside(path)}")
    with whole(path):
        arrays = arrays_at(path)
    if arrays is None:
        raise ConfigError(
            f"`{DATA}.file` must be a CSV file or a Zarr store, but {path} is a folder without a Zarr store.{beside(path)}"
        )

    def read(key: str, name: str) -> Array:
        if name not in arrays:
            raise ConfigError(absent(key, name, path, "array", arrays))
        packed = {"scale_factor", "add_offset"} & set(arrays[name].attrs)
        if packed:
            raise ConfigError(
                f"{key} must name an array of plain numbers, but {name!r} is packed: it has {listed(sorted(packed))}. Save it unpacked."
            )
        with whole(path):
            values = np.asarray(arrays[name])
        return checked_array(key, name, values)

    return read


@contextlib.contextmanager
def whole(path: Path) -> Iterator[None]:
    """Turn what Zarr and its codecs raise while they read into a message."""
    try:
        yield
    except (OSError, KeyError, IndexError, RuntimeError, ValueError, TypeError, EOFError) as error:
        raise ConfigError(
            f"`{DATA}.file` must be a Zarr store that is whole, but {path} cannot be read "
            f"({type(error).__name__}: {shorten(str(error))}). Take it from a copy."
        ) from error


def checked_array(key: str, name: str, values: Array) -> Array:
    """An array of a store as float64, finite everywhere."""
    if values.dtype.kind not in "iuf":
        raise ConfigError(f"{key} must name an array of real numbers, but {name!r} holds {values.dtype}. Name another.")
    if not values.size:
        raise ConfigError(f"{key} must name an array with values, but {name!r} has shape {values.shape}. Name another.")
    wrong = np.argwhere(~np.isfinite(values))
    if wrong.size:
        raise ConfigError(
            f"{key} must name an array that is finite everywhere, but {name!r} is {values[tuple(wrong[0])]:g} at "
            f"{wrong[0].tolist()}, and not finite at {len(wrong)} places in all. Leave out what was not measured."
        )
    return values.astype(np.float64)


def table(path: Path) -> Columns:
    """A reader of the columns of a CSV file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(rows_of(path, file, f"{DATA}.file"))
    except UnicodeDecodeError:
        raise ConfigError(f"`{DATA}.file` must be UTF-8 text, but {path.name} is not. Save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(
            f"`{DATA}.file` must be readable, but {path.name} is not: {error.strerror}. Check its permissions."
        ) from None
    except UserError as error:
        raise ConfigError(error.problems) from None
    if not rows:
        raise ConfigError(
            f"`{DATA}.file` must have a header row that names columns, but {path.name} is empty. Add one."
        )
    names, body = rows[0][1], rows[1:]
    if not body:
        raise ConfigError(f"`{DATA}.file` must have a row for each point, but {path.name} has a header only. Add rows.")

    def read(key: str, name: str) -> Array:
        if names.count(name) != 1:
            if name in names:
                raise ConfigError(
                    f"{key} must name one column, but {path.name} has {names.count(name)} columns {name!r}. Rename one."
                )
            raise ConfigError(absent(key, name, path, "column", names))
        at = names.index(name)
        cells = [(line, row[at] if at < len(row) else "") for line, row in body]
        wrong = [
            f"{key} row {line}, column {name!r} of {path.name} {problem}"
            for line, cell in cells
            if (problem := wrong_cell(cell, "f")) is not None
        ]
        more = len(wrong) - MOST_PROBLEMS
        if wrong:
            rest = [f"{key} has {more} more problems of this kind in {path.name}."] if more > 0 else []
            raise ConfigError(wrong[:MOST_PROBLEMS] + rest)
        return np.array([float(cell) for _, cell in cells])

    return read


def absent(key: str, name: str, path: Path, kind: str, names: Any) -> str:
    """The message for a column or array that is not there."""
    return (
        f"{key} must name {'an array' if kind == 'array' else 'a column'} of {path.name}, but there is no {kind} "
        f"{shorten(repr(name))}.{nearest(name, names)} There are {listed(names)}."
    )
