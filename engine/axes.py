"""An axis or an argument as written in YAML → numbers of the parameter's kind and shape.

In: a list, or a constructor such as `{linspace: [start, stop, n]}`. Out: a column, one value for each point. Nothing is rounded, read as
text or broadcast in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine.errors import SweepError, UserError, listed, nearest

Array = np.ndarray[Any, Any]

CONSTRUCTORS = {"linspace": "[start, stop, n]", "geomspace": "[start, stop, n]", "arange": "[start, stop, step]"}
DISTRIBUTIONS = {
    "uniform": "[low, high]",
    "loguniform": "[low, high]",
    "normal": "[mean, std]",
    "lognormal": "[mean, std]",
    "choice": "[value, value, ...]",
}
OTHER_NAMES = {"logspace": "geomspace", "range": "arange", "gaussian": "normal", "log_normal": "lognormal"}

MOST_VALUES = 2**28
"""Numbers that one axis may hold (2 GiB); an axis is kept in memory, unlike the sweep."""

MOST_PROBLEMS = 5
"""Problems of one axis or table that are shown."""

KINDS = {"b": np.bool_, "i": np.int64, "f": np.float64, "c": np.complex128}


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Keep the problems of what is inside, and go on."""
    try:
        yield
    except UserError as error:
        problems.extend(error.problems)


def require(fact: Any, problem: str) -> None:
    """Raise `problem` unless `fact` holds."""
    if not fact:
        raise SweepError(problem)


def read_axis(key: str, axis: Any, nominal: Array) -> Array:
    """The values of an axis of a grid or a zip: a list, or one of NumPy's constructors."""
    if isinstance(axis, list | tuple | np.ndarray):
        return as_column(read_list(key, axis, nominal), nominal)
    name, arguments = read_constructor(key, axis, CONSTRUCTORS)
    if name in DISTRIBUTIONS:
        raise SweepError(
            f"`{key}` must list values for the designs grid and zip, but is the distribution {name}. Write a list or "
            f"{listed(CONSTRUCTORS)}, or draw from it: `sweep.design: random` or sobol, with `sweep.samples`."
        )
    key = f"{key}.{name}"
    refuse_boolean(key, nominal)
    values = {"linspace": linspace, "geomspace": geomspace, "arange": arange}[name](key, arguments, nominal.shape)
    check_finite(key, arguments, values)
    return as_column(values, nominal)


def read_constructor(key: str, axis: Any, known: Mapping[str, str]) -> tuple[str, list[Any]]:
    """The name and the arguments of `{name: [argument, ...]}`."""
    every = CONSTRUCTORS | DISTRIBUTIONS
    forms = ", ".join(f"{{{name}: {words}}}" for name, words in known.items())
    if not isinstance(axis, Mapping):
        extra = "a list of values or " if known is CONSTRUCTORS else ""
        raise SweepError(f"`{key}` must be {extra}one of {forms}, but is {shown(axis)}.{axis_remedy(axis, known)}")
    if not axis:
        raise SweepError(f"`{key}` must be one of {forms}, but is empty. Write one of them, or remove the axis.")
    if len(axis) > 1:
        raise SweepError(f"`{key}` must be a single one of {forms}, but has the keys {listed(axis)}. Keep one of them.")
    name, arguments = next(iter(axis.items()))
    if name not in every:
        raise SweepError(
            f"`{key}.{name}` must be one of {listed(known)}, but {str(name)!r} is none of them.{name_remedy(str(name), known)}"
        )
    words = every[name]
    length = len(words.split(",")) if name != "choice" else None
    if not isinstance(arguments, list | tuple):
        raise SweepError(f"`{key}.{name}` must be {words}, but is {shown(arguments)}. Write {{{name}: {words}}}.")
    if length is not None and len(arguments) != length:
        raise SweepError(
            f"`{key}.{name}` must be the {length} values {words}, but has {len(arguments)}: {shown(list(arguments))}. "
            f"Write {{{name}: {words}}}."
            + (" For a plain list of values leave the name out." if name in CONSTRUCTORS else "")
        )
    return str(name), list(arguments)


