"""What a function may keep from one call to the next: globals, default arguments, variables of the functions around it, attributes.

In: a stage's function. Out: a description of each, so that two moments can be compared. Functions of the user's that it calls are looked
into; what belongs to libraries is not.
"""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from engine.diagnosis import Line, definition, source_range
from engine.fingerprint import Description, is_library, is_users, root_of

IGNORED = ("logging", "threading", "_thread", "_io", "io", "re", "functools")
"""Modules whose objects change as they are used, and are no part of what is computed."""


@dataclass(frozen=True)
class Kept:
    """Something that outlives a call, at one moment. Static."""

    name: str
    kind: str
    """global | default argument | variable of the function around it | attribute."""

    function: Callable[..., Any]
    """Whose it is."""

    text: str
    """A description of its value: another one after a change."""

    traced: bool
    """Whether it holds a value of a trace."""


def kept_by(function: Callable[..., Any]) -> dict[tuple[str, str], Kept]:
    """All that a function keeps, by kind and name."""
    found: dict[tuple[str, str], Kept] = {}
    for name, kind, owner, value in walk(function, set()):
        if (
            isinstance(value, ModuleType)
            or (callable(value) and not has_state(value))
            or root_of(type(value)) in IGNORED
        ):
            continue
        description = Description()
        text = description.text(value)
        found.setdefault((kind, name), Kept(name, kind, owner, text, description.traced))
    return found


def has_state(value: Any) -> bool:
    """Whether a callable is an object, or a class of the user's, whose attributes may change."""
    if isinstance(value, type):
        return not is_library(getattr(inspect.getmodule(value), "__file__", None) or "<builtin>")
    return bool(getattr(value, "__dict__", None)) and not hasattr(value, "__wrapped__") and not inspect.isroutine(value)


def walk(function: Any, seen: set[int]) -> Iterator[tuple[str, str, Callable[..., Any], Any]]:
    """Name, kind, owner and value of what a function and the user's functions that it calls keep."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from walk(function.func, seen)
        return
    if isinstance(function, MethodType):
        yield "self", "attribute", function.__func__, function.__self__
        function = function.__func__
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        if callable(function) and not isinstance(function, type) and isinstance(type(function).__call__, FunctionType):
            yield "self", "attribute", type(function).__call__, function
            yield from walk(type(function).__call__, seen)
        return
    if is_library(function.__code__.co_filename):
        return
    for name, kind, value in variables(function):
        if is_function(value):
            yield from walk(value, seen)
        else:
            yield name, kind, function, value


def is_function(value: Any) -> bool:
    """Whether a value is a function of the user's, perhaps under `jax.jit` or a partial."""
    if isinstance(value, functools.partial | MethodType):
        return True
    try:
        return isinstance(inspect.unwrap(value), FunctionType)
    except ValueError:
        return False


def variables(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """What a function refers to beside its arguments."""
    signature = inspect.signature(function, follow_wrapped=False)
    for p in signature.parameters.values():
        if p.default is not p.empty:
            yield p.name, "default argument", p.default
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, "variable of the function around it", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name, value in Description().referred(function):
        if not isinstance(value, ModuleType) or is_users(value):
            yield name, "global", value
    for name in stored(function.__code__):
        if name in function.__globals__:
            yield name, "global", function.__globals__[name]
    for name, value in vars(function).items():
        if not name.startswith("__"):
            yield f"{function.__name__}.{name}", "attribute", value


def stored(code: CodeType) -> set[str]:
    """The globals that a function and the functions inside it assign."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}
    return names.union(*(stored(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def changes(before: Mapping[tuple[str, str], Kept], after: Mapping[tuple[str, str], Kept]) -> list[Kept]:
    """What changed between two moments, or holds a value of a trace."""
    return [k for key, k in after.items() if k.traced or (key in before and before[key].text != k.text)]


def line_changing(kept: Kept) -> Line | None:
    """The line of a function that changes something it keeps; else the first that names it."""
    if kept.name == "self":
        return find_line(kept.function, r"\bself\.\w+")
    return find_line(kept.function, *changing(kept.name))


def changing(name: str) -> tuple[str, str]:
    """Patterns of a line that changes what has a name, and of one that names it."""
    word = rf"(?<![\w.]){re.escape(name)}\b"
    calls = r"\.(append|add|appendleft|extend|update|insert|setdefault|pop|popitem|remove|clear|discard|sort|reverse)\("
    return rf"{word}[\w.]*({calls}|(\[.*\])?\s*([-+*/|&@%]|//|\*\*)?=(?!=))|\bdel {word}", word


def find_line(function: Callable[..., Any], *patterns: str) -> Line | None:
    """The line of a function's body that the first pattern finds, or else the second, and so on; its `def` line if none does."""
    return matching_line(function, *patterns) or definition(function)


def matching_line(function: Callable[..., Any], *patterns: str) -> Line | None:
    """The line of a function's body that the first pattern finds, or else the second, and so on."""
    file, first, last = source_range(function) or ("", 1, 0)
    lines = [(n, linecache.getline(file, n).strip()) for n in range(first, last + 1)]
    body = [(n, text) for n, text in lines if not re.match(r"(async )?def |global |nonlocal |@|#", text)]
    for pattern in patterns:
        for n, text in body:
            if re.search(pattern, text.partition("  #")[0]):
                return Line(file, n, text)
    return None
