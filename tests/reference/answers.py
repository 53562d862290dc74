"""Reference problems with trusted answers, and how ours compare with them.

`problems.json` holds the problems: published benchmarks, solver examples and closed forms. Each group has a module beside this file with
one function for each problem, named after its id (other characters than letters and digits as `_`), which solves it through `ops` or the
engine and returns an `Answer`. `scripts/reference.py` prints the table; `tests/truth/test_reference.py` asserts it.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

GROUPS = ("ivp", "gradient", "event", "uq", "sde", "pde", "bvp", "sweep", "chaos")
"""The groups that are simulations; optimization and inverse problems are solved by a design loop."""

LAST_DIGIT = 0.3
"""Of a published figure the last digit may be off by one: two in 10**digits, relative to the whole."""


class Answer(NamedTuple):
    """What we found for one problem."""

    values: dict[str, float]
    """By the names of the reference values, each as a number."""

    tolerance: float | None = None
    """The relative tolerance of the solve: 100 times that is promised, and no more. None for what has no tolerance."""

    steps: int | None = None
    """Steps of the solver, accepted and rejected; of several solves, their sum."""

    errors: dict[str, float] | None = None
    """Standard errors of averages, where the problem is statistical: within three of them is right."""

    amplification: float = 1.0
    """By how much the problem itself amplifies a relative error, beyond 100."""

    recomputed: float | None = None
    """Digits in which the recomputed values of the table must be met, where they are sharper than those of the source."""


class Comparison(NamedTuple):
    """One problem, its answer beside the trusted one."""

    problem: str
    wanted: float
    """Digits: those trusted, or those that the requested tolerance promises if fewer. Infinite errors count as none."""

    reached: float
    """Digits of the worst value; for a statistical problem, the digits of the value itself."""

    right: bool
    worst: str
    """The name of the worst value, with both numbers."""


@functools.cache
def problems() -> dict[str, dict[str, Any]]:
    """The simulation problems by id, in the order of the file."""
    text = (Path(__file__).parent / "problems.json").read_text(encoding="utf-8")
    return {p["id"]: p for p in json.loads(text) if p["group"] in GROUPS}


def module_of(problem: str) -> str:
    """The module that solves a problem."""
    return f"tests.reference.{problems()[problem]['group']}"


def solution_of(problem: str) -> Callable[[], Answer]:
    """The function that solves a problem.

    Raises:
        NotImplementedError: there is none.
    """
    name = re.sub(r"\W", "_", problem)
    try:
        found: Callable[[], Answer] = getattr(importlib.import_module(module_of(problem)), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotImplementedError(
            f"`{module_of(problem)}` must hold a function {name}, but does not: {error}."
        ) from error
    return found


def compare(problem: str, answer: Answer) -> Comparison:
    """An answer beside the trusted values; or beside recomputed ones where these are sharper."""
    entry = problems()[problem]
    trusted = float(entry["digits_trusted"])
    sharp = entry["computed"] if trusted < 6 or answer.recomputed else {}
    promised = math.inf
    if answer.tolerance is not None:
        promised = -math.log10(100 * answer.tolerance * answer.amplification)
    wanted = min(answer.recomputed or trusted, promised)
    reached, right, worst = math.inf, True, ""
    for name, text in entry["reference_values"].items():
        exact, ours = float(sharp.get(name, text)), float(answer.values.get(name, math.nan))
        digits = agreement(ours, exact)
        if answer.errors is None:
            right &= digits >= wanted and agreement(ours, float(text)) >= min(trusted, wanted) - LAST_DIGIT
        else:
            right &= bool(abs(ours - exact) <= 3 * answer.errors[name] + 10**-trusted * abs(exact))
        if digits < reached:
            reached, worst = digits, f"{name} = {ours:.12g}, trusted {exact:.12g}"
    return Comparison(problem, wanted, reached, right, worst)


def agreement(ours: float, exact: float) -> float:
    """The digits in which two numbers agree: 16 at most, minus infinity where ours is none."""
    error = abs(ours - exact) / (abs(exact) or 1.0)
    if not math.isfinite(error):
        return -math.inf
    return min(16.0, -math.log10(error)) if error > 0 else 16.0
