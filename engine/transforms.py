"""`f` → the program: derivatives innermost, then vmap over the samples of a chunk, then jit.

In: the pipeline and what is asked of it. Out: a function of one sample, the stack that turns it into the chunk's program, and
the reasons for each choice, all as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from engine.derivatives import Differentiation, differentiable
from engine.lowering import evaluate, look_up, status_of
from engine.outputs import Leaf
from engine.pipeline import Pipeline

NONFINITE = 3


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
        parameters = {**fixed, **swept}
        found: dict[str, jax.Array] = {}
        status: jax.Array | None = None
        for one in self.passes:
            with self.adjoint(one.adjoint):
                outputs, status, derivatives = self.differentiate(one, given, parameters, key)
            found = {**outputs, **found, **derivatives}
        if status is None:
            with self.adjoint("none"):
                found, status = self.outputs_and_status(given, parameters, key)
        return found, finite_or_failed(found, status)

    def differentiate(
        self, one: Differentiation, given: Mapping[str, Any], parameters: Mapping[str, Any], key: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
        """Values, status and derivatives from one evaluation."""

        def function(moved: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            values = evaluate(self.pipeline, {**parameters, **moved}, key, given=given)
            of = {leaf.name: look_up(leaf.reference, values, leaf.name) for leaf in one.of}
            return of, self.select(values)

        with differentiable(one):
            (outputs, status), derivatives = one(function, {name: parameters[name] for name in one.wrt})
        return outputs, status, derivatives

    def outputs_and_status(
        self, given: Mapping[str, Any], parameters: Mapping[str, Any], key: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """The outputs by name and what the stages report, without derivatives."""
        return self.select(evaluate(self.pipeline, parameters, key, given=given))

    def select(self, values: Mapping[str, Any]) -> tuple[dict[str, jax.Array], jax.Array]:
        """The outputs among the stages' values, and their status."""
        return outputs_of(values, (*self.outputs, *self.coords)), status_of(values, self.pipeline.names)


def make_key(seed: jax.Array) -> jax.Array:
    """`jax.random.key(seed)` from the two words (uint32, high and low) of a seed known only at run time."""
    return jax.random.wrap_key_data(seed, impl="threefry2x32")


def outputs_of(values: Mapping[str, Any], leaves: tuple[Leaf, ...]) -> dict[str, jax.Array]:
    """The leaves' arrays by name; typed PRNG keys as their data."""
    found = {leaf.name: look_up(leaf.reference, values, leaf.name) for leaf in leaves}
    return {leaf.name: jax.random.key_data(found[leaf.name]) if leaf.prng else found[leaf.name] for leaf in leaves}


def finite_or_failed(found: Mapping[str, jax.Array], status: jax.Array) -> jax.Array:
    """The status of the store (int8): what stages report first, then `nonfinite`, then `ok`."""
    finite = jnp.array(True)
    for value in found.values():
        if jnp.issubdtype(value.dtype, jnp.inexact):
            finite &= jnp.all(jnp.isfinite(value))
    return jnp.where(status != 0, status, jnp.where(finite, 1, NONFINITE)).astype(jnp.int8)


def chunk_program(sample: Callable[..., Any]) -> Callable[..., Any]:
    """vmap over the samples of a chunk: what is given and fixed is never copied for each."""
    return jax.vmap(sample, in_axes=(None, None, 0, None, 0))


def formula(passes: tuple[Differentiation, ...], pipeline: Pipeline, width: int | None, jit: bool) -> str:
    """The stack as it is composed, outermost first."""
    parts = ["jit"] if jit else []
    if width is not None:
        parts.append(f"vmap[{width}]")
    parts += [str(one) for one in passes]
    parts.append("(" + " ∘ ".join(reversed(pipeline.names)) + ")")
    return " ∘ ".join(parts)
