"""Optimizations → text for people, and data for programs; all numbers in the variables' own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.reasons import WORDS

if TYPE_CHECKING:
    from engine.design_runs import Optimum
    from engine.optimization import Optimization
    from engine.runs import Summary

HEADS = {
    "complete": "complete: {store}",
    "partial": "done, but not every design point has a certified optimum: {store}",
    "failed": "failed: no search converged to an optimum that can be certified: {store}",
    "stopped": "stopped at the first batch with a search that did not converge (on_error: stop); the same command goes on: {store}",
    "timed_out": "stopped: a batch took longer than execution.time_limit allows; the same command goes on: {store}",
    "interrupted": "interrupted: every search is kept at its last checkpoint; the same command goes on: {store}",
}
SHOWN_ELEMENTS = 6


def number(value: Any) -> str:
    """A number, or the first elements of an array, as text."""
    if value is None:
        return "none"
    array = np.asarray(value)
    if not array.shape:
        return f"{array.item():.8g}" if array.dtype.kind == "f" else str(array.item())
    flat = [f"{float(v):.5g}" for v in array.ravel()[:SHOWN_ELEMENTS]]
    return f"[{', '.join(flat)}{', …' if array.size > SHOWN_ELEMENTS else ''}]"


def describe_design(summary: Summary) -> str:
    """What an optimization found, in a few lines."""
    from engine.reports import point

    head = HEADS[summary.status].format(store=summary.store)
    if summary.computed == 0 and summary.status in ("complete", "partial", "failed"):
        head = f"nothing to do, already {head}"
    counts = ", ".join(f"{n} {'converged' if name == 'ok' else name}" for name, n in summary.counts.items())
    lines = [
        head,
        f"  {summary.samples} search{'es' * (summary.samples != 1)}: {counts}"
        + (f"; {summary.skipped} had ended before" if summary.skipped else ""),
    ]
    if summary.computed:
        cached = f" ({summary.cache_hits} from the cache)" if summary.cache_hits else ""
        lines.append(
            f"  {summary.compilations} compilation{'s' * (summary.compilations != 1)}{cached}, {summary.compile_seconds:.1f} s; "
            f"run {summary.run_seconds:.1f} s; {summary.seconds:.1f} s in all"
        )
    for optimum in summary.optima:
        lines += ["", *optimum_lines(optimum)]
    if summary.failures:
        more = " (the first)" if summary.failed > len(summary.failures) else ""
        lines += ["", f"searches that did not converge{more}:"]
        lines += [f"  {f.sample}: {f.status}, {f.reason}, at {point(f.parameters)}" for f in summary.failures]
        lines += [f"  {reason}: {WORDS[reason]}" for reason in dict.fromkeys(f.reason for f in summary.failures)]
    if summary.origins:
        from engine.origins import describe

        lines += ["", "where one went wrong:", *(f"  {line}" for line in describe(summary.origins))]
    return "\n".join(lines)


def optimum_lines(optimum: Optimum) -> list[str]:
    """The best of a design point's searches."""
    from engine.reports import point, table

    where = f" for {point(optimum.point)}" if optimum.point else ""
    word = "optimum" if optimum.status == "ok" else f"best point, {optimum.status} ({optimum.reason})"
    norm = "" if optimum.gradient_norm is None else f"; projected gradient {optimum.gradient_norm:.1e}"
    violated = "" if not optimum.infeasibility else f"; constraints violated by {optimum.infeasibility:.1e}"
    lines = [f"{word}{where}: objective {number(optimum.objective)} in {optimum.steps} steps{norm}{violated}"]
    lines += ["  " + line for line in table(variable_cells(optimum, name) for name in optimum.variables)]
    if len(optimum.minima) > 1:
        lines.append(f"  distinct minima ({optimum.converged} searches converged):")
        rows = [
            (
                number(m.objective),
                ", ".join(f"{k}={number(v)}" for k, v in m.variables.items()),
                f"{m.searches} of them",
            )
            for m in optimum.minima
        ]
        lines += ["    " + line for line in table(rows)]
    return lines


def variable_cells(optimum: Optimum, name: str) -> tuple[str, ...]:
    """A variable at the optimum; of a fit with its standard error and its confidence interval."""
    value = number(optimum.variables[name])
    if name not in optimum.standard_errors:
        return (name, value, "", "") if optimum.standard_errors else (name, value)
    ends = np.asarray(optimum.confidence[name])
    interval = f"{number(ends[..., 0])} to {number(ends[..., 1])}"
    return name, value, f"± {number(optimum.standard_errors[name])}", interval


def describe_design_plan(plan: Optimization, memory: int | None = None) -> str:
    """An optimization as text: the problem, its graph, the stack, the variables, what is stored and what it costs."""
    from engine.reports import graph_lines, reasons_of, size, table

    problem, draft = plan.problem, plan.draft
    searches = " x ".join(f"{d} {n}" for d, n in zip(problem.dims, problem.shape, strict=True)) or "one"
    samples = f", each over {problem.sweep.samples} samples" if problem.over else ""
    sections: list[Sequence[str]] = [
        [f"plan of {plan.config.settings.name} ({plan.config.path.name})", f"  store      {draft.store_path}"],
        ["", "problem", *("  " + line for line in table(problem_rows(plan)))],
        ["", "variables", *("  " + line for line in table(variable_rows(plan)))],
        ["", "graph", *graph_lines(plan.results)],
        ["", "stack", f"  {plan.formula}", *reasons_of(plan.objective.passes, draft.pipeline)],
        [
            "",
            "cost",
            f"  searches   {problem.searches} ({searches}){samples}",
            f"  batches    {len(plan.blocks)} of {plan.blocks.width}, {plan.workers} at once",
            f"  memory     {size(memory or plan.objective.sample_bytes * plan.blocks.width * plan.batch)} for each batch",
            f"  steps      {problem.settings.max_steps} at most, tolerance {problem.settings.tolerance:g}",
            f"  certificate {'with' if plan.hessian or problem.residual else 'without'} the Hessian of {plan.scaling.n} variables",
        ],
    ]
    if plan.warnings:
        sections.append(["", *(f"warning: {w}" for w in plan.warnings)])
    return "\n".join(line for section in sections for line in section)


