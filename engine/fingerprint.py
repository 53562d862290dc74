"""A traced program → a hash of what it computes, the Python functions that it calls back into included.

In: a closed jaxpr and the functions of its stages. Out: a hash that is the same in every process and folder. A jaxpr holds
some code only as an opaque callable (callbacks, the rules of custom derivatives and batching, operators): such a callable is
described by what it does: its syntax without comments, docstrings and lines, and the values of all that it refers to. Code of
installed libraries is described by name: a store records their versions. Where something cannot be looked into, the syntax
of every module of the user's that the stages come from or import is part of the program.

A container or a counter that a described function changes as it runs is part of its description, as it stands.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from engine.jaxprs import inner_jaxprs, is_literal, opened
from engine.values import is_key

DEEPEST = 80
"""Levels of nesting that are followed, well within Python's own limit on recursion."""

PLAIN = (type(None), bool, int, float, complex, bytes, type(Ellipsis))
REPRESENTED = ("jax", "jaxlib", "numpy", "ml_dtypes", "builtins")
"""Libraries whose values (dtypes, shapes, shardings) say all in their `repr`, if it shows no address."""

PASSING = frozenset(
    {
        "DebugInfo",
        "Flatten",
        "InitialResultPaths",
        "NameStack",
        "SourceInfo",
        "Store",
        "EqualStore",
        "Trace",
        "Traceback",
    }
)
"""Classes of JAX and Equinox that hold where a program was traced, or fill up as it is transformed. Weak references are caches."""

ERROR_KEYS = {"msgs", "on_error", "stack"}
"""What Equinox keeps for an error to be raised; the stack is that of the Python calls around it."""

UNSEEN = ("ctx", "kind", "returns", "type_comment", "type_params")
"""Fields of syntax trees that do not bear on what is computed, or that other versions of Python lack."""

DYNAMIC = ("__import__", "eval", "exec", "globals", "vars")
"""Builtins by which a function reaches what it does not name."""

SILENT = ("debug", "debug_info", "name_and_src_info", "src_info")
"""Parameters of equations that only say where they come from."""


def digest(jaxpr: Any, functions: Iterable[Callable[..., Any]] = (), folder: Path | None = None) -> str:
    """A hash of what a program computes: equal for equal programs in any process, different for different ones.

    Args:
        jaxpr: the program, a closed jaxpr.
        functions: the functions it was traced from; their modules are read if a part of the program cannot be looked into.
        folder: paths inside it are taken as relative to it.
    """
    description = Description(folder)
    text = description.text(jaxpr)
    if description.hidden:
        description.text(list(functions))
        text = hashed([text, *sorted(syntax_of_modules(description.modules))])
    return text


