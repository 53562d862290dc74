"""Spectral operators on periodic axes: exact for the trigonometric interpolant, so that errors for smooth values fall faster than any
power of the spacing.

Source: L. N. Trefethen, Spectral Methods in MATLAB, SIAM (2000), chapter 3; S. A. Orszag, J. Atmos. Sci. 28, 1074 (1971), for the
rule of two thirds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.pde.grid import Grid


def spectral_derivative(u: Any, grid: Grid, *, axis: int = 0, times: int = 1) -> jax.Array:
    """The derivative along a periodic axis, taken `times` times.

    Args:
        u: values at the points, (..., *grid.shape), real or complex.
        grid: the grid, periodic along the axis.
        axis: of the grid.
        times: how often to differentiate. An odd derivative of the highest wave of an even number of points is zero.

    Returns:
        Values at the points, of the shape of u.

    Raises:
        ValueError: the axis is not periodic, or an argument is wrong.

    >>> import jax.numpy as jnp
    >>> grid = Grid((0.0, 1.0), 4, periodic=True)
    >>> slope = spectral_derivative(jnp.sin(2 * jnp.pi * grid.coordinates()), grid)
    >>> [round(float(value), 4) + 0.0 for value in slope]
    [6.2832, 0.0, -6.2832, 0.0]
    """
    wanted: Any = times
    if not isinstance(wanted, int) or wanted < 1:
        raise ValueError(f"`times` must be a positive integer, but is {times!r}.")

    def factors(wave: Any, n: int, length: float) -> Any:
        steps = (2j * np.pi / length * wave) ** times
        return np.where((2 * np.abs(wave) == n) & (times % 2 == 1), 0, steps)

    return _multiplied(u, grid, axis, "spectral_derivative", factors)


def spectral_laplacian(u: Any, grid: Grid) -> jax.Array:
    """The sum of the second derivatives along all axes, all periodic; arguments as of `spectral_derivative`."""
    parts = [spectral_derivative(u, grid, axis=k, times=2) for k in range(grid.ndim)]
    return sum(parts[1:], parts[0])


def dealias(u: Any, grid: Grid) -> jax.Array:
    """The array without its waves above two thirds of the highest, along all axes, all periodic.

    The product of two such arrays, so filtered again, is free of aliases: `dealias(dealias(u) * dealias(v))`.
    """
    for k in range(grid.ndim):
        u = _multiplied(u, grid, k, "dealias", lambda wave, n, length: np.where(3 * np.abs(wave) < n, 1, 0))
    return jnp.asarray(u)


def _multiplied(u: Any, grid: Grid, axis: int, operator: str, factors: Callable[[Any, int, float], Any]) -> jax.Array:
    """The array with its waves along an axis multiplied; `factors` takes their numbers, the points and the length."""
    k = grid.position(axis)
    u = grid.values("u", u)
    chosen, dim = grid.axes[k], u.ndim - grid.ndim + k
    if not chosen.periodic:
        raise ValueError(
            f"`grid.periodic` must be true along axis {k} for {operator}, which is made of waves, but is false. "
            "Use finite differences: derivative, laplacian."
        )
    real = not jnp.issubdtype(u.dtype, jnp.complexfloating)
    n = chosen.n
    wave = np.arange(n // 2 + 1) if real else np.rint(np.fft.fftfreq(n, 1 / n))
    factor = factors(wave, n, chosen.upper - chosen.lower)
    to, back = (jnp.fft.rfft, jnp.fft.irfft) if real else (jnp.fft.fft, jnp.fft.ifft)
    waves = to(u, axis=dim)
    shaped = jnp.asarray(factor.reshape(-1, *(1,) * (u.ndim - dim - 1)), waves.dtype)
    return back(waves * shaped, n=n, axis=dim).astype(u.dtype)
