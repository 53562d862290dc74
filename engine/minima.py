"""Results of many searches → the distinct minima, and which search is the best of each design point.

In: what the searches of a store found. Out: minima in order of their objective, each with the searches that ended there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.status import OPTIMIZE_STATUS

Array = np.ndarray[Any, Any]
NEAR = 1e-3
"""Relative distance of scaled variables within which two searches found the same minimum."""

ALIKE = 1e-5
"""Relative difference of objectives below which the tolerance of a constraint may decide."""

OK, INFEASIBLE = OPTIMIZE_STATUS["ok"], OPTIMIZE_STATUS["infeasible"]


@dataclass(frozen=True)
class Minimum:
    """A point at which searches converged."""

    objective: float
    variables: dict[str, Any]
    searches: int
    """How many converged to it."""

    first: int
    """The start of the best of them."""


def ranked(objective: Array, status: Array, infeasibility: Array, sign: float) -> Array:
    """The searches of a design point from the best to the worst: converged ones, then feasible ones, then the least infeasible."""
    value = np.where(np.isfinite(objective), sign * objective, np.inf)
    group = np.where(status == OK, 0, np.where(status == INFEASIBLE, 2, 1))
    group = np.where(np.isfinite(objective), group, 3)
    kept = np.nan_to_num(infeasibility, nan=np.inf)
    violated = np.where(group == 2, kept, 0.0)
    if (
        group == 0
    ).any():  # a point that violates a constraint within its tolerance looks better than one that keeps it
        least = value[group == 0].min()
        alike = (group == 0) & (value <= least + ALIKE * abs(least))
        violated = np.where(alike, kept - 1.0, violated)
    return np.lexsort((value, violated, group))


def best_of(objective: Array, status: Array, infeasibility: Array, sign: float) -> Array:
    """The index of the best start of each design point, along the last axis; -1 if no start has a finite objective."""
    lead = objective.shape[:-1]
    found = np.full(lead, -1, np.int64)
    for place in np.ndindex(*lead):
        first = int(ranked(objective[place], status[place], infeasibility[place], sign)[0])
        found[place] = first if np.isfinite(objective[place][first]) else -1
    return found


def distinct(
    z: Array, objective: Array, status: Array, variables: Sequence[Mapping[str, Any]], sign: float
) -> list[Minimum]:
    """The minima that searches converged to, the best first.

    Args:
        z: scaled variables of the searches, (searches, n).
        objective: in its own units, (searches,).
        status: (searches,).
        variables: of each search, in their own units.
        sign: -1 where the objective is maximized.
    """
    order = [int(i) for i in np.argsort(sign * objective, kind="stable") if status[i] == OK]
    heads: list[tuple[int, int]] = []
    for i in order:
        for place, (head, count) in enumerate(heads):
            if np.max(np.abs(z[i] - z[head]) / np.maximum(1.0, np.abs(z[head])), initial=0) <= NEAR:
                heads[place] = (head, count + 1)
                break
        else:
            heads.append((i, 1))
    return [Minimum(float(objective[head]), dict(variables[head]), count, head) for head, count in heads]
