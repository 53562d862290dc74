"""Results as computed ⇄ results as stored: dtypes, chunks and attributes, in pure NumPy and plain JSON.

In: the `Layout` of a run, arrays with the dtypes that JAX computed, trees of Python values. Out: arrays in which what
is missing differs from every value, chunks of which each belongs to one block, strict JSON; and back again.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.chunks import Blocks
from engine.errors import StoreError, listed
from engine.status import STATUS, flag_meanings, flag_values

LARGEST_CHUNK = 2**30
"""Bytes above which a stored chunk is split along its trailing dimensions."""

CF_ENCODING = {"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "dtype", "coordinates"}
"""Attributes by which xarray decodes an array: the store's own."""

_WIDER = {1: 2, 2: 4, 4: 8, 8: 8}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Variable:
    """One array of the store. Static."""

    name: str
    """A plain name; dots are allowed."""

    dims: tuple[str, ...]
    """All dimensions, the sweep's first if swept."""

    shape: tuple[int, ...]
    """The full shape."""

    dtype: np.dtype[Any]
    """As computed: float, complex, integer or boolean."""

    swept: bool
    """Has a value for each sample, and carries the sweep's dimensions (none for a single evaluation)."""

    attributes: dict[str, Any] = field(default_factory=dict)
    """Units, description and the like."""

    coordinate: bool = False
    """Opens in xarray as a coordinate; never masked, so that integers stay integers."""


@dataclass(frozen=True)
class Layout:
    """What a store holds and how it is cut. Static."""

    dims: tuple[str, ...]
    """The sweep's dimensions; `()` for a single evaluation."""

    blocks: Blocks
    """One task writes one block: one stored chunk of each swept variable, or one shard. Trailing dimensions are kept
    whole, or split where the chunk would pass 1 GiB."""

    variables: tuple[Variable, ...]
    """Everything but `status`."""

    compression: Any = "auto"
    """`auto` (LZ4 after a byte shuffle), `zstd` (level 3), `{zstd: 1..22}` or `none`."""

    inner: tuple[int, ...] | None = None
    """If sharded: samples of a stored chunk along each sweep dimension; divides the block, which is the shard."""

    vocabulary: dict[str, int] = field(default_factory=lambda: dict(STATUS))
    """The codes of `status`."""

    @property
    def status(self) -> Variable:
        """The array that says of each sample what became of it."""
        flags = {"flag_values": flag_values(self.vocabulary), "flag_meanings": flag_meanings(self.vocabulary)}
        attributes = {"long_name": "what became of the sample", **flags}
        return Variable("status", self.dims, self.blocks.shape, np.dtype(np.int8), True, attributes)


@dataclass(frozen=True)
class Encoding:
    """How one array is stored. Static.

    | computed       | stored         | missing                           | in xarray                        |
    |----------------|----------------|-----------------------------------|----------------------------------|
    | float, complex | same dtype     | NaN, NaN + NaN i                  | same dtype                       |
    | bfloat16       | float32        | NaN                               | float32                          |
    | int            | one size wider | minimum if signed, maximum if not | float64 (8 bits: float32) or NaN |
    | bool           | int8           | -1                                | float32: 0, 1 or NaN             |

    Integers and booleans of a coordinate are never missing and keep their dtype.
    Integers are widened so that no value that they can take means "missing": the largest `uint8`, or a word of a PRNG
    key, is data. Those of 64 bits cannot be: there the extreme is lost to the data. xarray masks in float64, so that it
    rounds what lies beyond 2**53, and masks what it rounds to the extreme; `decode` is exact.
    """

    logical: np.dtype[Any]
    """The dtype of the values as computed and as read back."""

    stored: np.dtype[Any]
    """The dtype on disk."""

    fill: Any
    """What stands on disk where nothing was written or the sample failed."""

    attributes: dict[str, Any]
    """CF attributes that the encoding needs."""


def encoding(variable: Variable) -> Encoding:
    """How a variable is stored.

    Raises:
        StoreError: its dtype has no counterpart in the store.
    """
    dtype = np.dtype(variable.dtype)
    if variable.name == "status":
        return Encoding(dtype, dtype, STATUS["pending"], {})
    if dtype.name == "bfloat16":
        return Encoding(np.dtype(np.float32), np.dtype(np.float32), math.nan, {"computed_as": "bfloat16"})
    if dtype.kind not in "fciub" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise StoreError(
            f"output {variable.name!r} must be floats, complex numbers, integers or booleans of at most 64 bits, but "
            f"is {dtype.name!r}. Convert it in its stage; a PRNG key with `jax.random.key_data`."
        )
    return _number(dtype.newbyteorder("="), not variable.coordinate)


def _number(dtype: np.dtype[Any], maskable: bool) -> Encoding:
    if dtype.kind in "fc":
        return Encoding(dtype, dtype, math.nan if dtype.kind == "f" else complex(math.nan, math.nan), {})
    if dtype.kind == "b" and maskable:
        # xarray's own mark for booleans (`dtype: bool`) would read a missing one as True.
        flags = {"_FillValue": -1, "flag_values": [0, 1], "flag_meanings": "false true"}
        return Encoding(dtype, np.dtype(np.int8), -1, flags)
    if not maskable:
        return Encoding(dtype, dtype, False if dtype.kind == "b" else _extreme(dtype), {})
    stored = np.dtype(f"{dtype.kind}{_WIDER[dtype.itemsize]}")
    return Encoding(dtype, stored, _extreme(stored), {"_FillValue": _extreme(stored)})


