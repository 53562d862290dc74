"""Every reference problem: the digits that are trusted, or those that the tolerance of the solve promises."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest

from tests.project import REPOSITORY
from tests.reference import gradient
from tests.reference.answers import Answer, Comparison, agreement, compare, problems, solution_of

SLOW = {"grad_hessian_robertson_80", "grad_robertson_asa_4e7", "grad_robertson_fsa_t0.4", "grad_robertson_fsa_t40"}
"""Problems that take longer than eight seconds."""


def right(problem: str, answer: Answer) -> Comparison:
    """The comparison, which must be fine."""
    found = compare(problem, answer)
    assert found.right, found
    return found


@pytest.mark.parametrize(
    "problem", [pytest.param(problem, marks=[pytest.mark.slow] if problem in SLOW else []) for problem in problems()]
)
def test_a_reference_problem(problem: str) -> None:
    right(problem, solution_of(problem)())


@pytest.mark.slow
def test_the_terminal_cost_in_reverse_mode() -> None:
    right("grad_lotka_volterra_terminal", gradient.grad_lotka_volterra_terminal("reverse"))


def test_what_the_comparison_calls_wrong() -> None:
    problem, exact = "grad_logistic", problems()["grad_logistic"]["reference_values"]
    values = {name: float(text) for name, text in exact.items()}
    assert right(problem, Answer(values)).wanted == 14
    off = values | {"dy_dK": values["dy_dK"] * (1 + 1e-9)}
    assert not compare(problem, Answer(off)).right
    found = right(problem, Answer(off, tolerance=1e-10))
    assert found.wanted == pytest.approx(8)
    assert found.reached == pytest.approx(9, abs=1e-3)
    assert "dy_dK" in found.worst
    assert not compare(problem, Answer(off, tolerance=1e-12)).right
    assert right(problem, Answer(off, tolerance=1e-12, amplification=1e2)).wanted == pytest.approx(8)
    for missing in ({"y": values["y"]}, values | {"y": float("nan")}):
        assert compare(problem, Answer(missing, tolerance=1e-3)).reached == -float("inf")
        assert not compare(problem, Answer(missing, tolerance=1e-3)).right


def test_what_the_comparison_calls_wrong_of_an_average() -> None:
    values = {name: float(text) for name, text in problems()["sde_ou"]["reference_values"].items()}
    error = dict.fromkeys(values, 0.1)
    name = next(iter(values))
    assert right("sde_ou", Answer(values | {name: values[name] + 0.2}, errors=error)).reached < 2
    assert not compare("sde_ou", Answer(values | {name: values[name] + 0.4}, errors=error)).right


def test_digits_of_agreement() -> None:
    assert agreement(1.001, 1.0) == pytest.approx(3)
    assert agreement(0.0, 0.0) == 16
    assert agreement(1e-3, 0.0) == pytest.approx(3)


def test_a_problem_without_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gradient, "grad_logistic")
    with pytest.raises(NotImplementedError, match=r"`tests.reference.gradient` must hold a function grad_logistic"):
        solution_of("grad_logistic")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, by its arguments."""
    spec = importlib.util.spec_from_file_location("reference_table", REPOSITORY / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["reference.py", *arguments])
        code: int = script.main()
        return code

    return call


def test_the_table(table: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exact = {name: float(text) for name, text in problems()["grad_logistic"]["reference_values"].items()}
    monkeypatch.setattr(gradient, "grad_logistic", lambda: Answer(exact, tolerance=1e-9, steps=7))
    assert table("grad_logistic") == 0
    header, row, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["problem", "wanted", "reached", "steps", "s"]
    assert row.split()[:4] == ["grad_logistic", "7.0", "16.0", "7"]
    assert row.endswith("ok")
    assert total == "1 problems: 1 ok, 0 wrong"

    monkeypatch.setattr(gradient, "grad_logistic", lambda: Answer(exact | {"y": 8.0}))
    assert table("grad_logistic", "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["problem"], row["right"]) == ("grad_logistic", False)
    assert row["worst"].startswith("y = 8")

    monkeypatch.setattr(gradient, "grad_logistic", lambda: Answer(exact | {"y": float("nan")}))
    assert table("grad_logistic", "--json") == 1
    assert json.loads(capsys.readouterr().out)[0]["reached"] is None

    monkeypatch.setattr(gradient, "grad_logistic", lambda: 1 / 0)
    assert table("grad_logistic") == 1
    assert "WRONG: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_the_table_of_a_problem_that_is_unknown(table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        table("ivp_hirse")
    assert caught.value.code == 2
    assert "`ID` must be a problem or a group, but is 'ivp_hirse'. Did you mean 'ivp_hires'?" in capsys.readouterr().err
