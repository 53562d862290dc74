"""Laws of the designs: the values are NumPy's and SciPy's, a chunk sees what the whole sweep holds, and a seed is a promise."""

from __future__ import annotations

import csv
import math
import tempfile
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.chunks import cut
from engine.designs import Design, design
from engine.errors import SweepError

SEQUENCES = ("random", "sobol", "halton")
"""Designs whose first points stay as samples are added."""

SAMPLED = (*SEQUENCES, "latin_hypercube")
UNIT = {"uniform": [0, 1]}
NUMBERS = st.floats(-1e6, 1e6)
SEEDS = st.integers(0, 2**63 - 1)


def made(
    axes: Mapping[str, Any],
    nominal: Mapping[str, Any] | None = None,
    seed: int = 0,
    folder: Path = Path(),
    **sweep: Any,
) -> Design:
    """The design of a sweep over parameters that are 0.5 unless `nominal` says otherwise."""
    return design({"axes": axes, **sweep}, {**dict.fromkeys(axes, 0.5), **(nominal or {})}, seed=seed, folder=folder)


def column(axis: Any, nominal: Any = 0.5, **sweep: Any) -> np.ndarray:
    """The values of a single axis; as a zip, where a value may stand twice."""
    return made({"k": axis}, {"k": nominal}, **{"design": "zip", **sweep}).columns["k"]


