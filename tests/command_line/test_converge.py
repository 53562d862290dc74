"""`python -m engine converge`: the table, the JSON, the exit codes; nothing is stored."""

from __future__ import annotations

import pytest

from tests.project import Project

CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 1.0}
    stages: {f: {_target_: model.f, rtol: 1e-3}}
    outputs: {y: f.y, n: f.n}
    sweep: {axes: {k: {linspace: [1.0, 2.0, 20]}}}
    derivatives: {d: {of: y, wrt: k}}
"""
MODEL = """\
    import jax.numpy as jnp


    def f(k, rtol):
        return {"y": k * (1 + 100 * rtol), "n": jnp.asarray(round(1 / rtol))}
"""


@pytest.fixture
def case(project: Project) -> Project:
    return project.model(MODEL).yaml(CONFIG)


def test_the_table_and_the_codes(case: Project) -> None:
    bad = case.cli("converge", "case.yaml")
    assert bad.code == 3, bad.err
    assert "tolerance  stages.f.rtol: 0.001 -> 0.0001" in bad.out
    assert (
        "y at sample 19 (k=2) is 2.2, and 2.02 with a tenth of the tolerance. Lower the tolerance, until it stays."
        in bad.out
    )
    near = case.cli("converge", "case.yaml", "--within", "0.1", "--samples", "2")
    assert near.code == 0, near.out
    assert not list(case.folder.glob("**/*.zarr"))


def test_json(case: Project) -> None:
    good = case.cli("converge", "case.yaml", "stages.f.rtol=1e-9", "--samples", "3", "--json")
    assert good.code == 0, good.err
    found = good.json
    assert found["status"] == "complete"
    assert found["varied"] == [{"by": "tolerance", "key": "stages.f.rtol", "before": 1e-9, "after": 1e-10}]
    verdicts = {row["output"]: row["verdict"] for row in found["outputs"]}
    assert verdicts == {"y": "ok", "n": "integer", "d.k": "ok"}
    assert found["outputs"][0]["change"] == pytest.approx(2 * 90e-9, rel=1e-6)
    assert found["turned"] == found["left_out"] == found["notes"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--samples", "0"], "`samples` must be a positive integer, but is 0"),
        (["--within", "-1"], "`within` must be a positive number, but is -1.0"),
        (["--tenth", "stages.f.rtl"], "`stages.f.rtl` must be a key of the config with a positive number, but is not there."),
        (["--halve", "name"], "`name` must be a key of the config with a positive number, but is 'case'."),
    ],
)  # fmt: skip
def test_mistakes(case: Project, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["converge", str(case.config), *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
