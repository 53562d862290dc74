"""A traced program → draws of random numbers that do not depend on the sample.

In: the program of a pipeline. Out: an error for a PRNG key that a stage took in when its module was imported, a warning for one that it
makes of a constant seed: each gives every sample the same numbers. Keys are followed through splits, folds, shapes, loops and calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.dataflow import Analysis
from engine.diagnosis import explain_captured_key, line_of, short_path
from engine.errors import StageError
from engine.jaxprs import stack_of
from engine.lowering import context
from engine.pipeline import Pipeline
from engine.tracing import inputs_of, stage_on, trace_stage
from engine.values import is_key

CAPTURED, SEEDED = "captured", "seeded"
DRAWS = ("random_bits", "random_gamma", "threefry2x32", "rng_bit_generator")
"""Primitives that draw numbers from a key."""

RAW = ((2,), (4,))
"""Shapes of the last axis of a key of the old kind, an array of uint32."""


@dataclass(frozen=True)
class Origin:
    """Where a value comes from."""

    moved: bool = False
    """It depends on a parameter or on the key of the sample."""

    key: str = ""
    """Of a key: captured, or seeded by a constant."""


@dataclass(frozen=True, eq=False)
class Draw:
    """An equation that draws the same numbers for every sample."""

    key: str
    site: Any


class Origins(Analysis[Origin]):
    """Follows keys from where they are made to where numbers are drawn."""

    def __init__(self) -> None:
        self.draws: dict[tuple[int, int, str], Draw] = {}

    def constant(self, value: Any) -> Origin:
        """A constant that is a key, or may be the data of one, was there before the program."""
        dtype = getattr(value, "dtype", None)
        if dtype is None or not (is_key(dtype) or (dtype == np.uint32 and np.shape(value)[-1:] in RAW)):
            return FIXED
        return Origin(key=CAPTURED)

    def join(self, a: Origin, b: Origin) -> Origin:
        """Either way."""
        return Origin(a.moved or b.moved, CAPTURED if CAPTURED in (a.key, b.key) else a.key or b.key)

    def step(self, eqn: Any, operands: list[Origin], site: Any) -> list[Origin]:
        """A key stays what it is until numbers are drawn from it."""
        name = eqn.primitive.name
        found = self.joined([FIXED, *operands])
        if name == "random_seed" and not found.moved:
            return [Origin(key=SEEDED)]
        if name in DRAWS:
            if operands[0].key and not operands[0].moved:
                self.draws.setdefault((id(eqn), id(site), operands[0].key), Draw(operands[0].key, site))
            return [Origin(found.moved)] * len(eqn.outvars)
        return [found if holds_keys(v.aval) else Origin(found.moved) for v in eqn.outvars]


FIXED = Origin()


def holds_keys(aval: Any) -> bool:
    """Whether a value may hold keys."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and (is_key(dtype) or dtype == np.uint32)


def fixed_draws(jaxpr: Any) -> list[Draw]:
    """The draws of a program that are the same whatever its inputs."""
    origins = Origins()
    origins.run(jaxpr, [Origin(moved=True)] * len(jaxpr.jaxpr.invars))
    return list(origins.draws.values())


def check_keys(pipeline: Pipeline, shapes: Mapping[str, Any], jaxpr: Any, swept: bool) -> list[str]:
    """A warning for each stage that draws from a key of a constant seed, where there are several samples.

    Args:
        pipeline: the stages.
        shapes: of the parameters and of the stages' values.
        jaxpr: the program of all stages.
        swept: whether there are several samples.

    Raises:
        StageError: stages draw from a key that was made on import; each is named.
    """
    draws = fixed_draws(jaxpr)
    if not swept:
        draws = [draw for draw in draws if draw.key == CAPTURED]
    if not draws:
        return []
    found = by_stage(pipeline, shapes, draws)
    captured = [
        explain_captured_key(context(pipeline[name], inputs_of(pipeline[name], shapes)), stack_of(draw.site))
        for (name, key), draw in found.items()
        if key == CAPTURED
    ]
    if captured:
        raise StageError([problem for error in captured for problem in error.problems])
    return [warning(name, draw) for (name, _), draw in found.items()]


def by_stage(pipeline: Pipeline, shapes: Mapping[str, Any], draws: Sequence[Draw]) -> dict[tuple[str, str], Draw]:
    """The first draw of each kind in each stage: in a stage traced alone, else in one that draws from another stage's key."""
    found = {
        (stage.name, draw.key): draw
        for stage in pipeline.stages
        for draw in reversed(fixed_draws(trace_stage(stage, shapes)))
    }
    told = {key for _, key in found}
    found |= {(stage_on(stack_of(draw.site), pipeline).name, draw.key): draw for draw in draws if draw.key not in told}
    return {place: draw for place, draw in found.items() if place[1] in {draw.key for draw in draws}}


def warning(stage: str, draw: Draw) -> str:
    """The warning for a key of a constant seed."""
    line = line_of(stack_of(draw.site))
    where = f" ({short_path(line.file)}:{line.number})" if line else ""
    return (
        f"`stages.{stage}` should draw from the key of its sample, but draws from one of a constant seed{where}: the same numbers "
        "for every sample. Take an argument called `key`, or make the seed a parameter."
    )