def axis_remedy(axis: Any, known: Mapping[str, str]) -> str:
    """What to do about an axis that is neither a list nor a mapping."""
    if isinstance(axis, str):
        words = (CONSTRUCTORS | DISTRIBUTIONS).get(axis.strip())
        if words is not None:
            return f" Write {{{axis.strip()}: {words}}}."
        return text_remedy(axis, " Write the values in brackets: [1, 2].")
    if axis is None:
        return " Write the values, or remove the axis."
    single = f"[{shown(axis)}] for a single value" if known is CONSTRUCTORS else f"{{choice: [{shown(axis)}]}}"
    return f" Write {single}, or fix the parameter in `parameters`."


def name_remedy(name: str, known: Mapping[str, str]) -> str:
    """What to write instead of a constructor or a distribution that there is not."""
    if name == "logspace":
        return " Did you mean 'geomspace'? Give it the first and the last value, not their exponents."
    other = OTHER_NAMES.get(name)
    guess = f" Did you mean {other!r}?" if other else nearest(name, CONSTRUCTORS | DISTRIBUTIONS)
    if guess:
        return guess
    return f" Write {'a list of the values' if known is CONSTRUCTORS else 'your own draws to a CSV file for `sweep.table`'}."


def linspace(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's linspace; start and stop may be arrays of the parameter's shape."""
    n, start, stop = read_range(key, arguments, shape)
    with np.errstate(all="ignore"):
        return np.linspace(start, stop, n)


def geomspace(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's geomspace; start and stop may be arrays of the parameter's shape."""
    n, start, stop = read_range(key, arguments, shape)
    require(
        np.all(np.sign(start) * np.sign(stop) > 0),
        f"`{key}` must start and stop at numbers that are not 0 and have the same sign, but goes from {shown(arguments[0])} to "
        f"{shown(arguments[1])}. Start at a small number of the same sign, or use linspace.",
    )
    with np.errstate(all="ignore"):
        return np.geomspace(start, stop, n)


def arange(key: str, arguments: list[Any], shape: tuple[int, ...]) -> Array:
    """NumPy's arange: the stop is left out."""
    start, stop, step = (value.item() for value in read_arguments(key, arguments, ()))
    require(
        not shape, f"`{key}` must be for a scalar, but the parameter has shape {shape}. Write the list of its values."
    )
    written = shown(arguments)
    require(
        step != 0,
        f"`{key}` must have a step that is not 0, but is {written}. For n values use linspace: [start, stop, n].",
    )
    require(
        math.isfinite(stop - start),
        f"`{key}` must span a range that a double holds, but is {written}. Use smaller numbers.",
    )
    count = (stop - start) / step
    require(count > 0, f"`{key}` must hold a value, but {written} is empty. Change the sign of the step, or the stop.")
    require(
        count <= MOST_VALUES,
        f"`{key}` must hold at most {MOST_VALUES} values, but {written} holds {count:.3g}. Use a larger step.",
    )
    return np.arange(start, stop, step)


def read_range(key: str, arguments: list[Any], shape: tuple[int, ...]) -> tuple[int, Array, Array]:
    """The `n`, `start` and `stop` of linspace and geomspace."""
    problems: list[str] = []
    n, ends = 0, [np.zeros(shape)] * 2
    with collecting(problems):
        n = read_count(
            f"{key}[2]", arguments[2], "It is n, the number of values; for a step write arange: [start, stop, step]."
        )
        require(
            n * math.prod(shape) <= MOST_VALUES,
            f"`{key}` must hold at most {MOST_VALUES} numbers, but n is {n}. Lower n.",
        )
    with collecting(problems):
        ends = read_arguments(key, arguments[:2], shape)
        require(
            any(end.shape == shape for end in ends),
            f"`{key}` must start or stop at a list of shape {shape}, as the nominal value has, but goes from "
            f"{shown(arguments[0])} to {shown(arguments[1])}. Give one number for each element of the parameter.",
        )
    if problems:
        raise SweepError(problems)
    return n, ends[0], ends[1]


def read_arguments(key: str, arguments: list[Any], shape: tuple[int, ...]) -> list[Array]:
    """Finite real numbers, or arrays of the parameter's shape."""
    problems: list[str] = []
    found = []
    for i, argument in enumerate(arguments):
        with collecting(problems):
            try:
                value = read_numbers(f"{key}[{i}]", argument, "f")
            except RaggedError:
                value = None
            if value is None or value.shape not in ((), shape):
                raise SweepError(
                    f"`{key}[{i}]` must be a number{f' or have shape {shape}' if shape else ''}, but is "
                    f"{shape_in_words(argument)}: {shown(argument)}. "
                    f"Give one number{' for each element of the parameter' if shape else ''}."
                )
            found.append(value)
    if problems:
        raise SweepError(problems)
    return found


# ---- numbers


def read_count(key: str, value: Any, remedy: str) -> int:
    """A positive integer; an integral float such as 1e3 is one."""
    whole = isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer())
    require(
        whole and not isinstance(value, bool) and value >= 1,
        f"`{key}` must be a positive integer, but is {shown(value)}. {remedy}",
    )
    require(
        value <= MOST_VALUES,
        f"`{key}` must be at most {MOST_VALUES}, but is {shown(value)}. Use fewer: the values are kept in memory.",
    )
    return int(value)


