"""`Plan` → the compiled program that every chunk runs.

In: a plan. Out: a callable from a chunk's parameters and sample indices to its outputs and statuses, compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from engine import transforms
from engine.errors import StageError, UserError, listed
from engine.plan import Plan, split


class Program:
    """The compiled program of a plan, shared by all workers of a process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        draft, names = plan.draft, plan.labels
        self.swept = tuple(v.name for v in plan.variables if v.swept)
        sample = jaxpr_as_fun(plan.sample_jaxpr)
        fixed, swept = split(draft)
        keep = [names.index(name) for name in self.swept]

        def one(*arguments: Any) -> Any:
            found = sample(*jax.tree_util.tree_leaves(arguments))
            return [found[i] for i in keep], found[-1]

        hoisted = jaxpr_as_fun(plan.hoisted_jaxpr)
        shared = only(plan.sample_jaxpr, [*(name in plan.unswept for name in names), False])
        structure = jax.tree_util.tree_structure({name: draft.shapes[name] for name in plan.hoisted})

        def once(fixed: Any, swept: Any, seed: Any) -> Any:
            *leaves, status = hoisted(*jax.tree_util.tree_leaves(fixed))
            given = jax.tree_util.tree_unflatten(structure, leaves)
            found = shared(*jax.tree_util.tree_leaves((given, fixed, swept, seed, np.uint32(0))))
            return given, dict(zip([name for name in names if name in plan.unswept], found, strict=True)), status

        self.chunk, self.once = transforms.chunk_program(one), once
        self.fixed = {name: np.asarray(draft.nominal[name]) for name in fixed}
        self.nominal = {name: np.asarray(draft.nominal[name]) for name in swept}
        seed = draft.config.settings.seed
        self.seed = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        self.given: Any = {}
        self.memory: dict[str, int] = {}
        self.once_values: dict[str, np.ndarray[Any, Any]] = {}
        self.once_failed = False
        """Whether a stage that all samples share reported a failure."""

    def prepare(self) -> None:
        """Compile, and compute what the chunks share."""
        plan, jit = self.plan, self.plan.config.settings.execution.jit
        if plan.hoisted or plan.unswept:
            function = jax.jit(self.once) if jit else self.once
            try:
                with without_jit(not jit):
                    self.given, unswept, status = jax.block_until_ready(function(self.fixed, self.nominal, self.seed))
            except Exception as error:
                raise failed_once(plan, error) from error
            self.once_values = {name: np.asarray(value) for name, value in unswept.items()}
            self.once_failed = bool(np.asarray(status))
        if jit:
            width = plan.blocks.width
            swept = {k: jax.ShapeDtypeStruct((width, *v.shape), v.dtype) for k, v in self.nominal.items()}
            index = jax.ShapeDtypeStruct((width,), np.uint32)
            lowered = jax.jit(self.chunk).lower(self.given, self.fixed, swept, self.seed, index)
            self.chunk = lowered.compile()
            self.memory = memory_of(self.chunk)

    def __call__(
        self, swept: Mapping[str, Any], index: np.ndarray[Any, Any]
    ) -> tuple[dict[str, np.ndarray[Any, Any]], Any]:
        """Evaluate one full chunk; waits for the device.

        Args:
            swept: the chunk's parameters, leading axis `blocks.width`.
            index: global sample indices (uint32).

        Returns:
            The swept outputs by name, and the status (int8), each with that leading axis.
        """
        with without_jit(not self.plan.config.settings.execution.jit):
            found, status = self.chunk(self.given, self.fixed, dict(swept), self.seed, index)
            return {n: np.asarray(a) for n, a in zip(self.swept, found, strict=True)}, np.asarray(status)

    def at(self, samples: np.ndarray[Any, Any]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """The outputs and the status of at most a chunk of samples, padded to the chunk's constant width with the last."""
        width, n = self.plan.blocks.width, len(samples)
        padded = samples if n == width else np.concatenate([samples, np.full(width - n, samples[-1])])
        swept = self.plan.draft.design.take(padded)
        swept = {name: np.asarray(swept[name], self.nominal[name].dtype) for name in self.nominal}
        outputs, status = self(swept, padded.astype(np.uint32))
        return {name: array[:n] for name, array in outputs.items()}, status[:n]


def only(jaxpr: Any, wanted: list[bool]) -> Any:
    """The function of a jaxpr that computes some of its outputs, and nothing that they do not need."""
    lean, _ = dce_jaxpr(jaxpr.jaxpr, wanted, instantiate=True)
    return jaxpr_as_fun(jaxpr.replace(jaxpr=lean))


def failed_once(plan: Plan, error: Exception) -> UserError:
    """The error for stages computed once for all samples that raised."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    names = listed(plan.hoisted) if plan.hoisted else "what all samples share"
    return StageError(
        f"`stages` must run to their end, but of {names}, computed once for all samples, one raised: {said[-1]}. Mend it, "
        "or the values that it is given."
    )


def without_jit(off: bool) -> AbstractContextManager[Any]:
    """Op by op, for debugging."""
    return jax.disable_jit() if off else nullcontext()


def memory_of(compiled: Any) -> dict[str, int]:
    """XLA's own account of a compiled program's memory, in bytes."""
    try:
        found = compiled.memory_analysis()
        return {
            "arguments": int(found.argument_size_in_bytes),
            "outputs": int(found.output_size_in_bytes),
            "temporaries": int(found.temp_size_in_bytes),
        }
    except Exception:  # a backend without the analysis
        return {}