def whole(points: Design) -> dict[str, np.ndarray]:
    """Every sample of a small sweep, in C order."""
    return points.take(np.arange(points.samples))


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal bit for bit, and of one kind."""
    return left.dtype == right.dtype and np.array_equal(left, right)


# ---- axes that are written out


@given(NUMBERS, NUMBERS, st.integers(1, 60))
def test_linspace_is_numpys(start: float, stop: float, n: int) -> None:
    assert same(column({"linspace": [start, stop, n]}), np.linspace(start, stop, n))


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.sampled_from([1, -1]), st.integers(1, 60))
@example(1e-3, 0.5, 1, 32)
def test_geomspace_is_numpys(start: float, stop: float, sign: int, n: int) -> None:
    assert same(column({"geomspace": [sign * start, sign * stop, n]}), np.geomspace(sign * start, sign * stop, n))


@given(NUMBERS, st.floats(1e-3, 1e3), st.sampled_from([1, -1]), st.floats(0.1, 200))
@example(1.0, 0.1, 1, 3.0)
def test_arange_is_numpys(start: float, step: float, sign: int, count: float) -> None:
    step *= sign
    stop = start + step * count
    assume((stop - start) / step > 0)
    assert same(column({"arange": [start, stop, step]}), np.arange(start, stop, step))


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_a_list_is_itself(values: list[float]) -> None:
    assert same(column(values), np.array(values))
    assert column(values).tolist() == values


@pytest.mark.parametrize("name", ["linspace", "geomspace"])
@pytest.mark.parametrize(("start", "stop"), [([1.0, 2.0], [3.0, 50.0]), (0.5, [3.0, 50.0]), ([1.0, 2.0], 9.0)])
def test_the_ends_may_be_arrays(name: str, start: Any, stop: Any) -> None:
    expected = getattr(np, name)(start, stop, 7)
    assert expected.shape == (7, 2)
    assert same(column({name: [start, stop, 7]}, [1.0, 0.0]), expected)


KINDS = {
    "integers stay integers": ([2**53 + 1, -(2**63), 2**63 - 1], 3, np.int64),
    "integers for a float": ([1, 2], 0.5, np.float64),
    "floats for an integer": ([1, 2.5], 3, np.float64),
    "booleans": ([True, False], True, np.bool_),
    "complex": ([1, 2j], 0.5, np.complex128),
    "an integral range": ({"arange": [0, 10, 3]}, 1, np.int64),
    "a float range for an integer": ({"linspace": [0, 1, 3]}, 1, np.float64),
    "one value": ([7.0], 0.5, np.float64),
    "an array": ([[1, 0], [0, 1]], [1.0, 0.0], np.float64),
}


@pytest.mark.parametrize("case", KINDS, ids=lambda name: name.replace(" ", "_"))
def test_kinds(case: str) -> None:
    axis, nominal, dtype = KINDS[case]
    found = column(axis, nominal)
    assert found.dtype == dtype
    if isinstance(axis, list):
        assert found.tolist() == axis


# ---- grid, zip, none


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3))
def test_a_grid_is_the_outer_product_in_c_order(lengths: list[int], replicates: int) -> None:
    axes = {name: (10.0 * i + np.arange(n)).tolist() for i, (name, n) in enumerate(zip("dbca", lengths, strict=False))}
    points = made(axes, replicates=replicates)
    tail, dims = ([replicates], ["replicate"]) if replicates > 1 else ([], [])
    assert points.dims == (*axes, *dims)
    assert points.shape == (*lengths, *tail)
    assert points.samples == math.prod(lengths) * replicates
    found = whole(points)
    mesh = np.meshgrid(*axes.values(), *([np.arange(replicates)] if tail else []), indexing="ij")
    for name, expected in zip(axes, mesh, strict=False):
        assert same(found[name], expected.ravel())
    coordinates = {c.name: (c.dims, c.values.tolist()) for c in points.coordinates()}
    expected_tail = {"replicate": (("replicate",), list(range(replicates)))} if tail else {}
    assert coordinates == {name: ((name,), values) for name, values in axes.items()} | expected_tail


def test_an_array_valued_axis_of_a_grid_is_indexed_by_position() -> None:
    values = [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[0.0] * 3] * 2]
    points = made({"m": values, "k": [7.0, 8.0, 9.0]}, {"m": np.ones((2, 3)).tolist()})
    assert (points.dims, points.shape) == (("m", "k"), (2, 3))
    coordinates = {c.name: c for c in points.coordinates()}
    assert coordinates["m"].values.tolist() == [0, 1]
    assert coordinates["m_values"].dims == ("m", "m_0", "m_1")
    assert coordinates["m_values"].values.tolist() == values
    found = whole(points)
    assert found["m"].shape == (6, 2, 3)
    assert found["m"].tolist() == [values[0]] * 3 + [values[1]] * 3
    assert found["k"].tolist() == [7, 8, 9] * 2


@given(st.integers(1, 9), st.integers(1, 3))
def test_zip_pairs(n: int, replicates: int) -> None:
    a, b = list(range(n)), [[float(i), -float(i)] for i in range(n)]
    points = made({"a": a, "b": b}, {"a": 1, "b": [0.0, 0.0]}, design="zip", replicates=replicates)
    assert points.dims == ("sample", "replicate")[: 1 + (replicates > 1)]
    assert points.samples == n * replicates
    found = whole(points)
    assert found["a"].tolist() == np.repeat(a, replicates).tolist()
    assert found["b"].tolist() == np.repeat(b, replicates, axis=0).tolist()
    coordinates = {c.name: c.dims for c in points.coordinates()}
    assert coordinates["a"] == ("sample",)
    assert coordinates["b"] == ("sample", "b_0")


@pytest.mark.parametrize("replicates", [1, 3])
def test_no_sweep_is_one_point(replicates: int) -> None:
    points = made({}, {"k": 0.5}, replicates=replicates)
    assert (points.kind, points.samples, points.columns) == ("none", replicates, {})
    assert points.dims == (("replicate",) if replicates > 1 else ())
    assert points.take(np.arange(replicates)) == points.point(0) == {}


@pytest.mark.parametrize("kind", SAMPLED)
def test_replicates_repeat_each_point(kind: str) -> None:
    once = made({"k": UNIT}, design=kind, samples=5)
    thrice = made({"k": UNIT}, design=kind, samples=5, replicates=3)
    assert (thrice.dims, thrice.shape) == (("sample", "replicate"), (5, 3))
    assert same(whole(thrice)["k"], np.repeat(whole(once)["k"], 3))


def test_a_point_is_plain_python() -> None:
    points = made({"n": [1, 2], "y0": [[1, 0], [0, 1]], "b": [False]}, {"n": 3, "y0": [1.0, 0.0], "b": True})
    found = points.point(3)
    assert found == {"n": 2, "y0": [0.0, 1.0], "b": False}
    assert [type(value) for value in found.values()] == [int, list, bool]


# ---- access by block


@st.composite
def sweeps(draw: st.DrawFn) -> Design:
    kind = draw(st.sampled_from(["grid", "zip", *SAMPLED]))
    replicates = draw(st.integers(1, 3))
    nominal = {"a": 0.5, "b": [1.0, 0.0], "c": 1}
    if kind in SAMPLED:
        axes: dict[str, Any] = {"a": {"normal": [0, 1]}, "b": UNIT, "c": {"choice": [1, 2, 3]}}
        return made(axes, nominal, design=kind, samples=draw(st.integers(1, 40)), replicates=replicates)
    sizes = [draw(st.integers(1, 6))] * 3 if kind == "zip" else [draw(st.integers(1, 6)) for _ in nominal]
    axes = {
        "a": {"linspace": [0, 1, sizes[0]]},
        "b": [[i, -i] for i in range(sizes[1])],
        "c": list(range(sizes[2])),
    }
    return made(axes, nominal, design=kind, replicates=replicates)


@given(sweeps(), st.integers(1, 50))
def test_blocks_are_parts_of_the_whole(points: Design, limit: int) -> None:
    blocks = cut(points.shape, limit)
    expected = {name: values.reshape(*points.shape, *values.shape[1:]) for name, values in whole(points).items()}
    for number in blocks:
        samples = blocks.samples_of(number)
        part = points.take(samples)
        for name, values in expected.items():
            region = values[blocks.region(number)]
            assert same(part[name], region.reshape(len(samples), *values.shape[len(points.shape) :]))


@given(sweeps(), st.data())
def test_a_sample_does_not_depend_on_its_neighbours(points: Design, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, points.samples - 1), min_size=1, max_size=8))
    together = points.take(np.array(index, np.int64))
    for position, sample in enumerate(index):
        assert points.point(sample) == {name: values[position].tolist() for name, values in together.items()}


# ---- distributions


DISTRIBUTIONS: dict[str, tuple[list[float], Any]] = {
    "uniform": ([-2.0, 5.0], stats.uniform(-2, 7)),
    "loguniform": ([1e-3, 1e2], stats.loguniform(1e-3, 1e2)),
    "normal": ([3.0, 0.5], stats.norm(3, 0.5)),
    "lognormal": ([-1.0, 0.75], stats.lognorm(0.75, scale=math.exp(-1))),
}


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("seed", [0, 7])
def test_distributions_are_scipys(kind: str, name: str, seed: int) -> None:
    """The distance of Kolmogorov and Smirnov: 0.03 would befall 4096 random numbers once in a thousand times."""
    arguments, truth = DISTRIBUTIONS[name]
    found = column({name: arguments}, design=kind, samples=4096, seed=seed)
    assert np.isfinite(found).all()
    assert stats.kstest(found, truth.cdf).statistic < (0.03 if kind == "random" else 0.001)
    error = 5 * truth.std() / math.sqrt(4096)
    assert abs(found.mean() - truth.mean()) < error
    assert abs(found.std() / truth.std() - 1) < 0.15
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs(truth.cdf(np.quantile(found, q)) - q) < 0.03


@pytest.mark.parametrize("kind", SAMPLED)
def test_choice_takes_each_value_equally_often(kind: str) -> None:
    found = column({"choice": [4, 8, 15, 16]}, 1, design=kind, samples=4096)
    values, counts = np.unique(found, return_counts=True)
    assert found.dtype == np.int64
    assert values.tolist() == [4, 8, 15, 16]
    assert abs(counts - 1024).max() <= (140 if kind == "random" else 0)


@pytest.mark.parametrize("kind", SAMPLED)
def test_choice_of_arrays_and_of_elements(kind: str) -> None:
    vectors = column({"choice": [[1, 2], [3, 4]]}, [0.0, 0.0], design=kind, samples=64)
    assert {tuple(v) for v in vectors.tolist()} == {(1, 2), (3, 4)}
    elements = column({"choice": [1, 2]}, [0.0, 0.0], design=kind, samples=64)
    assert {tuple(v) for v in elements.tolist()} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert set(column({"choice": [True, False]}, True, design=kind, samples=64).tolist()) == {True, False}


@pytest.mark.parametrize("kind", SAMPLED)
def test_arguments_may_be_arrays(kind: str) -> None:
    found = column({"normal": [[0, 10], [1.0, 0.1]]}, [0.0, 0.0], design=kind, samples=2048)
    assert found.shape == (2048, 2)
    assert np.allclose(found.mean(axis=0), [0, 10], atol=[0.12, 0.012])
    assert np.allclose(found.std(axis=0), [1, 0.1], rtol=0.1)
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.1


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e300), (5e-324, 1.7e308), (1.0, 1.0 + 2**-40)])
def test_loguniform_of_any_range(kind: str, low: float, high: float) -> None:
    """Also where the ratio of the ends overflows, and where it is nearly 1."""
    found = column({"loguniform": [low, high]}, design=kind, samples=1024)
    position = (np.log(found) - math.log(low)) / (math.log(high) - math.log(low))
    assert (found >= low).all()
    assert (found <= high).all()
    assert stats.kstest(position, "uniform").statistic < 0.07


@given(st.sampled_from(SAMPLED), SEEDS, NUMBERS, st.floats(1e-3, 1e6))
def test_uniform_stays_inside(kind: str, seed: int, low: float, width: float) -> None:
    found = column({"uniform": [low, low + width]}, design=kind, samples=64, seed=seed)
    assert (found >= low).all()
    assert (found <= low + width).all()


# ---- how the unit cube is filled


@given(st.integers(1, 200), st.integers(1, 4), SEEDS)
def test_a_latin_hypercube_has_one_point_in_each_stratum(n: int, axes: int, seed: int) -> None:
    points = made(dict.fromkeys("abcd"[:axes], UNIT), design="latin_hypercube", samples=n, seed=seed)
    for values in points.columns.values():
        assert sorted(np.floor(values * n).astype(int)) == list(range(n))


def test_the_elements_of_an_array_are_axes_of_the_cube() -> None:
    points = made({"m": UNIT, "k": UNIT}, {"m": [[0.0] * 3] * 2}, design="latin_hypercube", samples=50)
    cube = np.hstack([points.columns["m"].reshape(50, 6), points.columns["k"][:, None]])
    assert (np.sort(np.floor(cube * 50).astype(int), axis=0) == np.arange(50)[:, None]).all()
    assert len({tuple(order) for order in np.argsort(cube, axis=0).T}) == 7


@given(st.integers(0, 8), SEEDS)
def test_sobol_at_a_power_of_two_is_balanced(power: int, seed: int) -> None:
    n = 2**power
    points = made(dict.fromkeys("abc", UNIT), design="sobol", samples=n, seed=seed)
    for values in points.columns.values():
        assert sorted(np.floor(values * n).astype(int)) == list(range(n))


@pytest.mark.parametrize("kind", ["sobol", "halton"])
@pytest.mark.parametrize("axes", ["ab", "abc", "abcde"])
@pytest.mark.parametrize("seed", range(3))
def test_low_discrepancy(kind: str, axes: str, seed: int) -> None:
    def discrepancy(name: str) -> float:
        points = made(dict.fromkeys(axes, UNIT), design=name, samples=256, seed=seed)
        return float(stats.qmc.discrepancy(np.stack(list(points.columns.values()), axis=1)))

    assert discrepancy(kind) < 0.5 * discrepancy("random")


# ---- seeds and more samples


@given(st.sampled_from(SEQUENCES), SEEDS, st.integers(1, 70), st.integers(1, 70))
def test_the_first_points_stay_when_samples_are_added(kind: str, seed: int, n: int, more: int) -> None:
    axes = {"a": {"normal": [0, 1]}, "b": UNIT, "c": {"choice": [1, 2, 3]}}
    few, many = (made(axes, {"b": [0.0] * 3}, seed, design=kind, samples=m) for m in (n, n + more))
    for name in axes:
        assert same(few.columns[name], many.columns[name][:n])


@given(SEEDS, st.permutations("abcd"), st.integers(1, 4))
def test_a_random_axis_depends_on_the_seed_and_its_name_only(seed: int, order: list[str], count: int) -> None:
    every = made(dict.fromkeys("abcd", UNIT), seed=seed, design="random", samples=9)
    some = made(dict.fromkeys(order[:count], UNIT), seed=seed, design="random", samples=9)
    for name, values in some.columns.items():
        assert same(values, every.columns[name])
    assert len({values.tobytes() for values in every.columns.values()}) == 4


@given(st.sampled_from(SAMPLED), SEEDS, SEEDS)
@example("random", 0, 2**32)
@example("sobol", 0, 2**32)
def test_a_seed_is_the_same_numbers_and_another_is_not(kind: str, seed: int, other: int) -> None:
    def numbers(seed: int) -> np.ndarray:
        return np.stack(list(made({"a": UNIT, "b": UNIT}, seed=seed, design=kind, samples=16).columns.values()))

    assert same(numbers(seed), numbers(seed))
    assert seed == other or not np.array_equal(numbers(seed), numbers(other))


# ---- a million points


def traced(make: Callable[[], Design]) -> tuple[Design, int, int]:
    """A design, the bytes that it keeps, and the most that it took."""
    make()
    tracemalloc.start()
    try:
        points = make()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return points, kept, peak


@pytest.mark.parametrize("kind", ["random", "sobol", "latin_hypercube", "zip"])
def test_a_million_points_are_arrays(kind: str) -> None:
    n = 10**6
    line = {"linspace": [0, 1, n]}
    axes = {"a": line, "b": line} if kind == "zip" else {"a": {"normal": [0, 1]}, "b": UNIT}
    samples = {} if kind == "zip" else {"samples": n}
    points, kept, peak = traced(lambda: made(axes, design=kind, **samples))
    size = sum(values.nbytes for values in points.columns.values())
    assert all(type(values) is np.ndarray and values.dtype == np.float64 for values in points.columns.values())
    assert size == 2 * 8 * n
    assert kept < 1.1 * size
    assert peak < 5 * size


def test_a_grid_of_a_thousand_million_points_is_never_formed() -> None:
    axes = {name: {"linspace": [0, 1, 1000]} for name in "abc"}
    points, kept, _ = traced(lambda: made(axes))
    assert points.samples == 10**9
    assert kept < 10**5
    last = points.take(np.array([0, 10**9 - 1]))
    assert {name: values.tolist() for name, values in last.items()} == {name: [0.0, 1.0] for name in "abc"}


# ---- tables


def table(text: str, nominal: Mapping[str, Any], encoding: str = "utf-8") -> Design:
    """The design of a CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "points.csv").write_text(text, encoding=encoding, newline="")
        return made({}, nominal, folder=Path(folder), design="table", table="points.csv")


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(FLOATS, WHOLE, st.booleans()), min_size=1, max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_a_table_is_read_exactly(rows: list[tuple[float, int, bool]], end: str) -> None:
    lines = ["k, n ,b", *(f"{k!r},{n}, {str(b).lower()}" for k, n, b in rows), ""]
    points = table(end.join(lines), {"b": True, "k": 0.5, "n": 1, "rest": 2.0})
    assert (points.dims, points.shape) == (("sample",), (len(rows),))
    assert list(points.columns) == ["k", "n", "b"]
    for values, expected, dtype in zip(points.columns.values(), zip(*rows, strict=True), "fib", strict=True):
        assert values.dtype.kind == dtype
        assert values.tolist() == list(expected)