def read_list(key: str, values: Any, nominal: Array) -> Array:
    """The values of a list, enumerated along the leading axis."""
    require(len(values), f"`{key}` must hold at least one value, but is empty. Add values, or remove the axis.")
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        array = read_numbers(key, plain, "b" if nominal.dtype.kind == "b" else "c")
    except RaggedError:
        array = None
    check_shapes(key, plain if array is None else array, nominal.shape)
    if array is None:
        raise SweepError(
            f"`{key}` must be a list of equal shapes, but is ragged: {shown(plain)}. Make the lists equally long."
        )
    return array


class RaggedError(Exception):
    """A nested list is no array; who knows the right shape says which element is wrong."""


def read_numbers(key: str, value: Any, kind: str) -> Array:
    """A number or a nested list of numbers, checked: all finite, boolean if `kind` is "b", real if it is "f"."""
    problems = list(wrong_numbers(key, value, kind))
    if problems:
        more = (
            [f"`{key}` has {len(problems) - MOST_PROBLEMS} more problems of this kind."]
            if len(problems) > MOST_PROBLEMS
            else []
        )
        raise SweepError(problems[:MOST_PROBLEMS] + more)
    try:
        return np.asarray(value)
    except ValueError:
        raise RaggedError from None


def wrong_numbers(key: str, value: Any, kind: str) -> Iterator[str]:
    """A message for each element that is not a finite number of the kind."""
    if not isinstance(value, list | tuple):
        if (problem := wrong_number(value, kind)) is not None:
            yield f"`{key}` {problem}"
    elif not clean(value, kind):
        for i, child in enumerate(value):
            yield from wrong_numbers(f"{key}[{i}]", child, kind)


def clean(values: Any, kind: str) -> bool:
    """Whether a list holds good numbers only: quick for a million of them, silent on what is wrong."""
    kinds: dict[str, set[type]] = {"b": {bool}, "f": {int, float}, "c": {int, float, complex}}
    allowed = kinds[kind]
    if not set(map(type, values)) <= allowed:
        return False
    array = np.asarray(values)
    return array.dtype.kind in KINDS and bool(np.isfinite(array).all())


def wrong_number(value: Any, kind: str) -> str | None:
    """What is wrong with a number, from "must" on."""
    if kind == "b":
        good, wanted = isinstance(value, bool), "true or false, as the nominal value is"
    else:
        good = isinstance(value, int | float | (complex if kind == "c" else float)) and not isinstance(value, bool)
        wanted = "a number"
    if not good:
        remedy = kind_remedy(value, kind) if kind == "b" else text_remedy(value) or kind_remedy(value, kind)
        return f"must be {wanted}, but is {shown(value)}.{remedy}"
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**63
        return None if fits else f"must fit in 64 bits, but is {shown(value)}. {float_remedy(value)}"
    return (
        None
        if np.isfinite(value)
        else f"must be a finite number, but is {value}. Remove it: no result could follow from it."
    )


