"""Boundary value problems by shooting: initial states and parameters for which a trajectory meets conditions at both ends.

`shoot` cuts the interval into segments, integrates each from a state of its own, and asks by Newton's method that the pieces fit together
and the conditions hold. One segment is single shooting; a problem whose trajectories run away from each other wants several, so that
none runs far.

Source: U. M. Ascher, R. M. M. Mattheij and R. D. Russell, Numerical Solution of Boundary Value Problems for Ordinary Differential
Equations, SIAM (1995), chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ops.damped import NONFINITE, OK
from ops.ode import Solver, solve
from ops.roots import Start, real, search


class Shot(NamedTuple):
    """What `shoot` returns; a pytree.

    `value` is the state at `t0`, `parameters` those found (None if there are none), `y` the states at `t`, with a leading time axis;
    `status`, `residual` and `error` are as in `ops.roots.Root`, of conditions, gaps between segments and unknowns; `steps` counts
    Newton's corrections. A status of 2 may be that of a solve, too.
    """

    value: Any
    parameters: Any
    t: jax.Array
    y: Any
    status: jax.Array
    steps: jax.Array
    residual: jax.Array
    error: jax.Array


def shoot(
    vector_field: Callable[..., Any],
    boundary: Callable[..., Any],
    guess: Any,
    args: Any = None,
    *,
    t0: Any = 0.0,
    t1: Any,
    ts: Any = None,
    parameters: Any = None,
    segments: int = 1,
    solver: Any = Solver(rtol=1e-9, atol=1e-12),
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 64,
) -> Shot:
    """Solve `dy/dt = vector_field(t, y, args)` with `boundary(y(t0), y(t1), args) = 0`.

    Args:
        vector_field: of time, state and args, as for `ops.ode.solve`; with `parameters`, of these too, as a fourth argument.
        boundary: of both end states and args (and parameters); returns as many numbers as there are states and parameters, in any
            structure. They may depend on anything: initial values, periodicity, a normalization, a series at a singular end.
        guess: the state at `t0`, or a function of time that returns the state anywhere; a state stands for all times.
        args: any pytree, handed to both.
        t0: where the interval begins.
        t1: where it ends.
        ts: times at which the solution is returned, in the order of integration; if left out, the ends of the segments.
        parameters: a guess of unknown parameters, an eigenvalue, say: any pytree of real arrays.
        segments: of equal length.
        solver: a `Solver`, the name of a method, or a diffrax solver.
        rtol: relative tolerance of the unknowns; ten times that of the solver if left out: its steps are seen below that.
        atol: absolute tolerance of the unknowns; ten times that of the solver if left out.
        max_steps: Newton steps after which to give up.

    Returns:
        A `Shot`. Where `status` is not 0 its values are NaN. Which solution of several is found, the guess decides.

    Raises:
        ValueError: a setting, or the structure of what is given or returned, is wrong.

    >>> found = shoot(lambda t, y, args: [y[1], -y[0]], lambda a, b, args: [a[0], b[0] - 1], [0.0, 1.0], t1=0.5)
    >>> round(float(found.value[1]), 8), round(1 / math.sin(0.5), 8)
    (2.08582964, 2.08582964)
    """
    _check(t0, t1, segments)
    _check_times(t0, t1, ts)
    solver = solver if isinstance(solver, Solver) else Solver(solver)
    nodes = jnp.linspace(jnp.asarray(t0, float), jnp.asarray(t1, float), segments + 1)
    starts = _at(guess, nodes[:-1])
    unknown = starts, real(parameters, "parameters") if parameters is not None else ()
    more: Callable[[Any], tuple[Any, ...]] = (lambda p: ()) if parameters is None else (lambda p: (p,))

    def field(t: Any, y: Any, both: Any) -> Any:
        return vector_field(t, y, both[0], *more(both[1]))

    def misfit(unknown: Any, args: Any) -> Any:
        states, found = unknown
        ends = jax.vmap(
            lambda y, begin, end: solve(field, y, (args, found), t0=begin, t1=end, solver=solver).y
        )(states, nodes[:-1], nodes[1:])  # fmt: skip
        gaps = jax.tree_util.tree_map(lambda end, start: end[:-1] - start[1:], ends, states)
        return gaps, boundary(_part(states, 0), _part(ends, -1), args, *more(found))

    _check_boundary(boundary, _part(starts, 0), args, more(unknown[1]))
    root = search(
        misfit,
        unknown,
        args,
        lambda function, y0, tolerance: Start(y0),
        rtol=_ten_times(rtol, solver.rtol),
        atol=_ten_times(atol, solver.atol),
        max_steps=max_steps,
    )
    fine = root.status == OK

    def kept(leaf: Any, otherwise: Any) -> Any:
        return jnp.where(fine, leaf, otherwise)

    states, found = jax.tree_util.tree_map(kept, root.value, unknown)
    times = nodes if ts is None else jnp.asarray(ts, nodes.dtype)
    y, path = _along(field, states, (args, found), nodes, times, solver)
    status = jnp.where(fine | (root.status == NONFINITE) & (path != OK), path, root.status)
    fine &= status == OK
    y, value, found = jax.tree_util.tree_map(lambda leaf: kept(leaf, jnp.nan), (y, _part(states, 0), found))
    return Shot(value, None if parameters is None else found, times, y, status, root.steps, root.residual, root.error)


def _along(
    field: Any, states: Any, args: Any, nodes: jax.Array, times: jax.Array, solver: Solver
) -> tuple[Any, jax.Array]:
    """The solution at some times, each in its segment, and the worst status of the solves."""
    direction = jnp.where(nodes[-1] < nodes[0], -1, 1)
    within = jnp.sum((times[:, None] * direction > nodes[None, 1:-1] * direction), axis=1)

    def piece(y: Any, begin: Any, end: Any) -> Any:
        inside = jnp.clip(times, jnp.minimum(begin, end), jnp.maximum(begin, end))
        return solve(field, y, args, t0=begin, ts=inside, solver=solver)

    pieces = jax.vmap(piece)(states, nodes[:-1], nodes[1:])
    each = jnp.arange(times.size)
    return jax.tree_util.tree_map(lambda leaf: leaf[within, each], pieces.y), jnp.max(pieces.status)


def _at(guess: Any, times: jax.Array) -> Any:
    """The guess at some times, along a leading axis."""
    if callable(guess):
        return real(jax.vmap(lambda t: real(guess(t)))(times))
    return jax.tree_util.tree_map(lambda leaf: jnp.broadcast_to(leaf, (times.size, *leaf.shape)), real(guess))


def _part(states: Any, index: int) -> Any:
    """One state of several."""
    return jax.tree_util.tree_map(lambda leaf: leaf[index], states)


def _ten_times(given: float | None, of_solver: float) -> float:
    """A tolerance of the unknowns that steps of the solver do not disturb."""
    return (10 * of_solver or 1e-12) if given is None else given


def _check(t0: Any, t1: Any, segments: Any) -> None:
    """An interval that is known must be one."""
    if isinstance(segments, bool) or not isinstance(segments, int) or segments < 1:
        raise ValueError(f"`segments` must be a positive integer, but is {segments!r}. Write 1 for single shooting.")
    for name, time in (("t0", t0), ("t1", t1)):
        if isinstance(time, int | float) and not math.isfinite(time):
            raise ValueError(
                f"`{name}` must be a finite time, but is {time}. Put the condition at a large one, or scale time."
            )
    if isinstance(t0, int | float) and isinstance(t1, int | float) and t0 == t1:
        raise ValueError(f"`t1` must differ from t0, but both are {t0}.")


def _check_times(t0: Any, t1: Any, ts: Any) -> None:
    """Times that are known must lie in an interval that is known, in its order."""
    if ts is None or any(isinstance(time, jax.core.Tracer) for time in (t0, t1, ts)):
        return
    values = np.asarray(ts, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"`ts` must be a list of times, but has the shape {values.shape}.")
    way = np.diff(np.concatenate([[t0], values, [t1]])) * np.sign(t1 - t0)
    if not (way >= 0).all():
        raise ValueError(
            f"`ts` must go from t0 = {t0} to t1 = {t1} in order, but is {values.tolist()}. Sort the times."
        )


def _check_boundary(boundary: Any, state: Any, args: Any, more: tuple[Any, ...]) -> None:
    """The conditions must be as many as the unknowns of one trajectory."""
    found = jax.eval_shape(lambda a, b: boundary(a, b, args, *more), state, state)
    wanted = ravel_pytree((state, more))[0].size
    size = sum(leaf.size for leaf in jax.tree_util.tree_leaves(found))
    if size != wanted:
        hint = " It returned None: is a `return` missing?" if found is None else ""
        raise ValueError(
            f"`boundary` must return as many numbers as there are states and parameters, {wanted}, but returned {size}.{hint}"
        )
