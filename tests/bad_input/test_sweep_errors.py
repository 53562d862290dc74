"""Bad sweeps: the key first, what it must be, what was found, what to do about it, and nothing written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from engine.errors import UserError
from tests.project import Project

MODEL = """\
    import jax.numpy as jnp


    def decay(k, kappa, y0, n, flag):
        return {"y": jnp.sum(y0) * jnp.exp(-k * kappa) ** n * jnp.where(flag, 1.0, 2.0)}
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: decay
    parameters: {k: 0.5, kappa: 1.0, y0: [1.0, 0.0], n: 3, flag: true}
    stages:
      decay: {_target_: model.decay}
    outputs: {y: decay.y}
    sweep: {axes: {k: [0.1, 0.2]}}
"""
SWEEP = "{axes: {k: [0.1, 0.2]}}"
TABLE = CONFIG.replace(SWEEP, "{design: table, table: points.csv}")
FORM = re.compile(r"`[^`]+`[^`]* must .+, but .+[.:?] (?=[A-Z`]).+[.?]'?", re.DOTALL)
"""Where, what it must be, what was found, and a sentence more: the remedy."""


@pytest.fixture
def decay(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def problems(project: Project, *overrides: str) -> list[str]:
    """What a run says; it must say it in the house's form, and leave nothing behind."""
    before = set(os.listdir(project.folder))
    with pytest.raises(UserError) as caught:
        project.run(*overrides)
    assert set(os.listdir(project.folder)) - before <= {"__pycache__"}, "something was written"
    found = list(caught.value.problems)
    for problem in found:
        assert FORM.fullmatch(problem) or "more problems of this kind" in problem, problem
        assert "Traceback" not in problem
        assert len(problem) < 700, problem
    return found


# ---- axes


