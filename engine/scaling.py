"""Variables in their own units ⇄ the scaled variables that a search moves.

In: the variables of a design problem. Out: a `Scaling`: the elements of all variables in a row, each divided by a size of its own or
taken as a logarithm, so that parameters that are powers of ten apart weigh alike. Only NumPy where nothing is traced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

Array = np.ndarray[Any, Any]

WIDE = 1e3
"""A positive interval whose ends are this far apart is searched on a logarithmic scale."""


def numeric(like: Any) -> Any:
    """NumPy for what is NumPy's, so that nothing is compiled for it, else jax.numpy."""
    return np if isinstance(like, np.ndarray | np.generic | float) else jnp


@dataclass(frozen=True, eq=False)
class Variable:
    """A parameter that a search moves. Static."""

    name: str
    start: Array
    """Its nominal start, in its own units and of its own shape."""

    lower: Array
    upper: Array
    """Bounds of the same shape; infinite where there is none."""

    scale: str | float = "auto"
    """auto, linear (as it is), log, or the size by which it is divided."""

    @property
    def logarithmic(self) -> bool:
        """Whether its logarithm is searched."""
        if self.scale == "auto":
            finite = np.isfinite(self.upper) & (self.lower > 0)
            return bool(finite.all() and (self.upper >= WIDE * self.lower).all() and (self.start > 0).all())
        return self.scale == "log"

    @property
    def size(self) -> float | None:
        """What it is divided by; None if neither its start nor its bounds tell."""
        if self.logarithmic or self.scale == "linear":
            return 1.0
        if not isinstance(self.scale, str):
            return float(self.scale)
        magnitude = float(np.max(np.abs(self.start), initial=0))
        width = float(np.max(self.upper - self.lower, initial=0))
        if magnitude > 0:
            return min(magnitude, width) if 0 < width < math.inf else magnitude
        if 0 < width < math.inf:
            return width
        ends = np.abs(np.concatenate([self.lower.ravel(), self.upper.ravel()]))
        ends = ends[np.isfinite(ends) & (ends > 0)]
        return float(ends.max()) if ends.size else None


@dataclass(frozen=True, eq=False)
class Scaling:
    """Every element of the variables in a row: x = size * z, or x = size * exp(z). Static."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    size: Array
    """(n,)"""

    logarithmic: Array
    """(n,) bool"""

    lower: Array
    upper: Array
    """Bounds in the variables' own units, (n,)."""

    @property
    def n(self) -> int:
        """Elements of all variables together."""
        return len(self.size)

    @property
    def elements(self) -> tuple[str, ...]:
        """A name for each element: `k`, or `u[0]`, `u[1]`."""
        found: list[str] = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            found += [name if not shape else f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]
        return tuple(found)

    @property
    def box(self) -> tuple[Array, Array]:
        """The bounds of the scaled variables."""
        return self.scaled(self.lower), self.scaled(self.upper)

    def scaled(self, x: Array) -> Array:
        """Scaled variables of values in their own units, the elements along the last axis."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.logarithmic, np.log(np.where(self.logarithmic, x, 1.0) / self.size), x / self.size)

    def unscaled(self, z: Any) -> Any:
        """Values in their own units, never outside the bounds by a rounding; NumPy's for NumPy's."""
        module = numeric(z)
        x = self.size * module.where(self.logarithmic, module.exp(module.where(self.logarithmic, z, 0.0)), z)
        return module.clip(x, self.lower, self.upper).astype(z.dtype)

    def slopes(self, z: Any) -> Any:
        """dx/dz, of the shape of z."""
        module = numeric(z)
        by_one = module.where(self.logarithmic, module.exp(module.where(self.logarithmic, z, 0.0)), 1.0)
        return (self.size * by_one).astype(z.dtype)

    def parted(self, x: Any) -> dict[str, Any]:
        """Each variable's own array, from the elements along the last axis."""
        found, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            count = math.prod(shape)
            found[name] = x[..., at : at + count].reshape((*x.shape[:-1], *shape))
            at += count
        return found

    def gathered(self, values: Mapping[str, Any], lead: int = 0) -> Any:
        """The elements in a row, after `lead` axes that the arrays share."""
        parts = [values[name] for name in self.names]
        module = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
        return module.concatenate([part.reshape((*part.shape[:lead], -1)) for part in parts], axis=-1)

    def resized(self, size: Array) -> Scaling:
        """The same with other sizes."""
        return replace(self, size=np.where(self.logarithmic, 1.0, size))


def make_scaling(variables: Sequence[Variable], guesses: Array | None = None) -> Scaling:
    """The scaling of variables.

    Args:
        variables: what is searched.
        guesses: sizes for elements of which neither start nor bounds tell one, (n,); 1 if None.
    """
    rows: list[tuple[float, bool, float, float]] = []
    for variable in variables:
        for lower, upper in zip(variable.lower.ravel(), variable.upper.ravel(), strict=True):
            size = variable.size
            if size is None:
                size = 1.0 if guesses is None else float(guesses[len(rows)])
            rows.append((size, variable.logarithmic, float(lower), float(upper)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    names, shapes = tuple(v.name for v in variables), tuple(v.start.shape for v in variables)
    return Scaling(names, shapes, columns[0], columns[1].astype(bool), columns[2], columns[3])
