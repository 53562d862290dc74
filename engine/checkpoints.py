"""The state of a batch of searches ⇄ bytes, so that a killed run goes on to the same numbers."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

DIGEST = hashlib.sha256().digest_size


def pack(state: Any) -> bytes:
    """The arrays of a pytree, one after the other, behind their digest; as many bytes for every state of one program."""
    content = b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(state))
    return hashlib.sha256(content).digest() + content


def unpack(content: bytes, like: Any) -> Any | None:
    """The pytree again.

    Args:
        content: what `pack` gave.
        like: a pytree of the same structure, shapes and dtypes.

    Returns:
        None if the bytes are damaged or of another program.
    """
    digest, body = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        return None
    leaves, structure = jax.tree_util.tree_flatten(like)
    kinds = [(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]
    if sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in kinds) != len(body):
        return None
    found, at = [], 0
    for shape, dtype in kinds:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found.append(np.frombuffer(body[at : at + size], dtype).reshape(shape))
        at += size
    return jax.tree_util.tree_unflatten(structure, found)