class Description:
    """One walk over a program: what was described already, and whether something could not be looked into."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folders = [] if folder is None else [str(folder), os.path.realpath(folder)]
        self.modules: set[str] = set()
        """Modules of the user's whose functions were described."""

        self.hidden = False
        """Whether the program holds a callable that shows nothing of what it does."""

        self.traced = False
        """Whether a value of a trace was met."""

        self.known: dict[int, tuple[Any, str]] = {}  # holds each value, so that no other gets its id
        self.open: list[int] = []
        self.avals: dict[Any, str] = {}
        self.passing: dict[type, bool] = {}
        self.exports: dict[str, dict[int, str]] = {}

    def text(self, value: Any) -> str:
        """What a value is, without anything that differs between processes."""
        if type(value) in PLAIN:
            return repr(value)
        if type(value) is str:
            return self.path(value) if os.path.isabs(value) else repr(value)
        key = id(value)
        if key in self.known:
            return self.known[key][1]
        if key in self.open:
            return f"again {len(self.open) - self.open.index(key)}"
        if len(self.open) >= DEEPEST:
            self.hidden = True
            return "deep"
        self.open.append(key)
        try:
            text = self.described(value)
        finally:
            self.open.pop()
        if len(text) > 64:
            text = hashed([text])
        self.known[key] = value, text
        return text

    def described(self, value: Any) -> str:
        """The description of a value that is met for the first time."""
        kind = type(value)
        if root_of(kind) == "jax" and (hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")):
            return self.program(value)
        if isinstance(value, jax.core.Tracer):  # left by an inner trace, where its own equation is described
            self.traced = True
            return f"tracer {value.aval}"
        if kind not in self.passing:
            self.passing[kind] = is_passing(kind)
        if self.passing[kind]:
            return ""
        if (array := self.array(value)) is not None:
            return array
        if isinstance(value, tuple | list | set | frozenset | dict | MappingProxyType):
            return self.container(value)
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | type | ModuleType):
            return self.code(value)
        if isinstance(value, os.PathLike):
            path = os.fspath(value)
            return self.path(path) if isinstance(path, str) and os.path.isabs(path) else repr(path)
        try:
            return self.instance(value)
        except Exception:  # it does not let itself be looked into
            self.hidden = True
            return f"closed {self.text(kind)}"

    def program(self, jaxpr: Any) -> str:
        """A jaxpr with its variables numbered in order, and its constants in full."""
        hasher = hashlib.sha256()
        numbers: dict[Any, int] = {}

        def say(*texts: str) -> None:
            hasher.update(" ".join(texts).encode() + b"\0")

        def name(atom: Any) -> str:
            shown = self.text(atom.val) if is_literal(atom) else numbers.setdefault(atom, len(numbers))
            return f"{shown}:{self.aval(atom.aval)}"

        say(*(self.text(constant) for constant in getattr(jaxpr, "consts", ())))
        inner = opened(jaxpr)
        say("in", *(name(v) for v in (*inner.constvars, *inner.invars)))
        for eqn in inner.eqns:
            operands = list(eqn.invars)
            say(self.primitive(eqn.primitive))
            if eqn.primitive.name == "noinline" and operands:
                say(self.noinline(operands.pop(0)))
            say(*map(name, operands))
            labels = (*SILENT, "name") if any(inner_jaxprs(eqn)) else SILENT
            say(*(f"{key}={self.text(value)}" for key, value in sorted(eqn.params.items()) if key not in labels))
            say("->", *map(name, eqn.outvars))
        say("out", *map(name, inner.outvars))
        return hasher.hexdigest()

    def aval(self, aval: Any) -> str:
        """Shape and dtype of a variable."""
        if aval not in self.avals:
            self.avals[aval] = str(aval)
        return self.avals[aval]

    def primitive(self, primitive: Any) -> str:
        """A primitive by its name; the implementation of one of the user's own is looked at too."""
        key = id(primitive)
        if key not in self.known:
            inside = Description()
            text = inside.text([getattr(primitive, name, None) for name in ("impl", "abstract_eval")])
            if inside.modules:  # its other rules stand in JAX's tables
                self.hidden = True
            self.known[key] = primitive, f"{primitive.name} {text}" if inside.modules else primitive.name
        return self.known[key][1]

    def noinline(self, index: Any) -> str:
        """The function that Equinox's `noinline` calls, which it holds in a table in the order of the calls in a process."""
        table = getattr(sys.modules.get("equinox.internal._noinline"), "_index_to_fn", None)
        if table is None or not is_literal(index):
            self.hidden = True
            return ""
        return self.text(table[int(index.val)])

    def array(self, value: Any) -> str | None:
        """The dtype, shape and bytes of an array or a typed PRNG key; None for anything else."""
        if isinstance(value, jax.Array) and is_key(value.dtype):
            return f"key {jax.random.key_impl(value)} {self.array(jax.random.key_data(value))}"
        of_jax = root_of(type(value)) in ("jax", "jaxlib") and hasattr(value, "__array__")
        if type(value) is not np.ndarray and not isinstance(value, np.generic | jax.Array) and not of_jax:
            return None
        array = np.asarray(value)
        if array.dtype.hasobject:
            return f"{array.dtype}{array.shape}{self.text(array.tolist())}"
        content = np.ascontiguousarray(array).tobytes()
        shown = content.hex() if len(content) <= 16 else hashlib.sha256(content).hexdigest()
        return f"{array.dtype}{array.shape}{shown}"

    def container(self, value: Any) -> str:
        """A container with what it holds, in its order if it has one."""
        if isinstance(value, Mapping):
            silent = "stack" if value.keys() >= ERROR_KEYS else None
            texts = [f"{self.text(key)}:{self.text(item)}" for key, item in value.items() if key != silent]
        else:
            texts = [self.text(item) for item in value]
            if isinstance(value, set | frozenset):
                texts.sort()
        return f"{self.text(type(value))}({','.join(texts)})"

    def code(self, value: Any) -> str:
        """A function, a class or a module: a library's by name, a user's by what it does."""
        if isinstance(value, MethodType):
            name = self.exported_name(value.__self__)
            return (
                f"method {name}.{value.__name__}" if name else f"method {self.text([value.__func__, value.__self__])}"
            )
        if isinstance(value, BuiltinFunctionType):
            owner, module = value.__self__, sys.modules.get(value.__module__ or "")
            self.hidden |= module is not None and is_users(module)  # compiled
            bound = owner is not None and not isinstance(owner, ModuleType)
            return f"{qualified(value)} {self.text(self.exported_name(owner) or owner)}" if bound else qualified(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}" if not is_users(value) else f"module {self.members(vars(value))}"
        if isinstance(value, type):
            if not is_users(sys.modules.get(value.__module__)):
                return qualified(value)
            self.modules.add(value.__module__ or "")
            return f"class {self.text(value.__bases__)} {self.members(vars(value))}"
        return self.function(value)

    def function(self, value: FunctionType) -> str:
        """A function: its code if it is the user's, and what is bound in it."""
        library = is_library(value.__code__.co_filename)
        module = sys.modules.get(value.__module__)
        if library and not is_users(module) and getattr(module, value.__name__, None) is value:
            return qualified(value)
        bound = [f"{name}:{self.text(content)}" for name, content in bound_in(value)]
        if library:  # one of many of this name, made around something of the user's
            return f"{qualified(value)} {','.join(bound)}"
        self.modules.add(value.__module__ or "")
        file = os.path.dirname(os.path.abspath(value.__code__.co_filename))
        self.folders.append(file)
        try:
            bound += [f"{name}={self.text(found)}" for name, found in self.referred(value)]
            bound.append(self.members(vars(value)))
        finally:
            self.folders.pop()
        return f"function {syntax_of(value) or self.instructions(value.__code__)} {','.join(bound)}"

    def referred(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """Every global that a function names, with its value; in a module of the user's, only the members that it names."""
        for chain in references(function.__code__):
            if chain[0] == "import":
                yield from imported(chain, function)
                continue
            if chain[0] not in function.__globals__ or is_dunder(chain[0]):
                self.hidden |= chain[0] in DYNAMIC
                continue
            value, rest = function.__globals__[chain[0]], list(chain[1:])
            while rest and isinstance(value, ModuleType) and is_users(value):
                value = getattr(value, rest.pop(0), None)
            yield ".".join(chain[: len(chain) - len(rest)]), self.exported_name(value) or value

    def exported_name(self, value: Any) -> str | None:
        """The name under which a library has an object, whose state may change as the process goes on; None if it has none."""
        kind = type(value)
        root = root_of(kind)
        plain = isinstance(value, FunctionType | type | ModuleType | np.ndarray | np.generic | jax.Array)
        if plain or root == "builtins" or is_users(sys.modules.get(kind.__module__)):
            return None
        modules = [(n, vars(m)) for n, m in sorted(sys.modules.items(), reverse=True) if hasattr(m, "__dict__")]
        if isinstance(name := getattr(value, "__name__", None), str):
            for module, table in modules:
                if table.get(name) is value and not is_users(sys.modules[module]):
                    return f"{module}.{name}"
        if root not in self.exports:
            tables = [(module, list(table.items())) for module, table in modules if module.partition(".")[0] == root]
            self.exports[root] = {id(found): f"{module}.{name}" for module, table in tables for name, found in table}
        return self.exports[root].get(id(value))

    def members(self, table: Mapping[str, Any]) -> str:
        """The members of a module, a class or a function, but for those that Python itself adds."""
        texts = []
        for name, value in sorted(table.items()):
            if not (is_dunder(name) and is_generated(name, value)) and not name.startswith("_abc_"):
                texts.append(f"{name}={self.text(value)}")
        for field in table.get("__dataclass_fields__", {}).values():
            facts = (field.default, field.default_factory, field.init, field.metadata)
            texts.append(f"field {field.name}={self.text(facts)}")
        return "{" + ",".join(texts) + "}"

    def instructions(self, code: CodeType) -> str:
        """The bytecode of a function whose source is not at hand: the same within one version of Python."""
        texts = []
        for step in dis.get_instructions(code):
            value = step.argval
            shown = self.instructions(value) if isinstance(value, CodeType) else self.text(value)
            texts.append(f"{step.opname} {shown}")
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        return hashed([repr(counts), *texts])

    def instance(self, value: Any) -> str:
        """An object: its class, and its state as `pickle` would keep it."""
        kind = type(value)
        if isinstance(value, property):
            return f"property {self.text([value.fget, value.fset])}"
        if isinstance(value, staticmethod | classmethod):
            return f"{kind.__name__} {self.text(value.__func__)}"
        if root_of(kind) in ("ctypes", "_ctypes"):  # compiled code, at an address
            self.hidden = True
            return f"{qualified(kind)} {self.text(getattr(value, '_name', None))}"
        if kind.__name__ == "PyTreeDef":
            return f"tree {self.tree(value)}"
        if kind.__name__ == "WrappedFun":  # its other attributes are made of these, or fill up
            return f"wrapped {self.text(value.f)} {self.text([arguments for _, arguments in value.transforms])}"
        if not callable(value) and root_of(kind) in REPRESENTED and "0x" not in (content := repr(value)):
            return f"{qualified(kind)} {content}"
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and root_of(kind) in ("functools", "jaxlib"):  # a cache, or what jax.jit returns
            return f"{qualified(kind)} {self.text(wrapped)}"
        texts = [self.text(kind), self.text(wrapped)]
        try:
            kept = value.__reduce_ex__(4)
        except Exception:  # an object that cannot be kept: what it shows must do
            kept = None
        if isinstance(kept, tuple):
            texts += [self.state(part) for part in kept[1:]]
        elif isinstance(getattr(value, "__dict__", None), dict):
            texts.append(self.state(vars(value)))
        shown = isinstance(kept, tuple) or wrapped is not None or bool(getattr(value, "__dict__", None))
        if callable(value) and not shown:
            name = self.exported_name(value)
            self.hidden |= name is None
            texts.append(str(name))
        return " ".join(texts)

    def state(self, part: Any) -> str:
        """A part of an object's state; attributes in alphabetic order, but for those that Python itself adds."""
        if isinstance(part, dict) and all(isinstance(name, str) for name in part):
            names = sorted(name for name in part if not is_dunder(name) or name == "__wrapped__")
            return ",".join(f"{name}={self.text(part[name])}" for name in names)
        if isinstance(part, tuple):
            return f"({','.join(map(self.state, part))})"
        if isinstance(part, Iterator):
            return self.text(list(part))
        return self.text(part)

    def tree(self, tree: Any) -> str:
        """The structure of a pytree, its classes by name, with the static data of its nodes."""
        data, parts = tree.node_data(), tree.children()
        if (
            data is not None and data[0] is dict and set(data[1]) >= ERROR_KEYS
        ):  # its stack is as long as that of the calls
            parts = [child for name, child in zip(data[1], parts, strict=True) if name != "stack"]
        children = ",".join(self.tree(child) for child in parts)
        return f"[{children}]" if data is None else f"{qualified(data[0])} {self.text(data[1])}[{children}]"

    def path(self, path: str) -> str:
        """A path: a file by its content, which is what a function reads; a folder relative to where the config or code is."""
        try:
            if os.path.isfile(path) and not path.endswith(".py"):
                with open(path, "rb") as file:
                    return f"file {hashlib.file_digest(file, 'sha256').hexdigest()}"
        except (OSError, ValueError):  # a text that is no path
            return repr(path)
        for folder in self.folders:
            around = is_inside(folder, path) and os.path.dirname(path) != path
            if around or is_inside(path, folder):
                return f"path {Path(os.path.relpath(path, folder)).as_posix()}"
        return repr(path)


def hashed(texts: Iterable[str]) -> str:
    """A hash of texts."""
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()


def qualified(value: Any) -> str:
    """The name under which a library has a function or a class."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', None) or ''}.{name}"


def root_of(kind: type) -> str:
    """The top package that a class comes from."""
    return str(kind.__module__).partition(".")[0]


def is_dunder(name: str) -> bool:
    """Whether Python itself gives meaning to a name."""
    return name.startswith("__") and name.endswith("__")


def is_generated(name: str, value: Any) -> bool:
    """Whether a member of a class or a module with such a name was not written by the user."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    made = code is not None and code.co_filename.startswith("<")
    return made or not callable(getattr(value, "__func__", value)) or name in ("__annotate__", "__replace__")


def is_passing(kind: type) -> bool:
    """Whether objects of a class say nothing of what is computed."""
    traced = any(c.__name__ in PASSING and root_of(c) in ("jax", "jaxlib", "equinox") for c in kind.__mro__)
    return traced or root_of(kind) in ("weakref", "_weakref", "_weakrefset")


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Where Python, the installed libraries and the engine with its operators are."""
    here = Path(__file__).parent
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(os.path.realpath(path) for path in (*paths, str(here), str(here.parent / "ops")))


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed library or the engine."""
    if file.startswith("<"):  # made at run time, if it is not a part of Python
        return file.startswith("<frozen")
    path = os.path.realpath(file)
    installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))
    return bool(installed) or any(is_inside(path, folder) for folder in library_folders())


