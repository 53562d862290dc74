"""Steps beside those of diffrax: the first one, and those that end at each jump of a vector field and see the field of one side of it.

Wherever a method looks, within a step the field is evaluated on that step's side of the jump: a stage that fell on the other side would
see the wrong field, and no step would be short enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Jumps(eqx.Module):
    """The times of jumps, ascending in the direction of integration (backwards, they are negated), infinite where there is none."""

    times: jax.Array
    margin: Any
    """How far the field is evaluated from them: its own times are rounded."""

    first: Any
    last: Any
    """Between which the field is evaluated: a few roundings inside the ends, where a jump may lie."""

    def _next(self, t: Any) -> jax.Array:
        return jnp.searchsorted(self.times, t, side="right")

    def after(self, t: Any) -> Any:
        """The next jump; infinite if there is none."""
        return jnp.append(self.times, jnp.inf)[self._next(t)].astype(t.dtype)

    def around(self, t: Any) -> tuple[Any, Any]:
        """The times between two jumps at which the field of a step from `t` is evaluated."""
        low = jnp.append(-jnp.inf, self.times)[self._next(t)] + self.margin
        high = self.after(t) - self.margin
        return jnp.maximum(low, self.first).astype(t.dtype), jnp.minimum(high, self.last).astype(t.dtype)


class Between(diffrax.AbstractWrappedSolver[Any]):
    """Another solver, which sees the field of one side of a jump only.

    Some methods look beyond the end of a step, Kvaerno's of order 4 and 5 by 15 and 23 % of its length, and all of them at the end.
    """

    solver: diffrax.AbstractSolver[Any]  # type: ignore[misc]
    jumps: Jumps

    @property
    def term_structure(self) -> Any:
        """That of the solver inside."""
        return self.solver.term_structure

    @property
    def interpolation_cls(self) -> Any:  # type: ignore[override]
        """That of the solver inside."""
        return self.solver.interpolation_cls

    @property
    def root_finder(self) -> Any:
        """That of the solver inside, if it is implicit."""
        return self.solver.root_finder  # type: ignore[attr-defined]

    @property
    def scan_kind(self) -> Any:
        """The loop over the stages of the solver inside, which the adjoint chooses."""
        return self.solver.scan_kind  # type: ignore[attr-defined]

    def order(self, terms: Any) -> int | None:
        """That of the solver inside."""
        return self.solver.order(terms)

    def error_order(self, terms: Any) -> Any:
        """That of the solver inside."""
        return self.solver.error_order(terms)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any) -> Any:
        """The state of the solver inside."""
        return self.solver.init(self._around(terms, t0), t0, t1, y0, args)

    def step(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any) -> Any:
        """A step of the solver inside."""
        return self.solver.step(self._around(terms, t0), t0, t1, y0, args, solver_state, made_jump)

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        """The field."""
        return self.solver.func(self._around(terms, t0), t0, y0, args)

    def _around(self, terms: Any, t: Any) -> Any:
        low, high = self.jumps.around(t)

        def one(term: Any) -> Any:
            if isinstance(term, diffrax.MultiTerm):
                return diffrax.MultiTerm(*map(one, term.terms))
            return OneSided(term, low, high)

        return jax.tree_util.tree_map(one, terms, is_leaf=lambda x: isinstance(x, diffrax.AbstractTerm))


class OneSided(diffrax.AbstractTerm[Any, Any]):
    """A field with its time kept between two jumps. A derivative by time goes on as if it were not."""

    term: diffrax.AbstractTerm[Any, Any]
    low: Any
    high: Any

    def _kept(self, t: Any) -> Any:
        return t + jax.lax.stop_gradient(jnp.clip(t, self.low, self.high) - t)

    def vf(self, t: Any, y: Any, args: Any) -> Any:
        """The field."""
        return self.term.vf(self._kept(t), y, args)

    def vf_prod(self, t: Any, y: Any, args: Any, control: Any) -> Any:
        """The field times a step."""
        return self.term.vf_prod(self._kept(t), y, args, control)

    def contr(self, t0: Any, t1: Any, **kwargs: Any) -> Any:
        """The step."""
        return self.term.contr(t0, t1, **kwargs)

    def prod(self, vf: Any, control: Any) -> Any:
        """A field times a step."""
        return self.term.prod(vf, control)

    def is_vf_expensive(self, t0: Any, t1: Any, y: Any, args: Any) -> bool:
        """As the field inside."""
        return self.term.is_vf_expensive(t0, t1, y, args)


def _earlier(end: Any, jump: Any) -> Any:
    """The end of a step, the jump if it comes no later. Of two that are equal, `minimum` would move with half of each."""
    return jnp.where(end < jump, end, jump)


class AdaptiveSteps(diffrax.AbstractAdaptiveStepSizeController[Any, Any]):
    """The steps of another controller, cut short at jumps.

    After a step that was cut short, the size that had been wished for is tried again: it would else grow from the length of that
    step by a factor of ten at most, and steps between two jumps at one time are a few roundings long. The motion of a jump does not
    go on into the sizes of later steps, where it would grow with them, and the derivative of the error with it: a step after a jump
    moves as a whole.
    """

    controller: diffrax.AbstractAdaptiveStepSizeController[Any, Any]
    jumps: Jumps

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

    def wrap(self, direction: Any) -> AdaptiveSteps:
        """With the direction of time."""
        return adaptive_between(self.controller.wrap(direction), self.jumps)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        end, inner = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        jump = self.jumps.after(t0)
        return _earlier(end, jump), (inner, jump, jax.lax.stop_gradient(end - t0))

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
        inner, jump, wish = controller_state
        keep, start, end, _, inner, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, inner
        )
        size, taken = jax.lax.stop_gradient((end - start, t1 - t0))
        size = jnp.where(keep & (taken < 0.5 * wish), jnp.maximum(size, wish), size)
        jumped = keep & (t1 >= jump)
        jump = jnp.where(jumped, self.jumps.after(start), jump)
        return keep, start, _earlier(start + size, jump), jumped, (inner, jump, size), result


def adaptive_between(controller: Any, jumps: Jumps) -> AdaptiveSteps:
    """Adaptive steps that end at jumps."""
    make: Any = AdaptiveSteps  # the type checker takes the abstract fields of the base class for arguments
    made: AdaptiveSteps = make(controller, jumps)
    return made


class SavedSteps(diffrax.AbstractAdaptiveStepSizeController[Any, Any]):
    """The steps of another controller, cut short at times of saving.

    After a step that was cut to less than half, the size that had been asked for is tried again, as in a pool of lanes: it would else
    grow from the length of that step by a factor of ten at most.
    """

    controller: diffrax.AbstractAdaptiveStepSizeController[Any, Any]
    times: Any
    """In the order of integration."""

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

    def wrap(self, direction: Any) -> SavedSteps:
        """With the direction of time."""
        return adaptive_up_to(self.controller.wrap(direction), direction * self.times)

    def _cut(self, start: Any, end: Any) -> Any:
        """The end of a step that begins at a time, at most the next time of saving."""
        place = jnp.searchsorted(self.times, start, side="right")
        after = jnp.where(place < len(self.times), self.times[jnp.minimum(place, len(self.times) - 1)], jnp.inf)
        return jnp.where(after < end, after, end)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        end, inner = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self._cut(t0, end), (inner, jax.lax.stop_gradient(end - t0))

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
        inner, asked = controller_state
        keep, start, end, jumped, inner, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, inner
        )
        taken, wished = jax.lax.stop_gradient((t1 - t0, end - start))
        end = jnp.where(keep & (taken < 0.5 * asked) & (wished < asked), start + asked, end)
        return keep, start, self._cut(start, end), jumped, (inner, jax.lax.stop_gradient(end - start)), result


def adaptive_up_to(controller: Any, times: Any) -> SavedSteps:
    """Adaptive steps that end at times of saving."""
    make: Any = SavedSteps
    made: SavedSteps = make(controller, times)
    return made


class FreeSteps(diffrax.PIDController):
    """The steps of diffrax, but for the first, whose error is about the tolerance (Hairer, Norsett, Wanner, Solving ODEs I, II.4).

    diffrax takes 0.01 for the first step of every problem: the state of a fast one overflows in it.
    """

    direction: Any = 1
    """Of time: the slope that `init` gets is not turned by it."""

    def wrap(self, direction: Any) -> FreeSteps:
        """With the direction of time."""
        return replace(self, direction=direction)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        if dt0 is None:
            still = jax.lax.stop_gradient((t0, t1, y0))

            def field(t: Any, y: Any) -> Any:
                slope = func(terms, t, y, args)
                whole: Any = jax.tree_util.tree_structure(y)
                if jax.tree_util.tree_structure(slope) != whole:
                    slope = jax.tree_util.tree_map(jnp.add, *slope)  # the explicit and the implicit part
                return jax.tree_util.tree_map(lambda x: jnp.asarray(self.direction, x.real.dtype) * x, slope)

            found = first_step(field, *still, error_order, self.rtol, self.atol, self.norm)
            dt0 = jax.lax.stop_gradient(found)
        return super().init(terms, t0, t1, y0, dt0, args, func, error_order)


class EvenSteps(diffrax.AbstractStepSizeController[Any, Any]):
    """Fixed steps between jumps: each interval from one to the next is divided into equal steps, no longer than asked for.

    They are two at least: an input that is held for one step is resolved by more than that step.
    """

    jumps: Jumps

    def wrap(self, direction: Any) -> EvenSteps:
        """The same: the jumps are in the direction of time already."""
        return self

    def _interval(self, start: Any, end: Any, step: Any) -> Any:
        """The interval that begins at a time: (its begin, its end, its number of steps)."""
        stop = _earlier(end, self.jumps.after(start))
        slightly_less = 1 - 8 * float(np.finfo(step.dtype).eps)  # so that 0.3 holds three steps of 0.1
        count = jax.lax.stop_gradient(jnp.ceil((stop - start) / step * slightly_less))
        return start, stop, jnp.maximum(count, 2).astype(jnp.int32)

    def init(
        self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any
    ) -> tuple[Any, Any]:
        """The end of the first step, and the state."""
        interval = self._interval(t0, t1, dt0)
        return self._end(interval, 1), (interval, jnp.asarray(1, jnp.int32), t1, dt0)

    def _end(self, interval: Any, number: Any) -> Any:
        """The end of a step by its number in the interval."""
        start, stop, count = interval
        return jnp.where(number >= count, stop, start + (stop - start) * (number / count).astype(start.dtype))

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
        interval, number, end, step = controller_state
        _, stop, count = interval
        jumped = (number >= count) & (stop < end)
        new = self._interval(t1, end, step)
        interval = jax.tree_util.tree_map(lambda a, b: jnp.where(jumped, a, b), new, interval)
        number = jnp.where(jumped, 1, number + 1)
        return True, t1, self._end(interval, number), jumped, (interval, number, end, step), diffrax.RESULTS.successful


def first_step(
    field: Callable[[Any, Any], Any], start: Any, end: Any, y0: Any, order: Any, rtol: Any, atol: Any, norm: Any
) -> Any:
    """The size of a step whose error is about the tolerance."""
    span = end - start

    def size(tree: Any) -> Any:
        return norm(jax.tree_util.tree_map(lambda leaf, y: leaf / (atol + rtol * jnp.abs(y)), tree, y0))

    slope = field(start, y0)
    d0, d1 = size(y0), size(slope)
    unknown = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = jnp.minimum(jnp.where(unknown, 1e-6, 0.01 * d0 / jnp.where(unknown, 1.0, d1)), span)
    moved = jax.tree_util.tree_map(lambda y, rate: (y + h0 * rate).astype(y.dtype), y0, slope)
    d2 = size(jax.tree_util.tree_map(jnp.subtract, field(start + h0, moved), slope)) / h0
    steepest = jnp.maximum(d1, d2)
    h1 = jnp.where(steepest <= 1e-15, span, (0.01 / steepest) ** (1 / order))
    wished = jnp.where(jnp.isfinite(d2), jnp.minimum(100 * h0, h1), 1e-3 * h0)
    wished = jnp.clip(wished, 64 * float(np.finfo(start.dtype).eps) * jnp.abs(start), span)
    return jnp.where(wished > 0, wished, jnp.where(span > 0, span, 1.0)).astype(start.dtype)
