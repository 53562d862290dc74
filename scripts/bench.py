"""Speed, as ratios against other ways to do the same work, measured in turn in the same process and run.

    python scripts/bench.py [--quick] [--only ROW[,ROW ...]] [--json FILE]

The peers that are not needed otherwise come with `pip install -c constraints.txt -e .[bench]`; without one its rows are skipped.

Rows of one core (processor time, the process bound to one core), for one trajectory:
    oscillator  samples of very different cost, against jit(vmap(diffeqsolve))
    numba       the same against Tsit5 in scalar native code
    heyoka      the same, error 1e-9, against Taylor series in vectors of samples
    lorenz      samples of much the same cost, against jit(vmap(diffeqsolve))
    gradient3   the same, value and gradient by three parameters
    saves       the oscillator at 201 times
    robertson   a stiff problem, against Kvaerno's method of order 5 in diffrax
    cvode       the same against CVODE
    chain       50 states
    gray_scott  a partial differential equation
    straggler   512 samples, one 100 times as hard, against each part alone
    compile     the compilation of a solve, against that of diffrax
    single      one sample that is not batched
    gradient    one sample's value and gradient through about 1,000 steps by three parameters (forward mode), against its value
    gradient_reverse  the same by 1,004, the weights of a network (reverse mode)
    memory      XLA's temporaries of that reverse pass where 64 times the steps are allowed, against those of 1,024 steps
Rows of all cores (wall time), from a compiled program to the store:
    sweep       a million solves, against jit(vmap(diffeqsolve)) over chunks in two threads, and a Zarr array
    overhead    cheap samples, against a bare loop over the same program and chunks, and a bare Zarr write
    starts      a fit of four parameters of an ODE from 1,000 starts, 200 steps of Adam each, against a loop over starts and steps
    scaling     ten times the samples, once compiled and its store made

A ratio is what the peer takes to what we take; with no wanted ratio, or an upper bound of it, ours to the peer's. Both sides must
reach the bound of the error: where one does not, the exit status is 1.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import design_rows, engine_rows, rows  # noqa: F401  they register their rows
from benchmarks.contest import ROWS, Result, measure

from engine.runtime import set_xla_flags


def main() -> int:
    """Measure the rows, those of one core in one process and those of all cores in another, and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="few samples, each work once: for correctness")
    options.add_argument("--only", metavar="ROW[,ROW]", help="rows to measure, all of them if left out")
    options.add_argument("--json", metavar="FILE", help="write the figures there too")
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    names = list(ROWS) if chosen.only is None else chosen.only.split(",")
    for name in names:
        if name not in ROWS:
            near = difflib.get_close_matches(name, ROWS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(ROWS)}."
            options.error(f"`--only` must name rows, but has {name!r}. {hint}")
    if chosen.inside:
        results = [shown(measure(ROWS[name], chosen.quick)) for name in names]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
        print(f"peak resident memory {peak:.2f} GiB", flush=True)
    else:
        print(HEADER, flush=True)
        results = [
            result
            for all_cores in (False, True)
            if (group := [name for name in names if ROWS[name].all_cores == all_cores])
            for result in measured_apart(group, chosen.quick, all_cores)
        ]
        told = [r for r in results if r.met is not None]
        if told:
            print(f"{sum(bool(r.met) for r in told)} of {len(told)} rows reach the ratio that is wanted")
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([r.as_json() for r in results], indent=2), encoding="utf-8")
    return 1 if any(r.wrong for r in results) else 0


def measured_apart(names: list[str], quick: bool, all_cores: bool) -> list[Result]:
    """The rows, in a process of their own that is bound to one core before JAX counts them, unless all are wanted.

    Raises:
        SystemExit: that process failed, but for answers that are wrong.
    """
    set_xla_flags()  # as the engine does; both sides are compiled with them
    environment = os.environ | {"JAX_ENABLE_X64": "true", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--inside", "--only", ",".join(names), "--json", str(file)]
        done = subprocess.run(
            [*command, "--quick"] if quick else command,
            env=environment,
            preexec_fn=None if all_cores else on_one_core,
            check=False,
        )
        if not file.exists():
            raise SystemExit(done.returncode or 1)
        found = json.loads(file.read_text(encoding="utf-8"))
    return [Result.from_json(row) for row in found]


def on_one_core() -> None:
    """Bind this process to the last of its cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


HEADER = (
    f"{'row':17}{'work':70}{'ours':>10}{'peer':>10}{'ratio':>8}{'wanted':>8}{'error':>9}{'peer':>9}"
    f"{'compile':>9}{'peer':>7}{'took':>8}"
)


def shown(result: Result) -> Result:
    """Print a row."""
    r = result
    if r.skipped:
        print(f"{r.row:17}skipped: {r.skipped}", flush=True)
        return r
    verdict = "WRONG " if r.wrong else "missed " if r.met is False else ""
    print(
        f"{r.row:17}{r.work:70}{figure(r.ours, r.unit)}{figure(r.peer, r.unit)}{r.ratio:8.2f}{r.wanted:>8}"
        f"{small(r.ours_error)}{small(r.peer_error)}{seconds(r.ours_compile, 9)}{seconds(r.peer_compile, 7)}{r.seconds:7.0f}s  "
        f"{verdict}{'; '.join(r.notes)}".rstrip(),
        flush=True,
    )
    return r


def figure(value: float, unit: str) -> str:
    """A figure in ten columns: seconds, milliseconds or microseconds; bytes as KiB."""
    if unit == "bytes":
        return f"{value / 1024:7.0f}KiB"
    factor, name = next((f, n) for f, n in ((1, "s"), (1e3, "ms"), (1e6, "us")) if value * f >= 0.1 or n == "us")
    return f"{factor * value:{10 - len(name)}.3g}{name}"


def small(value: float | None) -> str:
    """An error in nine columns."""
    return f"{'':9}" if value is None else f"{value:9.1e}"


def seconds(value: float, width: int) -> str:
    """The time of a compilation."""
    return f"{value:{width - 1}.1f}s" if value else " " * width


if __name__ == "__main__":
    sys.exit(main())
