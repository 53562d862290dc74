"""One run: find or make the store, compute what it lacks, account for it.

In: a config or a plan. Out: a store that holds every sample's result or the reason why not, and a `Summary`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import jax_settings, runtime
from engine.config import Config, encode
from engine.deadlines import Clock, watch
from engine.draft import Draft, derivative_leaves, make_draft
from engine.errors import PlanError, StoreError, listed
from engine.nonfinite import NonFinite, Tally, read_entries
from engine.origins import Trouble
from engine.plan import Plan, attributes_of, make_layout, make_plan
from engine.status import STATUS
from engine.store import Store, check_layout, create, open_existing

if TYPE_CHECKING:
    from engine.program import Program

LOG = logging.getLogger("engine")
SHOWN_FAILURES = 10
NAMES = {code: name for name, code in STATUS.items()}


@dataclass(frozen=True)
class Failure:
    """A sample that failed, with what it was."""

    sample: int
    status: str
    parameters: dict[str, Any]
    reason: str = ""
    """Why a search did not converge."""


@dataclass(frozen=True)
class Running:
    """A chunk that was given up while it was computed; its samples are pending."""

    samples: int
    first: int
    last: int
    at_first: dict[str, Any]
    at_last: dict[str, Any]

    def __str__(self) -> str:
        ends = [(self.first, self.at_first), (self.last, self.at_last)][: min(self.samples, 2)]
        words = [f"{i}" + (f" ({point(at)})" if at else "") for i, at in ends]
        return f"sample {words[0]}" if self.samples == 1 else f"{self.samples} samples, {' to '.join(words)}"


def point(parameters: dict[str, Any]) -> str:
    """Parameters in words: `k=1.5, n=3`."""
    return ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in parameters.items())


@dataclass
class Summary:
    """What a run did."""

    status: str
    """complete | partial (some samples failed) | failed (all did) | stopped (on_error: stop) | timed_out | interrupted."""

    store: str
    samples: int
    ok: int
    failed: int
    skipped: int
    """Samples that an earlier run had finished."""

    compilations: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    run_seconds: float = 0.0
    seconds: float = 0.0
    fingerprint: str = ""
    log: str | None = None
    resumed: bool = False
    pending: int = 0
    computed: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """Samples with each status, by name."""

    failures: list[Failure] = field(default_factory=list)
    """The first failed samples."""

    nonfinite: list[NonFinite] = field(default_factory=list)
    """The variables that are not finite in samples of that status."""

    raised: list[Trouble] = field(default_factory=list)
    """What the first sample of this run that raised says; empty if none did."""

    origins: list[Trouble] = field(default_factory=list)
    """With `execution.debug_nans`: where the first failed sample went wrong."""

    time_limit: float | None = None
    """Seconds that a chunk may take."""

    overdue: list[Running] = field(default_factory=list)
    """The chunks that took longer."""

    design: bool = False
    """Whether this was an optimization: its samples are searches."""

    optima: list[Any] = field(default_factory=list)
    """The best of the first design points."""

    @property
    def exit_code(self) -> int:
        """0 done, 3 done with failed samples, or stopped on one or at the time limit, 130 interrupted."""
        return {"complete": 0, "interrupted": 130}.get(self.status, 3)


def carry_out(
    source: Config | Plan,
    *,
    fresh: bool = False,
    retry_failed: bool = False,
    observers: Sequence[Any] = (),
    stop: threading.Event | None = None,
    say: Any = lambda text: None,
) -> Summary:
    """Run a config or a plan to its end, or to where it is stopped.

    Args:
        source: what to run.
        fresh: replace a store that is there.
        retry_failed: compute failed samples again.
        observers: watch the run.
        stop: set from outside to end after the chunks in flight.
        say: called with a line for people at each turn.

    Raises:
        UserError: nothing could be run; nothing that was computed is lost.
    """
    began = time.perf_counter()
    stop = stop or threading.Event()
    if isinstance(source, Plan):
        runtime.configure(source.config.settings)  # another plan may have set another precision since
    draft = source.draft if isinstance(source, Plan) else make_draft(source)
    with jax_settings.holding(draft.jax_settings):
        if draft.problem is not None:
            from engine import design_runs

            return design_runs.answer(draft, began, fresh, retry_failed, observers, stop, say)
        return answer(source, draft, began, fresh, retry_failed, observers, stop, say)


def answer(
    source: Config | Plan,
    draft: Draft,
    began: float,
    fresh: bool,
    retry_failed: bool,
    observers: Sequence[Any],
    stop: threading.Event,
    say: Any,
) -> Summary:
    """Find what a draft's store has, and compute what it lacks."""
    replace = fresh or draft.config.settings.store.overwrite
    store = None if replace else find_store(draft)
    numbers = None
    if store is not None:
        retry = [code for code in STATUS.values() if code > STATUS["ok"]] if retry_failed else []
        numbers = store.unfinished_blocks(retry)
        relabel(draft, store, say)
        if not numbers and not store.lacks_once():
            return account(draft, store, began, None, skipped=draft.design.samples)
        check_versions(store)
    plan = plan_for(source, draft, store)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    before = 0
    if store is not None:
        before = draft.design.samples - sum(len(store.blocks.samples_of(n)) for n in numbers or ())
        say(f"resuming {store.path}: {before} of {draft.design.samples} samples are done")
    with log_file(log_path(draft.store_path)):
        return compute(plan, store, numbers, replace, began, before, observers, stop, say, retry_failed)


