"""What `ops.ode` refuses, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from ops.ode import Solver, default_adjoint, solve
from tests.refusals import assert_refused


def decay(t: Any, y: Any, args: Any) -> Any:
    return -y


CASES: dict[str, tuple[Any, str]] = {
    "no end": (lambda: solve(decay, 1.0), "neither is"),
    "two ends": (lambda: solve(decay, 1.0, t1=1.0, ts=[1.0]), "both are"),
    "unsorted": (lambda: solve(decay, 1.0, ts=[0.5, 0.2]), r"ts\[1\] = 0.2"),
    "before t0": (lambda: solve(decay, 1.0, ts=[-1.0, 0.5]), r"ts\[0\] is -1.0"),
    "not finite": (lambda: solve(decay, 1.0, ts=[0.5, float("inf")]), r"ts\[1\] is inf"),
    "ascending backwards": (lambda: solve(decay, 1.0, t0=1.0, ts=[0.0, 0.5]), "ascending|descending|begin"),
    "negative rtol": (lambda: Solver(rtol=-1.0), r"solver\.rtol.*-1.0"),
    "text rtol": (lambda: Solver(rtol="1e-6"), r"solver\.rtol"),  # type: ignore[arg-type]
    "no tolerance": (lambda: Solver(rtol=0.0, atol=0.0), "positive"),
    "no steps": (lambda: Solver(max_steps=0), r"solver\.max_steps.*0"),
    "negative step": (lambda: Solver(step=-0.1), r"solver\.step.*-0.1"),
    "endless": (lambda: solve(decay, 1.0, t1=float("inf")), r"`t1` must be a finite time"),
    "start that is none": (lambda: solve(decay, 1.0, t0=float("nan"), t1=1.0), r"`t0` must be a finite time"),
    "unknown method": (lambda: Solver("tsit6"), "'tsit5'"),
    "unknown adjoint": (lambda: Solver(adjoint="checkpoint"), "'checkpointed'"),
    "unknown setting": (lambda: solve(decay, 1.0, t1=1.0, rtoll=1e-3), "'rtol'"),
    "unknown context": (lambda: default_adjoint("reverse").__enter__(), "must be one of"),
    "no estimate": (lambda: Solver("euler"), r"solver\.step"),
    "jumps with fixed steps": (lambda: solve(decay, 1.0, t1=1.0, step=0.1, jumps=[0.5]), "jumps"),
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
