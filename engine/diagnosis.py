"""An exception from a user's code → one screen that a newcomer can act on.

In: what Python or JAX raised while a stage was imported or traced. Out: a `UserError` that names the stage, says what
must hold, shows the user's own line and the arguments on it, and ends with the remedy. Imports no JAX, and of the
engine only its errors: JAX's exceptions are known by their names. Nothing here raises, however odd the exception to explain.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.errors import PipelineError, StageError, listed, nearest

WIDTH = 110
MAX_ARGUMENTS = 4
MAX_MESSAGE_LINES = 4
ENGINE = Path(__file__).resolve().parent
LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
RENAMED = (
    (r"<class '(?:jax\S*\.)?(?:ShapedArray|\w*Tracer)'>", "array"),
    (r"<class '(?:\w+\.)*(\w+)'>", r"\1"),
    (r"(?:Jit|DynamicJaxpr|JVP|Batch)?Tracer\((?:<)?(\w+\[[\d,]*\])(?:>)?\)", r"array of \1"),
    (r"Traced<(?:ShapedArray\()?(\w+\[[\d,]*\])[^>]*>(?:with<\w+>)?", r"array of \1"),
    (r"'?\b\w*Tracer\b'?", "array"),
    (r"\b([Aa]) array\b", r"\1n array"),
    (r"\bjax\._src(?:\.\w+)*", "jax"),
    (r"/\S*/(\w+\.py)", r"\1"),
)
NOISE = (
    "https://docs.jax.dev",
    "https://jax.readthedocs",
    "The error occurred while tracing",
    "If using `jit`",
    "-----",
)


@dataclass(frozen=True)
class StageContext:
    """What a message about a stage needs to know. Static."""

    name: str
    """The stage, e.g. "motion"."""

    target: str
    """Its import path, e.g. "pipelines.oscillator.motion"."""

    function: Callable[..., Any]
    arguments: Mapping[str, str]
    """Argument -> a short description: "omega: float64[]", "constant 20.0", "the PRNG key"."""

    widened: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are floats though the config writes integers, with the reason."""


@dataclass(frozen=True)
class Line:
    """A line of the user's own code."""

    file: str
    number: int
    text: str
    function: str = ""

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.number}: {clip(self.text)}"


@dataclass(frozen=True)
class Advice:
    """What must hold, what was found instead, and what to do."""

    must: str
    but: str
    remedy: str
    show_arguments: bool = True
    """Show the arguments on the line; all if none stands there."""


LEAKED = Advice(
    "depend on its arguments only",
    "it uses a leaked value: a global, a cache (lru_cache) or an attribute keeps an array from an earlier trace",
    "Compute that value inside the stage each time, or take it from another stage. A table that is to be kept is made with np, not jnp.",
)


CAPTURED_KEY = Advice(
    "draw from the key of its sample",
    "it draws from a PRNG key that was made when its module was imported: the same numbers for every sample",
    "Take an argument called `key`, and draw from that. Numbers that all samples share are drawn at import, and kept as an array.",
    show_arguments=False,
)


UNBATCHED = Advice(
    "say how Python is called for many samples",
    "this call has no `vmap_method`, without which vmap refuses it",
    'Write `vmap_method="sequential"` there, for a call for each sample, or make the function by ops.external.callback.',
    show_arguments=False,
)


@dataclass(frozen=True)
class Problem:
    """An exception with what surrounds it, as the rules below look at it."""

    error: BaseException
    stage: StageContext
    line: Line | None
    on_line: tuple[str, ...]
    """The stage's arguments that stand on the line."""

    @property
    def code(self) -> str:
        """The user's line, without its comment."""
        return self.line.text.split("  #")[0] if self.line else ""

    @property
    def text(self) -> str:
        """What the exception says, as it says it."""
        return text_of(self.error)

    @property
    def said(self) -> str:
        """What the exception says, in words of the user's world."""
        return clean(self.text)

    def is_a(self, *names: str) -> bool:
        """Whether the exception is of a class, or a subclass of one, with one of these names."""
        return any(kind.__name__ in names for kind in type(self.error).__mro__)

    @property
    def as_constant(self) -> str:
        """How to make the value in question a constant."""
        for name in re.findall(r"\.(\w+)", self.code):
            if any(re.search(rf"\w\(.*\b{name}: (bool|int\d+)\[\]", words) for words in self.stage.arguments.values()):
                return (
                    f"mark {name!r} as static where its class declares it, if it is a plain value that a stage hands on: "
                    f"`{name}: ... = eqx.field(static=True)`"
                )
        scalars = [a for a in self.on_line if self.stage.arguments[a].endswith("[]")]
        example = f" (`stages.{self.stage.name}: {{{scalars[0]}: 3}}`)" if scalars else ""
        return f"make it a constant in the stage's node{example}"


