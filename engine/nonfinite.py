"""Blocks of results → which variables are not finite, in how many samples, and where first.

In: each block as computed, before the store masks what failed. Out: a `NonFinite` for each such variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from engine.draft import Draft
from engine.plan import Plan
from engine.status import STATUS


@dataclass(frozen=True)
class NonFinite:
    """A variable that is not finite in some samples."""

    variable: str
    of: str | None
    """For a derivative: the output that it is of."""

    by: tuple[str, ...]
    """For a derivative: the parameters."""

    samples: int
    """In how many samples, of those whose status is nonfinite."""

    first: int
    """The first of them."""

    parameters: dict[str, Any]
    """What the first is at."""

    through: tuple[str, ...] = ()
    """For a derivative: the stages between the parameters and the output."""

    def __str__(self) -> str:
        stages = f" through {' and '.join(self.through)}" if self.through else ""
        what = f", the derivative of {self.of} by {' and '.join(self.by)}{stages}," if self.of else ""
        count = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        at = ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.parameters.items())
        return f"{self.variable}{what} is not finite in {count}, first sample {self.first}" + (f" ({at})" if at else "")


class Tally:
    """The count of a run, and of earlier ones of the same store."""

    def __init__(
        self, plan: Plan, shared: Mapping[str, np.ndarray[Any, Any]], before: Iterable[Mapping[str, Any]] = ()
    ):
        self.plan = plan
        self.lengths = {leaf.name: leaf.length for leaf in plan.draft.outputs if leaf.length}
        self.given = {name: value[None] for name, value in shared.items()}
        self.shared = [name for name in shared if not self.whole(name, self.given).all()]
        """Outputs that are the same for all samples, and not finite."""

        self.found: dict[str, tuple[int, int]] = {}
        """Variable -> samples, and the first."""

        self.keep(before)

    def keep(self, before: Iterable[Mapping[str, Any]]) -> None:
        """Count at least what was counted before."""
        for item in before:
            samples, first = int(item["samples"]), int(item["first"])
            now, at = self.found.get(item["variable"], (samples, first))
            self.found[item["variable"]] = max(now, samples), min(at, first)

    def add(self, samples: np.ndarray[Any, Any], outputs: Mapping[str, np.ndarray[Any, Any]], status: Any) -> bool:
        """Count a block; whether anything was found."""
        rows = np.flatnonzero(np.asarray(status) == STATUS["nonfinite"])
        if not len(rows):
            return False
        for name in self.shared:
            self.count(name, samples[rows])
        for name in outputs:
            self.count(name, samples[rows][~self.whole(name, outputs)[rows]])
        return True

    def whole(self, name: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Whether an output is finite in each row, but for padding."""
        array = outputs[name]
        if name not in self.lengths:
            return finite(array)
        length = {**self.given, **outputs}[self.lengths[name]]
        padding = np.arange(array.shape[1]) >= length[:, None]
        return finite(np.where(padding.reshape(*padding.shape, *(1,) * (array.ndim - 2)), 0, array))

    def count(self, name: str, samples: np.ndarray[Any, Any]) -> None:
        """Samples in which a variable is not finite."""
        if len(samples):
            before, first = self.found.get(name, (0, int(samples[0])))
            self.found[name] = before + len(samples), min(first, int(samples.min()))

    def entries(self) -> list[dict[str, Any]]:
        """What a store records, in the order of its variables."""
        asked = derivatives(self.plan.draft)
        names = [v.name for v in self.plan.variables if v.name in self.found]
        return [asdict(self.entry(name, *asked.get(name, (None, (), ())))) for name in names]

    def entry(self, name: str, of: str | None, by: tuple[str, ...], through: tuple[str, ...]) -> NonFinite:
        """One variable."""
        samples, first = self.found[name]
        return NonFinite(name, of, by, samples, first, self.plan.draft.design.point(first), through)


def finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whether each row is finite."""
    if array.dtype.kind in "biu?":
        return np.full(len(array), True)
    return np.asarray(np.isfinite(array).reshape(len(array), -1).all(axis=1))


def derivatives(draft: Draft) -> dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Of each variable that is a derivative: the output, the parameters, and the stages between them."""
    found = {}
    pipeline = draft.pipeline
    for request in draft.requests:
        for by in product(request.wrt, repeat={"jvp": 0, "hessian": 2}.get(request.kind, 1)):
            moved = by or request.wrt
            between = pipeline.upstream({request.of.reference.root}) & pipeline.downstream(set(moved), with_key=False)
            through = tuple(name for name in pipeline.names if name in between)
            found[".".join((request.name, *by))] = request.of.name, moved, through
    return found


def read_entries(entries: Iterable[Mapping[str, Any]], most: int) -> list[NonFinite]:
    """What a store recorded; none of it counts more than the `most` samples whose status is nonfinite."""
    return [
        NonFinite(
            **{
                **item,
                "by": tuple(item["by"]),
                "through": tuple(item.get("through", ())),
                "samples": min(int(item["samples"]), most),
            }
        )
        for item in entries
        if most
    ]
