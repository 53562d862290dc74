"""`Program` × chunks → tasks. The one home of Dask.

In: a compiled program and the blocks that a store still lacks. Out: every block computed and written whole by one task, in any order,
a bounded number at a time. Data goes straight to the store, never through the scheduler; a task can be repeated without harm.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from dask.local import get_sync
from dask.threaded import get as get_threaded

from engine import jaxprs
from engine.chunks import Blocks
from engine.deadlines import Clock, watch
from engine.errors import PlanError
from engine.nonfinite import Tally
from engine.origins import Trouble, hunt, raised
from engine.plan import Plan
from engine.program import Program
from engine.status import STATUS
from engine.store import Store

LOG = logging.getLogger("engine")
WAVE = 4096
"""Tasks handed to Dask at once, so that its graph stays small however many chunks there are."""

SECONDS_BETWEEN_TALLIES = 5.0
"""A run that is killed forgets the variables that were not finite in no more than its last seconds."""


@dataclass(frozen=True)
class ChunkDone:
    """A block was computed and stored."""

    number: int
    samples: int
    failed: int
    seconds: float


class Observer(Protocol):
    """Watches a run; called by one thread at a time."""

    def on_start(self, samples: int) -> None:
        """So many samples are about to be computed."""

    def on_chunk(self, event: ChunkDone) -> None:
        """A block is stored."""

    def on_end(self) -> None:
        """Nothing more will come."""


@dataclass
class Runner:
    """The tasks of one run, sharing a program and a store."""

    plan: Plan
    program: Program
    store: Store
    observers: Sequence[Observer]
    stop: threading.Event
    """Set to finish the chunks in flight and start no other."""

    tally: Tally
    """Which variables are not finite."""

    clock: Clock = field(default_factory=Clock)
    """Which samples are being computed."""

    in_order: bool = False
    """Whether each block needs those before it."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.told = time.monotonic()
        self.errors: dict[int, Exception] = {}
        """Of samples that raised, until one is hunted."""

        self.raised: list[Trouble] = []
        """What the first sample that raised says."""

        self.origins: list[Trouble] = []
        """With `execution.debug_nans`: where a failed sample went wrong."""

        debugging = self.plan.config.settings.execution.debug_nans
        self.to_hunt = [STATUS[name] for name in ("nonfinite", "error", "solver", "max_steps")] if debugging else []
        """Kinds of failure of which a sample is yet to be hunted, those that tell most first."""

        self.can_raise = bool(jaxprs.callbacks(self.plan.sample_jaxpr)) or not self.plan.config.settings.execution.jit
        self.halted_on_failure = False
        self.overdue: list[np.ndarray[Any, Any]] = []
        """The samples of the chunks that were given up, each of which ran for longer than `execution.time_limit`."""

    def task(self, number: int) -> None:
        """Compute and store one block, unless the run is being stopped."""
        if self.stop.is_set():
            return
        samples = self.store.blocks.samples_of(number)
        with self.clock.timed(samples):
            self.carry_out(number, samples)

    def carry_out(self, number: int, samples: np.ndarray[Any, Any]) -> None:
        """Compute and store one block."""
        start = time.perf_counter()
        outputs, status = self.compute_block(samples, tuple(s.stop - s.start for s in self.store.blocks.region(number)))
        self.store.write_block(number, outputs, status)
        failed = int(np.count_nonzero(status != STATUS["ok"]))
        if failed:
            self.look_into(samples, outputs, status)
        event = ChunkDone(number, len(samples), failed, time.perf_counter() - start)
        with self.lock:
            if failed and self.plan.config.settings.execution.on_error == "stop":
                self.halted_on_failure = True
                self.stop.set()
            for observer in self.observers:
                observer.on_chunk(event)

    def look_into(self, samples: np.ndarray[Any, Any], outputs: dict[str, Any], status: np.ndarray[Any, Any]) -> None:
        """Take down what is not finite in a block, and hunt a failed sample of each kind until it is found where one went wrong."""
        with self.lock:
            found = self.tally.add(samples, outputs, status)
            if found and time.monotonic() - self.told > SECONDS_BETWEEN_TALLIES:
                self.store.update_attributes(nonfinite=self.tally.entries())
                self.told = time.monotonic()
            kinds = [code for code in self.to_hunt if (status == code).any()]
            self.to_hunt = [code for code in self.to_hunt if code not in kinds]
        for code in kinds:
            if not self.origins:
                first = int(np.flatnonzero(status == code)[0])
                self.origins = self.hunt(int(samples[first]), code)

    def hunt(self, sample: int, status: int) -> list[Trouble]:
        """Where a sample went wrong, for the log too. That it cannot be found out is no reason to end a run."""
        try:
            error = self.errors.get(sample)
            found = hunt(self.plan, sample, status) if error is None else [self.read(error)]
            self.errors.clear()
        except Exception as failure:
            LOG.error("sample %d: where it went wrong was not found", sample, exc_info=failure)
            return []
        for trouble in found:
            LOG.warning("sample %d %s: %s", sample, self.plan.draft.design.point(sample), trouble)
        return found

    def read(self, error: Exception) -> Trouble:
        """An exception in words."""
        return raised(self.plan.sample_jaxpr, self.plan.draft.pipeline.names, error)

    def compute_block(self, samples: np.ndarray[Any, Any], shape: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
        """A stored block's outputs: one chunk, or the several chunks of a shard."""
        width = self.plan.blocks.width
        if len(samples) <= width:
            return self.compute(samples)
        parts = Blocks(shape, self.plan.blocks.block)
        outputs: dict[str, Any] = {}
        status = np.zeros(len(samples), np.int8)
        for part in parts:
            rows = parts.samples_of(part)
            found, status[rows] = self.compute(samples[rows])
            for name, array in found.items():
                outputs.setdefault(name, np.empty((len(samples), *array.shape[1:]), array.dtype))[rows] = array
        return outputs, status

    def compute(self, samples: np.ndarray[Any, Any]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """Evaluate at most a chunk of samples; one that raises is set apart from the others.

        Raises:
            PlanError: the program as a whole cannot run, whatever the sample.
        """
        try:
            with self.clock.timed(samples):
                return self.program.at(samples)
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error) or isinstance(error, MemoryError):
                raise PlanError(
                    f"`execution.chunk` must fit in memory, but {self.plan.blocks.width} samples do not: {str(error).splitlines()[0]}. "
                    "Lower execution.chunk or execution.memory, and start with --fresh."
                ) from error
            if not self.can_raise and "callback" not in str(error).lower():  # some checks show only once compiled
                raise
            if len(samples) == 1:
                return self.failed(samples, error)
        halves = [self.compute(half) for half in np.array_split(samples, 2)]
        names = halves[0][0]
        outputs = {name: np.concatenate([half[0][name] for half in halves]) for name in names}
        return outputs, np.concatenate([half[1] for half in halves])

    def failed(self, samples: np.ndarray[Any, Any], error: Exception) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """The outcome of a sample that raised; the traceback goes to the log."""
        point = self.plan.draft.design.point(int(samples[0]))
        LOG.error("sample %d %s raised %s", samples[0], point, type(error).__name__, exc_info=error)
        with self.lock:
            if not self.raised:
                with suppress(Exception):  # an exception that cannot be read is in the log
                    self.raised = [self.read(error)]
        if self.to_hunt:
            self.errors[int(samples[0])] = error
        sweep = len(self.plan.draft.design.dims)
        outputs = {v.name: np.zeros((1, *v.shape[sweep:]), v.dtype) for v in self.plan.variables if v.swept}
        return outputs, np.array([STATUS["error"]], np.int8)


def execute(runner: Runner, numbers: Sequence[int]) -> None:
    """Run the blocks `numbers` on the scheduler that the plan asks for, or until one takes longer than it may."""
    plan = runner.plan
    samples = (
        sum(len(runner.store.blocks.samples_of(n)) for n in numbers)
        if len(numbers) < WAVE
        else plan.draft.design.samples
    )
    for observer in runner.observers:
        observer.on_start(samples)
    try:
        limit = plan.config.settings.execution.time_limit
        runner.overdue = watch(runner.clock, lambda: schedule(runner, numbers), limit, runner.stop.set)
    finally:
        for observer in runner.observers:
            observer.on_end()


def schedule(runner: Runner, numbers: Sequence[int]) -> None:
    """Hand the blocks to Dask, which keeps no order of its own among them."""
    plan = runner.plan
    size = 1 if runner.in_order else WAVE
    if plan.config.settings.scheduler.kind == "synchronous":
        for wave in waves(numbers, size):
            get_sync(graph(runner, wave), list(graph_keys(wave)))
        return
    with Threads(plan.workers) as pool:
        for wave in waves(numbers, size):
            get_threaded(graph(runner, wave), list(graph_keys(wave)), num_workers=plan.workers, pool=pool)


class Threads(Executor):
    """A pool of threads for which the end of the process does not wait: one of them may never end."""

    def __init__(self, workers: int) -> None:
        self._max_workers = workers  # Dask looks at it
        self.tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self.work, name=f"engine-{i}", daemon=True) for i in range(workers)]
        for thread in self.threads:
            thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call a function in one of the threads."""
        future: Future[Any] = Future()
        self.tasks.put((future, lambda: function(*arguments, **keywords)))
        return future

    def work(self) -> None:
        """Call what comes, until told to end."""
        while (task := self.tasks.get()) is not None:
            future, call = task
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after what they were given."""
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads if wait else ():
            thread.join()


def waves(numbers: Sequence[int], size: int = WAVE) -> list[Sequence[int]]:
    """The blocks in order, a bounded number at once."""
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


def graph_keys(numbers: Sequence[int]) -> list[tuple[str, int]]:
    """The Dask keys of blocks."""
    return [("chunk", number) for number in numbers]


def graph(runner: Runner, numbers: Sequence[int]) -> dict[tuple[str, int], tuple[Any, int]]:
    """The Dask graph of independent tasks."""
    return {("chunk", number): (runner.task, number) for number in numbers}
