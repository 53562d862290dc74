"""Laws of the store: what is written is what xarray reads, whoever writes it, in whatever order, and whenever they are killed."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.chunks import Blocks, cut
from engine.encoding import chunks_and_shards, from_json, to_json
from engine.status import STATUS, flag_meanings, flag_values
from engine.store import Layout, Store, Variable, create, open_dataset, open_existing

pytestmark = pytest.mark.filterwarnings("error")

REPOSITORY = Path(__file__).parents[2]
OK, FAILED = STATUS["ok"], STATUS["nonfinite"]
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run.zarr"


def swept(
    name: str, blocks: Blocks, dtype: Any = "f8", rest: dict[str, int] | None = None, **attributes: Any
) -> Variable:
    """A variable over the dimensions `a`, `b`, ... of a sweep, then those in `rest`."""
    rest = rest or {}
    dims = (*sweep_dims(blocks), *rest)
    return Variable(name, dims, (*blocks.shape, *rest.values()), np.dtype(dtype), True, attributes)


def sweep_dims(blocks: Blocks) -> tuple[str, ...]:
    return tuple("abcd"[: len(blocks.shape)])


def layout(blocks: Blocks, *variables: Variable, **settings: Any) -> Layout:
    return Layout(sweep_dims(blocks), blocks, variables, **settings)


def block_of(store: Store, number: int, whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A block's part of arrays over the whole sweep, as a task has it."""
    samples = store.blocks.samples_of(number)
    flat = {n: a.reshape(store.blocks.samples, *a.shape[len(store.blocks.shape) :]) for n, a in whole.items()}
    return {name: array[samples] for name, array in flat.items()}


def fill(store: Store, whole: dict[str, np.ndarray], status: np.ndarray | None = None, threads: int = 1) -> None:
    """Write every block, in random order."""
    status = np.full(store.blocks.shape, OK, np.int8) if status is None else status

    def write(number: int) -> None:
        parts = block_of(store, number, {**whole, "status": status})
        store.write_block(number, parts, parts.pop("status"))

    numbers = random.sample(range(len(store.blocks)), len(store.blocks))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, numbers))


def values(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Any bits that the dtype has, extremes included; of 64-bit integers all but the one that means missing."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wide = dtype.itemsize == 8
        low, high = limits.min + (wide and dtype.kind == "i"), limits.max - (wide and dtype.kind == "u")
        found = rng.integers(low, high, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.2, rng.choice(np.array([low, high], dtype), shape), found)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def in_xarray(array: np.ndarray) -> np.ndarray:
    """What xarray shows: it masks in float64, where the neighbours of a 64-bit extreme are that extreme."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return array
    limits = np.iinfo(array.dtype)
    seen = array.astype(float)
    return np.where(seen == float(limits.min if array.dtype.kind == "i" else limits.max), np.nan, seen)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal bit for bit, but for the payload of a NaN."""
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")


def load(path: Path | str) -> xarray.Dataset:
    """What a user sees, without arguments."""
    with xarray.open_zarr(path) as dataset:
        return dataset.load()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Blocks, dict[str, int], str, tuple[int, ...] | None, int]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    inner = tuple(draw(st.integers(1, n)) for n in shape)
    shard = draw(st.booleans()) and bool(shape)
    factors = tuple(draw(st.integers(1, 3)) for _ in shape) if shard else (1,) * len(shape)
    block = tuple(i * f for i, f in zip(inner, factors, strict=True))
    rest = {f"r{i}": draw(st.integers(0, 3)) for i in range(draw(st.integers(0, 2)))}
    return Blocks(shape, block), rest, draw(st.sampled_from(DTYPES)), inner if shard else None, draw(st.integers(0, 99))