@pytest.mark.parametrize(
    "text",
    [
        "k,n\n1,2\n3,4\n",
        "k,n\n\n1,2\n   \n3,4",
        "\ufeffk,n\n1,2\n3,4\n",
        '"k","n"\n"1","2"\n"3","4"\n',
        "k,n,,\n1,2,,\n3,4,,\n",
        "n,k\n2,1\n4,3\n",
    ],
)
def test_tables_as_programs_write_them(text: str) -> None:
    found = whole(table(text, {"k": 0.5, "n": 1}))
    assert found["k"].tolist() == [1.0, 3.0]
    assert found["n"].tolist() == [2, 4]
    assert found["n"].dtype == np.int64


CELLS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6),
    st.text("0123456789+-.eE_ ,", max_size=5),
    FLOATS.map(repr),
    st.integers().map(str),
    st.sampled_from(["nan", "inf", "-Infinity", "NA", "null", "true", "1_000", "1e400", "9" * 400, "0x10", ""]),
)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2) | st.lists(CELLS, max_size=4), max_size=4), st.booleans())
@settings(max_examples=300)
@example([["1_000", "1"]], False)
@example([["", ""], ["1", "2"]], False)
@example([["9" * 400, "1"]], False)
@example([["99999999999999999999", "1"]], True)
def test_a_table_is_read_as_python_reads_it_or_refused(rows: list[list[str]], whole_number: bool) -> None:
    """No cell is guessed at, and no row vanishes, but for blank lines."""
    lines = ["k,n", *(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)]
    points, problems = None, ()
    try:
        points = table("\n".join(lines), {"k": 0.5, "n": 1 if whole_number else 1.5})
    except SweepError as error:
        problems = error.problems
    if points is None:
        assert problems
        assert all(problem.startswith("`sweep.table") for problem in problems)
        return
    kept = [row for row in csv.reader(lines[1:]) if len(row) > 1 or any(cell.strip() for cell in row)]
    assert points.columns["k"].tolist() == [float(row[0]) for row in kept]
    assert points.columns["n"].tolist() == [float(row[1]) for row in kept]


def test_a_long_table() -> None:
    n = 150_000
    points = table("k\n" + "".join(f"{i}\n" for i in range(n)) + "0.5\n", {"k": 1})
    assert same(points.columns["k"], np.array([*range(n), 0.5]))
    with pytest.raises(SweepError, match=f"row {n + 2}, column 'k'"):
        table("k\n" + "".join(f"{i}\n" for i in range(n)) + "x\n", {"k": 1})
