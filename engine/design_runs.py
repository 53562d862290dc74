"""One optimization: find or make the store, carry on what it lacks, account for it.

In: a draft with a design problem. Out: a store that holds what every search found and why it ended, and a `Summary` with the optima.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engine import runtime
from engine.draft import Draft
from engine.errors import StoreError
from engine.execute import execute
from engine.minima import Minimum, best_of, distinct
from engine.optimization import Optimization, make_optimization
from engine.reasons import REASONS
from engine.runs import (
    NAMES,
    SHOWN_FAILURES,
    Failure,
    Summary,
    check_versions,
    find_store,
    given_up,
    log_file,
    log_path,
    relabel,
    wait_for,
)
from engine.scaling import make_scaling
from engine.searches import Searches
from engine.status import OPTIMIZE_STATUS, STATUS
from engine.store import Store, create

CODES = {code: name for name, code in REASONS.items()}
SHOWN_POINTS, SHOWN_MINIMA = 10, 20
"""Design points and minima that a summary names."""


@dataclass(frozen=True)
class Optimum:
    """The best of a design point's searches."""

    point: dict[str, Any]
    """The sweep's parameters there."""

    start: int
    status: str
    reason: str
    objective: float | None
    variables: dict[str, Any]
    gradient_norm: float | None
    infeasibility: float | None
    steps: int
    converged: int
    """Of the searches of this point, how many converged."""

    minima: list[Minimum]
    """The distinct ones, the best first."""

    standard_errors: dict[str, Any]
    confidence: dict[str, Any]
    """Of a fit: of each variable, and the ends of its interval."""


def answer(
    draft: Draft,
    began: float,
    fresh: bool,
    retry_failed: bool,
    observers: Sequence[Any],
    stop: threading.Event,
    say: Any,
) -> Summary:
    """Find what a draft's store has, and search what it lacks."""
    replace = fresh or draft.config.settings.store.overwrite
    store = None if replace else find_store(draft)
    numbers = None
    if store is not None:
        retry = [code for code in OPTIMIZE_STATUS.values() if code > STATUS["ok"]] if retry_failed else []
        numbers = store.unfinished_blocks(retry)
        relabel(draft, store, say)
        if not numbers and not store.lacks_once():
            return account(draft, store, began, None, skipped=store.blocks.samples)
        check_versions(store)
    plan = make_optimization(draft, None if store is None else int(store.attributes["chunk"]))
    for warning in plan.warnings:
        say(f"warning: {warning}")
    say(f"{plan.problem.stands_for}, by {plan.problem.method}" + because(plan))
    before = 0
    if store is not None:
        before = store.blocks.samples - sum(len(store.blocks.samples_of(n)) for n in numbers or ())
        say(f"resuming {store.path}: {before} of {store.blocks.samples} searches have ended")
    with log_file(log_path(draft.store_path)):
        return search(plan, store, numbers, replace, began, before, observers, stop, say)


def because(plan: Optimization) -> str:
    """Why the engine chose the method, if it did."""
    reason = getattr(plan.problem.method, "reason", "")
    return f": {reason}" if reason else ""


def search(
    plan: Optimization,
    store: Store | None,
    numbers: list[int] | None,
    replace: bool,
    began: float,
    before: int,
    observers: Sequence[Any],
    stop: threading.Event,
    say: Any,
) -> Summary:
    """Compile, make the store if there is none, carry the batches `numbers` (None: all) to their ends."""
    with runtime.counted() as compiled:
        start = time.perf_counter()
        if store is None:
            store = create(plan.draft.store_path, plan.layout(), plan.attributes(), replace=replace)
        searches = Searches(plan, store, observers, stop)
        wait_for(searches.prepare)
        prepared = time.perf_counter() - start
        numbers = list(store.blocks) if numbers is None else numbers
        say(
            f"compiled in {prepared:.1f} s; batches of {plan.blocks.width} searches to run: {len(numbers)}, {plan.workers} at once"
        )
        start = time.perf_counter()
        try:
            with runtime.profiled(plan.config.settings.execution.profile):
                execute(searches, numbers)  # type: ignore[arg-type]
        finally:
            running = time.perf_counter() - start
            record = {
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "run_seconds": round(running, 3),
                "compile_seconds": round(prepared, 3),
                "chunks": len(numbers),
            }
            store.update_attributes(runs=[*store.attributes.get("runs", []), record])
    if not stop.is_set() and not searches.overdue:
        if improved := wait_for(searches.polish):
            say(f"polished the best of {improved} design point{'s' * (improved != 1)}")
        wait_for(searches.finish)
        finish(plan, store)
    for warning in searches.findings.warnings:
        say(f"warning: {warning}")
    if searches.resumed_from:
        say(f"killed searches went on from step {', '.join(map(str, sorted(set(searches.resumed_from))))}")
    if searches.restarted:
        say(
            f"{searches.restarted} killed searches began again from their best points: the method keeps no state that can be stored"
        )
    ended = "interrupted" if stop.is_set() else None
    ended = "stopped" if searches.halted_on_failure else "timed_out" if searches.overdue else ended
    summary = account(plan.draft, store, began, ended, skipped=before)
    summary.compilations, summary.cache_hits = compiled.programs, compiled.cache_hits
    summary.compile_seconds, summary.run_seconds = prepared, running
    summary.resumed, summary.warnings = (
        before > 0 or bool(searches.resumed_from),
        (*plan.warnings, *sorted(searches.findings.warnings)),
    )
    summary.origins = searches.findings.origins
    summary.time_limit = plan.config.settings.execution.time_limit
    summary.overdue = [given_up(plan.results.draft, samples) for samples in searches.overdue]
    return summary


