"""The nearest valid name, for messages about one that is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, names: Iterable[object]) -> str:
    """A sentence with the nearest valid name, or nothing.

    >>> nearest("tsit6", ["tsit5", "dopri8"])
    " Did you mean 'tsit5'?"
    """
    close = difflib.get_close_matches(str(name), [str(n) for n in names], n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
