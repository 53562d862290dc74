"""Where the derivatives of a function outside JAX come from: differences, complex steps, or what the user declares.

In: a `Site` and the arrays of one call. Out: the Jacobian of each part of the result by each of some arrays, the axes of the result
first, then the array's. Each rule says in words what it is, for plans and errors.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ops.calls import Site, brief, fitted, matched

STENCILS = {2: ((1, 0.5), (-1, -0.5)), 4: ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))}
"""Order of the error: (steps away, weight) of each value."""

COMPLEX_STEP = {8: 1e-20, 4: 1e-10}
"""By the bytes of a number: so short that its square is lost, so long that it is no underflow."""


class AbstractRule(abc.ABC):
    """A source of derivatives. `str` says it in words."""

    @property
    def answering(self) -> tuple[str, Callable[..., Any]] | None:
        """How the numbers are made, and the user's function that makes them; None if they are made from the values."""
        return None

    @abc.abstractmethod
    def slopes(self, site: Site, moved: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
        """The derivatives of each inexact part of the result, by each of the arrays `moved`."""


@dataclass(frozen=True)
class Jacobian:
    """What JAX calls for the derivatives by some arrays."""

    rule: AbstractRule
    site: Site
    moved: tuple[int, ...]

    @property
    def answering(self) -> tuple[str, Callable[..., Any]]:
        """How the numbers are made, and the function that makes them."""
        return self.rule.answering or (f"made {self.rule} from", self.site.of.function)

    def __call__(self, *operands: Any) -> list[Any]:
        return self.rule.slopes(self.site, self.moved, [np.asarray(x) for x in operands])


@dataclass(frozen=True, eq=False)
class Undefined(AbstractRule):
    """No derivatives."""

    def slopes(self, site: Site, moved: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
        """There are none: refused while traced."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "none: one through this function is refused"


@dataclass(frozen=True, eq=False)
class Finite(AbstractRule):
    """Central differences."""

    step: Any
    """Relative to the argument: a number, {argument: number}, or None for what balances rounding and truncation."""

    order: int
    typical: Any
    kinds: tuple[Any, ...] = ()
    """Dtypes of the result: one in float32 is rounded to that, whatever the argument."""

    def relative(self, name: str, dtype: Any) -> Any:
        """The step in units of an argument's size."""
        if (given := option(self.step, name)) is not None:
            return np.asarray(given)
        coarsest = max(float(np.finfo(kind).eps) for kind in (dtype, *self.kinds))
        return coarsest ** (1 / (self.order + 1))

    def slopes(self, site: Site, moved: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
        """By 2 or 4 values for each element."""
        found = []
        for i in moved:
            x, (name, _) = arrays[i], site.place(i)
            h = self.relative(name, x.dtype) * sizes(x, len(site.avals[i].shape), option(self.typical, name))
            h = ((x + h) - x).astype(x.dtype)  # what is left of it in x + h
            stencil = STENCILS[self.order]
            points = [x + n * part for part in elements(h, site.avals[i].shape) for n, _ in stencil]
            weights = np.array([weight for _, weight in stencil])
            for values in many(site, arrays, i, points):
                sums = np.tensordot(values.reshape((-1, len(stencil), *values.shape[1:])), weights, (1, 0))
                found.append(quotient(sums, h, site.avals[i].shape, values.dtype))
        return found

    def __str__(self) -> str:
        dtype = jnp.result_type(float)
        names = self.step if isinstance(self.step, Mapping) else ("",)
        steps = ", ".join(dict.fromkeys(f"{np.max(self.relative(name, dtype)):.1e}" for name in names))
        order = ", fourth order" if self.order == 4 else ""
        return f"by finite differences (central{order}, step {steps} of the argument)"


@dataclass(frozen=True, eq=False)
class Complex(AbstractRule):
    """The imaginary part of a value a short step off the real axis."""

    typical: Any

    def slopes(self, site: Site, moved: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
        """By one value for each element."""
        found = []
        for i in moved:
            x, shape, (name, _) = arrays[i], site.avals[i].shape, site.place(i)
            h = (COMPLEX_STEP[x.dtype.itemsize] * sizes(x, len(shape), option(self.typical, name))).astype(x.dtype)
            points = [x + 1j * part for part in elements(h, shape)]
            values = many(site, arrays, i, points, complexes=True)
            self.check(site, arrays, i, values)
            kinds = [site.structs[k].dtype for k in site.inexact]
            found += [quotient(v.imag, h, shape, kind) for v, kind in zip(values, kinds, strict=True)]
        return found

    def check(self, site: Site, arrays: Sequence[Any], i: int, values: Sequence[Any]) -> None:
        """A part of the result without any imaginary part must not depend on the argument.

        Raises:
            TypeError: it does, and so has lost it on the way.
        """
        if all(np.any(v.imag) for v in values) or not arrays[i].size:
            return
        near = [*arrays[:i], arrays[i] * 1.01 + 0.01, *arrays[i + 1 :]]
        lead = site.lead(arrays)
        pairs = zip(site.value(near, lead), site.value(arrays, lead), strict=True)
        changed = [not np.array_equal(a, b, equal_nan=True) for a, b in pairs]
        for k, v in zip(site.inexact, values, strict=True):
            if changed[k] and not np.any(v.imag):
                raise TypeError(
                    f"`{site.of.name}` must pass complex numbers through for complex steps, but what it returns has no imaginary "
                    "part. Write derivatives: finite."
                )

    def __str__(self) -> str:
        return "by complex steps"


@dataclass(frozen=True, eq=False)
class Declared(AbstractRule):
    """The user's own Jacobian, or the user's own product of it with a tangent."""

    jacobian: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    traced: bool
    """Whether JAX traces the Jacobian, and so differentiates it in its turn."""

    @property
    def answering(self) -> tuple[str, Callable[..., Any]] | None:
        """The user's function."""
        found = self.jacobian or self.jvp
        assert found is not None
        return "returned by", found

    def slopes(self, site: Site, moved: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
        """As the user's function gives them."""
        lead = site.lead(arrays)
        if self.jacobian is not None:
            with site.turn:
                found = site.call(self.jacobian, site.handed(arrays, lead))
            return [fitted(leaf, lead, struct, where) for where, struct, leaf in by_parts(site, moved, found)]
        return [column for i in moved for column in self.columns(site, arrays, i, lead)]

    def columns(self, site: Site, arrays: Sequence[Any], i: int, lead: tuple[int, ...]) -> Iterator[Any]:
        """The Jacobian by an array, from the products with its unit tangents."""
        shape, found = site.avals[i].shape, []
        for unit in elements(np.ones_like(arrays[i]), shape):
            moves = [unit if j == i else np.zeros_like(x) for j, x in enumerate(arrays)]
            with site.turn:
                product = self.jvp(  # type: ignore[misc]
                    site.fill(site.handed(arrays, lead)), site.fill(site.handed(moves, lead), at_rest)
                )
            parts = list(matched(site.result, product, f"jvp of {site.of.name}"))
            found.append([fitted(parts[k][2], lead, parts[k][1], parts[k][0]) for k in site.inexact])
        if not found:
            yield from (np.zeros((*lead, *s.shape), s.dtype) for s in site.slope_structs(i))
        for column in zip(*found, strict=True):
            yield np.stack(column, axis=-1).reshape((*column[0].shape, *shape))

    def trace(self, site: Site, moved: Sequence[int], operands: Sequence[Any]) -> list[Any]:
        """The Jacobian as JAX traces it.

        Raises:
            ValueError: a part of it has another shape.
        """
        found = []
        for where, struct, leaf in by_parts(site, moved, site.call(self.jacobian, operands)):  # type: ignore[arg-type]
            array = jnp.asarray(leaf, struct.dtype)
            if array.shape != struct.shape:
                raise ValueError(f"`{where}` must be {list(struct.shape)}, but is {list(array.shape)}. Mend it.")
            found.append(array)
        return found

    def __str__(self) -> str:
        kind = "jvp" if self.jacobian is None else "jacobian"
        inner: Any = self.jacobian or self.jvp
        while hasattr(inner, "func"):
            inner = inner.func
        again = ", itself differentiable" if self.traced else ""
        return f"declared ({kind} {getattr(inner, '__name__', type(inner).__name__)}{again})"


# ---- of one array


def at_rest(constant: Any) -> Any:
    """The tangent of a constant: zeros, or None for what is no number."""
    numeric = isinstance(constant, int | float | complex | np.ndarray | np.generic)
    return np.zeros_like(constant)[()] if numeric else None


def option(value: Any, name: str) -> Any:
    """A setting for one argument."""
    return value.get(name) if isinstance(value, Mapping) else value


def sizes(x: Any, rank: int, typical: Any) -> Any:
    """What steps are relative to: each element's size; for one that is lost beside 1, the largest in the array or 1."""
    size = np.abs(x)
    if typical is not None:
        return np.maximum(size, typical)
    least = np.finfo(x.dtype).eps
    axes = tuple(range(x.ndim - rank, x.ndim))
    largest = size.max(axis=axes, keepdims=True, initial=0.0)
    return np.where(size > least, size, np.where(largest > least, largest, 1.0))


def elements(h: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """For each element of an array of this shape, `h` at it and zero elsewhere."""
    for index in np.ndindex(shape):
        part = np.zeros_like(h)
        part[(..., *index)] = h[(..., *index)]
        yield part


def many(site: Site, arrays: Sequence[Any], i: int, points: Sequence[Any], complexes: bool = False) -> list[Any]:
    """The inexact parts of the result at several values of an array, along a leading axis."""
    lead = site.lead(arrays)
    if not points:
        return [np.zeros((0, *lead, *site.structs[k].shape), site.structs[k].dtype) for k in site.inexact]
    if site.of.vectorized:
        spread = [np.stack(points) if j == i else x[None] for j, x in enumerate(arrays)]
        parts = site.value(spread, (len(points), *lead), complexes)
        return [parts[k] for k in site.inexact]
    rows = [site.value([*arrays[:i], point, *arrays[i + 1 :]], lead, complexes) for point in points]
    return [np.stack([row[k] for row in rows]) for k in site.inexact]


def quotient(changes: Any, h: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Changes (elements, *lead, *result) by the steps (*lead, *shape): derivatives (*lead, *result, *shape)."""
    lead = h.ndim - len(shape)
    steps = np.moveaxis(h.reshape((*h.shape[:lead], -1)), -1, 0)
    steps = steps.reshape((*steps.shape, *(1,) * (changes.ndim - steps.ndim)))
    slopes = np.moveaxis((changes / steps).astype(dtype), 0, -1)
    return slopes.reshape((*slopes.shape[:-1], *shape))


# ---- of what the user returns


def by_parts(site: Site, moved: Sequence[int], found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Of a Jacobian that the user returned, the part that belongs to each array and each inexact part of the result.

    Raises:
        TypeError: it is of another structure, or lacks an argument.
    """
    by_name = by_argument(site, moved, found)
    trees = dict(zip(site.names, site.trees, strict=True))
    for i in moved:
        name, leaf = site.place(i)
        parts = list(matched(site.result, by_name[name], f"jacobian of {site.of.name} by {name}"))
        for k, struct in zip(site.inexact, site.slope_structs(i), strict=True):
            where, _, part = parts[k]
            try:
                yield where, struct, trees[name].flatten_up_to(part)[leaf]
            except (TypeError, ValueError):
                raise TypeError(f"`{where}` must have the structure of the argument, but is {brief(part)}.") from None


def by_argument(site: Site, moved: Sequence[int], found: Any) -> Mapping[str, Any]:
    """A Jacobian by the names of arguments, however it was returned.

    Raises:
        TypeError: it cannot be told what belongs to which argument.
    """
    needed, everything = {site.place(i)[0] for i in moved}, list(site.of.signature.parameters)
    if isinstance(found, Mapping) and needed <= set(found):
        return found
    if isinstance(found, tuple) and len(found) == len(everything) > 1:
        return dict(zip(everything, found, strict=True))
    real = {site.place(i)[0] for i, a in enumerate(site.avals) if jnp.issubdtype(a.dtype, np.floating)}
    if len(real) == 1:
        return dict.fromkeys(real, found)
    example = ", ".join(f"{name}: ..." for name in sorted(needed))
    raise TypeError(f"`jacobian` of {site.of.name} must be by each argument, {{{example}}}, but is {brief(found)}.")
