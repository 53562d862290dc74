"""Blocks of results → which variables are not finite, or too large, in how many samples, and where first.

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

    beyond: float | None = None
    """The output's `max_abs`, of samples in which it is finite but larger."""

    def __str__(self) -> str:
        stages = f" through {' and '.join(self.through)}" if self.through else ""
        what = f", the derivative of {self.of} by {' and '.join(self.by)}{stages}," if self.of else ""
        count = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        at = ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.parameters.items())
        wrong = "not finite" if self.beyond is None else f"beyond its max_abs of {self.beyond:g}"
        return f"{self.variable}{what} is {wrong} in {count}, first sample {self.first}" + (f" ({at})" if at else "")


class Tally:
    """The count of a run, and of earlier ones of the same store."""

    def __init__(
        self, plan: Plan, shared: Mapping[str, np.ndarray[Any, Any]], before: Iterable[Mapping[str, Any]] = ()
    ):
        self.plan = plan
        self.lengths = {leaf.name: leaf.length for leaf in plan.draft.outputs if leaf.length}
        self.limits = {leaf.name: leaf.max_abs for leaf in plan.draft.outputs if leaf.max_abs is not None}
        self.given = {name: value[None] for name, value in shared.items()}
        self.shared = [(name, flag) for name in shared for flag, bad in self.wrong(name, self.given).items() if bad[0]]
        """Outputs that are the same for all samples, and not finite, or too large."""

        self.found: dict[tuple[str, bool], tuple[int, int]] = {}
        """Variable, and whether it is too large rather than not finite -> samples, and the first."""

        self.keep(before)

    def keep(self, before: Iterable[Mapping[str, Any]]) -> None:
        """Count at least what was counted before."""
        for item in before:
            samples, first = int(item["samples"]), int(item["first"])
            key = item["variable"], item.get("beyond") is not None
            now, at = self.found.get(key, (samples, first))
            self.found[key] = max(now, samples), min(at, first)

    def add(self, samples: np.ndarray[Any, Any], outputs: Mapping[str, np.ndarray[Any, Any]], status: Any) -> bool:
        """Count a block; whether anything was found."""
        rows = np.flatnonzero(np.asarray(status) == STATUS["nonfinite"])
        if not len(rows):
            return False
        for key in self.shared:
            self.count(key, samples[rows])
        for name in outputs:
            for flag, bad in self.wrong(name, outputs).items():
                self.count((name, flag), samples[rows][bad[rows]])
        return True

    def wrong(self, name: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[bool, np.ndarray[Any, Any]]:
        """Which rows of a variable are not finite (False), and which of the others are too large (True), but for padding."""
        array = outputs[name]
        if name in self.lengths:
            length = {**self.given, **outputs}[self.lengths[name]]
            padding = np.arange(array.shape[1]) >= length[:, None]
            array = np.where(padding.reshape(*padding.shape, *(1,) * (array.ndim - 2)), 0, array)
        bad = {False: ~finite(array)}
        if (limit := self.limits.get(name)) is not None:
            bad[True] = finite(array) & (np.abs(array).reshape(len(array), -1) > limit).any(axis=1)
        return bad

    def count(self, key: tuple[str, bool], samples: np.ndarray[Any, Any]) -> None:
        """Samples in which a variable is not finite, or too large."""
        if len(samples):
            before, first = self.found.get(key, (0, int(samples[0])))
            self.found[key] = before + len(samples), min(first, int(samples.min()))

    def entries(self) -> list[dict[str, Any]]:
        """What a store records, in the order of its variables."""
        asked = derivatives(self.plan.draft)
        keys = [(v.name, flag) for v in self.plan.variables for flag in (False, True) if (v.name, flag) in self.found]
        return [asdict(self.entry(key, *asked.get(key[0], (None, (), ())))) for key in keys]

    def entry(self, key: tuple[str, bool], of: str | None, by: tuple[str, ...], through: tuple[str, ...]) -> NonFinite:
        """One variable."""
        samples, first = self.found[key]
        limit = self.limits.get(key[0]) if key[1] else None
        return NonFinite(key[0], of, by, samples, first, self.plan.draft.design.point(first), through, limit)


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
