"""Roots of equations, with failures as values and derivatives by the implicit function theorem.

`find_root` solves `function(y, args) = 0` from a guess, for any pytree of unknowns, or for a scalar between two points of different sign.
A value is handed back if two Newton corrections say that it is a root, and the function nearby that it is a simple one; else `status`
says why not, and the value is NaN.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.flatten_util import ravel_pytree

from ops.adjoints import VALUES, current_adjoint, default_adjoint, is_differentiated
from ops.brackets import enclose
from ops.damped import FAILED, OK, Found, Tolerance, iterate
from ops.implicit import Opened, Sought, goes_forward, jacobian, opened, with_implicit_derivative

Function = Callable[[Any, Any], Any]
Approach = Callable[[Opened, Any, Tolerance], "Start"]

METHODS: dict[str, Any] = {
    "newton": None,
    "chord": optimistix.Chord,
    "dogleg": optimistix.Dogleg,
    "levenberg_marquardt": optimistix.LevenbergMarquardt,
}
"""The methods by name. All end with Newton's, which is damped; the others, of optimistix, come near the root first."""


class Root(NamedTuple):
    """What `find_root` returns; a pytree.

    `value` has the structure of the guess; `status` (int32) is 0, or 2 out of steps, 3 not finite, 4 failed otherwise: no change of
    sign, a root whose Jacobian is singular, or no way on; `steps` (int32) counts corrections and points looked at; `residual` is the
    largest component of the function at the last iterate, and `error` that of Newton's correction there.
    """

    value: Any
    status: jax.Array
    steps: jax.Array
    residual: jax.Array
    error: jax.Array


class Start(NamedTuple):
    """Where Newton's method begins: a vector, whether anything went wrong on the way to it, and steps taken.

    Of a bracket, too: the size of the function at its ends, the ends, and whether the sign changes.
    """

    y: jax.Array
    status: Any = OK
    steps: Any = 0
    scale: Any = math.inf
    ends: Any = (-math.inf, math.inf)
    changes: Any = True


def find_root(
    function: Function,
    guess: Any = None,
    args: Any = None,
    *,
    bracket: Any = None,
    method: Any = "newton",
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 64,
) -> Root:
    """Solve `function(y, args) = 0`.

    Args:
        function: of the unknowns and args; returns as many real numbers as there are unknowns, in any structure.
        guess: the unknowns where to begin, any pytree of real arrays. No derivative goes through it.
        args: any pytree, handed to the function. What the function closes over may be differentiated too.
        bracket: instead of a guess, two points between which a scalar function changes its sign once: that root is found.
        method: a name of `METHODS`, or a root finder or least-squares solver of optimistix.
        rtol: relative tolerance of an unknown; about 4e-11, or 2e-5 in float32, if left out. What is found is one Newton step better.
        atol: absolute tolerance of an unknown, in its units; a hundredth of `rtol` if left out. It must be far below the unknown, or
            a root is not told from a double one: where unknowns are tiny, say how tiny an error may be.
        max_steps: steps of the method after which to give up.

    Returns:
        A `Root`. Where `status` is not 0 its value is NaN. Its derivatives by args are those of the exact root, in both modes and of
        every order that the function has.

    Raises:
        ValueError: a setting, or the structure of guess or residual, is wrong; the bracket is known and the sign does not change.

    >>> root = find_root(lambda y, a: y * y - a, 1.0, 2.0)
    >>> round(float(root.value), 12), int(root.status)
    (1.414213562373, 0)
    """
    if (guess is None) == (bracket is None):
        raise ValueError(
            "`guess` or `bracket` must be given, one of them, but " + ("neither is." if guess is None else "both are.")
        )
    if bracket is None:
        return search(function, guess, args, _approach(method, max_steps), rtol=rtol, atol=atol, max_steps=max_steps)
    if method != "newton":
        raise ValueError(f"`method` must be newton with a bracket, which has its own, but is {method!r}. Leave it out.")
    lower, upper = _ends(bracket)
    return search(
        function, (lower + upper) / 2, args, _between(lower, upper), rtol=rtol, atol=atol, max_steps=max_steps
    )


