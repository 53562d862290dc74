"""Distributions of the axes → the points of a sampled design, and the quantiles of an estimate. The one home of SciPy.

In: each axis's distribution. Out: a column for each, by the inverse of its distribution function from points of the unit cube.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.axes import (
    CONSTRUCTORS,
    DISTRIBUTIONS,
    MOST_VALUES,
    Array,
    as_column,
    check_finite,
    collecting,
    read_arguments,
    read_constructor,
    read_list,
    refuse_boolean,
    require,
    shown,
)
from engine.errors import SweepError, listed

MOST_SOBOL = 21201
"""Dimensions for which SciPy has direction numbers."""

LEAST_UNIT = {"sobol": 2.0**-31}
"""Half the resolution of a sampler, where it is not that of a double: a draw of 0 stands for the cell above it."""


@dataclass(frozen=True, eq=False)
class Draw:
    """A distribution of one parameter. Static."""

    key: str
    size: int
    """Sampler dimensions it takes: one for each element of the parameter."""

    quantile: Callable[[Array], Array]
    """Unit samples, (n, size), to values, (n, *shape of the parameter)."""

    numbers: int
    """Numbers in one value."""


def read_distribution(key: str, axis: Any, nominal: Array) -> Draw:
    """A distribution; its arguments may be arrays of the parameter's shape."""
    if isinstance(axis, list | tuple | np.ndarray):
        raise SweepError(
            f"`{key}` must be a distribution for a sampled design, but is the list {shown(list(axis))}. "
            "Write {choice: [...]} to draw from it, or `sweep.design: zip` or grid to take each value."
        )
    name, arguments = read_constructor(key, axis, DISTRIBUTIONS)
    if name in CONSTRUCTORS:
        raise SweepError(
            f"`{key}` must be a distribution for a sampled design, but is {name}. "
            f"Write one of {listed(DISTRIBUTIONS)}, such as {{uniform: [low, high]}}, or `sweep.design: grid`."
        )
    key, shape = f"{key}.{name}", nominal.shape
    if name == "choice":
        return choice(key, arguments, nominal)
    refuse_boolean(key, nominal)
    make = {"uniform": uniform, "loguniform": loguniform, "normal": normal, "lognormal": lognormal}[name]
    inverse = make(key, *read_arguments(key, arguments, shape))

    def quantile(unit: Array) -> Array:
        with np.errstate(over="ignore"):
            values = inverse(unit.reshape(len(unit), *shape))
        check_finite(key, arguments, values)
        return as_column(values, nominal)

    return Draw(key, nominal.size, quantile, nominal.size)


Inverse = Callable[[Array], Array]


def uniform(key: str, low: Array, high: Array) -> Inverse:
    """Uniform on [low, high)."""
    check_order(key, low, high)
    return lambda unit: low + (high - low) * unit


def loguniform(key: str, low: Array, high: Array) -> Inverse:
    """Uniform in the logarithm."""
    check_order(key, low, high)
    require(
        np.all(low > 0),
        f"`{key}` must have a low above 0, but low is {shown(low.tolist())}. Use a small positive number, or uniform.",
    )
    with np.errstate(over="ignore"):
        ratio = high / low
    span = np.where(np.isfinite(ratio), np.log(ratio), np.log(high) - np.log(low))
    return lambda unit: np.clip(np.exp(np.log(low) + span * unit), low, high)


def normal(key: str, mean: Array, std: Array) -> Inverse:
    """Normal."""
    check_std(key, std)
    return lambda unit: mean + std * standard_normal(unit)


def lognormal(key: str, mean: Array, std: Array) -> Inverse:
    """The exponential of a normal; `mean` and `std` are those of the underlying normal, as in NumPy."""
    check_std(key, std)
    return lambda unit: np.exp(mean + std * standard_normal(unit))


def standard_normal(unit: Array) -> Array:
    """The inverse of the standard normal's distribution function."""
    from scipy.special import ndtri

    return np.asarray(ndtri(unit))


