"""A stage → its own program, apart from the pipeline, and what its function does beside returning a value.

In: a stage and the shapes of all values. Out: a jaxpr, traced as the pipeline traces it, and what was seen on the way.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import jax
import numpy as np

from engine import jaxprs, values
from engine.diagnosis import explain_leak, is_users, source_range
from engine.errors import StageError
from engine.lowering import abstract_key, collect, context, run_stage, unjitted
from engine.pipeline import Pipeline, Stage

TRACES = jax.make_user_context()
"""A part of the key of JAX's caches of traces: under another value, functions that were traced before are traced again."""

NUMBERS = itertools.count()
JAX = os.path.dirname(jax.__file__)


@dataclass
class Trace:
    """One trace of a stage."""

    jaxpr: Any = None
    mutated: list[str] = field(default_factory=list)
    """Arguments that the function changed."""

    printed: list[tuple[str, int]] = field(default_factory=list)
    """Files and lines of the user's that printed."""

    acted: list[tuple[str, str, int]] = field(default_factory=list)
    """What it did outside, and the file and line of the user's that did."""


def inputs_of(stage: Stage, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes that a stage takes from parameters and other stages, by argument."""
    return {name: collect(tree, shapes, stage, name, values.outline) for name, tree in stage.inputs.items()}


def trace_stage(stage: Stage, shapes: Mapping[str, Any]) -> Any:
    """The program of one stage, `(values that it refers to, key) -> value`."""
    roots = {reference.root: shapes[reference.root] for reference in stage.references}
    return jax.make_jaxpr(lambda found, key: run_stage(stage, found, key))(roots, abstract_key())


def find_leak(jaxpr: Any, pipeline: Pipeline, shapes: Mapping[str, Any]) -> tuple[str, StageError] | None:
    """The stage that takes in a tracer of another trace, if a program holds one, and the error to raise."""
    if not jaxprs.leaks(jaxpr):
        return None
    stack = next(jaxprs.readers_of_leaks(jaxpr), [])
    found = stage_on(stack, pipeline)
    for stage in pipeline.stages:
        traced = trace_stage(stage, shapes)
        if jaxprs.leaks(traced):
            stack, found = next(jaxprs.readers_of_leaks(traced), []), stage
            break
    return found.name, explain_leak(context(found, inputs_of(found, shapes)), stack)


def stage_on(stack: Sequence[tuple[str, int]], pipeline: Pipeline) -> Stage:
    """The stage whose function is among the files and lines of a stack; the last if none is."""
    for stage in pipeline.stages:
        file, first, last = source_range(stage.function) or ("", 0, 0)
        if any(name == file and first <= line <= last for name, line in stack):
            return stage
    return pipeline.stages[-1]


def fresh() -> Any:
    """A context in which every function is traced anew, those under `jax.jit` and the bodies of loops included."""
    return TRACES(next(NUMBERS))


def observe(stage: Stage, shapes: Mapping[str, Any]) -> Trace:
    """A fresh trace of one stage, watched.

    Raises:
        StageError: it cannot be traced, or not again.
    """
    trace = Trace()
    with fresh(), listening(trace.printed), auditing(trace.acted):
        trace.jaxpr = trace_stage(replace(stage, function=watched(stage.function, trace.mutated)), shapes)
    return trace


def watched(function: Callable[..., Any], mutated: list[str]) -> Callable[..., Any]:
    """A function that notes which of its arguments it changes."""
    plain = unjitted(function)
    names = list(inspect.signature(plain).parameters)

    @functools.wraps(plain)
    def watching(*positional: Any, **named: Any) -> Any:
        given = dict(zip(names, positional, strict=False)) | named
        before = {name: picture(value) for name, value in given.items()}
        result = plain(*positional, **named)
        mutated[:] = [name for name, value in given.items() if not same(before[name], picture(value))]
        return result

    return watching


def picture(value: Any) -> tuple[Any, list[Any]] | None:
    """The structure of a value and what stands in it; None if it has none, as a dict whose keys cannot be sorted."""
    try:
        leaves, structure = jax.tree_util.tree_flatten(value)
    except Exception:
        return None
    return structure, [leaf.tobytes() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]


def same(a: tuple[Any, list[Any]] | None, b: tuple[Any, list[Any]] | None) -> bool:
    """Whether two pictures show the same."""
    if a is None or b is None:
        return True
    alike = (x is y or (isinstance(x, bytes) and x == y) for x, y in zip(a[1], b[1], strict=False))
    return bool(a[0] == b[0]) and len(a[1]) == len(b[1]) and all(alike)


class Ear(io.TextIOBase):
    """Standard output that notes who writes, and drops what."""

    def __init__(self, lines: list[tuple[str, int]]) -> None:
        self.lines = lines

    def write(self, text: str) -> int:
        """Note the user's line."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and (place := (frame.f_code.co_filename, frame.f_lineno)) not in self.lines:
            self.lines.append(place)
        return len(text)


@contextlib.contextmanager
def listening(lines: list[tuple[str, int]]) -> Iterator[None]:
    """Note the lines of the user's that print; what they print was printed by the trace of the plan already."""
    with contextlib.redirect_stdout(Ear(lines)):
        yield


ACTS = {
    "os.putenv": "sets a variable of the environment",
    "os.unsetenv": "removes a variable of the environment",
    "os.chdir": "changes the working directory",
    "os.mkdir": "makes a folder",
    "os.remove": "removes a file",
    "os.rename": "moves a file",
    "os.system": "runs a command",
    "subprocess.Popen": "runs a command",
    "socket.connect": "connects to another machine",
}
"""Events of Python's audit hooks (PEP 578), and what they mean."""

WATCHED: dict[int, list[tuple[str, str, int]]] = {}
"""Thread -> where what it does outside is noted."""


@contextlib.contextmanager
def auditing(acted: list[tuple[str, str, int]]) -> Iterator[None]:
    """Note what the user's code does outside: files that it writes, the environment, commands. It is done all the same."""
    install_hook()
    WATCHED[threading.get_ident()] = acted
    try:
        yield
    finally:
        WATCHED.pop(threading.get_ident(), None)


@functools.cache
def install_hook() -> None:
    """Have Python tell of events. A hook cannot be taken out again; it does nothing while nobody watches."""
    sys.addaudithook(hear)


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    """An event of this process."""
    acted = WATCHED.get(threading.get_ident()) if WATCHED else None
    if acted is None:
        return
    what = ACTS.get(event)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        what = f"writes the file {arguments[0]!r}"
    if what is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if JAX in frame.f_code.co_filename or "importlib" in frame.f_code.co_filename:  # a cache of its own
            return
        frame = frame.f_back
    if frame is not None:
        acted.append((what, frame.f_code.co_filename, frame.f_lineno))
