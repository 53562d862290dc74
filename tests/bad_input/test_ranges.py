"""Declared ranges: every value that a parameter takes lies inside, or the run is refused before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import UserError
from tests.project import Project

MODEL = """\
    import jax.numpy as jnp

    TABLE = jnp.array([0.0, 10.0, 20.0, 30.0])


    def stage(n, k, y0):
        return TABLE[n] + k * jnp.sum(y0)
"""
CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {n: 1, k: 0.5, y0: [1.0, 0.0]}
    ranges: RANGES
    stages: {stage: {_target_: model.stage}}
    sweep: SWEEP
"""


def write(project: Project, ranges: str, sweep: str = "{}") -> Project:
    return project.model(MODEL).yaml(CONFIG.replace("RANGES", ranges).replace("SWEEP", sweep))


def problems(project: Project, ranges: str, sweep: str = "{}") -> str:
    """What loading says; it must say it in the house's form."""
    with pytest.raises(UserError) as caught:
        write(project, ranges, sweep).load()
    for problem in caught.value.problems:
        assert problem.startswith("`")
        assert " must " in problem and ", but " in problem
    return str(caught.value)


OUTSIDE = {
    # ranges, sweep, words
    "nominal": ("{n: [2, 3]}", "{}", ["`parameters.n`", "from 2 to 3", "`ranges.n`", "is 1", "Change the value, or"]),
    "element": ("{y0: [0.5, 2]}", "{}", ["`parameters.y0[1]`", "is 0.0"]),
    "element of arrays": ("{y0: [[0, 0.5], [2, 3]]}", "{}", ["`parameters.y0[1]`", "from 0.5 to 3", "is 0.0"]),
    "list": ("{n: [0, 2]}", "{axes: {n: [0, 2, 3]}}", ["`sweep.axes.n[2]`", "from 0 to 2", "is 3"]),
    "several": ("{n: [0, 2]}", "{axes: {n: [3, 0, 9, -1]}}", ["`sweep.axes.n[0]`", "is 3, and so do 2 more values"]),
    "one more": ("{n: [0, 2]}", "{axes: {n: [3, 9]}}", ["is 3, and so does 1 more value."]),
    "open high": ("{n: [1, null]}", "{axes: {n: [1, 0]}}", ["`sweep.axes.n[1]`", "at least 1", "is 0"]),
    "open low": ("{k: [null, 0.5]}", "{axes: {k: [0.5, 0.6]}}", ["`sweep.axes.k[1]`", "at most 0.5", "is 0.6"]),
    "linspace": (
        "{k: [0, 1]}",
        "{axes: {k: {linspace: [0, 2, 5]}}}",
        ["`sweep.axes.k.linspace`", "holds 1.5 at position 3"],
    ),
    "arange": ("{n: [0, 3]}", "{axes: {n: {arange: [0, 5, 1]}}}", ["`sweep.axes.n.arange`", "holds 4 at position 4"]),
    "arrays": ("{y0: [0, 1]}", "{axes: {y0: [[1, 0], [0, 2]]}}", ["`sweep.axes.y0[1][1]`", "is 2"]),
    "zip": (
        "{n: [0, 2]}",
        "{design: zip, axes: {n: [0, 3], k: [1, 2]}}",
        ["`sweep.axes.n[1]`", "is 3", "Change the value, or"],
    ),
    "choice": (
        "{n: [0, 2]}",
        "{design: random, samples: 50, axes: {n: {choice: [0, 7]}}}",
        ["`sweep.axes.n.choice`", "draws 7 for sample "],
    ),
    "sobol": (
        "{k: [0, 1]}",
        "{design: sobol, samples: 16, axes: {k: {uniform: [0, 2]}}}",
        ["`sweep.axes.k.uniform`", "draws 1.", "Narrow the distribution, or widen the range."],
    ),
    "drawn arrays": (
        "{y0: [0, 1]}",
        "{design: random, samples: 16, axes: {y0: {uniform: [[0, 0], [1, 9]]}}}",
        ["`sweep.axes.y0.uniform`", "in its element [1]"],
    ),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_value_outside_is_named(project: Project, case: str) -> None:
    ranges, sweep, words = OUTSIDE[case]
    message = problems(project, ranges, sweep)
    for word in words:
        assert word in message, message


def test_draws_of_unbounded_distributions_are_checked(project: Project) -> None:
    """The first sample that the message names is the first beyond the range, and a range that holds them all passes."""
    sweep = "{design: random, samples: 200, axes: {k: {normal: [0, 1]}}}"
    drawn = write(project, "{}", sweep).load().draft.design.columns["k"]
    first = int(np.argmax(np.abs(drawn) > 1.5))
    message = problems(project, "{k: [-1.5, 1.5]}", sweep)
    assert f"draws {drawn[first].item()!r} for sample {first}" in message
    assert f"{int((np.abs(drawn) > 1.5).sum()) - 1} more values" in message
    assert write(project, "{k: [-10, 10]}", sweep).load()


def test_a_table_is_checked_by_its_rows(project: Project) -> None:
    (project.folder / "points.csv").write_text("n,k\n0,1.0\n1,2.0\n2,3.0\n")
    message = problems(project, "{k: [0, 2.5]}", "{design: table, table: points.csv}")
    assert "`sweep.table` column 'k' must lie" in message
    assert "is 3.0 in row 3 after the header" in message


@pytest.mark.parametrize(
    "sweep",
    [
        "{axes: {n: [0, 3], k: {linspace: [0, 1, 11]}}}",
        "{design: random, samples: 64, axes: {k: {loguniform: [1.0e-3, 1]}, n: {choice: [0, 3]}}}",
        "{design: latin_hypercube, samples: 64, axes: {k: {uniform: [0, 1]}}}",
    ],
)
def test_both_ends_are_included(project: Project, sweep: str) -> None:
    assert write(project, "{n: [0, 3], k: [0, 1], y0: [0, 1]}", sweep).load()


def test_every_problem_is_told_at_once(project: Project) -> None:
    with pytest.raises(UserError) as caught:
        write(project, "{n: [2, 3], k: [0, 0.4]}", "{axes: {k: [0.1, 0.7]}}").load()
    assert [p.split("`")[1] for p in caught.value.problems] == ["parameters.n", "parameters.k", "sweep.axes.k[1]"]


DECLARED = {
    "unknown": ("{nn: [0, 1]}", ["`ranges.nn`", "no parameter 'nn'", "Did you mean 'n'?", "'y0'"]),
    "number": ("{n: 5}", ["`ranges.n`", "[low, high]", "but is 5", "Write [0, 10]"]),
    "three": ("{n: [0, 1, 2]}", ["`ranges.n`", "[low, high]", "[0, 1, 2]"]),
    "text": ("{k: [0, high]}", ["`ranges.k.1`", "must be a number", "text 'high'"]),
    "true": ("{n: [0, true]}", ["`ranges.n.1`", "must be a number", "but is true"]),
    "infinite": ("{k: [0, .inf]}", ["`ranges.k.1`", "finite", "null for an open end"]),
    "swapped": ("{k: [1, 0]}", ["`ranges.k`", "low 1 is above its high 0", "Swap"]),
    "open": ("{k: [null, null]}", ["`ranges.k`", "both are null"]),
    "shape": ("{y0: [0, [1, 2, 3]]}", ["`ranges.y0.1`", "the shape (2,)", "(3,)"]),
    "scalar": ("{k: [0, [1, 2]]}", ["`ranges.k.1`", "a number", "(2,)"]),
    "ragged": ("{y0: [0, [[1], 2]]}", ["`ranges.y0.1`"]),
    "no mapping": ("5", ["`ranges` must be a mapping, but is 5", "{parameter: [low, high]}"]),
}


@pytest.mark.parametrize("case", DECLARED)
def test_a_wrong_declaration_is_explained(project: Project, case: str) -> None:
    ranges, words = DECLARED[case]
    message = problems(project, ranges)
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_boolean_has_no_range(project: Project, value: str) -> None:
    project.model("def stage(b):\n    return b * 1.0\n").yaml(f"""\
        defaults: [engine, _self_]
        name: case
        parameters: {{b: {value}}}
        ranges: {{b: [0, 1]}}
        stages: {{stage: {{_target_: model.stage}}}}
    """)
    with pytest.raises(UserError, match=r"`ranges\.b` must be for a real number, but the parameter is (true|false)"):
        project.load()


def test_a_range_is_set_on_the_command_line(project: Project) -> None:
    write(project, "{}", "{axes: {n: [0, 3]}}")
    assert project.load("+ranges.n=[0,3]")
    with pytest.raises(UserError, match=r"`sweep\.axes\.n\[1\]` must lie in its declared range, from 0 to 2"):
        project.load("+ranges.n=[0,2]")


def test_an_index_past_the_end_is_still_found(project: Project) -> None:
    """A range that is too wide does not hide what the look-up itself says."""
    message = problems(project, "{n: [0, 10]}", "{axes: {n: [0, 5]}}")
    assert "index an array of 4" in message


def test_ranges_do_not_change_the_question(project: Project) -> None:
    sweep = "{axes: {n: [0, 3]}}"
    first = write(project, "{}", sweep).load().draft.fingerprint
    assert write(project, "{n: [0, 3]}", sweep).load().draft.fingerprint == first
