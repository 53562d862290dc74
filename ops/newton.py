"""The root finder of implicit methods: Newton's with one Jacobian for each step, its convergence measured in the state.

diffrax's own counts a stage as failed that has not converged after two iterations, and asks for the tolerance in the slope: where
large terms cancel, as on the slow manifold of a stiff problem, rounding alone is more than that. Both make it try steps ten times
shorter than the error asks for.

Source: E. Hairer and G. Wanner, Solving ODEs II, 2nd edition, Springer (1996), IV.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix

RESULTS = optimistix.RESULTS


def in_stage(unknown: Any, args: Any) -> tuple[Any, Any]:
    """Of the slope at a stage of a Runge-Kutta method; in an IMEX method the unknown is the slope times the step."""
    _, diagonal, *product, _, base, _, control = args
    if len(product) == 2:
        unknown = product[1](unknown, control)
    return base, jax.tree_util.tree_map(lambda part: diagonal * part, unknown)


def in_euler_step(unknown: Any, args: Any) -> tuple[Any, Any]:
    """Of the step of the implicit Euler method."""
    _, _, base, _, _ = args
    return base, unknown


class Chord(optimistix.AbstractRootFinder[Any, Any, Any, Any]):
    """The iteration of diffrax, which ends where the state has converged."""

    rtol: float
    atol: float
    norm: Callable[[Any], Any] = optimistix.max_norm
    kappa: float = 0.01
    """What may be left of the tolerance."""

    in_state: Callable[[Any, Any], tuple[Any, Any]] = eqx.field(static=True, default=in_stage)
    """Of the unknown and the stage's arguments: the state without it, and its part in the state."""

    @property
    def chord(self) -> diffrax.VeryChord:
        """The iteration of diffrax."""
        return diffrax.VeryChord(rtol=self.rtol, atol=self.atol, norm=self.norm)

    def init(self, *args: Any, **named: Any) -> Any:
        """The Jacobian."""
        return self.chord.init(*args, **named)

    def step(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> tuple[Any, Any, Any]:
        """One iteration, and by how much it moved the state, in units of the tolerance."""
        y, state, aux = self.chord.step(fn, y, args, options, state, tags)
        _, move = self.in_state(state.diff, args)
        base, part = self.in_state(y, args)

        def scaled(move: Any, base: Any, part: Any) -> Any:
            return move / (self.atol + self.rtol * jnp.abs(base + part))

        size = self.norm(jax.tree_util.tree_map(scaled, move, base, part))
        return y, eqx.tree_at(lambda s: s.diffsize, state, size), aux

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> tuple[Any, Any]:
        """Converged where what is left is `kappa` of the tolerance; failed where the moves grow."""
        size, rate = state.diffsize, state.diffsize / state.diffsize_prev
        settled = size < self.kappa  # the rate at which rounding errors move says nothing
        converged = settled | (rate < 1) & (size * rate < self.kappa * (1 - rate))
        diverged = ~settled & ~(rate <= 2)
        enough = state.step >= 2
        result = RESULTS.where(enough & diverged, RESULTS.nonlinear_divergence, RESULTS.successful)
        solved = state.result == RESULTS.successful
        return ~solved | enough & (converged | diverged), RESULTS.where(solved, result, state.result)

    def postprocess(
        self, fn: Any, y: Any, aux: Any, args: Any, options: Any, state: Any, tags: Any, result: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The root; zero where there is none: the step is rejected, and its derivatives must be computed in numbers all the same."""
        found = result == RESULTS.successful
        return jax.tree_util.tree_map(lambda leaf: jnp.where(found, leaf, 0), y), aux, {}


def with_newton(kind: Any, rtol: float, atol: float) -> Any:
    """An implicit method whose iterations are tied to the tolerances."""
    found = in_euler_step if kind is diffrax.ImplicitEuler else in_stage
    return kind(root_finder=Chord(max(rtol, 1e-14), max(atol, 1e-300), in_state=found))