# --- The doors ---


def explain(error: BaseException, stage: StageContext) -> StageError:
    """The message for an exception that a stage raised while JAX traced it.

    Args:
        error: the exception, with its traceback.
        stage: the stage that raised it.

    Returns:
        The error to raise; it says what to change.
    """
    try:
        line = user_line(error) or definition(stage.function)
        problem = Problem(error, stage, line, arguments_on(line, stage))
        return compose(stage, advise(problem), line, problem.on_line)
    except Exception:  # an exception whose class misbehaves; the little that is sure is said
        return StageError(
            f"`stages.{stage.name}` must run to its end, but {stage.target} raised {type(error).__name__}. "
            "Mend the function."
        )


def explain_no_return(stage: StageContext) -> StageError:
    """The message for a stage that returned None."""
    advice = Advice(
        "return its result",
        "it returned None: its `return` is missing, or a branch ends without one",
        "End the function with `return value`: an array, or a dict, list or dataclass of arrays.",
        show_arguments=False,
    )
    return compose(stage, advice, definition(stage.function), ())


def explain_bad_output(stage: StageContext, path: str, value: object, holder: object = None) -> StageError:
    """The message for a stage that returned something other than arrays.

    Args:
        stage: the stage.
        path: the dotted path of the leaf in what it returned; empty for the whole.
        value: the leaf.
        holder: the node of the pytree that holds it; the leaf itself if it is the whole.
    """
    advice = replace(bad_output(path, value, holder), show_arguments=False)
    return compose(stage, advice, definition(stage.function), ())


def explain_leak(stage: StageContext, stack: Iterable[tuple[str, int]]) -> StageError:
    """The message for a stage that uses a leaked tracer where JAX does not notice.

    Args:
        stage: the stage.
        stack: the files and lines where the value was used, innermost first.
    """
    line = line_of(stack) or definition(stage.function)
    return compose(stage, LEAKED, line, arguments_on(line, stage))


def explain_captured_key(stage: StageContext, stack: Iterable[tuple[str, int]]) -> StageError:
    """The message for a stage that draws from a PRNG key that its module made on import.

    Args:
        stage: the stage.
        stack: the files and lines where numbers are drawn, innermost first.
    """
    return compose(stage, CAPTURED_KEY, line_of(stack) or definition(stage.function), ())


def explain_setting(stage: StageContext, name: str, value: object, before: object, remedy: str) -> StageError:
    """The message for a stage that changes a setting of JAX.

    Args:
        stage: the stage.
        name: the setting.
        value: what the stage makes of it.
        before: what it was.
        remedy: how to set it for the whole run.
    """
    advice = Advice(
        "leave JAX's settings as they are",
        f"it changes {name} from {before} to {value}, for all that is computed after it",
        remedy,
        show_arguments=False,
    )
    return compose(stage, advice, line_with(stage.function, name) or definition(stage.function), ())


def explain_import(key: str, target: str, error: BaseException) -> PipelineError:
    """The message for a function that cannot be imported.

    Args:
        key: where the config names it, e.g. "stages.decay._target_".
        target: the import path.
        error: what importing it raised.
    """
    try:
        return PipelineError(f"`{key}` must {import_trouble(target, error)}")
    except Exception:  # as in `explain`
        return PipelineError(
            f"`{key}` must be importable, but {target} raised {type(error).__name__} on import. Mend that module."
        )


# --- The screen ---


def compose(stage: StageContext, advice: Advice, line: Line | None, on_line: tuple[str, ...]) -> StageError:
    """Headline, the user's line, the arguments on it, the remedy."""
    shown = (on_line or tuple(stage.arguments)) if advice.show_arguments else ()
    head = f"`stages.{stage.name}` must {advice.must}, but {advice.but.rstrip('.')}."
    place = f"  {line}" if line else f"  _target_: {stage.target}"
    more = [f"  and {len(shown) - MAX_ARGUMENTS} more"] if len(shown) > MAX_ARGUMENTS else []
    where = [describe(name, stage.arguments[name], stage.widened.get(name)) for name in shown[:MAX_ARGUMENTS]]
    return StageError("\n".join([head, place, *where, *more, advice.remedy]))


def describe(name: str, words: str, widened: str | None = None) -> str:
    """One argument: `  where x is motion.x: float64[201]`."""
    why = f", written as an integer: {widened}" if widened else ""
    return clip((f"  where {words}" if words.startswith(f"{name}: ") else f"  where {name} is {words}") + why)