def float_remedy(value: int) -> str:
    """What to do about an integer that is too large."""
    try:
        return f"Write it as a float: {value:.6e}."
    except OverflowError:
        return "Write a smaller number: the largest float is 1.8e308."


def kind_remedy(value: Any, kind: str) -> str:
    """What to do about a value of another kind."""
    if isinstance(value, bool):
        return " Write 1 or 0, or make the nominal value true or false."
    return " Write true or false." if kind == "b" else " Write a number."


CHOICE_REMEDY = " Write a number; a choice that changes the program is swept with `-m` on the command line."


def text_remedy(value: Any, otherwise: str = CHOICE_REMEDY) -> str:
    """What to do about text where a number or an axis belongs."""
    if not isinstance(value, str):
        return ""
    if re.fullmatch(r"\[.*\]|\{.*\}", value.strip()):
        return " Write it without quotes."
    if "," in value:
        return f" Write a list: [{value.strip()}]."
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", value, re.IGNORECASE):
        return " Write it without quotes."
    if re.fullmatch(r"(?=.*\d|.*pi)(?=.*[-+*/^%(])(?:[\d.\s()+\-*/^%]|e[+-]?\d|pi|sqrt|np\.)+", value, re.IGNORECASE):
        return " Arithmetic is not evaluated: write the number."
    return otherwise


def check_shapes(key: str, values: Any, shape: tuple[int, ...]) -> None:
    """Each value must have the shape of the parameter."""
    if isinstance(values, np.ndarray) and values.shape[1:] == shape:
        return
    problems = []
    for i, value in enumerate(values):
        found = shape_in_words(value)
        if found != (shape_in_words(np.zeros(shape)) if shape else "a single number"):
            wanted = (
                f"have shape {shape}, as the nominal value has"
                if shape
                else "be a single number, as the nominal value is"
            )
            remedy = (
                "Write each value as a nested list of that shape."
                if shape
                else "Give the parameter a nominal value of that shape."
            )
            written = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            problems.append(f"`{key}[{i}]` must {wanted}, but is {found}: {shown(written)}. {remedy}")
        if len(problems) == MOST_PROBLEMS:
            break
    if problems:
        raise SweepError(problems)


def shape_in_words(value: Any) -> str:
    """`a single number`, `an array of shape (2,)` or `a ragged list`."""
    try:
        shape = np.shape(value)
    except ValueError:
        return "a ragged list"
    return f"an array of shape {shape}" if shape else "a single number"


def as_column(values: Array, nominal: Array) -> Array:
    """The values in the wider of their kind and the nominal value's: bool, int64, float64 or complex128."""
    kind = max(values.dtype.kind, nominal.dtype.kind, key="biufc".index)
    return np.ascontiguousarray(values, KINDS["i" if kind == "u" else kind])


def refuse_boolean(key: str, nominal: Array) -> None:
    """A range or a distribution has no booleans."""
    require(
        nominal.dtype.kind != "b",
        f"`{key}` must be for a number, but the nominal value is true or false. Write [true, false], or {{choice: [true, false]}}.",
    )


def check_finite(key: str, arguments: list[Any], values: Array) -> None:
    """What was computed must not overflow."""
    if not np.isfinite(values).all():
        raise SweepError(
            f"`{key}` must give finite numbers, but {shown(arguments)} overflows the range of a double. Use smaller numbers."
        )


def shown(value: Any) -> str:
    """A value of the config as a message shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    kind = "text " if isinstance(value, str) else "the mapping " if isinstance(value, dict) else ""
    return kind + shorten(repr(value))


def shorten(text: str, limit: int = 60) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
