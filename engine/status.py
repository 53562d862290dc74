"""What became of each sample: the vocabulary of the array `status`, and the CF attributes that explain it."""

STATUS: dict[str, int] = {
    "pending": 0,
    "ok": 1,
    "max_steps": 2,
    "nonfinite": 3,
    "solver": 4,
    "error": 5,
    "lost": 6,
}
"""Code of each outcome of a sample. `pending` is what was never written; everything but `ok` has no answer."""

OPTIMIZE_STATUS: dict[str, int] = {**STATUS, "not_converged": 7, "infeasible": 8, "unbounded": 9}
"""Code of each outcome of an optimization."""


def flag_values(vocabulary: dict[str, int] = STATUS) -> list[int]:
    """CF `flag_values`: the codes, in the order of `flag_meanings`."""
    return list(vocabulary.values())


def flag_meanings(vocabulary: dict[str, int] = STATUS) -> str:
    """CF `flag_meanings`: the words, separated by spaces."""
    return " ".join(vocabulary)