def clip(text: str, width: int = WIDTH) -> str:
    """The text on one line, shortened past `width`."""
    text = " ".join(text.split()) if not text.startswith("  ") else "  " + " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def text_of(error: BaseException) -> str:
    """`str(error)`, even of an exception that cannot say it."""
    try:
        return str(error)
    except Exception:  # the user's own __str__
        return ""


def clean(text: str) -> str:
    """A message without JAX's internals, links, absolute paths and empty lines, in a few short lines."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not any(noise in line for noise in NOISE)]
    for pattern, words in RENAMED:
        lines = [re.sub(pattern, words, line) for line in lines]
    return "\n  ".join(clip(line, 2 * WIDTH) for line in lines[:MAX_MESSAGE_LINES])


def name_of(error: BaseException) -> str:
    """`ValueError: message`, or the type alone if there is no message."""
    said = clean(text_of(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# --- The user's own line ---


def user_line(error: BaseException) -> Line | None:
    """The innermost line of the traceback that the user wrote."""
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return Line(error.filename, error.lineno or 1, (error.text or "").strip())
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename) and frame.lineno and frame.line:
            return Line(frame.filename, frame.lineno, frame.line.strip(), frame.name)
    return None


def line_of(stack: Iterable[tuple[str, int]]) -> Line | None:
    """The innermost line of the user's among files and lines, innermost first."""
    file, number = next(((file, number) for file, number in stack if is_users(file)), ("", 0))
    return Line(file, number, linecache.getline(file, number).strip()) if file else None


def definition(function: Callable[..., Any]) -> Line | None:
    """The `def` line of a function that the user wrote."""
    found = source_range(function)
    if found is None or not is_users(found[0]):
        return None
    file, first, last = found
    numbers = range(first, last + 1)
    starts = (n for n in numbers if re.match(r"\s*(async def|def|class)\b", linecache.getline(file, n)))
    number = next(starts, first)
    return Line(file, number, linecache.getline(file, number).strip(), getattr(function, "__name__", ""))


def line_with(function: Callable[..., Any], text: str) -> Line | None:
    """The first line of a function that holds a text."""
    file, first, last = source_range(function) or ("", 1, 0)
    found = (n for n in range(first, last + 1) if text in linecache.getline(file, n))
    return next((Line(file, n, linecache.getline(file, n).strip()) for n in found), None)


def source_range(function: Callable[..., Any]) -> tuple[str, int, int] | None:
    """File, first and last line of a function, its decorators and partials looked through."""
    try:
        linecache.checkcache()
        while isinstance(function, functools.partial):
            function = function.func
        function = inspect.unwrap(function)
        if not (inspect.isroutine(function) or inspect.isclass(function)):
            function = type(function)
        lines, first = inspect.getsourcelines(function)
        return inspect.getsourcefile(function) or "", first, first + len(lines) - 1
    except Exception:  # compiled, built in, or made by exec
        return None


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is the user's: not of Python, an installed package, or the engine."""
    if file.startswith("<"):
        return file.startswith("<ipython")
    path = Path(os.path.realpath(file))
    if path.is_relative_to(ENGINE) or path.is_relative_to(ENGINE.parent / "ops"):
        return False
    if {"site-packages", "dist-packages"} & {*path.parts, *Path(file).parts}:
        return False
    return not any(path.is_relative_to(os.path.realpath(sysconfig.get_path(name))) for name in LIBRARIES)


def short_path(file: str) -> str:
    """A path as seen from the config's folder or the working directory, else the name alone."""
    path = Path(os.path.realpath(file))
    for folder in import_folders():
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            return path.relative_to(folder).as_posix()
    return path.name


def import_folders() -> Iterator[Path]:
    """The config's folder and the working directory: the first two entries of the import path."""
    for entry in sys.path[:2]:
        yield Path(os.path.realpath(entry or os.curdir))


def arguments_on(line: Line | None, stage: StageContext) -> tuple[str, ...]:
    """The stage's arguments whose names stand on a line of the stage's own function."""
    found = source_range(stage.function)
    if line is None or found is None or found[0] != line.file or not found[1] <= line.number <= found[2]:
        return ()
    if re.match(r"(async )?def ", line.text):
        return ()
    bound = {name for names in re.findall(r"\blambda\b([^:]*):", line.text) for name in re.findall(r"\w+", names)}
    words = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", line.text)) - bound
    return tuple(name for name in stage.arguments if name in words)


