"""The solution between its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp


class Interpolation(eqx.Module):
    """A solution as a function of time; a pytree. NaN outside the interval of the solve, and everywhere if it failed.

    It is as accurate as the method's own continuous extension, of an order less than the method or two.
    """

    path: diffrax.DenseInterpolation
    """With NaN where there was no step."""

    last: jax.Array
    """The end of the solve, or the event's time."""

    of_state: Callable[[Any], Any] = eqx.field(static=True)
    """Takes the state out of what was integrated."""

    def __call__(self, t: Any) -> Any:
        """The state at a time, or with leading axes at an array of times."""
        return self._each(t, lambda path, t: path.evaluate(t))

    def derivative(self, t: Any) -> Any:
        """Its derivative by time."""
        return self._each(t, lambda path, t: path.derivative(t))

    def _each(self, t: Any, read: Callable[[Any, Any], Any]) -> Any:
        """What is read at each time."""
        times = self.path.ts
        path = eqx.tree_at(lambda path: path.ts, self.path, jnp.where(jnp.isnan(times), jnp.inf, times))

        def one(t: Any) -> Any:
            within = (t - self.last) * path.direction <= 0
            return self.of_state(read(path, jnp.where(within, t, jnp.nan)))

        t = jnp.asarray(t, times.dtype)
        for _ in range(t.ndim):
            one = jax.vmap(one)
        return one(t)


def interpolation(path: Any, last: jax.Array, fine: jax.Array, of_state: Callable[[Any], Any]) -> Interpolation:
    """The solution between the steps that a solve took; nowhere a number unless all is fine."""

    def clear(leaf: Any) -> Any:
        return jnp.where(fine & jnp.isfinite(leaf), leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    return Interpolation(jax.tree_util.tree_map(lambda leaf: clear(jnp.asarray(leaf)), path), last, of_state)
