"""Functions with finite derivatives where the textbook's have none: at zero, at the origin, at the ends of their domain.

The derivative of `sqrt(x)`, of a norm, of `log(x)`, of an angle and of `a / b` is infinite or undefined at zero, and an infinite number
times a tangent of zero is NaN: one body at rest, and the gradient of a whole trajectory is lost. These functions have the same values,
and at the singular point itself the derivative zero, of every order and in every mode; elsewhere the usual derivatives, however large. The
singular branch is kept out of the arithmetic, and not only out of the result (the two `where` of the JAX FAQ, "gradients contain NaN
where using where").
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


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


def hypot(x: Any, y: Any) -> jax.Array:
    """The length of the vector (x, y); its derivative at the origin is zero.

    >>> import jax
    >>> float(hypot(3.0, 4.0)), [float(d) for d in jax.grad(hypot, (0, 1))(0.0, 0.0)]
    (5.0, [0.0, 0.0])
    """
    return norm(jnp.stack(jnp.broadcast_arrays(x, y)), axis=0)


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


def power(x: Any, p: Any) -> jax.Array:
    """The power x^p, with the derivatives that it has at zero, and zero for those that are infinite there. NaN for a root of x < 0.

    The derivatives by `x` at zero are those of the power: 1 for p = 1, zero for p = 1.5, and zero too for p = 0.5, whose derivative is
    infinite. The derivative by `p` at zero is zero.

    >>> import jax
    >>> [float(jax.grad(power)(0.0, p)) for p in (0.5, 1.0, 1.5)]
    [0.0, 1.0, 0.0]
    """
    dtype = jnp.result_type(x, p, float)
    x, p = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(p, dtype))
    return jnp.where((x == 0) & (p < 0), jnp.inf, _power(x, p))


@jax.custom_jvp
def _power(x: jax.Array, p: jax.Array) -> jax.Array:
    """x^p, and zero where that is infinite: the derivatives of x^p are multiples of it."""
    infinite = (x == 0) & (p < 0)
    return jnp.where(infinite, 0, jnp.power(jnp.where(infinite, 1, x), p))


def _power_jvp(primals: Any, tangents: Any) -> Any:
    x, p = primals
    along_x, along_p = (None if isinstance(v, SymbolicZero) else v for v in tangents)
    value = _power(x, p)
    tangent = jnp.zeros_like(value)
    if along_x is not None:
        tangent += p * _power(x, p - 1) * along_x
    if along_p is not None:  # of a negative x it is no number, and must not be asked for in vain
        tangent += value * log(x, at_zero=0.0) * along_p
    return value, tangent


_power.defjvp(_power_jvp, symbolic_zeros=True)


def arcsin(x: Any) -> jax.Array:
    """The arc sine; its derivative at -1 and 1 is zero. NaN outside.

    >>> import jax
    >>> float(jax.grad(arcsin)(1.0)), float(jax.grad(arcsin)(0.0))
    (0.0, 1.0)
    """
    x = jnp.asarray(x, jnp.result_type(x, float))
    end = jnp.abs(x) == 1
    return jnp.where(end, jax.lax.stop_gradient(jnp.arcsin(x)), jnp.arcsin(jnp.where(end, 0, x)))


def arccos(x: Any) -> jax.Array:
    """The arc cosine; its derivative at -1 and 1 is zero. NaN outside.

    >>> import jax
    >>> float(jax.grad(arccos)(-1.0)), float(jax.grad(arccos)(0.0))
    (0.0, -1.0)
    """
    x = jnp.asarray(x, jnp.result_type(x, float))
    end = jnp.abs(x) == 1
    return jnp.where(end, jax.lax.stop_gradient(jnp.arccos(x)), jnp.arccos(jnp.where(end, 0, x)))


def arctan2(y: Any, x: Any) -> jax.Array:
    """The angle of the point (x, y); its derivative at the origin is zero.

    >>> import jax
    >>> [float(d) for d in jax.grad(arctan2, (0, 1))(0.0, 0.0)], float(jax.grad(arctan2)(0.0, 2.0))
    ([0.0, 0.0], 0.5)
    """
    dtype = jnp.result_type(y, x, float)
    y, x = jnp.broadcast_arrays(jnp.asarray(y, dtype), jnp.asarray(x, dtype))
    size = jax.lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    scale = jnp.where(
        (size > 0) & jnp.isfinite(size), size, 1
    )  # an angle has none, and the square of a tiny point is zero
    origin = size == 0
    angle = jnp.arctan2(jnp.where(origin, 0, y / scale), jnp.where(origin, 1, x / scale))
    return jnp.where(origin, jax.lax.stop_gradient(jnp.arctan2(y, x)), angle)
