"""Optax's gradient transformations as methods of a search: the one home of Optax.

In: a transformation. Out: a method whose step evaluates the point that the transformation's update leads to, put back into the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from engine.errors import PlanError
from engine.evaluation import Box, Evaluation, Iterate


class State(NamedTuple):
    """A search between two steps."""

    z: jax.Array
    """The accepted point, (n,)."""

    at: Any
    """The evaluation there."""

    learning: Any
    """What the transformation remembers of the gradients before."""

    part: jax.Array
    """The part of the next update that is taken, (): below 1 after an evaluation that was not fine."""


@dataclass(frozen=True)
class OptaxMethod:
    """A gradient transformation. Static.

    Each trial is accepted whose evaluation is fine. One that is not leaves everything as it was, moments and schedules included, and the
    next trial goes a quarter of the way; after that the part doubles with each step, up to the whole update.
    """

    transformation: Any
    """An `optax.GradientTransformation`; those that ask for `value` and `grad` get them."""

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def init(self, z: jax.Array, first: Evaluation, box: Box) -> State:
        """The state before the first step."""
        at = jax.tree.map(lambda x: jnp.where(first.fine, x, jnp.zeros_like(x)), first)
        return State(z, at, self.transformation.init(z), jnp.ones((), z.dtype))

    def step(self, state: State, evaluate: Callable[[jax.Array], Evaluation], box: Box) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        update = optax.with_extra_args_support(self.transformation).update
        gradient = state.at.gradient
        steps, learning = update(gradient, state.learning, state.z, value=state.at.value, grad=gradient)
        sound = jnp.all(jnp.isfinite(steps))
        whole = inside(state.z + jnp.where(sound, steps, 0.0), box)
        trial = jnp.where(state.part < 1, inside(state.z + state.part * (whole - state.z), box), whole)
        tried = evaluate(trial)
        accepted = tried.fine & sound
        part = jnp.where(accepted, jnp.minimum(2 * state.part, 1.0), 0.25 * state.part)
        z, at, learning = jax.tree.map(
            lambda a, b: jnp.where(accepted, a, b).astype(jnp.result_type(b)),
            (trial, tried, learning),
            (state.z, state.at, state.learning),
        )
        stuck = ~sound | (~tried.fine & jnp.all(trial == state.z))
        state = State(z, at, learning, part.astype(state.part.dtype))
        return state, Iterate(state.z, state.at, trial, tried, accepted, stuck)


def inside(z: jax.Array, box: Box) -> jax.Array:
    """The nearest point of the box."""
    return jnp.minimum(jnp.maximum(z, box.lower), box.upper)


def wrapped(built: Any, name: str, n: int) -> OptaxMethod:
    """The method of a transformation.

    Args:
        built: what a `_target_` was built to.
        name: what to call it in a message.
        n: variables.

    Raises:
        PlanError: it cannot take a step with one evaluation.
    """
    method = OptaxMethod(built)
    z, scalar, none = jnp.zeros(n), jnp.zeros(()), jnp.zeros((0,))
    seen = Evaluation(scalar, z, none, jnp.zeros((0, n)), none, jnp.zeros((0, n)), jnp.array(True))
    box = Box(z, z, none, none)

    def once(z: jax.Array) -> Any:
        return method.step(method.init(z, seen, box), lambda _: seen, box)

    try:
        jax.eval_shape(once, z)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "value_fn" in said:
            said, remedy = (
                "it searches a line with evaluations of its own",
                "Write linesearch: null in it, or method: lbfgs",
            )
        else:
            remedy = "Choose one of `python -m engine list optimizers`"
        raise PlanError(
            f"`optimize.method` must take a step with one evaluation, but {name} cannot: {said}. {remedy}."
        ) from None
    return method


def is_transformation(built: Any) -> bool:
    """Whether something is a gradient transformation."""
    return isinstance(built, optax.GradientTransformation)