def finish(plan: Optimization, store: Store) -> None:
    """Write what is known once every search has ended: coordinates, outputs that no variable moves, the best starts."""
    once = {c.name: c.values for c in plan.problem.sweep.coordinates()}
    if plan.problem.starts.several:
        parts = (store.read("objective"), store.status(), store.read("infeasibility"))
        once["best"] = best_of(*parts, plan.problem.sign)
    store.write_once(once)


def account(draft: Draft, store: Store, began: float, ended: str | None, skipped: int) -> Summary:
    """The state of a store as a summary."""
    problem = draft.problem
    assert problem is not None
    names = NAMES | {code: name for name, code in OPTIMIZE_STATUS.items()}
    status = np.asarray(store.status())
    counts = {names[int(code)]: int(n) for code, n in zip(*np.unique(status, return_counts=True), strict=True)}
    searches, ok, pending = status.size, counts.get("ok", 0), counts.get("pending", 0)
    if ended is None and pending:
        raise StoreError(
            f"`store.path` must belong to this run until it ends, but {store.path} was replaced or changed meanwhile by another. Run "
            "the command again when the other has ended."
        )
    optima = [] if pending else optima_of(draft, store)
    good = [one.status == "ok" for one in optima]
    points = status.reshape(-1, problem.starts.count) if problem.starts.several else status.reshape(-1, 1)
    every = bool((points == STATUS["ok"]).any(axis=1).all())
    state = ended or ("complete" if every else "partial" if any(good) or ok else "failed")
    bad = np.flatnonzero(status.ravel() > STATUS["ok"])[:SHOWN_FAILURES]
    failures = [failure(draft, store, int(i), names) for i in bad]
    log = log_path(store.path)
    return Summary(
        state,
        str(store.path),
        searches,
        ok,
        searches - ok - pending,
        skipped,
        seconds=time.perf_counter() - began,
        fingerprint=draft.fingerprint,
        log=str(log) if log.exists() else None,
        pending=pending,
        computed=searches - pending - skipped,
        warnings=draft.warnings,
        counts=counts,
        failures=failures,
        optima=optima[:SHOWN_POINTS],
        design=True,
    )


def failure(draft: Draft, store: Store, search: int, names: dict[int, str]) -> Failure:
    """A search that did not converge: where, why, and the variables at its best point or at its start."""
    problem = draft.problem
    assert problem is not None
    place = np.unravel_index(search, problem.shape) if problem.shape else ()
    found: dict[str, Any] = dict(point_of(draft, search))
    if problem.starts.several:
        found["start"] = search % problem.starts.count
    for name in problem.names:
        value = np.asarray(store.read(f"variables.{name}")[place])
        if not np.isfinite(value).all():
            value = np.asarray(problem.starts.columns[name][search % problem.starts.count])
        found[name] = value.tolist() if value.size <= 8 else f"{value.size} values"
    code = int(store.status()[place])
    return Failure(search, names[code], found, CODES.get(int(store.read("reason")[place]), ""))


def point_of(draft: Draft, search: int) -> dict[str, Any]:
    """The sweep's parameters of a search."""
    problem = draft.problem
    assert problem is not None
    return {} if problem.over else dict(problem.sweep.point(search // problem.starts.count))


def optima_of(draft: Draft, store: Store) -> list[Optimum]:
    """The best of each design point, with the distinct minima of its searches; the first of many points."""
    problem = draft.problem
    assert problem is not None
    count = problem.starts.count
    points = min(problem.searches // count, SHOWN_POINTS)
    scaling = make_scaling(problem.variables)

    def rows(name: str) -> np.ndarray[Any, Any]:
        found = store.read(name)
        return found.reshape((-1, count, *found.shape[len(problem.shape) :]))

    status, objective, violated = rows("status"), rows("objective"), rows("infeasibility")
    norm, steps, reason = rows("gradient_norm"), rows("steps"), rows("reason")
    values = {name: rows(f"variables.{name}") for name in (*problem.names, *problem.choices)}
    fitted = problem.names if problem.residual else ()
    errors = {name: rows(f"standard_error.{name}") for name in fitted}
    intervals = {name: rows(f"confidence.{name}") for name in fitted}
    names = {code: name for name, code in OPTIMIZE_STATUS.items()}
    best = best_of(objective, status, violated, problem.sign)
    found = []
    for p in range(points):
        at = max(int(best[p]), 0)
        each = [{name: value[p, k].tolist() for name, value in values.items()} for k in range(count)]
        z = scaling.scaled(scaling.gathered({name: values[name][p] for name in problem.names}, 1))
        minima = distinct(z, objective[p], status[p], each, problem.sign)[:SHOWN_MINIMA]
        found.append(
            Optimum(
                point_of(draft, p * count),
                at,
                names[int(status[p, at])],
                CODES.get(int(reason[p, at]), ""),
                finite(objective[p, at]),
                each[at],
                finite(norm[p, at]),
                finite(violated[p, at]),
                int(steps[p, at]),
                int(np.count_nonzero(status[p] == STATUS["ok"])),
                minima,
                {name: value[p, at].tolist() for name, value in errors.items()},
                {name: value[p, at].tolist() for name, value in intervals.items()},
            )
        )
    return found


def finite(value: Any) -> float | None:
    """A number, or None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
