"""A model's values and the data beside them: which entries are there, what is missing, and sums over those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.arrays import as_arrays, first, floats, is_known, one_of, place

MISSING = ("refuse", "omit")


class Pair:
    """One leaf of the model and its data."""

    def __init__(self, name: str, model: Any, data: Any, missing: str) -> None:
        self.name = name
        self.model, self.data = jnp.asarray(floats("model", model)), floats(name, data)
        if self.model.shape != self.data.shape:
            raise ValueError(
                f"`{name}` must have the shape of the model, {self.model.shape}, but has {self.data.shape}. "
                "Nothing is broadcast: give a value for each."
            )
        absent = np.isnan(self.data) if is_known(self.data) else jnp.isnan(self.data)
        if missing == "refuse" and is_known(self.data) and absent.any():
            raise ValueError(
                f"`{name}` must have no missing values, but {name}{place(first(absent))} is nan. "
                "Write missing='omit' to leave such entries out."
            )
        self.present = ~absent if missing == "omit" else np.ones(self.data.shape, bool)

    def check(self, right: Callable[..., Any], words: str, *arguments: Any) -> None:
        """What is known of the data that are there must be right.

        Raises:
            ValueError: it is not.
        """
        if not is_known(self.data, *arguments):
            return
        wrong = self.present & ~np.asarray(right(self.data, *map(np.asarray, arguments)))
        if wrong.any():
            at = first(wrong)
            raise ValueError(f"`{self.name}` must be {words}, but {self.name}{place(at)} is {self.data[at]:g}.")

    def terms(self, term: Callable[..., Any], *arguments: Any) -> jax.Array:
        """The term of each entry, zero for what is missing, and no number where the model's value is not finite.

        What is missing is replaced by 1 before the arithmetic, so that its derivatives are zero too.
        """
        held = [jnp.where(self.present, part, 1.0) for part in (self.model, self.data, *arguments)]
        return jnp.where(self.present, term(*held), 0.0) + 0.0 * self.model

    def correlated(self, covariance: Any) -> jax.Array:
        """The squares that r^T C^-1 r sums, along the last axis. What is missing has the residual 0 and is independent of the rest."""
        c = floats("covariance", covariance)
        n = self.data.shape[-1] if self.data.ndim else 1
        if c.shape != (n, n):
            raise ValueError(
                f"`covariance` must have the shape of the last axis of `{self.name}` twice, {(n, n)}, but has {c.shape}."
            )
        if is_known(c) and not (np.allclose(c, c.T, rtol=1e-8, atol=0) and (np.linalg.eigvalsh(c) > 0).all()):
            raise ValueError("`covariance` must be symmetric and positive definite, but is not.")
        residual = jnp.atleast_1d(self.terms(lambda model, data: model - data))
        here = jnp.atleast_1d(self.present)
        matrix = jnp.where(here[..., :, None] & here[..., None, :], c, jnp.eye(n, dtype=c.dtype))
        factor = jnp.linalg.cholesky(matrix)
        whitened = jax.scipy.linalg.solve_triangular(factor, residual[..., None], lower=True)
        return whitened**2


def pair_up(model: Any, data: Any, missing: str) -> list[Pair]:
    """The leaves of model and data, side by side.

    Raises:
        ValueError: they do not fit each other, or there are no data.
    """
    one_of("missing", missing, MISSING)
    model, data = as_arrays(model), as_arrays(data)
    ours: Any = jax.tree_util.tree_structure(model)
    theirs: Any = jax.tree_util.tree_structure(data)
    if ours != theirs:
        raise ValueError(f"`data` must have the structure of the model, {ours}, but has {theirs}.")
    leaves = jax.tree_util.tree_leaves(model)
    pairs = [Pair(f"data{at}", m, d, missing) for m, (at, d) in zip(leaves, _named(data), strict=True)]
    if not any(pair.data.size for pair in pairs):
        raise ValueError("`data` must hold at least one value, but is empty.")
    if all(isinstance(pair.present, np.ndarray) and not pair.present.any() for pair in pairs):
        raise ValueError("`data` must hold at least one value that is not missing, but every one is nan.")
    return pairs


def for_each(name: str, value: Any, pairs: list[Pair]) -> list[Any]:
    """An argument for each leaf of the data: the same array for all, or a pytree of their structure.

    Raises:
        ValueError: it is neither, or does not broadcast to the shapes of the data.
    """
    named = _named(as_arrays(value))
    places = [f"data{at}" for at, _ in named]
    if places != ["data"] and places != [pair.name for pair in pairs]:
        raise ValueError(
            f"`{name}` must be one array, or one for each of {', '.join(pair.name for pair in pairs)}, but has "
            f"{', '.join(name + at for at, _ in named) or 'none'}."
        )
    arrays = [floats(name, leaf) for _, leaf in (named if places != ["data"] else named * len(pairs))]
    for pair, array in zip(pairs, arrays, strict=True):
        shape = pair.data.shape
        if len(array.shape) > len(shape) or any(
            n not in (1, m) for n, m in zip(array.shape[::-1], shape[::-1], strict=False)
        ):
            raise ValueError(
                f"`{name}` must be a number or of the shape of `{pair.name}`, {shape}, but has {array.shape}."
            )
    return arrays


def scales(name: str, value: Any, pairs: list[Pair]) -> list[Any]:
    """Positive numbers for each entry that is there; NaN where JAX traces one that is not.

    Raises:
        ValueError: one is known, and is not positive.
    """
    arrays = for_each(name, value, pairs)
    for pair, array in zip(pairs, arrays, strict=True):
        if is_known(array, pair.present):
            wrong = np.asarray(pair.present) & ~(np.asarray(array) > 0)
            if wrong.any():
                at = first(wrong)
                found = np.broadcast_to(array, wrong.shape)[at]
                raise ValueError(f"`{name}` must be positive, but is {found:g} for {pair.name}{place(at)}.")
    return [jnp.where(array > 0, array, jnp.nan) for array in arrays]


def summed(pairs: list[Pair], term: Callable[..., Any], *columns: list[Any]) -> jax.Array:
    """The sum of a term of model, data and arguments over all entries."""
    return total(pairs, [pair.terms(term, *rest) for pair, *rest in zip(pairs, *columns, strict=True)])


def total(pairs: list[Pair], parts: list[jax.Array]) -> jax.Array:
    """The sum of all parts; NaN if no data are there."""
    found = sum((jnp.sum(part) for part in parts), jnp.zeros(()))
    return jnp.where(count(pairs) > 0, found, jnp.nan)


def count(pairs: list[Pair]) -> jax.Array:
    """How many entries are there."""
    return sum((jnp.sum(pair.present) for pair in pairs), jnp.zeros((), int))


def _named(tree: Any) -> list[tuple[str, Any]]:
    """The leaves with where they are."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