HUGE = "1" + 400 * "0"
WRITTEN = {
    # lists
    "empty": (1.5, "[]", ["at least one value", "empty", "remove the axis"]),
    "empty_mapping": (1.5, "{}", ["linspace", "empty", "remove the axis"]),
    "nothing": (1.5, "null", ["linspace", "but is null", "remove the axis"]),
    "number": (1.5, "5", ["list of values", "but is 5", "Write [5]"]),
    "text": (1.5, "low", ["list of values", "text 'low'", "brackets"]),
    "overflow_in_a_list": (1.5, "[1, 1e400]", ["[1]`", "finite", "but is inf", "Remove it"]),
    "beyond_64_bits": (1, "[9223372036854775808]", ["[0]`", "64 bits", "9223372036854775808", "float: 9.223372e+18"]),
    "beyond_a_double": (1, f"[{HUGE}]", ["[0]`", "64 bits", "100000", "smaller"]),
    "text_in_a_list": (1.5, "[1, one]", ["[1]`", "a number", "text 'one'", "-m"]),
    "quoted_number": (1.5, "['2']", ["[0]`", "a number", "text '2'", "without quotes"]),
    "arithmetic": (1.5, "[1, 1/3]", ["[1]`", "a number", "text '1/3'", "not evaluated"]),
    "null_in_a_list": (1.5, "[1, null]", ["[1]`", "a number", "but is null"]),
    "boolean_in_a_list": (1.5, "[1, true]", ["[1]`", "a number", "but is true", "1 or 0"]),
    "number_for_a_boolean": ("true", "[1, true]", ["[0]`", "true or false", "but is 1", "Write true or false"]),
    "text_for_a_boolean": ("true", "['yes']", ["[0]`", "true or false", "text 'yes'", "Write true or false"]),
    "repeated": (1.5, "[1, 2, 1.0]", ["repeat", "1.0", "positions 0 and 2", "sweep.replicates"]),
    # shapes
    "mixed_shapes": (1.5, "[1, [2]]", ["[1]`", "a single number", "(1,)", "[2]", "nominal value of that shape"]),
    "mixed_shapes_of_arrays": ("[1, 0]", "[[1, 2], 3]", ["[1]`", "(2,)", "a single number: 3", "nested list"]),
    "another_shape": ("[1, 0]", "[[1, 2, 3]]", ["[0]`", "(2,)", "(3,)", "[1, 2, 3]", "nested list"]),
    "numbers_for_an_array": ("[1, 0]", "[1, 2]", ["[0]`", "[1]`", "(2,)", "a single number: 1"]),
    "ragged": ("[1, 0]", "[[1, [2]]]", ["[0]`", "(2,)", "ragged", "[1, [2]]"]),
    "range_of_numbers_for_an_array": (
        "[1, 0]",
        "{linspace: [0, 1, 3]}",
        [".linspace`", "(2,)", "0 to 1", "each element"],
    ),
    "end_of_another_shape": (
        "[1, 0]",
        "{linspace: [[0, 0, 0], [1, 1], 3]}",
        [".linspace[0]`", "(2,)", "(3,)", "[0, 0, 0]"],
    ),
    "arange_for_an_array": ("[1, 0]", "{arange: [0, 1, 0.1]}", [".arange`", "scalar", "(2,)", "Write the list"]),
    # NumPy's constructors
    "linspace_of_none": (1.5, "{linspace: [0, 1, 0]}", [".linspace[2]`", "positive integer", "but is 0", "It is n"]),
    "linspace_of_a_fraction": (
        1.5,
        "{linspace: [0, 1, 0.1]}",
        [".linspace[2]`", "positive integer", "0.1", "arange: [start"],
    ),
    "linspace_of_too_many": (
        1.5,
        "{linspace: [0, 1, 1e15]}",
        [".linspace[2]`", "at most", "1000000000000000", "fewer"],
    ),
    "linspace_without_n": (
        1.5,
        "{linspace: [0, 1]}",
        [".linspace`", "[start, stop, n]", "has 2: [0, 1]", "leave the name"],
    ),
    "linspace_of_text": (1.5, "{linspace: [0, end, 3]}", [".linspace[1]`", "a number", "text 'end'"]),
    "linspace_to_infinity": (1.5, "{linspace: [0, 1e400, 3]}", [".linspace[1]`", "finite", "but is inf"]),
    "linspace_overflow": (
        1.5,
        "{linspace: [-1e308, 1e308, 3]}",
        [".linspace`", "finite", "-1e+308", "overflows", "smaller"],
    ),
    "geomspace_through_zero": (
        1.5,
        "{geomspace: [-1, 1, 3]}",
        [".geomspace`", "same sign", "from -1 to 1", "linspace"],
    ),
    "geomspace_from_zero": (1.5, "{geomspace: [0, 1, 3]}", [".geomspace`", "not 0", "from 0 to 1", "small number"]),
    "logspace": (1.5, "{logspace: [0, 400, 3]}", [".logspace`", "'geomspace'", "the last value, not their exponents"]),
    "arange_without_a_step": (
        1.5,
        "{arange: [0, 1, 0]}",
        [".arange`", "not 0", "[0, 1, 0]", "linspace: [start, stop, n]"],
    ),
    "arange_the_wrong_way": (
        1.5,
        "{arange: [0, 1, -1]}",
        [".arange`", "hold a value", "[0, 1, -1]", "sign of the step"],
    ),
    "arange_of_too_many": (1.5, "{arange: [0, 1, 1e-12]}", [".arange`", "at most", "1e+12", "larger step"]),
    "arange_overflow": (1.5, "{arange: [-1e308, 1e308, 1e308]}", [".arange`", "a double", "1e+308", "smaller"]),
    "range_of_booleans": ("true", "{linspace: [0, 1, 2]}", [".linspace`", "for a number", "[true, false]"]),
    "misspelt_constructor": (1.5, "{linspce: [0, 1, 2]}", [".linspce`", "'arange'", "Did you mean 'linspace'?"]),
    "unknown_constructor": (
        1.5,
        "{chebyshev: [0, 1, 2]}",
        [".chebyshev`", "'linspace'", "'chebyshev'", "Write a list"],
    ),
    "constructor_without_values": (1.5, "linspace", ["text 'linspace'", "Write {linspace: [start, stop, n]}"]),
    "two_constructors": (
        1.5,
        "{linspace: [0, 1, 2], arange: [0, 1, 1]}",
        ["single", "'linspace', 'arange'", "Keep one"],
    ),
    "distribution_in_a_grid": (1.5, "{normal: [0, 1]}", ["list values", "distribution normal", "sweep.design: random"]),
}
DRAWN = {
    "list": (1.5, "[1, 2]", ["distribution", "list [1, 2]", "{choice: [...]}", "zip"]),
    "number": (1.5, "5", ["{uniform: [low, high]}", "but is 5", "{choice: [5]}"]),
    "empty": (1.5, "{}", ["{uniform: [low, high]}", "empty", "remove the axis"]),
    "name_only": (1.5, "uniform", ["text 'uniform'", "Write {uniform: [low, high]}"]),
    "range": (1.5, "{linspace: [0, 1, 3]}", ["distribution", "but is linspace", "sweep.design: grid"]),
    "unknown": (1.5, "{gamma: [1, 2]}", [".gamma`", "'lognormal'", "'gamma'", "sweep.table"]),
    "misspelt": (1.5, "{unifrom: [0, 1]}", [".unifrom`", "Did you mean 'uniform'?"]),
    "another_name": (1.5, "{gaussian: [0, 1]}", [".gaussian`", "Did you mean 'normal'?"]),
    "two": (1.5, "{uniform: [0, 1], normal: [0, 1]}", ["single", "'uniform', 'normal'", "Keep one"]),
    "one_argument": (1.5, "{uniform: [1]}", [".uniform`", "2 values", "has 1: [1]", "Write {uniform: [low, high]}"]),
    "three_arguments": (1.5, "{normal: [0, 1, 2]}", [".normal`", "[mean, std]", "has 3: [0, 1, 2]"]),
    "no_list_of_arguments": (1.5, "{normal: 1}", [".normal`", "[mean, std]", "but is 1"]),
    "text_argument": (1.5, "{normal: [0, wide]}", [".normal[1]`", "a number", "text 'wide'"]),
    "negative_scale": (1.5, "{normal: [0, -2]}", [".normal`", "std > 0", "std is -2", "fix the parameter"]),
    "zero_scale": (1.5, "{lognormal: [0, 0]}", [".lognormal`", "std > 0", "std is 0"]),
    "negative_scale_of_an_element": ("[1, 0]", "{normal: [0, [1, -2]]}", [".normal`", "std > 0", "[1, -2]"]),
    "scale_of_another_shape": ("[1, 0]", "{normal: [0, [1, 1, 1]]}", [".normal[1]`", "(2,)", "(3,)", "[1, 1, 1]"]),
    "ragged_scale": ("[1, 0]", "{normal: [0, [1, [1]]]}", [".normal[1]`", "(2,)", "ragged", "[1, [1]]"]),
    "swapped_bounds": (1.5, "{uniform: [2, 1]}", [".uniform`", "low < high", "low is 2 and high is 1", "Swap"]),
    "equal_bounds": (1.5, "{uniform: [1, 1]}", [".uniform`", "low < high", "fix the parameter"]),
    "infinite_bound": (1.5, "{uniform: [0, 1e400]}", [".uniform[1]`", "finite", "but is inf"]),
    "bound_beyond_a_double": (1.5, f"{{uniform: [0, {HUGE}]}}", [".uniform[1]`", "64 bits", "100000", "smaller"]),
    "logarithm_of_zero": (1.5, "{loguniform: [0, 1]}", [".loguniform`", "above 0", "low is 0", "small positive"]),
    "choice_of_nothing": (1.5, "{choice: []}", [".choice`", "at least one value", "empty"]),
    "choice_of_text": (1.5, "{choice: [1, a]}", [".choice[1]`", "a number", "text 'a'"]),
    "choice_of_shapes": ("[1, 0]", "{choice: [[1, 2], [3]]}", [".choice[1]`", "(2,)", "(1,)", "[3]"]),
    "for_a_boolean": ("true", "{uniform: [0, 1]}", [".uniform`", "for a number", "{choice: [true, false]}"]),
}