# --- The rules: each knows one kind of mistake ---


def advise(problem: Problem) -> Advice:
    """The advice of the first rule that knows the problem."""
    for rule in RULES:
        advice = rule(problem)
        if advice is not None:
            return advice
    return Advice(
        "run to its end", f"it raised {name_of(problem.error)}", "Mend this line, or what the stage is given."
    )


def in_place(problem: Problem) -> Advice | None:
    """`x[0] = 1`."""
    numpy_element = problem.is_a("ValueError") and problem.text.startswith("setting an array element with a sequence")
    if "immutable" not in problem.text and "does not support item assignment" not in problem.text and not numpy_element:
        return None
    if "immutable" in problem.text and not problem.is_a("TypeError"):
        return None
    name, index, operator, value = assignment(problem.code)
    method = {"+=": "add", "-=": "add", "*=": "multiply", "/=": "divide"}.get(operator, "set")
    value = f"-({value})" if operator == "-=" else value
    new = f"{name} = {name}.at[{index}].{method}({value})"
    remedy = f"Write `{new}`." if name in problem.code else "Write it as `x = x.at[0].set(1)`."
    if numpy_element:
        but = "it assigns a traced value into an array of NumPy, which cannot hold one"
        return Advice("not assign to elements of an array", but, f"Make {name} by `jnp`. {remedy}")
    return Advice("not assign to elements of an array", "this line does; JAX arrays are immutable", remedy)


def assignment(code: str) -> tuple[str, str, str, str]:
    """`y[i, 0] += v` -> ("y", "i, 0", "+=", "v"); an example if the line is no such assignment."""
    found = re.match(r"([\w.]+)\[(.+?)\]\s*([-+*/]?=)(?!=)\s*(.+)", code)
    return (found[1], found[2], found[3], found[4].rstrip(";")) if found else ("x", "0", "=", "1")


def leaked(problem: Problem) -> Advice | None:
    """A tracer kept from an earlier trace."""
    if not problem.is_a("UnexpectedTracerError"):
        return None
    return LEAKED


def unbatched(problem: Problem) -> Advice | None:
    """`jax.pure_callback(f, shape, x)` under vmap."""
    return UNBATCHED if problem.is_a("NotImplementedError") and "vmap_method" in problem.text else None


def boolean_mask(problem: Problem) -> Advice | None:
    """`x[x > 0]`."""
    if not problem.is_a("NonConcreteBooleanIndexError"):
        return None
    return Advice(
        "have outputs of a fixed shape",
        "it selects elements by a boolean mask, and how many there are is not known while JAX traces it",
        "Keep the shape: `jnp.where(mask, x, 0.0)`; sum or average with `jnp.sum(x, where=mask)`.",
    )


def data_dependent_size(problem: Problem) -> Advice | None:
    """`jnp.nonzero(x)`, `jnp.zeros(n)`, `jnp.arange(x)`, `x[:n]`."""
    text = problem.text
    if "must be statically specified" in text or "The size argument" in text:
        but = "how many elements this line gives depends on values not known while JAX traces it"
        return Advice(
            "have outputs of a fixed shape", but, "Use `jnp.where(condition, a, b)`, or give `size=` as a constant."
        )
    if "Shapes must be 1D sequences" in text or "jnp.arange argument" in text or "jnp.linspace" in text:
        but = "the size on this line is a traced value, not known while JAX traces the stage"
        remedy = f"Write the size as a number, or {problem.as_constant}; `jnp.linspace(a, b, 100)` has traced ends."
        return Advice("have arrays of a fixed shape", but, remedy)
    if "static integers" in text or "Array slice indices must have static" in text:
        but = "the slice on this line starts or stops at a traced value"
        remedy = f"Use `jax.lax.dynamic_slice_in_dim(x, start, size)`, or {problem.as_constant}."
        return Advice("have arrays of a fixed shape", but, remedy)
    return None


def numpy_on_tracer(problem: Problem) -> Advice | None:
    """`np.sin(x)`, `scipy.special.erf(x)`, `math.sin(x)`."""
    found = re.search(r"\bc?math\.(\w+)", problem.code)
    if found and problem.is_a("ConcretizationTypeError"):
        but = f"`math.{found[1]}` works on Python numbers, and cannot take a traced array"
        return Advice(
            "compute with jax.numpy", but, f"Use `jnp.{JNP_OF_MATH.get(found[1], found[1])}` (import jax.numpy as jnp)."
        )
    if not problem.is_a("TracerArrayConversionError"):
        return None
    found = re.search(r"\b(?:np|numpy|onp)\.([\w.]+)", problem.code)
    if found:
        but = f"`{found[0]}` is NumPy, and cannot take a traced array"
        return Advice("compute with jax.numpy", but, f"Use `jnp.{found[1]}` (import jax.numpy as jnp).")
    but = "a function of NumPy, SciPy or another library on this line cannot take a traced array"
    remedy = "Use its counterpart in jax.numpy or jax.scipy; what has none must not depend on a traced value."
    return Advice("compute with jax.numpy", but, remedy)


