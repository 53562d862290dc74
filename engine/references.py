"""Dotted names, and the nested mappings that stand for them: `rates.a` and `{rates: {a: ...}}` name the same.

Imports nothing of the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reference:
    """A dotted name: the parameter or stage at its root, and the path into its value.

    The root of a parameter inside a pytree is its whole name, `rates.a`: it is a value of its own.
    """

    root: str
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Reference:
        """`"motion.y.x"` -> the leaf `y.x` of what `motion` returns."""
        root, *path = text.split(".")
        return cls(root, tuple(path))

    def __str__(self) -> str:
        return ".".join((self.root, *self.path))


def flat(node: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A mapping by dotted name, from one that may be nested as the names are: a name's own value is left as it is."""
    return dict(pairs(node, names))


def repeated(node: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """The names that such a mapping gives twice: dotted, and nested."""
    counts = Counter(name for name, _ in pairs(node, names))
    return [name for name, n in counts.items() if n > 1]


def pairs(node: Mapping[str, Any], names: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each name and value, as they are written."""
    for key, value in node.items():
        name = f"{prefix}{key}"
        if name not in names and isinstance(value, Mapping) and under(name, names):
            yield from pairs(value, names, f"{name}.")
        else:
            yield name, value


def under(name: str, names: Collection[str]) -> list[str]:
    """The names that are `name`, or lie below it."""
    return [other for other in names if other == name or other.startswith(f"{name}.")]


def paths(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings that is none itself, by dotted name; a node with `_target_` is a value."""
    for key, value in node.items():
        if isinstance(value, Mapping) and "_target_" not in value:
            yield from paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
