"""What `adjoint="auto"` means to a solve, decided by whoever differentiates it. Imports nothing, so that asking costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ADJOINTS = ("forward", "checkpointed", "direct", "backsolve")
VALUES = "none"
"""Values are wanted, and no derivative."""

_CHOICE: ContextVar[str] = ContextVar("adjoint", default="checkpointed")
_DIFFERENTIATED: ContextVar[bool] = ContextVar("differentiated", default=False)


@contextmanager
def default_adjoint(mode: str) -> Iterator[None]:
    """Within the block, a solve with `adjoint="auto"` that is traced takes `mode`.

    Args:
        mode: `forward` (forward-mode derivatives), `checkpointed` (reverse mode, the default outside any block), `direct` (both
            modes, by a bounded loop), `backsolve`, or `none`. All but `none` say that the solve will be differentiated, so that
            its steps must resolve the sensitivities too.

    Raises:
        ValueError: `mode` is none of these.

    >>> with default_adjoint("forward"):
    ...     current_adjoint()
    'forward'
    """
    if mode not in (*ADJOINTS, VALUES):
        raise ValueError(f"`mode` must be one of {', '.join((*ADJOINTS, VALUES))}, but is {mode!r}.")
    tokens = _CHOICE.set("forward" if mode == VALUES else mode), _DIFFERENTIATED.set(mode != VALUES)
    try:
        yield
    finally:
        _CHOICE.reset(tokens[0])
        _DIFFERENTIATED.reset(tokens[1])


def current_adjoint() -> str:
    """The adjoint that `auto` means here.

    >>> current_adjoint()
    'checkpointed'
    """
    return _CHOICE.get()


def is_differentiated() -> bool:
    """Whether an enclosing block says that what is traced will be differentiated.

    >>> with default_adjoint("checkpointed"):
    ...     is_differentiated()
    True
    """
    return _DIFFERENTIATED.get()
