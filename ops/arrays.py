"""Numbers, lists and arrays as `ops.losses` and `ops.statistics` take them.

What is known while JAX traces becomes a NumPy array, so that it can be checked then, in words; what JAX traces is checked by its
result, which is NaN.
"""

from __future__ import annotations

import difflib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def as_arrays(tree: Any) -> Any:
    """A pytree in which a list of equal parts is one array, and a number an array too."""

    def convert(node: Any) -> Any:
        if isinstance(node, jax.core.Tracer | np.ndarray):
            return node
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(node))
        array = jnp.asarray if traced else np.asarray
        try:
            return array(node)
        except (TypeError, ValueError):  # parts of several shapes, each a leaf
            return [as_arrays(part) for part in node]

    return jax.tree_util.tree_map(convert, tree, is_leaf=lambda node: isinstance(node, list))


def floats(name: str, value: Any) -> Any:
    """A real array; integers become floats of the precision in force, and None, which a config writes as null, NaN.

    Raises:
        ValueError: it is not one of real numbers.
    """
    array = as_arrays(value)
    if not isinstance(array, jax.Array | np.ndarray):
        raise ValueError(f"`{name}` must be one array, but is {_short(value)}.")
    if array.dtype == object and all(isinstance(entry, int | float | None) for entry in np.ravel(array)):
        array = array.astype(float)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"`{name}` must be real, but is {array.dtype}. Give the real and the imaginary part, as two.")
    if not jnp.issubdtype(array.dtype, jnp.number) and array.dtype != bool:
        raise ValueError(f"`{name}` must hold numbers, but is {_short(value)}. Write null for what is missing.")
    if is_known(array):
        narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 8
        return array if narrow else array.astype(jnp.result_type(float))
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def is_known(*arrays: Any) -> bool:
    """Whether none of the arrays is being traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def positive(name: str, value: Any) -> Any:
    """A positive number; NaN where JAX traces one that is not.

    Raises:
        ValueError: it is known, and is not one.
    """
    number = floats(name, value)
    if number.ndim:
        raise ValueError(f"`{name}` must be one number, but has the shape {number.shape}.")
    if not is_known(number):
        return jnp.where(number > 0, number, jnp.nan)
    if not (np.isfinite(number) and number > 0):
        raise ValueError(f"`{name}` must be a positive number, but is {float(number)}.")
    return number


def whole(name: str, value: Any, least: int, most: int | None = None, why: str = "") -> int:
    """An integer in a range, known while JAX traces.

    Raises:
        ValueError: it is none.
    """
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"`{name}` must be an integer {span}{why}, but is {value!r}.")
    return int(value)


def constant(name: str, value: Any, *, positive: bool = False) -> float:
    """A finite number, known while JAX traces.

    Raises:
        ValueError: it is none.
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or (positive and value <= 0):
        kind = "positive" if positive else "finite"
        raise ValueError(f"`{name}` must be a {kind} number, known when the program is traced, but is {value!r}.")
    return float(value)


def times(t: Any, length: int) -> Any:
    """The times of an axis: strictly ascending or descending, else NaN where JAX traces them.

    Raises:
        ValueError: there are not as many, or their order is known and is none.
    """
    found = floats("t", t)
    if found.shape != (length,) or length < 2:
        raise ValueError(
            f"`t` must be a list of times, one for each of the {length} entries and at least two, but has the shape {found.shape}."
        )
    xp: Any = np if is_known(found) else jnp
    steps = xp.diff(found)
    ordered = (steps > 0).all() | (steps < 0).all()
    if not is_known(found):
        return jnp.where(ordered, found, jnp.nan)
    if not ordered:
        raise ValueError("`t` must be strictly ascending or descending, but is not. Sort the times, each once.")
    return found


def first(wrong: Any) -> tuple[int, ...]:
    """The first index at which an array is true."""
    return tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0][: np.ndim(wrong)])


def place(index: tuple[int, ...]) -> str:
    """An index in words.

    >>> place((3, 0)), place(())
    ('[3, 0]', '')
    """
    return f"[{', '.join(map(str, index))}]" if index else ""


def one_of(name: str, value: Any, names: Any) -> None:
    """A choice among names.

    Raises:
        ValueError: it is none of them.
    """
    if not isinstance(value, str) or value not in names:
        close = difflib.get_close_matches(str(value), list(names), n=1, cutoff=0.5)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`{name}` must be one of {', '.join(names)}, but is {value!r}.{meant}")


def _short(value: Any) -> str:
    """A value in few words."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