def problem_rows(plan: Optimization) -> list[tuple[str, str]]:
    """What is asked, in words."""
    problem = plan.problem
    rows = [("goal", problem.stands_for), ("method", f"{problem.method}{because(problem.method)}")]
    if plan.products:
        rows.append(("curvature", "exact, by products with the Hessian of objective and constraints"))
    for c in problem.constraints:
        low, high = (f"{end:g}" if np.isfinite(end) else None for end in (c.low, c.high))
        limits = (
            f"= {low}"
            if low == high
            else " and ".join(part for part in (f">= {low}" if low else "", f"<= {high}" if high else "") if part)
        )
        everywhere = " at every sample" if problem.over else ""
        rows.append(("constraint", f"{c.name} {limits}{everywhere}"))
    if problem.over:
        share = problem.settings.allow_failed
        rule = f"at most {share:.0%} of the samples may fail, and are left out" if share else "none may fail"
        rows.append(("reduction", f"{problem.reduction} over {problem.sweep.samples} samples; {rule}"))
    return rows


def because(method: Any) -> str:
    """Why the engine chose a method, if it did."""
    reason = getattr(method, "reason", "")
    return f" ({reason})" if reason else ""


def variable_rows(plan: Optimization) -> list[tuple[str, ...]]:
    """Start, bounds and scale of each variable, in its own units."""
    rows: list[tuple[str, ...]] = [("name", "start", "bounds", "scale", "divided by")]
    for name, facts in plan.variable_facts().items():
        low, high = (number(end) if end is not None else "none" for end in facts["bounds"])
        rows.append((name, number(facts["start"]), f"{low} to {high}", facts["scale"], f"{facts['size']:g}"))
    rows += [(name, "", number(values), "enumerated", "") for name, values in plan.problem.choices.items()]
    return rows


def design_plan_as_data(plan: Optimization) -> dict[str, Any]:
    """An optimization as plain data."""
    problem = plan.problem
    facts = plan.attributes()["optimize"]
    return {
        "status": "planned",
        "name": plan.config.settings.name,
        "fingerprint": plan.draft.fingerprint,
        "store": plan.draft.store_path,
        "optimize": facts,
        "transforms": plan.formula,
        "searches": problem.searches,
        "dims": dict(zip(problem.dims, problem.shape, strict=True)),
        "batches": len(plan.blocks),
        "batch": plan.blocks.width,
        "workers": plan.workers,
        "variables": {
            v.name: {"dims": list(v.dims), "shape": list(v.shape), "dtype": str(v.dtype)}
            for v in plan.layout().variables
        },
        "warnings": list(plan.warnings),
    }


def scaling_lines(store: Any) -> list[str]:
    """The scaling and conditioning of a store's problem: what each variable was divided by, and how the curvature spreads."""
    from engine.reports import table

    facts = store.attributes["optimize"]
    rows = [("variable", "start", "bounds", "scale", "divided by")]
    for name, v in facts["variables"].items():
        low, high = (number(end) if end is not None else "none" for end in v["bounds"])
        rows.append((name, number(v["start"]), f"{low} to {high}", v["scale"], f"{v['size']:g}"))
    lines = table(rows)
    values = store.read("eigenvalues").reshape(-1, 2)
    with np.errstate(all="ignore"):
        ratio = np.abs(values).max(axis=1) / np.abs(values).min(axis=1)
    ratio = ratio[np.isfinite(ratio)]
    if ratio.size:
        lines.append(f"condition of the Hessian by the scaled variables: {np.min(ratio):.3g} to {np.max(ratio):.3g}")
    return lines


def describe_design_store(store: Any) -> list[str]:
    """What a store of an optimization holds, beside its variables: the problem, its scaling, the results."""
    from engine.status import OPTIMIZE_STATUS

    facts = store.attributes["optimize"]
    status = np.asarray(store.status())
    counts = {name: int((status == code).sum()) for name, code in OPTIMIZE_STATUS.items()}
    shown = ", ".join(f"{n} {'converged' if name == 'ok' else name}" for name, n in counts.items() if n)
    lines = ["", "optimization", f"  {facts['problem']}, by {facts['method']}: {shown}"]
    lines += ["  " + line for line in scaling_lines(store)]
    lines += ["", "best", *("  " + line for line in best_lines(store, facts, status))]
    return lines


def best_lines(store: Any, facts: dict[str, Any], status: np.ndarray[Any, Any], limit: int = 10) -> list[str]:
    """The best search of each design point."""
    from engine.reasons import REASONS
    from engine.reports import table

    several = store.dims[-1:] == ("start",)
    objective = store.read("objective")
    lead = objective.shape[:-1] if several else objective.shape
    best = store.read("best") if several else None
    codes = {code: name for name, code in REASONS.items()}
    rows = []
    for place in list(np.ndindex(*lead))[:limit]:
        at = (*place, int(best[place])) if best is not None else place
        if at and at[-1] < 0:
            rows.append((", ".join(map(str, place)), "no start with a finite objective", "", ""))
            continue
        values = ", ".join(f"{name}={number(store.read(f'variables.{name}')[at])}" for name in facts["variables"])
        rows.append((f"{list(at)}", f"objective {number(objective[at])}", values, codes[int(store.read("reason")[at])]))
    return table(rows)