def student_quantile(probability: float, degrees: int) -> float:
    """The inverse of the distribution function of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def chi_square_tail(value: float, degrees: int) -> float:
    """The probability that a chi-square variable is larger than `value`."""
    from scipy.special import chdtrc

    return float(chdtrc(degrees, value))


def check_order(key: str, low: Array, high: Array) -> None:
    """The low must be below the high."""
    require(
        np.all(low < high),
        f"`{key}` must have low < high, but low is {shown(low.tolist())} and high is {shown(high.tolist())}. "
        "Swap them, or fix the parameter in `parameters`.",
    )


def check_std(key: str, std: Array) -> None:
    """The standard deviation must be positive."""
    require(
        np.all(std > 0),
        f"`{key}` must have std > 0, but std is {shown(std.tolist())}. Give the standard deviation, or fix the parameter.",
    )


def choice(key: str, options: list[Any], nominal: Array) -> Draw:
    """One of the options, all equally likely; an option that stands twice counts twice.

    Options of the parameter's shape are drawn whole; single numbers are drawn for each element.
    """
    require(options, f"`{key}` must hold at least one value, but is empty. Add values, or remove the axis.")
    whole = nominal.ndim == 0 or any(isinstance(option, list | tuple) for option in options)
    values = as_column(read_list(key, options, nominal if whole else nominal.reshape(-1)[0]), nominal)

    def quantile(unit: Array) -> Array:
        picked = values[np.minimum((unit * len(values)).astype(np.int64), len(values) - 1)]
        return picked[:, 0] if whole else picked.reshape(len(unit), *nominal.shape)

    return Draw(key, 1 if whole else nominal.size, quantile, nominal.size)


def draw(kind: str, draws: Mapping[str, Draw], samples: int, seed: int) -> dict[str, Array]:
    """The columns of a sampled design, by the inverse of each distribution function."""
    problems: list[str] = []
    for one in draws.values():
        if samples * one.numbers > MOST_VALUES:
            problems.append(
                f"`sweep.samples` must give at most {MOST_VALUES} numbers for each axis, but {samples} samples of "
                f"{one.numbers} are asked for by `{one.key}`. Use fewer samples."
            )
    size = sum(one.size for one in draws.values())
    if kind == "sobol" and size > MOST_SOBOL:
        problems.append(
            f"`sweep.design` must have at most {MOST_SOBOL} dimensions for sobol, but the axes have {size}. Use random."
        )
    if problems:
        raise SweepError(problems)
    columns: dict[str, Array] = {}
    for name, unit in unit_samples(kind, {name: one.size for name, one in draws.items()}, samples, seed).items():
        with collecting(problems):
            columns[name] = draws[name].quantile(np.clip(unit, LEAST_UNIT.get(kind, 2.0**-54), 1 - 2.0**-53))
    if problems:
        raise SweepError(problems)
    return columns


def unit_samples(kind: str, sizes: Mapping[str, int], samples: int, seed: int) -> dict[str, Array]:
    """Points of the unit cube, (samples, size) for each parameter, in the order written."""
    if not sizes:
        return {}
    if kind == "random":
        return {name: stream(seed, name).random((samples, size)) for name, size in sizes.items()}
    from scipy.stats import qmc

    sampler = {"sobol": qmc.Sobol, "halton": qmc.Halton, "latin_hypercube": qmc.LatinHypercube}[kind]
    with warnings.catch_warnings():
        # SciPy warns that a Sobol sequence is balanced only at a power of two; the number is the user's choice.
        warnings.simplefilter("ignore", UserWarning)
        unit = sampler(sum(sizes.values()), rng=np.random.default_rng(seed)).random(samples)
    ends = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(unit, ends, axis=1), strict=True))


def stream(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on the seed and a parameter's name."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))


def bounded_least_squares(matrix: Array, target: Array, lower: Array, upper: Array) -> Array:
    """The x between `lower` and `upper`, (k,), for which `matrix` (m, k) times x comes nearest to `target` (m,)."""
    from scipy.optimize import lsq_linear

    size = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)  # each column of length 1
    found: Array = lsq_linear(
        matrix / size, target, (lower, upper), method="bvls" if matrix.shape[1] < 200 else "trf"
    ).x
    return found / size
