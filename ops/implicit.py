"""Derivatives of what an equation defines: by the implicit function theorem at the solution, not through the iteration that found it.

Where F(y, p) = 0, dy/dp = -(dF/dy)^-1 dF/dp: in forward and reverse mode, under vmap, and again for second derivatives. An F that has
reverse derivatives alone, such as a solve with checkpoints, gives its root reverse derivatives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import zero_from_primal
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr


class Sought(NamedTuple):
    """What a search found: a root with the Jacobian there, whether it is one, and anything else."""

    y: Any
    fine: Any
    slope: Any
    rest: Any


class Opened(NamedTuple):
    """A function of one vector, traced, and the arrays that it closes over beside it: a rule may close over none."""

    call: Callable[[Any, Any], Any]
    held: list[Any]

    def __call__(self, y: Any) -> Any:
        """The function as it was."""
        return self.call(self.held, y)


def opened(function: Callable[[Any], Any], y: Any) -> Opened:
    """A function of a vector (and of no more than it closes over) whose result is one array or a pytree of arrays."""
    traced, shape = jax.make_jaxpr(function, return_shape=True)(y)
    structure = jax.tree_util.tree_structure(shape)

    def call(held: Any, y: Any) -> Any:
        return jax.tree_util.tree_unflatten(structure, jaxpr_as_fun(traced.replace(consts=list(held)))(y))

    return Opened(call, list(traced.consts))


def jacobian(function: Callable[[Any], Any], y: jax.Array, forward: bool = True) -> tuple[jax.Array, jax.Array]:
    """A function's value and its Jacobian at `y`, both vectors; row by row if it has no forward derivative."""
    if not forward:
        value, pull = jax.vjp(function, y)
        return value, jax.vmap(lambda row: pull(row)[0])(jnp.eye(value.size, dtype=value.dtype))
    value, columns = jax.vmap(lambda v: jax.jvp(function, (y,), (v,)), out_axes=(None, -1))(
        jnp.eye(y.size, dtype=y.dtype)
    )
    return value, columns


def solved(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix^-1 right; not finite where the matrix is singular."""
    return right / matrix[0, 0] if matrix.shape == (1, 1) else jnp.linalg.solve(matrix, right)


def goes_forward(function: Opened, y: jax.Array) -> bool:
    """Whether a function has a forward derivative: JAX traces the tangent of a custom_vjp, and refuses to compile it."""
    try:
        traced = jax.make_jaxpr(lambda y: jax.jvp(function.__call__, (y,), (jnp.ones_like(y),)))(y)
    except (TypeError, NotImplementedError, ValueError):  # a solve with checkpoints, a callback
        return False
    needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
    return not _applies(needed, "custom_lin")


def _applies(jaxpr: Any, name: str) -> bool:
    """Whether a program applies a primitive, in its loops and branches too."""
    return any(
        eqn.primitive.name == name or any(_applies(inner, name) for inner in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def with_implicit_derivative(
    function: Opened, seek: Callable[[], Sought], y_like: jax.Array
) -> tuple[jax.Array, jax.Array, Any]:
    """What `seek` finds, with the derivative of a root of `function`.

    Args:
        function: F(y), a vector as long as y, in whose held arrays the derivatives are.
        seek: makes the search. It is never differentiated.
        y_like: a vector of the root's shape.

    Returns:
        The root, whether it is one, and the rest; where it is none its derivative is zero, and nothing else's is harmed.
    """
    search = opened(lambda _: seek(), jnp.zeros(()))
    nothing = jnp.zeros(())
    if goes_forward(function, y_like):
        root = _both_ways(function.call, search.call, nothing)
    else:
        root = _backwards(function.call, search.call, nothing)
    found = root(function.held, search.held)
    return found.y, found.fine, found.rest


def _kept(fine: Any, matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix^-1 right where there is a root, else zero: a singular Jacobian of a failed lane must not reach another's sums."""
    unit = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    return solved(jnp.where(fine, matrix, unit), jnp.where(fine, right, 0))


def _both_ways(call: Any, search: Any, nothing: Any) -> Any:
    """A root with a rule for forward mode, which JAX transposes for reverse mode."""

    @jax.custom_jvp
    def root(held: Any, of_search: Any) -> Any:
        return search(of_search, nothing)

    @root.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        held, of_search = primals
        found = root(held, of_search)
        y = found.y
        _, change = jax.jvp(lambda held: call(held, y), (held,), (tangents[0],))
        _, slope = jacobian(lambda y: call(held, y), y)  # that of the search has no derivative of its own
        still = zero_from_primal(found, symbolic_zeros=False)
        return found, still._replace(y=-_kept(found.fine, slope, change))

    return root


def _backwards(call: Any, search: Any, nothing: Any) -> Any:
    """A root with a rule for reverse mode alone."""

    @jax.custom_vjp
    def root(held: Any, of_search: Any) -> Any:
        return search(of_search, nothing)

    def forward(held: Any, of_search: Any) -> Any:
        found = root(held, of_search)
        return found, (held, of_search, found)

    def backward(kept: Any, cotangents: Any) -> Any:
        held, of_search, found = kept
        _, pull = jax.vjp(lambda held: call(held, found.y), held)
        (change,) = pull(-_kept(found.fine, found.slope.T, cotangents.y))
        return change, zero_from_primal(of_search, symbolic_zeros=False)

    root.defvjp(forward, backward)
    return root
