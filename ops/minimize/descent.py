"""Descent by a direction and a backtracking search along it, one evaluation a step.

What differs between methods is the direction and what is remembered for it: a `Rule`. A trial that does not descend enough is taken back
and the next one lies nearer, on the segment to it, at the minimum of the cubic through both values and slopes; one whose evaluation is
not fine is followed by one at a quarter of the way.

Sources: J. Nocedal, S. Wright, Numerical Optimization, 2nd ed., Springer (2006), chapters 3 and 6; W. Hager, H. Zhang, A new conjugate
gradient method with guaranteed descent, SIAM J. Optimization 16 (2005) 170-192, for the test of decrease within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ops.minimize.boxes import clipped, pinned, rounding, towards, unblocked
from ops.minimize.iterates import Iterate

SUFFICIENT = 1e-4
"""The part of the decrease that the slope promises which a step must achieve (Armijo's constant)."""

ROUNDING = 10.0
"""Units of rounding within which a change of the gradient tells nothing."""

LEVEL = 0.75
"""Two objectives that differ by less than this power of the unit of rounding, relatively, count as equal: then the slopes decide."""

FARTHER = 4.0
"""How many times as far the next step goes where the last one found no positive curvature."""

FORGET = 1e-6
"""The part of the first trial's step below which a direction is given up and the rule forgets what it remembers."""


class Rule(Protocol):
    """Where to go next."""

    def empty(self, z: jax.Array, first: Any) -> Any:
        """What is remembered at the start."""

    def learned(self, memory: Any, before: Any, after: Any, step: jax.Array, free: jax.Array) -> Any:
        """The memory after an accepted step along which the curvature is positive; `free`: the variables not pinned at its end."""

    def direction(self, memory: Any, z: jax.Array, at: Any, free: jax.Array) -> jax.Array:
        """Direction and length of the first trial from z, (n,)."""


class State(NamedTuple):
    """A search between two steps."""

    z: jax.Array
    """The accepted point, (n,)."""

    at: Any
    """The evaluation there."""

    trial: jax.Array
    """The next point to evaluate, (n,)."""

    memory: Any
    """What the rule remembers."""

    fresh: jax.Array
    """Whether the rule remembers nothing yet, ()."""

    part: jax.Array
    """The part of the first trial's step from `z` that the next trial is, ()."""


def begin(rule: Rule, z: jax.Array, first: Any, box: Any) -> State:
    """The state before the first step."""
    at = clean(first)
    memory = rule.empty(z, at)
    state = State(z, at, z, memory, jnp.array(True), jnp.ones((), z.dtype))
    return state._replace(trial=aimed(rule, state, box))


def restarted(rule: Rule, state: State, at: Any, box: Any, forget: jax.Array) -> State:
    """The same search after its objective has changed to what `at` holds; `forget`: whether what is remembered is void, ()."""
    empty = rule.empty(state.z, at)
    state = state._replace(
        at=clean(at),
        memory=chosen(forget, empty, state.memory),
        fresh=state.fresh | forget,
        part=jnp.ones_like(state.part),
    )
    return state._replace(trial=aimed(rule, state, box))


def aimed(rule: Rule, state: State, box: Any) -> jax.Array:
    """The first trial from the accepted point."""
    fixed = pinned(state.z, state.at.gradient, box)
    direction = unblocked(lambda free: rule.direction(state.memory, state.z, state.at, free), state.z, fixed, box)
    return towards(state.z, direction, state.at.gradient, fixed, box)


def advance(rule: Rule, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
    """One step: one call of `evaluate`."""
    trial, step = state.trial, state.trial - state.z
    tried = evaluate(trial)
    known = clean(tried)
    accepted = tried.fine & descended(state.at, known, step)
    moved, farther = after_move(rule, state, known, box)
    factor = jnp.where(known.fine, minimum_of_cubic(state.at, known, step), 0.25)
    near, part = clipped(state.z + factor * step, box), state.part * factor
    short = below_rounding(state.z, near - state.z)
    forget = ~accepted & known.fine & ~state.fresh & ((part < FORGET) | short)
    stuck = ~accepted & (state.fresh | ~known.fine) & short
    empty = state._replace(
        memory=rule.empty(state.z, state.at), fresh=jnp.ones_like(state.fresh), part=jnp.ones_like(part)
    )
    state = chosen(accepted, moved, chosen(forget, empty, state._replace(part=part)))
    fixed = pinned(state.z, state.at.gradient, box)
    on = towards(state.z, FARTHER * step, state.at.gradient, fixed, box)
    there = jnp.where(accepted & farther, on, jnp.where(accepted | forget, aimed(rule, state, box), near))
    state = state._replace(trial=there)
    return state, Iterate(state.z, state.at, trial, tried, accepted, stuck)


def descended(before: Any, after: Any, step: jax.Array) -> jax.Array:
    """Whether a step descends enough: by Armijo's test, or where rounding hides the decrease, by the slope at its end."""
    slope, end = before.gradient @ step, after.gradient @ step
    enough = after.value <= before.value + SUFFICIENT * slope
    level = jnp.abs(after.value - before.value) <= rounding(step) ** LEVEL * jnp.abs(before.value)
    flatter: jax.Array = jnp.abs(end) <= -(1 - 2 * SUFFICIENT) * slope
    descends: jax.Array = (slope < 0) & (enough | (level & flatter))
    return descends


def after_move(rule: Rule, state: State, known: Any, box: Any) -> tuple[State, jax.Array]:
    """The state after an accepted step, but for its next trial; and whether that lies farther in the same direction."""
    step = state.trial - state.z
    change = known.gradient - state.at.gradient
    least = ROUNDING * rounding(step) * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    curved = step @ change > least
    free = ~pinned(state.trial, known.gradient, box)
    learned = rule.learned(state.memory, state.at, known, step, free)
    remembers = bool(jax.tree.leaves(state.memory))
    after = State(
        z=state.trial,
        at=known,
        trial=state.trial,
        memory=chosen(curved, learned, state.memory),
        fresh=state.fresh & ~curved if remembers else state.fresh,
        part=jnp.ones_like(state.part),
    )
    return after, ~curved if remembers else jnp.zeros_like(curved)


def minimum_of_cubic(before: Any, after: Any, step: jax.Array) -> jax.Array:
    """Where the cubic through the values and slopes at both ends of a step is least, as a part of it from 0.1 to 0.5."""
    slope, end, rise = before.gradient @ step, after.gradient @ step, after.value - before.value
    middle = slope + end - 3 * rise
    root = jnp.sqrt(jnp.maximum(middle**2 - slope * end, 0.0))
    least = 1 - (end + root - middle) / (end - slope + 2 * root)
    return jnp.clip(jnp.where(jnp.isfinite(least), least, 0.5), 0.1, 0.5)


def below_rounding(z: jax.Array, step: jax.Array) -> jax.Array:
    """Whether a step is too short to change a point, in scaled units."""
    return jnp.all(jnp.abs(step) <= rounding(z) * jnp.maximum(1.0, jnp.abs(z)))


def clean(evaluation: Any) -> Any:
    """An evaluation with zeros in place of its numbers where it is not fine, so that nothing computed from it is NaN."""
    return jax.tree.map(lambda x: jnp.where(evaluation.fine, x, jnp.zeros_like(x)), evaluation)


def chosen(first: jax.Array, one: Any, other: Any) -> Any:
    """`one` where `first` holds, else `other`, of the dtypes of `other`."""
    return jax.tree.map(lambda a, b: jnp.where(first, a, b).astype(jnp.result_type(b)), one, other)
