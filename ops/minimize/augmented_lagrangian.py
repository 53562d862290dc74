"""Constraints by the augmented Lagrangian: a sequence of problems with bounds alone, solved one evaluation a step.

The violation of a constraint `low <= c <= high` is that of `c + multiplier / penalty`; half its square times the penalty is added to the
objective. When the inner method has come close enough to the minimum of that, the multipliers become the penalty times these violations,
and where the constraints are not kept much better than before, the penalty grows.

Source: E. Birgin, J. Martinez, Practical Augmented Lagrangian Methods for Constrained Optimization, SIAM (2014), algorithm 4.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ops.minimize import descent
from ops.minimize.boxes import projected_gradient, rounding
from ops.minimize.iterates import Iterate
from ops.minimize.quasi_newton import BFGS, LBFGS, NonlinearCG

GROWTH = 10.0
"""By what the penalty is multiplied."""

ENOUGH = 0.25
"""The part of the violation before that may be left without the penalty growing."""

LARGEST_MULTIPLIER = 1e8
"""Multipliers are kept within this, in scaled units."""

PENALTIES = (1e-3, 1e3)
"""Between these the first penalty lies."""

LARGEST_PENALTY = 1e9
"""Constraints that are not kept with this are taken to be impossible to keep."""


class Outer(NamedTuple):
    """What the outer iterations change."""

    multipliers: jax.Array
    """(k,), of constraints `c - high <= 0` positive and `low - c <= 0` negative."""

    penalty: jax.Array
    """()."""

    accuracy: jax.Array
    """The projected gradient at which the inner method is stopped, ()."""

    violation: jax.Array
    """Of the constraints and of complementarity after the outer iteration before, ()."""

    steps: jax.Array
    """Of the inner method since the last outer iteration, int32, ()."""


class State(NamedTuple):
    """A search between two steps."""

    inner: descent.State
    """Of the inner method, on the augmented Lagrangian."""

    at: Any
    """The evaluation at the accepted point: of objective and constraints."""

    outer: Outer


@dataclass(frozen=True)
class AugmentedLagrangian:
    """The augmented Lagrangian with a method for bounds inside. Static."""

    inner: BFGS | LBFGS | NonlinearCG = field(default_factory=LBFGS)
    """What minimizes it."""

    patience: int = 100
    """Inner steps after which the multipliers are brought up to date, whatever has been reached."""

    needs: ClassVar[str] = "gradient"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TypeError: the inner method is none of those that descend.
        """
        if not isinstance(self.inner, BFGS | LBFGS | NonlinearCG):
            raise TypeError(
                f"`inner` must be BFGS, LBFGS or NonlinearCG, but is {self.inner!r}. Write {{_target_: ops.minimize.LBFGS}}."
            )

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        at = descent.clean(first)
        distance = violated(at.constraints, box)
        penalty = 10 * jnp.maximum(1.0, jnp.abs(at.value)) / jnp.maximum(1.0, 0.5 * distance @ distance)
        outer = Outer(
            multipliers=jnp.zeros_like(at.constraints),
            penalty=jnp.clip(penalty, *PENALTIES).astype(z.dtype),
            accuracy=jnp.full((), 0.1, z.dtype),
            violation=jnp.full((), jnp.inf, z.dtype),
            steps=jnp.zeros((), jnp.int32),
        )
        return State(descent.begin(self.inner, z, self.merit(at, outer, box), box), at, outer)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation, and where the inner problem is solved, the next one."""
        seen: list[Any] = []

        def lagrangian(z: jax.Array) -> Any:
            seen.append(evaluate(z))
            return apart(self.merit(seen[0], state.outer, box))

        inner, iterate = apart(descent.advance(self.inner, state.inner, lagrangian, box))
        at = descent.chosen(iterate.accepted, descent.clean(seen[0]), state.at)
        outer = state.outer._replace(steps=state.outer.steps + 1)
        left = jnp.max(jnp.abs(projected_gradient(inner.z, inner.at.gradient, box)), initial=0)
        solved = (left <= outer.accuracy) | iterate.stalled | (outer.steps >= self.patience)
        later = apart(self.updated(outer, at, box))
        again = descent.restarted(
            self.inner, inner, self.merit(at, later, box), box, iterate.stalled | (later.penalty > outer.penalty)
        )
        settled = jnp.max(jnp.abs(later.multipliers - outer.multipliers), initial=0) <= rounding(inner.z)
        hopeless = solved & (outer.penalty >= LARGEST_PENALTY)
        stuck = (iterate.stalled & settled & (later.penalty == outer.penalty)) | hopeless
        state = State(descent.chosen(solved, again, inner), at, descent.chosen(solved, later, outer))
        return state, Iterate(inner.z, at, iterate.trial, seen[0], iterate.accepted, stuck)

    def multipliers(self, state: State) -> jax.Array:
        """Those of the constraints at the accepted point, (k,), to the first order: with them the Lagrangian's gradient is the inner
        problem's."""
        pulls: jax.Array = state.inner.at.constraints
        return pulls

    def merit(self, at: Any, outer: Outer, box: Any) -> Any:
        """The evaluation of the augmented Lagrangian; in the place of the constraints it has the multipliers to the first order."""
        excess = violated(at.constraints + outer.multipliers / outer.penalty, box)
        pull = outer.penalty * excess
        return at._replace(
            value=at.value + 0.5 * pull @ excess, gradient=at.gradient + pull @ at.constraint_jacobian, constraints=pull
        )

    def updated(self, outer: Outer, at: Any, box: Any) -> Outer:
        """The next outer iteration."""
        distance = violated(at.constraints, box)
        pull = outer.penalty * violated(at.constraints + outer.multipliers / outer.penalty, box)
        slack = jnp.where(distance == 0, jnp.abs(pull - outer.multipliers) / outer.penalty, jnp.abs(distance))
        violation = jnp.max(slack, initial=0)
        grow = violation > jnp.maximum(ENOUGH * outer.violation, rounding(outer.penalty))
        return Outer(
            multipliers=jnp.clip(pull, -LARGEST_MULTIPLIER, LARGEST_MULTIPLIER),
            penalty=jnp.where(grow, jnp.minimum(GROWTH * outer.penalty, LARGEST_PENALTY), outer.penalty),
            accuracy=jnp.maximum(0.1 * outer.accuracy, rounding(outer.penalty)),
            violation=violation,
            steps=jnp.zeros_like(outer.steps),
        )


def apart(values: Any) -> Any:
    """The same values, computed once and for all: XLA fuses them into each of their uses, at the cost of minutes to compile."""
    return jax.lax.optimization_barrier(values)


def violated(constraints: jax.Array, box: Any) -> jax.Array:
    """By how much each constraint lies above (positive) or below (negative) its limits, (k,)."""
    distance: jax.Array = constraints - jnp.minimum(jnp.maximum(constraints, box.low), box.high)
    return distance
