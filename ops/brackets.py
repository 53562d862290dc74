"""A root between two points where a function has different signs, by bisection and inverse quadratic interpolation.

Source: T. R. Chandrupatla, A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function without using
derivatives, Advances in Engineering Software 28 (1997), 145-149.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.damped import FAILED, MAX_STEPS, NONFINITE, OK, Tolerance

POINTS = 200
"""Points after which to give up."""


class Enclosed(NamedTuple):
    """A point beside the change of sign with its status, the points looked at, the function's size at the ends, and if it changes sign."""

    y: jax.Array
    status: jax.Array
    steps: jax.Array
    scale: jax.Array
    changes: jax.Array


class _Bracket(NamedTuple):
    """The newest point and the one that encloses the root with it, the one dropped last, and where between them to look next."""

    new: jax.Array
    far: jax.Array
    old: jax.Array
    f_new: jax.Array
    f_far: jax.Array
    f_old: jax.Array
    part: jax.Array
    scale: jax.Array
    tried: jax.Array
    done: jax.Array


def enclose(function: Callable[[Any], Any], lower: jax.Array, upper: jax.Array, tolerance: Tolerance) -> Enclosed:
    """The change of sign of a scalar function between two points, to within the tolerance."""
    zero = jnp.zeros_like(lower)
    start = _Bracket(lower, lower, lower, zero, zero, zero, zero, zero, jnp.zeros((), jnp.int32), jnp.array(False))

    def step(now: _Bracket) -> _Bracket:
        at_end = now.tried < 2  # the ends come first, so that the function stands in the program once
        inside = now.new + now.part * (now.far - now.new)
        new = jnp.where(at_end, jnp.where(now.tried == 0, lower, upper), inside)
        f_new = function(new)
        keeps = (jnp.sign(f_new) == jnp.sign(now.f_new)) & ~at_end
        far, f_far = jnp.where(keeps, now.far, now.new), jnp.where(keeps, now.f_far, now.f_new)
        old, f_old = jnp.where(keeps, now.new, now.far), jnp.where(keeps, now.f_new, now.f_far)
        least = jnp.minimum(
            tolerance.of(jnp.where(jnp.abs(f_far) < jnp.abs(f_new), far, new)) / jnp.abs(far - new), 0.5
        )
        part = jnp.clip(_next(new, far, old, f_new, f_far, f_old), least, 1 - least)
        ended = (least == 0.5) | (f_new == 0) | (jnp.sign(f_new) * jnp.sign(f_far) >= 0)
        return _Bracket(
            new, far, old, f_new, f_far, f_old, part,
            jnp.where(at_end, jnp.maximum(now.scale, jnp.abs(f_new)), now.scale),
            now.tried + 1,
            ~jnp.isfinite(f_new) | ended & (now.tried > 0),
        )  # fmt: skip

    last = jax.lax.while_loop(lambda now: ~now.done & (now.tried < POINTS), step, start)
    finite = jnp.isfinite(last.f_new) & jnp.isfinite(last.f_far)
    changes = jnp.sign(last.f_new) * jnp.sign(last.f_far) <= 0
    status = jnp.where(last.done, jnp.where(changes, OK, FAILED), MAX_STEPS)
    best = jnp.where(jnp.abs(last.f_far) < jnp.abs(last.f_new), last.far, last.new)
    status = jnp.where(finite, status, NONFINITE).astype(jnp.int32)
    return Enclosed(best, status, last.tried, last.scale, changes | ~finite)


def _next(new: Any, far: Any, old: Any, f_new: Any, f_far: Any, f_old: Any) -> jax.Array:
    """The part of the way from the newest point to the far one: by the parabola through three where it is trusted, else a half."""
    place, height = (new - far) / (old - far), (f_new - f_far) / (f_old - f_far)
    parabola = f_new / (f_far - f_new) * f_old / (f_far - f_old)
    parabola += (old - new) / (far - new) * f_new / (f_old - f_new) * f_far / (f_old - f_far)
    trusted = (height**2 < place) & ((1 - height) ** 2 < 1 - place) & jnp.isfinite(parabola)
    return jnp.where(trusted, parabola, 0.5)
