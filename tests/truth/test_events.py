"""`ops.events.solve` against closed forms: times, order, states after resets, derivatives, and what is said where there is no event."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.adjoints import default_adjoint
from ops.events import Event, solve

G = 9.81


def falling(t: Any, y: Any, args: Any) -> Any:
    """A ball under gravity, with a thrust that grows as the square of its speed."""
    return [y[1], args.get("thrust", 0.0) * y[1] ** 2 - args["g"]]


GROUND = Event(lambda t, y, args: y[0], direction=-1, action=lambda t, y, args: [y[0], -args["e"] * y[1]])


def impacts(height: float, e: float, count: int, g: float = G) -> np.ndarray:
    """The times of the first impacts of a ball dropped from a height: t1 = sqrt(2 h / g), then flights of 2 e^k t1."""
    first = math.sqrt(2 * height / g)
    return first * (1 + 2 * np.concatenate([[0.0], np.cumsum(e ** np.arange(1, count))]))


def height_at(t: float, height: float, e: float, g: float = G) -> float:
    """The height of a ball dropped from a height, at a time."""
    times = impacts(height, e, 60, g)
    k = int(np.searchsorted(times, abs(t), side="right"))
    if k == 0:
        return height - g * t * t / 2
    speed, since = e**k * math.sqrt(2 * g * height), abs(t) - times[k - 1]
    return speed * since - g * since**2 / 2


def test_lanes_that_bounce_and_one_that_does_not() -> None:
    """3 bounces; 1; none for want of weight; none for want of time; from the ground upwards; backward; infinitely many; too many; one
    that blows up after a bounce; no rebound; at rest on the ground."""
    ts = np.array([0.0, 1.0, 1.5, 2.5, 3.25, 3.7])
    y = jnp.array([10.0, 20.0, 10.0, 20.0, 0.0, 10.0, 20.0, 1.0, 0.1, 10.0, 0.0])
    v = jnp.array([0.0, 0.0, 0.0, 0.0, G, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0])
    g = jnp.array([G, G, 0.0, 0.1, G, G, G, G, 0.1, G, G])
    e = jnp.array([0.5, 0.75, 0.5, 0.5, 0.5, 0.5, 0.25, 0.8, 1.0, 0.0, 0.5])
    way = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    thrust = jnp.array([0.0] * 8 + [1.0, 0.0, 0.0])

    def lane(y: Any, v: Any, g: Any, e: Any, way: Any, thrust: Any) -> Any:
        args = {"g": g, "e": e, "thrust": thrust}
        state = jnp.stack([y, v])
        return solve(
            falling, state, args, events=GROUND, max_events=4, ts=way * ts, rtol=1e-9, atol=1e-11, max_steps=2000
        )  # fmt: skip

    found = jax.jit(jax.vmap(lane))(y, v, g, e, way, thrust)
    assert found.status[:8].tolist() == [0, 0, 0, 0, 0, 0, 2, 2]
    assert found.status[8] in (2, 3, 4)
    assert found.status[9:].tolist() == [2, 2]
    assert found.events[:9].tolist() == [3, 1, 0, 0, 3, 3, 4, 4, 1]
    assert found.event_index.tolist()[:3] == [[0, 0, 0, -1], [0, -1, -1, -1], [-1] * 4]
    dropped = impacts(10.0, 0.5, 3)
    for number, times in enumerate([dropped, impacts(20.0, 0.75, 1), [], [], [2.0, 3.0, 3.5], -dropped]):
        np.testing.assert_allclose(found.event_times[number, : len(times)], times, rtol=1e-9)
        assert np.isnan(found.event_times[number, len(times) :]).all()
        assert np.isnan(found.event_states[number, len(times) :]).all()
    for failed in (found.y[6:], found.event_times[6:], found.event_states[6:]):
        assert np.isnan(failed).all()
    assert np.isnan(found.event_time).all(), "no event ends the solve"
    for number, (height, bounce) in {0: (10.0, 0.5), 1: (20.0, 0.75), 5: (10.0, 0.5)}.items():
        exact = [height_at(t, height, bounce) for t in ts]
        np.testing.assert_allclose(found.y[number, :, 0], exact, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.y[2], [[10.0, 0.0]] * 6, rtol=1e-12)
    np.testing.assert_allclose(found.y[4, :5, 1], [G, 0.0, -G / 2, 0.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(found.y[4, [1, 3, 4], 0], [G / 2, G / 8, G / 32], rtol=1e-8)
    np.testing.assert_allclose(found.event_states[0, :3, 1], -math.sqrt(2 * G * 10) * 0.5 ** np.arange(3), rtol=1e-9)
    np.testing.assert_allclose(found.event_states[0, :3, 0], 0.0, atol=1e-12)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "derivative"),
    [
        ("checkpointed", jax.jacrev),
        pytest.param("direct", jax.jacrev, marks=SLOW),
        pytest.param("forward", jax.jacfwd, marks=SLOW),  # the next test does so too, and a shipped config
    ],
)
def test_derivatives_of_event_times_and_of_states_after_resets(mode: str, derivative: Any) -> None:
    """Of the fall from 20 m, T = sqrt(2 h / g) and dT/dg = -T / (2 g); of the third impact and of the state after it, by h, g and e."""

    def found(p: Any) -> Any:
        height, g, e = p
        ball = solve(
            falling,
            [height, 0.0],
            {"g": g, "e": e},
            events=GROUND,
            max_events=4,
            t1=9.0,
            rtol=1e-9,
            atol=1e-11,
            max_steps=512,
        )
        return jnp.stack([ball.event_times[0], ball.event_times[2], *ball.y])

    def closed(p: Any) -> Any:
        height, g, e = p
        first = jnp.sqrt(2 * height / g)
        third = first * (1 + 2 * e + 2 * e**2)
        speed, since = e**3 * jnp.sqrt(2 * g * height), 9.0 - third
        return jnp.stack([first, third, speed * since - g * since**2 / 2, speed - g * since])

    p = jnp.array([20.0, G, 0.75])
    with default_adjoint(mode):
        value, slope = jax.jit(lambda p: (found(p), derivative(found)(p)))(p)
    np.testing.assert_allclose(value, closed(p), rtol=1e-8)
    np.testing.assert_allclose(slope, jax.jacfwd(closed)(p), rtol=1e-7)
    np.testing.assert_allclose(value[0], 2.0192751094, rtol=1e-10)
    np.testing.assert_allclose(slope[0, 1], -0.1029192207, rtol=1e-9)


@SLOW
@pytest.mark.parametrize("mode", ["direct", "forward"])
def test_second_derivatives(mode: str) -> None:
    """Of t3 = sqrt(2 h / g) (1 + 2 e + 2 e^2); `direct` gives reverse over reverse."""

    def third(p: Any) -> Any:
        return solve(
            falling, [p[0], 0.0], {"g": p[1], "e": p[2]}, events=GROUND, max_events=3, beyond="stop", t1=9.0, max_steps=256
        ).event_time  # fmt: skip

    twice = jax.jacrev(jax.jacrev(third)) if mode == "direct" else jax.jacfwd(jax.jacfwd(third))
    p = jnp.array([20.0, G, 0.75])
    with default_adjoint(mode):
        found = jax.jit(twice)(p)
    exact = jax.hessian(lambda p: jnp.sqrt(2 * p[0] / p[1]) * (1 + 2 * p[2] + 2 * p[2] ** 2))(p)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-9)


def test_events_at_one_time_in_declared_order_and_chains() -> None:
    """Two balls and a clock. Lanes: the balls hit together; the first one earlier; the second one earlier.

    At 1 s the clock is set on by 10, past the mark at 5, which happens at that time.
    """

    def field(t: Any, y: Any, args: Any) -> Any:
        return {"a": [y["a"][1], -G], "b": [y["b"][1], -G], "clock": 1.0 + 0 * y["clock"]}

    def bounced(name: str) -> Any:
        return lambda t, y, args: {**y, name: jnp.stack([y[name][0], -0.5 * y[name][1]])}

    events = [
        Event(lambda t, y, args: 3 * y["b"][0], -1, bounced("b")),
        Event(lambda t, y, args: y["clock"] - 5, +1, "record"),
        Event(lambda t, y, args: y["a"][0], -1, bounced("a")),
        Event(lambda t, y, args: t - 1, 0, lambda t, y, args: {**y, "clock": y["clock"] + 10}),
    ]

    def state(heights: Any) -> Any:
        return {"a": jnp.stack([heights[0], 0.0]), "b": jnp.stack([heights[1], 0.0]), "clock": 0.0}

    def found(heights: Any) -> Any:
        return solve(field, state(heights), events=events, max_events=6, t1=2.0, solver="midpoint", step=0.05)

    heights = jnp.array([[10.0, 10.0], [9.0, 10.0], [10.0, 9.0]])
    with default_adjoint("forward"):
        both, slopes = jax.jit(jax.vmap(lambda h: jax.jvp(found, (h,), (jnp.array([1.0, 2.0]),))))(heights)
    assert both.status.tolist() == [0, 0, 0]
    assert both.event_index.tolist() == [[3, 1, 0, 2, -1, -1], [3, 1, 2, 0, -1, -1], [3, 1, 0, 2, -1, -1]]
    drops = np.sqrt(2 * np.asarray(heights) / G)
    np.testing.assert_allclose(both.event_times[:, :2], 1.0, rtol=1e-12)
    np.testing.assert_allclose(both.event_times[:, 2:4], np.sort(drops, axis=1), rtol=1e-9)
    since = 2.0 - drops
    speed = 0.5 * np.sqrt(2 * G * np.asarray(heights))
    exact = speed * since - G * since**2 / 2
    np.testing.assert_allclose(np.stack([both.y["a"][:, 0], both.y["b"][:, 0]], 1), exact, rtol=1e-8)
    np.testing.assert_allclose(both.y["clock"], 12.0, rtol=1e-12)
    # y = e v s - g s^2 / 2 with v = sqrt(2 g h), s = 2 - v / g, dv/dh = g / v: each ball by its own height, also where they hit together
    rate = G / (2 * speed)
    by_height = 0.5 * rate * since - (speed - G * since) * rate / G
    np.testing.assert_allclose(
        np.stack([slopes.y["a"][:, 0], slopes.y["b"][:, 0]], 1), by_height * [1.0, 2.0], rtol=1e-7
    )
    np.testing.assert_allclose(slopes.event_times[:, :2], 0.0, atol=1e-12)


@SLOW
def test_a_ball_that_comes_to_rest_or_lies_on_the_ground_does_not_fall_through() -> None:
    """Infinitely many bounces; one without a rebound; no motion at all; a rebound that only slows the fall, which goes on."""
    ground = Event(lambda t, y, e: y[0], -1, lambda t, y, e: [y[0], -e * y[1]])

    def lane(y: Any, e: Any) -> Any:
        return solve(lambda t, y, e: [y[1], -G], jnp.stack([y, 0.0]), e, events=ground, max_events=70, t1=9.0)

    found = jax.jit(jax.vmap(lane))(jnp.array([10.0, 10.0, 0.0, 10.0]), jnp.array([0.5, 0.0, 0.5, -0.5]))
    assert found.status.tolist() == [2, 2, 2, 0]
    assert 30 < found.events[0] < 60
    assert np.isnan(found.y[:3]).all()
    first = math.sqrt(20 / G)
    since = 9.0 - first
    np.testing.assert_allclose(found.y[3, 0], -0.5 * G * first * since - G * since**2 / 2, rtol=1e-6)


def test_directions_touches_saves_at_events_and_the_end() -> None:
    """x = sin t: zero at the start, which is no crossing; then at pi (falling) and 2 pi (rising). It touches 1, and does not cross.

    At t = 7, a save time, x is set 3 higher, above 1; the solve ends at t = 8, another one, and nothing comes after.
    """
    conditions = [(lambda t, y, args: y[0], 0), (lambda t, y, args: y[0], 1), (lambda t, y, args: y[0], -1)]
    events = [
        *(Event(condition, direction, "record") for condition, direction in conditions),
        Event(lambda t, y, args: y[0] - 1.0, 0, "record"),
        Event(lambda t, y, args: t - 7.0, 1, lambda t, y, args: [y[0] + 3.0, y[1]]),
        Event(lambda t, y, args: t - 8.0, 1),
    ]
    ts = jnp.array([0.0, 1.0, 7.0, 8.0, 9.0])
    found = jax.jit(
        lambda y: solve(lambda t, y, args: [y[1], -y[0]], y, events=events, max_events=9, ts=ts, rtol=1e-11, atol=1e-13)
    )(jnp.array([0.0, 1.0]))
    assert found.event_index.tolist() == [0, 2, 0, 1, 4, 3, 5, -1, -1]
    assert (int(found.events), int(found.status)) == (7, 0)
    np.testing.assert_allclose(
        found.event_times[:7], [math.pi, math.pi, 2 * math.pi, 2 * math.pi, 7.0, 7.0, 8.0], rtol=1e-10
    )
    np.testing.assert_allclose(found.event_time, 8.0, rtol=1e-12)
    np.testing.assert_allclose(found.event_states[4], [np.sin(7.0), np.cos(7.0)], rtol=1e-9)
    last = np.sin(8.0) + 3 * np.cos(1.0)
    np.testing.assert_allclose(found.y[:4, 0], [0.0, np.sin(1.0), np.sin(7.0) + 3, last], rtol=1e-9, atol=1e-14)
    assert np.isnan(found.y[4]).all()


def test_single_precision() -> None:
    with jax.enable_x64(False):
        ball = solve(falling, [10.0, 0.0], {"g": G, "e": 0.5}, events=GROUND, t1=3.7, rtol=1e-5, atol=1e-6)
        assert ball.event_times.dtype == jnp.float32
        assert (int(ball.events), int(ball.status)) == (3, 0)
        np.testing.assert_allclose(ball.event_times[:3], impacts(10.0, 0.5, 3), rtol=2e-5)
        np.testing.assert_allclose(ball.y[0], height_at(3.7, 10.0, 0.5), rtol=2e-3)
