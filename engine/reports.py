"""Plans, runs, stores and machines → text for people, and data for programs."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.references import Reference

if TYPE_CHECKING:
    from engine.convergence import Convergence
    from engine.gradient_check import Check
    from engine.plan import Plan
    from engine.program import Cost
    from engine.purity import Purity
    from engine.repro import Reproduction, Value
    from engine.runs import Summary

BEGIN, BRANCH = "  ", "  "


def size(n: float) -> str:
    """Bytes as people read them: `3.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows in aligned columns."""
    rows = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plan_as_data(plan: Plan, cost: Cost, purity: Purity | None = None) -> dict[str, Any]:
    """A plan as plain data, with XLA's account of a compiled chunk, and what a check of its stages found, if there was one."""
    from engine.derivatives import adjoint_in_effect
    from engine.sites import solves

    draft = plan.draft
    return {
        "status": "planned",
        "name": plan.config.settings.name,
        "fingerprint": draft.fingerprint,
        "store": draft.store_path,
        "stages": [
            {
                "name": s.name,
                "target": s.target,
                "inputs": {k: describe_input(v) for k, v in s.inputs.items()},
                "derivatives": describe_rule(s.function),
            }
            for s in draft.pipeline.stages
        ],
        "transforms": plan.formula,
        "derivatives": [
            {
                "stack": str(one),
                "mode": one.mode_in_words,
                "adjoint": adjoint_in_effect(one, draft.pipeline).strip("'"),
                "why": one.reason,
            }
            for one in plan.passes
        ],
        "hoisted": list(plan.hoisted),
        "solves": [
            list(pair) for pair in dict.fromkeys(solves(plan.sample_jaxpr, {s.name for s in draft.pipeline.stages}))
        ],
        "samples": draft.design.samples,
        "sweep": dict(zip(draft.design.dims, draft.design.shape, strict=True)),
        "chunks": len(plan.blocks),
        "chunk": plan.blocks.width,
        "workers": plan.workers,
        "compilations": plan.compilations,
        "devices": len(plan.devices),
        "chunk_bytes": plan.chunk_bytes,
        "compiled": {"memory": dict(cost.memory), "flops": cost.flops, "bytes_accessed": cost.bytes_accessed},
        "stored_bytes": plan.stored_bytes,
        "variables": {
            v.name: {"dims": list(v.dims), "shape": list(v.shape), "dtype": str(v.dtype), "bytes": nbytes(v)}
            for v in plan.variables
        },
        "warnings": list(plan.warnings),
        "purity": None if purity is None else purity_as_data(purity),
    }


def describe_rule(function: Any) -> str | None:
    """How a function outside JAX gets its derivatives; None where JAX differentiates it itself."""
    rule = getattr(function, "derivatives", None)
    return None if rule is None else str(rule)


def purity_as_data(purity: Purity) -> dict[str, Any]:
    """What a check of the stages found, as plain data."""
    stages = {v.stage: {"pure": v.pure, "problems": v.problems, "notes": v.notes} for v in purity.verdicts}
    return {
        "pure": not purity.problems,
        "evaluated_at": list(purity.points),
        "raised_at": {words: str(trouble) for words, trouble in purity.raised.items()},
        "stages": stages,
    }


def nbytes(variable: Any) -> int:
    """Bytes of a variable before compression."""
    return int(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize)


def describe_input(tree: Any) -> Any:
    """References as text, in their structure; a whole parameter by its name."""
    if isinstance(tree, dict):
        return {name: describe_input(child) for name, child in tree.items()}
    if isinstance(tree, list):
        return [describe_input(child) for child in tree]
    if isinstance(tree, Reference):
        return str(tree)
    import jax

    names = [str(leaf).split(".") for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, Reference)]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))
    return ".".join(parts[0] for parts in shared) or repr(tree)


def describe_plan(plan: Plan, cost: Cost, purity: Purity | None = None) -> str:
    """A plan as text: graph, stack, outputs, chunks, cost, and what a check of the stages found, if there was one."""
    draft = plan.draft
    sections = [
        [f"plan of {plan.config.settings.name} ({plan.config.path.name})", f"  store      {draft.store_path}"],
        ["", "graph", *graph_lines(plan)],
        ["", "stack", f"  {plan.formula}", *reasons(plan)],
        ["", "outputs", *("  " + line for line in table(variable_rows(plan)))],
        ["", "cost", *("  " + line for line in table(cost_rows(plan, cost)))],
    ]
    if purity is not None:
        sections.append(["", "purity", *purity_lines(purity)])
    if plan.warnings:
        sections.append(["", *(f"warning: {w}" for w in plan.warnings)])
    return "\n".join(line for section in sections for line in section)


def purity_lines(purity: Purity) -> list[str]:
    """A line for each stage, with what it does beside; how it was found out."""
    rows = [(v.stage, "pure" if v.pure else "not pure", "; ".join(v.notes)) for v in purity.verdicts]
    where = f", evaluated twice at {', '.join(purity.points)}" if purity.points else ""
    elsewhere = " and in another process" if purity.processes > 1 else ""
    raised = [f"raised at {words}: {trouble}" for words, trouble in purity.raised.items()]
    return ["  " + line for line in [*table(rows), f"(traced twice{elsewhere}{where})", *raised]]


def graph_lines(plan: Plan) -> list[str]:
    """Two lines for each stage: what it returns, and what it takes; a third for derivatives that are not JAX's own."""
    from engine.values import in_words

    stages = plan.draft.pipeline.stages
    width = max((len(stage.name) for stage in stages), default=0)
    lines = []
    for stage in stages:
        inputs = [f"{k}={describe_input(v)}" if str(v) != k else k for k, v in stage.inputs.items()]
        inputs += [f"{k}={short(v, 32)}" for k, v in stage.constants.items()]
        inputs += ["key"] if stage.key_argument else []
        once = "  (once for all samples)" if stage.name in plan.hoisted else ""
        lines.append(f"  {stage.name:{width}}  {short(in_words(plan.draft.shapes[stage.name]), 80)}{once}")
        lines.append(f"  {'':{width}}  = {stage.target}({short(', '.join(inputs), 90)})")
        if (rule := describe_rule(stage.function)) is not None:
            lines.append(f"  {'':{width}}  derivatives {rule}")
    return lines


def short(value: object, limit: int = 48) -> str:
    """A value in a few characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def reasons(plan: Plan) -> list[str]:
    """Why each mode of differentiation was chosen, and the adjoint that goes with it."""
    return reasons_of(plan.passes, plan.draft.pipeline)


def reasons_of(passes: Sequence[Any], pipeline: Any) -> list[str]:
    """Why each mode of these passes was chosen, and the adjoint that goes with it."""
    from engine.derivatives import adjoint_in_effect

    return [f"  {one.mode_in_words} mode, adjoint {adjoint_in_effect(one, pipeline)}: {one.reason}" for one in passes]


def variable_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Name, dimensions, dtype and bytes of each variable."""
    rows = []
    for v in plan.variables:
        dims = ", ".join(f"{d}: {n}" for d, n in zip(v.dims, v.shape, strict=True))
        units = v.attributes.get("units")
        note = f"[{units}]" if units else ""
        kind = "coordinate" if v.coordinate else "once" if not v.swept and plan.draft.design.dims else ""
        rows.append((v.name, f"({dims})", str(v.dtype), f"{size(nbytes(v))} {note} {kind}".rstrip()))
    return rows


def cost_rows(plan: Plan, cost: Cost) -> list[tuple[str, str]]:
    """How stages are solved, chunks, memory and compilations."""
    from engine.sites import solves

    settings = plan.config.settings
    devices = f" on {len(plan.devices)} devices" if len(plan.devices) > 1 else ""
    if cost.bytes:
        temporaries = cost.memory["temporaries"]
        memory = f"{size(cost.bytes)} for each chunk in flight by XLA's account, {size(temporaries)} of them temporary"
    else:
        memory = f"about {size(plan.chunk_bytes)} for each chunk in flight"
    names = {stage.name for stage in plan.draft.pipeline.stages}
    solved = dict.fromkeys(f"{stage or '?'}: {words}" for stage, words in solves(plan.sample_jaxpr, names))
    rows = [
        ("samples", f"{plan.draft.design.samples} ({plan.draft.design.kind})"),
        (
            "chunks",
            f"{len(plan.blocks)} of {plan.blocks.width} samples, {plan.workers} at once ({settings.scheduler.kind}){devices}",
        ),
        ("memory", f"{memory} (execution.memory: {size(settings.execution.memory)})"),
    ]
    if cost.flops:
        rows.append(("work", f"{cost.flops:.3g} flops for each chunk, the body of a loop counted once"))
    rows += [("solver" if i == 0 else "", words) for i, words in enumerate(solved)]
    return [
        *rows,
        ("stored", f"{size(plan.stored_bytes)} before compression"),
        ("compilations", f"{plan.compilations} at most, whatever the number of chunks"),
        ("precision", settings.precision),
    ]


def describe_checks(check: Check) -> str:
    """The table of a check of derivatives, and a sentence on each that does not simply agree."""
    head = ("derivative", "of", "by", "largest", "difference", "uncertainty", "verdict")
    cells = [
        (
            r.derivative,
            r.of,
            r.wrt,
            cell(r.largest, ".3g"),
            cell(r.difference, ".1e"),
            cell(r.uncertainty, ".1e"),
            r.verdict,
        )
        for r in check.rows
    ]
    lines = table([head, *cells])
    if notes := [row.explanation for row in check.rows if row.explanation]:
        lines += ["", *notes]
    if check.left_out:
        lines += ["", "left out", *(f"  {one}" for one in check.left_out)]
    return "\n".join(lines)


def cell(value: float | None, form: str) -> str:
    """A number of a table; a dash for none."""
    return "-" if value is None else format(value, form)


def describe_convergence(found: Convergence) -> str:
    """What was varied, the table of what moved by it, and a sentence on each output that is not simply resolved."""
    head = ("output", "by", "largest", "change", "relative", "limit", "sample", "order", "verdict")
    cells = [
        (
            r.output,
            r.by,
            cell(r.largest, ".3g"),
            cell(r.change, ".1e"),
            cell(r.relative, ".1e"),
            cell(r.limit, ".0e"),
            cell(r.sample, "d"),
            cell(r.order, ".2f"),
            r.verdict,
        )
        for r in found.rows
    ]
    rows = [head, *cells]
    if all(row.order is None for row in found.rows):
        rows = [(*row[:7], row[8]) for row in rows]  # type: ignore[misc]
    lines = [*table((one.by, str(one)) for one in found.varied), "", *table(rows)]
    if notes := [*found.notes, *(row.explanation for row in found.rows if row.explanation)]:
        lines += ["", *notes]
    for title, parts in (("ended in another way", found.turned), ("left out", found.left_out)):
        if parts:
            lines += ["", title, *(f"  {one}" for one in parts)]
    return "\n".join(lines)


def describe_run(summary: Summary) -> str:
    """What a run did, in a few lines."""
    if summary.design:
        from engine.design_reports import describe_design

        return describe_design(summary)
    head = {
        "complete": "complete",
        "partial": "done, but some samples failed",
        "failed": "failed: no sample has a result",
        "stopped": "stopped at the first chunk with a failed sample (on_error: stop); the same command goes on",
        "timed_out": "stopped: a chunk took longer than execution.time_limit allows; finished chunks are kept; the same command goes on",
        "interrupted": "interrupted: finished chunks are kept; the same command goes on",
    }[summary.status]
    if summary.computed == 0 and summary.status in ("complete", "partial", "failed"):
        head = f"nothing to do, already {head}" if summary.status == "complete" else f"nothing to do: {head}"
    lines = [f"{head}: {summary.store}"]
    counts = ", ".join(f"{n} {name}" for name, n in summary.counts.items())
    lines.append(
        f"  {summary.samples} samples: {counts}" + (f"; {summary.skipped} were done before" if summary.skipped else "")
    )
    if summary.computed:
        cached = f" ({summary.cache_hits} from the cache)" if summary.cache_hits else ""
        lines.append(
            f"  {summary.compilations} compilation{'s' * (summary.compilations != 1)}{cached}, {summary.compile_seconds:.1f} s; "
            f"run {summary.run_seconds:.1f} s; {summary.seconds:.1f} s in all"
        )
    if summary.overdue:
        lines.append(f"  still computing after {summary.time_limit:g} s, and pending:")
        lines += [f"    {one}" for one in summary.overdue]
        alone = [one.samples for one in summary.overdue] == [1]
        narrow = "" if alone else "execution.chunk=1 scheduler.workers=1 with another store finds the sample; "
        lines.append(
            f"  {narrow}bound the loop that does not end there, leave the sample out, or raise execution.time_limit"
        )
    if summary.failures:
        lines.append(f"  failed samples{' (the first)' if summary.failed > len(summary.failures) else ''}:")
        lines += [f"    {f.sample}: {f.status} at {point(f.parameters)}" for f in summary.failures]
    if summary.raised and not any(trouble.kind == "raised" for trouble in summary.origins):
        from engine.origins import describe

        lines += ["  the first that raised:", *(f"    {line}" for line in describe(summary.raised))]
    if summary.failed and summary.log:
        lines.append(f"  {'tracebacks' if summary.counts.get('error') else 'log'}: {summary.log}")
    lines += [f"  {line}" for line in summary.nonfinite]
    if summary.origins:
        from engine.origins import describe

        lines += ["  where one went wrong:", *(f"    {line}" for line in describe(summary.origins))]
    if summary.failures:
        first = summary.nonfinite[0].first if summary.nonfinite else summary.failures[0].sample
        lines.append(f"  look into one: {remedy(summary.store, first)}")
    return "\n".join(lines)


def remedy(store: str, sample: int) -> str:
    """The command that looks into a sample that failed."""
    return f"python -m engine repro {shlex.quote(store)} --sample {sample}"


def describe_reproduction(found: Reproduction) -> str:
    """A sample that was computed again, as text."""
    from engine.origins import describe

    if found.stored not in (found.outcome, "pending"):
        agrees = f", but {found.stored} in the store"
    elif found.status == "differs":
        agrees = ", but with other values than those stored"
    else:
        agrees = ", not computed before" if found.stored == "pending" else ", as stored"
    lines = [
        f"sample {found.sample} of {found.samples} in {found.store}: {found.outcome}{agrees}",
        f"  {point(found.parameters)}",
    ]
    if found.outputs:
        lines += ["", "outputs", *("  " + line for line in table(value_row(v) for v in found.outputs))]
    lines += ["", "origin"]
    troubles = describe(found.origins)
    fine = "no number that is not finite led to it"
    if found.outcome == "ok":
        fine = "all finite: nothing to find"
    elif found.outcome == "nonfinite" and not any(value.nonfinite for value in found.outputs):
        fine = "all finite, but one is beyond the max_abs of its output"
    lines += ["  " + line for line in troubles or [fine]]
    return "\n".join(lines)


def value_row(value: Value) -> tuple[str, str, str, str]:
    """Name, type, first numbers, and whether they are finite and those of the store."""
    numbers = value.value if isinstance(value.value, list) else [value.value]
    text = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in numbers)
    size = math.prod(value.shape)
    shape = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    wrong = f"{value.nonfinite} of {size} not finite" if size > 1 else "not finite"
    known = (
        "" if value.difference is None else "as stored" if value.is_rounding else f"differs by {value.difference:.1e}"
    )
    if value.difference and value.is_rounding:
        known += f", to {value.difference:.0e}"
    return value.name, shape, text + (", ..." if size > len(numbers) else ""), wrong if value.nonfinite else known


def point(parameters: dict[str, Any]) -> str:
    """A sample's parameters as text."""
    return (
        ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in parameters.items())
        or "the nominal values"
    )


def store_as_data(path: str) -> dict[str, Any]:
    """A store as plain data."""
    from engine.store import opened

    store = opened(path)
    status = np.asarray(store.status())
    from engine.status import STATUS

    attributes, vocabulary = store.attributes, store.layout.vocabulary
    return {
        "status": "complete"
        if (status == STATUS["ok"]).all()
        else "pending"
        if (status == STATUS["pending"]).any()
        else "partial",
        "store": str(store.path),
        "samples": int(status.size),
        "counts": {name: int((status == code).sum()) for name, code in vocabulary.items() if (status == code).any()},
        "sweep": dict(zip(store.dims, store.blocks.shape, strict=True)),
        "chunk": list(store.blocks.block),
        "variables": {
            v.name: {"dims": list(v.dims), "shape": list(v.shape), "dtype": str(v.dtype), **v.attributes}
            for v in store.variables
        },
        "failures": store_failures(path, status),
        "nonfinite": list(attributes.get("nonfinite", ())),
        "provenance": {k: attributes[k] for k in PROVENANCE if k in attributes},
    }


PROVENANCE = (
    "name",
    "fingerprint",
    "config_file",
    "overrides",
    "seed",
    "precision",
    "transforms",
    "optimize",
    "versions",
    "git",
    "device",
    "runs",
)


def store_failures(path: str, status: np.ndarray[Any, Any], limit: int = 10) -> list[dict[str, Any]]:
    """The first failed samples with their status and parameters."""
    from engine.status import OPTIMIZE_STATUS, STATUS
    from engine.store import open_dataset

    bad = np.flatnonzero(status.ravel() > STATUS["ok"])[:limit]
    if not len(bad):
        return []
    names = {code: name for name, code in OPTIMIZE_STATUS.items()}
    dataset = open_dataset(path)
    dims = dataset["status"].dims
    failures = []
    for flat in bad:
        where = dict(zip(dims, np.unravel_index(flat, status.shape), strict=True))
        found = {
            str(name): coordinate.isel({d: i for d, i in where.items() if d in coordinate.dims}).values.tolist()
            for name, coordinate in dataset.coords.items()
            if coordinate.dims and set(coordinate.dims) <= set(dims)
        }
        failures.append({"sample": int(flat), "status": names[int(status.ravel()[flat])], "parameters": found})
    return failures


def describe_store(path: str) -> str:
    """A store as text."""
    from engine.nonfinite import read_entries

    data = store_as_data(path)
    head = f"{data['store']}: {data['status']}"
    counts = ", ".join(f"{n} {name}" for name, n in data["counts"].items())
    sweep = " x ".join(f"{d} {n}" for d, n in data["sweep"].items()) or "a single evaluation"
    lines = [head, f"  samples    {data['samples']} ({sweep}): {counts}", "", "variables"]
    rows = []
    for name, v in data["variables"].items():
        dims = ", ".join(f"{d}: {n}" for d, n in zip(v["dims"], v["shape"], strict=True))
        rows.append(
            (name, f"({dims})", v["dtype"], f"[{v['units']}]" if v.get("units") else "", v.get("description", ""))
        )
    lines += ["  " + line for line in table(rows)]
    if "optimize" in data["provenance"]:
        from engine.design_reports import describe_design_store
        from engine.store import opened

        lines += describe_design_store(opened(path))
    elif data["failures"]:
        lines += ["", "failed samples (the first)"]
        lines += [f"  {f['sample']}: {f['status']} at {point(f['parameters'])}" for f in data["failures"]]
        lines += [f"  {line}" for line in read_entries(data["nonfinite"], data["counts"].get("nonfinite", 0))]
        first = data["nonfinite"][0]["first"] if data["nonfinite"] else data["failures"][0]["sample"]
        lines.append(f"  look into one: {remedy(data['store'], first)}")
    lines += ["", "provenance"]
    for key, value in data["provenance"].items():
        if key == "optimize":
            continue  # told above
        if key == "runs":
            value = f"{len(value)}, {sum(run.get('run_seconds', 0) for run in value):.1f} s computing"
        elif isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        lines.append(f"  {key:12} {value}")
    return "\n".join(lines)


def doctor_as_data() -> dict[str, Any]:
    """What a bug report needs."""
    import os
    import platform

    from engine import runtime
    from engine.config import groups_folder

    runtime.set_xla_flags()
    import jax

    return {
        "status": "ok",
        "platform": platform.platform(),
        "processor": runtime.processor().partition("\n")[0].partition(":")[2].strip() or platform.processor(),
        "cores": runtime.cores(),
        "versions": runtime.versions(),
        "devices": [f"{d.platform} {d.device_kind} ({d.id})" for d in jax.devices()],
        "precision": "float64 by default; this process " + ("float64" if jax.config.jax_enable_x64 else "float32"),
        "compile_cache": os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(runtime.cache_folder()),
        "cached_programs": cached_programs(runtime.cache_folder()),
        "config_groups": str(groups_folder()),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(("JAX_", "XLA_"))},
    }


def cached_programs(folder: Any) -> int:
    """How many compiled programs the cache holds."""
    return sum(1 for file in folder.glob("*-cache")) if folder.is_dir() else 0


def describe_doctor(data: dict[str, Any]) -> str:
    """The machine as text."""
    lines = []
    for key, value in data.items():
        if key == "status":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(f"{key:16} {value}")
    return "\n".join(lines)