@given(cases())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read(case: tuple[Blocks, dict[str, int], str, tuple[int, ...] | None, int]) -> None:
    blocks, rest, name, inner, seed = case
    rng = np.random.default_rng(seed)
    variable = swept("f.x", blocks, name, rest)
    whole = values(rng, variable.dtype, variable.shape)
    status = rng.choice([OK, FAILED, STATUS["lost"]], blocks.shape, p=[0.7, 0.2, 0.1]).astype(np.int8)
    with tempfile.TemporaryDirectory() as folder:
        store = create(Path(folder) / "s", layout(blocks, variable, inner=inner), {})
        fill(store, {"f.x": whole}, status, threads=4)
        found = load(f"{folder}/s")
        raw = store.read("f.x")
    good = status == OK
    assert same(found["status"].values, status)
    assert same(raw[good], whole[good])
    assert found["f.x"].dims == variable.dims
    seen = found["f.x"].values
    assert np.isnan(seen[~good]).all()
    assert variable.dtype.kind not in "fc" or seen.dtype == variable.dtype
    assert np.array_equal(seen[good], in_xarray(whole[good]).astype(seen.dtype), equal_nan=True)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_every_chunk_and_shard_lies_in_one_block(case: tuple[Blocks, dict[str, int], str, Any, int]) -> None:
    blocks, rest, dtype, inner, _ = case
    plan = layout(blocks, swept("x", blocks, dtype, rest), inner=inner)
    for variable in (*plan.variables, plan.status):
        chunks, shards = chunks_and_shards(variable, plan)
        assert (shards or chunks)[: len(blocks.shape)] == blocks.block
        assert all(s % c == 0 for s, c in zip(shards or chunks, chunks, strict=True))


def test_a_huge_block_is_split_along_its_trailing_dimensions() -> None:
    blocks = Blocks((10,), (5,))
    chunks, shards = chunks_and_shards(swept("x", blocks, rest={"t": 10**8, "c": 3}), layout(blocks))
    assert shards is None
    assert chunks[0] == 5
    assert 2**28 < 8 * math.prod(chunks) <= 2**30


@pytest.mark.parametrize("n", [64, 61])
def test_sixteen_writers_lose_nothing(place: Path, n: int) -> None:
    """C01: the sum over 64 samples is 4 * (1 + ... + 16) = 544."""
    blocks = Blocks((n,), (4,))
    store = create(place, layout(blocks, swept("x", blocks)), {})
    whole = np.arange(n) // 4 + 1.0
    for _ in range(3):
        fill(store, {"x": whole}, threads=16)
        assert load(place).x.values.tolist() == whole.tolist()
    assert n != 64 or load(place).x.sum() == 544


def test_zeros_and_nan_are_answers(place: Path) -> None:
    """C02: resuming asks the status, never the data or the files."""
    blocks = Blocks((12,), (4,))
    store = create(place, layout(blocks, swept("x", blocks), swept("n", blocks, int)), {})
    ok = np.full(4, OK, np.int8)
    store.write_block(0, {"x": np.zeros(4), "n": np.zeros(4, int)}, ok)
    store.write_block(1, {"x": np.full(4, np.nan), "n": np.zeros(4, int)}, ok)
    again = open_existing(place)
    assert again is not None
    assert again.unfinished_blocks() == [2]
    assert len(list((place / "x" / "c").iterdir())) == 2
    found = load(place)
    assert found.status.values.tolist() == [OK] * 8 + [STATUS["pending"]] * 4
    assert found.x.values[:4].tolist() == [0.0] * 4
    assert np.isnan(found.x.values[4:]).all()
    assert found.n.values[:8].tolist() == [0.0] * 8
    assert np.isnan(found.n.values[8:]).all()


def test_the_last_block_may_be_short(place: Path) -> None:
    """C08."""
    blocks = Blocks((10,), (4,))
    store = create(place, layout(blocks, swept("x", blocks)), {})
    fill(store, {"x": np.arange(10.0)})
    assert load(place).x.values.tolist() == list(range(10))


def test_a_block_is_one_file(place: Path) -> None:
    """C09: files grow with the blocks, not with the samples."""
    blocks = cut((5000,), 1250)
    store = create(place, layout(blocks, swept("x", blocks)), {})
    fill(store, {"x": np.arange(5000.0)})
    chunks = [f for f in place.rglob("*") if f.is_file() and f.name != "zarr.json"]
    assert len(chunks) == 2 * len(blocks) == 8


def test_what_is_added_later_is_seen(place: Path) -> None:
    """C11: by us, and by xarray's own writer."""
    blocks = Blocks((4,), (2,))
    store = create(place, layout(blocks, swept("x", blocks)), {"a": 1})
    store.add_variables(
        [swept("later.y", blocks, units="m"), Variable("k", ("k",), (2,), np.dtype(int), False, {}, True)]
    )
    store.write_once({"k": np.array([7, 8])})
    fill(store, {"x": np.ones(4), "later.y": np.arange(4.0)})
    found = load(place)
    assert found["later.y"].values.tolist() == [0, 1, 2, 3]
    assert found["later.y"].attrs["units"] == "m"
    assert found.k.values.tolist() == [7, 8]
    again = open_existing(place)
    assert again is not None
    assert again.layout == store.layout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xarray.Dataset({"mine": ("a", [1.0, 2, 3, 4])}).to_zarr(place, mode="a")
    assert load(place).mine.values.tolist() == [1, 2, 3, 4]
    store.update_attributes(b=2)
    assert {"x", "later.y", "mine", "status"} <= set(load(place).variables)