def python_integer(problem: Problem) -> Advice | None:
    """`range(n)`, `[1, 2][n]`."""
    if not problem.is_a("TracerIntegerConversionError"):
        return None
    if "range(" in problem.code:
        what, instead = "`range` needs a Python integer", "loop with `jax.lax.fori_loop` or `jax.lax.scan`"
    else:
        what, instead = (
            "an index on this line must be a Python integer",
            "make the list an array by `jnp.asarray` and index it",
        )
    remedy = f"{capital(problem.as_constant)}, or {instead}."
    return Advice("not need the value of an array in Python", f"{what}, and is given a traced value", remedy)


def float_index(problem: Problem) -> Advice | None:
    """`table[n]` with a float."""
    if not re.search(r"must have integer|must be integers|integer or boolean type|integer type", problem.text):
        return None
    if not problem.is_a("TypeError", "IndexError") or user_raised(problem):
        return None
    widened = problem.stage.widened
    for name in (a for a in problem.on_line or widened if a in widened):
        there = "Take it out there" if ".wrt`" in widened[name] else "Write integers there"
        but = f"{name!r} is a float, though written as an integer: {widened[name]}"
        return Advice("index by integers", but, f"{there}, or convert it on this line: `{name}.astype(int)`.")
    remedy = "A parameter is an integer if it is written without a point (`n: 3`); else convert it: `n.astype(int)`."
    return Advice("index by integers", "the index on this line is a float", remedy)


def python_bool(problem: Problem) -> Advice | None:
    """`if x > 0`, `while`, `max(x, y)`, `0 < x < 1`, `x > 0 and y > 0`."""
    if not problem.is_a("TracerBoolConversionError"):
        return None
    must, code, otherwise = "not need the value of an array in Python", problem.code, f" Or {problem.as_constant}."
    unknown = "a traced value is not known while JAX traces the stage"
    if code.startswith("while"):
        return Advice(
            must,
            f"`while` decides on one, and {unknown}",
            "Use `jax.lax.while_loop(condition, step, start)`." + otherwise,
        )
    if code.startswith("assert"):
        return Advice(
            must,
            f"`assert` decides on one, and {unknown}",
            "Remove it, or return an integer field `status` (0 = fine).",
        )
    if found := re.search(r"(?<![\w.])(min|max)\(", code):
        new = {"min": "minimum", "max": "maximum"}[found[1]]
        return Advice(
            must, f"Python's `{found[1]}` compares them, and {unknown}", f"Use `jnp.{new}(a, b)`." + otherwise
        )
    word = re.search(r"\b(if|elif|and|or|not|any|all|sorted)\b", code)
    what = f"`{word[1]}`" if word else "Python"
    remedy = "Use `jnp.where(condition, a, b)` or `jax.lax.cond`; combine conditions by `&`, `|`, `~`."
    return Advice(must, f"{what} decides on one, and {unknown}", remedy + otherwise)


def python_number(problem: Problem) -> Advice | None:
    """`float(x)`, `x.item()`, and what else needs the value."""
    if not problem.is_a("ConcretizationTypeError"):
        return None
    found = re.search(r"(?<![\w.])(float|int|complex|bool|round)\(", problem.code) or re.search(
        r"\.(item|tolist)\(", problem.code
    )
    what = f"`{found[1]}()`" if found else "this line"
    kind = {"int": "int", "complex": "complex", "bool": "bool"}.get(found[1] if found else "", "float")
    remedy = f"Leave it out (arrays compute like numbers), use `x.astype({kind})`, or {problem.as_constant}; "
    return Advice(
        "not need the value of an array in Python",
        f"{what} does, and a traced value is not known while JAX traces the stage",
        remedy + "choose between values with `jnp.where`.",
    )


