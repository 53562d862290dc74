"""A design problem → the function that a search evaluates: objective, gradient, constraints and residuals of scaled variables.

In: a problem and its traced pipeline. Out: an `Objective`, whose derivatives are those of the pipeline's own differentiation, one sample
after the other, or reduced over a sweep in its order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from engine import jaxprs, transforms
from engine.derivatives import Differentiation
from engine.draft import Draft
from engine.errors import PlanError, listed
from engine.evaluation import Evaluation
from engine.plan import closed_bytes, differentiated, split, trace_hoisted, trace_sample
from engine.problem import Problem, with_starts
from engine.reductions import Reduction
from engine.scaling import Scaling
from engine.status import STATUS


@dataclass(frozen=True, eq=False)
class Objective:
    """The traced function of one search's evaluation. Static."""

    problem: Problem
    draft: Draft
    """With the points of the searches as its design, and what a search looks at as its outputs."""

    passes: tuple[Differentiation, ...]
    hoisted: tuple[str, ...]
    hoisted_jaxpr: Any
    sample_jaxpr: Any
    labels: tuple[str, ...]
    sample: transforms.Sample

    @cached_property
    def smooth_jaxpr(self) -> Any:
        """The same function as `sample_jaxpr`, of which a reverse pass can be differentiated once more: its adjoint keeps every step."""
        if all(one.mode == "forward" for one in self.passes):
            return self.sample_jaxpr

        def adjoint(mode: str) -> AbstractContextManager[Any]:
            return self.sample.adjoint("direct" if mode == "checkpointed" else mode)

        return trace_sample(replace(self.sample, adjoint=adjoint), self.draft)[0]

    @property
    def sample_bytes(self) -> int:
        """Estimated peak memory of one sample, in bytes."""
        return jaxprs.peak_bytes(self.sample_jaxpr) - closed_bytes(self.sample_jaxpr)

    @property
    def fixed(self) -> dict[str, Any]:
        """The parameters that neither a sweep nor a search moves."""
        return {name: np.asarray(self.draft.nominal[name]) for name in split(self.draft)[0]}

    def points(self, searches: np.ndarray[Any, Any]) -> dict[str, Any]:
        """What tells searches apart beside their variables: `swept` parameters, enumerated ones among them, and the `index` of the sample.

        Args:
            searches: flat indices.
        """
        problem, starts = self.problem, self.problem.starts
        sample, start = (np.zeros_like(searches), searches) if problem.over else np.divmod(searches, starts.count)
        swept = {} if problem.over else problem.sweep.take(sample)
        swept |= {name: starts.columns[name][start] for name in problem.choices}
        return {"swept": self.typed(swept), "index": sample.astype(np.uint32)}

    def typed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters in the dtypes in which they are computed."""
        return {name: np.asarray(value, self.draft.nominal[name].dtype) for name, value in values.items()}

    @property
    def samples(self) -> dict[str, Any]:
        """With a reduction over the sweep: its parameters and indices."""
        index = np.arange(self.problem.sweep.samples)
        return {"swept": self.typed(self.problem.sweep.take(index)), "index": index.astype(np.uint32)}

    def shared(self, seed: np.ndarray[Any, Any]) -> dict[str, Any]:
        """What all searches share: the values of the hoisted stages, fixed parameters, the seed, and the sweep if it is reduced.

        Args:
            seed: two uint32, high and low.
        """
        hoisted = jaxpr_as_fun(self.hoisted_jaxpr)
        *given, status = [0]
        if self.hoisted:
            *given, status = jax.jit(lambda fixed: hoisted(*jax.tree_util.tree_leaves(fixed)))(self.fixed)
        if int(status):
            raise PlanError(
                f"`stages` must succeed for the nominal parameters, but of {listed(self.hoisted)}, which no variable moves, one reports "
                f"status {int(status)}. Mend it, or the values that it is given."
            )
        found: dict[str, Any] = {"given": given, "fixed": self.fixed, "seed": seed}
        return found | ({"samples": self.samples} if self.problem.over else {})

    def evaluate(
        self, shared: Any, scaling: Scaling, z: Any, point: Any, batch: int | None = None, smooth: bool = False
    ) -> Evaluation:
        """What is known at one point.

        Args:
            shared: what all searches share.
            scaling: of the variables.
            z: scaled variables, (n,).
            point: what tells this search apart.
            batch: samples of a reduced sweep that are computed at once; all if None.
            smooth: so that the gradient can be differentiated.
        """
        sample = jaxpr_as_fun(self.smooth_jaxpr if smooth else self.sample_jaxpr)
        x = scaling.parted(scaling.unscaled(z))
        x = {name: value.astype(self.draft.nominal[name].dtype) for name, value in x.items()}
        slopes = scaling.slopes(z)

        def one(swept: Any, index: Any) -> Evaluation:
            return self.at(sample, shared, {**point["swept"], **swept, **x}, index, slopes)

        if not self.problem.over:
            return self.checked(one({}, point["index"]))
        samples = shared["samples"]
        count = len(samples["index"])
        every = in_batches(lambda s: one(s["swept"], s["index"]), samples, min(batch or count, count), count)
        return self.checked(self.reduced(every))

    def at(self, sample: Any, shared: Any, swept: Mapping[str, Any], index: Any, slopes: Any) -> Evaluation:
        """The evaluation of one sample; the objective of a search whose data are fitted is half the sum of squares."""
        arguments = (shared["given"], shared["fixed"], dict(swept), shared["seed"], index)
        *values, status = sample(*jax.tree_util.tree_leaves(arguments))
        found = dict(zip(self.labels, values, strict=True))
        problem, n = self.problem, len(slopes)

        def rows(key: str, size: int) -> Any:
            parts = [found[f"{key}.{name}"].reshape((size, -1)) for name in problem.names]
            return jnp.concatenate(parts, axis=1).astype(slopes.dtype) * slopes

        residuals, jacobian = jnp.zeros(0, slopes.dtype), jnp.zeros((0, n), slopes.dtype)
        if problem.objective is None:
            residuals, jacobian = self.residuals(found, rows)
            value, gradient = 0.5 * jnp.sum(residuals**2), jacobian.T @ residuals
        else:
            leaf = problem.objective
            size = math.prod(leaf.shape)
            values, slope = found[leaf.name].reshape(size), rows("objective", size)
            value, gradient = self.of_elements(values.astype(slopes.dtype), slope)
        names = [(c.key, c.leaf, math.prod(c.leaf.shape)) for c in problem.constraints]
        held = [found[leaf.name].reshape(size).astype(slopes.dtype) for _, leaf, size in names]
        held_rows = [rows(key, size) for key, _, size in names]
        return Evaluation(
            problem.sign * value,
            problem.sign * gradient,
            residuals,
            jacobian,
            jnp.concatenate(held) if held else jnp.zeros(0, slopes.dtype),
            jnp.concatenate(held_rows) if held else jnp.zeros((0, n), slopes.dtype),
            jnp.array(True),
            status,
            jnp.int32(0),
        )

    def of_elements(self, values: Any, rows: Any) -> tuple[Any, Any]:
        """An objective of several elements, reduced to one number."""
        reduction = self.problem.reduction
        if values.shape == (1,) and (reduction is None or self.problem.over):
            return values[0], rows[0]
        assert reduction is not None
        counts = jnp.ones(values.shape, bool)
        return reduction(values, counts), reduction.weights(values, counts) @ rows

    def residuals(self, found: Mapping[str, Any], rows: Any) -> tuple[Any, Any]:
        """(model - measurement) / standard deviation, and its Jacobian."""
        measured = self.problem.measurements
        assert measured is not None
        residuals, jacobian = [], []
        for leaf in self.problem.compared:
            data = jnp.asarray(measured.values[leaf.name]).ravel()
            sigma = jnp.asarray(measured.sigma.get(leaf.name, np.ones(leaf.shape))).ravel()
            residuals.append((found[leaf.name].ravel() - data) / sigma)
            jacobian.append(rows(f"data.{leaf.name}", data.size) / sigma[:, None])
        j = jnp.concatenate(jacobian)
        return jnp.concatenate(residuals).astype(j.dtype), j

    def reduced(self, every: Evaluation) -> Evaluation:
        """One evaluation of the samples', whose failed ones are left out as far as that is allowed."""
        problem, count = self.problem, len(every.value)
        good = every.status == STATUS["ok"]
        excluded = count - jnp.sum(good)
        allowed = excluded <= math.floor(problem.settings.allow_failed * count)
        first = every.status[jnp.argmax(~good)]
        low, high = limits(problem)
        neutral = jnp.where(jnp.isfinite(low), low, high)
        constraints = jnp.where(good[:, None], every.constraints, neutral)
        held_rows = jnp.where(good[:, None, None], every.constraint_jacobian, 0.0)
        reduction = problem.reduction or Reduction("mean")
        losses = problem.sign * every.value  # a worst case is that of what is asked for, not of its negative
        weights = reduction.weights(losses, good) * problem.sign
        gradient = weights @ jnp.where(good[:, None], every.gradient, 0.0)
        return Evaluation(
            problem.sign * reduction(losses, good),
            problem.sign * gradient,
            every.residuals[0],
            every.jacobian[0],
            constraints.reshape(-1),
            held_rows.reshape((-1, held_rows.shape[-1])),
            jnp.array(True),
            jnp.where(allowed, STATUS["ok"], first).astype(jnp.int8),
            excluded.astype(jnp.int32),
        )

    def checked(self, found: Evaluation) -> Evaluation:
        """The evaluation with the word whether it can be used."""
        parts = (
            found.value,
            found.gradient,
            found.residuals,
            found.jacobian,
            found.constraints,
            found.constraint_jacobian,
        )
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(part)) for part in parts]))
        status = jnp.where((found.status == STATUS["ok"]) & ~finite, STATUS["nonfinite"], found.status)
        return found._replace(fine=status == STATUS["ok"], status=status.astype(jnp.int8))


