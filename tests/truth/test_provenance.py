"""Where a number first went non-finite: the equation is named that a person would name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.provenance import Origin, Provenance, trace_origins
from engine.sites import find_sites
from ops.ode import solve


@pytest.fixture(autouse=True)
def _double() -> Any:
    jax.config.update("jax_enable_x64", True)


def hunt(function: Callable[..., Any], *arguments: Any, stage: str = "f") -> Provenance:
    """The origins in a function of arrays, as one stage."""

    def staged(*values: Any) -> Any:
        with jax.named_scope(stage):
            return function(*values)

    jaxpr = jax.make_jaxpr(staged)(*arguments)
    return trace_origins(jaxpr, [np.asarray(a) for a in arguments], [stage])


def line_of(origin: Origin | None) -> str:
    """The source line of an origin, which must be in this file."""
    assert origin is not None
    assert origin.site.file == __file__
    return origin.site.text


def log(x: Any) -> Any:
    return jnp.log(x)  # log


def divided(x: Any) -> Any:
    a = x - 2.0
    return jnp.sin(1.0 / a)  # divided


def overflow(x: Any) -> Any:
    return jnp.exp(400.0 * x) - 1.0  # overflow


def zero_times_infinity(x: Any) -> Any:
    far = 1.0 / (x - 2.0) ** 2  # far
    return (x - 2.0) * far


def narrowed(x: Any) -> Any:
    return (x * 1e300).astype(jnp.float32)  # narrowed


def masked(x: Any) -> Any:
    inner = jnp.where(x > 0, jnp.log(-x), jnp.nan)  # both branches are NaN, one is taken
    return jnp.where(x < 0, jnp.sqrt(x), inner)


def constant(x: Any) -> Any:
    return jnp.where(x > 1, jnp.nan, x)  # constant


def by_norm(x: Any) -> Any:
    return jnp.log(1 - jnp.linalg.norm(jnp.array([x, 0.0])))  # by_norm


def in_scan(x: Any) -> Any:
    def body(state: Any, i: Any) -> Any:
        state = state - i
        return jnp.sqrt(state), state  # in_scan

    return jax.lax.scan(body, x, jnp.arange(10.0))[0]


def in_while(x: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, jnp.where(state[0] > 3, jnp.arccos(state[1]), state[1])  # in_while

    return jax.lax.while_loop(lambda state: state[0] < 6, body, (0, x))[1]


def in_cond(x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: jnp.log1p(-x), lambda x: x, x)  # in_cond


def in_switch(x: Any) -> Any:
    branches = [jnp.sin, lambda x: jnp.log(x), lambda x: jnp.sqrt(-x)]  # in_switch
    return jax.lax.switch(2, branches, x)


def in_jit(x: Any) -> Any:
    return jax.jit(log)(-x)


def in_remat(x: Any) -> Any:
    return jax.checkpoint(log)(-x)


def in_map(x: Any) -> Any:
    return jax.lax.map(log, jnp.stack([x, -x]))


def batched(x: Any) -> Any:
    def shrunk(x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s > 0, lambda s: jnp.log(s - 3.0), x)  # batched

    return jax.vmap(shrunk)(jnp.stack([x, x + 1]))


def placed(x: Any) -> Any:
    return jnp.zeros(4).at[2].set(jnp.log(-x)).mean()  # placed


def gathered(x: Any) -> Any:
    return jnp.array([1.0, 2.0]).at[5].get(mode="fill", fill_value=jnp.nan) * x  # gathered


def of_integers(x: Any) -> Any:
    return x / jnp.astype(jnp.int32(x) - 2, float)  # of_integers


def powered(x: Any) -> Any:
    return (x - 2.0) ** -3  # powered


CASES = [
    (log, -0.25, "# log", "log", (-0.25,)),
    (divided, 2.0, "# divided", "div", (1.0, 0.0)),
    (overflow, 2.0, "# overflow", "exp", (800.0,)),
    (zero_times_infinity, 2.0, "# far", "div", (1.0, 0.0)),
    (narrowed, 2.0, "# narrowed", "convert_element_type", (2e300,)),
    (masked, 2.0, "both branches", "log", (-2.0,)),
    (constant, 2.0, "# constant", None, ()),
    (by_norm, 2.0, "# by_norm", "log", (-1.0,)),
    (in_scan, 2.0, "# in_scan", "sqrt", None),
    (in_while, 1.5, "# in_while", "acos", (1.5,)),
    (in_cond, 2.0, "# in_cond", "log1p", (-2.0,)),
    (in_switch, 2.0, "# in_switch", "sqrt", (-2.0,)),
    (in_jit, 2.0, "# log", "log", (-2.0,)),
    (in_remat, 2.0, "# log", "log", (-2.0,)),
    (in_map, 2.0, "# log", "log", (-2.0,)),
    (batched, 2.0, "# batched", "log", (-1.0,)),
    (placed, 2.0, "# placed", "log", (-2.0,)),
    (gathered, 2.0, "# gathered", "gather", None),
    (of_integers, 2.0, "# of_integers", "div", (2.0, 0.0)),
    (powered, 2.0, "# powered", None, None),
]


@pytest.mark.parametrize(
    ("function", "x", "comment", "operation", "operands"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_the_line_the_operation_and_its_operands(
    function: Any, x: float, comment: str, operation: str | None, operands: tuple[float, ...] | None
) -> None:
    (origin,) = hunt(function, x).outputs
    assert comment in line_of(origin)
    assert origin is not None
    assert origin.site.stage == "f"
    assert origin.site.direct
    assert operation in (None, origin.site.operation)
    if operands is not None:
        assert origin.operands == operands
    if operands:
        assert not np.isfinite(origin.result)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_derivatives_are_followed_too(case: Any) -> None:
    """Values and a tangent in one program: the value's origin stays what it is."""
    function, x, comment, *_ = case
    value, _ = hunt(lambda x: jax.jvp(function, (x,), (1.0,)), x).outputs
    assert comment in line_of(value)


