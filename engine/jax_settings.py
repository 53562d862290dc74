"""JAX's own settings: those that the config decides, and those by which the same program gives other numbers.

A module may set them on import, a user in the environment. The config wins over the first kind; the second is part of the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax

DECIDED = {
    "jax_enable_x64": "precision",
    "jax_disable_jit": "execution.jit",
    "jax_debug_nans": "execution.debug_nans",
    "jax_debug_infs": "execution.debug_nans",
    "jax_default_device": "execution.device",
}
"""Setting -> the key of the config that decides it."""

DEBUGGING = ("jax_debug_nans", "jax_debug_infs")

NUMERIC = {
    "jax_threefry_partitionable": True,
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": 0,
    "jax_default_matmul_precision": None,
}
"""Settings by which the same stages give other numbers, with JAX's defaults."""


def read(names: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they stand for this thread."""
    return {name: getattr(jax.config, name) for name in names}


def write(values: Mapping[str, Any]) -> None:
    """Set them for all threads."""
    for name, value in values.items():
        jax.config.update(name, value)


def unusual() -> dict[str, Any]:
    """The numeric settings that are not JAX's defaults."""
    return {name: value for name, value in read(NUMERIC).items() if value != NUMERIC[name]}


def stop_debugging() -> list[str]:
    """Switch off what ends a program at its first number that is not finite; which of it was on."""
    on = [name for name in DEBUGGING if getattr(jax.config, name)]
    write(dict.fromkeys(on, False))
    return on


@contextmanager
def holding(values: Mapping[str, Any]) -> Iterator[None]:
    """Have the numeric settings, those not named at their defaults, in every thread while the block runs.

    The caller may have set them for its own thread, or have loaded a plan under others.
    """
    with ThreadPoolExecutor(1) as pool:  # a thread of its own sees what holds for all
        before = pool.submit(read, NUMERIC).result()
    write({**NUMERIC, **values})
    try:
        yield
    finally:
        write(before)
