"""Blocks of results → one Zarr v3 group → xarray: the only home of Zarr.

In: a `Layout` (what is stored, and how the sweep is cut), then each block with the status of its samples. Out: a store that
`xarray.open_zarr(path)` opens without help at any moment of its life.

Three rules make a kill harmless. A store appears whole or not at all: it is built beside its place, then renamed into it. Every
stored chunk (or shard) belongs to one block, and Zarr replaces each file by a rename. A block's status is written after its data,
so that data counts only where the status says `ok`. (A kill, not a power cut: nothing is forced to the disk.)
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

from engine.chunks import Blocks
from engine.encoding import Encoding, decode, encode, encoding, from_json, to_json
from engine.errors import StoreError, listed
from engine.status import STATUS, flag_meanings, flag_values

if TYPE_CHECKING:
    import xarray

FORMAT = "diffsim-engine/1"
RESERVED = ("layout", "coordinates")
"""Attributes of the group that belong to the store itself."""

HALF_MADE = {"layout": {"format": FORMAT, "half_made": True}}
LARGEST_CHUNK = 2**30
LEFTOVER_SECONDS = 600
CF_ENCODING = frozenset({"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "dtype", "coordinates"})


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
    """As computed: float, complex, integer or boolean; `encoding` says how it is stored."""

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
    """One task writes one block, which is one stored chunk of each swept variable (with its trailing dimensions whole, unless
    that would pass 1 GiB: then they are split), or one shard."""

    variables: tuple[Variable, ...]
    """Everything but `status`."""

    compression: Any = "auto"
    """"auto" (LZ4 after a byte shuffle: near the speed of no compression), "zstd" (level 3), {"zstd": 1..22} or "none"."""

    inner: tuple[int, ...] | None = None
    """If sharded: samples of a stored chunk along each sweep dimension; divides the block, which is the shard."""

    vocabulary: dict[str, int] = field(default_factory=lambda: dict(STATUS))
    """The codes of `status`."""


def create(
    path: str | Path,
    layout: Layout,
    attributes: Mapping[str, Any],
    *,
    replace: bool = False,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Store:
    """Make an empty store: every sample pending.

    On a local file system the store appears at `path` in one step. On a remote one ("://" in `path`, through fsspec) its
    attributes are written last, and a store without them counts as none.

    Args:
        path: where the store will be; its parents are made.
        layout: what it will hold.
        attributes: what is known of the run; see `to_json` for the values that are allowed.
        replace: put it in the place of a store of ours; anything else that is there is refused and never touched.
        constants: values of variables that are not swept, there from the first moment.

    Raises:
        StoreError: the layout or the attributes cannot be stored, or the place is taken or cannot be written.
    """
    check(layout)
    root = _root_attributes(layout, attributes)
    place = _place(path)
    with _explained(path):
        if _group_at(place, path) is not None and not replace:
            raise StoreError(
                f"`store.path` must be free, but {path} holds the results of a run. Run without --fresh to go on with it, "
                "with --fresh to replace it, or choose another store.path."
            )
        if isinstance(place, str):
            _build(place, layout, root, constants or {})
        else:
            _create_local(place, layout, root, constants or {})
    return _opened(path)


def open_existing(path: str | Path) -> Store | None:
    """The store at `path`, or None if there is none yet (nothing, an empty folder, or what a crash left half made).

    Raises:
        StoreError: something else is there.
    """
    with _explained(path):
        group = _group_at(_place(path), path)
    return None if group is None else Store(path, group)


def open_dataset(path: str | Path) -> xarray.Dataset:
    """The store as a lazy xarray dataset, its attributes decoded.

    Integers and booleans that can be missing open as floats, as xarray masks them; integers beyond 2**53 are then rounded, and
    exact through `Store.read`.

    Raises:
        StoreError: there is no store of ours at `path`.
    """
    import xarray as xr

    store = _opened(path)
    dataset = xr.open_zarr(cast(Any, store.group.store.with_read_only(True)), chunks={})
    dataset.attrs = {k: from_json(v) for k, v in dataset.attrs.items() if k not in RESERVED}
    for array in dataset.variables.values():
        array.attrs = {k: from_json(v) for k, v in array.attrs.items()}
    return dataset


class Store:
    """A store that is open for reading and writing; made by `create` and `open_existing`.

    Threads and processes may write different blocks at once. Pickles as its path. Every call has reached the store when it
    returns: there is nothing to flush or close.
    """

    def __init__(self, path: str | Path, group: zarr.Group) -> None:
        self.path = str(path)
        self.group = group
        self.layout = _layout_of(group)
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._encodings = {v.name: _encoding(v) for v in (*self.layout.variables, _status(self.layout))}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (str(_place(self.path)),)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is known of the run."""
        return {k: from_json(v) for k, v in self.group.metadata.attributes.items() if k not in RESERVED}

    @property
    def blocks(self) -> Blocks:
        """How the sweep is cut."""
        return self.layout.blocks

    @property
    def dims(self) -> tuple[str, ...]:
        """The sweep's dimensions."""
        return self.layout.dims

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Everything but `status`."""
        return self.layout.variables

    def status(self) -> np.ndarray:
        """The status of every sample (int8, of the sweep's shape)."""
        return self.read("status")

    def read(self, name: str, region: tuple[slice, ...] | None = None) -> np.ndarray:
        """Values as computed, of the whole array or a region of its leading dimensions; see `decode` for what is missing."""
        stored = np.asarray(self._array(name)[(*(region or ()), ...)])
        return decode(stored, self._encodings[name])

    def unfinished_blocks(self, retry: Collection[int] = ()) -> list[int]:
        """Blocks with a pending sample, or with one whose status is in `retry`."""
        wanted = np.isin(self.status(), [STATUS["pending"], *retry])
        return [number for number in self.blocks if wanted[self.blocks.region(number)].any()]

    def write_once(self, values: Mapping[str, np.ndarray]) -> None:
        """Write variables that are not swept, some or all of them, whole."""
        once = {v.name: v for v in self.variables if not v.swept}
        _check_names(values, set(values) & set(once))
        arrays = {name: _checked(array, once[name], once[name].shape) for name, array in values.items()}
        with _explained(self.path):
            for name, array in arrays.items():
                self._array(name)[...] = encode(array, self._encodings[name])

    def write_block(self, number: int, values: Mapping[str, np.ndarray], status: np.ndarray) -> None:
        """Write a block: first its data, then its status. What did not end well is masked.

        Args:
            number: which block.
            values: of each swept variable, `(samples, *rest)` in the C order of the block's region.
            status: int8 `(samples,)`.

        Raises:
            StoreError: the store cannot be written. Blocks written before are kept.
        """
        region = self.blocks.region(number)
        extent = tuple(s.stop - s.start for s in region)
        samples = math.prod(extent)
        swept = {v.name: v for v in self.variables if v.swept}
        _check_names(values, set(swept))
        arrays = {n: _checked(values[n], v, (samples, *v.shape[len(extent) :])) for n, v in swept.items()}
        status = _checked(status, _status(self.layout), (samples,))
        missing = status != STATUS["ok"]
        with _explained(self.path):
            for name, array in arrays.items():
                stored = encode(array, self._encodings[name], missing)
                self._array(name)[(*region, ...)] = stored.reshape(*extent, *array.shape[1:])
            self._array("status")[(*region, ...)] = status.reshape(extent)

    def update_attributes(self, **changes: Any) -> None:
        """Set attributes of the run, in one step that xarray sees at once. For one process at a time."""
        _check_reserved(changes)
        plain = to_json(changes)
        with self._lock, _explained(self.path):
            self.group = _fresh(self.group)
            self.group.update_attributes(plain)

    def add_variables(self, variables: Sequence[Variable]) -> None:
        """Add arrays to the layout, to be written later; xarray sees them at once. For one process at a time."""
        layout = replace(self.layout, variables=(*self.variables, *variables))
        check(layout)
        with self._lock, _explained(self.path):
            for variable in variables:
                _add_array(self.group, layout, variable)
            self.group = _consolidated(self.group, _own_attributes(layout))
        self.layout = layout
        self._encodings |= {v.name: _encoding(v) for v in variables}
        self._arrays.clear()

    def remove_leftovers(self) -> None:
        """Remove the files that killed writers left half written (no reader looks at them). Local stores only."""
        place = _place(self.path)
        if isinstance(place, Path):
            for file in place.rglob("*.partial"):
                with contextlib.suppress(OSError):
                    if time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
                        file.unlink()

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._arrays:
            # A block of zeros or NaN is an answer like any other: its chunk is written too.
            found = cast("zarr.Array[Any]", self.group[name])
            self._arrays[name] = found.with_config({"write_empty_chunks": True})
        return self._arrays[name]


def check(layout: Layout) -> None:
    """Refuse a layout that Zarr or xarray could not open again.

    Raises:
        StoreError: with every problem found.
    """
    problems = [p for v in layout.variables for p in _problems_of(v, layout)]
    names = [v.name for v in layout.variables]
    problems += [f"output {n!r} must be stored under a name of its own, but it is there twice." for n in sorted(set(names))
                 if names.count(n) > 1]  # fmt: skip
    problems += _conflicting_sizes(layout)
    if layout.inner and any(b % i for b, i in zip(layout.blocks.block, layout.inner, strict=True)):
        problems.append(f"`store.shard` must hold whole chunks, but {layout.inner} does not divide {layout.blocks.block}.")
    for attempt in (lambda: _compressor(layout.compression), *(lambda v=v: _encoding(v) for v in layout.variables)):
        try:
            attempt()
        except StoreError as error:
            problems += error.problems
    if problems:
        raise StoreError(problems)


def _problems_of(variable: Variable, layout: Layout) -> Iterator[str]:
    name, dims = variable.name, variable.dims
    if not name or "/" in name or name.strip(".") == "" or name.startswith("__") or name == "zarr.json":
        yield f"output {name!r} must have a name that can be a folder's, without slashes and leading '__'. Rename it in `outputs`."
    if name == "status" or "status" in dims:
        yield f"output {name!r} must leave the name 'status' to the status of the samples. Rename it in `outputs`."
    if variable.coordinate and len(name.split()) != 1:
        yield f"coordinate {name!r} must be one word. Rename it in `coords`."
    if len(dims) != len(variable.shape) or len(set(dims)) != len(dims):
        yield f"output {name!r} must have a dimension of its own for each axis of {variable.shape}, but `dims` is {list(dims)}."
    if variable.swept and (dims[: len(layout.dims)], variable.shape[: len(layout.dims)]) != (layout.dims, layout.blocks.shape):
        yield f"output {name!r} must begin with the sweep's dimensions {list(layout.dims)}, but has {list(dims)}."
    if taken := CF_ENCODING & set(variable.attributes):
        yield f"output {name!r} must leave the attributes {listed(sorted(taken))} to the store. Rename them."


def _conflicting_sizes(layout: Layout) -> Iterator[str]:
    found = dict(zip(layout.dims, layout.blocks.shape, strict=True))
    first = dict.fromkeys(layout.dims, "the sweep")
    for variable in layout.variables:
        for dim, size in zip(variable.dims, variable.shape, strict=False):
            if found.setdefault(dim, size) != size:
                yield (
                    f"dimension {dim!r} must have one size, but it is {found[dim]} in {first[dim]} and {size} in "
                    f"{variable.name!r}. Give one of them another name in `dims`."
                )
            first.setdefault(dim, repr(variable.name))


def _check_names(values: Mapping[str, Any], expected: Collection[str]) -> None:
    if set(values) != set(expected):
        raise ValueError(f"expected values of {listed(sorted(expected))}, got {listed(sorted(values))}")


def _check_reserved(attributes: Mapping[str, Any]) -> None:
    if taken := set(RESERVED) & set(attributes):
        raise ValueError(f"the attributes {listed(sorted(taken))} belong to the store")


def _checked(values: Any, variable: Variable, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or not np.can_cast(array.dtype, variable.dtype, "safe"):
        wanted = f"{variable.dtype.name}{list(shape)}"
        raise ValueError(f"{variable.name!r} must be {wanted}, but is {array.dtype.name}{list(array.shape)}")
    return array


def _status(layout: Layout) -> Variable:
    flags = {"flag_values": flag_values(layout.vocabulary), "flag_meanings": flag_meanings(layout.vocabulary)}
    attributes = {"long_name": "what became of the sample", **flags}
    return Variable("status", layout.dims, layout.blocks.shape, np.dtype(np.int8), True, attributes)


def _encoding(variable: Variable) -> Encoding:
    if variable.name == "status":
        return Encoding(variable.dtype, variable.dtype, STATUS["pending"], {})
    return encoding(np.dtype(variable.dtype), not variable.coordinate, variable.name)


def _root_attributes(layout: Layout, attributes: Mapping[str, Any]) -> dict[str, Any]:
    _check_reserved(attributes)
    return {**to_json(attributes), **_own_attributes(layout)}


def _own_attributes(layout: Layout) -> dict[str, Any]:
    """The attributes from which xarray knows the coordinates, and `_layout_of` the layout."""
    described = {
        "format": FORMAT,
        "dims": list(layout.dims),
        "shape": list(layout.blocks.shape),
        "block": list(layout.blocks.block),
        "inner": layout.inner and list(layout.inner),
        "compression": layout.compression,
        "vocabulary": layout.vocabulary,
        "variables": {
            v.name: {"dtype": _encoding(v).logical.name, "swept": v.swept, "coordinate": v.coordinate} for v in layout.variables
        },
    }
    return {"layout": described, "coordinates": " ".join(v.name for v in layout.variables if v.coordinate)}


def _layout_of(group: zarr.Group) -> Layout:
    found = cast(dict[str, Any], group.metadata.attributes["layout"])
    return Layout(
        tuple(found["dims"]),
        Blocks(tuple(found["shape"]), tuple(found["block"])),
        tuple(_variable_of(group, name, facts) for name, facts in found["variables"].items()),
        found["compression"],
        found["inner"] and tuple(found["inner"]),
        found["vocabulary"],
    )


def _variable_of(group: zarr.Group, name: str, facts: Mapping[str, Any]) -> Variable:
    metadata = cast(Any, group[name]).metadata
    dtype = np.dtype(facts["dtype"])
    ours = encoding(dtype, not facts["coordinate"], name).attributes
    attributes = {k: from_json(v) for k, v in metadata.attributes.items() if k not in ours}
    return Variable(name, metadata.dimension_names or (), metadata.shape, dtype, facts["swept"], attributes, facts["coordinate"])


def _compressor(compression: Any) -> BloscCodec | ZstdCodec | None:
    if compression == "none":
        return None
    if compression == "auto":
        return BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    level = 3 if compression == "zstd" else compression.get("zstd") if isinstance(compression, Mapping) else None
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= 22:
        raise StoreError(f"`store.compression` must be auto, none, zstd or {{zstd: 1..22}}, but it is {compression!r}.")
    return ZstdCodec(level=level)


def _build(place: Path | str, layout: Layout, root: dict[str, Any], constants: Mapping[str, np.ndarray]) -> None:
    """Make the group at `place`; until its last write it says that it is half made."""
    group = zarr.create_group(place, attributes=HALF_MADE, overwrite=isinstance(place, str))
    for variable in (*layout.variables, _status(layout)):
        _add_array(group, layout, variable)
    group = _consolidated(group, {})
    for variable in layout.variables:
        if variable.name in constants:
            array = _checked(constants[variable.name], variable, variable.shape)
            cast(Any, group[variable.name])[...] = encode(array, _encoding(variable))
    group.update_attributes(root)


def _add_array(group: zarr.Group, layout: Layout, variable: Variable) -> None:
    how = _encoding(variable)
    chunks, shards = _chunks(layout, variable, how.stored.itemsize)
    group.create_array(
        variable.name,
        shape=variable.shape,
        chunks=chunks,
        shards=shards,
        dtype=how.stored,
        fill_value=how.fill,
        compressors=_compressor(layout.compression),
        dimension_names=variable.dims,
        attributes={**to_json(variable.attributes), **how.attributes},
        overwrite=True,
    )


def _chunks(layout: Layout, variable: Variable, itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The stored chunk and the shard (if any): a block along the sweep, whole along the rest."""
    lead = layout.blocks.block if variable.swept else ()
    rest = [max(1, n) for n in variable.shape[len(lead) :]]
    block = tuple(max(1, n) for n in lead)
    if variable.swept and layout.inner and variable.name != "status":
        return (*layout.inner, *rest), (*block, *rest)
    while rest and max(rest) > 1 and itemsize * math.prod((*block, *rest)) > LARGEST_CHUNK:
        longest = rest.index(max(rest))
        rest[longest] = -(-rest[longest] // 2)
    return (*block, *rest), None


def _consolidated(group: zarr.Group, attributes: dict[str, Any]) -> zarr.Group:
    """Gather the metadata of all arrays in the group's, where xarray looks for it, and set attributes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        warnings.filterwarnings("ignore", message="Object at")
        gathered = zarr.consolidate_metadata(group.store, path=group.path)
    return gathered.update_attributes(attributes)


def _fresh(group: zarr.Group) -> zarr.Group:
    return zarr.open_group(group.store, path=group.path, mode="r+")


def _place(path: str | Path) -> Path | str:
    """Where the store is: a URL as given; a local path absolute and without links, so that a rename replaces the folder itself."""
    text = os.fspath(path).removeprefix("file://")
    return text if "://" in text else Path(text).expanduser().resolve()


def _opened(path: str | Path) -> Store:
    store = open_existing(path)
    if store is None:
        raise StoreError(f"there must be a store at {path}, but nothing is there. Check the path, or run the config first.")
    return store


def _group_at(place: Path | str, path: str | Path) -> zarr.Group | None:
    """Our group at `place`; None for nothing, an empty folder, or a half-made group of ours; anything else is refused."""
    if isinstance(place, Path) and place.exists() and not place.is_dir():
        raise StoreError(f"`store.path` must be a folder or free, but {path} is a file. Choose another path.")
    try:
        group = zarr.open_group(place, mode="r+")
    except FileNotFoundError:
        if isinstance(place, Path) and place.is_dir() and any(place.iterdir()):
            raise _not_ours(path) from None
        return None
    except (ValueError, TypeError, KeyError):
        raise _not_ours(path) from None
    layout = group.metadata.attributes.get("layout")
    if not isinstance(layout, Mapping) or layout.get("format") != FORMAT:
        raise _not_ours(path)
    return None if layout.get("half_made") else group


def _not_ours(path: str | Path) -> StoreError:
    return StoreError(
        f"`store.path` must be free or a store of this engine's (format {FORMAT}), but {path} holds something else, which is "
        "never replaced. Choose another path."
    )


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """Turn what the operating system refuses into a `StoreError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"`store.path`: no space left to write {path}. Free space and run the same command: finished chunks are kept."
            ) from error
        raise StoreError(
            f"`store.path` must be a place that can be read and written, but {path} is not: {error.strerror or error}. "
            "Mend its permissions, or choose another path."
        ) from error


def _create_local(place: Path, layout: Layout, root: dict[str, Any], constants: Mapping[str, np.ndarray]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    for stale in _stale(place):
        shutil.rmtree(stale, ignore_errors=True)
    new = _sibling(place, "partial")
    try:
        _build(new, layout, root, constants)
        _swap(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, place: Path) -> None:
    """Rename `new` to `place`; what `_group_at` has found there makes room first."""
    old = _sibling(place, "old")
    if place.exists():
        os.replace(place, old)
    try:
        os.replace(new, place)
    except OSError:
        if old.exists() and not place.exists():
            os.replace(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sibling(place: Path, kind: str) -> Path:
    """A hidden name beside `place`, with the process that made it."""
    return place.parent / f".{place.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.{kind}"


def _stale(place: Path) -> Iterable[Path]:
    """What processes that no longer run have left beside `place`."""
    for entry in place.parent.iterdir():
        if entry.name.startswith(f".{place.name}.") and entry.suffix in (".partial", ".old"):
            host, pid, _ = (*entry.stem.removeprefix(f".{place.name}.").rsplit("-", 2), "", "")[:3]
            if host == socket.gethostname() and pid.isdecimal() and not _runs(int(pid)):
                yield entry


def _runs(pid: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
