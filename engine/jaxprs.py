"""Facts read off a traced program, before anything is compiled: what depends on what, and how much it holds.

In: a closed jaxpr. Out: plain answers. Knows nothing of stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from engine.diagnosis import is_users

CALLS = (
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
)


def inner_jaxprs(eqn: Any) -> Iterator[tuple[str, Any]]:
    """Every jaxpr among the parameters of an equation, with its parameter's name."""
    for name, value in sorted(eqn.params.items()):
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield name, item


def opened(jaxpr: Any) -> Any:
    """The open jaxpr inside a closed one."""
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def called(eqn: Any) -> Any | None:
    """The one jaxpr that an equation calls with its own operands, or None for loops and branches."""
    if eqn.primitive.name not in CALLS:
        return None
    found = [opened(j) for _, j in inner_jaxprs(eqn)]
    return found[0] if found and len(found[0].invars) == len(eqn.invars) else None


def callee(eqn: Any) -> Any | None:
    """The jaxpr that an equation calls with its own operands, with its constants."""
    if (program := expanded(eqn)) is not None:
        return program
    if eqn.primitive.name in ("jit", "pjit", "remat2"):  # remat2 is what jax.checkpoint makes
        return eqn.params.get("jaxpr")
    inner = called(eqn)
    return None if inner is None else next(j for _, j in inner_jaxprs(eqn) if opened(j) is inner)


def expanded(eqn: Any) -> Any | None:
    """The program for which an equation stands, where its primitive is a library's own and tells it by `expanded`; else None."""
    tell = getattr(eqn.primitive, "expanded", None)
    return None if tell is None else tell(eqn)


def written(jaxpr: Any) -> bool:
    """Whether the user wrote a function that is called, rather than JAX."""
    file = getattr(getattr(opened(jaxpr), "debug_info", None), "func_filename", None)
    return file is None or is_users(file)


def parts_of_scan(eqn: Any) -> tuple[int, int] | None:
    """How many of a scan's operands are constants and how many are state."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    try:  # JAX 0.11 and later
        constants, carry, xs = map(len, params["ft_in"].elts)
    except (KeyError, AttributeError, TypeError, ValueError):
        return None
    return (constants, carry) if constants + carry + xs == len(eqn.invars) else None


def depends(jaxpr: Any, moved: Sequence[bool]) -> list[bool]:
    """Which outputs depend on the inputs marked in `moved`; loops and branches are taken as a whole."""
    jaxpr = opened(jaxpr)
    tainted = {var for var, mark in zip(jaxpr.invars, moved, strict=True) if mark}
    for eqn in jaxpr.eqns:
        marks = [not is_literal(v) and v in tainted for v in eqn.invars]
        if not any(marks):
            continue
        inner = called(eqn)
        out = depends(inner, marks) if inner is not None else [True] * len(eqn.outvars)
        tainted |= {var for var, mark in zip(eqn.outvars, out, strict=True) if mark}
    return [not is_literal(v) and v in tainted for v in jaxpr.outvars]


def leaks(jaxpr: Any) -> bool:
    """Whether the program has taken in a tracer of another trace, which JAX lets pass as a constant."""
    return any(isinstance(value, jax.core.Tracer) for value in jaxpr.consts)


def readers_of_leaks(jaxpr: Any) -> Iterator[list[tuple[str, int]]]:
    """Of each equation that reads such a tracer, the files and lines on the stack when it was traced, innermost first."""
    opened_jaxpr = opened(jaxpr)
    held = {v for v, c in zip(opened_jaxpr.constvars, jaxpr.consts, strict=True) if isinstance(c, jax.core.Tracer)}
    for eqn in opened_jaxpr.eqns:
        if any(not is_literal(v) and v in held for v in eqn.invars):
            yield stack_of(eqn)


def stack_of(eqn: Any) -> list[tuple[str, int]]:
    """The files and lines on the stack when an equation was traced, innermost first; empty if JAX did not keep them."""
    trace = getattr(eqn.source_info, "traceback", None)
    return [(frame.file_name, frame.line_num) for frame in trace.frames] if trace is not None else []


def is_literal(atom: Any) -> bool:
    """Whether an operand is a literal rather than a variable."""
    return isinstance(atom, jex.Literal)


def nbytes(aval: Any) -> int:
    """Bytes of one value."""
    shape = getattr(aval, "shape", ())
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 8)
    return math.prod(shape) * itemsize


def peak_bytes(jaxpr: Any) -> int:
    """Bytes that are live at once while a jaxpr runs in order, an upper estimate: XLA fuses and reuses."""
    jaxpr = opened(jaxpr)
    last: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        last |= {v: i for v in eqn.invars if not is_literal(v)}
    last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not is_literal(v)}
    live = {v: nbytes(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars)}
    dying: dict[int, list[Any]] = {}
    for v, i in last.items():
        dying.setdefault(i, []).append(v)
    now = peak = sum(live.values())
    for i, eqn in enumerate(jaxpr.eqns):
        inside = max((peak_bytes(j) for _, j in inner_jaxprs(eqn)), default=0)
        made = {v: nbytes(v.aval) for v in eqn.outvars}
        peak = max(peak, now + max(sum(made.values()), inside))
        kept = {v: n for v, n in made.items() if v in last}
        live |= kept
        now += sum(kept.values()) - sum(live.pop(v, 0) for v in dying.get(i, ()))
    return peak


def primitives(jaxpr: Any) -> Iterator[str]:
    """The name of every primitive that is applied, inside loops, branches and calls too."""
    for eqn in opened(jaxpr).eqns:
        yield eqn.primitive.name
        for _, inner in inner_jaxprs(eqn):
            yield from primitives(inner)


def equations(jaxpr: Any, site: Any = None) -> Iterator[tuple[Any, Any]]:
    """Every equation, with that whose line the user wrote: itself, or the call of a library's function in which it stands."""
    for eqn in opened(jaxpr).eqns:
        yield eqn, site or eqn
        for _, inner in inner_jaxprs(eqn):
            yield from equations(inner, site or site_inside(eqn))


