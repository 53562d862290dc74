"""Steady states of `dy/dt = f(t, y, args)`: where the right side is zero, and whether the state returns there.

`find_steady_state` follows the trajectory for a while if asked to, then solves f = 0 by Newton's method. Quantities that f conserves make
its Jacobian singular: each steady state lies in a family, of which the initial state's own values choose one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

from ops.damped import FAILED, OK, Tolerance
from ops.implicit import Opened, Sought, jacobian, opened, with_implicit_derivative
from ops.ode import Solver, solve
from ops.roots import Approach, Start, real, search, tolerances


class SteadyState(NamedTuple):
    """What `find_steady_state` returns; a pytree.

    `value` has the structure of the initial state; `status`, `steps`, `residual` and `error` are as in `ops.roots.Root`; `growth` is the
    largest real part among the eigenvalues of the Jacobian, without those of conserved quantities, in 1 / time: negative where the
    state is stable, positive where it is not.
    """

    value: Any
    status: jax.Array
    steps: jax.Array
    residual: jax.Array
    error: jax.Array
    growth: jax.Array


def find_steady_state(
    vector_field: Callable[[Any, Any, Any], Any],
    y0: Any,
    args: Any = None,
    *,
    t: Any = None,
    after: Any = None,
    conserved: Callable[[Any, Any], Any] | None = None,
    solver: Any = Solver("kvaerno5"),
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 64,
) -> SteadyState:
    """The steady state near `y0`, or the one that the trajectory from `y0` comes near.

    Args:
        vector_field: of time, state and args, as for `ops.ode.solve`.
        y0: initial state, any pytree of real arrays. No derivative goes through it but that of what it conserves.
        args: any pytree, handed to the vector field.
        t: the time at which a vector field is held that depends on it.
        after: a time to follow the trajectory from `y0` first: the nearest root is often another one, or none is near.
        conserved: of state and args; the quantities that the dynamics leave alone, each once: `lambda y, args: y.a + y.b + y.c`. Their
            values are those of `y0`.
        solver: of the trajectory.
        rtol: relative tolerance of the state, as in `ops.roots.find_root`.
        atol: absolute tolerance of the state. For small concentrations, less than they are.
        max_steps: Newton steps after which to give up.

    Returns:
        A `SteadyState`. Where `status` is not 0 its value and growth are NaN: where the Jacobian is singular (4), say, at a bifurcation
        or because something is conserved that `conserved` does not tell.

    Raises:
        ValueError: the structure of the state, its slope or a setting is wrong, or the vector field depends on a time that is not given.

    >>> found = find_steady_state(lambda t, y, r: r * y * (1 - y / 3), 2.0, 0.5)
    >>> round(float(found.value), 9), round(float(found.growth), 9)
    (3.0, -0.5)
    """
    for name, time in (("t", t), ("after", after)):
        if time is not None and not isinstance(time, jax.core.Tracer) and not math.isfinite(time):
            raise ValueError(f"`{name}` must be a finite time, but is {time}. Write a number.")
    y0 = real(y0, "y0")
    field, levels = _of_state(vector_field, y0, args, t), _levels(conserved, y0, args)
    here = levels(y0)
    n, m = ravel_pytree(y0)[0].size, here.size
    if m >= n:
        raise ValueError(f"`conserved` must return fewer quantities than the state has, {n}, but returned {m}.")
    rate = _rate(field, y0)

    def balance(unknown: Any, _: Any) -> Any:
        """Slopes, with multipliers of the conserved quantities, and how far those are from their values.

        The multipliers make the equations as many as the unknowns; that the slopes conserve the quantities makes them zero.
        """
        y, multipliers = unknown
        _, pull = jax.vjp(levels, y)
        force = ravel_pytree(pull(multipliers)[0])[0]
        return field(y) + rate * force, levels(y) - here

    unknown = y0, jax.lax.stop_gradient(jnp.zeros_like(here))
    follow = _follow(vector_field, args, t, after, solver, ravel_pytree(unknown)[1])
    root = search(balance, unknown, None, follow, rtol=rtol, atol=atol, max_steps=max_steps, name="y0")
    y, multipliers = root.value
    holds = (root.status != OK) | _conserves(field, levels, y, multipliers, tolerances(rtol, atol, here.dtype))
    if not isinstance(holds, jax.core.Tracer) and not bool(holds):
        raise ValueError(
            "`conserved` must return what the vector field leaves as it is, but at the steady state that changes."
        )
    status = jnp.where(holds, root.status, FAILED)
    fine = status == OK

    def kept(leaf: Any, otherwise: Any) -> Any:
        return jnp.where(fine, leaf, otherwise)

    value = jax.tree_util.tree_map(lambda leaf: kept(leaf, jnp.nan), y)
    growth = _growth(field, levels, jax.tree_util.tree_map(kept, y, y0), fine)
    return SteadyState(value, status, root.steps, root.residual, root.error, kept(growth, jnp.nan))


def _of_state(vector_field: Any, y0: Any, args: Any, t: Any) -> Callable[[Any], jax.Array]:
    """The vector field at one time, as a vector.

    Raises:
        ValueError: it depends on a time that is not given, or is not as long as the state.
    """
    now = jnp.asarray(0.0 if t is None else t, float)
    traced, slope = jax.make_jaxpr(lambda t, y: vector_field(t, y, args), return_shape=True)(now, y0)
    sizes = [sum(leaf.size for leaf in jax.tree_util.tree_leaves(tree)) for tree in (y0, slope)]
    if sizes[0] != sizes[1]:
        hint = " It returned None: is a `return` missing?" if slope is None else ""
        raise ValueError(
            f"`vector_field` must return the structure of y0, {sizes[0]} numbers, but returned {sizes[1]}.{hint}"
        )
    if t is None and dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))[1][0]:
        raise ValueError(
            "`t` must be given for a vector field that depends on time, which has no steady state else, but is left out. "
            "Write t=0.0 for the state that it would have, were time to stop there."
        )
    return lambda y: ravel_pytree(vector_field(now, y, args))[0]


def _levels(conserved: Any, y0: Any, args: Any) -> Callable[[Any], jax.Array]:
    """What is conserved, as a vector; empty if nothing is."""
    if conserved is None:
        return lambda y: jnp.zeros(0, ravel_pytree(y0)[0].dtype)
    return lambda y: ravel_pytree(conserved(y, args))[0]


def _rate(field: Callable[[Any], jax.Array], y0: Any) -> jax.Array:
    """A rate of the system in 1 / time, which gives the multipliers the units of the state."""
    y, unravel = ravel_pytree(y0)
    _, slope = jacobian(lambda y: field(unravel(y)), jax.lax.stop_gradient(y))
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(slope)))
    return jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)


def _follow(vector_field: Any, args: Any, t: Any, after: Any, solver: Any, unravel: Any) -> Approach:
    """The way along the trajectory."""

    def follow(function: Opened, start: Any, tolerance: Tolerance) -> Start:
        if after is None:
            return Start(start)
        y, multipliers = unravel(start)
        begin = 0.0 if t is None else t
        path = solve(vector_field, y, args, t0=begin, t1=begin + after, solver=solver)
        return Start(ravel_pytree((path.y, multipliers))[0], path.status, path.steps)

    return follow


def _conserves(field: Any, levels: Any, y: Any, multipliers: Any, tolerance: Tolerance) -> jax.Array:
    """Whether what is said to be conserved is: no force is needed to keep it, and no motion nearby changes it."""
    state, unravel = ravel_pytree(jax.lax.stop_gradient(y))
    _, slope = jacobian(lambda y: field(unravel(y)), state)
    _, normals = jacobian(lambda y: levels(unravel(y)), state)
    forceless = jnp.abs(jax.lax.stop_gradient(multipliers) @ normals) <= jnp.max(tolerance.of(state))
    change = jnp.abs(normals @ slope) <= float(np.finfo(state.dtype).eps) ** 0.5 * (jnp.abs(normals) @ jnp.abs(slope))
    return jnp.all(forceless) & jnp.all(change)


def _growth(field: Any, levels: Any, y: Any, fine: jax.Array) -> jax.Array:
    """The largest real part of the eigenvalues of the Jacobian, conserved quantities left out.

    Those have the eigenvalue zero, and are moved to the far left: J - s P with the projector P on the gradients of what is conserved
    has the other eigenvalues of J, and -s.
    """
    flat, unravel = ravel_pytree(y)
    _, slope = jacobian(lambda y: field(unravel(y)), flat)
    _, normals = jacobian(lambda y: levels(unravel(y)), flat)
    if normals.size:
        far = 2 * jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(slope), axis=1)))
        slope = slope - far * normals.T @ jnp.linalg.solve(normals @ normals.T, normals)
    return leading_eigenvalue(slope, fine)


def leading_eigenvalue(matrix: jax.Array, fine: jax.Array) -> jax.Array:
    """The largest real part among a matrix's eigenvalues, differentiable as often as one likes where it is a simple one.

    The eigenvector and the eigenvalue are a root of (A v - l v, c* v - 1), in real and imaginary parts.
    """
    n = matrix.shape[0]
    still = jax.lax.stop_gradient(jnp.where(fine, matrix, jnp.eye(n, dtype=matrix.dtype)))
    values, vectors = jnp.linalg.eig(still)
    first = jnp.argmax(values.real)
    value, vector = values[first], vectors[:, first]
    there = jnp.concatenate([vector.real, vector.imag, jnp.stack([value.real, value.imag])])

    def equations(z: jax.Array) -> jax.Array:
        v, of = z[:n] + 1j * z[n : 2 * n], z[-2] + 1j * z[-1]
        left = jnp.append(matrix @ v - of * v, jnp.conj(vector) @ v - 1)
        return jnp.concatenate([left.real, left.imag])

    def seek() -> Sought:
        return Sought(there, fine, jacobian(equations, there)[1], ())

    z, _, _ = with_implicit_derivative(opened(equations, there), seek, there)
    return z[-2]
