"""Calls into Python that vmap cannot batch, refused before anything is compiled.

In: a traced pipeline and the jaxpr of one sample. Out: nothing, or an error with the line of each call that does not say how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from engine import jaxprs
from engine.diagnosis import UNBATCHED, arguments_on, compose, definition, line_of
from engine.draft import Draft
from engine.errors import StageError
from engine.lowering import context
from engine.sites import stage_of
from engine.tracing import inputs_of


def check_batching(draft: Draft, jaxpr: Any, moved: Sequence[bool]) -> None:
    """A call into Python that depends on the sample must say how it is called for many.

    Args:
        draft: the traced pipeline.
        jaxpr: of one sample.
        moved: which of its inputs differ between samples.

    Raises:
        StageError: with each such call.
    """
    silent = [
        (eqn, site)
        for eqn, site in jaxprs.equations(jaxpr)
        if "vmap_method" in eqn.params and eqn.params["vmap_method"] is None
    ]
    if not silent:
        return
    given = [
        jax.ShapeDtypeStruct((2, *aval.shape), aval.dtype) if mark else aval
        for aval, mark in zip(jaxpr.in_avals, moved, strict=True)
    ]
    try:
        jax.eval_shape(jax.vmap(jaxpr_as_fun(jaxpr), in_axes=[0 if mark else None for mark in moved]), *given)
    except NotImplementedError:
        found = (problem(draft, eqn, site) for eqn, site in silent)
        raise StageError(list(dict.fromkeys(found))) from None


def problem(draft: Draft, eqn: Any, site: Any) -> str:
    """The message for one call."""
    pipeline = draft.pipeline
    name = stage_of(eqn, pipeline.names) or stage_of(site, pipeline.names)
    stage = pipeline[name] if name else pipeline.stages[-1]
    line = line_of(jaxprs.stack_of(site)) or definition(stage.function)
    where = context(stage, inputs_of(stage, draft.shapes))
    return compose(where, UNBATCHED, line, arguments_on(line, where)).problems[0]
