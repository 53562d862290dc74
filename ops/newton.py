"""The root finder of implicit methods."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optimistix

DIVERGED = 2.0
"""Increments that grow by more than this will not come to an end."""


class Newton(diffrax.VeryChord):
    """Simplified Newton iterations (Hairer and Wanner, Solving ODEs II, IV.8) that go on while they converge.

    That of diffrax gives up unless the second increment is the last, and where increments far below the tolerance stop falling, as
    they do once rounding is all that is left of them.
    """

    def terminate(
        self, fn: Any, y: Any, args: Any, options: dict[str, Any], state: Any, tags: frozenset[object]
    ) -> tuple[Any, Any]:
        """Whether to stop, and with what result."""
        fine, diverges = optimistix.RESULTS.successful, optimistix.RESULTS.nonlinear_divergence
        several = state.step >= 2
        rate = state.diffsize / state.diffsize_prev
        left = jnp.where(rate < 1, state.diffsize * rate / (1 - rate), jnp.inf)
        solved = several & ((left < self.kappa) | (state.diffsize < self.kappa))
        failed = several & ~solved & (~jnp.isfinite(rate) | (rate > DIVERGED))
        result = optimistix.RESULTS.where(failed, diverges, fine)
        result = optimistix.RESULTS.where(state.result == fine, result, state.result)
        return solved | (result != fine), result

    def postprocess(
        self,
        fn: Any,
        y: Any,
        aux: Any,
        args: Any,
        options: dict[str, Any],
        state: Any,
        tags: frozenset[object],
        result: Any,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The root; zero where there is none: the step is rejected, and its derivatives must be computed in numbers all the same."""
        found = result == optimistix.RESULTS.successful
        return jax.tree_util.tree_map(lambda leaf: jnp.where(found, leaf, 0), y), aux, {}
