"""Equations M y' = f(t, y) with a constant matrix M, which may be singular: then some of them are algebraic, of index 1.

In: M as it is written, and a vector field. Out: M for the state as one vector, its algebraic equations as rows of zeros; consistent initial
values; the slope.

Source: E. Hairer and G. Wanner, Solving ODEs II, 2nd edition, Springer (1996), VI.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ops.arrays import as_arrays
from ops.forcing import known
from ops.roots import find_root
from ops.rosenbrock import vector

Field = Callable[[Any, Any, Any], Any]


class Mass(NamedTuple):
    """A mass matrix for the state as one vector of n numbers."""

    matrix: Any
    """(n, n), or its diagonal, (n,)."""

    left: Any
    """What it and the vector field have been multiplied with from the left, so that algebraic equations are rows of zeros; or None."""

    algebraic: Any
    """Which equations have no derivative, (n,)."""

    @property
    def singular(self) -> bool:
        """Whether there may be algebraic equations."""
        return isinstance(self.algebraic, jax.core.Tracer) or bool(np.any(self.algebraic))

    def field(self, field: Field) -> Field:
        """A vector field multiplied by `left`."""
        if self.left is None:
            return field

        def turned(t: Any, y: Any, args: Any) -> Any:
            slope, whole = vector(field(t, y, args))
            return whole(jnp.asarray(self.left, slope.dtype) @ slope)

        return turned

    def consistent(self, field: Field, t: Any, y0: Any, args: Any, atol: float, lost: bool = False) -> tuple[Any, Any]:
        """The initial values that fulfil the algebraic equations and leave M y as it is, and whether they have been found.

        Those of the algebraic equations begin at `y0`, which also says which of several solutions is taken. Where there are none they
        are NaN if `lost`, else `y0`.
        """
        if not self.singular:
            return y0, jnp.array(True)
        given, whole = vector(y0)
        precise = float(np.finfo(given.dtype).eps) ** (2 / 3)

        def residual(y: Any, given: Any) -> Any:
            moved = y - given
            moved = self.matrix * moved if self.matrix.ndim == 1 else self.matrix @ moved
            return jnp.where(self.algebraic, vector(field(t, whole(y), args))[0], moved)

        root = find_root(residual, given, given, rtol=precise, atol=min(precise / 100, max(atol / 100, 1e-300)))
        found = jnp.where(self.algebraic, root.value, given) if self.matrix.ndim == 1 else root.value
        fine = root.status == 0
        return whole(jnp.where(fine, found, jnp.nan if lost else given)), fine

    def slope(self, field: Field, t: Any, y: Any, args: Any) -> Any:
        """The derivative of the state by time; not finite where the index is above 1."""
        state, whole = vector(y)
        flat: Callable[[Any, Any], Any] = lambda t, state: vector(field(t, whole(state), args))[0]  # noqa: E731
        if self.matrix.ndim == 1 and not self.singular:
            return whole(flat(t, state) / self.matrix)
        matrix = jnp.diag(self.matrix) if self.matrix.ndim == 1 else self.matrix
        right, by_time = jax.jvp(lambda t: flat(t, state), (t,), (jnp.ones_like(t),))
        if self.singular:
            rows = jnp.asarray(self.algebraic)
            matrix = jnp.where(rows[:, None], jax.jacfwd(lambda state: flat(t, state))(state), matrix)
            right = jnp.where(rows, -by_time, right)
        return whole(jnp.linalg.solve(matrix.astype(right.dtype), right))


def mass_matrix(given: Any, y0: Any) -> Mass:
    """A mass matrix as it is written: (n, n), its diagonal (n,), or the diagonal in the structure of the state.

    Raises:
        ValueError: it has another shape, or is known not to be finite.
    """
    state, _ = vector(y0)
    n, given = state.size, as_arrays(given)
    leaves = jax.tree_util.tree_leaves(given)
    shapes = [np.shape(leaf) for leaf in leaves]
    whole = len(leaves) == 1 and shapes[0] in ((n, n), (n,))
    matrix = leaves[0] if whole else _diagonal(given, y0, shapes)
    if jnp.issubdtype(jnp.result_type(matrix), jnp.complexfloating):
        raise ValueError("`mass_matrix` must be real, but is complex. Solve for real and imaginary parts.")
    value = known(matrix)
    if value is None:
        matrix = jnp.asarray(matrix, state.dtype)
        rows = matrix[:, None] if matrix.ndim == 1 else matrix
        return Mass(matrix, None, jnp.all(rows == 0, axis=1))
    if not np.isfinite(value).all():
        raise ValueError(
            "`mass_matrix` must be finite, but holds a number that is not. Write 0 for what has no derivative."
        )
    value = np.asarray(value, float)
    algebraic = (value == 0) if value.ndim == 1 else (value == 0).all(axis=1)
    left = None
    if value.ndim == 2:
        u, sizes, _ = np.linalg.svd(value)
        lost = sizes <= n * np.finfo(float).eps * max(sizes[0], np.finfo(float).tiny)
        if lost.sum() > algebraic.sum():
            left, algebraic = u.T, lost
            value = np.where(lost[:, None], 0.0, left @ value)
    return Mass(jnp.asarray(value, state.dtype), left, algebraic)


def _diagonal(given: Any, y0: Any, shapes: Any) -> Any:
    """A diagonal in the structure of the state as one vector."""
    try:
        spread = jax.tree_util.tree_map(_as_wide, given, y0)
    except (AttributeError, TypeError, ValueError):
        state, _ = vector(y0)
        raise ValueError(
            f"`mass_matrix` must have the shape ({state.size}, {state.size}), or of its diagonal ({state.size},), or a number for each of "
            f"the state in its structure, but has {', '.join(map(str, shapes)) or 'none'}."
        ) from None
    leaves = jax.tree_util.tree_leaves(spread)
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return np.concatenate([np.ravel(leaf) for leaf in leaves])
    return vector(spread)[0]


def _as_wide(part: Any, leaf: Any) -> Any:
    """A part of the diagonal in the shape of its leaf."""
    value = known(part)
    return jnp.broadcast_to(part, leaf.shape) if value is None else np.broadcast_to(value, leaf.shape)
