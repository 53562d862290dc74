"""A function's values on both sides of a point → its slope there, how certain that is, and whether it has a kink or a jump.

In: a function of named arrays, points, and tangents. Out: `Slopes`. Knows nothing of plans.

The extrapolation is Ridders' (Advances in Engineering Software 4, 75, 1982), with his estimate of error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.axes import Array

STEPS = 10
SHRINK = 1.6
"""Ridders' tableau: so many differences, each with a step shorter by this factor."""

FIRST_STEP = 0.02
"""The longest step, relative to the parameter (to 1 where it is smaller)."""

SHORTEST = 5
"""So many of the shortest steps must agree on a kink or a jump."""

CLEARLY = 5.0
"""A kink or a jump is one if it is so many times larger than what it is uncertain by."""

Function = Callable[[Mapping[str, Any], jax.Array], Any]


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives by finite differences; arrays of the shape (samples, *value, tangents)."""

    value: Array
    """By central differences; from one side where the function is not finite on the other."""

    error: Array
    """What they are uncertain by, if the function is smooth."""

    rough: Array
    """By how much long and short steps contradict each other, as they do on noise; 0 where they agree within their errors."""

    left: Array
    right: Array
    """The slopes on either side."""

    kink: tuple[Array, Array]
    """By how much the slope on the right exceeds that on the left, as the steps go to zero, and what that is uncertain by."""

    jump: tuple[Array, Array]
    """By how much the value on the right exceeds that on the left, likewise."""

    reach: Array
    """The steepest secant of the longest step: what a slope that is nearly zero is small beside."""

    stepped: bool
    """Whether the values change over long steps, and not at all over short ones: they are rounded."""

    @property
    def move(self) -> bool:
        """Whether the values change beyond doubt."""
        return self.stepped or bool(np.nanmax(np.abs(self.value), initial=0.0) > 10 * np.max(self.error, initial=0.0))


def differences(
    function: Function,
    points: Mapping[str, Array],
    keys: jax.Array,
    direction: Mapping[str, Array],
    longest: float = FIRST_STEP,
) -> Slopes:
    """The slopes of a function along tangents.

    Args:
        function: of named arrays and a PRNG key.
        points: the arrays, with a leading axis of samples.
        keys: one for each sample.
        direction: name -> tangents, with a leading axis.
        longest: the longest step, relative to the arrays that move.
    """
    samples, tangents = len(next(iter(points.values()))), len(next(iter(direction.values())))
    sizes = np.array([np.abs(points[name]).reshape(samples, -1).max(axis=1) for name in direction])
    reach = np.array([np.abs(tangent).max() for tangent in direction.values()])[:, None]
    room = np.where(sizes > 0, sizes, 1.0) / np.where(reach > 0, reach, np.inf)
    first = longest * np.min(np.where(room > 0, room, np.inf), axis=0)
    steps = first[:, None] * SHRINK ** -np.arange(STEPS)  # (samples, steps)
    signed = np.concatenate([np.zeros((samples, 1)), steps, -steps], axis=1)
    count = signed.shape[1]
    moved = {}
    for name, value in points.items():
        full = np.broadcast_to(value[:, None, None], (samples, tangents, count, *value.shape[1:]))
        if (tangent := direction.get(name)) is not None:
            full = full + signed.reshape(samples, 1, count, *(1,) * (value.ndim - 1)) * tangent[None, :, None]
        moved[name] = full.reshape(-1, *value.shape[1:]).astype(value.dtype)
    found = np.asarray(jax.jit(jax.vmap(function))(moved, jnp.repeat(keys, tangents * count)))
    found = np.moveaxis(found.reshape(samples, tangents, count, *found.shape[1:]), 2, 0)  # steps first ...
    found = np.moveaxis(found, 2, -1)  # ... and tangents last
    h = steps.T.reshape(STEPS, samples, *(1,) * (found.ndim - 2))
    return slopes_of(found[0], found[1 : 1 + STEPS], found[1 + STEPS :], h)


def slopes_of(here: Array, above: Array, below: Array, h: Array) -> Slopes:
    """The slopes at a point, from the values there and, the longest step first, on either side."""
    with np.errstate(all="ignore"):  # values that are not finite are looked at by the caller
        forward, backward, change = (above - here) / h, (here - below) / h, above - below
        value, error = ridders(change / (2 * h))
        half = STEPS // 2
        rough = contradiction(ridders(change[:half] / (2 * h[:half])), ridders(change[half:] / (2 * h[half:])))
        right, right_error = ridders(forward, 1)
        left, left_error = ridders(backward, 1)
        for side, its_error, other in ((right, right_error, below), (left, left_error, above)):
            alone = np.isfinite(side) & np.isfinite(its_error) & ~np.isfinite(other).any(axis=0)
            value, error = np.where(alone, side, value), np.where(alone, its_error, error)
        # Rounding may hide that much, however well the values agree.
        error = np.maximum(error, np.where(np.any(change, axis=0), np.finfo(here.dtype).eps * np.abs(here) / h[0], 0.0))
        reach = np.max(np.abs(np.nan_to_num([forward[0], backward[0]], nan=0.0, posinf=0.0, neginf=0.0)), axis=0)
        stepped = bool(np.any(change[0]) and not np.any(change[-1]))
        kink, jump = limit(forward - backward), limit(change)
        return Slopes(value, error, rough, left, right, kink, jump, reach, stepped)


def ridders(slopes: Array, power: int = 2) -> tuple[Array, Array]:
    """Extrapolate differences, the longest step first, to step zero; the most certain entry of the tableau.

    Args:
        slopes: (steps, ...).
        power: of the step, by which the error of a difference falls: 2 for central ones, 1 for those to one side.
    """
    previous = [slopes[0]]
    best, error = slopes[0], np.full(slopes[0].shape, np.inf)
    for i in range(1, len(slopes)):
        row, factor = [slopes[i]], SHRINK**power
        for j in range(1, i + 1):
            row.append((row[j - 1] * factor - previous[j - 1]) / (factor - 1))
            factor *= SHRINK**power
            guess = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - previous[j - 1]))
            better = guess < error
            best, error = np.where(better, row[j], best), np.where(better, guess, error)
        previous = row
    return best, error


def limit(sequence: Array) -> tuple[Array, Array]:
    """What a sequence, the longest step first, goes to at step zero, and what that is uncertain by.

    What falls with the step, as the curvature of a smooth function does, and what is noise, is more uncertain than it is large.
    """
    straight = ((sequence[1:] * SHRINK - sequence[:-1]) / (SHRINK - 1))[-SHORTEST:]
    spread = np.maximum(np.ptp(straight, axis=0), np.abs(sequence[-1]) / (2 * CLEARLY))
    return np.median(straight, axis=0), spread


def clear(found: tuple[Array, Array]) -> Array:
    """A limit; 0 where it cannot be told from 0."""
    value, doubt = found
    return np.where(np.abs(value) > CLEARLY * doubt, value, 0.0)


def contradiction(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
    """By how much two values differ; 0 where their errors allow it."""
    apart = np.abs(a[0] - b[0])
    return np.where(apart > 3 * (a[1] + b[1]), apart, 0.0)


def sharpened(coarse: Slopes, fine: Slopes) -> Slopes:
    """Of differences with long steps and with shorter ones, the more certain; a kink of the long ones is none if the short ones see
    the function bend."""
    better = fine.error < coarse.error
    apart = contradiction((coarse.value, coarse.error), (fine.value, fine.error))
    return replace(
        coarse,
        value=np.where(better, fine.value, coarse.value),
        error=np.where(better, fine.error, coarse.error),
        rough=np.maximum(coarse.rough, apart),
        kink=seen(coarse.kink, fine.kink),
        jump=seen(coarse.jump, fine.jump),
    )


def seen(coarse: tuple[Array, Array], fine: tuple[Array, Array]) -> tuple[Array, Array]:
    """A limit of long steps, unless it is surely less by shorter ones."""
    less = np.abs(fine[0]) + fine[1] < 0.9 * np.abs(coarse[0])
    return np.where(less, fine[0], coarse[0]), np.where(less, np.maximum(np.abs(fine[0]), fine[1]), coarse[1])
