"""Blocks of results → one Zarr v3 group → xarray: the only home of Zarr.

In: a `Layout` (what is stored, and how the sweep is cut), then each block with the status of its samples. Out: a store
that `xarray.open_zarr(path)` opens without help at any moment of its life.

Three rules make a kill harmless. A store appears whole or not at all: it is built beside its place, then renamed into
it. Every stored chunk (or shard) belongs to one block, and Zarr replaces each file by a rename. A block's status is
written after its data, so that data counts only where the status says `ok`. (A kill, not a power cut: nothing is forced
to the disk.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
import shutil
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

from engine.chunks import Blocks
from engine.encoding import Layout as Layout
from engine.encoding import Variable as Variable
from engine.encoding import check, chunks_and_shards, decode, encode, encoding, from_json, to_json
from engine.errors import StoreError, UserError, listed
from engine.status import STATUS

if TYPE_CHECKING:
    import xarray

FORMAT = "diffsim-engine/1"
HALF_MADE = {"layout": {"format": FORMAT, "half_made": True}}

RESERVED = ("layout", "coordinates")
"""Attributes of the group that belong to the store itself."""

CHECKPOINTS = "checkpoints"
"""The group inside a store that holds the state of blocks that are being computed."""

LEFTOVER_SECONDS = 600
"""Age at which a file that is still half written has no writer any more."""


def create(
    path: str | Path,
    layout: Layout,
    attributes: Mapping[str, Any],
    *,
    replace: bool = False,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Store:
    """Make an empty store: every sample pending.

    On a local file system the store appears at `path` in one step. On a remote one ("://" in `path`, through fsspec)
    its attributes are written last, and a group without them counts as none; `replace` there deletes the old one first.

    Args:
        path: where the store will be; its parents are made.
        layout: what it will hold.
        attributes: what is known of the run; see `to_json` for the values that are allowed.
        replace: put it in the place of a store of ours; anything else that is there is refused and never touched.
        constants: values of variables that are not swept, there from the first moment.

    Raises:
        StoreError: the layout or the attributes cannot be stored, or the place is taken or cannot be written.
    """
    check_layout(layout)
    _check_reserved(attributes)
    root = {**to_json(attributes), **_own_attributes(layout)}
    place = _place(path)
    with _explained(path):
        if _group_at(place, path) is not None and not replace:
            raise StoreError(
                f"`store.path` must be free, but {path} holds the results of a run. Go on with that run, replace it "
                "with --fresh, or choose another store.path."
            )
        if isinstance(place, str):
            _build(place, layout, root, constants or {})
        else:
            with _new_folder(place, replace) as new:
                _build(new, layout, root, constants or {})
    return opened(path)


def check_layout(layout: Layout) -> None:
    """Raise a `StoreError` for what cannot be stored: a dtype, a name, a compression."""
    check(layout)
    _compressor(layout.compression)


def open_existing(path: str | Path) -> Store | None:
    """The store at `path`, or None if there is none yet: nothing, an empty folder, or what a crash left half made.

    Raises:
        StoreError: something else is there.
    """
    with _explained(path), _whole(path):
        group = _group_at(_place(path), path)
    return None if group is None else Store(path, group)


def open_dataset(path: str | Path) -> xarray.Dataset:
    """The store as a lazy xarray dataset, its attributes decoded.

    Integers and booleans that can be missing open as floats, since xarray masks them; integers beyond 2**53 are then
    rounded (`Store.read` is exact).

    Raises:
        StoreError: there is no store of ours at `path`.
    """
    import xarray as xr

    group = opened(path).group
    dataset: xr.Dataset = xr.open_zarr(cast(Any, group.store.with_read_only(True)), chunks={})
    dataset.attrs = {k: from_json(v) for k, v in dataset.attrs.items() if k not in RESERVED}
    for array in dataset.variables.values():
        array.attrs = {k: from_json(v) for k, v in array.attrs.items()}
    return dataset


def arrays_at(path: Path) -> dict[str, zarr.Array[Any]] | None:
    """The arrays of any Zarr group, by name, or the one array at `path`, by the name of its folder; read when they are used.

    None if nothing of Zarr's is there. Whatever Zarr raises for a damaged one is passed on.
    """
    try:
        found = zarr.open(str(path), mode="r")
    except (FileNotFoundError, zarr.errors.NodeNotFoundError):
        return None
    return {path.name: found} if isinstance(found, zarr.Array) else dict(found.arrays())


class Store:
    """A store, open for reading and writing; made by `create` and `open_existing`.

    Threads and processes may write different blocks at once; it pickles as its path. A call has reached the store when
    it returns: there is nothing to flush or to close.
    """

    def __init__(self, path: str | Path, group: zarr.Group) -> None:
        self.path = str(path)
        self.group = group
        self.layout = _layout_of(group)
        self._encodings = {v.name: encoding(v) for v in (*self.layout.variables, self.layout.status)}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._kept: zarr.Array[Any] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (str(_place(self.path)),)

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

    def read(self, name: str, region: tuple[slice, ...] = ()) -> np.ndarray:
        """Values as computed, whole or of a region of the leading dimensions; for the missing ones see `decode`."""
        with _explained(self.path), _whole(self.path):
            return decode(np.asarray(self._array(name)[_within(region)]), self._encodings[name])

    def unfinished_blocks(self, retry: Collection[int] = ()) -> list[int]:
        """Blocks with a pending sample, or with one whose status is in `retry`."""
        wanted = np.isin(self.status(), [STATUS["pending"], *retry])
        return [n for n in self.blocks if wanted[self.blocks.region(n)].any() or not self._is_whole(n)]

    def lacks_once(self) -> bool:
        """Whether a file of a variable that is not swept is gone."""
        place = _place(self.path)
        return isinstance(place, Path) and any(
            not any(_is_file(file) for file in (place / v.name).rglob("*") if file.name != "zarr.json")
            for v in self.variables
            if not v.swept and 0 not in v.shape
        )

    def _is_whole(self, number: int) -> bool:
        """Whether the files of a block are all there. Of a remote store that is taken for granted."""
        place = _place(self.path)
        if not isinstance(place, Path):
            return True
        extent = self.blocks.region(number)
        lead = [str(s.start // b) for s, b in zip(extent, self.blocks.block, strict=True)]
        for variable in self.variables:
            if variable.swept and 0 not in variable.shape:
                rest = ["0"] * (len(variable.shape) - len(lead))
                if not _is_file(place.joinpath(variable.name, "c", *lead, *rest)):
                    return False
        return True

    def write_once(self, values: Mapping[str, np.ndarray], failed: Collection[str] = ()) -> None:
        """Write variables that are not swept, some or all of them; those in `failed` as missing."""
        once = {v.name: v for v in self.variables if not v.swept}
        _check_names(values, set(values) & set(once))
        arrays = {name: _checked(array, once[name], once[name].shape) for name, array in values.items()}
        with _explained(self.path):
            for name, array in arrays.items():
                missing = np.full(array.shape, True) if name in failed else None
                self._array(name)[...] = encode(array, self._encodings[name], missing)

    def write_block(
        self,
        number: int,
        values: Mapping[str, np.ndarray],
        status: np.ndarray,
        missing: np.ndarray | None = None,
        kept: Collection[str] = (),
    ) -> None:
        """Write a block: first its data, then its status. Samples that are not `ok` are masked.

        Args:
            number: which block.
            values: of each swept variable, `(samples, *rest)` in the C order of the block's region.
            status: int8 `(samples,)`.
            missing: the samples to be masked instead, bool `(samples,)`.
            kept: variables of which no sample is masked.

        Raises:
            StoreError: the store cannot be written; blocks written before are kept.
        """
        region = self.blocks.region(number)
        extent = tuple(s.stop - s.start for s in region)
        _check_names(values, {v.name for v in self.variables if v.swept})
        status = _checked(status, self.layout.status, (math.prod(extent),))
        missing = status != STATUS["ok"] if missing is None else missing
        self.write_values(number, {name: array for name, array in values.items() if name in kept})
        self.write_values(number, {name: array for name, array in values.items() if name not in kept}, missing)
        with _explained(self.path):
            self._array("status")[_within(region)] = status.reshape(extent)

    def write_values(self, number: int, values: Mapping[str, np.ndarray], missing: np.ndarray | None = None) -> None:
        """Write some variables of a block and leave its status as it is; for what is told while a block is computed.

        Args:
            number: which block.
            values: of swept variables, `(samples, *rest)` in the C order of the block's region.
            missing: the samples to be masked, bool `(samples,)`.
        """
        region = self.blocks.region(number)
        extent = tuple(s.stop - s.start for s in region)
        swept = {v.name: v for v in self.variables if v.swept}
        _check_names(values, set(values) & set(swept))
        lead, k = math.prod(extent), len(extent)
        arrays = {name: _checked(array, swept[name], (lead, *swept[name].shape[k:])) for name, array in values.items()}
        with _explained(self.path):
            for name, array in arrays.items():
                stored = encode(array, self._encodings[name], missing)
                self._array(name)[_within(region)] = stored.reshape((*extent, *array.shape[1:]))

    def read_block(self, number: int, name: str) -> np.ndarray:
        """A variable's values of a block, `(samples, *rest)`."""
        found = self.read(name, self.blocks.region(number))
        return found.reshape((-1, *found.shape[len(self.blocks.shape) :]))

    def write_checkpoint(self, number: int, content: bytes) -> None:
        """Keep the state of a block that is being computed, of the same length for every block, in one step."""
        with _explained(self.path):
            self._checkpoints(len(content))[number] = np.frombuffer(content, np.uint8)

    def read_checkpoint(self, number: int) -> bytes | None:
        """The state of a block that a run before kept; None if there is none."""
        with _explained(self.path), _whole(self.path):
            group = self._checkpoint_group("r+")
            if group is None or "state" not in group:
                return None
            content = np.asarray(cast(Any, group["state"])[number])
            return content.tobytes() if content.any() else None

    def update_attributes(self, **changes: Any) -> None:
        """Set attributes of the run, in one step that xarray sees at once. For one process at a time."""
        _check_reserved(changes)
        plain = to_json(changes)
        with self._lock, _explained(self.path):
            self.group = zarr.open_group(self.group.store, path=self.group.path, mode="r+").update_attributes(plain)

    def relabel(self, attributes: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Set the attributes that people read of variables, where they differ; the names of those changed."""
        labels = ("units", "description", "units_of_output")
        changed = []
        with self._lock, _explained(self.path):
            for name, given in attributes.items():
                array = self.group.get(name)
                if array is None:
                    continue
                now = {k: v for k, v in array.attrs.items() if k in labels}
                wanted = {k: v for k, v in to_json(given).items() if k in labels}
                if now != wanted:
                    kept = {k: v for k, v in array.attrs.items() if k not in labels}
                    array.attrs.put({**kept, **wanted})
                    changed.append(name)
            if changed:
                self.group = _consolidated(self.group)
        return changed

    def add_variables(self, variables: Sequence[Variable]) -> None:
        """Add arrays, to be written later; xarray sees them at once. For one process, while no block is written."""
        layout = dataclasses.replace(self.layout, variables=(*self.variables, *variables))
        check(layout)
        with self._lock, _explained(self.path):
            for variable in variables:
                _add_array(self.group, layout, variable)
            self.group = _consolidated(self.group).update_attributes(_own_attributes(layout))
        self.layout = layout
        self._encodings |= {v.name: encoding(v) for v in variables}

    def remove_leftovers(self) -> None:
        """Remove the files that killed writers left half written; no reader looks at them. Local stores only."""
        place = _place(self.path)
        for file in place.rglob("*.partial") if isinstance(place, Path) else ():
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
                    file.unlink()

    def _checkpoints(self, size: int) -> zarr.Array[Any]:
        with self._lock:
            if self._kept is None or self._kept.shape[1] != size:
                group = cast(zarr.Group, self._checkpoint_group("a"))
                shape, chunks = (len(self.blocks), size), (1, size)
                known = cast(Any, group["state"]) if "state" in group else None
                if known is None or known.shape != shape:
                    known = group.create_array(
                        "state", shape=shape, chunks=chunks, dtype=np.uint8, fill_value=0, overwrite=True
                    )
                self._kept = known
        return self._kept

    def _checkpoint_group(self, mode: Literal["r+", "a"]) -> zarr.Group | None:
        """The group of checkpoints, which is no part of what xarray sees."""
        path = "/".join(filter(None, (self.group.path, CHECKPOINTS)))
        try:
            return zarr.open_group(self.group.store, path=path, mode=mode, use_consolidated=False)
        except FileNotFoundError:
            return None

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._arrays:
            # A block of zeros or of NaN is an answer like any other: its chunk is written too.
            array = cast("zarr.Array[Any]", self.group[name])
            self._arrays[name] = array.with_config({"write_empty_chunks": True})
        return self._arrays[name]


def _is_file(path: Path) -> bool:
    """Whether a file is there and holds something."""
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def _within(region: tuple[slice, ...]) -> Any:
    return (*region, ...)


def _check_names(values: Mapping[str, Any], expected: Collection[str]) -> None:
    if set(values) != set(expected):
        raise ValueError(f"expected values of {listed(sorted(expected))}, got {listed(sorted(values))}")


def _check_reserved(attributes: Mapping[str, Any]) -> None:
    if taken := set(RESERVED) & set(attributes):
        raise ValueError(f"the attributes {listed(sorted(taken))} belong to the store itself")


def _checked(values: Any, variable: Variable, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or not np.can_cast(array.dtype, variable.dtype, "safe"):
        wanted = f"{np.dtype(variable.dtype).name}{list(shape)}"
        raise ValueError(f"{variable.name!r} must be {wanted}, but is {array.dtype.name}{list(array.shape)}")
    return array


def _own_attributes(layout: Layout) -> dict[str, Any]:
    """The attributes that tell xarray what the coordinates are, and `_layout_of` everything."""
    variables = {
        v.name: {"dtype": encoding(v).logical.name, "swept": v.swept, "coordinate": v.coordinate}
        for v in layout.variables
    }
    described = {
        "format": FORMAT,
        "dims": layout.dims,
        "shape": layout.blocks.shape,
        "block": layout.blocks.block,
        "inner": layout.inner,
        "compression": layout.compression,
        "vocabulary": layout.vocabulary,
        "variables": variables,
    }
    return to_json({"layout": described, "coordinates": " ".join(v.name for v in layout.variables if v.coordinate)})


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
    array = cast(Any, group[name])
    dims = tuple(array.metadata.dimension_names or ())
    bare = Variable(name, dims, array.shape, np.dtype(facts["dtype"]), facts["swept"], {}, facts["coordinate"])
    own = encoding(bare).attributes
    return dataclasses.replace(bare, attributes={k: from_json(v) for k, v in array.attrs.items() if k not in own})


def _compressor(compression: Any) -> BloscCodec | ZstdCodec | None:
    if compression == "none":
        return None
    if compression == "auto":
        return BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    level = compression.get("zstd") if isinstance(compression, Mapping) and len(compression) == 1 else compression
    if level != "zstd" and (type(level) is not int or not 1 <= level <= 22):
        raise StoreError(f"`store.compression` must be auto, none, zstd or {{zstd: 1..22}}, but is {compression!r}.")
    return ZstdCodec(level=3 if level == "zstd" else level)


def _build(place: Path | str, layout: Layout, root: dict[str, Any], constants: Mapping[str, np.ndarray]) -> None:
    """Make the group at `place`; until its last write it says that it is half made."""
    group = zarr.create_group(place, attributes=HALF_MADE, overwrite=isinstance(place, str))
    for variable in (*layout.variables, layout.status):
        _add_array(group, layout, variable)
    once = {v.name: v for v in layout.variables if not v.swept}
    _check_names(constants, set(constants) & set(once))
    for name, values in constants.items():
        array = _checked(values, once[name], once[name].shape)
        cast(Any, group[name])[...] = encode(array, encoding(once[name]))
    _consolidated(group).update_attributes(root)


def _add_array(group: zarr.Group, layout: Layout, variable: Variable) -> None:
    how = encoding(variable)
    chunks, shards = chunks_and_shards(variable, layout)
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


def _consolidated(group: zarr.Group) -> zarr.Group:
    """Copy the metadata of all arrays into the group's: xarray warns of a store without, and sees no more."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        warnings.filterwarnings("ignore", message="Object at")
        return zarr.consolidate_metadata(group.store, path=group.path)


def _place(path: str | Path) -> Path | str:
    """Where the store is: a URL, or a local path, absolute and free of links, so that renames meet the folder."""
    text = os.fspath(path).removeprefix("file://")
    return text if "://" in text else Path(text).expanduser().resolve()


def opened(path: str | Path) -> Store:
    """A store that must be there.

    Raises:
        StoreError: nothing, or something else, is there.
    """
    try:
        store = open_existing(path)
    except _ForeignError:
        raise StoreError(
            f"`STORE` must be a store of this engine's ({FORMAT}), but {path} is none. Check the path."
        ) from None
    if store is None:
        raise StoreError(
            f"`STORE` must be the path of a store, but there is none at {str(path)!r}. `python -m engine run` makes one."
        )
    return store


def _group_at(place: Path | str, path: str | Path) -> zarr.Group | None:
    """Our group at `place`; None for nothing, an empty folder, or a half-made group of ours; all else is refused."""
    if isinstance(place, Path):
        for parent in place.parents:
            if (parent / "zarr.json").is_file():
                raise StoreError(
                    f"`store.path` must not lie inside a store, but {path} lies in {parent}, which may be replaced with all that it "
                    "holds. Choose another path."
                )
    if isinstance(place, Path) and place.exists() and not place.is_dir():
        raise _ForeignError(f"`store.path` must be a folder or free, but {path} is a file. Choose another path.")
    try:
        group = zarr.open_group(place, mode="r+")
        return _ours(group, path)
    except FileNotFoundError:
        if isinstance(place, Path) and place.is_dir() and any(place.iterdir()):
            raise _not_ours(path) from None
        return None
    except UserError:
        raise
    except (ValueError, TypeError, KeyError):
        raise _not_ours(path) from None


def _ours(group: zarr.Group, path: str | Path) -> zarr.Group | None:
    """The group if it is a store of this engine's; None if it is a half-made one."""
    attributes = group.metadata.attributes
    layout = attributes.get("layout")
    if not isinstance(layout, Mapping) or layout.get("format") != FORMAT:
        raise _not_ours(path)
    if layout.get("half_made"):
        return None
    lacks = [key for key in ("dims", "shape", "block", "variables", "vocabulary") if key not in layout]
    if lacks:
        raise StoreError(
            f"`store.path` must hold a store that is whole, but the attributes of {path} lack {listed(lacks)}. Replace it with "
            "--fresh, or take it from a copy."
        )
    return group


def _not_ours(path: str | Path) -> StoreError:
    return _ForeignError(
        f"`store.path` must be free or a store of this engine's ({FORMAT}), but {path} holds something else, which is "
        "never replaced. Choose another path."
    )


class _ForeignError(StoreError):
    """What is there is no store of this engine's."""


@contextlib.contextmanager
def _whole(path: str | Path) -> Iterator[None]:
    """Turn what Zarr and its codecs raise while they read damaged files into a `StoreError`."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, IndexError, RuntimeError, ValueError, TypeError, EOFError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise StoreError(
            f"`store.path` must hold a store that is whole, but {path} is damaged ({type(error).__name__}: {said}). Replace it with "
            "--fresh, or take it from a copy."
        ) from error


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """Turn what the operating system refuses into a `StoreError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"`store.path` must have room for the results, but there is no space left for {path}. Free space and "
                "run the same command: finished chunks are kept."
            ) from error
        raise StoreError(
            f"`store.path` must be readable and writable, but {path} is not: {error.strerror or error}. Mend its "
            "permissions, or choose another path."
        ) from error


@contextlib.contextmanager
def _new_folder(place: Path, replace: bool) -> Iterator[Path]:
    """A folder to fill; it appears at `place` when it is full, and not at all when filling it fails."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(place)
    # Without `replace` only a half-made group makes room: another process may have put its store there meanwhile.
    makes_room = replace or (place / "zarr.json").exists()
    new, old = _sibling(place, "partial"), _sibling(place, "old")
    try:
        yield new
        if makes_room and place.exists():
            os.replace(place, old)
        os.replace(new, place)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists() and not place.exists():
            os.replace(old, place)
        raise


def _sibling(place: Path, kind: str) -> Path:
    """A hidden name beside `place` that says which process made it."""
    return place.parent / f".{place.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.{kind}"


def _remove_stale(place: Path) -> None:
    """Remove what processes of this host that run no more have left beside `place`."""
    start = f".{place.name}.{socket.gethostname()}-"
    for entry in place.parent.iterdir():
        if entry.name.startswith(start) and entry.suffix in (".partial", ".old"):
            pid = entry.name.removeprefix(start).partition("-")[0]
            if pid.isdecimal() and not _runs(int(pid)):
                shutil.rmtree(entry, ignore_errors=True)


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
