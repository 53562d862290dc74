"""What `adjoint="auto"` means to a solve, decided by whoever differentiates it. Imports nothing, so that asking costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ADJOINTS = ("forward", "checkpointed", "direct", "backsolve")

_CHOICE: ContextVar[str] = ContextVar("adjoint", default="checkpointed")


@contextmanager
def default_adjoint(mode: str) -> Iterator[None]:
    """Within the block, a solve with `adjoint="auto"` that is traced takes `mode`.

    Args:
        mode: `forward` (forward-mode derivatives, or none), `checkpointed` (reverse mode, the default outside any block),
            `direct` (both modes, by a bounded loop) or `backsolve`.

    Raises:
        ValueError: `mode` is none of these.

    >>> with default_adjoint("forward"):
    ...     current_adjoint()
    'forward'
    """
    if mode not in ADJOINTS:
        raise ValueError(f"`mode` must be one of {', '.join(ADJOINTS)}, but is {mode!r}.")
    token = _CHOICE.set(mode)
    try:
        yield
    finally:
        _CHOICE.reset(token)


def current_adjoint() -> str:
    """The adjoint that `auto` means here.

    >>> current_adjoint()
    'checkpointed'
    """
    return _CHOICE.get()