def site_inside(eqn: Any) -> Any | None:
    """The equation itself if it calls a function that the user did not write, whose equations tell lines of other calls."""
    inner = callee(eqn)
    return eqn if inner is not None and not written(inner) else None


def first_difference(a: Any, b: Any, site: Any = None) -> Any | None:
    """The first equation of `b`, or the call of a library's function around it, that is another than in `a`; None if none is found."""
    one, two = opened(a), opened(b)
    pairs = zip(two.constvars, getattr(a, "consts", ()), getattr(b, "consts", ()), strict=False)
    changed = {v for v, x, y in pairs if not same_constant(x, y)}
    for e, f in zip(one.eqns, two.eqns, strict=False):
        here = site or f
        if e.primitive is not f.primitive or len(e.invars) != len(f.invars):
            return here
        for v, w in zip(e.invars, f.invars, strict=True):
            literals = is_literal(v) and is_literal(w)
            if is_literal(v) != is_literal(w) or (literals and not same_constant(v.val, w.val)):
                return here
            if not literals and w in changed:
                return here
        for (_, i), (_, j) in zip(inner_jaxprs(e), inner_jaxprs(f), strict=False):
            if (found := first_difference(i, j, site or site_inside(f))) is not None:
                return found
    extra = two.eqns[len(one.eqns) :]
    return (site or extra[0]) if extra else None


def same_constant(a: Any, b: Any) -> bool:
    """Whether two constants hold the same bits."""
    try:
        x, y = np.asarray(a), np.asarray(b)
    except TypeError:  # PRNG keys
        x, y = (np.asarray(jax.random.key_data(key)) for key in (a, b))
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def callbacks(jaxpr: Any) -> list[str]:
    """The names of primitives that call back into Python."""
    return [name for name in primitives(jaxpr) if "callback" in name]


def loops(jaxpr: Any) -> bool:
    """Whether there is a loop: batched, it moves its whole state through memory at every step."""
    return any(name in ("while", "scan") for name in primitives(jaxpr))


def constants(jaxpr: Any) -> Iterator[Any]:
    """Every array that a closed jaxpr closes over, inner ones included."""
    yield from (c for c in getattr(jaxpr, "consts", ()) if not isinstance(c, jax.core.Tracer))
    for eqn in opened(jaxpr).eqns:
        for _, inner in inner_jaxprs(eqn):
            yield from constants(inner)
