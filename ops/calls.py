"""A call from JAX into Python: what is constant in it, what JAX passes, and whether the answer is what was declared.

In: a function outside JAX and the arguments of one call. Out: a `Site`, and `Value`, which JAX calls with arrays and which answers with
arrays of the declared shapes.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TURN = threading.RLock()
"""Held while a function with a lock runs: old Fortran and C keep state where all callers share it, so that one lock is for all."""

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Outside:
    """A function outside JAX. Static."""

    function: Callable[..., Any]
    name: str
    signature: inspect.Signature
    result: Any
    """A pytree of shapes and dtypes, the widest of their kind."""

    vectorized: bool
    lock: bool


@dataclass(frozen=True, eq=False)
class Site:
    """A place where JAX calls a function: its constants, and the shapes of the arrays that it passes. Static.

    Compared by value, so that equal calls are compiled once.
    """

    of: Outside
    names: tuple[str, ...]
    """Of the arguments given."""

    trees: tuple[Any, ...]
    """Their structures."""

    leaves: tuple[Any, ...]
    """Their parts: constants, and None where JAX passes an array."""

    avals: tuple[Any, ...]
    """Of the arrays, without the axes that vmap adds."""

    result: Any
    """A pytree of shapes and dtypes, in the precision in which JAX computes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self.key == other.key and all(map(same, self.leaves, other.leaves))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[Any, ...]:
        """All but the constants, which may not be hashable."""
        return self.of, self.names, self.trees, self.avals, len(self.leaves), *self.structs

    @property
    def structs(self) -> list[Any]:
        """Shape and dtype of each part of the result."""
        return jax.tree_util.tree_leaves(self.result)

    @property
    def inexact(self) -> list[int]:
        """The parts of the result that have derivatives."""
        return [i for i, s in enumerate(self.structs) if jnp.issubdtype(s.dtype, np.inexact)]

    def ask(self, answer: Callable[..., Any], structs: Sequence[Any], operands: Sequence[Any]) -> Any:
        """Have JAX call back for arrays of these shapes."""
        method = "expand_dims" if self.of.vectorized else "sequential"
        return jax.pure_callback(answer, list(structs), *operands, vmap_method=method)

    def slope_structs(self, i: int) -> list[Any]:
        """Shape and dtype of the derivatives by an array: the axes of the result, then its own."""
        parts = [self.structs[k] for k in self.inexact]
        return [jax.ShapeDtypeStruct((*s.shape, *self.avals[i].shape), s.dtype) for s in parts]

    def place(self, i: int) -> tuple[str, int]:
        """The argument that an array is a part of, and which of its leaves."""
        flat = [n for n, leaf in enumerate(self.leaves) if leaf is None][i]
        for name, tree in zip(self.names, self.trees, strict=True):
            if flat < tree.num_leaves:
                return name, flat
            flat -= tree.num_leaves
        raise AssertionError

    def fill(self, arrays: Sequence[Any], constant: Callable[[Any], Any] = lambda leaf: leaf) -> dict[str, Any]:
        """The arguments by name: arrays in their places, and what `constant` makes of the constants in theirs."""
        passed = iter(arrays)
        leaves = iter([next(passed) if leaf is None else constant(leaf) for leaf in self.leaves])
        return {
            name: jax.tree_util.tree_unflatten(tree, [next(leaves) for _ in range(tree.num_leaves)])
            for name, tree in zip(self.names, self.trees, strict=True)
        }

    def call(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """A function of the same signature, given these arrays."""
        bound = inspect.BoundArguments(self.of.signature, self.fill(arrays))
        return function(*bound.args, **bound.kwargs)

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """What lets one caller in at a time, if asked for."""
        return TURN if self.of.lock else nullcontext()

    def lead(self, arrays: Sequence[Any]) -> Shape:
        """The axes that vmap has added."""
        return np.broadcast_shapes(*(x.shape[: x.ndim - len(a.shape)] for x, a in zip(arrays, self.avals, strict=True)))

    def handed(self, arrays: Sequence[Any], lead: Shape) -> list[Any]:
        """The arrays as a function gets them: copies of its own, and NumPy numbers for scalars; where it is vectorized, all with the
        same leading axes, which cost no memory and so cannot be written to."""
        if not self.of.vectorized:
            return [np.array(x)[()] for x in arrays]
        return [np.broadcast_to(x, (*lead, *a.shape)) for x, a in zip(arrays, self.avals, strict=True)]

    def value(self, arrays: Sequence[Any], lead: Shape, complexes: bool = False) -> list[Any]:
        """The parts of the result for given arrays, checked; `complexes` leaves inexact ones complex."""
        with self.turn:
            found = self.call(self.of.function, self.handed(arrays, lead))
        parts = []
        for where, struct, leaf in matched(self.result, found, self.of.name):
            inexact = complexes and jnp.issubdtype(struct.dtype, np.inexact)
            dtype = np.result_type(struct.dtype, np.complex64) if inexact else struct.dtype
            parts.append(fitted(leaf, lead, jax.ShapeDtypeStruct(struct.shape, dtype), where))
        return parts


@dataclass(frozen=True)
class Value:
    """What JAX calls for the value."""

    site: Site

    @property
    def answering(self) -> tuple[str, Callable[..., Any]]:
        """How the numbers are made, and the function that makes them."""
        return "returned by", self.site.of.function

    def __call__(self, *operands: Any) -> list[Any]:
        arrays = [np.asarray(x) for x in operands]
        return self.site.value(arrays, self.site.lead(arrays))


def same(a: Any, b: Any) -> bool:
    """Whether two constants are sure to be equal."""
    plain = bool | int | float | complex | str | bytes
    return a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)


