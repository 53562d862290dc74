"""`Plan` → the compiled program that every chunk runs.

In: a plan. Out: a callable from a chunk's parameters and sample indices to its outputs and statuses, compiled once, and XLA's
own account of what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from engine import transforms, values
from engine.deadlines import Clock
from engine.errors import StageError, UserError, listed
from engine.plan import Plan, resized, split

ROOM = 1.5
"""A chunk whose width memory decided is widened if XLA needs less than the estimate by this factor."""


@dataclass(frozen=True)
class Cost:
    """XLA's own account of a compiled chunk, over all devices. Empty where a backend has none."""

    memory: Mapping[str, int]
    """Bytes of arguments, outputs, temporaries; of arguments whose memory outputs take over (aliased)."""

    flops: float | None = None
    """Floating-point operations; the body of a loop counts once, since XLA does not know how often it runs."""

    bytes_accessed: float | None = None

    @property
    def bytes(self) -> int:
        """Memory that a chunk in flight takes."""
        found = self.memory
        return sum(found.get(k, 0) for k in ("arguments", "outputs", "temporaries")) - found.get("aliased", 0)


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

        def once(fixed: Any, swept: Any, seed: Any) -> Any:
            *given, status = hoisted(*jax.tree_util.tree_leaves(fixed))
            found = shared(*jax.tree_util.tree_leaves((given, fixed, swept, seed, np.uint32(0))))
            return given, dict(zip([name for name in names if name in plan.unswept], found, strict=True)), status

        self.once = once
        self.chunk = transforms.on_devices(transforms.chunk_program(one, plan.at_once), plan.devices)
        self.fixed = {name: np.asarray(draft.nominal[name]) for name in fixed}
        self.nominal = {name: np.asarray(draft.nominal[name]) for name in swept}
        seed = draft.config.settings.seed
        self.seed = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        self.given: list[Any] = jax.tree_util.tree_leaves({name: draft.shapes[name] for name in plan.hoisted})
        """The arrays of the stages that all samples share; their shapes before they are computed."""
        self.donated: tuple[str, ...] = ()
        self.compiled: Any = None
        self.cost = Cost({})
        self.once_values: dict[str, np.ndarray[Any, Any]] = {}
        self.once_failed = False
        """Whether a stage that all samples share reported a failure."""

    def prepare(self, clock: Clock | None = None) -> None:
        """Compile, and compute what the chunks share; a clock is told of that."""
        plan = self.plan
        if plan.hoisted or plan.unswept:
            given = self.fixed, self.nominal, self.seed
            try:
                function = jax.jit(self.once).lower(*given).compile() if plan.jit else self.once
                with without_jit(not plan.jit), (clock or Clock()).timed("shared"):
                    self.given, unswept, status = jax.block_until_ready(function(*given))
            except Exception as error:
                raise failed_once(plan, error) from error
            self.once_values = {name: np.asarray(value) for name, value in unswept.items()}
            self.once_failed = bool(np.asarray(status))
        if plan.jit and self.compiled is None:
            self.compile()

    def compile(self) -> None:
        """Compile the program of a chunk, and take down what XLA says of its cost."""
        width = self.plan.width
        swept = {k: jax.ShapeDtypeStruct((width, *v.shape), v.dtype) for k, v in self.nominal.items()}
        index = jax.ShapeDtypeStruct((width,), np.uint32)
        given = values.abstract(self.given)
        found, _ = jax.eval_shape(self.chunk, given, self.fixed, swept, self.seed, index)
        self.donated = transforms.donatable(swept, found)

        def chunk(given: Any, fixed: Any, donated: Any, kept: Any, seed: Any, index: Any) -> Any:
            return self.chunk(given, fixed, {**donated, **kept}, seed, index)

        program = jax.jit(chunk, donate_argnums=2)
        self.compiled = program.lower(given, self.fixed, *self.parted(swept), self.seed, index).compile()
        self.cost = cost_of(self.compiled, len(self.plan.devices))

    def parted(self, swept: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The swept parameters whose memory the outputs take over, and the others."""
        donated = {name: swept[name] for name in self.donated}
        return donated, {name: value for name, value in swept.items() if name not in donated}

    def __call__(
        self, swept: Mapping[str, Any], index: np.ndarray[Any, Any]
    ) -> tuple[dict[str, np.ndarray[Any, Any]], Any]:
        """Evaluate one full chunk; waits for the device.

        Args:
            swept: the chunk's parameters, leading axis `plan.width`.
            index: global sample indices (uint32).

        Returns:
            The swept outputs by name, and the status (int8), each with that leading axis.
        """
        with without_jit(not self.plan.jit):
            if self.compiled is None:
                found, status = self.chunk(self.given, self.fixed, dict(swept), self.seed, index)
            else:
                found, status = self.compiled(self.given, self.fixed, *self.parted(swept), self.seed, index)
            return {n: np.asarray(a) for n, a in zip(self.swept, found, strict=True)}, np.asarray(status)

    def at(self, samples: np.ndarray[Any, Any]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """The outputs and the status of at most a chunk of samples, padded to the chunk's constant width with the last."""
        width, n = self.plan.width, len(samples)
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


def cost_of(compiled: Any, devices: int) -> Cost:
    """XLA's own account of a compiled program, which is that of one device, for all of them."""
    try:
        found, work = compiled.memory_analysis(), compiled.cost_analysis() or {}
        memory = {
            "arguments": int(found.argument_size_in_bytes) * devices,
            "outputs": int(found.output_size_in_bytes) * devices,
            "temporaries": int(found.temp_size_in_bytes) * devices,
            "aliased": int(found.alias_size_in_bytes) * devices,
        }
    except Exception:  # a backend without the analysis
        return Cost({})
    flops, moved = work.get("flops"), work.get("bytes accessed")
    return Cost(memory, flops and flops * devices, moved and moved * devices)


def fit(plan: Plan, fixed_width: bool = False) -> Program:
    """The compiled program of a plan; where the engine chose the chunk, cut again if XLA's account of its memory says so.

    Args:
        plan: made by an estimate of memory, which is rough.
        fixed_width: the store has its chunks already.
    """
    program = Program(plan)
    if not plan.jit:
        return program
    program.compile()
    settings = plan.config.settings.execution
    if fixed_width or settings.chunk != "auto" or not program.cost.bytes:
        return program
    if not plan.draft.design.dims:
        return with_warning(program)
    fits = max(1, int(plan.blocks.width * settings.memory / (plan.workers * program.cost.bytes)))
    narrow = plan.blocks.width < plan.widest
    if fits < plan.blocks.width or (narrow and fits > ROOM * plan.blocks.width):
        again = resized(plan, min(fits, plan.widest))
        if again.blocks.width != plan.blocks.width:
            program = Program(again)
            program.compile()
    return with_warning(program)


def with_warning(program: Program) -> Program:
    """A chunk holds one sample at least, whether it fits or not."""
    plan, unit = program.plan, 2**30
    need, memory = plan.workers * program.cost.bytes, plan.config.settings.execution.memory
    if need > memory and plan.blocks.width == 1:
        warning = (
            f"`execution.memory` should hold a sample for each of {plan.workers} workers, but they take {need / unit:.2g} GiB, and it is "
            f"{memory / unit:.2g} GiB. Raise it, take fewer workers, or lower max_steps of a solve that keeps every step."
        )
        program.plan = replace(plan, warnings=(*plan.warnings, warning))
    return program
