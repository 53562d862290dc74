"""Bisection between two ends of a step, for the time at which something crosses zero there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix


class Bracket(eqx.Module):
    """The part of the interval that holds the crossing."""

    lower: jax.Array
    upper: jax.Array
    falls: jax.Array
    """Whether the function is larger at the lower end."""

    enough: jax.Array
    """The width that is a few roundings of the ends."""


class Bisection(optimistix.AbstractRootFinder[Any, Any, Any, Bracket]):  # type: ignore[misc]
    """Bisection down to the rounding of time, for a function that changes its sign between the options `lower` and `upper`.

    That of optimistix goes on until the function is small too, which depends on its units (4000 m - h never is), and raises where
    the signs at both ends agree, which rounding makes of a function that is zero at one of them. Here the larger value tells the way.
    """

    rtol: float = 0.0
    atol: float = 0.0
    norm: ClassVar[Callable[[Any], Any]] = jnp.abs  # type: ignore[misc]  # as those of optimistix

    def init(
        self,
        fn: Any,
        y: Any,
        args: Any,
        options: dict[str, Any],
        f_struct: Any,
        aux_struct: Any,
        tags: frozenset[object],
    ) -> Bracket:
        """The whole interval."""
        lower, upper = (jnp.asarray(options[end], y.dtype) for end in ("lower", "upper"))
        ends = jax.vmap(lambda t: fn(t, args)[0])(jnp.stack([lower, upper]))
        enough = 4 * np.finfo(y.dtype).eps * jnp.maximum(jnp.abs(lower), jnp.abs(upper))
        return Bracket(lower, upper, ends[0] > ends[1], enough)

    def step(
        self, fn: Any, y: Any, args: Any, options: dict[str, Any], state: Bracket, tags: frozenset[object]
    ) -> tuple[Any, Bracket, Any]:
        """The half with the crossing."""
        value, aux = fn(y, args)
        before = (value > 0) == state.falls
        lower, upper = jnp.where(before, y, state.lower), jnp.where(before, state.upper, y)
        return lower + 0.5 * (upper - lower), Bracket(lower, upper, state.falls, state.enough), aux

    def terminate(
        self, fn: Any, y: Any, args: Any, options: dict[str, Any], state: Bracket, tags: frozenset[object]
    ) -> tuple[Any, Any]:
        """Whether nothing is left to halve."""
        return jnp.abs(state.upper - state.lower) <= state.enough, optimistix.RESULTS.successful

    def postprocess(
        self,
        fn: Any,
        y: Any,
        aux: Any,
        args: Any,
        options: dict[str, Any],
        state: Bracket,
        tags: frozenset[object],
        result: Any,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The last midpoint."""
        return y, aux, {}
