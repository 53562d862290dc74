"""Speed, as ratios against plainer ways to do the same work, measured in the same process and run.

    python scripts/bench.py [--quick] [--json FILE]

Rows
    overhead    the engine's run of a sweep, from plan to store, against a bare loop over the same compiled program and the
                same chunks plus a bare Zarr write of the same arrays
    scaling     the run of ten times the samples, once compiled and its store made, against that of the first row
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CHEAP = """\
defaults: [engine, {{scheduler: threads}}, _self_]
name: cheap
parameters: {{omega: 2.0, zeta: 0.05, t: 1.0}}
stages:
  closed: {{_target_: cheap.closed}}
outputs: {{x: closed.x, v: closed.v}}
sweep: {{design: random, samples: {samples}, axes: {{omega: {{uniform: [0.5, 20.0]}}, zeta: {{uniform: [0.0, 0.5]}}}}}}
store: {{path: {store}}}
"""
MODEL = '''\
import jax.numpy as jnp


def closed(omega, zeta, t):
    """Displacement and velocity of the damped oscillator from x(0) = 1, v(0) = 0."""
    wd = omega * jnp.sqrt(1 - zeta**2)
    decay = jnp.exp(-zeta * omega * t)
    x = decay * (jnp.cos(wd * t) + zeta * omega / wd * jnp.sin(wd * t))
    v = -decay * omega**2 / wd * jnp.sin(wd * t)
    return {"x": x, "v": v}
'''


def main() -> None:
    """Measure every row and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a tenth of the samples, two repeats: for correctness")
    options.add_argument("--json", metavar="FILE", help="write the figures there too")
    chosen = options.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    samples, repeats = (100_000, 2) if chosen.quick else (1_000_000, 7)
    rows = overhead(samples, repeats)
    print(f"{'work':44} {'ours':>10} {'peer':>10} {'ratio':>7}")
    for row in rows:
        print(f"{row['work']:44} {row['ours']:9.3f}s {row['peer']:9.3f}s {row['ratio']:7.2f}")
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(rows, indent=2), encoding="utf-8")


def overhead(samples: int, repeats: int) -> list[dict[str, Any]]:
    """The engine against a bare loop, and against itself with ten times the samples."""
    folder = Path(tempfile.mkdtemp(prefix="engine-bench-"))
    try:
        (folder / "cheap.py").write_text(MODEL, encoding="utf-8")
        whole, run, bare, tenfold = [], [], [], []
        for repeat in range(repeats + 1):  # the first warms caches and is left out
            seconds, running = engine_run(folder, samples)
            loop = bare_run(folder, samples)
            if repeat:
                whole.append(seconds)
                run.append(running)
                bare.append(loop)
                if repeat <= 3:
                    tenfold.append(engine_run(folder, 10 * samples)[1])
        return [
            row(f"{samples} cheap samples to a store: bare loop", whole, bare),
            row(f"{10 * samples} samples: {samples} samples", tenfold, run),
        ]
    finally:
        shutil.rmtree(folder)


def row(work: str, ours: list[float], peer: list[float]) -> dict[str, Any]:
    """Medians and their ratio."""
    a, b = statistics.median(ours), statistics.median(peer)
    return {"work": work, "ours": a, "peer": b, "ratio": a / b}


def planned(folder: Path, samples: int, store: Path) -> Any:
    """A plan of the cheap pipeline with nothing at its store's path."""
    import engine

    shutil.rmtree(store, ignore_errors=True)
    config = folder / "cheap.yaml"
    config.write_text(CHEAP.format(samples=samples, store=store), encoding="utf-8")
    return engine.load(config)


def engine_run(folder: Path, samples: int) -> tuple[float, float]:
    """Seconds that the engine takes from a compiled program to the finished store, and those of them for the chunks."""
    from engine.execute import Runner, execute
    from engine.plan import attributes_of, make_layout
    from engine.program import Program
    from engine.runs import coordinates
    from engine.store import create

    plan = planned(folder, samples, folder / "ours.zarr")
    program = Program(plan)
    program.prepare()
    start = time.perf_counter()
    store = create(plan.draft.store_path, make_layout(plan), attributes_of(plan))
    store.write_once(program.once_values | coordinates(plan))
    begin = time.perf_counter()
    execute(Runner(plan, program, store, [], threading.Event()), list(store.blocks))
    end = time.perf_counter()
    return end - start, end - begin


def bare_run(folder: Path, samples: int) -> float:
    """Seconds of a loop by hand over the same program and chunks on as many threads, then one Zarr write for each array."""
    import numpy as np
    import zarr

    from engine.program import Program

    plan = planned(folder, samples, folder / "bare.zarr")
    program = Program(plan)
    program.prepare()
    blocks, design = plan.blocks, plan.draft.design

    def chunk(number: int) -> None:
        index = blocks.samples_of(number)
        padded = np.concatenate([index, np.full(blocks.width - len(index), index[-1])])
        outputs, codes = program(design.take(padded), padded.astype(np.uint32))
        for name, array in outputs.items():
            found[name][index] = array[: len(index)]
        status[index] = codes[: len(index)]

    start = time.perf_counter()
    found = {name: np.empty(samples) for name in program.swept}
    status = np.empty(samples, np.int8)
    with ThreadPoolExecutor(plan.workers) as pool:
        list(pool.map(chunk, blocks))
    group = zarr.create_group(str(folder / "bare.zarr"))
    for name, array in (found | {"status": status} | design.columns).items():
        group.create_array(name, data=array, chunks=blocks.block)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
