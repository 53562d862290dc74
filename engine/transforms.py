"""`f` → the program: derivatives innermost, then vmap over the samples of a chunk, then the devices, then jit.

In: the pipeline, what is asked of it, and the stack. Out: a function of one sample, and what turns it into the program of a chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from engine import values
from engine.derivatives import Differentiation, differentiable
from engine.errors import PlanError
from engine.lowering import evaluate, look_up, status_of
from engine.outputs import Leaf
from engine.pipeline import Pipeline
from engine.stack import Custom, Stack

NONFINITE = 3
STATUS = "status"
"""Where a sample's function returns what the stages report; no output is called so."""

Function = Callable[[Mapping[str, Any], Any], dict[str, Any]]
"""`f(parameters, key) -> {name: array}`, the status among them."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The function of one sample: `(given, fixed, swept, seed, index) -> (outputs, status)`. Static."""

    pipeline: Pipeline
    outputs: tuple[Leaf, ...]
    coords: tuple[Leaf, ...]
    passes: tuple[Differentiation, ...]
    hoisted: frozenset[str]
    """Stages whose values are given: nothing that is swept or differentiated moves them."""

    adjoint: Callable[[str], AbstractContextManager[Any]]
    stack: Stack

    def __call__(
        self, given: Mapping[str, Any], fixed: Mapping[str, Any], swept: Mapping[str, Any], seed: Any, index: Any
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Evaluate one sample.

        Args:
            given: the values of the hoisted stages.
            fixed: parameters that are the same for every sample.
            swept: parameters of this sample.
            seed: two uint32, the run's seed.
            index: uint32, the sample's global index.

        Returns:
            Every output and derivative by name, and the status (int8): 1 ok, else the code of the failure.
        """
        key = jax.random.fold_in(make_key(seed), index)
        function = customized(self.differentiated(given), self.stack.of_sample)
        found = dict(function({**fixed, **swept}, key))
        status = found.pop(STATUS)
        return found, finite_or_failed(found, status, self.outputs)

    def values(self, given: Mapping[str, Any], of: Sequence[Leaf] = ()) -> Function:
        """The outputs, the leaves to be differentiated, and the status, without derivatives.

        Args:
            given: the values of the hoisted stages.
            of: the leaves that a pass differentiates; it goes through the stages that they need and no other, so that what has
                no derivative may stand beside it. A transform of the user's own may mix them, and is differentiated whole.
        """
        leaves = {leaf.name: leaf for one in self.passes for leaf in one.of}
        leaves |= {leaf.name: leaf for leaf in (*self.outputs, *self.coords)}
        part = self.pipeline.upstream({leaf.reference.root for leaf in of}) if of and not self.stack.of_values else None

        def function(parameters: Mapping[str, Any], key: Any) -> dict[str, Any]:
            again = self.stack.checkpoint
            found = evaluate(self.pipeline, parameters, key, given=given, stages=part, checkpoint=again)
            if part is not None:
                done = {name: found[name] for name in (*part, *given)}
                still, known = jax.tree_util.tree_map(jax.lax.stop_gradient, (dict(parameters), done))
                # A leaf may be a parameter itself.
                found = evaluate(self.pipeline, still, key, given=known) | done | dict(parameters)
            return outputs_of(found, tuple(leaves.values())) | {STATUS: status_of(found, self.pipeline.names)}

        return customized(function, self.stack.of_values)

    def differentiated(self, given: Mapping[str, Any]) -> Function:
        """The outputs with their derivatives, each pass's from one evaluation, and the status."""
        names = [leaf.name for leaf in (*self.outputs, *self.coords)]

        def function(parameters: Mapping[str, Any], key: Any) -> dict[str, Any]:
            if not self.passes:
                with self.adjoint("none"):
                    return self.values(given)(parameters, key)
            found: dict[str, Any] = {}
            for one in self.passes:
                moved = {p: parameters[p] for p in one.wrt}
                with self.adjoint(one.adjoint), differentiable(one):
                    rest, derivatives = one(along(one, self.values(given, one.of), parameters, key), moved)
                status = (
                    rest[STATUS] if STATUS not in found else jnp.where(found[STATUS] == 0, rest[STATUS], found[STATUS])
                )
                found = {name: rest[name] for name in names} | found | derivatives | {STATUS: status}
            return found

        return function


def along(one: Differentiation, values: Function, parameters: Mapping[str, Any], key: Any) -> Callable[..., Any]:
    """The function that a pass differentiates: of the parameters that move, with all that it gives beside its leaves."""

    def function(moved: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        found = values({**parameters, **moved}, key)
        return {leaf.name: found[leaf.name] for leaf in one.of}, found

    return function


def customized(function: Function, customs: Sequence[Custom]) -> Function:
    """The function under the user's own transforms, innermost first, each checked to keep what it is given.

    Raises:
        PlanError: when traced, if one gives other names, shapes or dtypes.
    """
    for custom in customs:
        function = checked(custom, function)
    return function


def checked(custom: Custom, function: Function) -> Function:
    """A transform of the user's own applied to a function."""
    where = f"`transforms` {custom.target}"
    transformed = custom.apply(function)
    if not callable(transformed):
        raise PlanError(f"{where} must return a function, but returned {transformed!r}. Take a function, return one.")

    def call(parameters: Mapping[str, Any], key: Any) -> dict[str, Any]:
        wanted = jax.eval_shape(function, parameters, key)
        found = transformed(parameters, key)
        if not isinstance(found, Mapping) or set(found) != set(wanted):
            names = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise PlanError(
                f"{where} must give the names of the function that it is given, {sorted(wanted)}, but gives {names}. "
                "Return a dict with an array for each."
            )
        for name, value in found.items():
            have, want = values.in_words(jnp.asarray(value)), values.in_words(wanted[name])
            if have != want:
                raise PlanError(f"{where} must keep {name!r} as {want}, but gives {have}. Keep shapes and dtypes.")
        return {name: jnp.asarray(found[name]) for name in wanted}

    return call


def make_key(seed: jax.Array) -> jax.Array:
    """`jax.random.key(seed)` from the two words (uint32, high and low) of a seed known only at run time."""
    return jax.random.wrap_key_data(seed, impl="threefry2x32")


def outputs_of(values: Mapping[str, Any], leaves: tuple[Leaf, ...]) -> dict[str, jax.Array]:
    """The leaves' arrays by name; typed PRNG keys as their data."""
    found = {leaf.name: look_up(leaf.reference, values, leaf.name) for leaf in leaves}
    return {leaf.name: jax.random.key_data(found[leaf.name]) if leaf.prng else found[leaf.name] for leaf in leaves}


def finite_or_failed(found: Mapping[str, jax.Array], status: jax.Array, outputs: Sequence[Leaf]) -> jax.Array:
    """The status of the store (int8): what stages report first, then `nonfinite`, also of a number that is too large to be
    believed, then `ok`.

    Args:
        found: the outputs and derivatives.
        status: what stages report.
        outputs: what is known of the outputs: the output that says where the padding of another begins, the largest values.
    """
    lengths = {leaf.name: leaf.length for leaf in outputs if leaf.length}
    largest = {leaf.name: leaf.max_abs for leaf in outputs if leaf.max_abs is not None}
    finite = jnp.array(True)
    for name, value in found.items():
        if jnp.issubdtype(value.dtype, jnp.inexact):
            good = jnp.isfinite(value) & (jnp.abs(value) <= largest.get(name, jnp.inf))
            if name in lengths:
                padding = jnp.arange(value.shape[0]) >= found[lengths[name]]
                good |= padding.reshape(-1, *(1,) * (value.ndim - 1))
            finite &= jnp.all(good)
        elif name in largest:
            finite &= jnp.all(jnp.abs(value) <= largest[name])
    return jnp.where(status != 0, status, jnp.where(finite, 1, NONFINITE)).astype(jnp.int8)


def chunk_program(sample: Callable[..., Any], at_once: int | None = None) -> Callable[..., Any]:
    """The samples of a chunk by vmap: what is given and fixed is never copied for each.

    Args:
        sample: of `(given, fixed, swept, seed, index)`.
        at_once: the samples that are computed at once, batch after batch; all if None.
    """
    if at_once is None:
        return jax.vmap(sample, in_axes=(None, None, 0, None, 0))

    def chunk(given: Any, fixed: Any, swept: Any, seed: Any, index: Any) -> Any:
        def one(moved: Any) -> Any:
            return sample(given, fixed, moved[0], seed, moved[1])

        return jax.lax.map(one, (swept, index), batch_size=min(at_once, len(index)))

    return chunk


def on_devices(chunk: Callable[..., Any], devices: Sequence[Any]) -> Callable[..., Any]:
    """Split the samples of a chunk over devices, each of which runs its own loops to its own end.

    The program is partitioned by hand (shard_map), since a loop partitioned by the compiler would make all devices agree on
    every step whether to go on.
    """
    if len(devices) == 1:
        return chunk
    shared, split = PartitionSpec(), PartitionSpec("samples")
    return jax.shard_map(
        chunk,
        mesh=Mesh(np.array(devices), ("samples",)),
        in_specs=(shared, shared, split, shared, split),
        out_specs=split,
        check_vma=False,
    )


def donatable(inputs: Mapping[str, Any], outputs: Sequence[Any]) -> tuple[str, ...]:
    """The inputs whose memory an output of the same shape and dtype can take; each output takes one."""
    room = Counter((tuple(out.shape), str(out.dtype)) for out in outputs)
    found = []
    for name, value in inputs.items():
        kind = (tuple(value.shape), str(value.dtype))
        if room[kind]:
            room[kind] -= 1
            found.append(name)
    return tuple(found)
