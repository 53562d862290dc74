"""Newton's method with damped steps, which says of its result whether it is a root.

A step is shortened until the correction that the old Jacobian asks for at the new point has become smaller: this natural monotonicity
test does not depend on the units of the equations, nor of the unknowns beyond their tolerances.

Source: P. Deuflhard, Newton Methods for Nonlinear Problems, Springer (2004), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ops.implicit import solved

OK, MAX_STEPS, NONFINITE, FAILED = 0, 2, 3, 4

SHORTEST = 1e-10
"""The part of a Newton step below which shorter ones are given up."""

CONTRACTION = 0.25
"""Between the last two iterates the Jacobian may change this much, seen along the last step. At a double root it is 1."""


class Tolerance(NamedTuple):
    """How large an error of an unknown may be: `atol + rtol |y|`."""

    rtol: Any
    atol: Any

    def of(self, y: jax.Array) -> jax.Array:
        """For each unknown."""
        allowed: jax.Array = self.atol + self.rtol * jnp.abs(y)
        return allowed


class Found(NamedTuple):
    """The last iterate, and what is known of it."""

    y: jax.Array
    status: jax.Array
    steps: jax.Array
    residual: jax.Array
    error: jax.Array


class _Pass(NamedTuple):
    """One iterate `y` with residual, Jacobian and Newton correction, the one before it, and the point to look at next."""

    y: jax.Array
    residual: jax.Array
    slope: jax.Array
    correction: jax.Array
    residual_before: jax.Array
    correction_before: jax.Array
    part: jax.Array
    trial: jax.Array
    tried: jax.Array
    near: jax.Array
    done: jax.Array
    stalled: jax.Array


def iterate(evaluate: Callable[[Any], Any], y0: jax.Array, tolerance: Tolerance, max_steps: int) -> Found:
    """A root near `y0`.

    Convergence is judged twice: an iterate whose Newton correction is within the tolerance is moved by it, and looked at again. There
    the correction must be within the tolerance again, the Jacobian regular, and nearly that of the iterate before: at a double root,
    a fold or a bifurcation it changes as much as the distance does, however close the iterates are.

    Args:
        evaluate: residual and Jacobian at a vector.
        y0: where to begin.
        tolerance: of the unknowns.
        max_steps: corrections after which to give up.
    """
    n = y0.size
    zeros, no = jnp.zeros_like(y0), jnp.array(False)
    start = _Pass(
        y0, zeros, jnp.eye(n, dtype=y0.dtype), zeros, zeros, zeros, jnp.ones((), y0.dtype), y0, jnp.zeros((), jnp.int32), no, no, no
    )  # fmt: skip

    def size(step: jax.Array, at: Any) -> jax.Array:
        return jnp.max(jnp.abs(step) / at)

    def step(now: _Pass) -> _Pass:
        residual, slope = evaluate(now.trial)
        correction = solved(slope, residual)
        sound = jnp.all(jnp.isfinite(residual)) & jnp.all(jnp.isfinite(correction))
        at = tolerance.of(jnp.maximum(jnp.abs(now.y), jnp.abs(now.trial)))
        simplified = solved(now.slope, residual)
        was, becomes = size(now.correction, at), size(simplified, at)
        first = now.tried == 0
        better = (becomes <= (1 - now.part / 4) * was) | (becomes <= 1)
        accept = first | now.near | (sound & better)
        # The step that a quadratic model of the correction along it asks for.
        model = 0.5 * was * now.part**2 / size(simplified - (1 - now.part) * now.correction, at)
        shorter = jnp.clip(jnp.where(jnp.isfinite(model), model, 0), now.part / 10, now.part / 2)
        part = jnp.where(first, 1, jnp.where(accept, jnp.minimum(1, 4 * now.part), shorter))

        def pick(new: Any, old: Any) -> Any:
            return jnp.where(accept, new, old)

        y, corrected = pick(now.trial, now.y), pick(correction, now.correction)
        near = accept & sound & (size(correction, at) <= 1)
        part = jnp.where(near, 1, part)
        return _Pass(
            y,
            pick(residual, now.residual),
            pick(slope, now.slope),
            corrected,
            pick(now.residual, now.residual_before),
            pick(now.correction, now.correction_before),
            part,
            y - part * corrected,
            now.tried + 1,
            near,
            now.near,
            (first & ~sound) | (~accept & (shorter < SHORTEST)),
        )

    last = jax.lax.while_loop(lambda now: ~now.done & ~now.stalled & (now.tried <= max_steps), step, start)
    at = tolerance.of(last.y)
    finite = jnp.all(jnp.isfinite(last.residual)) & jnp.all(jnp.isfinite(last.slope))
    regular = jnp.all(jnp.isfinite(last.correction)) & is_regular(last.slope, at)
    again = solved(last.slope, last.residual_before)
    settled = size(again - last.correction_before, at) <= CONTRACTION * size(last.correction_before, at)
    fine = last.done & finite & regular & settled & (size(last.correction, at) <= 1)
    gave_up = last.done | last.stalled | ~regular
    failure = jnp.where(finite, jnp.where(gave_up, FAILED, MAX_STEPS), NONFINITE)
    return Found(
        last.y,
        jnp.where(fine, OK, failure).astype(jnp.int32),
        last.tried - 1,
        jnp.max(jnp.abs(last.residual)),
        jnp.max(jnp.abs(last.correction)),
    )


def is_regular(slope: jax.Array, at: jax.Array) -> jax.Array:
    """Whether a Jacobian is invertible beyond rounding, once the units of unknowns and equations are taken out."""
    n = slope.shape[0]
    if n == 1:
        return slope[0, 0] != 0
    scaled = slope * at
    scaled = scaled / jnp.max(jnp.abs(scaled), axis=1, keepdims=True)
    inverse = jnp.linalg.solve(scaled, jnp.eye(n, dtype=slope.dtype))
    condition = jnp.linalg.norm(scaled, 1) * jnp.linalg.norm(inverse, 1)
    good: jax.Array = condition < 1 / (16 * n * float(np.finfo(slope.dtype).eps))  # false of NaN: a row of zeros
    return good
