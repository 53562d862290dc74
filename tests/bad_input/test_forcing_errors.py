"""What `ops.forcing` refuses, in words: the key first, the row of the table, the remedy last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from engine.errors import UserError
from ops import forcing
from ops.ode import solve
from tests.project import Project

ROWS = "t,u\n0,1\n1,2\n2,3\n"


def table(**changes: Any) -> Any:
    """A forcing from `u.csv`."""
    return forcing.table(**{"path": "u.csv", "time": "t", "value": "u", **changes})


def driven(u: Any, t1: Any = 1.0, **settings: Any) -> Any:
    return jax.make_jaxpr(lambda: solve(lambda t, y, u: u(t), 0.0, u, t1=t1, **settings))()


def unbounded(period: Any) -> Any:
    return solve(lambda t, y, u: u(t), 0.0, forcing.square_wave(period), t1=1.0)


def looped(t: Any, y: Any, a: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda i, x: x + forcing.pulse(0.5, 0.1)(t), y)


CASES: dict[str, tuple[Any, str]] = {
    "negative width": (lambda: forcing.pulse(1.0, [0.1, -0.2]), "`width` must be at least 0, but is -0.2."),
    "endless start": (lambda: forcing.pulse(float("inf"), 1.0), "`start` must be finite, but is inf."),
    "text": (lambda: forcing.pulse("soon", 1.0), "`start` must be a number, or a list of numbers, but is 'soon'."),
    "lengths": (lambda: forcing.pulse([1.0, 2.0], [1.0, 2.0, 3.0]), "but have the shapes (2,), (3,), ()."),
    "no step": (lambda: forcing.step(None), "`at` must be a number"),
    "no period": (lambda: forcing.square_wave(0.0), "`period` must be positive, but is 0."),
    "percent": (lambda: forcing.square_wave(1.0, 50), "`duty` must be the part of a period from 0 to 1, but is 50."),
    "cycles": (lambda: forcing.square_wave(1.0, cycles=0), "`cycles` must be a positive integer"),
    "traced period": (lambda: jax.make_jaxpr(unbounded)(1.0), "`cycles` must be given"),
    "tiny period": (lambda: driven(forcing.square_wave(1e-9)), "`period` must not be so short"),
    "one knot": (lambda: forcing.piecewise_linear([0.0], [1.0]), "at least two times, but has the shape (1,)"),
    "values short": (lambda: forcing.piecewise_linear([0, 1, 2], [1, 2]), "there are 3 times and 2 values"),
    "unsorted": (lambda: forcing.piecewise_linear([0, 2, 1], [1, 2, 3]), "knot 2 of the forcing has 1 after 2."),
    "thrice": (lambda: forcing.piecewise_constant([0, 1, 1, 1], [1, 2, 3, 4]), "knot 3 of the forcing has 1 a third time."),
    "twice in a spline": (lambda: forcing.cubic([0, 1, 1], [1, 2, 3]), "knot 2 of the forcing has 1 again."),
    "not a number": (lambda: forcing.piecewise_linear([0, 1], [1, float("nan")]), "knot 1 of the forcing has nan."),
    "outside": (lambda: forcing.piecewise_linear([0, 1], [1, 2], outside="zero"), "`outside` must be refuse, hold"),
    "divided by one": (lambda: forcing.step(1.0) / forcing.step(1.0), "must be divided by a number"),
    "too late": (lambda: driven(table(), 3.0), "`t1` must lie within the times of the forcing, but is 3, and u.csv ends with 2 (row 4)."),
    "too early": (lambda: driven(table(), t0=-1.0), "`t0` must lie within the times of the forcing, but is -1, and u.csv begins with 0"),
    "in a loop": (lambda: jax.make_jaxpr(lambda: solve(looped, 0.0, t1=1.0))(), "`vector_field` must not use a forcing whose jumps"),
    "by the state": (
        lambda: jax.make_jaxpr(lambda: solve(lambda t, y, a: forcing.step(y)(t), 0.0, t1=1.0))(),
        "use `event` for what the state decides",
    ),
    "no file": (lambda: table(path="v.csv"), "`path` must be a file that is there, but there is no 'v.csv' in "),
    "other file": (lambda: table(path="u.xlsx"), "`path` must end in .csv, .parquet, .zarr, but is 'u.xlsx'."),
    "no column": (lambda: table(value="v"), "`path` must have one column 'v', but u.csv has none of that name."),
    "kind": (lambda: table(kind="linear"), "`kind` must be one of piecewise_linear, piecewise_constant, cubic, but is 'linear'."),
    "policy": (lambda: table(nan="skip"), "`nan` must be one of refuse, interpolate, drop, but is 'skip'."),
}  # fmt: skip

TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gap": (
        "t,u\n0,1\n1,\n2,3\n",
        {},
        "`values` must be finite, but row 3 of u.csv has nan. Write nan: interpolate, or nan: drop.",
    ),
    "gap at the end": (
        "t,u\n0,1\n1,2\n2,na\n",
        {"nan": "interpolate"},
        "but is missing in row 4 of u.csv. Write nan: drop.",
    ),
    "no time": (
        "t,u\n0,1\n,2\n2,3\n",
        {"nan": "interpolate"},
        "`t` must be a time in every row, but is missing in row 3",
    ),
    "word": ("t,u\n0,1\n1,high\n", {}, "`u` must be a number, but row 3 of u.csv has 'high'."),
    "endless": ("t,u\n0,1\n1,inf\n", {}, "row 3 of u.csv has inf."),
    "unsorted": ("t,u\n0,1\n\n2,2\n1,3\n", {}, "row 5 of u.csv has 1 after 2. Sort the rows by time."),
    "unsorted after a gap": ("t,u\n0,1\n1,nan\n3,3\n2,1\n", {"nan": "drop"}, "row 5 of u.csv has 2 after 3."),
    "ragged": ("t,u\n0,1\n1,2,3\n", {}, "but row 3 of u.csv has 3."),
    "two of a name": ("t,u,u\n0,1,1\n1,2,2\n", {}, "u.csv has 2 of that name."),
    "empty": ("", {}, "There are none."),
    "spline": ("t,u\n0,1\n1,2\n1,3\n2,3\n", {"kind": "cubic"}, "row 4 of u.csv has 1 again."),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "u.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(case: str, here: Path) -> None:
    act, expected = CASES[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(expected)):
        act()


@pytest.mark.parametrize("case", TABLES, ids=lambda name: name.replace(" ", "_"))
def test_row(case: str, here: Path) -> None:
    text, changes, expected = TABLES[case]
    (here / "u.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(expected)):
        table(**changes)


def test_parquet_without_its_library(here: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        (here / "u.parquet").touch()
        with pytest.raises(ValueError, match=re.escape("but is u.parquet. Install pyarrow.")):
            table(path="u.parquet")


def test_a_swept_number_out_of_its_range_is_no_answer() -> None:
    """It is known in the run only, and a pulse that ends before it begins would seem to be off."""
    assert jnp.isnan(jax.jit(lambda width: forcing.pulse(0.0, width)(0.5))(-1.0))
    assert jnp.isnan(jax.jit(lambda duty: forcing.square_wave(1.0, duty)(0.5))(50.0))
    assert jnp.isnan(jax.jit(lambda period: forcing.square_wave(period, cycles=2)(0.5))(-1.0))


def test_times_that_are_traced_outside_a_table_are_no_answer() -> None:
    u = forcing.piecewise_linear([0.0, 1.0], [1.0, 2.0])
    found = jax.jit(lambda t1: solve(lambda t, y, u: u(t), 0.0, u, t1=t1))(2.0)
    assert int(found.status) != 0
    assert jnp.isnan(found.y)


def test_through_the_engine(project: Project) -> None:
    """One line, with the row."""
    (project.folder / "u.csv").write_text("time,value\n0,1\n1,\n")
    project.model("def f(u): return u(0.5)")
    project.yaml("""
        defaults: [engine, _self_]
        name: case
        parameters: {u: {_target_: ops.forcing.table, path: u.csv}}
        stages: {f: {_target_: model.f}}
    """)
    answer = project.cli("plan", "case.yaml")
    assert answer.code == 2
    assert "row 3 of u.csv has nan" in answer.err


def test_a_table_that_is_too_short_is_told_before_the_run(project: Project) -> None:
    """As a parameter too, whose numbers are traced."""
    (project.folder / "u.csv").write_text("time,value\n0,1\n1,2\n")
    project.model("""
        from ops.ode import solve
        def f(u): return solve(lambda t, y, u: u(t), 0.0, u, t1=3.0).y
    """)
    project.yaml("""
        defaults: [engine, _self_]
        name: case
        parameters: {u: {_target_: ops.forcing.table, path: u.csv}}
        stages: {f: {_target_: model.f}}
    """)
    expected = "`t1` must lie within the times of the forcing, but is 3, and u.csv ends with 1 (row 3)."
    with pytest.raises(UserError, match=re.escape(expected)):
        project.load()
