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

PROBE = 10.0
"""How many tolerances beside the root the function must still be what its Jacobian there says."""

CURVATURE = 0.25
"""By which part the function may differ from that. Near a double root it differs by more than all of it."""

SEARCHING, SETTLING, PROBING, DONE = range(4)


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
    slope: jax.Array
    status: jax.Array
    steps: jax.Array
    residual: jax.Array
    error: jax.Array


class _Pass(NamedTuple):
    """One iterate `y` with residual, Jacobian and Newton correction, the part of it that is tried, and the point to look at next."""

    y: jax.Array
    residual: jax.Array
    slope: jax.Array
    correction: jax.Array
    part: jax.Array
    trial: jax.Array
    tried: jax.Array
    phase: jax.Array
    stalled: jax.Array
    linear: jax.Array


def iterate(evaluate: Callable[[Any], Any], y0: jax.Array, tolerance: Tolerance, max_steps: int) -> Found:
    """A root near `y0`.

    An iterate whose Newton correction is within the tolerance is moved by it, and looked at again: there the correction must be within
    the tolerance again, and the Jacobian regular. Then a point a few tolerances away is looked at, in the direction in which the
    function changes least: there it must be what the Jacobian says. It is not at a double root, a fold or a bifurcation, however
    close the iterates are, nor where rounding or another noise hides the root.

    Args:
        evaluate: residual and Jacobian at a vector.
        y0: where to begin.
        tolerance: of the unknowns.
        max_steps: corrections after which to give up.
    """
    n = y0.size
    zeros, no, one = jnp.zeros_like(y0), jnp.array(False), jnp.ones((), y0.dtype)
    none = jnp.zeros((), jnp.int32)
    start = _Pass(y0, zeros, jnp.eye(n, dtype=y0.dtype), zeros, one, y0, none, none, no, no)
    generic = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, n), y0.dtype)

    def size(step: jax.Array, at: Any) -> jax.Array:
        return jnp.max(jnp.abs(step) / at)

    def step(now: _Pass) -> _Pass:
        residual, slope = evaluate(now.trial)
        correction = solved(slope, residual)
        sound = jnp.all(jnp.isfinite(residual)) & jnp.all(jnp.isfinite(correction))
        at = tolerance.of(jnp.maximum(jnp.abs(now.y), jnp.abs(now.trial)))
        simplified = solved(now.slope, residual)
        was, becomes = size(now.correction, at), size(simplified, at)
        first, probing = now.tried == 0, now.phase == PROBING
        better = (becomes <= (1 - now.part / 4) * was) | (becomes <= 1)
        accept = (first | (now.phase == SETTLING) | (sound & better)) & ~probing
        # The step that a quadratic model of the correction along it asks for.
        model = 0.5 * was * now.part**2 / size(simplified - (1 - now.part) * now.correction, at)
        shorter = jnp.clip(jnp.where(jnp.isfinite(model), model, 0), now.part / 10, now.part / 2)
        near = accept & sound & (size(correction, at) <= 1)
        part = jnp.where(first | near, 1, jnp.where(accept, jnp.minimum(1, 4 * now.part), shorter))

        def pick(new: Any, old: Any) -> Any:
            return jnp.where(accept, new, old)

        y, corrected = pick(now.trial, now.y), pick(correction, now.correction)
        weakest = solved(slope, jnp.max(jnp.abs(slope) * at, axis=1) * generic)
        beside = y + PROBE * weakest / size(weakest, at)
        away = now.trial - now.y
        change = solved(now.slope, residual - now.residual)
        return _Pass(
            y,
            pick(residual, now.residual),
            pick(slope, now.slope),
            corrected,
            part,
            jnp.where(now.phase == SETTLING, beside, y - part * corrected),
            now.tried + 1,
            jnp.where(now.phase == SEARCHING, jnp.where(near, SETTLING, SEARCHING), now.phase + 1).astype(jnp.int32),
            (first & ~sound) | (~accept & ~probing & (shorter < SHORTEST)),
            probing & (size(change - away, at) <= CURVATURE * size(away, at)),
        )

    def goes_on(now: _Pass) -> jax.Array:
        return (now.phase != DONE) & ~now.stalled & ((now.tried <= max_steps) | (now.phase != SEARCHING))

    last = jax.lax.while_loop(goes_on, step, start)
    at = tolerance.of(last.y)
    finite = jnp.all(jnp.isfinite(last.residual)) & jnp.all(jnp.isfinite(last.slope))
    regular = jnp.all(jnp.isfinite(last.correction)) & is_regular(last.slope, at)
    done = last.phase == DONE
    fine = done & finite & regular & last.linear & (size(last.correction, at) <= 1)
    failure = jnp.where(finite, jnp.where(done | last.stalled | ~regular, FAILED, MAX_STEPS), NONFINITE)
    return Found(
        last.y,
        last.slope,
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
