"""`Pipeline` → one pure function `f(parameters, key) -> values`.

In: the graph. Out: every stage's value, from plain calls in order: JAX traces through them, and sees no engine.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from engine import jax_settings, values
from engine.diagnosis import (
    StageContext,
    explain,
    explain_bad_output,
    explain_no_return,
    explain_setting,
)
from engine.errors import PipelineError, StageError, UserError, listed, nearest
from engine.pipeline import Pipeline, Stage
from engine.references import Reference

STATUS_FIELD = "status"
ERROR = 5
KNOWN_CODES = (2, 3, 4, 5, 6)
SETTINGS = {**jax_settings.DECIDED, **jax_settings.NUMERIC}


def evaluate(
    pipeline: Pipeline,
    parameters: Mapping[str, Any],
    key: jax.Array | None,
    *,
    stages: Collection[str] | None = None,
    given: Mapping[str, Any] | None = None,
    watch: Callable[[str, Any], None] | None = None,
    checkpoint: Collection[str] = (),
) -> dict[str, Any]:
    """Call the stages in order.

    Args:
        pipeline: the graph.
        parameters: a value for every parameter, by dotted name.
        key: the PRNG key of the sample; each stage takes `fold_in(key, crc32(its name))`.
        stages: the stages to call; all if left out.
        given: values of stages that are not to be called again.
        watch: called with the name and the value of each stage as it is done.
        checkpoint: stages that a reverse pass computes again instead of keeping what it needs of them.

    Returns:
        The parameters and the value of each stage, by name.

    Raises:
        StageError: a stage cannot be traced; the message shows the user's line.
    """
    found: dict[str, Any] = {**parameters, **(given or {})}
    for stage in pipeline.stages:
        if stage.name in found or (stages is not None and stage.name not in stages):
            continue
        found[stage.name] = (run_again if stage.name in checkpoint else run_stage)(stage, found, key)
        if watch is not None:
            watch(stage.name, found[stage.name])
    return found


def run_stage(stage: Stage, found: Mapping[str, Any], key: jax.Array | None) -> Any:
    """The value of one stage, checked to be a pytree of arrays."""
    arguments = {name: collect(tree, found, stage, name) for name, tree in stage.inputs.items()}
    if stage.key_argument is not None:
        arguments[stage.key_argument] = jax.random.fold_in(key, zlib.crc32(stage.name.encode()))  # type: ignore[arg-type]
    check_annotations(stage, arguments)
    settings = jax_settings.read(SETTINGS)
    try:
        with jax.named_scope(stage.name):  # by which a number that goes wrong is traced back to its stage
            value = call(unjitted(stage.function), {**stage.constants, **arguments})
        check_settings(stage, arguments, settings)
        if value is None:
            raise explain_no_return(context(stage, arguments))
        values.register_dataclasses(value)
        if (bad := values.bad_leaf(value)) is not None:
            raise explain_bad_output(context(stage, arguments), ".".join(bad[0]), *bad[1:])
        return values.as_arrays(value)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise explain(error, context(stage, arguments)) from error


def check_settings(stage: Stage, arguments: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """A stage must not set what the stages after it are computed with.

    Raises:
        StageError: it did; the setting is put back.
    """
    after = jax_settings.read(before)
    for name, value in after.items():
        if value != before[name]:
            jax_settings.write(before)
            key = jax_settings.DECIDED.get(name)
            remedy = f"Leave it to `{key}` in the config." if key else "Set it where the module is imported."
            raise explain_setting(context(stage, arguments), name, value, before[name], remedy)


def run_again(stage: Stage, found: Mapping[str, Any], key: jax.Array | None) -> Any:
    """The value of one stage, rematerialized in a reverse pass (`jax.checkpoint`)."""
    roots = {reference.root: found[reference.root] for reference in stage.references}
    return jax.checkpoint(lambda roots, key: run_stage(stage, roots, key))(roots, key)


def unjitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is under `@jax.jit`: its cache of traces does not know which adjoint a solve inside is to take."""
    wrapped = getattr(function, "__wrapped__", None)
    return wrapped if callable(wrapped) and hasattr(function, "lower") else function


def abstract_key() -> Any:
    """Shape and dtype of the PRNG key of a sample."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call by name, but for the arguments that a signature takes by position only."""
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_ONLY]
    positional = [arguments[name] for name in names if name in arguments]
    return function(*positional, **{k: v for k, v in arguments.items() if k not in names})


