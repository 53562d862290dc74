"""The losses of a sweep's samples → the one number that a robust design minimizes, and the weight of each sample in its gradient.

In: the losses of all samples in the order of the sweep, and which of them count. Out: their mean, sum, largest, quantile or expected
shortfall; always reduced in that order, whatever was computed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from engine.errors import PlanError

PLAIN = ("mean", "sum", "max")
TAILS = ("quantile", "cvar")


@dataclass(frozen=True)
class Reduction:
    """How losses become one number. Static; compares by value."""

    kind: str
    """mean, sum, max, quantile or cvar."""

    level: float = 0.0
    """Of a quantile, or of the conditional value at risk: the mean of the part 1 - level of the samples with the largest losses."""

    def __str__(self) -> str:
        return self.kind if self.kind in PLAIN else f"{self.kind}[{self.level:g}]"

    def __call__(self, losses: Any, counts: Any) -> Any:
        """Reduce losses (N,), of which those count where `counts` (N,) is true; NaN if none does.

        The conditional value at risk of a sample is that of Rockafellar and Uryasev, Journal of Banking & Finance 26 (2002), eq. 21.
        """
        number = jnp.sum(counts)
        kept = jnp.where(counts, losses, 0.0)
        if self.kind == "sum":
            return jnp.where(number > 0, jnp.sum(kept), jnp.nan)
        if self.kind == "mean":
            return jnp.sum(kept) / number
        if self.kind == "max":
            return jnp.where(number > 0, jnp.max(jnp.where(counts, losses, -jnp.inf)), jnp.nan)
        ordered = jnp.sort(jnp.where(counts, losses, jnp.inf))
        place = jnp.arange(len(losses))
        if self.kind == "quantile":
            at = self.level * (number - 1)
            weights = jnp.clip(1 - jnp.abs(place - at), 0.0, 1.0)  # NumPy's linear interpolation
        else:
            tail = (1 - self.level) * number
            weights = jnp.clip(place + 1 - (number - tail), 0.0, 1.0) / tail
        weights = jnp.where(place < number, weights, 0.0)
        return jnp.where(number > 0, jnp.sum(weights * jnp.where(jnp.isfinite(ordered), ordered, 0.0)), jnp.nan)

    def weights(self, losses: Any, counts: Any) -> Any:
        """The derivative of the reduced number by each loss, (N,)."""
        return jax.grad(self)(jnp.where(counts, losses, 0.0), counts)


def read_reduction(node: Any, over: bool) -> Reduction | None:
    """`mean`, `max`, `sum`, `{quantile: q}` or `{cvar: q}`.

    Raises:
        PlanError: it is none of these, or a level is not between 0 and 1.
    """
    allowed = "mean, max, sum, {quantile: 0.95} or {cvar: 0.95}" if over else "mean, sum or max"
    if node is None:
        return Reduction("mean") if over else None
    if isinstance(node, str) and node in PLAIN:
        return Reduction(node)
    if over and isinstance(node, dict) and len(node) == 1 and (kind := next(iter(node))) in TAILS:
        level = node[kind]
        good = isinstance(level, int | float) and not isinstance(level, bool) and 0 <= level <= 1
        if good and not (kind == "cvar" and level == 1):
            return Reduction(kind, float(level))
        raise PlanError(
            f"`optimize.reduce.{kind}` must be a level from 0 to {'1' if kind == 'quantile' else 'below 1'}, but is {level!r}. "
            "Write 0.95, for instance."
        )
    more = "" if over else " What reduces over samples needs `over: sweep`."
    raise PlanError(f"`optimize.reduce` must be {allowed}, but is {node!r}.{more}")
