"""Sweep shape ⇄ blocks: what one task computes and writes.

In: the sweep's shape and the most samples that a task may hold. Out: equal blocks, each a hyperrectangle of the sweep that one
task writes whole, so that no two tasks ever touch the same stored chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Blocks:
    """The sweep cut into blocks that cover every sample exactly once. Static; hashes by value."""

    shape: tuple[int, ...]
    """Samples along each sweep dimension, in the order of the dimensions; `()` for a single evaluation."""

    block: tuple[int, ...]
    """Samples of one block along each dimension; the last block of a dimension may be ragged."""

    @property
    def samples(self) -> int:
        """Samples in the whole sweep."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Samples in a full block: the constant batch size of the compiled program."""
        return math.prod(self.block)

    @property
    def counts(self) -> tuple[int, ...]:
        """Blocks along each dimension."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.block, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def region(self, number: int) -> tuple[slice, ...]:
        """Where block `number` lies in the sweep: one slice for each dimension."""
        corner = np.unravel_index(number, self.counts) if self.counts else ()
        return tuple(
            slice(int(i) * b, min(int(i) * b + b, n)) for i, b, n in zip(corner, self.block, self.shape, strict=True)
        )

    def samples_of(self, number: int) -> np.ndarray:
        """Global flat indices (int64, C order) of the samples of block `number`, in the order of its region."""
        if not self.shape:
            return np.zeros(1, np.int64)
        axes = [np.arange(s.start, s.stop, dtype=np.int64) for s in self.region(number)]
        return np.ravel_multi_index(np.ix_(*axes), self.shape).ravel().astype(np.int64)


def cut(shape: tuple[int, ...], limit: int) -> Blocks:
    """Cut a sweep of `shape` into blocks of at most `limit` samples (at least 1).

    Trailing dimensions are kept whole as long as they fit, so that a block is a run of samples in C order.
    """
    block: list[int] = []
    room = max(1, limit)
    for n in reversed(shape):
        block.append(min(n, room))
        room //= block[-1] if block[-1] == n else room + 1
        room = max(1, room)
    return Blocks(tuple(shape), tuple(reversed(block)))
