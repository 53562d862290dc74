"""`f` → the program: derivatives innermost, then vmap over the samples of a chunk, then jit.

In: the pipeline and what is asked of it. Out: a function of one sample, the stack that turns it into the chunk's program, and
the reasons for each choice, all as data.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from engine.errors import PlanError, StageError
from engine.lowering import evaluate, look_up, status_of
from engine.outputs import Leaf, Request
from engine.pipeline import Pipeline

Mode = Literal["forward", "reverse"]
FORWARD_LIMIT = 16
"""Tangents up to which forward mode is taken: about the number at which a reverse pass with its recomputation costs the same."""

ADJOINT = {"forward": "forward", "reverse": "checkpointed"}
"""What `adjoint: auto` means to an ODE solve under each mode of differentiation."""

NONFINITE = 3


@dataclass(frozen=True, eq=False)
class Differentiation:
    """The derivatives of one mode, computed in one pass together with the values. Static."""

    mode: Mode
    requests: tuple[Request, ...]
    reason: str

    @property
    def wrt(self) -> tuple[str, ...]:
        """The parameters, each once."""
        return tuple(dict.fromkeys(name for request in self.requests for name in request.wrt))

    @property
    def of(self) -> tuple[Leaf, ...]:
        """The leaves, each once."""
        return tuple({request.of.name: request.of for request in self.requests}.values())

    def __str__(self) -> str:
        scalar = all(request.kind == "gradient" for request in self.requests)
        name = {"forward": "jacfwd", "reverse": "grad" if scalar else "jacrev"}[self.mode]
        return f"value_and_{name}({', '.join(leaf.name for leaf in self.of)}; {', '.join(self.wrt)})"


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
            with self.adjoint(ADJOINT[one.mode]):
                outputs, status, derivatives = self.differentiate(one, given, parameters, key)
            found = {**outputs, **found, **derivatives}
        if status is None:
            with self.adjoint(ADJOINT["forward"]):
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

        moved = {name: parameters[name] for name in one.wrt}
        jacobian = jax.jacfwd if one.mode == "forward" else jax.jacrev
        found, (outputs, status) = jacobian(function, has_aux=True)(moved)
        return outputs, status, {f"{r.name}.{p}": found[r.of.name][p] for r in one.requests for p in r.wrt}

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


def choose_passes(
    requests: tuple[Request, ...], shapes: Mapping[str, tuple[int, ...]], adjoints: Mapping[str, str]
) -> tuple[Differentiation, ...]:
    """Group the derivatives by mode, choosing for `auto` by the number of inputs and outputs.

    Args:
        requests: what is asked.
        shapes: of the parameters.
        adjoints: stage -> the adjoint that its solver was given by hand, where it is not `auto`.

    Raises:
        PlanError: the mode asked for cannot go through the adjoint chosen by hand.
    """
    passes: dict[Mode, tuple[list[Request], str]] = {}
    wrt = {name for request in requests for name in request.wrt}
    inputs = sum(math.prod(shapes[name]) for name in wrt)
    outputs = sum({request.of.name: math.prod(request.of.shape) for request in requests}.values())
    fixed: dict[str, Mode] = {
        stage: "forward" if a == "forward" else "reverse" for stage, a in adjoints.items() if a != "direct"
    }
    for request in requests:
        mode, reason = mode_of(request, inputs, outputs, fixed)
        for stage, only in fixed.items():
            if mode != only:
                raise PlanError(
                    f"`derivatives.{request.name}.mode` must suit the adjoint of `stages.{stage}`, but {mode} mode cannot go "
                    f"through adjoint {adjoints[stage]!r}. Write mode: {only}, or adjoint: auto."
                )
        passes.setdefault(mode, ([], reason))[0].append(request)
    return tuple(Differentiation(mode, tuple(found), reason) for mode, (found, reason) in sorted(passes.items()))


def mode_of(request: Request, inputs: int, outputs: int, fixed: Mapping[str, Mode]) -> tuple[Mode, str]:
    """Forward or reverse, and why in words."""
    if request.mode != "auto":
        asked: Mode = "forward" if request.mode == "forward" else "reverse"
        return asked, "as asked"
    if fixed:
        stage, mode = next(iter(fixed.items()))
        return mode, f"the adjoint of stage {stage!r} allows no other"
    counts = f"{inputs} input{'s' * (inputs != 1)}, {outputs} output{'s' * (outputs != 1)}"
    if inputs <= max(FORWARD_LIMIT, outputs):
        return "forward", f"{counts}: tangents carried in the same pass cost less than a reverse pass"
    return "reverse", f"{counts}: one reverse pass for each output"


def chosen_adjoints(pipeline: Pipeline) -> dict[str, str]:
    """Stages whose solver names its adjoint by hand."""
    found = {}
    for stage in pipeline.stages:
        for value in stage.constants.values():
            adjoint = getattr(value, "adjoint", "auto")
            if isinstance(adjoint, str) and adjoint != "auto":
                found[stage.name] = adjoint
    return found


@contextlib.contextmanager
def differentiable(passes: tuple[Differentiation, ...]) -> Iterator[None]:
    """JAX's refusals of a mode, in words."""
    try:
        yield
    except StageError as error:
        raise refusal(error.__cause__ or error, passes) or error from None
    except (TypeError, ValueError, NotImplementedError) as error:
        if (found := refusal(error, passes)) is None:
            raise
        raise found from None


def refusal(error: BaseException, passes: tuple[Differentiation, ...]) -> PlanError | None:
    """The message for an error that JAX raises where a derivative cannot go through, or None."""
    text = str(error)
    key = f"`derivatives.{passes[0].requests[0].name}`" if passes else "`derivatives`"
    if "forward-mode autodiff (jvp)" in text and "custom_vjp" in text:
        return PlanError(
            f"{key} must go through every stage, but forward mode meets a function that defines only a reverse derivative "
            "(custom_vjp). Write mode: reverse."
        )
    if "Reverse-mode differentiation does not work for" in text:
        return PlanError(
            f"{key} must go through every stage, but reverse mode meets a loop of unknown length (while_loop or a fori_loop with "
            "traced bounds). Write mode: forward, or use lax.scan or a fori_loop with fixed bounds in that stage."
        )
    return None


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