def collect(
    tree: Any,
    found: Mapping[str, Any],
    stage: Stage,
    argument: str,
    over: Callable[[Callable[[Any], Any], Any], Any] = jax.tree_util.tree_map,
) -> Any:
    """A pytree of references with the values that they refer to; `over` puts it together, of values or of their shapes."""
    where = f"stages.{stage.name}._inputs_.{argument}"
    return over(lambda leaf: look_up(leaf, found, where) if isinstance(leaf, Reference) else leaf, tree)


def look_up(reference: Reference, found: Mapping[str, Any], where: str) -> Any:
    """The value that a reference refers to.

    Raises:
        PipelineError: the path leads nowhere; the message lists what is there.
    """
    try:
        return values.take(found[reference.root], reference.path)
    except values.PathError as error:
        have = f"It has {listed(error.available)}." if error.available else "It is a single array."
        raise PipelineError(
            f"`{where}` must refer to a value, but {str(reference)!r} has no {error.part!r}."
            f"{nearest(error.part, error.available)} {have}"
        ) from None


def check_annotations(stage: Stage, arguments: Mapping[str, Any]) -> None:
    """An argument annotated by jaxtyping must have that shape and dtype."""
    annotations = getattr(stage.function, "__annotations__", {})
    for name, value in arguments.items():
        hint = annotations.get(name)
        if hint is None or not hasattr(hint, "dim_str") or not values.is_array(value):
            continue
        if not matches(hint, value):
            source = ", ".join(str(r) for r in stage.references if stage.inputs.get(name) is r) or name
            raise StageError(
                f"`stages.{stage.name}` argument {name!r} must match its annotation, but does not:\n"
                f"  argument  {name}\n  given     {source}: {values.in_words(value)}\n"
                f"  expected  {getattr(hint, '__name__', hint)}\n"
                "Change the annotation, or what the argument is wired to."
            )


def matches(hint: Any, value: Any) -> bool:
    """Whether an array fits a jaxtyping annotation, its named dimensions free."""
    try:
        return isinstance(value, hint)
    except Exception:  # a forward reference or an expression that only the user's own module can resolve
        return True


def context(stage: Stage, arguments: Mapping[str, Any]) -> StageContext:
    """What a message about a stage needs to know."""
    described = {}
    for name, value in arguments.items():
        tree = stage.inputs.get(name)
        if name == stage.key_argument:
            described[name] = "the PRNG key"
        elif isinstance(tree, Reference):
            described[name] = f"{tree}: {values.in_words(value)}"
        else:
            described[name] = values.in_words(value)
    for name, value in stage.constants.items():
        described[name] = f"constant {values.in_words(value) if values.is_array(value) else shorten(value)}"
    return StageContext(stage.name, stage.target, stage.function, described, stage.widened)


def shorten(value: Any) -> str:
    """A constant in at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def reports(found: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...], jax.Array]]:
    """Every leaf called `status` in what the stages return, at any depth: stage, path, value."""
    for name in names:
        for path, leaf in values.leaves(found[name]):
            if path and path[-1] == STATUS_FIELD:
                yield name, path, jnp.asarray(leaf)


def status_of(found: Mapping[str, Any], names: Collection[str]) -> jax.Array:
    """The first status that is not 0 among those that stages report (int8; 0 = fine, else a code of the store)."""
    status = jnp.zeros((), jnp.int8)
    for name, path, reported in reports(found, names):
        if not jnp.issubdtype(reported.dtype, jnp.integer) and reported.dtype != jnp.bool_:
            raise StageError(
                f"`stages.{name}` must report an integer `status` (0 = fine), but {'.'.join((name, *path))} is "
                f"{values.in_words(reported)}. Return an integer, or give the field another name."
            )
        code = jnp.max(reported) if reported.ndim else reported
        if reported.ndim and reported.dtype != jnp.bool_:
            code = jnp.where(jnp.any(reported != 0), jnp.max(jnp.abs(reported)), 0)
        known = jnp.any(code == jnp.asarray(KNOWN_CODES))
        code = jnp.where(code == 0, 0, jnp.where(known, code, ERROR)).astype(jnp.int8)
        status = jnp.where(status == 0, code, status)
    return status
