"""JAX's control flow inside stages: every kind of derivative in every mode, single and over a sweep, against closed forms.

Loops of unknown length have no reverse derivative: `auto` goes forward through them, and asking for one is refused before the run.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from engine.errors import PlanError
from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp
    from jax import lax


    def observed(path):
        return {"path": path, "end": path[-1]}


    def cond(a, b):
        power = lax.cond(a > 0, lambda a: a**3, lambda a: a**2, a)
        return observed(jnp.stack([a * b, power * jnp.sin(b)]))


    def switch(a, b, n):
        power = lax.switch(n, [lambda a: a, lambda a: a**2, lambda a: a**3], a)
        return observed(jnp.stack([a * b, power * jnp.sin(b)]))


    def scan(a, b):
        return observed(lax.scan(lambda y, _: (y * a, y * a), jnp.sin(b), None, length=3)[1])


    def fori(a, b):
        return observed(lax.fori_loop(0, 3, lambda i, path: path.at[i + 1].set(path[i] * a), jnp.zeros(4).at[0].set(jnp.sin(b))))


    def mapped(a, b):
        return observed(lax.map(lambda n: jnp.sin(b) * a**n, jnp.arange(1.0, 4.0)))


    def associative(a, b):
        return observed(jnp.sin(b) * lax.associative_scan(jnp.multiply, jnp.full(3, a)))


    def until(a, b):
        # Multiplied by a until it has been done three times: a length that JAX does not know.
        def more(carry):
            return carry[0] < 3

        def multiply(carry):
            i, path = carry
            return i + 1, path.at[i + 1].set(path[i] * a)

        return observed(lax.while_loop(more, multiply, (0, jnp.zeros(4).at[0].set(jnp.sin(b))))[1])


    def counted(a, b, n):
        return observed(jnp.stack([a * b, lax.fori_loop(0, n + 1, lambda i, y: y * a, jnp.sin(b))]))
"""
CASE = """\
    defaults: [engine, _self_]
    name: flow
    parameters: {a: 0.8, b: 1.3, n: 2}
"""
SWEEP = "+sweep={axes: {a: [0.8, -1.5], b: [1.3], n: [0, 2]}}"
KINDS = ("gradient", "jacobian", "hessian", "jvp", "vjp", "hvp")
TANGENT = np.array([0.5, -2.0])


def powers(p: jax.Array, n: int) -> jax.Array:
    """sin(b) times a, a^2, a^3."""
    a, b = p
    return jnp.sin(b) * a ** jnp.arange(1.0, 4.0)


def from_one(p: jax.Array, n: int) -> jax.Array:
    """The same from a^0 on."""
    return jnp.append(jnp.sin(p[1]), powers(p, n))


def chosen(p: jax.Array, n: int) -> jax.Array:
    """a b, and sin(b) times the power that n chooses."""
    a, b = p
    return jnp.stack([a * b, a ** (n + 1) * jnp.sin(b)])


def by_sign(p: jax.Array, n: int) -> jax.Array:
    """a b, and sin(b) times a^3, or a^2 below zero."""
    a, b = p
    return jnp.stack([a * b, (a**3 if a > 0 else a**2) * jnp.sin(b)])


STATIC = {"cond": by_sign, "switch": chosen, "scan": powers, "fori": from_one, "mapped": powers, "associative": powers}
DYNAMIC = {"until": from_one, "counted": chosen}


def case(names: list[str], kinds: tuple[str, ...], mode: str) -> str:
    """A config with a stage of each name, and every kind of derivative of each."""
    lines = ["    stages:"] + [f"      {name}: {{_target_: model.{name}}}" for name in names]
    lines += ["    outputs:"]
    for name in names:
        lines += [f"      {name}_path: {name}.path", f"      {name}_end: {name}.end"]
    lines += ["    derivatives:"]
    for name in names:
        size = {"cond": 2, "switch": 2, "counted": 2, "fori": 4, "until": 4}.get(name, 3)
        more = {
            "jvp": f", direction: {{a: {TANGENT[0]}, b: {TANGENT[1]}}}",
            "hvp": f", mode: {mode}, direction: {{a: {TANGENT[0]}, b: {TANGENT[1]}}}",
            "vjp": f", direction: {weights(size).tolist()}",
        }
        for kind in kinds:
            of = "path" if kind in ("jacobian", "jvp", "vjp") else "end"
            rest = more.get(kind, f", mode: {mode}")
            lines += [f"      {name}_{kind}: {{of: {name}_{of}, wrt: [a, b], kind: {kind}{rest}}}"]
    return CASE + "\n".join(lines) + "\n"


def weights(size: int) -> np.ndarray:
    """The cotangent of a path."""
    return np.arange(1.0, size + 1)