def search(
    function: Function,
    guess: Any,
    args: Any,
    approach: Approach,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 64,
    name: str = "guess",
) -> Root:
    """`find_root` for any way to come near: `approach` makes a `Start` of the function of a vector, the guess and the tolerances.

    The way is not differentiated, so that it may be anything. `name` is what the caller's user calls the guess.
    """
    y0, unravel = ravel_pytree(real(guess, name))
    tolerance = tolerances(rtol, atol, y0.dtype)
    _check_steps(max_steps)

    def flat(y: Any) -> Any:
        return _residual(function(unravel(y), args), y, guess)

    here = opened(flat, y0)
    inner = here
    if (
        current_adjoint() != "forward"
    ):  # Newton's method takes the Jacobian by columns, whatever the derivatives of the root are
        with _by_columns():
            inner = opened(flat, y0)
    forward = goes_forward(inner, y0)

    def seek() -> Sought:
        with _by_columns():
            start = approach(inner, y0, tolerance)
        found = iterate(lambda y: jacobian(inner.__call__, y, forward), start.y, tolerance, max_steps)
        status = _judged(start, found)
        instead = jnp.where(jnp.isfinite(y0), y0, 0)
        rest = status, found.steps + start.steps, found.residual, found.error, jnp.asarray(start.changes)
        return Sought(jnp.where(status == OK, found.y, instead), status == OK, found.slope, rest)

    y, fine, (status, steps, residual, error, changes) = with_implicit_derivative(here, seek, y0)
    if not isinstance(changes, jax.core.Tracer) and not bool(changes):
        raise ValueError(
            "`bracket` must hold a change of sign of the function, but both ends have the same sign. Widen it, or give a guess."
        )
    return Root(unravel(jnp.where(fine, y, jnp.nan)), status, steps, residual, error)


def _by_columns() -> Any:
    """Where solves inside a function are to have forward derivatives."""
    return default_adjoint("forward" if is_differentiated() else VALUES)


def _judged(start: Start, found: Found) -> jax.Array:
    """The status: of the approach where it failed, else of Newton's method; a root lies in the bracket, and is no pole."""
    lower, upper = start.ends
    inside = (found.y >= lower) & (found.y <= upper) & (found.residual <= start.scale)
    status = jnp.where((found.status == OK) & ~jnp.all(inside), FAILED, found.status)
    return jnp.where(jnp.asarray(start.status) == OK, status, start.status).astype(jnp.int32)


def _approach(method: Any, max_steps: int) -> Approach:
    """The way of one method to the neighbourhood of a root.

    Raises:
        ValueError: it is no method.
    """
    if isinstance(method, str) and method not in METHODS:
        close = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.5)
        also = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, but is {method!r}.{also}")
    if not isinstance(method, str | optimistix.AbstractRootFinder | optimistix.AbstractLeastSquaresSolver):
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, or a solver of optimistix, but is {method!r}.")
    if method == "newton":
        return lambda function, y0, tolerance: Start(y0)

    def approach(function: Any, y0: Any, tolerance: Tolerance) -> Start:
        chosen = method if not isinstance(method, str) else METHODS[method](tolerance.rtol, tolerance.atol)
        _, slope = jacobian(function.__call__, y0, goes_forward(function, y0))
        # optimistix compares residuals with the tolerance of the unknowns: in their units, by the Jacobian's rows.
        rows = jnp.max(jnp.abs(slope), axis=1)
        units = jnp.where((rows > 0) & jnp.isfinite(rows), rows, 1)
        found: Any = optimistix.root_find(
            lambda y, _: function(y) / units, chosen, y0, max_steps=max_steps, throw=False
        )
        near = jnp.where(jnp.all(jnp.isfinite(found.value)), found.value, y0)
        return Start(near, OK, jnp.asarray(found.stats["num_steps"], jnp.int32))

    return approach


def _between(lower: jax.Array, upper: jax.Array) -> Approach:
    """The way to a root between two points."""

    def approach(function: Opened, y0: Any, tolerance: Tolerance) -> Start:
        found = enclose(lambda x: function(x[None])[0], lower, upper, tolerance)
        ends = jnp.minimum(lower, upper), jnp.maximum(lower, upper)
        return Start(found.y[None], found.status, found.steps, found.scale, ends, found.changes)

    return approach


