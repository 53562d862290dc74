"""The vocabulary of pytrees: paths into values, their leaves by dotted name, their shapes in words.

Imports nothing of the engine; every module that touches a stage's value speaks through this one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class PathError(KeyError):
    """A dotted path leads nowhere; `available` are the names at the point where it stops."""

    def __init__(self, part: str, available: list[str]) -> None:
        super().__init__(part)
        self.part = part
        self.available = available


def fields_of(value: Any) -> list[str]:
    """The names that a dotted path may go on with from `value`."""
    if isinstance(value, Mapping):
        return [str(k) for k in value]
    if hasattr(value, "_fields"):
        return list(value._fields)
    if dataclasses.is_dataclass(value):
        return [f.name for f in dataclasses.fields(value)]
    if isinstance(value, list | tuple):
        return [str(i) for i in range(len(value))]
    if is_array(value):
        return [str(i) for i in range(value.shape[0])] if value.ndim else []
    return list(children(value))


def children(node: Any) -> dict[str, Any]:
    """The children of a registered pytree node by name; of a leaf, nothing."""
    below = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda other: other is not node)[0]
    return {part_name(path[0]): child for path, child in below if path}


def take(value: Any, path: tuple[str, ...]) -> Any:
    """The part of `value` under a path of dict keys, fields and indices.

    Raises:
        PathError: a part of the path is not there.
    """
    for part in path:
        names = fields_of(value)
        if part not in names:
            raise PathError(part, names)
        if isinstance(value, Mapping):
            value = next(child for key, child in value.items() if str(key) == part)
        elif isinstance(value, jax.ShapeDtypeStruct):
            value = jax.ShapeDtypeStruct(value.shape[1:], value.dtype)
        elif (isinstance(value, list | tuple) and not hasattr(value, "_fields")) or is_array(value):
            value = value[int(part)]
        elif hasattr(value, "_fields") or dataclasses.is_dataclass(value):
            value = getattr(value, part)
        else:
            value = children(value)[part]
    return value


def is_array(value: Any) -> bool:
    """Whether a leaf is an array or a tracer, with a shape and a dtype."""
    return isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def leaves(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf of a pytree with its path; `None` is no leaf."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(value, is_leaf=is_iterator)[0]:
        yield tuple(part_name(part) for part in path), leaf


def is_iterator(value: Any) -> bool:
    """Whether a value is a generator or the like, which is no pytree."""
    return isinstance(value, Iterator)


def part_name(part: Any) -> str:
    """A part of a JAX key path as text."""
    for attribute in ("key", "name", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part).strip(".[]'")


def register_dataclasses(value: Any) -> None:
    """Make plain dataclasses inside `value` pytrees, so that JAX sees into them: all fields children but those marked as static."""
    if isinstance(value, Mapping):
        children: list[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        children = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        if jax.tree_util.all_leaves([value]):
            register_dataclass(type(value))
        children = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    else:
        return
    for child in children:
        register_dataclasses(child)


def register_dataclass(kind: type[Any]) -> None:
    """Make one dataclass a pytree, put together field by field: its `__init__` may check or convert what it is given, once."""
    static = [f.name for f in dataclasses.fields(kind) if f.metadata.get("static")]
    names = [f.name for f in dataclasses.fields(kind) if f.name not in static]

    def flatten(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        inside = [(jax.tree_util.GetAttrKey(name), getattr(value, name, None)) for name in names]
        return inside, tuple(getattr(value, name, None) for name in static)

    def unflatten(fixed: tuple[Any, ...], inside: Iterable[Any]) -> Any:
        made = object.__new__(kind)
        for name, field in zip((*static, *names), (*fixed, *inside), strict=True):
            object.__setattr__(made, name, field)
        return made

    jax.tree_util.register_pytree_with_keys(kind, flatten, unflatten)


@jax.tree_util.register_pytree_with_keys_class
class Outline:
    """What stands for a node whose class converts what it is given, until there are arrays: JAX then makes the class of it."""

    def __init__(self, kind: str, names: tuple[str, ...], structure: Any, inside: Iterable[Any]) -> None:
        self.kind, self.names, self.structure = kind, names, structure
        self.inside = tuple(inside)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The children by name, and how the node itself is made of them."""
        named = zip(map(jax.tree_util.GetAttrKey, self.names), self.inside, strict=True)
        return tuple(named), (self.kind, self.names, self.structure)

    @classmethod
    def tree_unflatten(cls, made: Any, inside: Iterable[Any]) -> Any:
        """The node itself."""
        return jax.tree_util.tree_unflatten(made[2], inside)


def outline(function: Callable[[Any], Any], value: Any) -> Any:
    """The pytree with something in the place of each leaf that is no array, and that its classes may not take."""
    if jax.tree_util.all_leaves([value]):
        return function(value)
    below, structure = jax.tree_util.tree_flatten(value, is_leaf=lambda other: other is not value)
    inside = [outline(function, child) for child in below]
    try:
        made = jax.tree_util.tree_unflatten(structure, inside)
        again = jax.tree_util.tree_leaves(made, is_leaf=lambda other: other is not made)
        if all(a is b for a, b in zip(inside, again, strict=True)):
            return made
    except Exception:  # whatever a class raises for what it does not know
        pass
    return Outline(type(value).__name__, tuple(children(value)), structure, inside)


def bad_leaf(value: Any) -> tuple[tuple[str, ...], Any, Any] | None:
    """The first leaf that is neither an array nor a number, with its path and the node that holds it."""
    for path, leaf in leaves(value):
        if not is_array(leaf) and not isinstance(leaf, bool | int | float | complex):
            holder = value
            for part in path[:-1]:
                holder = children(holder)[part]
            return path, leaf, holder
    return None


def as_arrays(value: Any) -> Any:
    """The pytree with every Python number as an array."""
    return jax.tree_util.tree_map(jnp.asarray, value)


def abstract(value: Any) -> Any:
    """The pytree's shapes and dtypes."""
    return outline(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), dtype_of(leaf)), value)


def dtype_of(leaf: Any) -> Any:
    """The dtype of an array or a Python number."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of a typed PRNG key."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def in_words(value: Any) -> str:
    """Shapes and dtypes as an error shows them: `float64[201]`, `{x: float64[201], v: float64[201]}`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {in_words(v)}" for k, v in value.items()) + "}"
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "_fields") or (dataclasses.is_dataclass(value) and not is_array(value)):
        return (
            f"{type(value).__name__}("
            + ", ".join(f"{k}: {in_words(getattr(value, k))}" for k in fields_of(value))
            + ")"
        )
    if isinstance(value, Outline):
        inside = zip(value.names, map(in_words, value.inside), strict=True)
        return f"{value.kind}({', '.join(f'{name}: {words}' for name, words in inside)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return type(value).__name__ if not isinstance(value, bool | int | float | complex) else repr(value)
