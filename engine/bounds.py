"""Integer parameters used as indices, checked against the arrays that they index, before anything runs.

JAX clamps an index that is out of range and goes on with a wrong number. The values that an integer parameter takes are known
before the run, so the index arithmetic between it and a gather is followed exactly, for all of its values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from engine.designs import Design
from engine.jaxprs import called, is_literal, opened

MOST_VALUES = 100_000
"""Distinct values of a parameter up to which they are followed."""

Known = dict[Any, np.ndarray[Any, Any]]
"""Variable of a jaxpr -> its value for each value of the parameter, along the leading axis."""


def out_of_range(jaxpr: Any, nominal: Mapping[str, np.ndarray[Any, Any]], points: Design) -> list[str]:
    """A problem for each integer parameter that indexes past the end of an array."""
    problems = []
    for position, name in enumerate(sorted(nominal)):
        if nominal[name].dtype.kind not in "iu" or nominal[name].ndim:
            continue
        column = np.unique(points.columns.get(name, np.atleast_1d(nominal[name])))
        if len(column) > MOST_VALUES:
            continue
        key = f"sweep.axes.{name}" if name in points.columns else f"parameters.{name}"
        inner = opened(jaxpr)
        known: Known = {inner.invars[position]: column.astype(np.int64)}
        for eqn, index, last in gathers(inner, known):
            rows = (index < 0) | (index > last)
            bad = column[rows.reshape(len(column), -1).any(axis=1)]
            if len(bad):
                size = last + 1
                problems.append(
                    f"`{key}` must index an array of {size} (0 to {last}, or -{size} to -1), but is {bad[0]}: "
                    f"JAX would clamp it and go on with a wrong value{where(eqn)}. "
                    "Remove that value, or write jnp.clip in the stage if clamping is meant."
                )
                break
    return problems


def gathers(jaxpr: Any, known: Known) -> Iterator[tuple[Any, np.ndarray[Any, Any], int]]:
    """Every look-up whose index is known: the equation, the index for each value, and the last valid index."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        operands = [value_of(v, known) for v in eqn.invars]
        if name == "gather" and operands[1] is not None:
            numbers, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.invars[0].aval.shape
            for j, axis in enumerate(numbers.start_index_map):
                yield eqn, operands[1][..., j], shape[axis] - sizes[axis]
        elif name == "dynamic_slice":
            sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
            for start, size, length in zip(operands[1:], sizes, shape, strict=False):
                if start is not None:
                    yield eqn, start, length - size
        elif (inner := called(eqn)) is not None:
            inside = {v: value for v, value in zip(inner.invars, operands, strict=True) if value is not None}
            yield from gathers(inner, inside)
            for out, v in zip(eqn.outvars, inner.outvars, strict=True):
                if (value := value_of(v, inside)) is not None:
                    known[out] = value
        elif name in ARITHMETIC and all(value is not None for value in operands):
            known[eqn.outvars[0]] = ARITHMETIC[name](eqn, operands)


def value_of(atom: Any, known: Known) -> np.ndarray[Any, Any] | None:
    """The values of an operand, with a leading axis; None if they are not known."""
    if is_literal(atom):
        return np.asarray(atom.val)[None] if np.ndim(atom.val) == 0 else None
    return known.get(atom)


def elementwise(function: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    """A NumPy function of known operands; scalars are aligned with the leading axis."""

    def apply(_: Any, operands: list[Any]) -> Any:
        rank = max(np.ndim(o) for o in operands)
        return function(*(np.reshape(o, (*o.shape, *(1,) * (rank - o.ndim))) for o in operands))

    return apply


def broadcast(eqn: Any, operands: list[Any]) -> Any:
    """`broadcast_in_dim` of a known operand."""
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    (x,) = operands
    full = [1] * len(shape)
    for axis, n in zip(axes, x.shape[1:], strict=True):
        full[axis] = n
    return np.broadcast_to(x.reshape(x.shape[0], *full), (x.shape[0], *shape))


def reshape(eqn: Any, operands: list[Any]) -> Any:
    """`reshape`, `squeeze` and `expand_dims`: the shape of the result is what counts."""
    return operands[0].reshape(operands[0].shape[0], *eqn.outvars[0].aval.shape)


ARITHMETIC: dict[str, Callable[[Any, list[Any]], Any]] = {
    "add": elementwise(np.add),
    "sub": elementwise(np.subtract),
    "mul": elementwise(np.multiply),
    "neg": elementwise(np.negative),
    "max": elementwise(np.maximum),
    "min": elementwise(np.minimum),
    "lt": elementwise(np.less),
    "le": elementwise(np.less_equal),
    "gt": elementwise(np.greater),
    "ge": elementwise(np.greater_equal),
    "eq": elementwise(np.equal),
    "ne": elementwise(np.not_equal),
    "clamp": elementwise(lambda low, x, high: np.clip(x, low, high)),
    "select_n": elementwise(lambda which, *cases: np.choose(which.astype(int), cases)),
    "convert_element_type": lambda eqn, operands: operands[0].astype(eqn.params["new_dtype"]),
    "broadcast_in_dim": broadcast,
    "reshape": reshape,
    "squeeze": reshape,
    "copy": lambda _, operands: operands[0],
}


def where(eqn: Any) -> str:
    """The user's line of an equation, ` (model.py:12)`, as far as JAX kept it."""
    traceback = getattr(eqn.source_info, "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        file = frame.file_name
        if not any(part in file for part in ("site-packages", "/engine/", "<frozen", "/lib/python")):
            return f" ({file.rpartition('/')[2]}:{frame.line_num})"
    return ""