def matched(declared: Any, found: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Each part of a declared result with what was found in its place.

    Raises:
        TypeError: the structures differ.
    """
    if isinstance(declared, jax.ShapeDtypeStruct):
        yield where, declared, found
    elif isinstance(declared, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(declared):
            raise TypeError(f"`{where}` must be a dict of {', '.join(map(str, declared))}, but is {brief(found)}.")
        for name in sorted(declared):  # as JAX orders them
            yield from matched(declared[name], found[name], f"{where}.{name}")
    else:
        if not isinstance(found, list | tuple) or len(found) != len(declared):
            raise TypeError(f"`{where}` must be a list or tuple of {len(declared)}, but is {brief(found)}.")
        for i, child in enumerate(declared):
            yield from matched(child, found[i], f"{where}.{i}")


def fitted(leaf: Any, lead: Shape, struct: Any, where: str) -> Any:
    """What a function returned as an array of the declared shape and dtype.

    Raises:
        TypeError: it is another, or an array of JAX.
    """
    if isinstance(leaf, jax.Array):
        raise TypeError(
            f"`{where}` must be made outside JAX, but is a JAX array: a callback must not call JAX. Use numpy."
        )
    try:
        array = np.asarray(leaf)
    except ValueError:  # a ragged list
        array = np.asarray(None)
    full = (*lead, *struct.shape)
    axes = array.shape[: len(lead)]
    fits = array.ndim == len(full) and array.shape[len(lead) :] == struct.shape
    fits = fits and all(a in (1, n) for a, n in zip(axes, lead, strict=True))
    if fits and np.can_cast(array.dtype, struct.dtype, "same_kind"):
        with np.errstate(over="ignore"):
            cast = array.astype(struct.dtype)
        if array.dtype.kind not in "iu" or struct.dtype.kind not in "iu" or np.array_equal(cast, array):
            return np.broadcast_to(cast, full)
    want = f"{struct.dtype}{list(struct.shape)}" + (f" after the leading axes {list(lead)}" if lead else "")
    have = brief(leaf) if array.dtype.kind in "OSU" else brief(array)
    raise TypeError(f"`{where}` must be {want}, but is {have}. Return that, or declare another result.")


def brief(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