def is_users(module: ModuleType | None) -> bool:
    """Whether a module is the user's own."""
    if module is None:  # a class made at run time
        return True
    file = getattr(module, "__file__", None)
    return not is_library(file) if file else module.__name__ == "__main__" or hasattr(module, "__path__")


def bound_in(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values bound in a function: defaults, and variables of the functions around it."""
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default {i}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default {name}", value
    memo = function.__qualname__ == "_memoize.<locals>.memoized"
    error = function.__module__ == "equinox._errors"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if (memo and name != "fn") or (error and name == "stack"):  # JAX's memo of results, empty at first; a traceback
            continue
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            yield name, None


@functools.lru_cache(maxsize=1024)
def references(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that a function and the functions inside it name, each with the attributes taken from it at once.

    An import comes as `("import", level, module, name...)`.
    """
    found: set[tuple[str, ...]] = set()
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            chain = [step.argval]
            for after in steps[i + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                chain.append(after.argval)
            found.add(tuple(chain))
        elif step.opname == "IMPORT_NAME":
            level, names = steps[i - 2].argval, steps[i - 1].argval
            found.add(("import", str(level), step.argval, *(names or ())))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(references(constant))
    return tuple(sorted(found))


def imported(chain: tuple[str, ...], function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function imports from a module of the user's as it runs; it may not have run yet."""
    _, level, name, *members = chain
    try:
        full = importlib.util.resolve_name("." * int(level) + name, function.__globals__.get("__package__"))
        if users_file(full) is None:
            return
        module = importlib.import_module(full)
    except Exception:  # as it will be when the function runs
        return
    top = full.partition(".")[0]
    yield from ((f"{full}.{member}", member_of(module, member)) for member in members)
    yield from () if members else ((top, sys.modules[top]),)


def users_file(name: str) -> str | None:
    """The file of a module of the user's, imported or not; None for a library's, or if there is none."""
    top = name.partition(".")[0]
    for each in dict.fromkeys((top, name)):  # a library is not imported for a look at what is in it
        module = sys.modules.get(each)
        if module is not None:
            file = getattr(module, "__file__", None)
            users = is_users(module)
        else:
            try:
                spec = importlib.util.find_spec(each)
            except (ImportError, ValueError, AttributeError):
                return None
            file = spec.origin if spec is not None and spec.has_location else None
            users = file is not None and not is_library(file)
        if not users:
            return None
    return file


def member_of(module: ModuleType, name: str) -> Any:
    """What `from module import name` gives."""
    if not hasattr(module, name):
        with suppress(ImportError):
            return importlib.import_module(f"{module.__name__}.{name}")
    return getattr(module, name, None)


def syntax_of(function: FunctionType) -> str | None:
    """A hash of a function's syntax, or None if its file no longer holds the code that runs."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    for candidate, node in functions_in("".join(lines)).get(code.co_qualname, ()):
        if bare(candidate) == bare(code):
            return hashed([*shape(node.args), *shape(without_docstring(node))])
    return None


@functools.lru_cache(maxsize=64)
def functions_in(source: str) -> dict[str, list[tuple[CodeType, Any]]]:
    """The code and the syntax tree of every function in a file, by qualified name."""
    try:
        tree = ast.parse(source)
        top = compile(source, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    nodes: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            nodes.setdefault((line, node.name), []).append(node)
        elif isinstance(node, ast.Lambda):
            nodes.setdefault((node.lineno, "<lambda>"), []).append(node)
    found: dict[str, list[tuple[CodeType, Any]]] = {}
    for code in codes_in(top):
        written = nodes.get((code.co_firstlineno, code.co_name), [])
        if len(written) == 1:  # of two lambdas in a line, none is told from the other
            found.setdefault(code.co_qualname, []).append((code, written[0]))
    return found


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Every piece of code inside another."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_in(constant)


def bare(code: CodeType) -> CodeType:
    """Code without its place in a file."""
    inner = tuple(bare(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=inner)


def without_docstring(node: Any) -> Any:
    """The body of a function, a class or a module, without its docstring."""
    body = node.body
    first = body[0] if isinstance(body, list) and body else None
    text = getattr(first.value, "value", None) if isinstance(first, ast.Expr) else None
    return body[1:] if isinstance(text, str) else body


def shape(node: Any) -> Iterator[str]:
    """A syntax tree as texts, without lines, docstrings and type annotations of arguments; the same in any version of Python."""
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from shape(item)
        yield "]"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in UNSEEN or (name == "annotation" and isinstance(node, ast.arg)):
                continue
            yield name
            yield from shape(without_docstring(node) if documented and name == "body" else value)
        yield "."
    else:
        yield repr(node)


def syntax_of_modules(names: Iterable[str]) -> Iterator[str]:
    """A hash of the syntax of each of the user's modules among these, and of all that they import."""
    todo, done = [*names], set()
    while todo:
        name = todo.pop()
        file = None if name in done else users_file(name)
        done.add(name)
        if file is not None and os.path.isfile(file):
            shown, imports = syntax_of_file(file, os.stat(file).st_mtime_ns)
            yield shown
            package = name if os.path.basename(file) == "__init__.py" else name.rpartition(".")[0]
            for found in imports:
                with suppress(ImportError):  # more dots than packages
                    todo.append(importlib.util.resolve_name(found, package))


@functools.lru_cache(maxsize=64)
def syntax_of_file(file: str, _written: int) -> tuple[str, tuple[str, ...]]:
    """A hash of a file's syntax, or of its bytes if it is no Python; and the names of the modules that it may import."""
    content = Path(file).read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return hashlib.sha256(content).hexdigest(), ()
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            imports += [base, *(base + "." * bool(node.module) + alias.name for alias in node.names)]
    return hashed(shape(tree)), tuple(imports)
