"""What is refused of `optimize.method`, in words; and what is chosen where it is left open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.catalog import options_of
from engine.config import read_config
from engine.draft import make_draft
from engine.errors import ConfigError, PlanError
from engine.methods import all_methods, read_method

CONF = Path(__file__).resolve().parent.parent.parent / "conf"

PLAIN: dict[str, Any] = {
    "bounds": False,
    "constraints": False,
    "residuals": False,
    "starts": 1,
    "sweep": False,
    "variables": 3,
}

REFUSED: dict[str, tuple[object, dict[str, Any], str]] = {
    "a name that is not there": ("lbgfs", {}, "must be auto, one of .*'lbfgs'.*but is 'lbgfs'.*Did you mean 'lbfgs'"),
    "a number": (3, {}, "must be auto, a name or a node.*but is 3.*list optimizers"),
    "a node without a target": ({"learning_rate": 1}, {}, "must be auto, a name or a node with a _target_"),
    "a target that is not there": ({"_target_": "optax.adamm", "learning_rate": 1}, {}, "must be built.*optax.adamm"),
    "a target without what it needs": ({"_target_": "optax.adam"}, {}, "must be built.*'learning_rate'"),
    "something else": ({"_target_": "math.sqrt", "_args_": [2]}, {}, "must be an Optax.*math.sqrt makes a float"),
    "a wrong setting": ({"_target_": "ops.minimize.LBFGS", "memory": 0}, {}, "`memory`.*at least 1, but is 0"),
    "a wrong damping": ({"_target_": "ops.minimize.LevenbergMarquardt", "damping": -1.0}, {"residuals": True}, "positive"),
    "a wrong inner method": (
        {"_target_": "ops.minimize.AugmentedLagrangian", "inner": {"_target_": "ops.minimize.Dogleg"}},
        {},
        "`inner` must be BFGS, LBFGS or NonlinearCG",
    ),
    "another method of SciPy": (
        {"_target_": "engine.scipy_methods.SciPyMethod", "name": "cobyla"},
        {},
        "must be one of 'lbfgsb', 'slsqp', 'trust_constr', but is 'cobyla'",
    ),
    "a line search of its own": ({"_target_": "optax.lbfgs"}, {}, "one evaluation.*evaluations of its own.*linesearch: null"),
    "a simplex": ({"_target_": "optimistix.NelderMead", "rtol": 1e-3, "atol": 1e-3}, {}, "one evaluation, but NelderMead cannot"),
    "constraints": ("adam", {"constraints": True}, "must honour constraints, but is 'adam'.*'augmented_lagrangian', 'slsqp'"),
    "bounds": (
        {"_target_": "optimistix.BFGS", "rtol": 1e-8, "atol": 1e-8},
        {"bounds": True},
        "must honour bounds, but is 'BFGS'.*'bfgs'.*leave the bounds out",
    ),
    "no data": ("dogleg", {}, "must do without residuals, but is 'dogleg'.*'lbfgs'.*optimize.data"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    node, problem, said = REFUSED[case]
    with pytest.raises(PlanError, match=f"(?s)`optimize.method.*{said}"):
        read_method(node, **{**PLAIN, **problem})


def test_only_methods_that_can_do_all_that_is_asked_are_proposed() -> None:
    with pytest.raises(PlanError) as refused:
        read_method("levenberg_marquardt", **{**PLAIN, "constraints": True, "bounds": True})
    assert all("'augmented_lagrangian', 'slsqp', 'trust_constr'" in problem for problem in refused.value.problems)
    assert len(refused.value.problems) == 2


@pytest.mark.parametrize(
    ("problem", "name", "reason"),
    [
        ({}, "bfgs", "3 variables are few"),
        ({"variables": 20}, "lbfgs", "20 variables are many"),
        ({"residuals": True}, "levenberg_marquardt", "residuals"),
        ({"constraints": True, "residuals": True}, "slsqp", "constraints"),
        ({"constraints": True, "starts": 17}, "augmented_lagrangian", "17 searches"),
        ({"constraints": True, "variables": 201}, "augmented_lagrangian", "201 variables"),
    ],
)
def test_auto_says_why(problem: dict[str, Any], name: str, reason: str) -> None:
    for node in ("auto", None, {"name": "auto"}):
        method = read_method(node, **{**PLAIN, **problem})
        assert str(method) == name
        assert reason in method.reason


def test_every_option_is_built_and_described() -> None:
    methods, texts = all_methods(), options_of("optimizer")
    assert {"auto", *methods} == set(texts)
    assert all(texts.values())
    for name, method in methods.items():
        assert str(method) == name
        assert " at 0x" not in repr(method)
    assert {name for name, method in methods.items() if method.constrained} == {
        "augmented_lagrangian",
        "slsqp",
        "trust_constr",
    }


def asked(*overrides: str) -> Any:
    """The settings of a design problem that says nothing of its method, after overrides."""
    return read_config(CONF / "sellar.yaml", overrides).settings


def test_what_a_file_leaves_open_is_set_without_a_plus() -> None:
    assert asked("optimizer=slsqp").optimizer["name"] == "slsqp"
    assert asked("+optimizer=slsqp").optimizer == asked("optimizer=slsqp").optimizer
    assert asked("optimize.method=slsqp").optimize.method == "slsqp"
    assert asked("optimize.max_steps=7").optimize.max_steps == 7
    assert asked("optimize.starts={design: sobol, samples: 4}").optimize.starts == {"design": "sobol", "samples": 4}


@pytest.mark.parametrize(
    ("config", "override", "said"),
    [
        ("sellar", "optimize.methd=slsqp", r"`optimize\.methd` must be a key .*Did you mean 'method'\?"),
        ("sellar", "optimizer=slsqq", "`optimizer` must be one of .*Did you mean 'slsqp'"),
        ("oscillator", "optimizer=slsqp", "`optimizer` must say how to search, but the config has no `optimize`"),
        ("oscillator", "optimize.method=slsqp", r"`optimize\.method` must be a key of the config"),
    ],
)
def test_what_cannot_be_set_is_refused(config: str, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        read_config(CONF / f"{config}.yaml", [override])


def test_two_methods_are_one_too_many() -> None:
    config = read_config(CONF / "sellar.yaml", ["optimizer=slsqp", "optimize.method=trust_constr"])
    with pytest.raises(PlanError, match=r"`optimize\.method` must be left out where `optimizer` says how to search"):
        make_draft(config)


def test_a_node_is_called_by_the_name_of_its_option() -> None:
    method = read_method({"_target_": "optax.adam", "learning_rate": 0.1}, **PLAIN)
    assert str(method) == "adam"
    assert method != read_method("adam", **PLAIN)
    assert method == read_method({"learning_rate": 0.1, "_target_": "optax.adam"}, **PLAIN)
