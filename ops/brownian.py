"""A Brownian path that its key alone decides, with its space-time Lévy area.

A virtual Brownian tree halves an interval down to the time that is asked for, and another interval with the same key gives another path.
Here there is one tree for each interval between two powers of 16, with a key of its own, so that the path depends on no end; and by
Brownian scaling it has the same resolution, relative to the time, on every scale.

Source: A. Jelincic, J. Foster and P. Kidger, arXiv:2405.06464, for the tree.
"""

from __future__ import annotations

import math
from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np

DEPTH, RESOLVED = 24, 20
"""A part of the path is halved 24 times, so that 2**20 steps of one size from its start are resolved."""

PARTS_BELOW_1 = 16
"""Parts between powers of 16 below time 1; before 16**-16 it is one part."""


class BrownianPath(diffrax.AbstractBrownianPath[Any]):
    """A Brownian motion in `size` dimensions from time 0 on, with its space-time Lévy area, in units of one step."""

    key: jax.Array
    step: jax.Array
    size: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    t0: Any = eqx.field(static=True)  # type: ignore[misc]
    t1: Any = eqx.field(static=True)  # type: ignore[misc]
    levy_area: Any = eqx.field(static=True)

    def __init__(self, key: jax.Array, step: Any, size: int, dtype: Any) -> None:
        self.key, self.step, self.size, self.dtype = key, jnp.asarray(step, jnp.result_type(float)), size, dtype
        self.t0, self.t1, self.levy_area = 0.0, math.inf, diffrax.SpaceTimeLevyArea

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True, use_levy: bool = False) -> Any:
        """The increment from `t0` to `t1`, or from 0 to `t0`, with `use_levy` beside its Lévy area."""
        del left
        if t1 is None:
            t0, t1 = jnp.zeros_like(t0), t0
        t0, t1 = (eqxi.nondifferentiable(t * self.step, name="time") for t in (t0, t1))
        (first, since), (last, until) = _part(t0), _part(t1)
        zero = jnp.zeros(self.size, self.dtype)

        # W and J, the integral of W, counted from where the first part begins: at t0, at the end of each part passed, and at t1.
        def onward(carry: Any) -> Any:
            i, w0, j0, w, j = carry
            part = first + jnp.maximum(i, 0)
            length = jnp.where(i < 0, since, jnp.where(part < last, _extent(part, t0.dtype)[1], until))
            at_start = i < 0
            w_in, j_in = self._inside(part, length, whole=~at_start & (part < last))
            w0, j0 = jnp.where(at_start, w_in, w0), jnp.where(at_start, j_in, j0)
            w, j = jnp.where(at_start, w, w + w_in), jnp.where(at_start, j, j + length.astype(self.dtype) * w + j_in)
            return i + 1, w0, j0, w, j

        begin = (jnp.full((), -1, jnp.int32), zero, zero, zero, zero)
        _, w0, j0, w, j = jax.lax.while_loop(lambda carry: carry[0] <= last - first, onward, begin)
        increment = w - w0
        unit = jnp.sqrt(self.step).astype(self.dtype)
        if not use_levy:
            return increment / unit
        dt = (t1 - t0).astype(self.dtype)
        # The area of an interval that is lost in the rounding of its ends is taken as its mean, 0.
        seen = dt > float(np.finfo(self.dtype).eps) ** (2 / 3) * t1.astype(self.dtype)
        area = jnp.where(seen, (j - j0 - dt * w0) / jnp.where(seen, dt, 1) - increment / 2, 0)
        return diffrax.SpaceTimeLevyArea(dt=dt / self.step.astype(self.dtype), W=increment / unit, H=area / unit)

    def _inside(self, part: jax.Array, since: jax.Array, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
        """W and its integral over the time since the start of a part, counted from there; of a whole part without halving it.

        Of a part of length 1, the increment w and the area h give those of its left piece, which is q of it, with two normal numbers
        more; the right piece has the rest. The sums w0 and j0 move on past each left piece before t, the last of which ends there.
        """
        _, length = _extent(part, since.dtype)
        t = jnp.minimum(since / length, 1.0)
        key = jax.random.fold_in(self.key, part)
        last = jnp.where(whole, 1, DEPTH + 1)

        def deeper(carry: Any) -> Any:
            level, node, s, w0, j0, w, h = carry
            x, y = jax.random.normal(jax.random.fold_in(key, node), (2, self.size), self.dtype)
            size = jnp.ldexp(jnp.ones_like(t), 1 - level)
            middle = jnp.where(level < last, s + size / 2, t)
            q, dt = ((middle - s) / size).astype(self.dtype), size.astype(self.dtype)
            d = jnp.sqrt(q**3 + (1 - q) ** 3)
            scatter = jnp.sqrt(q * (1 - q))
            w_left = q * w + 6 * scatter**2 * h + jnp.sqrt(dt) * scatter * d * x
            qh_left = q**3 * h - jnp.sqrt(dt) * scatter * (q**3 * x - scatter**2 / math.sqrt(3) * y) / (2 * d)
            right = (t >= middle) & (level > 0)
            j0 = jnp.where(right, j0 + dt * (q * (w0 + w_left / 2) + qh_left), j0)
            w0 = jnp.where(right, w0 + w_left, w0)
            h = jnp.where(right, w / 2 + 2 * (h - qh_left) - w_left, 2 * qh_left)  # q is a half wherever this is used
            w = jnp.where(right, w - w_left, w_left)
            w, h = jnp.where(level > 0, w, x), jnp.where(level > 0, h, y / math.sqrt(12))
            return level + 1, jnp.maximum(2 * node + right, 1), jnp.where(right, middle, s), w0, j0, w, h

        zero, first = jnp.zeros(self.size, self.dtype), jnp.zeros((), jnp.int32)
        begin = (first, first, jnp.zeros_like(t), zero, zero, zero, zero)
        *_, w0, j0, _, _ = jax.lax.while_loop(lambda carry: carry[0] <= last, deeper, begin)
        scale = jnp.sqrt(length).astype(self.dtype)
        return scale * w0, length.astype(self.dtype) * scale * j0


def _part(t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The part of the Brownian path that holds a time, and the time since it began."""
    _, exponent = jnp.frexp(t)
    part = jnp.where(t > 0, jnp.maximum((exponent - 1) // 4 + PARTS_BELOW_1 + 1, 0), 0)
    return part, t - _extent(part, t.dtype)[0]


def _extent(part: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Start and length of a part of the Brownian path."""
    start = jnp.ldexp(jnp.ones((), dtype), 4 * (jnp.maximum(part, 1) - 1 - PARTS_BELOW_1))
    return jnp.where(part > 0, start, 0), jnp.where(part > 0, 15 * start, start)
