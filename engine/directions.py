"""A direction in the space of the variables that data do not determine → a sentence.

In: changes of the variables that together have no effect. Out: "k1 and k2 cannot be told apart by these data: only their product is
determined."
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.axes import Array

TAKES_PART = 0.02
"""A variable takes part in a direction from this part of the greatest relative change on."""

ALIKE = 0.02
"""Changes count as equal within this part."""


@dataclass(frozen=True, eq=False)
class Direction:
    """Changes of the variables that go together."""

    size: float
    """Effect on the residuals, as a part of the greatest of any direction."""

    change: Array
    """(n,) in the variables' units, up to a common factor."""


def simplest(directions: Sequence[Direction], values: Array) -> list[Direction]:
    """Directions of no effect, combined so that each changes as few variables as can be.

    Any basis of the space that they span is as good to the data; Gauss-Jordan elimination, with pivots on the greatest relative changes,
    gives one that does not depend on rounding and is short to tell.
    """
    if not directions:
        return []
    unit = np.where(values == 0, 1.0, np.abs(values))
    rows = np.stack([direction.change / unit for direction in directions])
    for i in range(len(rows)):
        rows /= np.abs(rows).max(axis=1, keepdims=True)
        at, column = np.unravel_index(np.argmax(np.abs(rows[i:])), rows[i:].shape)
        rows[[i, i + int(at)]] = rows[[i + int(at), i]]
        rows[i] /= rows[i, column]
        others = np.arange(len(rows)) != i
        rows[others] -= np.outer(rows[others, column], rows[i])
    return [Direction(direction.size, row * unit) for direction, row in zip(directions, rows, strict=True)]


def in_words(direction: Direction, names: Sequence[str], values: Array, *, none: bool) -> str:
    """A sentence on a direction of no effect, or of a small one.

    Args:
        direction: what goes together.
        names: of the n variables.
        values: (n,) at which this holds.
        none: no effect at all, to rounding.
    """
    relative = direction.change / np.where(values == 0, 1.0, np.abs(values))
    order = [int(i) for i in np.argsort(-np.abs(relative), kind="stable")]
    members = [i for i in order if abs(relative[i]) > TAKES_PART * abs(relative[order[0]])]
    if len(members) == 1:
        name = names[members[0]]
        return (
            f"{name} has no effect on what was measured: these data say nothing of it. Fix it, or measure something else."
            if none
            else f"{name} has hardly any effect on what was measured: these data determine it badly."
        )
    members.sort()
    together = " and ".join([", ".join(names[i] for i in members[:-1]), names[members[-1]]])
    known = only(direction.change[members], values[members], [names[i] for i in members])
    if none:
        return f"{together} cannot be told apart by these data: {known} Fix one of them, or measure something else."
    return f"{together} can hardly be told apart by these data: {known.replace('only', 'little but')}"


def only(change: Array, values: Array, names: Sequence[str]) -> str:
    """What the data determine although the variables change together."""
    kept = kept_by(change, values) if len(change) == 2 else ""
    if kept:
        return f"only their {kept} is determined."
    first = int(np.argmax(np.abs(change / np.where(values == 0, 1.0, values))))
    units = [
        f"{percent(d, x, change[first], values[first])} of {name}"
        for d, x, name in zip(change, values, names, strict=True)
    ]
    return f"only what stays the same under {', '.join(units)} together is determined."


def kept_by(change: Array, values: Array) -> str:
    """What two changes leave as it is, to first order: a product, a quotient, a sum, a difference, or nothing of these."""
    (da, db), (a, b) = change, values
    found = []
    if a != 0 and b != 0:
        found += ["product"] if alike(da / a, -db / b) else ["quotient"] if alike(da / a, db / b) else []
    found += ["sum"] if alike(da, -db) else ["difference"] if alike(da, db) else []
    return " (or, here the same, their ".join(found) + (")" if len(found) > 1 else "")


def alike(p: float, q: float) -> bool:
    """Whether two changes are equal, as far as it matters to a sentence."""
    return abs(p - q) <= ALIKE * max(abs(p), abs(q))


def percent(change: float, value: float, first: float, at: float) -> str:
    """A change beside one of +1 % of the variable that changes most, or in its unit where it is 0."""
    by = 0.01 * at / first if at != 0 else 1 / first
    return f"{100 * change * by / value:+.3g} %" if value != 0 else f"{change * by:+.3g}"
