"""What `ops.roots`, `ops.steady` and `ops.shooting` refuse, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from ops.roots import find_root
from ops.shooting import shoot
from ops.steady import find_steady_state
from tests.refusals import assert_refused


def square(y: Any, a: Any) -> Any:
    return y * y - 2


def decay(t: Any, y: Any, args: Any) -> Any:
    return -y


def ends(a: Any, b: Any, args: Any) -> Any:
    return a - 1


ROOTS: dict[str, tuple[Any, str]] = {
    "neither": (lambda: find_root(square), "`guess` or `bracket` must .*neither is"),
    "both": (lambda: find_root(square, 1.0, bracket=(0.0, 2.0)), "both are"),
    "same sign": (lambda: find_root(square, bracket=(2.0, 3.0)), "`bracket` must .*same sign. Widen it"),
    "one end": (lambda: find_root(square, bracket=[1.0]), "`bracket` must be two numbers"),
    "number": (lambda: find_root(square, bracket=1.0), "`bracket` must be two numbers"),
    "array ends": (lambda: find_root(square, bracket=(jnp.zeros(2), jnp.ones(2))), "jax.vmap"),
    "equal ends": (lambda: find_root(square, bracket=(1.0, 1.0)), "two different ends"),
    "endless": (lambda: find_root(square, bracket=(0.0, float("inf"))), "finite ends"),
    "method with bracket": (
        lambda: find_root(square, bracket=(0.0, 2.0), method="chord"),
        "`method` must be newton.*'chord'",
    ),
    "unknown method": (lambda: find_root(square, 1.0, method="dogleq"), "Did you mean 'dogleg'"),
    "no method": (lambda: find_root(square, 1.0, method=3), "`method` must .* but is 3"),
    "zero rtol": (lambda: find_root(square, 1.0, rtol=0.0), "`rtol` must be a positive number, but is 0.0"),
    "tiny rtol": (lambda: find_root(square, 1.0, rtol=1e-17), "`rtol` must be at least .* but is 1e-17"),
    "text atol": (lambda: find_root(square, 1.0, atol="1e-6"), "`atol` must"),  # type: ignore[arg-type]
    "no steps": (lambda: find_root(square, 1.0, max_steps=0), "`max_steps` must be a positive integer, but is 0"),
    "empty": (lambda: find_root(square, {}), "`guess` must hold at least one number"),
    "text": (lambda: find_root(square, "one"), "`guess` must hold numbers, but holds 'one'"),
    "complex": (lambda: find_root(square, 1j), "`guess` must be real"),
    "not finite": (lambda: find_root(square, [1.0, float("nan")]), "`guess` must be finite"),
    "no return": (lambda: find_root(lambda y, a: None, 1.0), "`function` must .*`return` missing"),
    "too many": (
        lambda: find_root(lambda y, a: (y, y), jnp.ones(2)),
        r"`function` must return as many .* 2 \(float64\[2\]\), but returned 4",
    ),
    "complex residual": (lambda: find_root(lambda y, a: y * 1j, 1.0), "`function` must return real residuals"),
}
STEADY: dict[str, tuple[Any, str]] = {
    "in time": (lambda: find_steady_state(lambda t, y, a: jnp.sin(t) - y, 0.0), "`t` must be given"),
    "endless": (lambda: find_steady_state(decay, 1.0, after=float("inf")), "`after` must be a finite time"),
    "no time": (lambda: find_steady_state(decay, 1.0, t=float("nan")), "`t` must be a finite time"),
    "no return": (lambda: find_steady_state(lambda t, y, a: None, 1.0), "`vector_field` must .*`return` missing"),
    "too short": (
        lambda: find_steady_state(lambda t, y, a: y[0], jnp.ones(2)),
        "`vector_field` must .* 2 numbers, but returned 1",
    ),
    "all conserved": (lambda: find_steady_state(decay, 1.0, conserved=lambda y, a: y), "`conserved` must return fewer"),
    "complex": (lambda: find_steady_state(decay, 1j), "`y0` must be real"),
    "unknown solver": (lambda: find_steady_state(decay, 1.0, after=1.0, solver="tsit6"), "'tsit5'"),
}
SHOTS: dict[str, tuple[Any, str]] = {
    "too few": (
        lambda: shoot(decay, lambda a, b, args, p: a - p, 1.0, t1=1.0, parameters=2.0),
        "`boundary` must .* 2, but returned 1",
    ),
    "too many": (lambda: shoot(decay, lambda a, b, args: [a, b], 1.0, t1=1.0), "`boundary` must .* 1, but returned 2"),
    "no return": (lambda: shoot(decay, lambda a, b, args: None, 1.0, t1=1.0), "`boundary` must .*`return` missing"),
    "no segment": (lambda: shoot(decay, ends, 1.0, t1=1.0, segments=0), "`segments` must .* but is 0"),
    "endless": (lambda: shoot(decay, ends, 1.0, t1=float("inf")), "`t1` must be a finite time"),
    "empty interval": (lambda: shoot(decay, ends, 1.0, t1=0.0), "`t1` must differ from t0"),
    "empty parameters": (lambda: shoot(decay, ends, 1.0, t1=1.0, parameters={}), "`parameters` must hold"),
    "unsorted": (lambda: shoot(decay, ends, 1.0, t1=1.0, ts=[0.5, 0.2]), "`ts` must"),
    "outside": (lambda: shoot(decay, ends, 1.0, t1=1.0, ts=[0.5, 2.0]), "`ts` must"),
    "unknown solver": (lambda: shoot(decay, ends, 1.0, t1=1.0, solver="tsit6"), "'tsit5'"),
    "wrong shape": (lambda: shoot(lambda t, y, a: y[:1], ends, jnp.ones(2), t1=1.0), "`vector_field` must"),
}
CASES = {
    f"{group}: {name}": case
    for group, cases in (("root", ROOTS), ("steady", STEADY), ("shot", SHOTS))
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(case: str) -> None:
    assert_refused(*CASES[case])
