"""Declared ranges: the values that a parameter may take, nominal, on an axis, in a table or drawn.

In: the config's `ranges`, the nominal values, the points of the sweep. Out: a problem for each place at which a value lies outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.axes import DISTRIBUTIONS, Array, shown
from engine.errors import PlanError, listed, nearest
from engine.references import flat, paths, repeated

if TYPE_CHECKING:
    from engine.designs import Design

FORM = "[low, high], with null for an end that is open"


def misdeclared(ranges: object, parameters: object) -> Iterator[str]:
    """Problems of the declarations themselves, seen without the sweep."""
    if not isinstance(ranges, Mapping) or not isinstance(parameters, Mapping):
        return
    known = dict(paths(parameters))
    for name in repeated(ranges, known):
        yield f"`ranges.{name}` must be given once, but stands dotted and nested. Remove one."
    for name, ends in flat(ranges, known).items():
        key = f"ranges.{name}"
        if any(isinstance(node, Mapping) and f"{name}.".startswith(f"{made}.") for made, node in known.items()):
            continue  # inside what a `_target_` makes: looked at when that is built
        if name not in known:
            yield (
                f"`{key}` must be for one of `parameters`, but there is no parameter {str(name)!r}.{nearest(str(name), known)} "
                f"There are {listed(known)}."
            )
        elif not isinstance(ends, list | tuple) or len(ends) != 2:
            yield f"`{key}` must be {FORM}, but is {shown(ends)}. Write [0, 10], say."
        else:
            yield from wrong_ends(key, ends, known[name])


def wrong_ends(key: str, ends: Any, nominal: object) -> Iterator[str]:
    """Problems of the two ends of a range."""
    try:
        value = np.asarray(nominal)
    except ValueError:
        return  # a ragged list, told of where the parameters are checked
    if value.dtype.kind not in "iuf":
        if value.dtype.kind in "bc":
            yield f"`{key}` must be for a real number, but the parameter is {shown(nominal)}. Remove the range."
        return
    problems = [problem for i, end in enumerate(ends) for problem in wrong_end(f"{key}.{i}", end, value.shape)]
    yield from problems
    if problems:
        return
    low, high = read(ends)
    if np.any(low > high):
        yield f"`{key}` must be [low, high], but its low {shown(ends[0])} is above its high {shown(ends[1])}. Swap them."
    elif ends[0] is None and ends[1] is None:
        yield f"`{key}` must bound an end, but both are null. Write a number for one of them, or remove the range."


def wrong_end(key: str, end: Any, shape: tuple[int, ...]) -> Iterator[str]:
    """What is wrong with one end of a range."""
    flat = np.ravel(np.array(end, object))
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in flat)
    if end is not None and not numbers:
        yield f"`{key}` must be a number, or null for an open end, but is {shown(end)}. Write a number."
    elif end is not None and not all(math.isfinite(x) for x in flat):
        yield f"`{key}` must be finite, but is {shown(end)}. Write null for an open end."
    elif np.shape(end) not in ((), shape):
        fits = f" or have the shape {shape}" if shape else ""
        yield (
            f"`{key}` must be a number{fits}, but has the shape {np.shape(end)}. One number bounds every element of the parameter."
        )


def read(ends: Any) -> tuple[Array, Array]:
    """Low and high as arrays; an open end is infinite."""
    low, high = ends
    return np.asarray(-np.inf if low is None else low), np.asarray(np.inf if high is None else high)


def check_ranges(
    ranges: Mapping[str, Any], parameters: Mapping[str, Any], axes: Mapping[str, Any], points: Design
) -> None:
    """Every value that a parameter takes must lie in its declared range.

    Args:
        ranges: parameter -> [low, high], as declared.
        parameters: the nominal values, by dotted name.
        axes: the axes of the sweep as they are written.
        points: its points.

    Raises:
        PlanError: with the first nominal value, and the first on each axis, in each column or draw, that lies outside.
    """
    axes = flat(axes, parameters)
    problems = [*misdeclared(ranges, parameters)]
    for name, ends in flat(ranges, parameters).items() if not problems else ():
        problems += problem(name, np.asarray(parameters[name]), ends, partial(written, f"parameters.{name}"))
        if (column := points.columns.get(name)) is not None:
            problems += problem(name, column, ends, partial(on_axis, name, axes.get(name)))
    if problems:
        raise PlanError(problems)


def problem(
    name: str, values: Array, ends: Any, say: Callable[[tuple[int, ...], object], tuple[str, str, str]]
) -> list[str]:
    """What is wrong with values of a parameter, the first that leaves its range named; nothing if none does."""
    low, high = read(ends)
    bad = (values < low) | (values > high)
    if not bad.any():
        return []
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    key, found, change = say(at, values[at].item())
    more = int(bad.sum()) - 1
    others = f", and so do{'es' * (more == 1)} {more} more value{'s' * (more > 1)}" if more else ""
    low, high = (np.broadcast_to(end, values.shape)[at].item() for end in (low, high))
    return [
        f"{key} must lie in its declared range, {in_words(low, high)} (`ranges.{name}`), but {found}{others}. "
        f"{change}, or widen the range."
    ]


def in_words(low: float, high: float) -> str:
    """A range as a sentence says it."""
    if math.isinf(low):
        return f"at most {shown(high)}"
    return f"at least {shown(low)}" if math.isinf(high) else f"from {shown(low)} to {shown(high)}"


CHANGE = "Change the value"


def written(key: str, index: tuple[int, ...], value: object) -> tuple[str, str, str]:
    """The key of a value that stands in the config, what was found there, and what to do."""
    return f"`{key}{''.join(f'[{i}]' for i in index)}`", f"is {shown(value)}", CHANGE


def on_axis(name: str, axis: object, at: tuple[int, ...], value: object) -> tuple[str, str, str]:
    """Where a swept value comes from, what was found, and what to do: an entry of a list, a row of a table, a draw, or what a
    constructor gives."""
    if isinstance(axis, list | tuple):
        return written(f"sweep.axes.{name}", at, value)
    element = f" in its element {list(at[1:])}" if len(at) > 1 else ""
    if not isinstance(axis, Mapping):
        return f"`sweep.table` column {name!r}", f"is {shown(value)} in row {at[0] + 1} after the header", CHANGE
    kind = next(iter(axis))
    drawn = kind in DISTRIBUTIONS
    verb, place = ("draws", "for sample") if drawn else ("holds", "at position")
    change = "Narrow the distribution" if drawn else CHANGE
    return f"`sweep.axes.{name}.{kind}`", f"{verb} {shown(value)} {place} {at[0]}{element}", change
