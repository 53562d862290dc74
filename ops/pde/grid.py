"""Uniform grids: where the points are, and whether an array fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.spelling import nearest

POINTS = {"nodes": Fraction(0), "cells": Fraction(1, 2), "inner": Fraction(1)}
"""The layouts, each with the distance of the first point from the lower end, in spacings."""


@dataclass(frozen=True)
class Axis:
    """One axis of a grid. Static."""

    lower: float
    upper: float
    n: int
    points: str
    periodic: bool

    @property
    def offset(self) -> Fraction:
        """The distance of the first point from the lower end, in spacings; that of the last from the upper end too."""
        return POINTS[self.points]

    @property
    def spacing(self) -> float:
        """The distance between neighbours."""
        intervals = self.n if self.periodic else self.n - 1 + int(2 * self.offset)
        return (self.upper - self.lower) / intervals

    def places(self, first: Fraction, count: int) -> np.ndarray[Any, Any]:
        """Coordinates of `count` neighbours, the first of them so many spacings from the lower end."""
        return self.lower + self.spacing * (float(first) + np.arange(count))


@dataclass(frozen=True)
class Grid:
    """A uniform grid. Static: frozen, hashes by value, so that equal grids never recompile.

    Raises:
        ValueError: a setting is out of its range; the message names it.

    >>> Grid((0.0, 1.0), 5).coordinates().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> Grid([(0.0, 1.0), (0.0, 2.0)], [4, 8], points="cells", periodic=[True, False]).spacing
    (0.25, 0.25)
    """

    bounds: Any
    """(lower, upper), or a pair for each axis."""

    n: Any
    """Points along the axis, or along each."""

    points: str = "nodes"
    """Where the points are. `nodes`: both ends are points. `cells`: the centres of n equal cells. `inner`: nodes without the ends, the
    unknowns where the values at the ends are given. A periodic axis has its upper end left out, and `inner` is `nodes` there."""

    periodic: Any = False
    """Whether the upper end is the lower one again, for all axes or for each."""

    def __post_init__(self) -> None:
        single = not isinstance(self.n, Sequence | np.ndarray)
        counts = (self.n,) if single else tuple(self.n)
        bounds = tuple(self.bounds) if isinstance(self.bounds, Sequence | np.ndarray) else (self.bounds,)
        if len(counts) == 1 and len(bounds) == 2 and not any(isinstance(b, Sequence | np.ndarray) for b in bounds):
            bounds = (bounds,)
        periodic = tuple(self.periodic) if isinstance(self.periodic, Sequence) else (self.periodic,) * len(counts)
        for name, values in (("bounds", bounds), ("periodic", periodic)):
            if len(values) != len(counts) or not counts:
                raise ValueError(
                    f"`grid.{name}` must have an entry for each axis of n = {self.n}, but has {len(values)}."
                )
        for bound in bounds:
            pair = isinstance(bound, Sequence | np.ndarray) and len(bound) == 2 and all(map(_is_number, bound))
            if not pair or not bound[0] < bound[1]:
                raise ValueError(f"`grid.bounds` must be two ascending finite numbers for each axis, but is {bound!r}.")
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
                raise ValueError(f"`grid.n` must be an integer of at least 2, but is {count!r}.")
        for flag in periodic:
            if not isinstance(flag, bool | np.bool_):
                raise ValueError(f"`grid.periodic` must be true or false, but is {flag!r}.")
        if self.points not in POINTS:
            raise ValueError(
                f"`grid.points` must be one of {', '.join(POINTS)}, but is {self.points!r}.{nearest(self.points, POINTS)}"
            )
        object.__setattr__(self, "bounds", tuple((float(lower), float(upper)) for lower, upper in bounds))
        object.__setattr__(self, "n", tuple(map(int, counts)))
        object.__setattr__(self, "periodic", tuple(map(bool, periodic)))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, in order."""
        settings = zip(self.bounds, self.n, self.periodic, strict=True)
        return tuple(
            Axis(lower, upper, n, "nodes" if periodic and self.points == "inner" else self.points, periodic)
            for (lower, upper), n, periodic in settings
        )

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(axis.n for axis in self.axes)

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distance of neighbours along each axis."""
        return tuple(axis.spacing for axis in self.axes)

    def coordinates(self, axis: int = 0) -> jax.Array:
        """The coordinates of the points along an axis."""
        chosen = self.axes[self.position(axis)]
        return jnp.asarray(chosen.places(chosen.offset, chosen.n), float)

    def faces(self, axis: int = 0) -> jax.Array:
        """The coordinates of the n + 1 ends of the cells along an axis."""
        chosen = self.axes[self.position(axis)]
        return jnp.asarray(chosen.places(chosen.offset - Fraction(1, 2), chosen.n + 1), float)

    def mesh(self) -> tuple[jax.Array, ...]:
        """The coordinates of every point: an array of the grid's shape for each axis."""
        return tuple(jnp.meshgrid(*(self.coordinates(k) for k in range(self.ndim)), indexing="ij"))

    def position(self, axis: int) -> int:
        """The number of an axis, counted from 0.

        Raises:
            ValueError: there is no such axis.
        """
        if axis not in range(-self.ndim, self.ndim):
            raise ValueError(f"`axis` must be one of the grid's {self.ndim}, 0 to {self.ndim - 1}, but is {axis!r}.")
        return axis % self.ndim

    def values(self, name: str, u: Any) -> jax.Array:
        """An array whose last axes are the grid's; integers become floats of the precision in force.

        Raises:
            ValueError: the shape does not fit.
        """
        array: jax.Array = jnp.asarray(u)
        if array.shape[max(array.ndim - self.ndim, 0) :] != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise ValueError(
                f"`{name}` must have the grid's shape as its last axes, (..., {wanted}), but has the shape {array.shape}."
            )
        return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)


def _is_number(value: Any) -> bool:
    """Whether a bound is a finite number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