def in_batches(function: Any, samples: Any, batch: int, count: int) -> Any:
    """A function over the leading axis of its argument, `batch` elements at once, in order."""
    if batch >= count:
        return jax.vmap(function)(samples)
    one = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), samples)
    leaves, structure = jax.tree_util.tree_flatten(jax.eval_shape(function, one))
    full = [
        i for i, leaf in enumerate(leaves) if math.prod(leaf.shape)
    ]  # lax.map cannot cut arrays of no size into batches

    def sized(sample: Any) -> list[Any]:
        found = jax.tree_util.tree_leaves(function(sample))
        return [found[i] for i in full]

    found = dict(zip(full, jax.lax.map(sized, samples, batch_size=batch), strict=True))
    every = [found[i] if i in found else jnp.zeros((count, *leaf.shape), leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(structure, every)


def limits(problem: Problem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The limits of one sample's constrained elements, (k,) each, in their own units."""
    sizes = [math.prod(c.leaf.shape) for c in problem.constraints]
    low = [np.full(size, c.low) for c, size in zip(problem.constraints, sizes, strict=True)]
    high = [np.full(size, c.high) for c, size in zip(problem.constraints, sizes, strict=True)]
    return (np.concatenate(low), np.concatenate(high)) if sizes else (np.zeros(0), np.zeros(0))


def all_limits(problem: Problem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The limits of all constrained elements: at every sample of a reduced sweep."""
    low, high = limits(problem)
    times = problem.sweep.samples if problem.over else 1
    return np.tile(low, times), np.tile(high, times)


def make_objective(draft: Draft, problem: Problem) -> Objective:
    """Trace what a search evaluates, with its derivatives.

    Raises:
        PlanError: a derivative cannot go through a stage.
    """
    searched = replace(
        draft, design=with_starts(problem), outputs=problem.leaves(), coords=(), requests=problem.requests()
    )
    sample, jaxpr, labels = differentiated(searched)
    hoisted = tuple(name for name in searched.pipeline.names if name in sample.hoisted)
    once = trace_hoisted(searched, hoisted)
    return Objective(problem, searched, sample.passes, hoisted, once, jaxpr, labels, sample)
