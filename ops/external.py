"""A NumPy, SciPy or plain Python function → a pure JAX function of the same signature, with derivatives.

In: a function of arrays that JAX cannot trace. Out: one that JAX calls back into, at home in `jit`, `vmap` and first derivatives of
both modes: the Jacobian comes from Python too, and JAX contracts it with tangents.

The function must be pure: the same arguments, the same result; JAX may call it again, or not at all if nothing needs the result. It
must not call JAX, whose threads may all be waiting for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ops.calls import Outside, Site, Value
from ops.slopes import AbstractRule, Complex, Declared, Finite, Jacobian, Undefined

SCALARS = {"float": np.float64, "int": np.int64, "bool": np.bool_, "complex": np.complex128}
"""Kinds of numbers, in the width of the precision in which JAX computes."""


def callback(
    function: Callable[..., Any] | None = None,
    *,
    result: Any = None,
    derivatives: str | None = None,
    jacobian: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    step: Any = None,
    order: int | None = None,
    typical: Any = None,
    vectorized: bool = False,
    lock: bool | None = None,
) -> Callable[..., Any]:
    """A function outside JAX as a pure JAX function with the same signature; also a decorator, `@callback(result=(3,))`.

    Args:
        function: takes NumPy arrays of its own (NumPy numbers for scalars; a typed PRNG key as its uint32 data, which
            `numpy.random.default_rng` takes), and whatever is no array as it is. Returns arrays, numbers, or lists, dicts and tuples
            of them.
        result: shape and kind of what it returns: a shape such as `(3,)`, of floats; a kind such as `int`; both as `"int[3]"`; anything
            with `shape` and `dtype`; or a dict, list or tuple of these. Left out: a number, float unless the annotation says int,
            bool or complex.
        derivatives: `finite` (default): central differences. `complex`: complex steps, exact to rounding, for a function that passes
            complex numbers through. `none`: a derivative through it is refused.
        jacobian: takes what the function takes, and returns `{argument: d result / d argument}`, each with the axes of the result and
            then those of the argument. Bare if there is one argument; a tuple if it has an entry for each. A function under
            `jax.jit` and another `callback` are differentiated in their turn; else second derivatives are refused.
        jvp: takes `(primals, tangents)`, each a dict by argument, and returns the tangent of the result; called once for each element.
        step: of the differences, relative to the argument; a number, or `{argument: number}`. By default what balances rounding and
            truncation for a function that is exact to the rounding of its argument and of its declared result; a solver with a tolerance
            needs longer steps.
        order: of the differences, 2 (default) or 4: 2 or 4 calls for each element of an argument.
        typical: size of an argument below which steps shrink no further, as `step`. By default each element's own size; for one that is
            zero, the largest in the argument, or 1.
        vectorized: the function takes arrays with further leading axes, the same for all, and returns them: it is called once for all
            samples of a chunk, with arrays that it must not write to. Else it is called for each.
        lock: one call at a time in this process, as for all callbacks with a lock; by default unless vectorized.

    Raises:
        ValueError: a setting is wrong, or would be ignored; what is found when it is called is said then.

    >>> import jax, numpy as np
    >>> root = callback(lambda a: max(np.roots([1.0, 0.0, -a])))
    >>> round(float(jax.grad(root)(4.0)), 6)
    0.25
    >>> @callback(result=(2,), jacobian=lambda x: np.diag(np.cos(x)))
    ... def sine(x):
    ...     return np.sin(x)
    >>> jax.jacrev(sine)(np.zeros(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if function is None:
        settings = {k: v for k, v in locals().items() if k != "function"}
        return functools.partial(callback, **settings)
    for key, value in (("vectorized", vectorized), ("lock", lock)):
        if not isinstance(value, bool) and (key, value) != ("lock", None):
            raise ValueError(f"`{key}` must be true or false, but is {value!r}. Leave it out for the default.")
    signature = signature_of(function)
    inner = innermost(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    rule = choose_rule(list(signature.parameters), derivatives, jacobian, jvp, step, order, typical)
    shapes = declared(inner_result(inner, name) if result is None else result)
    if isinstance(rule, Complex) and any(s.dtype.kind == "c" for s in jax.tree_util.tree_leaves(shapes)):
        raise ValueError("`derivatives` must not be complex where the result is, but is. Write derivatives: finite.")
    if isinstance(rule, Finite):
        kinds = [leaf.dtype for leaf in jax.tree_util.tree_leaves(shapes) if leaf.dtype.kind in "fc"]
        rule = replace(rule, kinds=tuple(dict.fromkeys(kinds)))
    locked = not vectorized if lock is None else lock
    external = External(Outside(function, name, bare(signature), shapes, vectorized, locked), rule)

    @functools.wraps(inner)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return external(signature.bind(*args, **kwargs))

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {k: traced_annotation(v) for k, v in wrapper.__annotations__.items()}
    wrapper.derivatives = rule  # type: ignore[attr-defined]
    return wrapper


# ---- what is declared


def signature_of(function: Any) -> inspect.Signature:
    """The signature of a function outside JAX, without what a partial has fixed.

    Raises:
        ValueError: it is no function, has no signature, or is JAX's own.
    """
    if not callable(function):
        raise ValueError(
            f"`function` must be a function, but is {function!r}. In YAML write {{_target_: model.function, _partial_: true}}."
        )
    if is_traceable(function):
        raise ValueError(f"`function` must be outside JAX, but {function!r} is not. Call it as it is.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ValueError(
            f"`function` must have a signature, but {function!r} has none. Wrap it: lambda x: function(x)."
        ) from None
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    kept = [p for name, p in signature.parameters.items() if name not in fixed]
    return signature.replace(parameters=kept, return_annotation=traced_annotation(signature.return_annotation))


def bare(signature: inspect.Signature) -> inspect.Signature:
    """A signature without annotations, on which no call depends."""
    empty = inspect.Signature.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)


def innermost(function: Any) -> Any:
    """What is under partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_traceable(function: Any) -> bool:
    """Whether a function is known to be one that JAX traces: under `jax.jit`, or a callback."""
    return hasattr(function, "lower") or isinstance(getattr(function, "derivatives", None), AbstractRule)


def traced_annotation(hint: Any) -> Any:
    """A jaxtyping annotation of NumPy arrays as one of the arrays that JAX passes."""
    if getattr(hint, "array_type", None) is not np.ndarray or not hasattr(hint, "dim_str"):
        return hint
    return hint.dtype[jax.Array, hint.dim_str]


def inner_result(function: Any, name: str) -> Any:
    """The kind of number that a function returns by its annotation.

    Raises:
        ValueError: it returns something else, whose shape no annotation tells.
    """
    try:
        hint = inspect.signature(function, eval_str=True).return_annotation
    except Exception:  # names that resolve under TYPE_CHECKING only
        hint = inspect.Signature.empty
    if hint in (float, int, bool, complex):
        return hint
    if hint is inspect.Signature.empty or hint is Any or (isinstance(hint, type) and issubclass(hint, np.floating)):
        return float
    shown = getattr(hint, "__name__", hint)
    raise ValueError(
        f"`result` must be given where {name} returns no plain number, but is not, and it returns {shown}. Write result: [3], say."
    )


def declared(node: Any) -> Any:
    """A declared result as a pytree of shapes and dtypes, the widest of their kind.

    Raises:
        ValueError: a part of it is no shape, no kind, and no collection of these.
    """
    if isinstance(node, type) and node.__name__ in SCALARS:
        return jax.ShapeDtypeStruct((), SCALARS[node.__name__])
    if hasattr(node, "shape") and hasattr(node, "dtype"):
        return jax.ShapeDtypeStruct(tuple(node.shape), np.dtype(node.dtype))
    if isinstance(node, str):
        return read_kind(node)
    if hasattr(node, "_fields"):
        return type(node)(*map(declared, node))
    if isinstance(node, list | tuple) and all(isinstance(n, int | np.integer) and n >= 0 for n in node):
        return jax.ShapeDtypeStruct(tuple(map(int, node)), np.float64)
    if isinstance(node, list | tuple):
        return type(node)(map(declared, node))
    if isinstance(node, Mapping) and node:
        return {name: declared(child) for name, child in node.items()}
    raise ValueError(f"`result` must be {FORMS}, but holds {node!r}. Write result: [3], say.")


FORMS = "a shape, a kind (float, int[3]), or a dict or list of these"


def read_kind(text: str) -> jax.ShapeDtypeStruct:
    """`"int[3]"` as a shape and a dtype."""
    kind, bracket, sizes = text.partition("[")
    try:
        dtype = np.dtype(SCALARS.get(kind.strip(), kind.strip()))
        if bracket and not sizes.endswith("]"):
            raise ValueError(text)
        return jax.ShapeDtypeStruct(tuple(int(n) for n in sizes.rstrip("]").split(",") if n.strip()), dtype)
    except (TypeError, ValueError):
        raise ValueError(f"`result` must be {FORMS}, but holds {text!r}. Write float[3], say.") from None


def choose_rule(
    arguments: Sequence[str], derivatives: str | None, jacobian: Any, jvp: Any, step: Any, order: Any, typical: Any
) -> AbstractRule:
    """Where derivatives come from.

    Raises:
        ValueError: two sources, an unknown one, or settings of differences that would be ignored.
    """
    given = [n for n, v in (("derivatives", derivatives), ("jacobian", jacobian), ("jvp", jvp)) if v is not None]
    if len(given) > 1:
        raise ValueError(f"`{given[0]}` must be left out where {given[1]} is given, but is not. Keep one.")
    kind = given[0] if given and given != ["derivatives"] else derivatives or "finite"
    if kind not in ("finite", "complex", "none", "jacobian", "jvp"):
        raise ValueError(
            f"`derivatives` must be finite, complex or none, but is {derivatives!r}. A function of derivatives is a jacobian or a jvp."
        )
    ignored = [n for n, v in (("step", step), ("order", order), ("typical", typical)) if v is not None]
    if kind != "finite" and ignored and (kind, ignored) != ("complex", ["typical"]):
        raise ValueError(
            f"`{ignored[0]}` must be left out where derivatives are not finite differences, but is given. Remove it."
        )
    if kind in ("jacobian", "jvp"):
        if not callable(jacobian or jvp):
            raise ValueError(
                f"`{kind}` must be a function, but is {jacobian or jvp!r}. In YAML write {{_target_: ..., _partial_: true}}."
            )
        if jvp is not None and is_traceable(jvp):
            raise ValueError("`jvp` must be outside JAX, but is not. Give a jacobian, which may be under jax.jit.")
        return Declared(jacobian, jvp, jacobian is not None and is_traceable(jacobian))
    if kind == "none":
        return Undefined()
    if kind == "complex":
        return Complex(positive("typical", typical, arguments))
    if order not in (None, 2, 4):
        raise ValueError(f"`order` must be 2 or 4, but is {order!r}. Write 4 for the smaller error.")
    return Finite(positive("step", step, arguments), order or 2, positive("typical", typical, arguments))


def positive(key: str, value: Any, arguments: Sequence[str]) -> Any:
    """A positive number or an array of them, or a mapping from argument to one."""
    if isinstance(value, Mapping):
        for name in value:
            if name not in arguments:
                raise ValueError(
                    f"`{key}.{name}` must be an argument of the function, but is not. There are {', '.join(arguments)}."
                )
            positive(f"{key}.{name}", value[name], arguments)
        return dict(value)
    if value is None:
        return None
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        array = np.zeros(())
    if not (np.isfinite(array).all() and (array > 0).all()) or isinstance(value, bool):
        raise ValueError(f"`{key}` must be a positive number, but is {value!r}. Write 1e-3, say.")
    return value


# ---- in JAX


@dataclass(frozen=True, eq=False)
class External:
    """A function outside JAX with its derivatives, as JAX sees it. Static."""

    of: Outside
    rule: AbstractRule

    def __call__(self, bound: inspect.BoundArguments) -> Any:
        """Call it from JAX."""
        site, operands = self.site(bound)
        structure = jax.tree_util.tree_structure(site.result)
        value = jax.custom_jvp(lambda *operands: site.ask(Value(site), site.structs, operands))

        def tangents(primals: Any, moves: Any) -> tuple[Any, Any]:
            moved = tuple(i for i, move in enumerate(moves) if type(move) is not SymbolicZero)
            found = [zero(struct) for struct in site.structs]
            slopes = iter(self.slopes(site, moved, primals))
            for i in moved:
                for k in site.inexact:
                    found[k] = found[k] + contract(next(slopes), moves[i])
            return value(*primals), found

        value.defjvp(tangents, symbolic_zeros=True)
        found = value(*operands) if operands else site.ask(Value(site), site.structs, ())
        return jax.tree_util.tree_unflatten(structure, found)

    def site(self, bound: inspect.BoundArguments) -> tuple[Site, list[Any]]:
        """The call with its constants, and the arrays that JAX passes."""
        flat = [jax.tree_util.tree_flatten(argument) for argument in bound.arguments.values()]
        leaves = [leaf for found, _ in flat for leaf in found]
        operands = [untyped(leaf) for leaf in leaves if is_array(leaf)]
        constants = tuple(None if is_array(leaf) else leaf for leaf in leaves)
        avals = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands)
        result = jax.tree_util.tree_map(narrowed, self.of.result)
        return Site(
            self.of, tuple(bound.arguments), tuple(tree for _, tree in flat), constants, avals, result
        ), operands

    def slopes(self, site: Site, moved: tuple[int, ...], operands: Sequence[Any]) -> Sequence[Any]:
        """The derivatives of every inexact part of the result by each of the arrays `moved`.

        Raises:
            ValueError: there are none; raised while JAX traces, before anything runs.
        """
        if not moved:
            return ()
        if isinstance(self.rule, Undefined):
            raise ValueError(
                f"`derivatives` of {self.of.name} must be known where one is asked for, but are none.\n"
                "Write derivatives: finite, or give a jacobian; or pass jax.lax.stop_gradient(argument), if the derivative asked for does "
                "not need it."
            )
        for i in moved:
            if jnp.issubdtype(site.avals[i].dtype, np.complexfloating):
                raise ValueError(
                    f"`{site.place(i)[0]}` of {self.of.name} must be real to be differentiated by, but is complex. "
                    "Pass its real and its imaginary part."
                )
        if isinstance(self.rule, Declared) and self.rule.traced:
            return self.rule.trace(site, moved, operands)
        structs = [struct for i in moved for struct in site.slope_structs(i)]
        jacobian = jax.custom_jvp(lambda *operands: site.ask(Jacobian(self.rule, site, moved), structs, operands))

        def refuse(*_: Any) -> Any:
            raise ValueError(
                f"`jacobian` of {self.of.name} must be given for a second derivative, but derivatives are {self.rule}.\n"
                "Give one under jax.jit, or one made by callback; or pass jax.lax.stop_gradient(argument), if the derivative asked for "
                "does not need it."
            )

        jacobian.defjvp(refuse)
        return jacobian(*operands)  # type: ignore[no-any-return]


def is_array(leaf: Any) -> bool:
    """Whether JAX passes a part of an argument; what it cannot pass is a constant, and so are plain numbers."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc")


def untyped(array: Any) -> Any:
    """The data of a typed PRNG key; any other array as JAX passes it."""
    array = jnp.asarray(array)
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def narrowed(struct: Any) -> Any:
    """A shape with the dtype of its kind in the precision in which JAX computes."""
    return jax.ShapeDtypeStruct(struct.shape, jax.dtypes.canonicalize_dtype(struct.dtype))


def zero(struct: Any) -> Any:
    """The tangent of a part of the result that does not move."""
    inexact = jnp.issubdtype(struct.dtype, np.inexact)
    return jnp.zeros(struct.shape, struct.dtype) if inexact else np.zeros(struct.shape, jax.dtypes.float0)


def contract(slope: Any, move: Any) -> Any:
    """A Jacobian times a tangent."""
    return jnp.tensordot(slope, move.astype(slope.dtype), axes=move.ndim, precision=jax.lax.Precision.HIGHEST)
