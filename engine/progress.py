"""Events of a run → a bar on a terminal, or a line every few seconds elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from engine.execute import ChunkDone
    from engine.searches import Stepped

SECONDS_BETWEEN_LINES = 5.0


class Bar:
    """A progress bar with done, failed, samples per second and time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.failed = 0
        self.bar: Any = None

    def on_start(self, samples: int) -> None:
        """Draw the empty bar."""
        from tqdm import tqdm

        layout = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} samples [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
        self.bar = tqdm(total=samples, unit=" samples", file=self.stream, bar_format=layout, dynamic_ncols=True)

    def on_chunk(self, event: ChunkDone) -> None:
        """Advance the bar."""
        self.failed += event.failed
        if self.failed:
            self.bar.set_postfix_str(f"{self.failed} failed", refresh=False)
        self.bar.update(event.samples)

    def on_step(self, event: Stepped) -> None:
        """Say how the searches of a batch stand."""
        self.bar.set_postfix_str(standing(event), refresh=True)

    def on_end(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.close()


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, every: float = SECONDS_BETWEEN_LINES) -> None:
        self.stream = stream or sys.stderr
        self.every = every
        self.done = self.failed = self.total = 0
        self.began = self.said = 0.0

    def on_start(self, samples: int) -> None:
        """Start the clock."""
        self.total = samples
        self.began = self.said = time.perf_counter()

    def on_chunk(self, event: ChunkDone) -> None:
        """Count, and say so if the last line is some seconds old."""
        self.done += event.samples
        self.failed += event.failed
        now = time.perf_counter()
        if now - self.said >= self.every:
            self.said = now
            rate = self.done / max(now - self.began, 1e-9)
            left = (self.total - self.done) / rate
            print(
                f"{self.done}/{self.total} samples, {self.failed} failed, {rate:.0f} samples/s, {left:.0f} s left",
                file=self.stream,
                flush=True,
            )

    def on_step(self, event: Stepped) -> None:
        """Say how the searches of a batch stand, if the last line is some seconds old."""
        now = time.perf_counter()
        if now - self.said >= self.every:
            self.said = now
            print(f"{self.done}/{self.total} searches ended; {standing(event)}", file=self.stream, flush=True)

    def on_end(self) -> None:
        """Nothing to close."""


def standing(event: Stepped) -> str:
    """How the searches of a batch stand: step, best objective, its gradient and infeasibility, those alive, time left at most."""
    violated = f", infeasible by {event.infeasibility:.1e}" if event.infeasibility > 0 else ""
    left = event.seconds / max(event.step, 1) * (event.max_steps - event.step)
    return (
        f"step {event.step}/{event.max_steps}, best {event.objective:.6g}, gradient {event.gradient_norm:.1e}{violated}, "
        f"{event.alive} of {event.searches} alive, {left:.0f} s left at most"
    )


def watcher(stream: TextIO | None = None) -> Bar | Lines:
    """A bar if someone watches, else lines."""
    stream = stream or sys.stderr
    return Bar(stream) if stream.isatty() else Lines(stream)
