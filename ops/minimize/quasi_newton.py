"""Methods that learn curvature from gradients: BFGS, L-BFGS, nonlinear conjugate gradients; with bounds, by projection.

Sources: J. Nocedal, S. Wright, Numerical Optimization, 2nd ed., Springer (2006), chapters 5 to 7; D. P. Bertsekas, SIAM J. Control and
Optimization 20 (1982) 221-246; M. Schmidt, D. Kim, S. Sra, Projected Newton-type methods in machine learning, in Optimization for Machine
Learning, MIT Press (2011), for limited memory on the free variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ops.minimize.boxes import rounding
from ops.minimize.descent import State, advance, begin
from ops.minimize.iterates import Iterate

LOOSE = 0.4
"""The part of the slope at the start of a line that conjugate gradients leave at its end."""


def check_count(name: str, value: Any, choice: str) -> None:
    """A setting must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, but is {value!r}. {choice} is a good choice.")


def unit_descent(gradient: jax.Array, free: jax.Array) -> jax.Array:
    """Steepest descent of at most unit length, in scaled units: the first step, when nothing is known of the curvature."""
    gradient = jnp.where(free, gradient, 0.0)
    return -gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient))


class Hessian(NamedTuple):
    """The memory of BFGS."""

    matrix: jax.Array
    """The approximate Hessian, (n, n)."""

    known: jax.Array
    """Whether it holds any curvature yet, ()."""


@dataclass(frozen=True)
class BFGS:
    """The method of Broyden, Fletcher, Goldfarb and Shanno with a dense Hessian, which is solved on the free variables. Static.

    For up to some hundred variables; each step solves an (n, n) system.
    """

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        return begin(self, z, first, box)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        return advance(self, state, evaluate, box)

    def empty(self, z: jax.Array, first: Any) -> Hessian:
        """No curvature."""
        return Hessian(jnp.eye(z.size, dtype=z.dtype), jnp.array(False))

    def learned(self, memory: Hessian, before: Any, after: Any, step: jax.Array, free: jax.Array) -> Hessian:
        """The BFGS update; the first also sets the scale (Nocedal and Wright, 6.19 and 6.20)."""
        change = after.gradient - before.gradient
        along = jnp.where(step @ change > 0, step @ change, 1.0)
        scale = (change @ change) / along * jnp.eye(step.size, dtype=step.dtype)
        matrix = jnp.where(memory.known, memory.matrix, scale)
        image = matrix @ step
        curvature = step @ image
        lost = jnp.outer(image, image) / jnp.where(curvature > 0, curvature, 1.0)
        return Hessian(matrix - lost + jnp.outer(change, change) / along, jnp.array(True))

    def direction(self, memory: Hessian, z: jax.Array, at: Any, free: jax.Array) -> jax.Array:
        """Newton's direction with the approximate Hessian of the free variables."""
        both = free[:, None] & free[None, :]
        matrix = jnp.where(both, memory.matrix, jnp.eye(z.size, dtype=z.dtype))
        gradient = jnp.where(free, at.gradient, 0.0)
        newton = -jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), gradient)
        sound = memory.known & jnp.all(jnp.isfinite(newton))
        return jnp.where(sound, newton, unit_descent(at.gradient, free))


class Pairs(NamedTuple):
    """The memory of L-BFGS: the last steps and what they changed in the gradient, newest last; zeros where there is none yet."""

    steps: jax.Array
    """(memory, n)."""

    changes: jax.Array
    """(memory, n)."""


