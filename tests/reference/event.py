"""Reference problems with events."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops import ode
from ops.events import Event, solve
from tests.reference.answers import Answer

RTOL = 1e-10


class Rocket(NamedTuple):
    """Height, speed, and whether the engine is on (1 or 0)."""

    height: Any
    speed: Any
    burns: Any


def event_sundials_rocket() -> Answer:
    """A rocket whose engine stops at a height, or out of fuel, up to its apex."""
    thrust, dry, fuel, rate, drag, g, cut = 2200.0, 10.0, 1.0, 0.1, 0.3, 32.0, 4000.0

    def field(t: Any, y: Rocket, args: Any) -> Rocket:
        push = y.burns * thrust / (dry + fuel - rate * t)
        return Rocket(y.speed, push - drag * y.speed - g, 0.0 * y.burns)

    def off(t: Any, y: Rocket, args: Any) -> Rocket:
        return y._replace(burns=0.0 * y.burns)

    events = [
        Event(lambda t, y, args: y.height - cut, 1, off),
        Event(lambda t, y, args: t - fuel / rate, 1, off),
        Event(lambda t, y, args: y.speed, -1),
    ]
    start = Rocket(*jnp.array([0.0, 0.0, 1.0]))
    found = jax.jit(lambda y: solve(field, y, events=events, max_events=3, t1=30.0, rtol=RTOL, atol=1e-12))(start)
    return Answer(
        {
            "t_off": float(found.event_times[0]),
            "v_off": float(found.event_states.speed[0]),
            "t_apex": float(found.event_time),
            "h_apex": float(found.y.height),
        },
        RTOL,
        int(found.steps),
    )


def event_free_fall_quadratic_drag() -> Answer:
    """A fall from 100 m through air."""

    def fall(p: Any) -> Any:
        return ode.solve(
            lambda t, y, p: [-y[1], p["g"] - p["k"] * y[1] ** 2],
            [100.0, 0.0],
            p,
            t1=20.0,
            event=lambda t, y, p: y[0],
            solver="dopri8",
            rtol=RTOL,
            atol=1e-12,
        )

    found = jax.jit(fall)({"g": 9.81, "k": 0.02})
    return Answer({"t": float(jnp.asarray(found.event_time)), "v": float(found.y[1])}, RTOL, int(found.steps))
