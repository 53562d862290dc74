"""JAX's primitives as NumPy computes them, with the samples as leading axis.

In: an equation and its operands. Out: its result, exactly as JAX computes it where that does not overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.axes import Array

Rule = Callable[[Any, list[Array]], Any]
"""Equation and operands -> result, all with the samples as leading axis, which is 1 long where they do not matter."""


def align(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """A NumPy function of operands; scalars are aligned with the leading axis."""
    rank = max(np.ndim(o) for o in operands)
    return function(*(np.reshape(o, (*o.shape, *(1,) * (rank - o.ndim))) for o in operands))


def elementwise(function: Callable[..., Any]) -> Rule:
    """The rule of a primitive that NumPy has too."""
    return lambda _, operands: align(function, operands)


def along(x: Array, axes: Sequence[int], rank: int) -> Array:
    """The array with its axes, but for the leading one, at these places among `rank`."""
    shape = [1] * rank
    for axis, n in zip(axes, x.shape[1:], strict=True):
        shape[axis] = n
    return x.reshape(len(x), *shape)


def convert(eqn: Any, operands: list[Array]) -> Array:
    """`convert_element_type`. What does not fit a signed integer takes the nearest that does: an index is then out of range."""
    (x,), new = operands, np.dtype(eqn.params["new_dtype"])
    if x.dtype.kind == "f" and new.kind in "iu":
        x = np.where(np.isnan(x), 0, x)
    result = x.astype(new)
    if new.kind == "i" and x.dtype.kind in "if":
        info = np.iinfo(new)
        result = np.where(x >= info.max, info.max, np.where(x <= info.min, info.min, result)).astype(new)
    return result


def divide(a: Array, b: Array) -> Array:
    """`div`: of integers, it truncates."""
    if a.dtype.kind == "f":
        return np.true_divide(a, b)
    return np.where(b == 0, -1, (np.abs(a) // np.where(b == 0, 1, np.abs(b))) * np.sign(a) * np.sign(b))


def remainder(a: Array, b: Array) -> Array:
    """`rem`: its sign is that of the dividend."""
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b))) if a.dtype.kind != "f" else np.fmod(a, b)


def shift_right(a: Array, b: Array) -> Array:
    """`shift_right_logical`."""
    shifted = a.astype(f"u{a.dtype.itemsize}") >> within(a, b).astype(f"u{a.dtype.itemsize}")
    return np.where(b == within(a, b), shifted, 0).astype(a.dtype)


def round_half(eqn: Any, operands: list[Array]) -> Array:
    """`round`, to even or away from zero."""
    (x,) = operands
    return np.round(x) if int(eqn.params["rounding_method"]) == 1 else np.trunc(x + np.copysign(0.5, x))


def broadcast(eqn: Any, operands: list[Array]) -> Array:
    """`broadcast_in_dim`."""
    shape = eqn.params["shape"]
    (x,) = operands
    return np.broadcast_to(along(x, eqn.params["broadcast_dimensions"], len(shape)), (len(x), *shape))


def reshape(eqn: Any, operands: list[Array]) -> Array:
    """`reshape`, `squeeze` and `expand_dims`: the shape of the result is what counts."""
    return operands[0].reshape(operands[0].shape[0], *eqn.outvars[0].aval.shape)


def concatenate(eqn: Any, operands: list[Array]) -> Array:
    """`concatenate`."""
    n = max(map(len, operands))
    return np.concatenate([np.broadcast_to(x, (n, *x.shape[1:])) for x in operands], axis=eqn.params["dimension"] + 1)


def stack(eqn: Any, operands: list[Array]) -> Array:
    """`stack`."""
    n, axis = max(map(len, operands)), eqn.params["axis"] + 1
    return np.stack([np.broadcast_to(x, (n, *x.shape[1:])) for x in operands], axis)


def cut(eqn: Any, operands: list[Array]) -> Array:
    """`slice`."""
    start, stop = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(start)
    return operands[0][(slice(None), *map(slice, start, stop, strides))]


def divide_up(eqn: Any, operands: list[Array]) -> list[Array]:
    """`split`."""
    return np.split(operands[0], np.cumsum(eqn.params["sizes"])[:-1], axis=eqn.params["axis"] + 1)


def unstack(eqn: Any, operands: list[Array]) -> list[Array]:
    """`unstack`."""
    return list(np.moveaxis(operands[0], eqn.params["axis"] + 1, 0))


def iota(eqn: Any, _: list[Array]) -> Array:
    """`iota`."""
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    return np.broadcast_to(along(np.arange(shape[axis])[None], [axis], len(shape)), (1, *shape))


def reduction(function: Callable[..., Any]) -> Rule:
    """The rule of a reduction over axes."""
    return lambda eqn, operands: function(operands[0], axis=tuple(a + 1 for a in eqn.params["axes"]))


def extreme(function: Callable[..., Any]) -> Rule:
    """The rule of `argmin` and `argmax`."""
    return lambda eqn, operands: function(operands[0], axis=eqn.params["axes"][0] + 1)


def cumulative(function: Callable[..., Any]) -> Rule:
    """The rule of a running sum or the like."""

    def apply(eqn: Any, operands: list[Array]) -> Array:
        x, axis = operands[0], eqn.params["axis"] + 1
        if not eqn.params["reverse"]:
            return np.asarray(function(x, axis=axis))
        return np.flip(function(np.flip(x, axis), axis=axis), axis)

    return apply


def product(eqn: Any, operands: list[Array]) -> Array:
    """`dot_general`."""
    (sum_a, sum_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    a, b = operands
    labels_a = [1 + axis for axis in range(a.ndim - 1)]
    labels_b = [30 + axis for axis in range(b.ndim - 1)]
    for i, j in (*zip(sum_a, sum_b, strict=True), *zip(batch_a, batch_b, strict=True)):
        labels_b[j] = labels_a[i]
    batch = [labels_a[i] for i in batch_a]
    free = [labels_a[i] for i in range(a.ndim - 1) if i not in (*sum_a, *batch_a)]
    free += [labels_b[j] for j in range(b.ndim - 1) if j not in (*sum_b, *batch_b)]
    n = max(len(a), len(b))
    a, b = (np.broadcast_to(x, (n, *x.shape[1:])) for x in (a, b))
    return np.asarray(np.einsum(a, [0, *labels_a], b, [0, *labels_b], [0, *batch, *free]))


def take_slice(eqn: Any, operands: list[Array]) -> Array:
    """`dynamic_slice`."""
    x, *starts = operands
    rank = x.ndim - 1
    where: list[Array] = [np.arange(len(x)).reshape(-1, *[1] * rank)]
    for axis, (start, size) in enumerate(zip(starts, eqn.params["slice_sizes"], strict=True)):
        first = np.clip(start, 0, x.shape[1 + axis] - size)
        where.append(along(first[:, None] + np.arange(size), [axis], rank))
    return np.asarray(x[tuple(where)])


def gather(eqn: Any, operands: list[Array]) -> Array:
    """`gather`, its indices in range."""
    x, index = operands
    numbers, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.outvars[0].aval.shape
    rank = len(shape)
    batch = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    free = [axis for axis in range(len(sizes)) if axis not in gone]
    where: list[Array] = [np.arange(len(x)).reshape(-1, *[1] * rank)]
    for axis, size in enumerate(sizes):
        at = np.zeros((1,) * (rank + 1), int)
        if axis in numbers.start_index_map:
            start = index[..., list(numbers.start_index_map).index(axis)]
            clipped = np.clip(start, 0, x.shape[1 + axis] - size)
            if "FILL" in str(eqn.params["mode"]) and np.any(clipped != start):
                raise IndexError("what is filled in is not followed")
            at = at + along(clipped, batch, rank)
        if axis in free:
            at = at + along(np.arange(size)[None], [numbers.offset_dims[free.index(axis)]], rank)
        if axis in numbers.operand_batching_dims:
            b = numbers.start_indices_batching_dims[list(numbers.operand_batching_dims).index(axis)]
            at = at + along(np.arange(index.shape[1 + b])[None], [batch[b]], rank)
        where.append(at)
    found = x[tuple(where)]
    return np.broadcast_to(found, (max(len(x), len(index)), *shape))


def within(a: Array, b: Array) -> Array:
    """A shift as it moves all bits out at the most; one that is negative does too."""
    most = 8 * a.dtype.itemsize - 1
    return np.where((b < 0) | (b > most), most, b)


ELEMENTWISE: dict[str, Rule] = {
    **{name: elementwise(getattr(np, name)) for name in ("sign", "floor", "ceil", "abs", "square", "sqrt", "cbrt")},
    **{name: elementwise(getattr(np, name)) for name in ("exp", "exp2", "log", "log2", "log1p", "expm1")},
    **{name: elementwise(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{name}": elementwise(getattr(np, f"arc{name}")) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "atan2": elementwise(np.arctan2),
    "rsqrt": elementwise(lambda x: 1 / np.sqrt(x)),
    "is_finite": elementwise(np.isfinite),
    "add": elementwise(np.add),
    "sub": elementwise(np.subtract),
    "mul": elementwise(np.multiply),
    "neg": elementwise(np.negative),
    "div": elementwise(divide),
    "rem": elementwise(remainder),
    "pow": elementwise(np.power),
    "integer_pow": lambda eqn, operands: operands[0] ** eqn.params["y"],
    "max": elementwise(np.maximum),
    "min": elementwise(np.minimum),
    "lt": elementwise(np.less),
    "le": elementwise(np.less_equal),
    "gt": elementwise(np.greater),
    "ge": elementwise(np.greater_equal),
    "eq": elementwise(np.equal),
    "ne": elementwise(np.not_equal),
    "and": elementwise(np.bitwise_and),
    "or": elementwise(np.bitwise_or),
    "xor": elementwise(np.bitwise_xor),
    "not": elementwise(np.invert),
    "shift_left": elementwise(lambda a, b: np.where(b == within(a, b), a << within(a, b), 0)),
    "shift_right_logical": elementwise(shift_right),
    "shift_right_arithmetic": elementwise(lambda a, b: a >> within(a, b)),
    "clamp": elementwise(lambda low, x, high: np.clip(x, low, high)),
    "select_n": elementwise(lambda which, *cases: np.choose(which.astype(int), cases)),
    "round": round_half,
    "convert_element_type": convert,
}

SHAPES: dict[str, Rule] = {
    "broadcast_in_dim": broadcast,
    "reshape": reshape,
    "squeeze": reshape,
    "expand_dims": reshape,
    "copy": lambda _, operands: operands[0],
    "copy_p": lambda _, operands: operands[0],
    "transpose": lambda eqn, operands: operands[0].transpose(0, *(a + 1 for a in eqn.params["permutation"])),
    "rev": lambda eqn, operands: np.flip(operands[0], tuple(a + 1 for a in eqn.params["dimensions"])),
    "slice": cut,
    "split": divide_up,
    "unstack": unstack,
    "concatenate": concatenate,
    "stack": stack,
    "tile": lambda eqn, operands: np.tile(operands[0], (1, *eqn.params["reps"])),
    "name": lambda _, operands: operands[0],
    "optimization_barrier": lambda _, operands: list(operands),
}

RULES: dict[str, Rule] = {
    **ELEMENTWISE,
    **SHAPES,
    "iota": iota,
    "reduce_sum": reduction(np.sum),
    "reduce_prod": reduction(np.prod),
    "reduce_max": reduction(np.max),
    "reduce_min": reduction(np.min),
    "reduce_and": reduction(np.bitwise_and.reduce),
    "reduce_or": reduction(np.bitwise_or.reduce),
    "argmax": extreme(np.argmax),
    "argmin": extreme(np.argmin),
    "cumsum": cumulative(np.cumsum),
    "cumprod": cumulative(np.cumprod),
    "cummax": cumulative(np.maximum.accumulate),
    "cummin": cumulative(np.minimum.accumulate),
    "dot_general": product,
    "dynamic_slice": take_slice,
    "gather": gather,
}
