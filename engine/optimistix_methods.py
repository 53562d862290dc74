"""Optimistix's minimisers and least-squares solvers as methods of a search: the one home of Optimistix in the engine.

In: a solver. Out: a method that hands it one evaluation a step, as a function that has the value and the derivatives of that evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix

from engine.errors import PlanError
from engine.evaluation import Box, Evaluation, Iterate

OPTIONS = {"jac": "bwd"}
"""Jacobians as arrays and not as programs."""


class State(NamedTuple):
    """A search between two steps."""

    z: jax.Array
    """The accepted point, (n,)."""

    at: Any
    """The evaluation there."""

    inner: Any
    """The arrays of the solver's own state; what else is in it, programs among them, does not change."""


@dataclass(frozen=True)
class OptimistixMethod:
    """A minimiser or a least-squares solver. Static. It evaluates its start once more, in its first step."""

    solver: Any
    """An `optimistix.AbstractMinimiser` or `AbstractLeastSquaresSolver` whose state has the next point to evaluate as `y_eval`."""

    bounded: ClassVar[bool] = False
    constrained: ClassVar[bool] = False

    @property
    def needs(self) -> str:
        """What the solver works on."""
        return "residuals" if isinstance(self.solver, optimistix.AbstractLeastSquaresSolver) else "gradient"

    def function(self, at: Any, point: jax.Array) -> Callable[[Any, Any], Any]:
        """The function that has the value and the derivatives of an evaluation at a point; infinite where that is not fine."""
        fits = self.needs == "residuals"
        value, slope = (at.residuals, at.jacobian) if fits else (at.value, at.gradient)
        value = jnp.where(at.fine, value, jnp.inf)
        slope = jnp.where(at.fine, slope, 0.0)
        return lambda y, args: (value + slope @ (y - point), None)

    def init(self, z: jax.Array, first: Evaluation, box: Box) -> State:
        """The state before the first step."""
        at = jax.tree.map(lambda x: jnp.where(first.fine, x, jnp.zeros_like(x)), first)
        return State(z, at, jax.tree.map(jnp.asarray, eqx.filter(self.begun(z, at), eqx.is_array)))

    def begun(self, z: jax.Array, at: Any) -> Any:
        """The solver's own state before its first step."""
        function = self.function(at, z)
        shape = jax.eval_shape(lambda: function(z, None)[0])
        return self.solver.init(function, z, None, OPTIONS, shape, None, frozenset())

    def step(self, state: State, evaluate: Callable[[jax.Array], Evaluation], box: Box) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        programs = eqx.filter(self.begun(state.z, state.at), eqx.is_array, inverse=True)
        inner = eqx.combine(state.inner, programs)
        trial = inner.y_eval
        tried = evaluate(trial)
        function = self.function(tried, trial)
        z, inner, _ = self.solver.step(function, state.z, None, OPTIONS, inner, frozenset())
        done, result = self.solver.terminate(function, z, None, OPTIONS, inner, frozenset())
        accepted = tried.fine & jnp.all(z == trial)
        z, at = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), (trial, tried), (state.z, state.at))
        stuck = done | (result != optimistix.RESULTS.successful) | ~jnp.all(jnp.isfinite(inner.y_eval))
        return State(z, at, eqx.filter(inner, eqx.is_array)), Iterate(z, at, trial, tried, accepted, stuck)


def wrapped(built: Any, name: str) -> OptimistixMethod:
    """The method of a solver.

    Args:
        built: what a `_target_` was built to.
        name: what to call it in a message.

    Raises:
        PlanError: it does not take a step with one evaluation.
    """
    method = OptimistixMethod(built)
    z, scalar, none = jnp.zeros(1), jnp.zeros(()), jnp.zeros((0,))
    seen = Evaluation(scalar, z, z, jnp.zeros((1, 1)), none, jnp.zeros((0, 1)), jnp.array(True))
    box = Box(z, z, none, none)

    def once(z: jax.Array) -> Any:
        return method.step(method.init(z, seen, box), lambda _: seen, box)[1]

    try:
        jax.eval_shape(once, z)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PlanError(
            f"`optimize.method` must take a step with one evaluation, but {name} cannot: {said}. "
            "Choose one of `python -m engine list optimizers`."
        ) from None
    return method


def is_solver(built: Any) -> bool:
    """Whether something is a minimiser or a least-squares solver."""
    return isinstance(built, optimistix.AbstractMinimiser | optimistix.AbstractLeastSquaresSolver)
