"""The benchmark: its answers, and that wrong ones end it with an error. What it measures is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.project import REPOSITORY

BENCH = [sys.executable, str(REPOSITORY / "scripts" / "bench.py")]


@pytest.fixture
def contests(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that judges."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    from benchmarks import contest

    return contest


def judged(contests: Any, ours: float, peer: float, wanted: Any = None, repeats: int = 1) -> Any:
    """The result of two sides that answer 1 plus an error, the first in a second and the second in two."""
    sides = [contests.Side(lambda s=s, e=e: (s, np.array([1 + e]))) for s, e in ((1.0, ours), (2.0, peer))]
    made = contests.Contest("a number", 1, *sides, exact=np.ones(1), bound=1e-3)
    return contests.measure(contests.Row("number", lambda quick: made, wanted, (), False, repeats), quick=False)


@pytest.mark.parametrize(
    ("ours", "peer", "wrong"),
    [(0, 0, False), (1e-4, 9e-4, False), (2e-3, 0, True), (0, 2e-3, True), (np.nan, 0, True), (0, np.nan, True)],
)
def test_both_sides_must_reach_the_bound(contests: Any, ours: float, peer: float, wrong: bool) -> None:
    assert judged(contests, ours, peer).wrong is wrong


@pytest.mark.parametrize(
    ("bound", "at_most", "ratio", "met"), [(1.5, False, 2.0, True), (3, False, 2.0, False), (0.6, True, 0.5, True)]
)
def test_a_ratio_is_a_gain_or_a_cost(contests: Any, bound: float, at_most: bool, ratio: float, met: bool) -> None:
    found = judged(contests, 0, 0, contests.Wanted(bound, bound, at_most), repeats=3)
    assert (found.ratio, found.met) == (ratio, met)


def test_unequal_errors_are_told(contests: Any) -> None:
    assert judged(contests, 1e-4, 9e-4).notes == ["errors differ by a factor of 9.0"]
    assert judged(contests, 1e-4, 2e-4).notes == []


def test_a_row_without_its_peer_is_skipped(contests: Any) -> None:
    row = contests.Row("absent", lambda quick: None, None, ("no_such_package",), False, 1)
    assert "no_such_package" in contests.measure(row, quick=True).skipped


def test_an_unknown_row_is_named() -> None:
    done = subprocess.run([*BENCH, "--only", "oscilator"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Did you mean 'oscillator'?" in done.stderr


@pytest.mark.slow
def test_the_cheap_rows_are_right(tmp_path: Path) -> None:
    names, file = ["oscillator", "chain", "single", "overhead"], tmp_path / "rows.json"
    command = [*BENCH, "--quick", "--only", ",".join(names), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["row"] for row in rows] == names
    assert all(0 < row["ours_error"] <= row["bound"] for row in rows)
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