def test_a_grid_is_selected_by_value(place: Path) -> None:
    """C13."""
    blocks = Blocks((2, 3), (1, 3))
    a = Variable("a", ("a",), (2,), np.dtype(float), False, {"units": "s"}, True)
    b = Variable("b", ("b",), (3,), np.dtype(int), False, {}, True)
    axes = {"a": np.array([0.1, 0.2]), "b": np.array([1, 2, 3])}
    store = create(place, layout(blocks, swept("x", blocks, units="days"), a, b), {}, constants=axes)
    assert load(place).b.dtype == np.int64
    fill(store, {"x": np.arange(6.0).reshape(2, 3)})
    found = load(place)
    assert found.x.dims == ("a", "b")
    assert found.x.sel(a=0.2, b=3) == 5.0
    assert found.x.units == "days"


def test_samples_carry_their_parameters(place: Path) -> None:
    blocks = Blocks((5,), (2,))
    omega = Variable("omega", ("a",), (5,), np.dtype(float), False, {}, True)
    limits = Variable("limits", ("side",), (2,), np.dtype(int), False)
    store = create(place, layout(blocks, swept("x", blocks), omega, limits), {})
    assert np.isnan(load(place).limits.values).all()
    store.write_once({"omega": np.linspace(0, 1, 5), "limits": np.array([1, 2])})
    found = load(place)
    assert set(found.coords) == {"omega"}
    assert found.omega.values.tolist() == np.linspace(0, 1, 5).tolist()
    assert found.limits.values.tolist() == [1, 2]


def test_keys_are_restored_exactly(place: Path) -> None:
    """B06: a word of a key may be any 32 bits."""
    blocks = Blocks((3,), (2,))
    keys = np.array([[0, 2**32 - 1], [2**31, 1], [5, 6]], np.uint32)
    store = create(place, layout(blocks, swept("key", blocks, "u4", {"word": 2}, impl="threefry2x32")), {})
    fill(store, {"key": keys})
    assert same(store.read("key"), keys)
    found = load(place).key
    assert found.values.astype(np.uint32).tolist() == keys.tolist()
    assert found.impl == "threefry2x32"


def test_bfloat16_is_kept_as_float32(place: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    blocks = Blocks((3,), (2,))
    store = create(place, layout(blocks, swept("x", blocks, bfloat16)), {})
    for writer in (store, open_existing(place)):
        assert writer is not None
        fill(writer, {"x": np.array([1, 2.5, -3], bfloat16)})
    assert load(place).x.values.tolist() == [1, 2.5, -3]
    assert load(place).x.dtype == np.float32


def test_a_single_evaluation_has_no_sweep_dimensions(place: Path) -> None:
    blocks = Blocks((), ())
    store = create(
        place, layout(blocks, swept("x", blocks), swept("y", blocks, rest={"t": 3}), swept("n", blocks, bool)), {}
    )
    assert store.unfinished_blocks() == [0]
    store.write_block(0, {"x": np.ones(1), "y": np.ones((1, 3)), "n": np.ones(1, bool)}, np.array([OK], np.int8))
    found = load(place)
    assert (found.x.shape, found.y.shape, found.status.shape) == ((), (3,), ())
    assert (float(found.x), float(found.n), int(found.status)) == (1.0, 1.0, OK)
    assert open_existing(place).unfinished_blocks() == []  # type: ignore[union-attr]
    store.write_block(0, {"x": np.ones(1), "y": np.ones((1, 3)), "n": np.ones(1, bool)}, np.array([FAILED], np.int8))
    found = load(place)
    assert np.isnan([*found.y.values, float(found.x), float(found.n)]).all()


def test_status_explains_itself(place: Path) -> None:
    blocks = Blocks((6,), (2,))
    store = create(place, layout(blocks, swept("x", blocks)), {})
    assert store.status().tolist() == [0] * 6
    attributes = load(place).status.attrs
    assert attributes["flag_values"] == flag_values() == [0, 1, 2, 3, 4, 5, 6]
    assert attributes["flag_meanings"] == flag_meanings() == "pending ok max_steps nonfinite solver error lost"
    assert load(place).status.dtype == np.int8


def test_blocks_to_retry(place: Path) -> None:
    blocks = Blocks((6,), (2,))
    store = create(place, layout(blocks, swept("x", blocks)), {})
    store.write_block(0, {"x": np.ones(2)}, np.array([OK, OK], np.int8))
    store.write_block(1, {"x": np.ones(2)}, np.array([OK, FAILED], np.int8))
    assert store.unfinished_blocks() == [2]
    assert store.unfinished_blocks([FAILED]) == [1, 2]
    assert store.unfinished_blocks([STATUS["lost"]]) == [2]


def test_workers_get_the_store_by_its_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks((4,), (2,))
    place.parent.mkdir()
    monkeypatch.chdir(place.parent)
    sent = pickle.dumps(create("run.zarr", layout(blocks, swept("x", blocks)), {}))
    monkeypatch.chdir("/")
    pickle.loads(sent).write_block(1, {"x": np.ones(2)}, np.full(2, OK, np.int8))
    assert load(place).status.values.tolist() == [0, 0, OK, OK]


@pytest.mark.parametrize("compression", ["auto", "none", "zstd", {"zstd": 19}])
def test_compressions_agree(place: Path, compression: Any) -> None:
    blocks = Blocks((9,), (4,))
    store = create(place, layout(blocks, swept("x", blocks), compression=compression), {})
    fill(store, {"x": np.arange(9.0)})
    assert load(place).x.values.tolist() == list(range(9))
    assert open_existing(place).layout == store.layout  # type: ignore[union-attr]


leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats()
trees = st.recursive(
    leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(), t, max_size=3), max_leaves=12
)