def carry(problem: Problem) -> Advice | None:
    """A loop or branch whose two sides differ in type."""
    text = problem.text
    if "carry" in text and ("differ" in text or "must have" in text):
        what = "what the loop's body returns as carry differs from what it takes"
        remedy = (
            "Make them equal: `.astype` in the body, or start from `jnp.asarray(0.0)` of the final shape and dtype."
        )
        must = "keep the carry of a loop (scan, while_loop, fori_loop) of one shape and dtype"
    elif "body_fun output and input must have identical types" in text:
        what, must = "they differ", "keep the carry of a loop of one shape and dtype"
        remedy = "Make them equal: `.astype` in the body, or start from the final shape and dtype."
    elif (
        "branches must have equal" in text
        or "branch outputs must have" in text
        or "must have same type structure" in text
    ):
        what, must = "they differ", "return the same shapes and dtypes from each branch of a `cond` or `switch`"
        remedy = "Make the branches equal, with `jnp.broadcast_to` or `.astype`."
    else:
        return None
    details = [line for line in clean(text.partition("\n")[2]).splitlines() if "The " in line or "*" in line]
    return Advice(must, "\n  ".join([what + (":" if details else ""), *(d.strip() for d in details[:3])]), remedy)


def constant_kind(problem: Problem) -> Advice | None:
    """A constant that is a list or text where an array is meant."""
    if not problem.is_a("TypeError", "AttributeError"):
        return None
    names = problem.on_line or tuple(problem.stage.arguments)
    kinds = (("[", r"\blist\b|\bsequence\b", "a list"), ("(", r"\btuple\b|\bsequence\b", "a tuple"))
    for start, pattern, what in kinds:
        for name in names:
            if problem.stage.arguments[name].startswith(f"constant {start}") and re.search(pattern, problem.text):
                remedy = f"Write `{name} = jnp.asarray({name})` first."
                return Advice(
                    "compute with arrays", f"its constant {name!r} is {what}, and this line needs an array", remedy
                )
    for name in names:
        if problem.stage.arguments[name].startswith(("constant '", 'constant "')) and re.search(
            r"\bstr\b", problem.text
        ):
            remedy = f"Write a number in `stages.{problem.stage.name}.{name}`, without quotes."
            return Advice("compute with numbers", f"its constant {name!r} is text", remedy)
    return None


def whole_dict(problem: Problem) -> Advice | None:
    """A dict of arrays where one array is meant."""
    if not problem.is_a("TypeError") or not re.search(r"\bdict\b", problem.text):
        return None
    for name in problem.on_line or tuple(problem.stage.arguments):
        words = problem.stage.arguments[name]
        source, _, kind = words.partition(": ")
        if kind.startswith("{") and (has := names_in(words)):
            remedy = f"Take one: `{name}[{has[0]!r}]` here, or `_inputs_: {{{name}: {source}.{has[0]}}}` in the config."
            return Advice("compute with arrays", f"its argument {name!r} is a dict of {listed(has)}", remedy)
    return None


def mixed_keys(problem: Problem) -> Advice | None:
    """A dict that JAX cannot sort."""
    if "sorting pytree dictionary keys" not in problem.text:
        return None
    remedy = "Make every key text, e.g. `str(key)`."
    return Advice("keep the keys of a dict of one type", "this one mixes types, such as text and integers", remedy)


def shapes(problem: Problem) -> Advice | None:
    """Arrays that do not fit each other."""
    words = r"incompatible shapes|cannot reshape|same shape|equal shapes|shapes? that differ|[Ii]ncompatible shapes"
    words += r"|broadcast|contracting dim|\bshapes?\b.*\((\d+,? ?)*\)|\brank\b|\bndim\b"
    words += r"|axis \d+ is out of bounds|scalar-output"
    words += r"|Size of label|dimension"
    if not problem.is_a("TypeError", "ValueError") or not re.search(words, problem.text):
        return None
    if user_raised(problem):
        return None
    remedy = (
        "Compare these shapes with what the line expects; `x[:, None]`, `jnp.reshape` or another reference mends it."
    )
    return Advice("combine arrays whose shapes fit", f"they do not: {problem.said}", remedy)


def user_raised(problem: Problem) -> bool:
    """Whether the line is the user's own `raise`."""
    return problem.code.startswith("raise")


def missing_key(problem: Problem) -> Advice | None:
    """`y["vx"]` of an input that has no `vx`."""
    if not isinstance(problem.error, KeyError) or not problem.error.args or user_raised(problem):
        return None
    key = str(problem.error.args[0])
    for name in problem.on_line:
        has = names_in(problem.stage.arguments[name])
        if has and key not in has and re.search(rf"(?<![\w.]){name}\b.*\[", problem.code):
            return Advice(
                "use what its input has", f"{name!r} has no {key!r}", f"It has {listed(has)}.{nearest(key, has)}"
            )
    return None


