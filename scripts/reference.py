"""Problems with trusted answers, and how many digits of them we reach.

    python scripts/reference.py [--json] [ID or group ...]

The exit status is 1 where an answer is wrong: fewer digits than are trusted, and than the tolerance of the solve promises.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_ENABLE_X64", "true")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.reference.answers import GROUPS, Comparison, compare, problems, solution_of


def main() -> int:
    """Solve them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    parser.add_argument("which", nargs="*", metavar="ID", help="problems or groups, all of them if left out")
    chosen = parser.parse_args()
    known = problems()
    for name in chosen.which:
        if name not in known and name not in GROUPS:
            near = difflib.get_close_matches(name, [*GROUPS, *known], n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The groups are {', '.join(GROUPS)}."
            parser.error(f"`ID` must be a problem or a group, but is {name!r}. {hint}")
    rows = []
    if not chosen.json:
        print(f"{'problem':32}{'wanted':>8}{'reached':>9}{'steps':>9}{'s':>7}", flush=True)
    for name, entry in known.items():
        if chosen.which and not {name, entry["group"]} & set(chosen.which):
            continue
        row = solved(name)
        rows.append(row)
        if not chosen.json:
            verdict = "ok" if row["right"] else f"WRONG: {row['worst']}"
            steps = "" if row["steps"] is None else row["steps"]
            print(
                f"{name:32}{row['wanted']:8.1f}{row['reached']:9.1f}{steps:>9}{row['seconds']:7.1f}  {verdict}",
                flush=True,
            )
    if chosen.json:
        numbers = ("wanted", "reached")  # JSON has no infinity
        print(
            json.dumps([{**r, **{k: r[k] if math.isfinite(r[k]) else None for k in numbers}} for r in rows], indent=1)
        )
    wrong = sum(not row["right"] for row in rows)
    if not chosen.json:
        print(f"{len(rows)} problems: {len(rows) - wrong} ok, {wrong} wrong")
    return int(wrong > 0)


def solved(name: str) -> dict[str, Any]:
    """The row of one problem."""
    began = time.perf_counter()
    steps = None
    try:
        answer = solution_of(name)()
        found, steps = compare(name, answer), answer.steps
    except Exception as error:  # the other problems are solved all the same
        found = Comparison(name, float("nan"), float("-inf"), False, f"{type(error).__name__}: {error}")
    return {
        **found._asdict(),
        "right": bool(found.right),
        "steps": steps,
        "seconds": round(time.perf_counter() - began, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
