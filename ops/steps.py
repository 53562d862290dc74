"""Step size controllers beside those of diffrax: steps that end just before each jump of a vector field, and begin again just after it.

A few roundings are left out on either side, as a method's own times are rounded: a stage that fell on the other side of the jump would
see the wrong field, and no step would be short enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp


class Jumps(eqx.Module):
    """The times of jumps in the order of integration, and how far steps stay away from them."""

    times: jax.Array
    margin: Any

    def wrap(self, direction: Any) -> Jumps:
        """With the direction of time."""
        return Jumps(jnp.sort(self.times * direction), self.margin)

    def after(self, t: Any) -> tuple[Any, Any]:
        """Where the last step before the next jump ends, and the first one after it begins; infinite if there is none."""
        times = jnp.append(self.times, jnp.inf)
        jump = times[jnp.searchsorted(self.times, t + self.margin, side="right")].astype(t.dtype)
        return jump - self.margin, jump + self.margin


class AdaptiveSteps(diffrax.AbstractAdaptiveStepSizeController[Any, Any]):
    """The steps of another controller, cut short at jumps.

    After a step that was cut short, the size that had been wished for is tried again: it would else grow from the length of that
    step by a factor of ten at most, and steps between two jumps at one time are a few roundings long. The motion of a jump does not
    go on into the sizes of later steps, where it would grow with them, and the derivative of the error with it: a step after a jump
    moves as a whole.
    """

    controller: diffrax.AbstractAdaptiveStepSizeController[Any, Any]
    jumps: Jumps

    @property
    def rtol(self) -> Any:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.rtol

    @property
    def atol(self) -> Any:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.atol

    @property
    def norm(self) -> Callable[[Any], Any]:  # type: ignore[override]
        """That of the controller inside."""
        return self.controller.norm

    def wrap(self, direction: Any) -> AdaptiveSteps:
        """With the direction of time."""
        return AdaptiveSteps(self.controller.wrap(direction), self.jumps.wrap(direction))  # type: ignore[arg-type]

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        end, inner = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        limits = self.jumps.after(t0)
        return jnp.minimum(end, limits[0]), (inner, limits, jax.lax.stop_gradient(end - t0))

    def adapt_step_size(
        self, t0: Any, t1: Any, y0: Any, y1_candidate: Any, args: Any, y_error: Any, error_order: Any, controller_state: Any
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """The next step, and the state."""
        inner, (stop, resume), wish = controller_state
        keep, start, end, _, inner, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, inner
        )
        size, taken = jax.lax.stop_gradient((end - start, t1 - t0))
        size = jnp.where(keep & (taken < 0.5 * wish), jnp.maximum(size, wish), size)
        jumped = keep & (t1 >= stop)
        start = jnp.where(jumped, resume, start)
        limits = _where(jumped, self.jumps.after(start), (stop, resume))
        return keep, start, jnp.minimum(start + size, limits[0]), jumped, (inner, limits, size), result


class EvenSteps(diffrax.AbstractStepSizeController[Any, Any]):
    """Fixed steps between jumps: each interval from one to the next is divided into equal steps, no longer than asked for.

    They are two at least: an input that is held for one step is resolved by more than that step.
    """

    jumps: Jumps

    def wrap(self, direction: Any) -> EvenSteps:
        """With the direction of time."""
        return EvenSteps(self.jumps.wrap(direction))

    def _interval(self, start: Any, end: Any, step: Any) -> Any:
        """The interval that begins at a time: (its begin, its end, where the next one begins, its number of steps)."""
        stop, resume = self.jumps.after(start)
        stop = jnp.minimum(stop, end)
        slightly_less = 1 - 8 * jnp.finfo(step.dtype).eps  # so that 0.3 holds three steps of 0.1
        count = jax.lax.stop_gradient(jnp.ceil((stop - start) / step * slightly_less))
        return start, stop, resume, jnp.maximum(count, 2).astype(jnp.int32)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        interval = self._interval(t0, t1, dt0)
        return self._end(interval, 1), (interval, jnp.asarray(1, jnp.int32), t1, dt0)

    def _end(self, interval: Any, number: Any) -> Any:
        """The end of a step by its number in the interval."""
        start, stop, _, count = interval
        return jnp.where(number >= count, stop, start + (stop - start) * (number / count).astype(start.dtype))

    def adapt_step_size(
        self, t0: Any, t1: Any, y0: Any, y1_candidate: Any, args: Any, y_error: Any, error_order: Any, controller_state: Any
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """The next step, and the state."""
        interval, number, end, step = controller_state
        _, _, resume, count = interval
        jumped = (number >= count) & (resume < end)
        interval = _where(jumped, self._interval(jnp.where(jumped, resume, end), end, step), interval)
        number = jnp.where(jumped, 1, number + 1)
        start = jnp.where(jumped, resume, t1)
        return True, start, self._end(interval, number), jumped, (interval, number, end, step), diffrax.RESULTS.successful


def _where(condition: Any, yes: Any, no: Any) -> Any:
    """One of two pytrees."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), yes, no)


def controller(step: Any, jumps: Jumps | None, adaptive: Callable[[], Any]) -> Any:
    """The controller for fixed or adaptive steps, with or without jumps."""
    if step is not None:
        return diffrax.ConstantStepSize() if jumps is None else EvenSteps(jumps)
    return adaptive() if jumps is None else AdaptiveSteps(adaptive(), jumps)