def compute(
    plan: Plan,
    store: Store | None,
    numbers: list[int] | None,
    replace: bool,
    began: float,
    before: int,
    observers: Sequence[Any],
    stop: threading.Event,
    say: Any,
    again: bool = False,
) -> Summary:
    """Compile, make the store if there is none, run the blocks `numbers` (None: all), and record what happened.

    With `again`, every failed sample is among them.
    """
    from engine.execute import Runner, execute

    with runtime.counted() as compiled:
        start = time.perf_counter()
        program = compiled_program(plan, fixed_width=store is not None)
        share(program)
        for warning in program.plan.warnings[len(plan.warnings) :]:
            say(f"warning: {warning}")
        plan = program.plan
        prepared = time.perf_counter() - start
        if store is None:
            store = create(plan.draft.store_path, make_layout(plan), attributes_of(plan), replace=replace)
        numbers = list(store.blocks) if numbers is None else numbers
        say(
            f"compiled in {prepared:.1f} s; chunks of {plan.blocks.width} to run: {len(numbers)}, {plan.workers} at once"
        )
        store.write_once(program.once_values | coordinates(plan), failed=failed_once(program))
        counted = store.attributes.get("nonfinite", [])
        tally = Tally(plan, program.once_values, [] if again else counted)
        runner = Runner(plan, program, store, observers, stop, tally)
        start = time.perf_counter()
        try:
            with runtime.profiled(plan.config.settings.execution.profile):
                execute(runner, numbers)
        finally:
            running = time.perf_counter() - start
            record = {
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "run_seconds": round(running, 3),
                "compile_seconds": round(prepared, 3),
                "chunks": len(numbers),
            }
            if again and stop.is_set():  # some were not computed again
                tally.keep(counted)
            store.update_attributes(runs=[*store.attributes.get("runs", []), record], nonfinite=tally.entries())
    ended = "interrupted" if stop.is_set() else None
    ended = "stopped" if runner.halted_on_failure else "timed_out" if runner.overdue else ended
    summary = account(plan.draft, store, began, ended, skipped=before)
    summary.compilations, summary.cache_hits = compiled.programs, compiled.cache_hits
    summary.compile_seconds, summary.run_seconds = prepared, running
    summary.memory, summary.resumed, summary.warnings = dict(program.cost.memory), before > 0, plan.warnings
    summary.raised, summary.origins = runner.raised, runner.origins
    summary.time_limit = plan.config.settings.execution.time_limit
    summary.overdue = [given_up(plan.draft, samples) for samples in runner.overdue]
    return summary


