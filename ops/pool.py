"""A pool of lanes that takes samples from a queue: a lane that is done takes the next one, and none waits for another.

In: the rules of a solve, and operands with the samples as their first axis. Out: what is known of each sample at its end. The state lies
lanes last, and between two looks at the queue there are only arithmetic and selections.

Source: D. Nagy, L. Plavecz, F. Hegedus, Commun. Nonlinear Sci. 112 (2022) 106521, for asynchronous lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ops.lanes import RUNNING, SAVE, at_rest, levels, levels_of, primal, tree_map

LANES, EVERY, NUMBERS = 64, 32, 1280
"""Lanes of a pool at most, the steps between two looks at the queue, and the numbers of all lanes: with their stages they should stay in
the nearest cache."""


FEWEST = 4
"""Lanes of a pool, and steps between two looks, however large the state is."""


WAVE = 65536
"""Lanes of a pool on a GPU or TPU, which has no use for few."""


REST = 8
"""When the queue is empty and so many lanes are left, they go on by themselves."""


VECTOR = 8
"""Lanes come in multiples of it: the numbers of the widest vector."""


def drive(
    rules: Any, operands: Sequence[Any], flags: Sequence[bool], count: int, wanted: Sequence[int]
) -> tuple[list[Any], Any]:
    """Solve `count` samples.

    Args:
        rules: a `Lane`, or its `Tangents`.
        operands: arrays; those with a flag have the samples as their first axis.
        flags: which those are.
        count: the number of samples.
        wanted: the places of the leaves of an outcome that are asked for.

    Returns:
        The leaves of an outcome with the samples as the first axis of each, None for what is not wanted; then what was saved, if
        the rules save.
    """
    kinds = rules.kinds
    wide = [flag or lies for flag, lies in zip(flags, rules.wide, strict=True)]
    depth = [len(axes) for axes in levels(rules)]
    saves = [i for i, kind in enumerate(kinds) if kind == SAVE]
    common = [
        x[0] if i in saves and flags[i] else x for i, x in enumerate(operands)
    ]  # no step looks at times of saving

    def load(index: Any) -> list[Any]:
        """The operands of some samples, lanes last; of the times of saving, any."""
        at = jnp.minimum(index, count - 1)

        def one(i: int) -> Any:
            if i in saves:
                return common[i]
            if flags[i]:
                return jnp.moveaxis(operands[i][at], 0, -1)
            if wide[i]:
                return jnp.broadcast_to(operands[i][..., None], (*operands[i].shape, index.shape[0]))
            return operands[i]

        return [one(i) for i in range(len(operands))]

    one = jax.eval_shape(lambda o: rules.start(o, wide), jax.eval_shape(load, jnp.zeros(1, int)))
    lanes, every = _width(sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(one)), count)
    nobody = jnp.full(lanes, count)
    held = jax.eval_shape(load, nobody)
    lying = [i for i in range(len(operands)) if wide[i] and i not in saves]
    carried = [i for i in lying if rules.kept[i]]
    blank: Callable[..., Any] = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731

    def full(values: Sequence[Any], width: int = lanes) -> list[Any]:
        """The operands of the lanes; of those that no step needs, none that mean anything."""
        every_one = [
            jnp.zeros((*held[i].shape[:-1], width), held[i].dtype) if i in lying else x for i, x in enumerate(common)
        ]
        for i, value in zip(carried, values, strict=True):
            every_one[i] = value
        return every_one

    number = 0 if not saves else int(operands[saves[0]].shape[-1])

    def times_of(index: Any, saved: Any, operand: Sequence[Any]) -> tuple[list[Any], Any]:
        """The next time of saving of each lane, with its tangents, and the one after it, in the direction of integration."""
        if not number:
            return [], None
        sign = jnp.where(operand[1] < operand[0], -1, 1).astype(operand[0].dtype)
        sample = jnp.minimum(index, count - 1)

        def at(i: int, place: Any) -> Any:
            place = jnp.minimum(place, number - 1)
            if not flags[i]:
                return sign * operands[i][..., place]
            return sign * (
                jnp.moveaxis(operands[i], 0, -1)[..., place, sample] if depth[i] else operands[i][sample, place]
            )

        first = [jnp.where(saved < number, at(i, saved), jnp.inf if not depth[i] else 0) for i in saves]
        return first, jnp.where(saved + 1 < number, at(saves[0], saved + 1), jnp.inf)

    state, outcome = jax.eval_shape(lambda o: (rules.start(o, wide), rules.outcome(rules.start(o, wide), o)), held)
    table = Table(outcome, wanted)
    kept: Any = None
    if number:
        value = jax.eval_shape(lambda s, o: rules.advance(s, o, wide, *times_of(nobody, nobody, o))[1], state, held)
        leaves, structure = jax.tree_util.tree_flatten(value)
        kept = jax.tree_util.tree_unflatten(
            structure,
            [
                jnp.full((count, number, *leaf.shape[:-1]), 0 if axes else _blank(leaf.dtype), leaf.dtype)
                for leaf, axes in zip(leaves, levels_of(rules, value), strict=True)
            ],
        )

    def rows_of(state: Any, values: Any) -> Any:
        return table.rows(rules.outcome(state, full(values, primal(rules, state).phase.shape[0])))

    def refill(carry: Any) -> Any:
        """Write the results of the lanes that are done, and give each the next sample."""
        done, state, values, index, out, saved, head, _ = carry
        target = jnp.where(done, index, count)
        out = tree_map(lambda o, v: o.at[target].set(v), out, rows_of(state, values))
        before = _sums(done)
        index = jnp.where(done, jnp.minimum(head + before - 1, count), index)
        new = load(index)
        begun = rules.start(new, wide)
        state = tree_map(lambda a, b: jnp.where(done, a, b), begun, state)
        values = [jnp.where(done, new[i], old) for i, old in zip(carried, values, strict=True)]
        saved = jnp.where(done, 0, saved) if number else saved
        return state, values, index, out, saved, head + before[-1], jnp.any(index < count)

    def attempt(carry: Any, _: Any) -> Any:
        state, values, index, saved = carry
        operand = full(values, index.shape[0])
        state, value = rules.advance(state, operand, wide, *times_of(index, saved, operand))
        if value is None:
            return (state, values, index, saved), None
        due = primal(rules, state).due
        return (state, values, index, saved + due), (value, jnp.where(due, saved, number), due)

    def attempts(parts: Any, kept: Any) -> Any:
        """Some attempts of every lane; what they pass is saved."""

        def some(parts: Any) -> Any:
            return lax.scan(attempt, parts, None, length=every)

        if rules.sparse:
            rows = tree_map(blank, jax.eval_shape(some, parts)[1])
            busy = jnp.any(primal(rules, parts[0]).phase == RUNNING)
            parts, rows = lax.cond(busy, some, lambda parts: (parts, rows), parts)
        else:
            parts, rows = some(parts)
        if number:
            value, place, due = rows
            target = jnp.where(due, parts[2], count)
            kept = tree_map(lambda o, v: o.at[target, place].set(jnp.moveaxis(v, -1, 1), mode="drop"), kept, value)
        return parts, kept

    rest = REST if lanes >= 4 * REST and count > lanes else 0

    def body(carry: Any) -> Any:
        state, values, index, out, saved, kept, head, busy = carry
        done = primal(rules, state).phase != RUNNING
        parts = done, state, values, index, out, saved, head, busy
        due = jnp.any(done & (index < count)) | (head == 0)
        state, values, index, out, saved, head, busy = lax.cond(due, refill, lambda c: c[1:], parts)
        (state, values, index, saved), kept = attempts((state, values, index, saved), kept)
        if rest:
            left = jnp.sum((primal(rules, state).phase == RUNNING) & (index < count))
            busy = (head < count) | (left > rest)
        return state, values, index, out, saved, kept, head, busy

    idle = at_rest(rules, tree_map(blank, state))
    none = jnp.zeros((), nobody.dtype)
    saved = jnp.zeros_like(nobody) if number else None
    carry = (idle, [blank(held[i]) for i in carried], nobody, table.empty(count), saved, kept, none, none == 0)
    state, values, index, out, saved, kept, *_ = lax.while_loop(lambda c: c[-1], body, carry)
    if rest:  # the lanes that are left take narrow steps; at the end all rows are written at once
        running = (primal(rules, state).phase == RUNNING) & (index < count)
        _, chosen = lax.top_k(running, rest)
        last = tree_map(lambda leaf: leaf[..., chosen], (state, values, jnp.where(running, index, count), saved))
        last, kept = lax.while_loop(
            lambda c: jnp.any((primal(rules, c[0][0]).phase == RUNNING) & (c[0][2] < count)),
            lambda c: attempts(*c),
            (last, kept),
        )
        target = jnp.concatenate([jnp.where(running, count, index), last[2]])
        rows = tree_map(lambda *parts: jnp.concatenate(parts), rows_of(state, values), rows_of(*last[:2]))
        out = tree_map(lambda o, v: o.at[target].set(v), out, rows)
    found = table.read(out, count)
    if number:
        leaves, structure = jax.tree_util.tree_flatten(kept)
        axes = levels_of(rules, kept)
        leaves = [jnp.moveaxis(leaf, 1, 1 + len(a)) for leaf, a in zip(leaves, axes, strict=True)]
        kept = jax.tree_util.tree_unflatten(structure, leaves)
    return found, kept


class Table:
    """The results of samples as rows, one array for each kind of number: one write instead of many."""

    def __init__(self, outcome: Any, wanted: Sequence[int]):
        self.all = jax.tree_util.tree_leaves(outcome)
        self.leaves = {place: leaf for place, leaf in enumerate(self.all) if place in wanted}

    @staticmethod
    def _kind(leaf: Any) -> str:
        return str(leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else "int32"

    @property
    def kinds(self) -> list[str]:
        """The dtypes of the arrays."""
        return sorted({self._kind(leaf) for leaf in self.leaves.values()})

    def _of(self, kind: str) -> list[int]:
        return [place for place, leaf in self.leaves.items() if self._kind(leaf) == kind]

    def _size(self, place: int) -> int:
        return math.prod(self.leaves[place].shape[:-1])

    def empty(self, count: int) -> dict[str, Any]:
        """Arrays for so many samples, and one row more that nobody reads."""
        return {kind: jnp.zeros((count + 1, sum(map(self._size, self._of(kind)))), kind) for kind in self.kinds}

    def rows(self, outcome: Any) -> dict[str, Any]:
        """The rows of lanes."""
        leaves = jax.tree_util.tree_leaves(outcome)
        lanes = leaves[0].shape[-1]
        parts = {k: [leaves[i].reshape(self._size(i), lanes).astype(k) for i in self._of(k)] for k in self.kinds}
        return {kind: jnp.concatenate(part).T for kind, part in parts.items()}

    def read(self, arrays: dict[str, Any], count: int) -> list[Any]:
        """The results of `count` samples, the samples first."""
        found: list[Any] = [None] * len(self.all)
        for kind in self.kinds:
            begin = 0
            for i in self._of(kind):
                leaf, end = self.leaves[i], begin + self._size(i)
                found[i] = arrays[kind][:count, begin:end].reshape(count, *leaf.shape[:-1]).astype(leaf.dtype)
                begin = end
        return found


def _sums(done: Any) -> Any:
    """How many lanes up to each are done; for few lanes without a scan, which is several kernels."""
    lanes = done.shape[0]
    if lanes > 512:
        return jnp.cumsum(done)
    upto = np.tri(lanes, dtype=bool)
    return jnp.sum(upto & done, axis=1)


def _width(numbers: int, count: int) -> tuple[int, int]:
    """The lanes of a pool of `count` samples whose state is so many numbers, and the attempts between two looks at the queue."""
    if count == 1:
        return 1, 1
    if jax.default_backend() != "cpu":
        return rounded(min(WAVE, count)), EVERY
    lanes = max(FEWEST, min(LANES, 2 ** int(math.log2(max(NUMBERS / numbers, 1)))))
    return (lanes if lanes < VECTOR else rounded(min(lanes, count))), min(EVERY, lanes)


def rounded(lanes: int) -> int:
    """Lanes that fill vectors, so that no number is computed by other instructions than its neighbours."""
    return lanes if lanes == 1 else -(-lanes // VECTOR) * VECTOR


def _blank(dtype: Any) -> Any:
    """What stands where nothing has been saved."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0
