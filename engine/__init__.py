"""A workflow engine for differentiable simulation pipelines.

conf/*.yaml --compose--> Config --build--> Pipeline (graph) --lower--> f(parameters, key) -> outputs
    config, schema       pipeline                           lowering, values
     --transform--> program --plan--> Plan (checked, costed, chunked) --execute--> Dask tasks --> Zarr
    derivatives, transforms  plan, chunks, bounds, fingerprint          program, execute, runs     store, encoding
sweep --> Design (points): designs of axes, distributions, tables
jaxpr --> facts: jaxprs, primitives;  plan --> a check of its derivatives: gradient_check, differences
plan --> whether its numbers stay with finer settings: convergence, accuracy

>>> import engine
>>> plan = engine.load("conf/oscillator.yaml", ["sweep.axes.omega.linspace=[0.5,20,4]"])
>>> plan.blocks.shape
(4, 32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError as ConfigError
from engine.errors import PipelineError as PipelineError
from engine.errors import PlanError as PlanError
from engine.errors import StageError as StageError
from engine.errors import StoreError as StoreError
from engine.errors import SweepError as SweepError
from engine.errors import UserError as UserError

if TYPE_CHECKING:
    from engine.api import converge as converge
    from engine.api import load as load
    from engine.api import open_store as open_store
    from engine.api import run as run
    from engine.plan import Plan as Plan

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "PipelineError",
    "Plan",
    "PlanError",
    "StageError",
    "StoreError",
    "SweepError",
    "UserError",
    "__version__",
    "converge",
    "load",
    "open_store",
    "run",
]

LAZY = {
    "converge": "engine.api",
    "load": "engine.api",
    "open_store": "engine.api",
    "run": "engine.api",
    "Plan": "engine.plan",
}


def __getattr__(name: str) -> Any:
    """Import what needs JAX, Dask or Zarr when it is first asked for."""
    if name not in LAZY:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