def given_up(draft: Draft, samples: np.ndarray[Any, Any]) -> Running:
    """A chunk that is being computed."""
    first, last = int(samples[0]), int(samples[-1])
    return Running(len(samples), first, last, draft.design.point(first), draft.design.point(last))


def share(program: Program) -> None:
    """Compute what all samples share.

    Raises:
        PlanError: it takes longer than a chunk may.
    """
    clock, limit = Clock(), program.plan.config.settings.execution.time_limit
    if wait_for(lambda: watch(clock, lambda: program.prepare(clock), limit, lambda: None)):
        names = listed(program.plan.hoisted) if program.plan.hoisted else "what all samples share"
        raise PlanError(
            f"`execution.time_limit` must be enough for {names}, computed once for all samples, but {limit:g} s are not. Bound the "
            "loops there, or raise the limit."
        )


def failed_once(program: Program) -> list[str]:
    """The outputs that all samples share and that are not to be believed."""
    limits = {leaf.name: leaf.max_abs for leaf in program.plan.draft.outputs if leaf.max_abs is not None}
    return [
        name
        for name, value in program.once_values.items()
        if program.once_failed or (np.abs(value) > limits.get(name, np.inf)).any()
    ]


def compiled_program(plan: Plan, fixed_width: bool = False) -> Program:
    """Compile a plan, and trace its stages once more meanwhile.

    Raises:
        StageError: the second trace is another program.
    """
    from engine.program import fit
    from engine.purity import check_traces

    pool = ThreadPoolExecutor(1)
    again = pool.submit(check_traces, plan.draft)
    pool.shutdown(wait=False)
    program: Program = wait_for(lambda: fit(plan, fixed_width))
    again.result()
    return program


def wait_for(function: Any) -> Any:
    """Call in a thread and wait, so that Ctrl-C is heard while XLA compiles."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function).result()
    finally:
        pool.shutdown(wait=False)


def plan_for(source: Config | Plan, draft: Draft, store: Store | None) -> Plan:
    """The plan, with the chunks that a store already has."""
    if store is None:
        return source if isinstance(source, Plan) else make_plan(draft)
    width = int(store.attributes["chunk"])
    if isinstance(source, Plan) and source.blocks.width == width:
        return source
    return make_plan(draft, chunk=width)


def find_store(draft: Draft) -> Store | None:
    """The store of this question, or None if there is none yet.

    Raises:
        StoreError: the path holds the answer to another question; the message says what differs.
    """
    store = open_existing(draft.store_path)
    if store is None or store.attributes.get("fingerprint") == draft.fingerprint:
        return store
    raise StoreError(
        f"`store.path` must be free or hold this run's results, but {draft.store_path!r} holds another run's. "
        f"What differs: {differences(draft, store)}. Give another store.path, leave it out, or replace it with --fresh."
    )


def check_store(plan: Plan) -> None:
    """Refuse what a run of a plan could not store, or could not go on with."""
    check_layout(make_layout(plan))
    if not plan.config.settings.store.overwrite:
        find_store(plan.draft)


def relabel(draft: Draft, store: Store, say: Any) -> None:
    """Units and descriptions are no part of the question: the store takes those that the config has now."""
    leaves = {
        leaf.name: dict(leaf.attributes) for leaf in (*draft.outputs, *derivative_leaves(draft.requests, draft.shapes))
    }
    if changed := store.relabel(leaves):
        say(f"{store.path}: new units or descriptions for {listed(changed)}")


def differences(draft: Draft, store: Store) -> str:
    """What differs between a draft and a store, in words."""
    old, new = (dict(flatten(meaning(node))) for node in (store.attributes["config"], encode(dict(draft.config.node))))
    keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    shown = [f"{k} was {old.get(k, 'absent')!r} and is {new.get(k, 'absent')!r}" for k in keys[:5]]
    if len(keys) > 5:
        shown.append(f"and {len(keys) - 5} more")
    parts = store.attributes.get("parts", {})
    if not shown:
        changed = [name for name in {**draft.parts, **parts} if parts.get(name) != draft.parts.get(name)]
        words = {"program": "the code of the stages"} | {name: f"JAX's setting {name}" for name in jax_settings.NUMERIC}
        shown = [words.get(name, f"the {name}") for name in changed]
    return "; ".join(shown)


def meaning(node: dict[str, Any]) -> dict[str, Any]:
    """The sections of a stored config that say what is asked."""
    return {
        k: v for k, v in node.items() if k not in ("name", "execution", "scheduler", "store", "constants", "solver")
    }


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested data with its dotted key."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield from flatten(child, f"{prefix}{name}.")
    else:
        yield prefix.rstrip("."), node


def check_versions(store: Store) -> None:
    """An unfinished store goes on only under the libraries that it began with: results are never mixed.

    Raises:
        StoreError: with the versions that differ.
    """
    old, new = store.attributes.get("versions", {}), runtime.versions()
    names = ("jax", "jaxlib", "diffrax", "equinox", "numpy")
    changed = [f"{name} {old[name]} -> {new[name]}" for name in names if name in old and old[name] != new[name]]
    if changed:
        raise StoreError(
            f"`store.path` must be finished with the libraries that it was begun with, but {store.path} is half done and "
            f"{listed(changed)} changed. Install those versions again, or start over with --fresh."
        )


def coordinates(plan: Plan) -> dict[str, np.ndarray[Any, Any]]:
    """The sweep's own coordinates."""
    return {coordinate.name: coordinate.values for coordinate in plan.draft.design.coordinates()}