def check(ds: xarray.Dataset, name: str, kinds: tuple[str, ...]) -> None:
    """Every value and derivative of one stage at every sample."""
    exact = (STATIC | DYNAMIC)[name]
    samples = [
        {d: i for d, i in zip(ds["status"].dims, where, strict=True)} for where in np.ndindex(ds["status"].shape)
    ]
    assert len(samples) in (1, 4)
    for sample in samples:
        at = ds.isel(sample)
        p = jnp.array([float(at.get("a", 0.8)), float(at.get("b", 1.3))])
        n = int(at.get("n", 2))
        path, jacobian = exact(p, n), jax.jacfwd(exact)(p, n)
        hessian = jax.jacfwd(jax.jacfwd(exact))(p, n)[-1]
        want = {f"{name}_path": path, f"{name}_end": path[-1], f"{name}_jvp": jacobian @ TANGENT}
        for i, q in enumerate("ab"):
            want |= {f"{name}_gradient.{q}": jacobian[-1, i], f"{name}_jacobian.{q}": jacobian[:, i]}
            want |= {f"{name}_vjp.{q}": weights(len(path)) @ jacobian[:, i], f"{name}_hvp.{q}": hessian[i] @ TANGENT}
            want |= {f"{name}_hessian.{q}.{r}": hessian[i, j] for j, r in enumerate("ab")}
        names = [v for v in want if v.split(".")[0].split("_")[1] in ("path", "end", *kinds)]
        for variable in names:
            np.testing.assert_allclose(at[variable], want[variable], rtol=1e-12, atol=1e-12, err_msg=variable)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "sweep"), [("auto", ()), ("auto", (SWEEP,)), ("forward", (SWEEP,)), ("reverse", (SWEEP,))]
)
def test_known_lengths_in_every_mode(project: Project, mode: str, sweep: tuple[str, ...]) -> None:
    ds = project.model(MODEL).yaml(case(list(STATIC), KINDS, mode)).run(*sweep)
    for name in STATIC:
        check(ds, name, KINDS)


@pytest.mark.parametrize("sweep", [(), (SWEEP,)], ids=["single", "sweep"])
@pytest.mark.parametrize("mode", ["auto", "forward"])
def test_unknown_lengths_go_forward(project: Project, mode: str, sweep: tuple[str, ...]) -> None:
    kinds = tuple(kind for kind in KINDS if kind != "vjp")
    ds = project.model(MODEL).yaml(case(list(DYNAMIC), kinds, mode)).run(*sweep)
    for name in DYNAMIC:
        check(ds, name, kinds)


REVERSE = {
    "gradient": "mode: reverse",
    "jacobian": "mode: reverse",
    "hessian": "mode: reverse",
    "vjp": "direction: 1.0",
    "hvp": "mode: reverse, direction: {a: 1.0}",
}
"""What asks for a reverse pass."""


@pytest.mark.parametrize("kind", REVERSE)
@pytest.mark.parametrize("name", DYNAMIC)
def test_a_reverse_derivative_through_an_unknown_length_is_refused(project: Project, name: str, kind: str) -> None:
    project.model(MODEL).yaml(case(list(DYNAMIC), ("jvp",), "auto"))
    asked = f"{{of: {name}_end, wrt: [a], kind: {kind}, {REVERSE[kind]}}}"
    with pytest.raises(PlanError) as caught:
        project.run(f"+derivatives.backwards={asked}")
    message = str(caught.value)
    assert message.startswith(
        "`derivatives.backwards` must go through every stage, but reverse mode meets a loop of unknown length"
    )
    assert {"until": "lax.while_loop(more, multiply", "counted": "lax.fori_loop(0, n + 1"}[name] in message
    remedy = {"vjp": "kind: jacobian with mode: forward"}.get(kind, "mode: forward")
    assert f"Write {remedy}, or use lax.scan or a fori_loop with fixed bounds there." in message
    assert not (project.folder / "store.zarr").exists(), "refused before the run"
    instead = {"vjp": "{of: counted_end, wrt: [a], kind: jacobian, mode: forward}"}.get(
        kind, asked.replace("mode: reverse", "mode: forward")
    )
    project.load(f"+derivatives.forwards={instead}")


def test_the_refusal_on_the_command_line(project: Project) -> None:
    project.model(MODEL).yaml(case(["until", "counted"], ("gradient",), "reverse"))
    for command in ("plan", "run"):
        answer = project.cli(command, "case.yaml")
        assert answer.code == 2
        assert answer.err.startswith(
            "error: `derivatives.until_gradient`, `derivatives.counted_gradient` must go through"
        )
        assert answer.err.count("\n") == 1
    assert not (project.folder / "results").exists()


def test_a_loop_that_feeds_nothing_differentiated_is_no_obstacle(project: Project) -> None:
    project.model(MODEL).yaml(case(["scan", "until", "counted"], ("jvp",), "auto"))
    ds = project.run("+derivatives.back={of: scan_end, wrt: [a], mode: reverse}")
    np.testing.assert_allclose(ds["back.a"], 3 * 0.8**2 * np.sin(1.3), rtol=1e-13)