def missing_attribute(problem: Problem) -> Advice | None:
    """`y.x` of a dict, `x.foo` of an array, `jnp.sun`."""
    error = problem.error
    if not isinstance(error, AttributeError) or user_raised(problem):
        return None
    name = error.name or (re.findall(r"has no attribute '?(\w+)", problem.text) or [""])[-1]
    if not name:
        return None
    owner, has = error.obj, public_names(error.obj)
    if isinstance(owner, Mapping):
        has = [str(key) for key in owner]
        remedy = (
            f"Write `[{name!r}]` in place of `.{name}`."
            if name in has
            else f"It has {listed(has)}.{nearest(name, has)}"
        )
        return Advice("use what its input has", f"a dict has no attribute {name!r}", remedy)
    if isinstance(owner, ModuleType):
        remedy = f"Look it up in the documentation.{nearest(name, has)}"
        return Advice("use what a module has", f"{owner.__name__} has no {name!r}", remedy)
    for argument in problem.on_line:
        fields = names_in(problem.stage.arguments[argument])
        if fields and re.search(rf"(?<![\w.]){argument}\.{name}\b", problem.code):
            remedy = f"It has {listed(fields)}.{nearest(name, fields)}"
            return Advice("use what its input has", f"{argument!r} has no {name!r}", remedy)
    kind = "an array" if "Tracer" in type(owner).__name__ or "Array" in type(owner).__name__ else type(owner).__name__
    remedy = "An input with fields is wired by `_inputs_`, e.g. `stage` in place of `stage.field`."
    return Advice("use what its input has", f"{kind} has no attribute {name!r}", f"{remedy}{nearest(name, has)}")


def names_in(words: str) -> list[str]:
    """The names at the top of a description: `motion.y: {x: float64[3], v: float64[3]}` -> ["x", "v"]."""
    start = min((i for i in (words.find("{"), words.find("(")) if i >= 0), default=-1)
    if start < 0 or words.startswith("constant"):
        return []
    names: list[str] = []
    depth, part = 0, ""
    for letter in words[start + 1 :]:
        depth += (letter in "{([") - (letter in "})]")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            names, part = [*names, part], ""
        else:
            part += letter
    return [name.partition(":")[0].strip() for name in [*names, part] if ":" in name]


RULES: tuple[Callable[[Problem], Advice | None], ...] = (
    in_place,
    leaked,
    unbatched,
    boolean_mask,
    data_dependent_size,
    numpy_on_tracer,
    python_integer,
    float_index,
    python_bool,
    python_number,
    carry,
    constant_kind,
    whole_dict,
    mixed_keys,
    shapes,
    missing_key,
    missing_attribute,
)
JNP_OF_MATH = {
    "pow": "power",
    "fabs": "abs",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "erf": "scipy.special.erf",
    "gamma": "scipy.special.gamma",
    "lgamma": "scipy.special.gammaln",
    "dist": "linalg.norm",
    "fsum": "sum",
}
# --- What a stage returned ---


def bad_output(path: str, value: object, holder: object) -> Advice:
    """The advice for a leaf that is no array."""
    with suppress(Exception):
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that it was never awaited
            return Advice(
                "be a plain function", "it is a coroutine (`async def`)", "Write `def`, and `return` the arrays."
            )
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            remedy = "`return` the arrays; stack what a loop gives with `jnp.stack`, or use `jax.lax.scan`."
            return Advice("be a plain function", "it is a generator (it has `yield`)", remedy)
    place = f"at {path!r} there is" if path else "it returned"
    name = path.rpartition(".")[2]
    remedy = field_remedy(name, value, type(holder)) if path and is_dataclass(holder) else output_remedy(value)
    return Advice("return arrays, or a dict, list or dataclass of arrays", f"{place} {in_brief(value)}", remedy)


def field_remedy(name: str, value: object, kind: type[Any]) -> str:
    """What to do with a field of a dataclass, or of an equinox module, that is no array."""
    homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
    how = "eqx.field(static=True)" if "equinox" in homes else 'dataclasses.field(metadata={"static": True})'
    hint = "Callable" if callable(value) else type(value).__name__
    mark = f"Mark it as static where {kind.__name__} declares it: `{name}: {hint} = {how}`."
    alone = (
        "return the arrays alone, `eqx.filter(module, eqx.is_array)`, and put them into the parameter in the stage that takes them, "
        "`eqx.combine(arrays, module)`."
    )
    if kind.__module__.partition(".")[0] == "equinox":
        return capital(alone)
    return f"{mark} Or {alone}" if "equinox" in homes else mark