def account(draft: Draft, store: Store, began: float, ended: str | None, skipped: int) -> Summary:
    """The state of a store as a summary."""
    status = np.asarray(store.status())
    counts = {
        NAMES.get(int(code), str(code)): int(n) for code, n in zip(*np.unique(status, return_counts=True), strict=True)
    }
    samples, ok, pending = status.size, counts.get("ok", 0), counts.get("pending", 0)
    failed = samples - ok - pending
    if ended is None and pending:
        raise StoreError(
            f"`store.path` must belong to this run until it ends, but {store.path} was replaced or changed meanwhile by another. Run "
            "the command again when the other has ended."
        )
    if ended == "interrupted" and not pending:
        ended = None
    state = ended or ("complete" if not failed else "partial" if ok else "failed")
    bad = np.flatnonzero(status.ravel() > STATUS["ok"])[:SHOWN_FAILURES]
    failures = [Failure(int(i), NAMES.get(int(status.ravel()[i]), "?"), draft.design.point(int(i))) for i in bad]
    log = log_path(store.path)
    return Summary(
        state,
        str(store.path),
        samples,
        ok,
        failed,
        skipped,
        seconds=time.perf_counter() - began,
        fingerprint=draft.fingerprint,
        log=str(log) if log.exists() else None,
        pending=pending,
        computed=samples - pending - skipped,
        warnings=draft.warnings,
        counts=counts,
        failures=failures,
        nonfinite=read_entries(store.attributes.get("nonfinite", []), counts.get("nonfinite", 0)),
    )


def log_path(store: str | Path) -> Path:
    """The log beside a store; for a remote store, in the working directory."""
    text = str(store)
    if "://" in text:
        return Path(text.rstrip("/").rpartition("/")[2]).with_suffix(".log")
    return Path(text).with_suffix(".log")


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Send the engine's log records to a file, which is made only if there is one."""
    handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(handler)
    propagate, LOG.propagate = LOG.propagate, False
    try:
        with runtime.quiet_callbacks():
            yield
    finally:
        LOG.propagate = propagate
        LOG.removeHandler(handler)
        handler.close()


def no_plan(plan: object) -> PlanError:
    """The error for something that is neither a plan nor a path."""
    return PlanError(
        f"`plan` must be a Plan or the path of a config, but is {type(plan).__name__}. Use engine.load(path)."
    )
