"""Work that may never end, watched: given up once all of it takes longer than it may.

In: a function, run in a thread that says what it computes. Out: what was still being computed, if it was given up. A program of XLA's
cannot be interrupted, so that the thread goes on; the process ends without it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.1

ABANDONED: list[threading.Thread] = []
"""Threads that were given up."""


class Clock:
    """What threads compute, and since when."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[float, Any]] = {}

    @contextmanager
    def timed(self, what: Any) -> Iterator[None]:
        """Say that this thread is at something. Inside, it may be at a part of it, and its time begins anew then and after."""
        thread = threading.get_ident()
        around = self.running.get(thread)
        self.running[thread] = time.monotonic(), what
        try:
            yield
        finally:
            if around is None:
                del self.running[thread]
            else:
                self.running[thread] = time.monotonic(), around[1]

    def late(self, limit: float) -> tuple[list[Any], bool]:
        """What has been computed for longer than `limit` seconds, and whether that is all."""
        now, running = time.monotonic(), list(self.running.values())
        late = [what for began, what in running if now - began > limit]
        return late, len(late) == len(running)


def watch(clock: Clock, function: Callable[[], None], limit: float | None, stop: Callable[[], None]) -> list[Any]:
    """Call in a thread until it is done, or until all that the clock says takes longer than `limit` seconds.

    Args:
        clock: what the function computes says so to it.
        function: what to call.
        limit: seconds; None to call it here, and to wait for ever.
        stop: called at the first that takes longer, so that no more is begun.

    Returns:
        What was given up; empty if the function is done.
    """
    if limit is None:
        function()
        return []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="engine", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(SECONDS_BETWEEN_LOOKS)
        late, all_are = clock.late(limit)
        if late:
            stop()
            if all_are and thread.is_alive():
                abandon(thread)
                return late
    if raised:
        raise raised[0]
    return []


def abandon(thread: threading.Thread) -> None:
    """Give a thread up, and see that the process can end: what tidies JAX up at its end would wait for the thread."""
    if not ABANDONED:
        atexit.register(end_without_waiting)  # runs before JAX's own, which was registered earlier
    ABANDONED.append(thread)


def abandoned() -> bool:
    """Whether a thread that was given up still goes on."""
    return any(thread.is_alive() for thread in ABANDONED)


def end_without_waiting() -> None:
    """End the process at once if a thread hangs, with the code that Python would end with but for that of `sys.exit`."""
    if abandoned():
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1 if getattr(sys, "last_value", None) is not None else 0)