@dataclass(frozen=True)
class LBFGS:
    """BFGS with limited memory, on the free variables: for any number of variables. Static."""

    memory: int = 10
    """Steps that are remembered."""

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: `memory` is not a whole number of at least 1.
        """
        check_count("memory", self.memory, "10")

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        return begin(self, z, first, box)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        return advance(self, state, evaluate, box)

    def empty(self, z: jax.Array, first: Any) -> Pairs:
        """No pairs."""
        none = jnp.zeros((self.memory, z.size), z.dtype)
        return Pairs(none, none)

    def learned(self, memory: Pairs, before: Any, after: Any, step: jax.Array, free: jax.Array) -> Pairs:
        """The newest pair in place of the oldest."""
        change = after.gradient - before.gradient
        return Pairs(
            jnp.concatenate([memory.steps[1:], step[None]]), jnp.concatenate([memory.changes[1:], change[None]])
        )

    def direction(self, memory: Pairs, z: jax.Array, at: Any, free: jax.Array) -> jax.Array:
        """The two-loop recursion (Nocedal and Wright, algorithm 7.4) on the pairs' parts in the free variables."""
        steps, changes = jnp.where(free, memory.steps, 0.0), jnp.where(free, memory.changes, 0.0)
        along = jnp.sum(steps * changes, axis=1)
        sizes = jnp.linalg.norm(steps, axis=1) * jnp.linalg.norm(changes, axis=1)
        usable = along > rounding(z) ** 0.75 * sizes  # the part of a pair in the free variables may have no curvature
        inverse = jnp.where(usable, 1 / jnp.where(usable, along, 1.0), 0.0)

        def newest_first(rest: jax.Array, pair: Any) -> tuple[jax.Array, jax.Array]:
            step, change, one = pair
            weight = one * (step @ rest)
            return rest - weight * change, weight

        def oldest_first(result: jax.Array, pair: Any) -> tuple[jax.Array, None]:
            step, change, one, weight = pair
            return result + step * (weight - one * (change @ result)), None

        gradient = jnp.where(free, at.gradient, 0.0)
        rest, weights = jax.lax.scan(newest_first, gradient, (steps, changes, inverse), reverse=True)
        newest = self.memory - 1 - jnp.argmax(usable[::-1])
        square = changes[newest] @ changes[newest]
        scale = along[newest] / jnp.where(square > 0, square, 1.0)
        result, _ = jax.lax.scan(oldest_first, scale * rest, (steps, changes, inverse, weights))
        return jnp.where(jnp.any(usable), -result, unit_descent(at.gradient, free))


class Line(NamedTuple):
    """The memory of conjugate gradients: the line that is being searched."""

    direction: jax.Array
    """Along it, (n,)."""

    gradient: jax.Array
    """At its start, of the variables then free, (n,)."""

    free: jax.Array
    """The variables then free, (n,)."""

    next: jax.Array
    """The step to take from its last point, along it or along the next line, (n,)."""

    known: jax.Array
    """Whether there is one, ()."""


@dataclass(frozen=True)
class NonlinearCG:
    """Nonlinear conjugate gradients of Polak and Ribiere, restarted where they would turn back (PR+). Static.

    A line is searched by secant steps, each accepted as it descends, until little of the slope is left. Needs no memory of earlier
    steps, and more of them than L-BFGS.
    """

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        return begin(self, z, first, box)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        return advance(self, state, evaluate, box)

    def empty(self, z: jax.Array, first: Any) -> Line:
        """No line."""
        zeros, no = jnp.zeros_like(z), jnp.array(False)
        return Line(zeros, zeros, jnp.zeros_like(z, dtype=bool), zeros, no)

    def learned(self, memory: Line, before: Any, after: Any, step: jax.Array, free: jax.Array) -> Line:
        """Go on along the line, or turn to the next one."""
        first = jnp.where(memory.known, memory.gradient, jnp.where(free, before.gradient, 0.0))
        same = memory.known & jnp.all(free == memory.free)
        along = jnp.where(same, memory.direction, jnp.where(free, step, 0.0))
        slope, end = jnp.abs(first @ along), after.gradient @ along
        curvature = step @ (after.gradient - before.gradient)
        size = step @ step / jnp.where(curvature > 0, curvature, 1.0)  # the inverse of the curvature along the step
        on = same & (jnp.abs(end) > LOOSE * slope)
        onward = -end * size / jnp.maximum(along @ along, float(np.finfo(step.dtype).tiny)) * along
        gradient = jnp.where(free, after.gradient, 0.0)
        square = jnp.where(first @ first > 0, first @ first, 1.0)
        turn = jnp.maximum(0.0, gradient @ (gradient - first) / square)
        turned = -gradient + jnp.where(same, turn, 0.0) * along
        turned = jnp.where(turned @ gradient < 0, turned, -gradient)
        return Line(
            direction=jnp.where(on, along, turned),
            gradient=jnp.where(on, first, gradient),
            free=free,
            next=jnp.where(on, onward, size * turned),
            known=jnp.array(True),
        )

    def direction(self, memory: Line, z: jax.Array, at: Any, free: jax.Array) -> jax.Array:
        """What was learned."""
        return jnp.where(memory.known, memory.next, unit_descent(at.gradient, free))
