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

from engine import transforms
from engine.lowering import evaluate
from engine.plan import Plan, adjoint_context, split


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

        def once(fixed: Any, swept: Any, seed: Any) -> Any:
            found = evaluate(draft.pipeline, {**fixed, **swept}, None, stages=plan.hoisted) if plan.hoisted else {}
            given = {name: found[name] for name in plan.hoisted}
            every = sample(*jax.tree_util.tree_leaves((given, fixed, swept, seed, np.uint32(0))))
            return given, {name: every[names.index(name)] for name in plan.unswept}

        self.chunk, self.once = transforms.chunk_program(one), once
        self.fixed = {name: np.asarray(draft.nominal[name]) for name in fixed}
        self.nominal = {name: np.asarray(draft.nominal[name]) for name in swept}
        seed = draft.config.settings.seed
        self.seed = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        self.given: Any = {}
        self.memory: dict[str, int] = {}
        self.once_values: dict[str, np.ndarray[Any, Any]] = {}

    def prepare(self) -> None:
        """Compile, and compute what the chunks share."""
        plan, jit = self.plan, self.plan.config.settings.execution.jit
        adjoint = adjoint_context(plan.config)
        if plan.hoisted or plan.unswept:
            function = jax.jit(self.once) if jit else self.once
            with adjoint("forward"), without_jit(not jit):
                given, unswept = function(self.fixed, self.nominal, self.seed)
            self.given = given
            self.once_values = {name: np.asarray(value) for name, value in unswept.items()}
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
