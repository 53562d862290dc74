"""Measurements: what `optimize.data` reads, and what it refuses, key first, with the nearest name and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from engine.errors import ConfigError
from engine.measurements import Measurements, check_shapes, read_measurements

FORM = re.compile(r"`[^`]+`[^`]* must .+, but .+[.:?] (?=[A-Z`]).+[.?]'?", re.DOTALL)
TABLE = "year, hare, lynx, spread, remark\n1900, 30, 4, 2.0, cold\n1901, 47.2, 6.1, 3.0,\n1902, 70.2, 9.8, 4.0, warm\n"
BOTH: dict[str, Any] = {"file": "pelts.csv", "outputs": {"hare": "hare", "lynx": "lynx"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pelts.csv").write_text(TABLE, encoding="utf-8")
    group = zarr.create_group(str(tmp_path / "field.zarr"))
    group.create_array("u", data=np.arange(6.0).reshape(2, 3))
    group.create_array("count", data=np.array([1, 2], np.int32))
    group.create_array("holes", data=np.array([1.0, np.nan, np.inf]))
    group.create_array("truth", data=np.array([True, False]))
    group.create_array("packed", data=np.array([1, 2], np.int16), attributes={"scale_factor": 0.1})
    zarr.create_array(str(tmp_path / "one.zarr"), data=np.array([1.0, 2.0]))
    return tmp_path


def refused(folder: Path, **node: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read_measurements(BOTH | node, folder)
    for problem in caught.value.problems:
        assert FORM.fullmatch(problem) or "more problems of this kind" in problem, problem
        assert len(problem) < 700
    return caught.value.problems


def test_a_table(folder: Path) -> None:
    found = read_measurements(BOTH | {"inputs": {"times": "year"}, "sigma": {"hare": "spread", "lynx": 2}}, folder)
    np.testing.assert_array_equal(found.values["hare"], [30, 47.2, 70.2])
    np.testing.assert_array_equal(found.inputs["times"], [1900, 1901, 1902])
    np.testing.assert_array_equal(found.sigma["hare"], [2, 3, 4])
    np.testing.assert_array_equal(found.sigma["lynx"], [2, 2, 2])
    assert found.size == 6 and found.confidence == 0.95
    assert {a.dtype for a in (*found.values.values(), *found.sigma.values(), *found.inputs.values())} == {
        np.dtype(float)
    }
    check_shapes(found, {"hare": (3,), "lynx": (3,), "other": ()})


def test_columns_side_by_side(folder: Path) -> None:
    """Sigma: a column is one for each row, a list one for each column of the output."""
    node = {"file": "pelts.csv", "outputs": {"pelts": ["hare", "lynx"]}}
    found = read_measurements(node | {"sigma": {"pelts": "spread"}}, folder)
    np.testing.assert_array_equal(found.values["pelts"], [[30, 4], [47.2, 6.1], [70.2, 9.8]])
    np.testing.assert_array_equal(found.sigma["pelts"], [[2, 2], [3, 3], [4, 4]])
    found = read_measurements(node | {"sigma": {"pelts": ["spread", 7.0]}}, folder)
    np.testing.assert_array_equal(found.sigma["pelts"], [[2, 7], [3, 7], [4, 7]])
    found = read_measurements(node | {"sigma": {"pelts": [1.0, 2.0]}}, folder)
    np.testing.assert_array_equal(found.sigma["pelts"], [[1, 2], [1, 2], [1, 2]])


def test_arrays_of_a_store(folder: Path) -> None:
    found = read_measurements(
        {"file": "field.zarr", "outputs": {"u": "u", "n": "count"}, "sigma": {"u": 0.1, "n": 1}}, folder
    )
    np.testing.assert_array_equal(found.values["u"], [[0, 1, 2], [3, 4, 5]])
    assert found.values["n"].dtype == float and found.sigma["u"].shape == (2, 3)
    alone = read_measurements({"file": folder / "one.zarr", "outputs": {"x": "one.zarr"}}, Path("/"))
    np.testing.assert_array_equal(alone.values["x"], [1, 2])


def test_equal_numbers_have_equal_digests(folder: Path) -> None:
    digest = read_measurements(BOTH, folder).digest
    assert digest == read_measurements(BOTH | {"confidence": 0.9}, folder).digest
    (folder / "pelts.csv").write_text(TABLE.replace("30", "30.0").replace("cold", "mild"), encoding="utf-8")
    assert digest == read_measurements(BOTH, folder).digest
    (folder / "pelts.csv").write_text(TABLE.replace("30", "30.1"), encoding="utf-8")
    assert digest != read_measurements(BOTH, folder).digest
    assert digest != read_measurements(BOTH | {"sigma": {"hare": 1.0, "lynx": 1.0}}, folder).digest


NODES = {
    "no file": ({"file": None}, "`optimize.data.file` must be the path .* but is null"),
    "no outputs": ({"outputs": {}}, "`optimize.data.outputs` must pair at least one"),
    "outputs a list": ({"outputs": ["hare"]}, "`optimize.data.outputs` must be a mapping"),
    "column a number": ({"outputs": {"hare": 3}}, "`optimize.data.outputs.hare` must be the name of a column.* but is 3"),
    "sigma zero": ({"sigma": {"hare": 0.0, "lynx": 1}}, "`optimize.data.sigma.hare` must be above 0 and finite, but is 0.0"),
    "sigma negative": ({"sigma": {"hare": -1, "lynx": 1}}, "must be above 0 and finite, but is -1"),
    "sigma nan": ({"sigma": {"hare": float("nan"), "lynx": 1}}, "must be above 0 and finite, but is nan"),
    "sigma true": ({"sigma": {"hare": True, "lynx": 1}}, "must be a number or the name of a column, but is true"),
    "sigma of no output": ({"sigma": {"hares": 1, "hare": 1, "lynx": 1}}, "'hares' is not among them. Did you mean 'hare'"),
    "sigma of some": ({"sigma": {"hare": 1}}, "each output or of none, but leaves out 'lynx'"),
    "sigma a number": ({"sigma": 2.0}, "`optimize.data.sigma` must be a mapping"),
    "confidence in percent": ({"confidence": 95}, "`optimize.data.confidence` must be between 0 and 1, but is 95"),
    "missing file": ({"file": "pelt.csv"}, "is not there. Did you mean 'pelts.csv'"),
    "missing folder": ({"file": "data/pelts.csv"}, "is not there. There is no folder"),
    "a folder": ({"file": "."}, "is a folder without a Zarr store"),
    "missing column": ({"outputs": {"hare": "hares"}}, "no column 'hares'. Did you mean 'hare'"),
    "missing input": ({"inputs": {"t": "yaer"}}, "`optimize.data.inputs.t` must name a column .* Did you mean 'year'"),
    "missing sigma": ({"sigma": {"hare": "sprd", "lynx": 1}}, "`optimize.data.sigma.hare` must name a column .*'spread'"),
    "text": ({"outputs": {"remark": "remark"}}, "row 2, column 'remark' of pelts.csv must be a number, but is text 'cold'"),
    "missing array": ({"file": "field.zarr", "outputs": {"u": "v"}}, "no array 'v'"),
    "array with holes": ({"file": "field.zarr", "outputs": {"u": "holes"}}, r"is nan at \[1\], and not finite at 2 places"),
    "array of booleans": ({"file": "field.zarr", "outputs": {"u": "truth"}}, "real numbers, but 'truth' holds bool"),
    "packed array": ({"file": "field.zarr", "outputs": {"u": "packed"}}, "it has 'scale_factor'"),
    "unlike arrays": ({"file": "field.zarr", "outputs": {"u": ["u", "count"]}}, r"of one shape, but .* have \(2, 3\), \(2,\)"),
    "sigma of another shape": (
        {"file": "field.zarr", "outputs": {"u": "u"}, "sigma": {"u": ["count", "count"]}},
        r"must have the shape of the values, \(2, 3\), but has \(2,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES)
def test_refused(case: str, folder: Path) -> None:
    node, expected = NODES[case]
    assert any(re.search(expected, problem, re.DOTALL) for problem in refused(folder, **node)), refused(folder, **node)


TABLES = {
    "": "is empty",
    "year,hare,lynx\n": "has a header only",
    "hare,lynx\n1,2\n,3\n": "row 3, column 'hare' of pelts.csv must be a number, but is missing",
    "hare,lynx\n1,2\n3\n": "row 3, column 'lynx' of pelts.csv must be a number, but is missing",
    "hare,lynx\n1,nan\n": "row 2, column 'lynx' of pelts.csv must be finite, but is nan",
    "hare,lynx\n1,inf\n": "must be finite, but is inf",
    "hare,lynx\n'1;5',2\n": "must be a number, but is text",
    "hare,lynx,hare\n1,2,3\n": "has 2 columns 'hare'. Rename one",
    'hare,lynx\n"1,2\n': "row 2 of pelts.csv must be comma-separated values",
    "hare,lynx\n" + 9 * "x,1\n": "has 4 more problems of this kind",
}


@pytest.mark.parametrize("text", TABLES)
def test_refused_tables(text: str, folder: Path) -> None:
    (folder / "pelts.csv").write_text(text, encoding="utf-8")
    problems = refused(folder)
    assert any(TABLES[text] in problem for problem in problems), problems


def test_everything_at_once(folder: Path) -> None:
    problems = refused(folder, outputs={"hare": "hares", "lynx": "remark"}, inputs={"t": "time"})
    assert len(problems) == 5  # two columns that are not there, three cells that are no numbers


def test_a_table_that_is_no_text(folder: Path) -> None:
    (folder / "pelts.csv").write_bytes(b"hare,lynx\n\xff,1\n")
    assert "must be UTF-8 text" in refused(folder)[0]


def test_a_store_that_is_damaged(folder: Path) -> None:
    (folder / "field.zarr" / "zarr.json").write_text("{", encoding="utf-8")
    assert "must be a Zarr store that is whole" in refused(folder, file="field.zarr")[0]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (
            {"hare": (21,), "lynx": (3,)},
            r"must have the shape of the output, \(21,\), but the measurements have \(3,\)",
        ),
        ({"hare": (), "lynx": (3,)}, r"the output, \(\), but"),
        ({"hares": (3,), "lynx": (3,)}, "there is no output 'hare'. Did you mean 'hares'"),
    ],
)
def test_outputs_of_another_shape(shapes: dict[str, tuple[int, ...]], expected: str, folder: Path) -> None:
    measured: Measurements = read_measurements(BOTH, folder)
    with pytest.raises(ConfigError, match=expected) as caught:
        check_shapes(measured, shapes)
    assert all(FORM.fullmatch(problem) for problem in caught.value.problems)