def output_remedy(value: object) -> str:
    """What to do with a leaf of this kind."""
    if isinstance(value, str | bytes):
        return "Leave the text out of what is returned, or return a number in its place (a code: 0, 1, …)."
    if isinstance(value, set | frozenset):
        return "Return a list or a dict in place of a set."
    if callable(value):
        return "Call it, and return the arrays that it gives."
    return 'Return the arrays that it holds, in a dict: `return {"x": x}`.'


def in_brief(value: object) -> str:
    """A value with its type, shortened: `str 'stable'`."""
    try:
        text = repr(value)
    except Exception:  # the user's own __repr__
        text = ""
    plain = isinstance(value, str | bytes | set | frozenset)
    kind = type(value).__name__
    if callable(value) and hasattr(value, "__name__"):
        return f"a {kind} ({value.__name__})"
    return f"{kind} {clip(text, 40)}" if plain else f"an object of type {kind}"


# --- Imports ---


def import_trouble(target: str, error: BaseException) -> str:
    """All that follows "must"."""
    parts = target.split(".")
    if len(parts) < 2 or not all(parts):
        remedy = "Write the file's name without .py, a dot, and the function."
        return f"be of the form module.function, but is {target!r}. {remedy}"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{target}.".startswith(f"{error.name}."):
        package = error.name.rpartition(".")[0]
        if package in sys.modules:
            return no_attribute(sys.modules[package], error.name.rpartition(".")[2], target)
        return no_module(error.name, target)
    if isinstance(error, AttributeError) and user_line(error) is None:
        owner, rest = longest_module(parts)
        if owner is not None and rest and not hasattr(owner, rest[0]):
            return no_attribute(owner, rest[0], target)
        if owner is not None and rest:
            found = ".".join([owner.__name__, rest[0]])
            return (
                f"name a function, but {target!r} is not there: {found!r} has no {error.name!r}. Name one in a module."
            )
    return raised_on_import(parts, error)


def no_module(name: str, target: str) -> str:
    """The module is in no folder of the import path."""
    there = module_names()
    hint = f" There are {listed(there)}." if there else ""
    return (
        f"name a module that can be imported, but there is no module {name!r} for {target!r}."
        f"{nearest(name, there)}{hint}"
        " A module is a .py file beside the config or in the working directory, or an installed package."
    )


def no_attribute(module: ModuleType, name: str, target: str) -> str:
    """The module is there, and has no such name."""
    everything = public_names(module)
    own = [n for n in everything if getattr(vars(module).get(n), "__module__", None) == module.__name__]
    own += [f.stem for folder in getattr(module, "__path__", ()) for f in python_files(Path(folder))]
    functions = sorted({n for n in own if not n.startswith("_")})
    has = f"It has {listed(functions)}." if functions else "It defines no functions."
    hint = nearest(name, functions) or nearest(name, everything)
    file = getattr(module, "__file__", None)
    where = f" ({short_path(file)})" if file else ""
    return (
        f"name a function, but {target!r} is not there: module {module.__name__!r} has no {name!r}{where}.{hint} {has}"
    )


def raised_on_import(parts: list[str], error: BaseException) -> str:
    """The module is there, and raises."""
    line = user_line(error)
    place = f"\n  {line}" if line else ""
    module = ".".join(p for p in parts[:-1] if p[:1].islower() or p == parts[0])
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = nearest(error.name, module_names())
        remedy = f"Install {error.name.partition('.')[0]!r} in this environment, or mend the import.{hint}"
        return f"be importable, but module {module!r} imports {error.name!r}, which is not installed.{place}\n{remedy}"
    said = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else name_of(error)
    remedy = f"Mend the module; `python -c 'import {module}'` shows the whole traceback."
    return f"be importable, but module {module!r} raised {said.rstrip('.')} on import.{place}\n{remedy}"


def module_names() -> list[str]:
    """The modules beside the config and in the working directory."""
    return sorted({file.stem for folder in import_folders() for file in python_files(folder)})


def longest_module(parts: list[str]) -> tuple[ModuleType | None, list[str]]:
    """The longest prefix that is a module already imported, and the parts after it."""
    for depth in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:depth]))
        if module is not None:
            return module, parts[depth:]
    return None, parts


def python_files(folder: Path) -> Iterable[Path]:
    """The modules and packages in a folder."""
    try:
        return [p for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    except OSError:
        return []


def public_names(value: object) -> list[str]:
    """The public attributes of an object."""
    try:
        return [name for name in dir(value) if not name.startswith("_")]
    except Exception:  # the user's own __dir__
        return []


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
