"""`Optimization` × store → searches, carried on until they end, with what they found.

In: an optimization and the batches that a store lacks. Out: every batch computed by one task: its histories and checkpoints as they come,
then its results and their certificates. A batch that was killed goes on from its checkpoint to the same numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from engine import checkpoints
from engine.deadlines import Clock
from engine.execute import ChunkDone
from engine.findings import EXACT, Findings
from engine.host_search import HostSearches
from engine.minima import best_of
from engine.optimization import Optimization
from engine.reasons import REASONS
from engine.search import Search, Step
from engine.status import OPTIMIZE_STATUS, STATUS
from engine.store import Store

LOG = logging.getLogger("engine")
Array = np.ndarray[Any, Any]

SECONDS = 2.0
"""Between two checkpoints, about: what a kill costs at most."""

ROOM = 128
"""Steps of history that a program returns at once."""


@dataclass(frozen=True)
class Stepped:
    """Some steps of a batch are done."""

    batch: int
    searches: int
    alive: int
    step: int
    max_steps: int
    objective: float
    """The best so far in the batch, as it is reported."""

    gradient_norm: float
    infeasibility: float
    """Of that best."""

    seconds: float
    """Since the run began."""


def without_answer(status: Array) -> Array:
    """Of which searches nothing is known but why they failed."""
    return (status > STATUS["ok"]) & (status < OPTIMIZE_STATUS["not_converged"])


@dataclass
class Searches:
    """The tasks of one optimization. Stands in the place of `engine.execute.Runner`."""

    plan: Optimization
    store: Store
    observers: Sequence[Any]
    stop: threading.Event
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.in_order = self.plan.problem.settings.warm_start is not None
        self.lock = threading.Lock()
        self.began = time.perf_counter()
        self.overdue: list[Array] = []
        self.halted_on_failure = False
        self.resumed_from: list[int] = []
        """Steps at which killed batches went on."""

        self.restarted = 0
        """Searches outside JAX that began again from the best point of a killed one."""

        self.shared = self.plan.objective.shared(self.plan.seed)
        self.width = self.plan.blocks.width
        self.findings = Findings(self.plan, self.shared)
        self.begin: Any = jax.jit(jax.vmap(self.plan.searcher.begin))
        self.advance: Any = None
        self.host: Any = None
        """What searches outside JAX share, if there are any."""

        self.room = min(ROOM, self.plan.problem.settings.max_steps + 1)
        self.kept = {v.name for v in self.plan.told()} | {"reason", "trouble", "steps"}
        """What is known of a search that failed too."""

    def prepare(self) -> None:
        """Compile what every batch runs."""
        if self.plan.on_host:
            self.host = self.findings.host = HostSearches(self.plan, self.shared, self.findings.warnings)
            return
        searches, points = self.begun(np.zeros(self.width, np.int64))
        searcher = self.plan.searcher

        def advance(searches: Search, shared: Any, points: Any, most: Any) -> Any:
            return searcher.advance(searches, shared, points, most, self.room)

        given = (searches, self.shared, points, np.int32(1))
        self.advance = jax.jit(advance).lower(*given).compile() if self.plan.results.jit else advance

    def begun(self, searches: Array, z: Array | None = None) -> tuple[Search, Any]:
        """The state of a batch before its first step, padded to the constant width with its last search, and what tells each apart."""
        padded = self.padded(searches)
        z = self.plan.starts(padded) if z is None else z
        state = jax.device_get(self.begin(np.asarray(z)))
        return state, self.plan.objective.points(padded)

    def padded(self, searches: Array) -> Array:
        """Indices to the constant width."""
        return np.concatenate([searches, np.full(self.width - len(searches), searches[-1])])

    def task(self, number: int) -> None:
        """Carry one batch to its end, unless the run is being stopped."""
        if self.stop.is_set():
            return
        searches = self.store.blocks.samples_of(number)
        with self.clock.timed(searches):
            began = time.perf_counter()
            done = self.carried_out(number, searches)
            if done is None:
                return
            status, values, missing = done
            self.store.write_block(number, values, status, missing, kept=self.kept)
            failed = int(np.count_nonzero(status != STATUS["ok"]))
            event = ChunkDone(number, len(searches), failed, time.perf_counter() - began)
            with self.lock:
                if failed and self.plan.config.settings.execution.on_error == "stop":
                    self.halted_on_failure = True
                    self.stop.set()
                for observer in self.observers:
                    observer.on_chunk(event)

    def carried_out(self, number: int, searches: Array) -> tuple[Array, dict[str, Array], Array] | None:
        """Status, values and what is missing of a batch; None if the run was stopped meanwhile."""
        if self.plan.on_host:
            ended = self.host.search(number, searches, self)
            if ended is None:
                return None
            state, history = ended
        else:
            found = self.searched(number, searches)
            if found is None:
                return None
            state, history = found
        values, status = self.findings.concluded(searches, state)
        values |= history
        self.findings.look_into(searches, state)
        missing = without_answer(status)
        return status, values, missing

    def searched(self, number: int, searches: Array) -> tuple[Search, dict[str, Array]] | None:
        """The state of a batch at its end and its history; from its checkpoint, if there is one."""
        state, points = self.begun(searches, self.warm(searches))
        history = self.blank_history(len(searches))
        kept = self.store.read_checkpoint(number)
        if kept is not None and (before := checkpoints.unpack(kept, state)) is not None:
            state = before
            history = {name: self.store.read_block(number, name).copy() for name in history}
            with self.lock:
                self.resumed_from.append(int(np.max(state.steps[: len(searches)], initial=0)))
        most = 1
        last = self.plan.problem.settings.max_steps
        while (alive := int(np.count_nonzero(state.reason[: len(searches)] == 0))) > 0:
            if self.stop.is_set():
                return None
            began = time.perf_counter()
            at = int(np.min(state.steps[state.reason == 0])) + 1  # all that go on are at the same step
            state, steps, count = jax.device_get(self.advance(state, self.shared, points, np.int32(most)))
            taken = time.perf_counter() - began
            self.note(history, steps, at, int(count), len(searches))
            if taken > SECONDS or np.any(state.reason[: len(searches)] == 0):  # else what is found follows at once
                self.store.write_values(number, history)
                self.store.write_checkpoint(number, checkpoints.pack(state))
            self.tell(number, state, len(searches), at + int(count) - 1, last)
            most = int(max(1, min(self.room, most * min(16.0, SECONDS / max(taken, 1e-3)))))
        del alive
        return state, history

    def warm(self, searches: Array) -> Array | None:
        """With `warm_start`: the optima of the neighbours before these along the axis, scaled; the starts where there are none."""
        problem, scaling = self.plan.problem, self.plan.scaling
        padded = self.padded(searches)
        z = self.plan.starts(padded)
        if problem.settings.warm_start is None:
            return None
        along = problem.dims.index(problem.settings.warm_start)
        places = list(np.unravel_index(padded, problem.shape))
        if places[along][0] == 0:
            return None
        places[along] = places[along] - 1
        status = self.store.status()[tuple(places)]
        before = {name: self.store.read(f"variables.{name}")[tuple(places)] for name in problem.names}
        found = scaling.scaled(scaling.gathered(before, 1)).astype(z.dtype)
        usable = (status == STATUS["ok"])[:, None] & np.isfinite(found)
        return np.where(usable, found, z)

    def blank_history(self, count: int) -> dict[str, Array]:
        """The history of so many searches before their first step."""
        found = {}
        lead = len(self.plan.problem.dims)
        for variable in self.plan.told():
            shape = (count, *variable.shape[lead:])
            fill = np.nan if variable.dtype.kind == "f" else 0
            found[variable.name] = np.full(shape, fill, variable.dtype)
        return found

    def note(self, history: Mapping[str, Array], steps: Step, at: int, count: int, searches: int) -> None:
        """Take down some steps, (count, width, ...), of the searches that were going on; in their own units.

        A search that has ended keeps its last accepted point in the steps after: they are not taken down.
        """
        sign, scaling = self.plan.problem.sign, self.plan.scaling
        room = next(iter(history.values())).shape[1]
        count = min(count, room - at)
        if count <= 0:
            return
        rows = slice(at, at + count)

        def turned(values: Any) -> Array:
            return np.moveaxis(np.asarray(values)[:count, :searches], 0, 1)

        going = turned(steps.going)
        x = scaling.parted(scaling.unscaled(turned(steps.z)))
        parts = {f"history.{name}": value for name, value in x.items()} | {
            "history.objective": sign * turned(steps.value),
            "history.gradient_norm": turned(steps.gradient_norm),
            "history.infeasibility": turned(steps.infeasibility),
            "history.status": turned(steps.status),
        }
        if "history.excluded" in history:
            parts["history.excluded"] = turned(steps.excluded)
        for name, value in parts.items():
            mask = going.reshape((*going.shape, *(1,) * (value.ndim - 2)))
            history[name][:, rows] = np.where(mask, value, history[name][:, rows])

    def tell(self, number: int, state: Search, searches: int, step: int, last: int) -> None:
        """Tell the observers of some steps."""
        value, violated = state.best_value[:searches], state.best_infeasibility[:searches]
        order = np.lexsort((np.nan_to_num(value, nan=np.inf), np.nan_to_num(violated, nan=np.inf) > 1e-6))
        best = int(order[0])
        event = Stepped(
            number,
            searches,
            int(np.count_nonzero(state.reason[:searches] == 0)),
            step,
            last,
            self.plan.problem.sign * float(value[best]),
            float(state.best_gradient_norm[best]),
            float(violated[best]),
            time.perf_counter() - self.began,
        )
        self.announce(event)

    def announce(self, event: Stepped) -> None:
        """Pass an event on to the observers that listen for it."""
        with self.lock:
            for observer in self.observers:
                if hasattr(observer, "on_step"):
                    observer.on_step(event)

    def polish(self) -> int:
        """Carry the best search of each design point on by a method with curvature, where it did not converge or violates constraints by
        more than a rounding; how many were improved."""
        problem, store = self.plan.problem, self.store
        if not problem.starts.several or self.plan.on_host:
            return 0
        parts = (store.read("objective"), store.status(), store.read("infeasibility"))
        best, reasons = best_of(*parts, problem.sign).ravel(), store.read("reason").ravel()
        wanted = [int(p * problem.starts.count + k) for p, k in enumerate(best) if k >= 0]
        again = {REASONS[name] for name in ("max_steps", "stalled", "gradient", "far")}
        loose = parts[2].ravel() > EXACT
        wanted = [search for search in wanted if reasons[search] in again or loose[search]]
        if not wanted:
            return 0
        self.host = self.findings.host = HostSearches(self.plan, self.shared, self.findings.warnings)
        return sum(self.polished(self.host, search) for search in wanted)

    def polished(self, host: HostSearches, search: int) -> bool:
        """Polish one search; its row of the store is replaced if that helps."""
        blocks = self.store.blocks
        number = next(n for n in blocks if search in blocks.samples_of(n))
        row = int(np.flatnonzero(blocks.samples_of(number) == search)[0])
        values = {v.name: self.store.read_block(number, v.name).copy() for v in self.store.variables if v.swept}
        status = self.store.read_block(number, "status").copy()
        names = self.plan.problem.names
        before = self.plan.scaling.gathered({name: values[f"variables.{name}"][row : row + 1] for name in names}, 1)
        state = host.polished(self, search, self.plan.scaling.scaled(before)[0].astype(self.plan.dtype))
        if state is None:
            return False
        found, ended = self.findings.concluded(np.array([search]), state)
        sign = self.plan.problem.sign
        lower = sign * found["objective"][0] < sign * values["objective"][row]
        if ended[0] != STATUS["ok"] and (
            status[row] == STATUS["ok"] or not (lower and found["infeasibility"][0] <= values["infeasibility"][row])
        ):
            return False
        found["steps"] = found["steps"] + values["steps"][row]
        for name, value in found.items():
            values[name][row] = value[0]
        status[row] = ended[0]
        self.store.write_block(number, values, status, without_answer(status), kept=self.kept)
        return True

    def finish(self) -> None:
        """Write the outputs that no variable moves."""
        self.findings.ready.result()
        once = self.findings.results.once_values
        stored = {v.name for v in self.store.variables if not v.swept}
        self.store.write_once({name: value for name, value in once.items() if name in stored})
