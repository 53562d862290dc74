"""Values as computed ⇄ values as stored: pure NumPy and plain JSON, no Zarr.

In: an array with the dtype that JAX computed, or a tree of Python values. Out: an array in which a missing value differs from every
value, or strict JSON. Back again, exactly.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import StoreError

_WIDER = {1: 2, 2: 4, 4: 8, 8: 8}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Encoding:
    """How one array is stored. Static.

    | computed        | stored              | missing                             | in xarray                          |
    |-----------------|---------------------|-------------------------------------|------------------------------------|
    | float, complex  | same dtype          | NaN, NaN + NaN i                    | same dtype                         |
    | bfloat16        | float32             | NaN                                 | float32                            |
    | int (maskable)  | int, one size wider | minimum (signed), maximum (unsigned)| float64 (float32 from 8 bits), NaN |
    | bool (maskable) | int8                | -1                                  | float32: 0, 1 or NaN               |
    | int, bool       | same dtype          | none                                | same dtype                         |

    Integers are widened so that no value they can take means "missing": the largest `uint8`, or a word of a PRNG key, is data.
    64-bit integers cannot be widened: there the extreme is taken from the data, and xarray, which masks in float64, shows those
    beyond 2**53 rounded. `decode` gives all of them exactly.
    """

    logical: np.dtype[Any]
    """The dtype of the values as computed and as read back."""

    stored: np.dtype[Any]
    """The dtype on disk."""

    fill: Any
    """What stands on disk where nothing was written or the sample failed."""

    attributes: dict[str, Any]
    """CF attributes that the encoding needs."""


def encoding(dtype: np.dtype[Any], maskable: bool, name: str) -> Encoding:
    """How values of `dtype` are stored; `maskable` ones can be missing, one by one.

    Raises:
        StoreError: `dtype` has no counterpart in the store.
    """
    if dtype.name == "bfloat16":
        return Encoding(np.dtype(np.float32), np.dtype(np.float32), math.nan, {"computed_as": "bfloat16"})
    if dtype.kind not in "fciub" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise StoreError(
            f"output {name!r} must be made of numbers (float, complex, integer or boolean, at most 64 bits each part), but its "
            f"dtype is {dtype.name!r}. Convert it in its stage; a PRNG key with `jax.random.key_data`."
        )
    dtype = dtype.newbyteorder("=")
    if dtype.kind in "fc":
        return Encoding(dtype, dtype, math.nan if dtype.kind == "f" else complex(math.nan, math.nan), {})
    if dtype.kind == "b":
        return _boolean(dtype, maskable)
    stored = np.dtype(f"{dtype.kind}{_WIDER[dtype.itemsize]}") if maskable else dtype
    fill = _extreme(stored)
    return Encoding(dtype, stored, fill, {"_FillValue": fill} if maskable else {})


def encode(values: np.ndarray, how: Encoding, missing: np.ndarray | None = None) -> np.ndarray:
    """The stored form of `values`; `missing` (boolean, over the leading dimension) marks what is to be read as missing."""
    if missing is None or not missing.any():
        return np.asarray(values, how.stored)
    masked = np.array(values, how.stored)
    masked[missing] = how.fill
    return masked


def decode(values: np.ndarray, how: Encoding) -> np.ndarray:
    """The values as computed; the missing ones are NaN, the extreme of an integer (as the fill value is), or False."""
    if how.logical == how.stored:
        return values
    if how.logical.kind == "b":
        return np.asarray(values == 1)
    return np.where(values == how.fill, _extreme(how.logical), values).astype(how.logical)


def _boolean(dtype: np.dtype[Any], maskable: bool) -> Encoding:
    # xarray reads its own mark for booleans (`dtype: bool`) with the missing ones as True: the flags of CF have no such trap.
    if not maskable:
        return Encoding(dtype, dtype, False, {})
    flags = {"_FillValue": -1, "flag_values": [0, 1], "flag_meanings": "false true"}
    return Encoding(dtype, np.dtype(np.int8), -1, flags)


def _extreme(dtype: np.dtype[Any]) -> int:
    limits = np.iinfo(dtype)
    return int(limits.min) if dtype.kind == "i" else int(limits.max)


def to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as strict JSON: NaN and infinities become `{"$float": "nan"}`, NumPy values, paths and dates plain ones.

    Raises:
        StoreError: a value has no JSON form; every such key is named.
    """
    problems: list[str] = []
    plain = _plain(values, "", problems)
    if problems:
        raise StoreError(problems)
    return dict(plain)


def from_json(value: Any) -> Any:
    """The inverse of `to_json`, as far as JSON has the types: `{"$float": "inf"}` becomes a float again, at any depth."""
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
    for plain in (int, str):
        if isinstance(value, plain):
            return plain.__str__(value) if plain is str else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    problems.append(
        f"attribute {key!r} of the store must be text, a number, a list or a mapping, but it is {value!r} "
        f"({type(value).__name__}). Convert it before it is stored."
    )
    return None
