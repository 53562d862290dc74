"""What `ops.ode` refuses, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from ops.ode import Solver, default_adjoint, solve
from tests.refusals import assert_refused


def decay(t: Any, y: Any, args: Any) -> Any:
    return -y


def backsolve(**settings: Any) -> Any:
    with pytest.warns(UserWarning, match="contracting"):
        return solve(decay, 1.0, t1=1.0, adjoint="backsolve", **settings)


CASES: dict[str, tuple[Any, str]] = {
    "no end": (lambda: solve(decay, 1.0), "neither is"),
    "beyond the end": (lambda: solve(decay, 1.0, t1=1.0, ts=[0.5, 3.0]), r"ts\[1\] is 3.0"),
    "beyond the end backwards": (lambda: solve(decay, 1.0, t1=-1.0, ts=[-0.5, -3.0]), r"ts\[1\] is -3.0"),
    "text for times": (lambda: solve(decay, 1.0, t1=1.0, ts="step"), "'steps', but is 'step'"),
    "steps without an end": (lambda: solve(decay, 1.0, ts="steps"), "neither is"),
    "unsorted": (lambda: solve(decay, 1.0, ts=[0.5, 0.2]), r"ts\[1\] = 0.2"),
    "before t0": (lambda: solve(decay, 1.0, ts=[-1.0, 0.5]), r"ts\[0\] is -1.0"),
    "not finite": (lambda: solve(decay, 1.0, ts=[0.5, float("inf")]), r"ts\[1\] is inf"),
    "ascending backwards": (lambda: solve(decay, 1.0, t0=1.0, ts=[0.0, 0.5]), "ascending|descending|begin"),
    "negative rtol": (lambda: Solver(rtol=-1.0), r"solver\.rtol.*-1.0"),
    "text rtol": (lambda: Solver(rtol="1e-6"), r"solver\.rtol"),  # type: ignore[arg-type]
    "no tolerance": (lambda: Solver(rtol=0.0, atol=0.0), "positive"),
    "no steps": (lambda: Solver(max_steps=0), r"solver\.max_steps.*0"),
    "a bound of 0": (lambda: Solver(max_abs=0.0), r"solver\.max_abs.*0.0"),
    "shortest above longest": (lambda: Solver(dtmin=1.0, dtmax=0.1), r"dtmax, 0.1.*1.0"),
    "longest of fixed steps": (lambda: Solver(step=0.1, dtmax=0.1), r"solver\.dtmax.*fixed"),
    "control that is text": (lambda: Solver(icoeff="1"), r"solver\.icoeff.*'1'"),  # type: ignore[arg-type]
    "safety above 1": (lambda: Solver(safety=2.0), r"solver\.safety.*2.0"),
    "steps that shrink only": (lambda: Solver(factormax=0.5), r"solver\.factormax.*0.5"),
    "more steps than there may be": (
        lambda: solve(decay, 1.0, t1=1.0, step=1e-3, max_steps=10),
        "1000 for steps of 0.001",
    ),
    "steps that do not move time": (lambda: solve(decay, 1.0, t0=1e9, t1=1e9 + 1, step=1e-7), "1e-07.*2.2e-07 apart"),
    "a pair for a method that takes one": (lambda: solve((decay, decay), 1.0, t1=1.0), "Split"),
    "one for a method that takes a pair": (
        lambda: solve(decay, 1.0, t1=1.0, solver="semi_implicit_euler", step=0.1),
        r"velocity, force",
    ),
    "a pair without a pair of states": (
        lambda: solve((decay, decay), 1.0, t1=1.0, solver="semi_implicit_euler", step=0.1),
        r"pair \(q, p\)",
    ),
    "three parts": (lambda: solve((decay, decay, decay), 1.0, t1=1.0, solver="kencarp4"), "pair of them"),
    "negative step": (lambda: Solver(step=-0.1), r"solver\.step.*-0.1"),
    "endless": (lambda: solve(decay, 1.0, t1=float("inf")), r"`t1` must be a finite time"),
    "start that is none": (lambda: solve(decay, 1.0, t0=float("nan"), t1=1.0), r"`t0` must be a finite time"),
    "unknown method": (lambda: Solver("tsit6"), "'tsit5'"),
    "unknown adjoint": (lambda: Solver(adjoint="checkpoint"), "'checkpointed'"),
    "unknown setting": (lambda: solve(decay, 1.0, t1=1.0, rtoll=1e-3), "'rtol'"),
    "unknown context": (lambda: default_adjoint("reverse").__enter__(), "must be one of"),
    "no estimate": (lambda: Solver("euler"), r"solver\.step"),
    "jumps and backsolve": (lambda: backsolve(jumps=[0.5]), "`jumps` must be left out with adjoint backsolve"),
    "no return": (lambda: solve(lambda t, y, a: None, 1.0, t1=1.0), "return"),
    "wrong structure": (lambda: solve(lambda t, y, a: (y[0],), (1.0, 2.0), t1=1.0), "structure of y0"),
    "wrong shape": (lambda: solve(lambda t, y, a: jnp.zeros(3), jnp.zeros(2), t1=1.0), r"float64\[2\].*float64\[3\]"),
    "complex rate": (lambda: solve(lambda t, y, a: 1j * y, 1.0, t1=1.0), "complex"),
    "vector event": (lambda: solve(decay, jnp.ones(2), t1=1.0, event=lambda t, y, a: y), "scalar"),
    "boolean event": (lambda: solve(decay, 1.0, t1=1.0, event=lambda t, y, a: y < 0.5), "crosses zero"),
    "short event": (lambda: solve(decay, 1.0, t1=1.0, event=lambda t, y: y), "take"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(case: str) -> None:
    assert_refused(*CASES[case])


@pytest.mark.filterwarnings("ignore:.*integrates the state backwards")
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("dense", {"t1": 1.0, "dense": True}),
        ("ts", {"t1": 1.0, "ts": "steps"}),
        ("event", {"t1": 1.0, "event": lambda t, y, a: y}),
    ],
)
def test_what_a_backward_solve_does_not_do(name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be left out with adjoint backsolve"):
        solve(decay, 1.0, adjoint="backsolve", **asked)