@given(st.dictionaries(st.text(), trees, max_size=4))
def test_attributes_come_back(tree: dict[str, Any]) -> None:
    text = json.dumps(to_json(tree), allow_nan=False)
    assert repr(from_json(json.loads(text))) == repr(tree)


def test_attributes_of_a_store(place: Path) -> None:
    blocks = Blocks((2,), (2,))
    given = {
        "nan": math.nan,
        "n": np.int64(3),
        "grid": np.array([1.5, np.inf]),
        "path": Path("x/y"),
        "when": date(2026, 1, 2),
    }
    store = create(place, layout(blocks, swept("x", blocks, limit=np.inf)), {**given, "at": datetime(2026, 1, 2, 3)})
    store.update_attributes(runs=[{"seconds": -np.inf}])
    plain = {
        "nan": math.nan,
        "n": 3,
        "grid": [1.5, math.inf],
        "path": "x/y",
        "when": "2026-01-02",
        "at": "2026-01-02T03:00:00",
    }
    plain["runs"] = [{"seconds": -math.inf}]
    again = open_existing(place)
    assert again is not None
    with open_dataset(place) as dataset:
        for found in (store.attributes, again.attributes, dataset.attrs):
            assert repr(found) == repr(plain)
        assert dataset.x.limit == again.variables[0].attributes["limit"] == math.inf
    assert load(place).attrs["runs"] == [{"seconds": {"$float": "-inf"}}]
    json.loads((place / "zarr.json").read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_replacing_starts_anew(place: Path) -> None:
    blocks = Blocks((4,), (2,))
    fill(create(place, layout(blocks, swept("x", blocks)), {"run": 1}), {"x": np.ones(4)})
    create(place, layout(blocks, swept("y", blocks)), {"run": 2}, replace=True)
    found = load(place)
    assert set(found.variables) == {"y", "status"}
    assert found.attrs["run"] == 2
    assert not found.status.any()
    assert [entry.name for entry in place.parent.iterdir()] == [place.name]


def test_what_the_dead_left_is_removed(place: Path) -> None:
    blocks = Blocks((4,), (2,))
    create(place, layout(blocks, swept("x", blocks)), {})
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = os.uname().nodename
    dead, alive, foreign = (
        place.parent / f".{place.name}.{name}.partial"
        for name in (f"{host}-{gone.pid}-0a1b2c3d", f"{host}-{os.getpid()}-0a1b2c3d", "other-1-0a1b2c3d")
    )
    for folder in (dead, alive, foreign):
        (folder / "x").mkdir(parents=True)
    create(place, layout(blocks, swept("x", blocks)), {}, replace=True)
    assert [folder.exists() for folder in (dead, alive, foreign)] == [False, True, True]


def test_half_written_files_are_removed_when_old(place: Path) -> None:
    blocks = Blocks((4,), (2,))
    store = create(place, layout(blocks, swept("x", blocks)), {})
    old, new = place / "x" / "c" / "0.abc.partial", place / "x" / "c" / "1.abc.partial"
    old.parent.mkdir()
    for file in (old, new):
        file.write_text("half")
    os.utime(old, (0, 0))
    store.remove_leftovers()
    assert [old.exists(), new.exists()] == [False, True]
    fill(store, {"x": np.ones(4)})
    assert load(place).x.values.tolist() == [1] * 4


def test_a_remote_store() -> None:
    """Through fsspec; a group whose attributes were never written is no store."""
    url = "memory://store-test/run.zarr"
    blocks = Blocks((5,), (2,))
    plan = layout(blocks, swept("x", blocks), Variable("k", ("a",), (5,), np.dtype(int), False, {}, True))
    zarr.create_group(url, attributes={"layout": {"format": "diffsim-engine/1", "half_made": True}})
    assert open_existing(url) is None
    store = create(url, plan, {"a": 1}, constants={"k": np.arange(5)})
    fill(store, {"x": np.arange(5.0)}, threads=3)
    store.update_attributes(b=2)
    found = load(url)
    assert found.x.values.tolist() == found.k.values.tolist() == list(range(5))
    assert (found.attrs["a"], found.attrs["b"]) == (1, 2)
    assert open_existing(url).unfinished_blocks() == []  # type: ignore[union-attr]
    create(url, plan, {}, replace=True)
    assert not load(url).status.any()


WRITER = """
import sys, numpy as np
from engine.chunks import Blocks
from engine.store import Layout, Variable, create, open_existing
path, shape, block = sys.argv[1], (40, 500), (1, 500)
print("ready", flush=True)
store = open_existing(path)
if store is None:
    x = Variable("x", ("a", "b", "t"), (*shape, 20), np.dtype(float), True)
    store = create(path, Layout(("a", "b"), Blocks(shape, block), (x,), "none"), {"count": 0})
for number in store.unfinished_blocks():
    samples = store.blocks.samples_of(number)
    data = samples[:, None] + np.arange(20) / 32
    store.write_block(number, {"x": data}, np.ones(len(samples), np.int8))
    store.update_attributes(count=number)
"""

REPLACER = """
import sys, numpy as np
from engine.chunks import Blocks
from engine.store import Layout, Variable, create
x = Variable("x", ("a",), (4,), np.dtype(float), False)
print("ready", flush=True)
while True:
    values = {"x": np.arange(4.0)}
    create(sys.argv[1], Layout(("a",), Blocks((4,), (2,)), (x,)), {"whole": True}, replace=True, constants=values)
"""


def killed_at_random(script: str, path: Path, longest: float, turns: int) -> Iterator[int]:
    """Start `script` on `path` and kill it after a random time, `turns` times."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for turn in range(turns):
        command = [sys.executable, "-W", "error", "-c", script, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdout.readline()
            time.sleep(random.uniform(0, longest))
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert child.stderr.read() == b""
        yield turn


def test_a_killed_writer_never_leaves_half_a_block(place: Path) -> None:
    expected = np.arange(20_000.0).reshape(40, 500, 1) + np.arange(20) / 32
    finished: set[int] = set()
    for _ in killed_at_random(WRITER, place, longest=0.06, turns=12):
        store = open_existing(place)
        if store is None:
            assert not place.exists()
            continue
        found = load(place)
        ok = found.status.values == OK
        assert np.array_equal(found.x.values[ok], expected[ok])
        assert set(np.unique(found.status)) <= {STATUS["pending"], OK}
        assert all(row.all() or not row.any() for row in ok)
        done = set(range(40)) - set(store.unfinished_blocks())
        assert finished <= done
        finished = done
    subprocess.run(
        [sys.executable, "-c", WRITER, str(place)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True
    )
    assert np.array_equal(load(place).x.values, expected)


def test_a_killed_creation_leaves_a_whole_store_or_none(place: Path) -> None:
    for _ in killed_at_random(REPLACER, place, longest=0.08, turns=6):
        if open_existing(place) is None:
            assert not place.exists()
            continue
        assert load(place).attrs["whole"] is True
        assert load(place).x.values.tolist() == [0, 1, 2, 3]
    blocks = Blocks((4,), (2,))
    create(place, layout(blocks, swept("x", blocks)), {}, replace=True)
    assert [entry.name for entry in place.parent.iterdir()] == [place.name]
