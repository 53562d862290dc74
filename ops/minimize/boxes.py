"""Points, gradients and steps against the bounds of the variables.

Source: D. P. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM J. Control and Optimization 20
(1982) 221-246.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NEAR = 1e-6
"""Distance from a bound, in scaled units, within which a variable that the gradient pushes there is put on it."""


def rounding(x: jax.Array) -> float:
    """The unit of rounding of an array's dtype."""
    return float(np.finfo(x.dtype).eps)


def clipped(z: jax.Array, box: Any) -> jax.Array:
    """The nearest point of the box, exactly."""
    inside: jax.Array = jnp.minimum(jnp.maximum(z, box.lower), box.upper)
    return inside


def projected_gradient(z: jax.Array, gradient: jax.Array, box: Any) -> jax.Array:
    """`z - P(z - gradient)`: zero exactly where the first-order conditions hold."""
    return z - clipped(z - gradient, box)


def pinned(z: jax.Array, gradient: jax.Array, box: Any) -> jax.Array:
    """Which variables are at a bound that the gradient pushes them against: Bertsekas' set I+, with his epsilon."""
    near = jnp.minimum(NEAR, jnp.linalg.norm(projected_gradient(z, gradient, box)))
    at: jax.Array = ((z <= box.lower + near) & (gradient > 0)) | ((z >= box.upper - near) & (gradient < 0))
    return at


def unblocked(direction: Callable[[jax.Array], jax.Array], z: jax.Array, fixed: jax.Array, box: Any) -> jax.Array:
    """A direction of the free variables that leads none of them through a bound that it is on.

    Args:
        direction: the direction for a set of free variables, (n,) of bool.
        z: where it begins.
        fixed: the pinned variables.
        box: the bounds.
    """
    first = direction(~fixed)
    through = ((z <= box.lower) & (first < 0)) | ((z >= box.upper) & (first > 0))
    return jnp.where(through | fixed, 0.0, direction(~fixed & ~through))


def towards(z: jax.Array, direction: jax.Array, gradient: jax.Array, fixed: jax.Array, box: Any) -> jax.Array:
    """The end of a step that descends and stays in the box.

    It is the projection of `z + direction`; where that does not descend, the point at which the direction meets the first bound; where the
    direction itself does not descend, a projected gradient step of at most unit length.

    Args:
        z: where the step begins, (n,).
        direction: of the variables that are not fixed, (n,).
        gradient: at `z`, (n,).
        fixed: the pinned variables, (n,); they are put on their bound.
        box: the bounds.
    """
    wall = jnp.where(gradient > 0, box.lower, box.upper)
    direction = jnp.where(jnp.isfinite(direction), direction, 0.0)
    largest = float(np.finfo(z.dtype).max) ** 0.25  # squares of it stay finite
    direction = jnp.clip(direction, -largest, largest)
    whole = jnp.where(fixed, wall, clipped(z + direction, box))
    ahead = jnp.where(direction > 0, box.upper, box.lower) - z
    blocked = fixed | (ahead * direction <= 0)
    part = jnp.min(jnp.where(blocked, 1.0, ahead / jnp.where(blocked, 1.0, direction)), initial=1.0)
    cut = jnp.where(fixed, wall, jnp.where(blocked, z, clipped(z + part * direction, box)))
    slope = projected_gradient(z, gradient, box)
    size = jnp.linalg.norm(slope)
    steepest = clipped(z - gradient / jnp.maximum(1.0, size), box)

    def descends(point: jax.Array) -> jax.Array:
        step = point - z
        return jnp.asarray(-gradient @ step > rounding(z) ** 0.75 * jnp.linalg.norm(step) * size)

    end: jax.Array = jnp.where(descends(whole), whole, jnp.where(descends(cut), cut, steepest))
    return end