def _extreme(dtype: np.dtype[Any]) -> int:
    limits = np.iinfo(dtype)
    return int(limits.min) if dtype.kind == "i" else int(limits.max)


def encode(values: np.ndarray, how: Encoding, missing: np.ndarray | None = None) -> np.ndarray:
    """The stored form of `values`; `missing` (boolean, over the leading dimension) marks what is not a value."""
    if missing is None or not missing.any():
        return np.asarray(values, how.stored)
    masked = np.array(values, how.stored)
    masked[missing] = how.fill
    return masked


def decode(values: np.ndarray, how: Encoding) -> np.ndarray:
    """The values as computed; the missing ones are NaN, the minimum (unsigned: maximum) of an integer, or False."""
    if how.logical == how.stored:
        return values
    if how.logical.kind == "b":
        return np.asarray(values == 1)
    return np.where(values == how.fill, _extreme(how.logical), values).astype(how.logical)


def chunks_and_shards(variable: Variable, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The shape of a stored chunk, and of a shard if any; both lie in one block."""
    lead = tuple(max(1, n) for n in layout.blocks.block) if variable.swept else ()
    rest = [max(1, n) for n in variable.shape[len(lead) :]]
    if lead and layout.inner and variable.name != "status":
        return (*layout.inner, *rest), (*lead, *rest)
    itemsize = encoding(variable).stored.itemsize
    while rest and max(rest) > 1 and itemsize * math.prod((*lead, *rest)) > LARGEST_CHUNK:
        longest = rest.index(max(rest))
        rest[longest] = -(-rest[longest] // 2)
    return (*lead, *rest), None


def check(layout: Layout) -> None:
    """Refuse a layout that Zarr or xarray could not open again.

    Raises:
        StoreError: with every problem found.
    """
    names = [v.name for v in layout.variables]
    twice = sorted({n for n in names if names.count(n) > 1})
    problems = [f"output {n!r} must have a name of its own, but there are two. Rename one." for n in twice]
    for variable in layout.variables:
        problems += _problems_of(variable, layout)
        with _collected(problems):
            encoding(variable)
    problems += _conflicting_sizes(layout)
    if layout.inner and any(b % i for b, i in zip(layout.blocks.block, layout.inner, strict=True)):
        problems.append(f"`store.shard` must hold whole chunks, but {layout.inner} does not cut {layout.blocks.block}.")
    if problems:
        raise StoreError(problems)


def _problems_of(variable: Variable, layout: Layout) -> Iterator[str]:
    name, dims, sweep = variable.name, variable.dims, len(layout.dims)
    if "/" in name or not name.strip(".") or name.startswith("__") or name == "zarr.json":
        yield f"output {name!r} must have the name of a folder: no slash, no leading '__'. Rename it in `outputs`."
    if name == "status" or "status" in dims:
        yield f"output {name!r} must leave the name 'status' to the status of the samples. Rename it in `outputs`."
    if variable.coordinate and len(name.split()) != 1:
        yield f"coordinate {name!r} must be one word. Rename it in `coords`."
    if len(dims) != len(variable.shape) or len(set(dims)) != len(dims):
        yield f"output {name!r} must have one `dims` name for each axis of {variable.shape}, but has {list(dims)}."
    if variable.swept and (dims[:sweep], variable.shape[:sweep]) != (layout.dims, layout.blocks.shape):
        yield f"output {name!r} must begin with the sweep's dimensions {list(layout.dims)}, but has {list(dims)}."
    if taken := CF_ENCODING & set(variable.attributes):
        yield f"output {name!r} must leave the attributes {listed(sorted(taken))} to the store. Rename them."


def _conflicting_sizes(layout: Layout) -> Iterator[str]:
    found = dict(zip(layout.dims, layout.blocks.shape, strict=True))
    where = dict.fromkeys(layout.dims, "the sweep")
    for variable in layout.variables:
        for dim, size in zip(variable.dims, variable.shape, strict=False):
            if found.setdefault(dim, size) != size:
                yield (
                    f"dimension {dim!r} must have one size, but it is {found[dim]} in {where[dim]} and {size} in "
                    f"{variable.name!r}. Give one of them another name in `dims`."
                )
            where.setdefault(dim, repr(variable.name))


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        problems += error.problems


def to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as strict JSON: NaN and infinities as `{"$float": "nan"}`; NumPy values, paths, dates as plain ones.

    Raises:
        StoreError: a value has no JSON form; every such key is named.
    """
    problems: list[str] = []
    plain = _plain(values, "", problems)
    if problems:
        raise StoreError(problems)
    return dict(plain)


def from_json(value: Any) -> Any:
    """The inverse of `to_json`, as far as JSON has the types: `{"$float": "inf"}` is a float again, at any depth."""
    if isinstance(value, Mapping):
        if len(value) == 1 and str(value.get("$float")) in _FLOATS:
            return _FLOATS[str(value["$float"])]
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any, key: str, problems: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{key}.{k}" if key else str(k), problems) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, f"{key}[{i}]", problems) for i, item in enumerate(_ordered(value))]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), key, problems)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _scalar(value, key, problems)


def _ordered(values: Iterable[Any]) -> Iterable[Any]:
    # A set has no order of its own, and the same run must write the same bytes.
    return sorted(values, key=repr) if isinstance(values, set | frozenset) else values


def _scalar(value: Any, key: str, problems: list[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    problems.append(
        f"attribute {key!r} of the store must be text, a number, a list or a mapping, but it is {value!r} "
        f"({type(value).__name__}). Convert it before it is stored."
    )
    return None
