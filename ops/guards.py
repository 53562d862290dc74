"""Step size controllers that end a solve which cannot come to a good end: in bounded time, with a reason, without a number.

A step that is rejected is tried again with a shorter one. That ends where time no longer moves, or at the shortest step that is
allowed. (diffrax would accept the shortest step whatever its error, or look for it in steps that are short for another reason.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

STALLED = diffrax.RESULTS.dt_min_reached
BEYOND = diffrax.RESULTS.nonfinite
"""What a guarded solve ends with: no step is short enough; the state is not finite, or larger than it may be."""


class GuardedSteps(diffrax.AbstractAdaptiveStepSizeController[Any, Any]):
    """Adaptive steps that end where none is short enough, or the state is too large."""

    controller: diffrax.PIDController
    shortest: Any
    max_abs: Any
    of_state: Callable[[Any], Any] = eqx.field(static=True)
    """The state that is asked for, within the one that is integrated."""

    @property  # type: ignore[misc]
    def rtol(self) -> Any:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.rtol

    @property  # type: ignore[misc]
    def atol(self) -> Any:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.atol

    @property  # type: ignore[misc]
    def norm(self) -> Callable[[Any], Any]:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.norm

    def wrap(self, direction: Any) -> GuardedSteps:
        """With the direction of time."""
        wrapped: GuardedSteps = eqx.tree_at(lambda c: c.controller, self, self.controller.wrap(direction))
        return wrapped

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        end, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return end if self.shortest is None else jnp.maximum(end, t0 + self.shortest), state

    def adapt_step_size(
        self,
        t0: Any,
        t1: Any,
        y0: Any,
        y1_candidate: Any,
        args: Any,
        y_error: Any,
        error_order: Any,
        controller_state: Any,
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """The next step, and the state."""
        found: tuple[Any, ...] = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        keep, start, end, jumped, state, result = found
        rounding = 2 * float(jnp.finfo(start.dtype).eps) * jnp.abs(start)  # type: ignore[no-untyped-call]
        stalled = ~keep & ((end <= start + rounding) | (end == t1))  # rounding may give the same step again
        if self.shortest is not None:
            stalled |= ~keep & (end - start < self.shortest)
        result = _ended(stalled, STALLED, result)
        if self.max_abs is not None:
            result = _ended(keep & ~within(self.of_state(y1_candidate), self.max_abs), BEYOND, result)
        return keep, start, end, jumped, state, result


def guarded(controller: Any, shortest: Any, max_abs: Any, of_state: Callable[[Any], Any]) -> Any:
    """Adaptive steps with guards."""
    make: Any = GuardedSteps  # the type checker takes the abstract fields of the base class for arguments
    return make(controller, shortest, max_abs, of_state)


class BoundedSteps(diffrax.AbstractStepSizeController[Any, Any]):
    """Fixed steps that end where the state is not finite, or too large."""

    controller: diffrax.AbstractStepSizeController[Any, Any]
    max_abs: Any

    def wrap(self, direction: Any) -> BoundedSteps:
        """With the direction of time."""
        return BoundedSteps(self.controller.wrap(direction), self.max_abs)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        some = jnp.where(
            t1 > t0, t1, t0 + dt0
        )  # diffrax divides by the number of steps, also in a lane that takes none
        return self.controller.init(terms, t0, some, y0, dt0, args, func, error_order)

    def adapt_step_size(
        self,
        t0: Any,
        t1: Any,
        y0: Any,
        y1_candidate: Any,
        args: Any,
        y_error: Any,
        error_order: Any,
        controller_state: Any,
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """The next step, and the state."""
        *found, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        inside = within(y1_candidate, jnp.inf if self.max_abs is None else self.max_abs)
        keep, start, end, jumped, state = found
        return keep, start, end, jumped, state, _ended(~inside, BEYOND, result)


def within(state: Any, bound: Any) -> jax.Array:
    """Whether every number of a state is finite, and at most as large as a bound."""
    inside = jnp.array(True)
    for leaf in jax.tree_util.tree_leaves(state):
        inside &= jnp.all((jnp.abs(leaf) <= bound) & jnp.isfinite(leaf))
    return inside


def _ended(condition: Any, reason: Any, result: Any) -> Any:
    """A result, or the reason for the end."""
    return diffrax.RESULTS.where(condition, reason, result)
