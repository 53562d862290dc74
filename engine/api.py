"""The Python door: `engine.load`, `engine.run`, `engine.converge`, `engine.open_store`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import Config, read_config
from engine.draft import make_draft
from engine.errors import PlanError
from engine.plan import Plan, make_plan
from engine.runs import carry_out, no_plan
from engine.store import open_dataset

if TYPE_CHECKING:
    import xarray

    from engine.convergence import Convergence


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Plan:
    """Compose, check, trace and cost a config; nothing is compiled or run.

    Args:
        path: a YAML config.
        overrides: `key=value` in Hydra's grammar, as on the command line.

    Returns:
        The plan. `plan.function` is the pure `f(parameters, key) -> {output: array}`.

    Raises:
        UserError: the config, the pipeline or what is asked of it is wrong.

    >>> plan = load("conf/oscillator.yaml", ["sweep.axes.omega=[1.0,2.0]", "sweep.axes.zeta=[0.1]"])
    >>> plan.draft.design.shape
    (2, 1)
    """
    return make_plan(make_draft(read_config(path, overrides)))


def run(
    plan: Plan | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    fresh: bool = False,
    retry_failed: bool = False,
    progress: bool = False,
) -> xarray.Dataset:
    """Run a plan or a config to its end and open the results; what an earlier run finished is not computed again.

    Args:
        plan: a plan, or the path of a config.
        overrides: as for `load`; only with a path.
        fresh: replace a store that is there.
        retry_failed: compute failed samples again.
        progress: show a bar on standard error.

    Returns:
        The results, opened lazily from the store. `ds.status` says of each sample whether its values may be trusted.

    Raises:
        UserError: nothing could be run.

    >>> import os, tempfile
    >>> store = os.path.join(tempfile.mkdtemp(), "oscillator.zarr")
    >>> ds = run("conf/oscillator.yaml", ["sweep.axes.omega=[1.0,2.0]", "sweep.axes.zeta=[0.1]", f"store.path={store}"])
    >>> ds.energy.dims
    ('omega', 'zeta')
    """
    from engine.progress import watcher

    source = source_of(plan, overrides)
    summary = carry_out(source, fresh=fresh, retry_failed=retry_failed, observers=[watcher()] if progress else [])
    if summary.overdue:
        raise PlanError(
            f"`execution.time_limit` must be enough for a chunk, but {summary.time_limit:g} s are not for "
            f"{'; '.join(map(str, summary.overdue))}. Finished chunks are in {summary.store}, and the same call goes on; what hangs "
            "ends with this process."
        )
    return open_store(summary.store)


def source_of(plan: Plan | str | os.PathLike[str], overrides: Sequence[str]) -> Plan | Config:
    """A plan as it is, or the config at a path.

    Raises:
        UserError: it is neither, or a plan with overrides, which would be ignored, or the config is wrong.
    """
    if not isinstance(plan, Plan | str | os.PathLike):
        raise no_plan(plan)
    if not isinstance(plan, Plan):
        return read_config(plan, overrides)
    if overrides:
        raise PlanError(
            "`overrides` must be given to engine.load, but a finished plan was given with some. Load it with them."
        )
    return plan


def converge(
    plan: Plan | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    samples: int = 8,
    within: float | None = None,
    tenth: Sequence[str] = (),
    halve: Sequence[str] = (),
    double: Sequence[str] = (),
) -> Convergence:
    """Compute some samples again with a tenth of the tolerance, half the step and twice the grid points, and say what moves.

    Args:
        plan: a plan, or the path of a config.
        overrides: as for `load`; only with a path.
        samples: at most how many, evenly spaced over the sweep with its ends.
        within: what an output may change by, relative to its size; None for a thousand times the relative tolerance, but 1e-6 at
            least and 0.01 at most.
        tenth, halve, double: keys of the config to vary in place of the settings that are recognised.

    Returns:
        A row for each output and each way to be finer; `passes` says whether all of them are resolved. Nothing is stored.

    Raises:
        UserError: there is nothing to vary, or no sample succeeds.

    >>> found = converge("conf/oscillator.yaml", ["sweep.axes.omega=[2.0]", "sweep.axes.zeta=[0.1]", "~derivatives"])
    >>> found.passes, str(found.varied[0])
    (True, 'stages.motion.solver.rtol: 1e-09 -> 1e-10')
    """
    from engine.convergence import compare

    source = source_of(plan, overrides)
    made = source if isinstance(source, Plan) else make_plan(make_draft(source))
    return compare(made, samples, within=within, tenth=tenth, halve=halve, double=double)


def open_store(path: str | Path) -> xarray.Dataset:
    """Open the results of a run, lazily, with their provenance in the attributes. Nothing that the store names is run.

    Args:
        path: a store.

    Raises:
        StoreError: there is no store of the engine's there.

    >>> import os, tempfile
    >>> store = os.path.join(tempfile.mkdtemp(), "sir.zarr")
    >>> _ = run("conf/sir.yaml", ["sweep.samples=4", f"store.path={store}"])
    >>> ds = open_store(store)
    >>> ds.status.attrs["flag_meanings"].split()[:2], ds.attrs["config"]["name"]
    (['pending', 'ok'], 'sir')
    """
    return open_dataset(path)
