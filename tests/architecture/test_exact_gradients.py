"""Searches use the exact derivatives of the pipeline: no module of theirs knows finite differences, and none is taken by SciPy."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.optimize

from tests.project import REPOSITORY, Project

SEARCHING = (
    "certificate",
    "design_runs",
    "estimation",
    "host_search",
    "methods",
    "objective",
    "optax_methods",
    "optimistix_methods",
    "optimization",
    "problem",
    "scipy_methods",
    "search",
    "searches",
)
MODEL = """
import jax.numpy as jnp

def bowl(u):
    return {"f": jnp.sum((u - 1.0) ** 2 * jnp.arange(1.0, 31.0)), "sum": jnp.sum(u)}
"""
CONFIG = f"""
defaults: [engine, {{scheduler: synchronous}}, _self_]
name: bowl
parameters: {{u: {[0.0] * 30}}}
stages: {{bowl: {{_target_: model.bowl}}}}
outputs: {{f: bowl.f, sum: bowl.sum}}
optimize: {{minimize: f, variables: {{u: {{bounds: [-2, 2]}}}}, constraints: {{sum: {{max: 20.0}}}}, method: METHOD}}
"""


@pytest.mark.parametrize("name", SEARCHING)
def test_no_module_of_the_searches_imports_differences(name: str) -> None:
    tree = ast.parse((Path(REPOSITORY) / "engine" / f"{name}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any("differences" in (module or "") or "gradient_check" in (module or "") for module in imported)


@pytest.mark.parametrize("method", ["slsqp", "trust_constr"])
def test_scipy_is_given_every_derivative(project: Project, method: str) -> None:
    """With finite differences one gradient of 30 variables would cost 30 evaluations."""
    calls: list[dict[str, Any]] = []
    minimize = scipy.optimize.minimize

    def watched(*arguments: Any, **keywords: Any) -> Any:
        calls.append(keywords)
        return minimize(*arguments, **keywords)

    project.model(MODEL).yaml(CONFIG.replace("METHOD", method))
    with mock.patch.object(scipy.optimize, "minimize", watched):
        found = project.run()
    np.testing.assert_allclose(found["variables.u"].sum(), 20.0, atol=1e-5)
    assert calls
    for keywords in calls:
        assert callable(keywords["jac"])
        for constraint in np.atleast_1d(keywords["constraints"]):
            given = constraint["jac"] if isinstance(constraint, dict) else constraint.jac
            assert callable(given)
            if method == "trust_constr":
                assert callable(keywords["hess"])
                assert callable(constraint.hess)
