"""Lyapunov exponents: the average rates at which nearby solutions part, along a trajectory of a flow or of a map.

Tangents are carried along by the variational equation, w' = (df/dy) w, and made orthonormal again at equal intervals by a QR
decomposition, whose diagonal holds the growth. Over a finite time the exponents are averages with a statistical error, of about
1 / sqrt(time) where the motion is chaotic: take the standard error over several starts, or from `rates`. Their derivatives by
parameters are those of the finite average, which grow as fast as the tangents themselves: of a chaotic system they mean nothing.

Source: G. Benettin, L. Galgani, A. Giorgilli and J.-M. Strelcyn, Meccanica 15, 9 (1980); A. Wolf, J. B. Swift, H. L. Swinney and
J. A. Vastano, Physica D 16, 285 (1985).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ops.arrays import as_arrays, constant, whole
from ops.ode import NONFINITE, OK, Solver, solve


class Lyapunov(NamedTuple):
    """Exponents in descending order; the rates of each interval, whose averages they are, (intervals, exponents); and the status.

    Where `status` is not 0 they are NaN.
    """

    exponents: jax.Array
    rates: jax.Array
    status: jax.Array


def lyapunov_flow(
    vector_field: Callable[[Any, Any, Any], Any],
    y0: Any,
    args: Any = None,
    *,
    t1: float,
    t0: float = 0.0,
    transient: float = 0.0,
    interval: float = 1.0,
    count: int = 1,
    solver: Any = Solver(),
    jumps: Any = None,
    **settings: Any,
) -> Lyapunov:
    """The largest exponents of `dy/dt = vector_field(t, y, args)`, per unit of time.

    Args:
        vector_field: as of `ops.ode.solve`.
        y0: the initial state, a pytree of real arrays.
        args: any pytree, handed to the vector field.
        t1: the end of the trajectory.
        t0: its start.
        transient: the time after `t0` that is not counted, in which the state finds the attractor and the tangents their directions.
        interval: the time between two decompositions, about: short enough that no tangent outgrows another by more than 1e8 in it.
        count: how many exponents, from the largest; all of them are as many as the state has numbers.
        solver: a `Solver`, the name of a method, or a diffrax solver, which integrates state and tangents together.
        jumps: as of `solve`.
        settings: fields of `Solver`.

    Raises:
        ValueError: a time or the number of exponents is out of its range.

    >>> found = lyapunov_flow(lambda t, y, a: a * y, [1.0, 1.0], jnp.array([-2.0, 0.5]), t1=20.0, transient=10.0, count=2)
    >>> [round(float(e), 3) for e in found.exponents]
    [0.5, -2.0]
    """
    t0, t1, transient = constant("t0", t0), constant("t1", t1), constant("transient", transient)
    interval = constant("interval", interval, positive=True)
    if transient < 0 or not t0 + transient < t1:
        raise ValueError(f"`transient` must be at least 0 and end before t1 = {t1}, but is {transient} from t0 = {t0}.")
    start, unravel = _flat(y0)
    tangents = _tangents(start, count)
    waits, counts = (math.ceil(length / interval - 1e-9) for length in (transient, t1 - t0 - transient))
    edges = np.concatenate(
        [np.linspace(t0, t0 + transient, waits, endpoint=False), np.linspace(t0 + transient, t1, counts + 1)]
    )

    def field(t: Any, state: Any, args: Any) -> Any:
        y, w = state
        along = lambda y: ravel_pytree(as_arrays(vector_field(t, unravel(y), args)))[0]  # noqa: E731
        slope, push = jax.linearize(along, y)
        return slope, jax.vmap(push, -1, -1)(w)

    def advance(carry: Any, times: Any) -> Any:
        y, w, status = carry
        begin, end = times
        found = solve(field, (y, w), args, t0=begin, t1=end, solver=solver, jumps=jumps, **settings)
        w, growth = _orthonormal(found.y[1])
        return (found.y[0], w, jnp.where(status == OK, found.status, status)), growth / (end - begin)

    first = (start, tangents, jnp.zeros((), jnp.int32))
    (_, _, status), rates = jax.lax.scan(advance, first, (jnp.asarray(edges[:-1]), jnp.asarray(edges[1:])))
    return _averaged(rates[waits:], status)


def lyapunov_map(
    step: Callable[[Any, Any], Any], y0: Any, args: Any = None, *, steps: int, transient: int = 0, count: int = 1
) -> Lyapunov:
    """The largest exponents of the map `y -> step(y, args)`, per step.

    Args:
        step: takes the state and args to the next state, of the same structure.
        y0: the initial state, a pytree of real arrays.
        args: any pytree, handed to `step`.
        steps: how many are counted.
        transient: how many go before.
        count: how many exponents, from the largest.

    Raises:
        ValueError: a number is out of its range.

    >>> found = lyapunov_map(lambda x, r: r * x * (1 - x), 0.3, 4.0, steps=10_000, transient=100)
    >>> round(float(found.exponents[0]), 2)  # log 2
    0.69
    """
    steps, transient = whole("steps", steps, 1), whole("transient", transient, 0)
    start, unravel = _flat(y0)

    def advance(carry: Any, _: Any) -> Any:
        y, w = carry
        y, push = jax.linearize(lambda y: ravel_pytree(as_arrays(step(unravel(y), args)))[0], y)
        w, growth = _orthonormal(jax.vmap(push, -1, -1)(w))
        return (y, w), growth

    (end, _), rates = jax.lax.scan(advance, (start, _tangents(start, count)), length=transient + steps)
    status = jnp.where(jnp.all(jnp.isfinite(end)), OK, NONFINITE).astype(jnp.int32)
    return _averaged(rates[transient:], status)


def _flat(y0: Any) -> tuple[jax.Array, Callable[[Any], Any]]:
    """A state as one vector, and the way back."""

    def real(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                f"`y0` must be real, but is {leaf.dtype}. Make real and imaginary part two of its entries."
            )
        return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(float)

    flat, unravel = ravel_pytree(jax.tree_util.tree_map(real, as_arrays(y0)))
    return flat, unravel


def _tangents(start: jax.Array, count: int) -> jax.Array:
    """Orthonormal columns in no special direction, so that none of them misses the growing one. The same each time."""
    count = whole("count", count, 1, start.size, ", the size of the state")
    columns, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((start.size, count)))
    return jnp.asarray(columns, start.dtype)


def _orthonormal(w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tangents made orthonormal, and the logarithms of their growth: -inf where one is lost."""
    q, r = jnp.linalg.qr(w)
    return q, jnp.log(jnp.abs(jnp.diagonal(r)))


def _averaged(rates: jax.Array, status: jax.Array) -> Lyapunov:
    """The averages of the rates. Tangents that are no numbers are a failure too."""
    exponents = jnp.sort(jnp.mean(rates, axis=0), descending=True)
    status = jnp.where((status == OK) & jnp.any(jnp.isnan(exponents)), NONFINITE, status)
    fine = status == OK
    return Lyapunov(jnp.where(fine, exponents, jnp.nan), jnp.where(fine, rates, jnp.nan), status)
