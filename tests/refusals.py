"""How a message about bad input must read."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def assert_refused(act: Callable[[], object], expected: str) -> None:
    """The act raises one ValueError of one line, "`where` must ..., but ...", that matches what is expected."""
    with pytest.raises(ValueError, match=expected) as caught:
        act()
    message = str(caught.value)
    assert message.startswith("`")
    assert " must " in message
    assert "\n" not in message
