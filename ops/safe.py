"""Functions with finite derivatives where the textbook's have none: at zero.

The derivative of `sqrt(x)`, of a norm, of `log(x)` and of `a / b` is infinite or undefined at zero, and an infinite number times a
tangent of zero is NaN: one body at rest, and the gradient of a whole trajectory is lost. These functions have the same values, and at
the singular point itself the derivative zero, of every order and in every mode; elsewhere the usual derivatives, however large. The
singular branch is kept out of the arithmetic, and not only out of the result (the two `where` of the JAX FAQ, "gradients contain NaN
where using where").
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp


def norm(x: Any, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> jax.Array:
    """The Euclidean norm, like `jnp.linalg.norm` of a vector; its derivative at the zero vector is zero.

    Args:
        x: real or complex array.
        axis: the axis or axes to sum over; all if left out.
        keepdims: whether to keep them, with length one.

    Returns:
        sqrt(sum |x|^2), neither overflowing nor underflowing before the result does.

    >>> import jax
    >>> [float(d) for d in jax.grad(norm)(jnp.zeros(2))]
    [0.0, 0.0]
    """
    x = jnp.asarray(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    scaled = x / scale
    squared = jnp.real(scaled * jnp.conj(scaled))
    total = sqrt(jnp.sum(squared, axis=axis, keepdims=True)) * scale
    return total if keepdims else jnp.squeeze(total, axis=axis)


def sqrt(x: Any) -> jax.Array:
    """The square root; its derivative at zero is zero. NaN below zero.

    >>> import jax
    >>> float(jax.grad(sqrt)(0.0)), float(jax.grad(sqrt)(4.0))
    (0.0, 0.25)
    """
    x = jnp.asarray(x, jnp.result_type(x, float))
    return jnp.where(x == 0, 0, jnp.sqrt(jnp.where(x == 0, 1, x)))


def log(x: Any, *, at_zero: float = -math.inf) -> jax.Array:
    """The natural logarithm, with a value of your choice and the derivative zero at zero. NaN below zero.

    For `x log x`, which is 0 at 0, `jax.scipy.special.xlogy` is made.

    >>> import jax
    >>> float(log(0.0, at_zero=-700.0)), float(jax.grad(log)(0.0))
    (-700.0, 0.0)
    """
    x = jnp.asarray(x, jnp.result_type(x, float))
    return jnp.where(x == 0, at_zero, jnp.log(jnp.where(x == 0, 1, x)))


def divide(a: Any, b: Any, *, at_zero: float = 0.0) -> jax.Array:
    """The quotient a / b, with a value of your choice where b is zero, and there the derivative zero.

    >>> import jax
    >>> float(divide(1.0, 0.0)), [float(d) for d in jax.grad(divide, (0, 1))(1.0, 0.0)]
    (0.0, [0.0, 0.0])
    """
    dtype = jnp.result_type(a, b, float)
    a, b = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    return jnp.where(b == 0, at_zero, a / jnp.where(b == 0, 1, b))
