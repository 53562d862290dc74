"""What there is to choose from, read off the config groups and the worked pipelines without importing them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from engine.config import groups_folder


def options_of(group: str) -> dict[str, str]:
    """The options of a config group, each with the comment that its file begins with."""
    found = {}
    for file in sorted((groups_folder() / group).glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        first = next((line for line in lines if line.startswith("#")), "")
        found[file.stem] = first.lstrip("# ").strip()
    return found


def stages() -> dict[str, str]:
    """Public functions of the worked pipelines, each with the first line of its docstring."""
    found = {}
    folder = Path(__file__).parent.parent / "pipelines"
    for file in sorted(folder.glob("[!_]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                text = (ast.get_docstring(node) or "").partition("\n")[0]
                found[f"pipelines.{file.stem}.{node.name}"] = text
    return found


def designs() -> dict[str, str]:
    """The sweep designs."""
    return {
        "grid": "the outer product of the axes, one dimension for each (default)",
        "zip": "axes of equal lengths, paired",
        "latin_hypercube": "samples: n; each axis a distribution; n strata along each",
        "sobol": "samples: n; a scrambled Sobol sequence; the first points stay as n grows",
        "halton": "samples: n; a scrambled Halton sequence; the first points stay as n grows",
        "random": "samples: n; independent draws; the first points stay as n grows",
        "table": "table: file.csv, with a column for each parameter",
    }


def derivatives() -> dict[str, str]:
    """The kinds of derivatives."""
    return {
        "gradient": "of a scalar output; stored as name.p for each parameter p (default); order: n for the n-th along each",
        "jacobian": "of any output; stored as name.p",
        "hessian": "second derivatives of any output; stored as name.p.q",
        "jvp": "the Jacobian times direction: {p: v}, matrix-free; stored as name",
        "vjp": "direction: w, of the output's shape, times the Jacobian, matrix-free; stored as name.p",
        "hvp": "the Hessian of a scalar output times direction: {p: v}, matrix-free; stored as name.p",
    }


def transforms() -> dict[str, str]:
    """The layers of the transform stack, innermost first."""
    return {
        "_target_: mine.transform": "a function in, a function out; inside derivatives or outside, always inside vmap",
        "checkpoint": "{stages: [...]}: recompute these stages in a reverse pass instead of keeping what it needs of them",
        "derivatives": "what the config's derivatives ask for",
        "vmap": "over the samples of a chunk",
        "map": "{axes: [...], batch: n}: along these axes one batch after the other, where vmap takes too much memory",
        "devices": "split a chunk over all devices, or {devices: n}",
        "jit": "compile",
    }


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "stages": stages,
    "solvers": lambda: options_of("solver"),
    "optimizers": lambda: options_of("optimizer"),
    "designs": designs,
    "derivatives": derivatives,
    "transforms": transforms,
}


def catalog(kind: str) -> dict[str, str]:
    """The names of one kind, each with a line on what it is."""
    return KINDS[kind]()


def describe_catalog(kinds: list[str]) -> str:
    """The catalog as text."""
    blocks = []
    for kind in kinds:
        found = catalog(kind)
        width = max(map(len, found), default=0)
        lines = [f"  {name:{width}}  {text}".rstrip() for name, text in found.items()]
        blocks.append("\n".join([f"{kind}:", *(lines or ["  none in this version"])]))
    return "\n\n".join(blocks)
