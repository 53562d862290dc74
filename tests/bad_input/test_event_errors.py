"""What `ops.events` refuses, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from ops.events import Event, solve
from tests.refusals import assert_refused


def ball(t: Any, y: Any, args: Any) -> Any:
    return [y[1], -9.81]


def ground(t: Any, y: Any, args: Any) -> Any:
    return y[0]


def bounce(action: Any = "terminate", **settings: Any) -> Any:
    events = settings.pop("events", Event(ground, action=action))
    return solve(ball, [1.0, 0.0], events=events, t1=1.0, **settings)


def condition(function: Any) -> Any:
    return bounce(events=[Event(ground), Event(function)])


CASES: dict[str, tuple[Any, str]] = {
    "no function": (lambda: Event(0.5), r"`condition` must be a function of \(t, y, args\), but is 0.5"),
    "short condition": (lambda: Event(lambda t, y: y[0]), r"`condition` must take \(t, y, args\), but takes \(t, y\)"),
    "long condition": (lambda: Event(lambda t, y, args, extra: y[0]), r"takes \(t, y, args, extra\)"),
    "direction in words": (lambda: Event(ground, "falling"), r"`direction` must be -1 \(falling\).*'falling'"),
    "direction two": (lambda: Event(ground, 2), r"`direction` must be .* but is 2"),
    "direction true": (lambda: Event(ground, True), r"but is True"),
    "unknown action": (lambda: Event(ground, action="stop"), r"`action` must be one of terminate, record.*'stop'"),
    "short action": (lambda: Event(ground, action=lambda y: y), r"`action` must take \(t, y, args\), but takes \(y\)"),
    "bare condition": (lambda: bounce(events=ground), r"`events` must be an Event or a list of them"),
    "a list with something else": (lambda: bounce(events=[Event(ground), ground]), r"`events` must be an Event or a list"),
    "no event": (lambda: bounce(events=[]), r"`events` must hold an Event"),
    "max_events zero": (lambda: bounce(max_events=0), r"`max_events` must be a positive integer, but is 0"),
    "max_events true": (lambda: bounce(max_events=True), r"`max_events` .* but is True"),
    "unknown beyond": (lambda: bounce(beyond="stops"), r"`beyond` must be one of fail, stop, but is 'stops'.*'stop'"),
    "vector condition": (lambda: condition(lambda t, y, args: y), r"`condition` of events\[1\] must return a real scalar.*\[2\]"),
    "boolean condition": (lambda: condition(lambda t, y, args: y[0] < 0), r"events\[1\] must return a real scalar .*bool"),
    "list condition": (lambda: condition(lambda t, y, args: [y[0]]), r"events\[1\] must return a real scalar"),
    "condition that is none": (lambda: condition(lambda t, y, args: None), r"events\[1\] .* None"),
    "integer condition": (lambda: condition(lambda t, y, args: 1), r"events\[1\] must return a real scalar .*int"),
    "reset of another shape": (lambda: bounce(lambda t, y, args: [y[0], -y[1], 0.0]), r"`action` must return the state .*\[2\].*\[3\]"),
    "reset of another structure": (lambda: bounce(lambda t, y, args: {"y": y}), r"`action` must return the state"),
    "reset without return": (lambda: bounce(lambda t, y, args: None), r"is a `return` missing"),
    "complex reset": (lambda: bounce(lambda t, y, args: y * 1j), r"`action` must return real values"),
    "backsolve": (lambda: bounce(adjoint="backsolve"), r"`solver.adjoint` must not be backsolve"),
    "unknown setting": (lambda: bounce(rtoll=1e-3), "'rtol'"),
    "times in words": (lambda: solve(ball, [1.0, 0.0], events=Event(ground), ts="steps"), "`ts` must be a list of times"),
    "pair of fields": (lambda: solve((ball, ball), [1.0, 0.0], events=Event(ground), t1=1.0), "`vector_field` must be one function"),  # type: ignore[arg-type]
    "no end": (lambda: solve(ball, jnp.ones(2), events=Event(ground)), "neither is"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_message(case: str) -> None:
    assert_refused(*CASES[case])