def hidden(x: Any) -> Any:
    safe = jnp.where(x > 0, jnp.log(x), 0.0)
    buffer = jnp.full(3, jnp.inf).at[:].set(safe)
    return jnp.minimum(buffer.sum(), jnp.inf) + 1 / (1 + jnp.exp(1e4 * jnp.abs(x)))


def test_what_a_mask_hides_is_no_trouble() -> None:
    """Branches that are not taken, buffers that are written over, infinities that vanish."""
    found = hunt(hidden, -2.0)
    assert found.outputs == (None,)
    assert found.sites == (frozenset(),)


def test_nothing_is_found_where_all_is_finite() -> None:
    assert hunt(lambda x: (jnp.sin(x), 3, x > 1), 1.0).outputs == (None, None, None)


def test_an_argument_that_is_not_finite_is_the_origin() -> None:
    (origin,) = hunt(lambda a, b: a * jnp.log(b), 1.0, np.nan).outputs
    assert origin is not None
    assert (origin.site.operation, origin.site.input) == ("input", 1)
    assert np.isnan(origin.result)


def test_the_first_element_decides() -> None:
    def path(x: Any) -> Any:
        logs = jnp.log(x)  # logs
        return jnp.concatenate([jnp.sqrt(x), logs])  # roots

    (origin,) = hunt(path, np.array([1.0, -4.0])).outputs
    assert "# roots" in line_of(origin)
    assert origin is not None
    assert origin.operands == (-4.0,)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev, jax.grad, lambda f: jax.jacfwd(jax.grad(f))])
def test_a_finite_value_with_a_nan_gradient(transform: Any) -> None:
    """d sqrt(x)/dx is 1/(2 sqrt(x)): at 0 that is where it goes wrong."""

    def root(x: Any) -> Any:
        return jnp.sqrt(x * x)  # root

    value, slope = hunt(lambda x: (root(x), transform(root)(x)), 0.0).outputs
    assert value is None
    assert "# root" in line_of(slope)
    assert slope is not None
    assert slope.site.operation == "div"
    assert 0.0 in slope.operands


def test_a_gradient_in_a_loop() -> None:
    def walk(x: Any) -> Any:
        def body(y: Any, _: Any) -> Any:
            return y * jnp.linalg.norm(jnp.stack([y, y])), None  # walk

        return jax.lax.scan(body, x, None, length=5)[0]

    value, slope = hunt(lambda x: (walk(x), jax.grad(walk)(x)), 0.0).outputs
    assert value is None
    assert "# walk" in line_of(slope)


def test_stages_are_told_apart_in_derivatives_too() -> None:
    def chain(x: Any) -> Any:
        with jax.named_scope("first"):
            y = jnp.sqrt(x)  # first
        with jax.named_scope("second"):
            return y * 2.0

    for transform in (jax.jacfwd, jax.jacrev):
        jaxpr = jax.make_jaxpr(transform(chain))(0.0)
        (origin,) = trace_origins(jaxpr, [np.asarray(0.0)], ["first", "second"]).outputs
        assert origin is not None
        assert origin.site.stage == "first"
        assert "# first" in line_of(origin)


def sinking(t: Any, y: Any, k: Any) -> Any:
    return -k * jnp.log(1.5 - k * t) * y  # sinking


def test_a_solve_that_gives_up_has_decided_on_a_number_that_is_not_finite() -> None:
    """The controller rejects what is NaN until the steps run out; the line of the vector field is named."""
    found = hunt(lambda k: solve(sinking, 1.0, k, t1=1.0, max_steps=500)[1:3], 2.0)
    y, status = found.outputs
    assert y is not None
    assert not y.site.direct, "the solver itself writes NaN where it gave up"
    assert status is None
    origin = found.decided["f"]
    assert "# sinking" in line_of(origin)
    assert origin.site.operation == "log"
    assert origin.operands[0] < 0


def test_a_solve_that_is_fine_has_decided_on_none() -> None:
    found = hunt(lambda k: solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, ts=None)[1:3], 2.0)
    assert found.outputs == (None, None)
    assert found.decided == {}


def test_a_long_solve_with_diffrax_alone() -> None:
    """65,536 steps take seconds, and the buffers that diffrax fills with infinities are not blamed."""

    def field(t: Any, y: Any, k: Any) -> Any:
        return jnp.where(t < 65_000.0, -k * y, jnp.log(-y))  # field

    def run(k: Any) -> Any:
        saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 65_536.0, 9))
        term, method = diffrax.ODETerm(field), diffrax.Euler()
        return diffrax.diffeqsolve(
            term, method, 0.0, 65_536.0, 1.0, 1.0, k, saveat=saveat, max_steps=70_000, throw=False
        ).ys

    (origin,) = hunt(run, 1e-5).outputs
    assert "# field" in line_of(origin)
    assert origin is not None
    assert origin.operands[0] < 0


def test_numbers_of_sites_put_what_explains_more_last() -> None:
    sites = find_sites(jax.make_jaxpr(lambda k: solve(sinking, 1.0, k, t1=1.0).y)(1.0), [])
    direct = [site.direct for site in sites.sites]
    assert direct == sorted(direct)
    assert sites.first_direct == direct.index(True)
    assert sites[len(direct) - 1].operation == "input"
    lines, first = inspect.getsourcelines(sinking)
    mine = {site.operation for site in sites.sites if site.direct and first < site.line < first + len(lines)}
    assert {"log", "mul", "sub"} <= mine
