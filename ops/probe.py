"""A tangent integrated beside the state, so that steps resolve derivatives too.

In: a vector field and its initial state. Out: both with the tangent, what takes the state out again, and the norm of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from ops.methods import Solver, VectorField
from ops.rosenbrock import Rodas5P

PROBE_SLACK = 10.0
"""How much larger than the state's the error of a tangent may be in one step: derivatives get about a digit less than values."""


class Probed(NamedTuple):
    """What is integrated."""

    state: Any
    field: Any
    of_state: Callable[[Any], Any]
    """Takes the state that was asked for out of the one that is integrated."""

    norm: Callable[[Any], Any]
    """Of the error."""


def same(state: Any) -> Any:
    """What takes the state out where there is no tangent."""
    return state


def alone(y0: Any, field: Any) -> Probed:
    """The state without a tangent."""
    return Probed(y0, field, same, _norm)


def with_tangent(field: Any, start: jax.Array, y0: Any, args: Any, solver: Solver) -> Probed:
    """The state beside a tangent along a generic direction, integrated under error control too.

    The step size follows the error of the state alone, so that a state at rest, or below `atol`, lets steps grow until its
    derivatives are wrong by orders of magnitude. The tangent w (w' = J w + (df/dp) v) makes the steps resolve them; it feeds
    nothing back. As in the full error control of sensitivities of CVODES (Serban and Hindmarsh, 2005), for one direction, and to
    `PROBE_SLACK` times the tolerance: where the state itself needs the shorter steps, they stay as they are. A field without a
    forward derivative (a custom_vjp, a callback) is integrated alone.
    """
    # The size at which both tolerances weigh alike.
    ratio = solver.atol / solver.rtol if solver.atol > 0 and solver.rtol > 0 else 1.0

    def drawn(seed: int) -> Callable[..., Any]:
        signs = np.random.default_rng(seed)

        def direction(leaf: Any, least: float = 1.0) -> Any:
            size = jnp.abs(jax.lax.stop_gradient(leaf))
            size = ratio * jnp.maximum(jnp.where(size > 0, size, 1.0), least)
            return (size * signs.uniform(0.5, 1.0, leaf.shape) * signs.choice([-1.0, 1.0], leaf.shape)).astype(
                leaf.dtype
            )

        return direction

    implicit = isinstance(solver.scheme, diffrax.AbstractImplicitSolver | Rodas5P)
    hold: Any = same if implicit else jax.lax.stop_gradient  # an implicit method needs the whole Jacobian
    pass_on: Any = (
        same if isinstance(solver.scheme, Rodas5P) else jax.lax.stop_gradient
    )  # and this one that by time too

    def augment(part: VectorField) -> VectorField:
        closed, held = jax.closure_convert(part, start, y0, args)
        leaves, structure = jax.tree_util.tree_flatten((args, held))
        draw = drawn(0)  # the same for each part: the parts of a sum move along one direction
        along = [_tangent(leaf, draw) for leaf in leaves]
        moving = [i for i, v in enumerate(along) if v is not None]
        directions = [along[i] for i in moving]

        def slope(t: Any, y: Any, values: list[Any]) -> Any:
            every = list(leaves)
            for i, value in zip(moving, values, strict=True):
                every[i] = value
            inner, consts = jax.tree_util.tree_unflatten(structure, every)
            return closed(t, y, inner, *consts)

        def augmented(t: Any, state: Any, _: Any) -> Any:
            y, w = state
            still = hold(y), jax.lax.stop_gradient([jnp.asarray(leaves[i]) for i in moving])
            _, dw = jax.jvp(lambda y, values: slope(pass_on(t), y, values), still, (w, directions))
            return part(t, y, args), dw

        return augmented

    state, probed = (y0, jax.tree_util.tree_map(drawn(1), y0)), field.each(augment)
    if not _goes_forward(probed, start, state):
        return alone(y0, field)
    return Probed(state, probed, lambda state: state[0], _norm_of_both)


def _tangent(leaf: Any, direction: Callable[..., Any]) -> Any:
    """The direction in which an argument moves; None if it cannot."""
    if not isinstance(leaf, jax.Array | np.ndarray | float):
        return None
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return direction(leaf, 0.0)  # as a part of itself: a small parameter moved by more would outweigh all others
    return np.zeros(leaf.shape, jax.dtypes.float0)


def _goes_forward(augmented: VectorField, start: jax.Array, state: Any) -> bool:
    """Whether a field with tangents can be computed: JAX traces the tangent of a custom_vjp, and refuses to compile it."""
    try:
        traced = jax.make_jaxpr(lambda t, state: augmented(t, state, None))(start, state)
    except (TypeError, NotImplementedError, ValueError):  # no forward derivative: a callback
        return False
    needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
    return not _applies(needed, "custom_lin")


def _applies(jaxpr: Any, name: str) -> bool:
    """Whether a program applies a primitive, in its loops and branches too."""
    return any(
        eqn.primitive.name == name or any(_applies(inner, name) for inner in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _norm(error: Any) -> Any:
    """The size of an error, infinite where it is no number: a step whose end overflows is taken again, shorter."""
    size = optimistix.rms_norm(error)
    return jnp.where(jnp.isnan(size), jnp.inf, size)


def _norm_of_both(error: Any) -> Any:
    """The larger of the state's error and the tangent's, which may be `PROBE_SLACK` times as large.

    A tangent that is no number has no say: no step would be short enough, and the state may be fine.
    """
    of_state, of_tangent = error
    tangent = optimistix.rms_norm(of_tangent) / PROBE_SLACK
    return jnp.maximum(_norm(of_state), jnp.where(jnp.isfinite(tangent), tangent, 0.0))