def _ends(bracket: Any) -> tuple[jax.Array, jax.Array]:
    """Two scalars.

    Raises:
        ValueError: they are no such thing, or known to be equal or not finite.
    """
    ends = list(bracket) if isinstance(bracket, list | tuple) or np.ndim(bracket) == 1 else []
    if len(ends) != 2 or any(np.shape(end) for end in ends):
        raise ValueError(f"`bracket` must be two numbers, but is {bracket!r}. For arrays, take jax.vmap of find_root.")
    for end in ends:
        if not isinstance(end, jax.core.Tracer) and not math.isfinite(end):
            raise ValueError(f"`bracket` must have finite ends, but is {bracket!r}.")
    if not any(isinstance(end, jax.core.Tracer) for end in ends) and ends[0] == ends[1]:
        raise ValueError(f"`bracket` must have two different ends, but is {bracket!r}.")
    lower, upper = (jax.lax.stop_gradient(jnp.asarray(end, jnp.result_type(float, end))) for end in ends)
    return lower, upper


def real(guess: Any, name: str = "guess") -> Any:
    """The guess as arrays of floats; a list of numbers is one array, as for `ops.ode.solve`.

    Raises:
        ValueError: it is empty, complex, no number, or known to be not finite.
    """
    if not jax.tree_util.tree_leaves(guess):
        raise ValueError(f"`{name}` must hold at least one number, but is empty.")

    def one(leaf: Any) -> Any:
        try:
            array = jnp.asarray(leaf)
        except TypeError:
            raise ValueError(f"`{name}` must hold numbers, but holds {leaf!r}.") from None
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise ValueError(f"`{name}` must be real, but holds {array.dtype}. Solve for real and imaginary parts.")
        if not isinstance(array, jax.core.Tracer) and not np.isfinite(np.asarray(array)).all():
            raise ValueError(f"`{name}` must be finite, but holds {leaf!r}.")
        return jnp.asarray(array, array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float))

    return jax.tree_util.tree_map(one, guess, is_leaf=_is_numbers)


def _is_numbers(node: Any) -> bool:
    """Whether something is a list of nothing but numbers, nested or not."""
    return isinstance(node, list) and all(_is_numbers(n) or isinstance(n, int | float | complex) for n in node)


def _residual(found: Any, y: Any, guess: Any) -> jax.Array:
    """What a function returned, as a vector as long as the unknowns.

    Raises:
        ValueError: it is not as long, or complex.
    """
    leaves = jax.tree_util.tree_leaves(found)
    if found is None or not leaves:
        raise ValueError(f"`function` must return {y.size} residuals, but returned none: is a `return` missing?")
    residual, _ = ravel_pytree(found)
    if residual.size != y.size:
        raise ValueError(
            f"`function` must return as many residuals as there are unknowns, {y.size} ({_words(guess)}), but returned {residual.size} "
            f"({_words(found)})."
        )
    if jnp.issubdtype(residual.dtype, jnp.complexfloating):
        raise ValueError(f"`function` must return real residuals, but returned {residual.dtype}. Return both parts.")
    return residual.astype(y.dtype)


def _words(tree: Any) -> str:
    """A pytree's shapes in words."""
    shown = [
        f"{jnp.result_type(leaf)}[{','.join(map(str, np.shape(leaf)))}]" for leaf in jax.tree_util.tree_leaves(tree)
    ]
    return ", ".join(shown)


def tolerances(rtol: Any, atol: Any, dtype: Any) -> Tolerance:
    """The tolerances of the unknowns, in their precision.

    Raises:
        ValueError: a setting is out of its range.
    """
    least = float(np.finfo(dtype).eps)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(
                f"`{name}` must be a positive number, but is {value!r}. Write 1e-10, say, or leave it out."
            )
    if rtol is not None and rtol < 4 * least:
        raise ValueError(
            f"`rtol` must be at least {4 * least:.1e} in {np.dtype(dtype).name}, but is {rtol}: rounding is larger."
        )
    default = least ** (2 / 3)
    rtol = default if rtol is None else rtol
    return Tolerance(rtol, rtol / 100 if atol is None else atol)


def _check_steps(max_steps: Any) -> None:
    """How many steps there may be.

    Raises:
        ValueError: it is no positive integer.
    """
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"`max_steps` must be a positive integer, but is {max_steps!r}. Write 64, say.")