def said_of(cases: dict[str, tuple[object, str, list[str]]], head: str, folder: Path) -> list[str]:
    """What one run says of a bad axis for each case; the parameter bears the case's name."""
    parameters = "".join(f"  {name}: {nominal}\n" for name, (nominal, _, _) in cases.items())
    axes = "".join(f"    {name}: {axis}\n" for name, (_, axis, _) in cases.items())
    config = "defaults: [engine, _self_]\nname: bad\nstages: {s: {_target_: model.f}}\n"
    project = Project(folder, folder / "case.yaml")
    return problems(project.yaml(f"{config}parameters:\n{parameters}sweep:\n{head}  axes:\n{axes}"))


@pytest.fixture(scope="module")
def of_written(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return said_of(WRITTEN, "  design: grid\n", tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="module")
def of_drawn(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return said_of(DRAWN, "  design: sobol\n  samples: 8\n", tmp_path_factory.mktemp("drawn"))


def check_axis(said: list[str], name: str, expected: list[str]) -> None:
    about = [problem for problem in said if re.match(rf"`sweep\.axes\.{name}[`.\[]", problem)]
    assert about, "nothing said"
    for part in expected:
        assert part in "\n".join(about), about


@pytest.mark.parametrize("name", WRITTEN)
def test_an_axis_that_is_written_out(of_written: list[str], name: str) -> None:
    check_axis(of_written, name, WRITTEN[name][2])


@pytest.mark.parametrize("name", DRAWN)
def test_an_axis_that_is_drawn(of_drawn: list[str], name: str) -> None:
    check_axis(of_drawn, name, DRAWN[name][2])


# ---- the sweep as a whole


RANDOM = "{design: random, samples: %s, axes: {k: {uniform: [0, 1]}}}"
SWEEPS = {
    "negative samples": (RANDOM % -3, ["`sweep.samples`", "positive integer", "but is -3", "number of points"]),
    "no samples": (RANDOM % 0, ["`sweep.samples`", "positive integer", "but is 0"]),
    "infinite samples": (RANDOM % "1e400", ["`sweep.samples`", "positive integer", "but is inf"]),
    "samples beyond a double": (RANDOM % HUGE, ["`sweep.samples`", "at most", "100000", "fewer"]),
    "samples beyond memory": (RANDOM % 10**15, ["`sweep.samples`", "at most", "but is 1000000000000000.", "fewer"]),
    "fractional samples": (RANDOM % 2.5, ["`sweep.samples`", "positive integer", "but is 2.5"]),
    "text samples": (RANDOM % "many", ["`sweep.samples`", "positive integer", "text 'many'"]),
    "boolean samples": (RANDOM % "true", ["`sweep.samples`", "positive integer", "but is true"]),
    "samples missing": (RANDOM % "null", ["`sweep.samples`", "random", "missing", "samples: 1024"]),
    "samples of a zip": (
        "{design: zip, samples: 4, axes: {k: [1, 2]}}",
        ["`sweep.samples`", "zip", "but is 4", "Remove it", "'sobol'"],
    ),
    "replicates": ("{replicates: 0, axes: {k: [1, 2]}}", ["`sweep.replicates`", "positive integer", "but is 0"]),
    "unknown design": ("{design: gird, axes: {k: [1, 2]}}", ["`sweep.design`", "'gird'", "Did you mean 'grid'?"]),
    "unequal zip": (
        "{design: zip, axes: {k: [1, 2], n: [1, 2, 3]}}",
        ["`sweep.axes`", "equally long", "'k': 2, 'n': 3", "sweep.design: grid"],
    ),
    "zip of nothing": ("{design: zip}", ["`sweep.axes`", "zip", "empty", "axes: {parameter: axis}"]),
    "axis of no parameter": (
        "{axes: {kapa: [1, 2]}}",
        ["`sweep.axes.kapa`", "`parameters`", "no parameter 'kapa'", "Did you mean 'kappa'?", "'y0'"],
    ),
    "sampled axis of no parameter": (
        "{design: halton, samples: 4, axes: {kapa: {uniform: [0, 1]}}}",
        ["`sweep.axes.kapa`", "Did you mean 'kappa'?"],
    ),
    "axis of a choice": ("{axes: {solver: [tsit5, dopri8]}}", ["`sweep.axes.solver`", "-m solver=tsit5,dopri8"]),
    "an axis twice": ("{axes: {k: [1], k: [2]}}", ["once", "'k'", "Remove one"]),
    "nan in an axis": ("{axes: {k: [1, .nan]}}", ["`sweep.axes.k.1`", ".nan", "finite"]),
    "infinity in an axis": ("{axes: {k: [-.inf]}}", ["`sweep.axes.k.0`", "-.inf", "finite"]),
    "distribution that overflows": (
        "{design: random, samples: 4, axes: {k: {lognormal: [800, 1]}}}",
        ["`sweep.axes.k.lognormal`", "finite", "[800, 1]", "overflows", "smaller"],
    ),
    "too many points": (
        "{axes: {k: {linspace: [0, 1, 70000]}, kappa: {linspace: [0, 1, 70000]}}}",
        ["`sweep`", "2**32", "4900000000"],
    ),
    "far too many points": (
        f"{{axes: {{{', '.join(f'{name}: {{linspace: [0, 1, 300000]}}' for name in ('k', 'kappa', 'n'))}}}, replicates: 1e8}}",
        ["`sweep`", "300000 (k) x 300000 (kappa)", "fewer"],
    ),
    "table of a grid": (
        "{table: points.csv, axes: {k: [1]}}",
        ["`sweep.table`", "grid", "'points.csv'", "sweep.design: table"],
    ),
    "no table": ("{design: table}", ["`sweep.table`", "missing", "table: file.csv"]),
    "table and axes": ("{design: table, table: a.csv, axes: {k: [1]}}", ["`sweep.axes`", "'k'", "as columns"]),
}


@pytest.mark.parametrize("case", SWEEPS, ids=lambda name: name.replace(" ", "_"))
def test_sweep(decay: Project, case: str) -> None:
    sweep, expected = SWEEPS[case]
    text = "\n".join(problems(decay.yaml(CONFIG.replace(SWEEP, sweep))))
    for part in expected:
        assert part in text, text


@pytest.mark.parametrize(("value", "shown"), [("nan", "nan"), ("-inf", "-inf"), ("1e400", "inf")])
def test_numbers_that_are_not_finite_on_the_command_line(decay: Project, value: str, shown: str) -> None:
    (found,) = problems(decay, f"sweep.axes.k=[1,{value}]")
    assert found.startswith(f"`sweep.axes.k[1]` must be a finite number, but is {shown}. Remove it")


def test_every_problem_at_once(decay: Project) -> None:
    found = problems(
        decay,
        "sweep.design=random",
        "sweep.samples=0",
        "sweep.replicates=0",
        "sweep.axes={k: {uniform: [1, 0]}, kapa: {uniform: [0, 1]}, kappa: {normal: [nan, one]}}",
    )
    keys = [re.findall("`(.*?)`", problem)[0] for problem in found]
    assert sorted(keys) == sorted(
        [
            "sweep.replicates",
            "sweep.samples",
            "sweep.axes.k.uniform",
            "sweep.axes.kapa",
            "sweep.axes.kappa.normal[0]",
            "sweep.axes.kappa.normal[1]",
        ]
    )


def test_many_wrong_values_are_one_screen(decay: Project) -> None:
    found = problems(decay, f"sweep.axes.k=[{','.join(['a'] * 50)}]")
    assert len(found) == 6
    assert "45 more" in found[-1]


# ---- tables


TABLES = {
    "unknown column": (b"k,kapa\n1,2\n", ["column 'kapa'", "points.csv", "Did you mean 'kappa'?"]),
    "column without a name": (b"k,,n\n1,2,3\n", ["column 2", "points.csv", "no name"]),
    "column twice": (b"k,n,k\n1,2,3\n", ["column 'k'", "once", "2 times"]),
    "column of an array": (b"y0\n1\n", ["column 'y0'", "scalar", "(2,)", "zip"]),
    "semicolons": (b"k;n\n1;2\n", ["column 'k;n'", "commas"]),
    "no header": (b"1,2\n3,4\n", ["header", "'1,2'", "Add a row such as k,kappa"]),
    "empty": (b"", ["header", "points.csv is empty"]),
    "header only": (b"k,n\n", ["row for each point", "header only", "Add rows"]),
    "text": (b"k,n\n1,2\n3,many\n", ["row 3, column 'n'", "number", "text 'many'", "remove the row"]),
    "text after blank lines": (b"k,n\n\n1,2\n\n\n3,many\n", ["row 6, column 'n'"]),
    "nan": (b"k,n\n1,2\nNaN,3\n", ["row 3, column 'k'", "finite", "NaN", "remove the row"]),
    "infinity": (b"k\n1e400\n", ["row 2, column 'k'", "finite", "1e400"]),
    "not available": (b"k\n1\nNA\n", ["row 3, column 'k'", "number", "'NA'"]),
    "integer beyond 64 bits": (b"n\n9223372036854775808\n", ["row 2, column 'n'", "64 bits", "9.223372e+18"]),
    "integer beyond a double": (b"k\n" + HUGE.encode(), ["row 2, column 'k'", "finite", "1000"]),
    "boolean": (b"k\n1\ntrue\n", ["row 3, column 'k'", "number", "true"]),
    "number for a boolean": (b"flag\n1\n", ["row 2, column 'flag'", "true or false", "but is 1"]),
    "text for a boolean": (b"flag\nyes\n", ["row 2, column 'flag'", "true or false", "'yes'"]),
    "missing cell": (b"k,n\n1,2\n3\n", ["row 3, column 'n'", "number", "missing", "Fill the cell"]),
    "empty cell": (b"k,n\n,2\n", ["row 2, column 'k'", "missing"]),
    "empty cells only": (b"k,n\n1,2\n,\n3,4\n", ["row 3, column 'k'", "row 3, column 'n'", "missing"]),
    "too many cells": (b"k,n\n1,2\n3,4,5\n", ["row 3", "'k', 'n'", "has 3 cells", "'3,4,5'"]),
    "decimal commas": (b"k\n1,5\n2,5\n", ["row 2", "row 3", "has 2 cells", "decimal point"]),
    "quoted decimal commas": (b'k\n"1,5"\n', ["row 2, column 'k'", "'1,5'", "decimal point"]),
    "open quote": (b'k,n\n1,2\n"3,4\n', ["row 3", "comma-separated", "quotes"]),
    "latin 1": (b"k,n\n1,2\n3,caf\xe9\n", ["row 3", "UTF-8", "0xe9", "Save it as UTF-8"]),
    "utf 16": ("k\n1\n".encode("utf-16"), ["row 1", "UTF-8", "0xff"]),
    "bytes": (b"k\n1\x00\n", ["row 2, column 'k'", "number", "1\\x00"]),
}


@pytest.mark.parametrize("case", TABLES, ids=lambda name: name.replace(" ", "_"))
def test_table(decay: Project, case: str) -> None:
    content, expected = TABLES[case]
    (decay.folder / "points.csv").write_bytes(content)
    found = problems(decay.yaml(TABLE))
    assert all(problem.startswith("`sweep.table`") for problem in found)
    for part in expected:
        assert part in "\n".join(found), found


def test_a_late_byte_that_is_not_utf8_is_found_by_its_row(decay: Project) -> None:
    (decay.folder / "points.csv").write_bytes(b"k\n" + b"1\n" * 20_000 + b"\xb5\n")
    assert "row 20002" in problems(decay.yaml(TABLE))[0]


def test_many_wrong_cells_are_one_screen(decay: Project) -> None:
    (decay.folder / "points.csv").write_text("k,n\n" + "a,b\n" * 500)
    found = problems(decay.yaml(TABLE))
    assert len(found) == 6
    assert "995 more" in found[-1]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pionts.csv", ["is not there", "Did you mean 'points.csv'?", "config's folder"]),
        ("data/points.csv", ["is not there", "no folder"]),
        (".", ["is a folder", "'points.csv'"]),
    ],
)
def test_table_that_is_no_file(decay: Project, path: str, expected: list[str]) -> None:
    (decay.folder / "points.csv").write_text("k\n1\n")
    (found,) = problems(decay.yaml(TABLE), f"sweep.table={path}")
    assert found.startswith("`sweep.table` must be a CSV file, but ")
    for part in expected:
        assert part in found


@pytest.mark.parametrize("samples", [1, 3, 100])
def test_sobol_takes_any_number_of_samples(decay: Project, samples: int) -> None:
    """A number that is no power of two is the user's choice: no error, and no warning either."""
    plan = decay.yaml(CONFIG.replace(SWEEP, (RANDOM % samples).replace("random", "sobol"))).load()
    assert plan.draft.design.samples == samples


def test_command_line(decay: Project) -> None:
    before = set(os.listdir(decay.folder))
    answer = decay.cli("run", "case.yaml", "sweep.axes.k={linspace: [0, 1, 0.1]}")
    assert answer.code == 2
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("error: `sweep.axes.k.linspace[2]` must be a positive integer, but is 0.1.")
    assert set(os.listdir(decay.folder)) == before


def test_command_line_with_a_table(decay: Project) -> None:
    (decay.folder / "points.csv").write_text("k,n\n1,2\n3,many\n")
    decay.yaml(TABLE)
    before = set(os.listdir(decay.folder))
    answer = decay.cli("run", "case.yaml")
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("error: `sweep.table` row 3, column 'n' of points.csv must be a number, but is text 'many'.")
    assert set(os.listdir(decay.folder)) == before
