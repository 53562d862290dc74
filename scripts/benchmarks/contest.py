"""Two ways to do one work, measured in turn.

In: a `Contest`. Out: a `Result`: what each way takes, the error that it leaves, and the ratio. A row is a function that makes a contest;
`row` puts it into `ROWS`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

EQUAL = 3.0
"""Two errors within this factor of one another are called equal."""

ROUNDING = 1e-12
"""Errors below this are those of rounding, and of no interest."""

LEAST = 0.02
"""Seconds that one measurement takes at least: quicker calls are repeated."""


@dataclass(frozen=True)
class Side:
    """One way to do the work."""

    once: Callable[[], tuple[float, Any]]
    """Do it: what it took, and what came of it."""

    read: Callable[[Any], Any] = lambda found: found
    """What came of it as an array with the samples first, to be judged."""

    compile_seconds: float = 0.0
    note: str = ""
    """What was chosen for it."""


@dataclass(frozen=True)
class Contest:
    """A work that two ways are set."""

    work: str
    samples: int
    """Over which figures are divided; 1 for figures of the whole."""

    ours: Side
    peer: Side
    exact: Any = None
    """The trusted answers, of the first so many samples; None where nothing is computed."""

    bound: float = np.inf
    """The error that each side must reach: the largest one of any sample and component."""

    scale: Any = 1.0
    """What errors are divided by; 1 for absolute ones."""

    unit: str = "s"


@dataclass(frozen=True)
class Wanted:
    """A bound for a ratio, with the newest JAX and with older ones, where fusion recomputes the stages of a step."""

    newest: float
    older: float
    at_most: bool = False
    """The ratio is a cost, ours to peer's, and small is good; else it is a gain, peer's to ours."""

    def met(self, ratio: float) -> bool:
        """Whether a ratio is within the bound that holds here."""
        return ratio <= self.here if self.at_most else ratio >= self.here

    @property
    def here(self) -> float:
        """The bound for the JAX that is installed."""
        import jax

        return self.newest if jax.__version_info__ >= (0, 11) else self.older

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.here:g}"


@dataclass(frozen=True)
class Row:
    """A contest with its name, before anything is imported for it."""

    name: str
    make: Callable[[bool], Contest]
    """Of whether it is for correctness alone."""

    wanted: Wanted | None
    needs: tuple[str, ...]
    all_cores: bool
    repeats: int


@dataclass
class Result:
    """What came of a contest; times in seconds, or bytes, for one sample."""

    row: str
    work: str
    unit: str = "s"
    ours: float = np.nan
    peer: float = np.nan
    ratio: float = np.nan
    wanted: str = ""
    met: bool | None = None
    ours_error: float | None = None
    peer_error: float | None = None
    bound: float | None = None
    wrong: bool = False
    """Whether a side misses the bound of the error, or has no number."""

    ours_compile: float = 0.0
    peer_compile: float = 0.0
    seconds: float = 0.0
    """That the whole row took, in wall time."""

    skipped: str = ""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """With None for what is no number."""
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Result:
        """What `as_json` gave."""
        result = cls(**found)
        for name in ("ours", "peer", "ratio"):
            if getattr(result, name) is None:
                setattr(result, name, np.nan)
        return result


ROWS: dict[str, Row] = {}


def row(
    name: str, wanted: Wanted | None = None, needs: tuple[str, ...] = (), all_cores: bool = False, repeats: int = 5
) -> Callable[[Callable[[bool], Contest]], Callable[[bool], Contest]]:
    """Register a contest.

    Args:
        name: for `--only`.
        wanted: what its ratio should be.
        needs: packages without which it is skipped.
        all_cores: measured in wall time on every core; else in processor time on one.
        repeats: measurements of each side, of which the medians are taken.
    """

    def put(make: Callable[[bool], Contest]) -> Callable[[bool], Contest]:
        ROWS[name] = Row(name, make, wanted, needs, all_cores, repeats)
        return make

    return put


def measure(row: Row, quick: bool) -> Result:
    """Let both sides do the work in turn. The first calls warm caches and are judged; they count where they are the only ones."""
    absent = [name for name in row.needs if importlib.util.find_spec(name) is None]
    if absent:
        return Result(row.name, "", skipped=f"needs {', '.join(absent)}: pip install -e .[bench]")
    start, repeats = time.perf_counter(), 1 if quick else row.repeats
    contest = row.make(quick)
    sides, unit = (contest.ours, contest.peer), contest.unit
    first = [side.once() for side in sides]
    times = [tuple(taken for taken, _ in first)] if repeats == 1 else []
    while len(times) < repeats:
        times.append(tuple(typical(side, unit) for side in sides))
    ours, peer = (statistics.median(taken) / contest.samples for taken in zip(*times, strict=True))
    result = Result(row.name, contest.work, unit, ours, peer, peer / ours)
    result.ours_compile, result.peer_compile = (side.compile_seconds for side in sides)
    result.notes = [side.note for side in sides if side.note]
    if row.wanted is None or row.wanted.at_most:
        result.ratio = ours / peer
    if row.wanted is not None and not quick:
        result.wanted, result.met = str(row.wanted), row.wanted.met(result.ratio)
    if contest.exact is not None:
        a, b = (error(contest, side.read(found)) for side, (_, found) in zip(sides, first, strict=True))
        result.ours_error, result.peer_error, result.bound = a, b, contest.bound
        result.wrong = not (a <= contest.bound and b <= contest.bound)
        if not quick and max(a, b) > max(EQUAL * min(a, b), ROUNDING):
            result.notes.append(f"errors differ by a factor of {max(a, b) / max(min(a, b), ROUNDING):.1f}")
    result.seconds = time.perf_counter() - start
    return result


def error(contest: Contest, answer: Any) -> float:
    """The largest error of the samples whose answer is known."""
    exact = np.asarray(contest.exact)
    return float(np.max(np.abs(np.asarray(answer)[: len(exact)] - exact) / contest.scale))


def typical(side: Side, unit: str) -> float:
    """What one call takes, of as many as fill the least time."""
    taken = [side.once()[0]]
    while unit == "s" and sum(taken) < LEAST:
        taken.append(side.once()[0])
    return statistics.median(taken)


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> Callable[[], tuple[float, Any]]:
    """A work with the time that it takes, of all threads of the process unless another clock is given."""

    def once() -> tuple[float, Any]:
        start = clock()
        found = work()
        return clock() - start, found

    return once


BY_HAND = {"xla_cpu_prefer_vector_width": 256}
"""The compiler's own choice, for a peer: the flags that the engine sets are for the whole process, and not all gain by them."""


def compiled(
    function: Any,
    *arguments: Any,
    read: Callable[[Any], Any] = np.asarray,
    note: str = "",
    options: dict[str, Any] | None = None,
) -> Side:
    """A JAX function of arrays, compiled ahead."""
    import jax

    start = time.process_time()
    program = jax.jit(function).lower(*arguments).compile(compiler_options=options)
    seconds = time.process_time() - start
    return Side(timed(lambda: jax.block_until_ready(program(*arguments))), read, seconds, note)
