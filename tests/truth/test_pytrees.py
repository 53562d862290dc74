"""Pytrees as parameters, and between stages: every kind against closed forms, swept and differentiated by dotted name."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from engine.errors import ConfigError, PipelineError, PlanError, StageError, SweepError, UserError
from tests.project import Project

MODEL = """
    import dataclasses
    import itertools
    import typing

    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    @dataclasses.dataclass
    class Rates:
        growth: float
        decay: jax.Array

    @dataclasses.dataclass
    class Tilt:
        angle: float  # in degrees where it is made, in radians after that

        def __post_init__(self):
            if not 0 <= float(self.angle) <= 90:
                raise ValueError(f"no angle: {self.angle}")
            self.angle = self.angle * jnp.pi / 180

    @dataclasses.dataclass(frozen=True)
    class Square:
        side: jax.Array
        area: jax.Array = dataclasses.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "area", self.side**2)

    class Point(typing.NamedTuple):
        x: jax.Array
        y: jax.Array

    @jax.tree_util.register_pytree_with_keys_class
    class Box:
        def __init__(self, low, high):
            self.low, self.high = low, high

        def tree_flatten_with_keys(self):
            key = jax.tree_util.GetAttrKey
            return ((key("low"), self.low), (key("high"), self.high)), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @jax.tree_util.register_pytree_node_class
    class Plain:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @jax.tree_util.register_pytree_node_class
    class Converted:  # computes with what it is given, whoever puts it together
        def __init__(self, a, b):
            self.a, self.b = jnp.asarray(a), jnp.asarray(b)
            self.cubes = jnp.sum(self.b**3)

        def tree_flatten(self):
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @jax.tree_util.register_pytree_node_class
    class Doubled(Plain):
        def __init__(self, a, b):
            self.a, self.b = 2 * a, b

    class Gain(eqx.Module):
        factor: jax.Array
        power: int
        shape: str = eqx.field(static=True)
        act: typing.Callable

        def __call__(self, x):
            return self.act(self.factor * x) ** self.power

    class Switch(eqx.Module):
        factor: jax.Array
        power: int = eqx.field(static=True)
        flip: bool = eqx.field(static=True)
        act: typing.Callable = eqx.field(static=True)

        def __call__(self, x):
            return self.act(self.factor * (-x if self.flip else x)) ** self.power

    @dataclasses.dataclass
    class Named:
        factor: jax.Array
        act: str = dataclasses.field(metadata={"static": True})

    class Loose(eqx.Module):
        factor: jax.Array
        flip: bool

        def __call__(self, x):
            return -x if self.flip else self.factor * x

    @dataclasses.dataclass
    class Label:
        factor: jax.Array
        text: str

    def make_form(): return {"a": jnp.ones(2), "b": jnp.array([[2.0, 1.0], [0.0, 3.0]])}
    def form(p): return p["a"] @ p["b"] @ p["a"]
    def image(p): return p["b"] @ p["a"]
    def make_switch(): return Switch(jnp.asarray(0.7), 3, True, jnp.sin)
    def made_named(x): return {"a": Named(x, "sin")}
    def make_loose(): return Loose(jnp.asarray(0.7), True)
    def make_label(): return Label(jnp.asarray(0.7), "up")
    def make_complex(): return {"z": 1 + 2j}
    def make_flags(): return {"on": np.array([True, False]), "n": np.arange(3), "w": np.ones(2)}
    def handed(p): return p
    def called(handed, x): return handed(x)
    def named(made): return getattr(jnp, made["a"].act)(made["a"].factor)
    def arrays(net): return eqx.filter(net, eqx.is_array)
    def combined(arrays, net, x): return eqx.combine(arrays, net)(jnp.array([x]))
    def size(p): return sum(jnp.sum(jnp.abs(leaf * 1.0) ** 2) for leaf in jax.tree_util.tree_leaves(p))

    def make_dict(): return {"growth": 3.0, "decay": np.array([0.5, 2.0])}
    def make_tuple(): return (3.0, jnp.array([0.5, 2.0]))
    def make_dataclass(): return Rates(3.0, jnp.array([0.5, 2.0]))
    def make_named(): return Point(jnp.float64(3.0), jnp.array([0.5, 2.0]))
    def make_box(): return Box(3.0, jnp.array([0.5, 2.0]))
    def make_plain(): return Plain(3.0, jnp.array([0.5, 2.0]))
    def make_converted(): return Converted(3.0, [0.5, 2.0])
    def make_nested(): return {"inner": Converted(3.0, [0.5, 2.0]), "k": 2.0}
    def make_doubled(): return Doubled(3.0, 1.0)
    def make_mixed(): return {1: 1.0, "a": 2.0}
    def make_tilt(): return Tilt(30.0)
    def make_square(): return Square(3.0)
    def make_gain(factor): return Gain(jnp.asarray(factor), 2, "odd", jnp.sin)
    def make_mlp(width, seed): return eqx.nn.MLP(1, "scalar", width, 1, activation=jnp.tanh, key=jax.random.key(seed))
    def make_function(): return jnp.sin
    def make_nan(): return {"a": jnp.nan}
    def make_dotted(): return {"a.b": 1.0}
    def make_drawn(): return {"w": np.random.default_rng().normal(size=3)}
    def make_narrow(): return {"w": jnp.ones(3, jnp.bfloat16), "n": jnp.arange(3), "on": True, "k": 3, "key": jax.random.key(1)}

    # What each kind of parameter is in the end: growth**2 * sum(decay**3), and its parts handed on.
    def of_dict(p): return {"f": p["growth"] ** 2 * jnp.sum(p["decay"] ** 3), "p": p}
    def of_tuple(p): return {"f": p[0] ** 2 * jnp.sum(p[1] ** 3), "p": p}
    def of_dataclass(p): return {"f": p.growth**2 * jnp.sum(p.decay**3), "p": p}
    def of_named(p): return {"f": p.x**2 * jnp.sum(p.y**3), "p": p}
    def of_box(p): return {"f": p.low**2 * jnp.sum(p.high**3), "p": p}
    def of_plain(p): return {"f": p.a**2 * jnp.sum(p.b**3), "p": p}

    def of_converted(p): return {"f": p.a**2 * p.cubes, "p": p}

    # A stage that takes what the one before handed on.
    def again_dict(first): return of_dict(first["p"])["f"]
    def again_tuple(first): return of_tuple(first["p"])["f"]
    def again_dataclass(first): return of_dataclass(first["p"])["f"]
    def again_named(first): return of_named(first["p"])["f"]
    def again_box(first): return of_box(first["p"])["f"]
    def again_plain(first): return of_plain(first["p"])["f"]

    def again_converted(first): return of_converted(first["p"])["f"]

    def of_nested(p): return of_converted(p["inner"])["f"] * p["k"]
    def scale(f, shared): return f * shared.cubes
    def rise(tilt): return jnp.sin(tilt.angle)
    def square(side): return Square(side)
    def area(square): return square.area

    def apply(net, x): return net(x)
    def apply_at(net, x): return net(jnp.array([x]))
    def bias(b): return jnp.sum(jnp.asarray(b))
    def gained(act, x): return act(x)
    def total(w): return jnp.sum(w["w"]) * jnp.ones(3)[w["n"]][1] * w["k"]
    def count(n, gain): return gain * jnp.arange(4.0)[n]
"""
KINDS = {
    "dict": ("growth", "decay"),
    "tuple": ("0", "1"),
    "dataclass": ("growth", "decay"),
    "named": ("x", "y"),
    "box": ("low", "high"),
    "plain": ("0", "1"),
    "converted": ("0", "1"),
}


@pytest.fixture
def shop(project: Project) -> Project:
    return project.model(MODEL)


def case(project: Project, text: str) -> Project:
    """A config with these lines."""
    return project.yaml("defaults: [engine, _self_]\nname: tree\n" + text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_every_kind_of_pytree_is_parameter_input_and_output(shop: Project, kind: str, mode: str) -> None:
    growth, decay = KINDS[kind]
    ds = case(
        shop,
        f"""
parameters: {{p: {{_target_: model.make_{kind}}}}}
stages: {{first: {{_target_: model.of_{kind}}}, second: {{_target_: model.again_{kind}}}}}
outputs: {{f: first.f, q: first.p, second: second, direct: p}}
sweep: {{axes: {{p.{growth}: [1.0, 3.0]}}}}
derivatives:
  df: {{of: f, wrt: [p], mode: {mode}}}
  ds: {{of: second, wrt: [p.{decay}], mode: {mode}}}
""",
    ).run()
    g, d = np.array([1.0, 3.0]), np.array([0.5, 2.0])
    f = g**2 * np.sum(d**3)
    np.testing.assert_allclose(ds.f, f, rtol=1e-14)
    np.testing.assert_allclose(ds.second, f, rtol=1e-14)
    np.testing.assert_array_equal(ds[f"q.{growth}"], g)
    np.testing.assert_array_equal(ds[f"direct.{growth}"], g)
    np.testing.assert_array_equal(ds[f"direct.{decay}"], d)
    np.testing.assert_allclose(ds[f"df.p.{growth}"], 2 * g * np.sum(d**3), rtol=1e-14)
    np.testing.assert_allclose(ds[f"df.p.{decay}"], g[:, None] ** 2 * 3 * d**2, rtol=1e-14)
    np.testing.assert_allclose(ds[f"ds.p.{decay}"], g[:, None] ** 2 * 3 * d**2, rtol=1e-14)


def test_a_dataclass_checks_and_converts_once(shop: Project) -> None:
    """30 degrees become pi/6 where the object is made, and never again while it is taken apart and put together."""
    ds = case(
        shop,
        """
parameters: {tilt: {_target_: model.make_tilt}, side: 3.0}
stages: {rise: {_target_: model.rise}, square: {_target_: model.square}, area: {_target_: model.area}}
outputs: {rise: rise, area: area}
sweep: {axes: {side: [1.0, 3.0]}}
derivatives: {d: {of: rise, wrt: [tilt]}, da: {of: area, wrt: [side], mode: reverse}}
""",
    ).run()
    np.testing.assert_allclose(ds.rise, 0.5, rtol=1e-14)
    np.testing.assert_allclose(ds["d.tilt.angle"], np.sqrt(3) / 2, rtol=1e-14)
    np.testing.assert_array_equal(ds.area, [1.0, 9.0])
    np.testing.assert_array_equal(ds["da.side"], [2.0, 6.0])


def test_a_class_that_computes_with_what_it_is_given_is_given_numbers_only(shop: Project) -> None:
    """Inside another tree, taken by a part of its name, and computed once for all samples."""
    ds = case(
        shop,
        """
parameters: {p: {_target_: model.make_nested}}
stages:
  f: {_target_: model.of_nested}
  inner: {_target_: model.of_converted, _inputs_: {p: p.inner}}
  shared: {_target_: model.make_converted}
  g: {_target_: model.scale}
outputs: {f: f, inner: inner.f, g: g, shared: shared}
sweep: {axes: {p: {inner: {"0": [1.0, 3.0]}}}}
derivatives: {d: {of: g, wrt: [p]}}
""",
    ).run()
    a, cubes = np.array([1.0, 3.0]), 8.125
    np.testing.assert_allclose(ds.inner, a**2 * cubes, rtol=1e-14)
    np.testing.assert_allclose(ds.f, 2 * a**2 * cubes, rtol=1e-14)
    np.testing.assert_allclose(ds.g, 2 * a**2 * cubes**2, rtol=1e-14)
    np.testing.assert_array_equal(ds["shared.1"], [0.5, 2.0])
    np.testing.assert_allclose(ds["d.p.inner.0"], 4 * a * cubes**2, rtol=1e-14)
    np.testing.assert_allclose(ds["d.p.k"], a**2 * cubes**2, rtol=1e-14)


MAPPING = """
parameters: {rates: {growth: 3.0, decay: [0.5, 2.0], inner: {shift: 1.0}}, x: 2.0}
stages:
  f: {_target_: model.of_dict, _inputs_: {p: rates}}
  g: {_target_: model.bias, _inputs_: {b: [rates.inner.shift, x]}}
outputs: {f: f.f, g: g}
"""


@pytest.mark.parametrize(
    ("axes", "column"),
    [
        ("{rates.growth: [1.0, 3.0]}", "rates.growth"),
        ("{rates: {growth: {linspace: [1.0, 3.0, 2]}}}", "rates.growth"),
        ("{rates: {inner: {shift: [1.0, 3.0]}}}", "rates.inner.shift"),
    ],
)
def test_axes_are_nested_or_dotted(shop: Project, axes: str, column: str) -> None:
    ds = case(shop, MAPPING + f"sweep: {{axes: {axes}}}\n").run()
    assert ds[column].dims == (column,)
    np.testing.assert_array_equal(ds[column], [1.0, 3.0])
    growth, shift = (ds.get(f"rates.{name}", default) for name, default in (("growth", 3.0), ("inner.shift", 1.0)))
    np.testing.assert_allclose(ds.f, growth**2 * 8.125)
    np.testing.assert_allclose(ds.g, shift + 2.0)


def test_the_command_line_reaches_inside(shop: Project) -> None:
    case(shop, MAPPING + "derivatives: {d: {of: f, wrt: [rates.growth, rates.decay]}}\n")
    overrides = ("parameters.rates.growth=2.0", "+sweep.axes.rates.decay=[[1.0,1.0],[1.0,2.0]]", "store.path=s.zarr")
    answer = shop.cli("run", str(shop.config), *overrides, "--json")
    assert answer.code == 0, answer.err
    ds = xarray.open_zarr(shop.folder / "s.zarr")
    np.testing.assert_allclose(ds.f, [4 * 2.0, 4 * 9.0])
    np.testing.assert_allclose(ds["d.rates.growth"], [4 * 2.0, 4 * 9.0])
    np.testing.assert_allclose(ds["d.rates.decay"], [[12, 12], [12, 48]])


def test_a_key_with_dots_is_not_overridden_from_the_command_line(shop: Project) -> None:
    case(shop, MAPPING + "sweep: {axes: {rates.growth: [1.0, 3.0]}}\n")
    with pytest.raises(ConfigError, match="must stand nested in the file to be overridden") as caught:
        shop.load("sweep.axes.rates.growth=[2.0]")
    assert "Write rates: {growth: ...} there" in str(caught.value)


def test_tables_ranges_and_directions_name_what_is_inside(shop: Project) -> None:
    (shop.folder / "points.csv").write_text("rates.growth,x\n1.0,2.0\n3.0,4.0\n")
    ds = case(
        shop,
        MAPPING
        + """
ranges: {rates.growth: [0, 5], rates: {inner: {shift: [0, 2]}}}
sweep: {design: table, table: points.csv}
derivatives:
  j: {of: f, wrt: [rates.growth, rates.inner.shift], kind: jvp, direction: {rates: {growth: 2.0}}}
  h: {of: f, wrt: [rates.growth, rates.decay], kind: hvp, direction: {rates.growth: 1.0, rates.decay: [0.0, 1.0]}}
""",
    ).run()
    g, d = np.array([1.0, 3.0]), np.array([0.5, 2.0])
    np.testing.assert_allclose(ds.g, [3.0, 5.0])
    np.testing.assert_allclose(ds.j, 2.0 * 2 * g * 8.125)
    np.testing.assert_allclose(ds["h.rates.growth"], 2 * 8.125 + 2 * g * 3 * d[1] ** 2)
    np.testing.assert_allclose(ds["h.rates.decay"][:, 1], 2 * g * 3 * d[1] ** 2 + g**2 * 6 * d[1])


def test_an_equinox_module_is_swept_and_differentiated_by_its_arrays(shop: Project) -> None:
    """sin(w x)**2: what is no array in the module (a power, a function) is part of the program."""
    plan = case(
        shop,
        """
parameters: {net: {_target_: model.make_gain, factor: 0.7}, x: 2.0}
stages: {y: {_target_: model.apply}, act: {_target_: model.gained, _inputs_: {act: net.act}}}
outputs: [y, act]
sweep: {axes: {net.factor: [0.1, 0.7, 2.0]}}
derivatives: {dy: {of: y, wrt: [net, x]}, hy: {of: y, wrt: [net], kind: hessian}}
""",
    ).load()
    assert set(plan.draft.nominal) == {"net.factor", "x"}
    import engine

    ds = engine.run(plan)
    w, x = np.array([0.1, 0.7, 2.0]), 2.0
    np.testing.assert_allclose(ds.y, np.sin(w * x) ** 2)
    np.testing.assert_allclose(ds.act, np.sin(x))
    np.testing.assert_allclose(ds["dy.net.factor"], x * np.sin(2 * w * x), atol=1e-15)
    np.testing.assert_allclose(ds["dy.x"], w * np.sin(2 * w * x), atol=1e-15)
    np.testing.assert_allclose(ds["hy.net.factor.net.factor"], 2 * x**2 * np.cos(2 * w * x), atol=1e-14)


def test_a_network_has_the_gradient_of_its_formula(shop: Project) -> None:
    """b2 + w2 tanh(w1 x + b1), by NumPy."""
    project = case(
        shop,
        """
parameters: {net: {_target_: model.make_mlp, width: 5, seed: 3}, x: 0.4}
stages:
  y: {_target_: model.apply_at}
  b: {_target_: model.bias, _inputs_: {b: net.layers.0.bias}}
outputs: {y: y, b: b}
sweep: {axes: {x: [-1.0, 0.4]}}
derivatives: {dy: {of: y, wrt: [net, x], mode: reverse}}
""",
    )
    plan, ds = project.load(), project.run()
    w1, b1, w2, b2 = (plan.draft.nominal[f"net.layers.{i}.{k}"] for i in (0, 1) for k in ("weight", "bias"))
    x = np.array([-1.0, 0.4])[:, None]
    inner = np.tanh(x @ w1.T + b1)
    slope = (1 - inner**2) * w2
    np.testing.assert_allclose(ds.y, (inner @ w2.T + b2)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(ds.b, b1.sum(), rtol=1e-12)
    np.testing.assert_allclose(ds["dy.net.layers.0.weight"][..., 0], slope * x, rtol=1e-12)
    np.testing.assert_allclose(ds["dy.net.layers.0.bias"], slope, rtol=1e-12)
    np.testing.assert_allclose(ds["dy.net.layers.1.weight"][:, 0], inner, rtol=1e-12)
    np.testing.assert_allclose(ds["dy.net.layers.1.bias"], 1.0)
    np.testing.assert_allclose(ds["dy.x"], slope @ w1[:, 0], rtol=1e-12)
    assert "net.*, x" in plan.formula


def test_the_function_takes_trees_and_dotted_names(shop: Project) -> None:
    plan = case(
        shop,
        """
parameters: {net: {_target_: model.make_gain, factor: 0.7}, rates: {a: 2.0, b: [1.0, 2.0]}}
stages: {y: {_target_: model.apply, _inputs_: {x: rates.a}}, s: {_target_: model.bias, _inputs_: {b: rates.b}}}
""",
    ).load()
    f = plan.function
    assert float(f({})["y"]) == pytest.approx(np.sin(1.4) ** 2)
    assert float(f({"rates.a": 1.0})["y"]) == pytest.approx(np.sin(0.7) ** 2)
    assert float(f({"rates": {"a": 1.0, "b": [4.0, 4.0]}})["s"]) == 8.0
    module = plan.function  # the module itself, as a library of models hands it out
    import importlib

    net = importlib.import_module("model").make_gain(0.2)
    assert float(module({"net": net})["y"]) == pytest.approx(np.sin(0.4) ** 2)
    gradient = jax.grad(lambda p: f(p)["y"])({"rates": {"a": 1.0}, "net.factor": 0.5})
    assert gradient["rates"]["a"] == pytest.approx(0.5 * np.sin(1.0))
    assert gradient["net.factor"] == pytest.approx(np.sin(1.0))
    for wrong in ({"rate": 1.0}, {"rates": {"c": 1.0}}, {"net": {"factor": 1.0, "slope": jnp.ones(2)}}):
        with pytest.raises(PlanError, match="must be names of the config's parameters"):
            f(wrong)
    for twice in ({"rates.a": 1.0, "rates": {"a": 2.0}}, {"net": net, "net.factor": 0.3}):
        with pytest.raises(PlanError, match="must be given once each"):
            f(twice)


def test_what_is_no_number_in_a_built_tree_stays_as_it_is(shop: Project) -> None:
    """bfloat16 becomes the run's precision, integer arrays stay integers, and keys, integers and booleans are no parameters."""
    plan = case(
        shop,
        """
parameters: {w: {_target_: model.make_narrow}}
stages: {total: {_target_: model.total}}
derivatives: {d: {of: total, wrt: [w]}}
""",
    ).load()
    assert {n: v.dtype.name for n, v in plan.draft.nominal.items()} == {"w.n": "int64", "w.w": "float64"}
    assert [v.name for v in plan.variables] == ["total", "d.w.w"]
    assert float(plan.function({})["total"]) == 9.0


def test_nodes_are_built_in_the_precision_of_the_run(shop: Project) -> None:
    text = """
parameters: {net: {_target_: model.make_mlp, width: 5, seed: 3}, x: 0.4}
stages: {y: {_target_: model.apply_at}}
"""
    wide, narrow = case(shop, text).load(), case(shop, text).load("precision=float32")
    name = "net.layers.0.weight"
    assert (wide.draft.nominal[name].dtype, narrow.draft.nominal[name].dtype) == (np.float64, np.float32)
    digits = wide.draft.nominal[name] - wide.draft.nominal[name].astype(np.float32)
    assert np.abs(digits).max() > 0, "made in float32 and widened"


def test_another_seed_is_another_question(shop: Project) -> None:
    case(
        shop,
        """
parameters: {net: {_target_: model.make_mlp, width: 5, seed: 3}, x: 0.4}
stages: {y: {_target_: model.apply_at}}
""",
    )
    same, other = shop.load(), shop.load("parameters.net.seed=4")
    assert shop.load().draft.fingerprint == same.draft.fingerprint != other.draft.fingerprint


def test_repro_and_check_grad_speak_of_what_is_inside(shop: Project) -> None:
    case(
        shop,
        MAPPING + "sweep: {axes: {rates: {growth: [1.0, 3.0]}}}\nderivatives: {d: {of: f, wrt: [rates.growth]}}\n",
    )
    assert shop.cli("run", str(shop.config), "store.path=s.zarr").code == 0
    found = shop.cli("repro", "s.zarr", "--sample", "1", "--json")
    assert found.code == 0, found.err
    assert found.json["parameters"] == {"rates.growth": 3.0}
    table = shop.cli("check-grad", str(shop.config))
    assert table.code == 0, table.err
    assert "d.rates.growth" in table.out


def test_products_with_directions_over_a_built_tree(shop: Project) -> None:
    """Of B a, and of its quadratic form, by NumPy: a tree's direction is nested, and what it leaves out is 0."""
    ds = case(
        shop,
        """
parameters: {p: {_target_: model.make_form}}
stages: {f: {_target_: model.form}, g: {_target_: model.image}}
outputs: [f, g]
sweep: {axes: {p.a: [[1.0, 2.0], [3.0, 4.0]]}}
derivatives:
  j: {of: g, wrt: [p], kind: jvp, direction: {p: {a: [1.0, 0.0], b: [[0, 1], [0, 0]]}}}
  v: {of: g, wrt: [p], kind: vjp, direction: [1.0, 2.0]}
  h: {of: f, wrt: [p], kind: hvp, direction: {p: {a: [0.0, 1.0]}}}
""",
    ).run()
    a, b, e = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0.0, 1.0])
    np.testing.assert_allclose(ds.j, b[:, 0] + a @ np.array([[0.0, 1.0], [0.0, 0.0]]).T)
    np.testing.assert_allclose(ds["v.p.a"], b.T @ [1.0, 2.0])
    np.testing.assert_allclose(ds["v.p.b"], [np.outer([1.0, 2.0], x) for x in a])
    np.testing.assert_allclose(ds["h.p.a"], [(b + b.T) @ e] * 2)
    np.testing.assert_allclose(ds["h.p.b"], [np.outer(e, x) + np.outer(x, e) for x in a])


def test_a_derivative_that_is_not_finite_is_told_by_dotted_names(shop: Project) -> None:
    case(
        shop,
        """
parameters: {rates: {growth: 1.0e+200, decay: [1.0]}}
stages: {f: {_target_: model.of_dict, _inputs_: {p: rates}}}
outputs: {f: f.f}
sweep: {axes: {rates.growth: [1.0, 1.0e+200]}}
derivatives: {d: {of: f, wrt: [rates.decay]}, h: {of: f, wrt: [rates], kind: hessian}}
""",
    )
    by = {found.variable: found.by for found in shop.summary().nonfinite}
    assert by["f"] == ()
    assert by["d.rates.decay"] == ("rates.decay",)
    assert by["h.rates.decay.rates.decay"] == ("rates.decay", "rates.decay")


def test_a_stage_hands_on_what_is_static_in_a_tree(shop: Project) -> None:
    """sin(-w x)**3 by a module with a flag, a power and a function; sin(x) by a dataclass that names its function."""
    ds = case(
        shop,
        """
parameters: {p: {_target_: model.make_switch}, x: 2.0}
stages:
  handed: {_target_: model.handed}
  called: {_target_: model.called}
  made: {_target_: model.made_named}
  named: {_target_: model.named}
outputs: [called, named]
sweep: {axes: {x: [0.3, 2.0]}}
derivatives: {d: {of: called, wrt: [p]}, dn: {of: named, wrt: x, mode: reverse}}
""",
    ).run()
    w, x = 0.7, np.array([0.3, 2.0])
    np.testing.assert_allclose(ds.called, -(np.sin(w * x) ** 3), rtol=1e-14)
    np.testing.assert_allclose(ds["d.p.factor"], -3 * x * np.sin(w * x) ** 2 * np.cos(w * x), rtol=1e-13)
    np.testing.assert_allclose(ds.named, np.sin(x), rtol=1e-14)
    np.testing.assert_allclose(ds["dn.x"], np.cos(x), rtol=1e-14)


def test_a_network_is_handed_on_by_its_arrays(shop: Project) -> None:
    """What the error for a module with functions in it says to do."""
    text = """
parameters: {net: {_target_: model.make_mlp, width: 5, seed: 3}, x: 0.4}
stages: {y: {_target_: model.apply_at}, arrays: {_target_: model.arrays}, again: {_target_: model.combined}}
outputs: [y, again]
derivatives: {d: {of: y, wrt: [net]}, da: {of: again, wrt: [net]}}
"""
    ds = case(shop, text).run()
    np.testing.assert_array_equal(ds.again, ds.y)
    for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"):
        np.testing.assert_allclose(ds[f"da.net.{name}"], ds[f"d.net.{name}"], rtol=1e-14)
    with pytest.raises(StageError, match=r"eqx\.combine"):
        case(shop, text.replace("model.arrays", "model.handed, _inputs_: {p: net}")).load()


def test_a_tree_is_differentiated_by_its_real_floats(shop: Project) -> None:
    text = "parameters: {p: {_target_: model.make_flags}}\nstages: {s: {_target_: model.size}}\n"
    ds = case(shop, text + "derivatives: {d: {of: s, wrt: p}}\n").run()
    assert [name for name in ds.data_vars if name.startswith("d.")] == ["d.p.w"]
    np.testing.assert_array_equal(ds["d.p.w"], [2.0, 2.0])


@pytest.mark.parametrize("kind", ["gradient", "vjp, direction: 1.0", "jvp, direction: 1.0", "hessian"])
@pytest.mark.parametrize(
    ("made", "wrt", "message"),
    [
        ("complex", "p", "'p.z' is complex128. Take the real and the imaginary part as two parameters"),
        ("complex", "p.z", "'p.z' is complex128. Take the real and the imaginary part as two parameters"),
        ("flags", "p.on", "'p.on' is bool. Let its `_target_` make floats"),
        ("flags", "p.n", "'p.n' is int64. Let its `_target_` make floats"),
    ],
)
def test_what_no_derivative_can_be_taken_by(shop: Project, made: str, wrt: str, kind: str, message: str) -> None:
    text = f"parameters: {{p: {{_target_: model.make_{made}}}}}\nstages: {{s: {{_target_: model.size}}}}\n"
    with pytest.raises(PlanError) as caught:
        case(shop, text + f"derivatives: {{d: {{of: s, wrt: [{wrt}], kind: {kind}}}}}\n").load()
    (problem,) = caught.value.problems
    assert f"`derivatives.d.wrt.0` must be a real floating-point parameter, but {message}" in problem


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("loose", "mark 'flip' as static where its class declares it"),
        ("gain, factor: 0.7", "Mark it as static where Gain declares it: `act: Callable = eqx.field(static=True)`"),
        ("label", 'where Label declares it: `text: str = dataclasses.field(metadata={"static": True})`'),
    ],
)
def test_what_a_stage_cannot_hand_on(shop: Project, made: str, message: str) -> None:
    text = f"""
parameters: {{p: {{_target_: model.make_{made}}}, x: 2.0}}
stages: {{handed: {{_target_: model.handed}}, called: {{_target_: model.called}}}}
"""
    with pytest.raises(StageError) as caught:
        case(shop, text).load()
    assert message in str(caught.value)


def test_a_node_that_is_made_anew_each_time_is_caught(shop: Project) -> None:
    case(
        shop, "parameters: {w: {_target_: model.make_drawn}}\nstages: {b: {_target_: model.bias, _inputs_: {b: w.w}}}\n"
    )
    answer = shop.cli("plan", str(shop.config), "--check")
    assert answer.code == 2
    assert "`parameters.w` must be made alike each time, but w.w differs" in answer.err


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("parameters: {p: {}}", ConfigError, "`parameters.p` must hold at least one number, but is an empty mapping"),
        ("parameters: {p: {a-b: 1.0}}", ConfigError, "`parameters.p.a-b` must be a plain name"),
        ("parameters: {p: {a: {b: text}}}", ConfigError, "`parameters.p.a.b` must be a number"),
        ("parameters: {p: {_target_: 3}}", ConfigError, "`parameters.p._target_` must be the import path"),
        ("parameters: {p: {_target_: model.make_dct}}", PipelineError, "Did you mean 'make_dict'"),
        ("parameters: {p: {_target_: model.make_gain, fctor: 1.0}}", PipelineError, "Did you mean 'factor'"),
        ("parameters: {p: {_target_: model.make_square}}", PipelineError, "Square computes 'area' from the others"),
        (
            "parameters: {p: {_target_: model.make_doubled}}",
            PipelineError,
            "taken apart and put together, but p.0 changes",
        ),
        ("parameters: {p: {_target_: model.make_mixed}}", PipelineError, "Return a dict whose keys are all text"),
        (
            "parameters: {p: {_target_: model.make_gain}}",
            PipelineError,
            "`parameters.p` must be built by its `_target_`",
        ),
        (
            "parameters: {p: {_target_: model.make_function}}",
            PipelineError,
            "at least one array or float, but model.make",
        ),
        ("parameters: {p: {_target_: model.make_nan}}", PipelineError, "`parameters.p.a` must be finite, but is not"),
        ("parameters: {p: {_target_: model.make_dotted}}", PipelineError, "must have plain names inside, each once"),
        (
            "parameters: {p: {growth: 1.0, decay: 2.0, spare: 1.0}}\n"
            "stages: {f: {_target_: model.bias, _inputs_: {b: [p.growth, p.decay]}}}",
            PipelineError,
            "`parameters.p.spare` must be taken by a stage",
        ),
        (
            "parameters: {p: {a: 1.0}}\nstages: {f: {_target_: model.bias, _inputs_: {b: p.c}}}",
            PipelineError,
            "'p.c' has no 'c'. It has 'a'",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nsweep: {axes: {p: [1.0, 2.0]}}",
            SweepError,
            "no parameter 'p'",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nsweep: {axes: {p: {grwth: [1.0, 2.0]}}}",
            SweepError,
            "`sweep.axes.p.grwth` must be one of `parameters`, but there is no parameter 'p.grwth'. Did you mean 'p.growth'",
        ),
        (
            "parameters: {p: {growth: 1.0, decay: 2.0}}\nranges: {p: [0, 1]}",
            ConfigError,
            "`ranges.p` must be for one of `parameters`",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nranges: {p.grwth: [0, 1]}",
            PlanError,
            "`ranges.p.grwth` must be for one of `parameters`",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nranges: {p: {growth: [0, 1]}}",
            PlanError,
            "`parameters.p.growth` must lie in its declared range, from 0 to 1 (`ranges.p.growth`), but is 3",
        ),
        (
            "parameters: {p: {growth: 1.0, decay: 2.0}}\nranges: {p.growth: [0, 1], p: {growth: [0, 2]}}",
            ConfigError,
            "`ranges.p.growth` must be given once, but stands dotted and nested",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nranges: {p.growth: [0, 4], p: {growth: [0, 5]}}",
            PlanError,
            "`ranges.p.growth` must be given once, but stands dotted and nested",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nsweep: {axes: {p.growth: [1.0], p: {growth: [2.0]}}}",
            SweepError,
            "`sweep.axes.p.growth` must be given once, but stands dotted and nested",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\n"
            "derivatives: {d: {of: f.f, wrt: p, kind: jvp, direction: {p.growth: 1.0, p: {growth: 2.0}}}}",
            PlanError,
            "`derivatives.d.direction.p.growth` must be given once, but stands dotted and nested",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\n"
            "derivatives: {d: {of: f.f, wrt: p, kind: jvp, direction: {p: 1.0}}}",
            PlanError,
            "`derivatives.d.direction.p` must be a mapping of what 'p' holds, but is 1.0. Write {p.decay: ..., p.growth: ...}",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nderivatives: {d: {of: f.f, wrt: [p.grwth]}}",
            PlanError,
            "'p.grwth' is none. Did you mean 'p.growth'",
        ),
        (
            "parameters: {p: {_target_: model.make_dict}}\nderivatives: {d: {of: f.f, wrt: [p, p.growth]}}",
            PlanError,
            "names 'p.growth' twice",
        ),
    ],
)
def test_mistakes_are_named(shop: Project, text: str, error: type[UserError], message: str) -> None:
    if "stages:" not in text:
        text += "\nstages: {f: {_target_: model.of_dict}}"
    with pytest.raises(error) as caught:
        case(shop, text + "\n").load()
    assert message in str(caught.value)


def test_every_array_inside_is_swept_in_a_random_design(shop: Project) -> None:
    """One store for a design over parts of two trees, the same alone as together."""
    case(
        shop,
        """
parameters: {rates: {growth: 3.0, decay: [0.5, 2.0]}, net: {_target_: model.make_gain, factor: 0.7}, x: 2.0}
stages: {f: {_target_: model.of_dict, _inputs_: {p: rates}}, y: {_target_: model.apply}}
outputs: {f: f.f, y: y}
sweep:
  design: latin_hypercube
  samples: 33
  axes: {rates: {growth: {uniform: [1, 3]}}, net: {factor: {loguniform: [0.1, 1]}}}
execution: {chunk: 8}
""",
    )
    ds = shop.run()
    np.testing.assert_allclose(ds.f, ds["rates.growth"] ** 2 * 8.125, rtol=1e-14)
    np.testing.assert_allclose(ds.y, np.sin(ds["net.factor"] * 2.0) ** 2, rtol=1e-13)
    assert json.dumps(ds.attrs["config"]["parameters"]["net"])
    whole = shop.run("execution.chunk=33", store="whole.zarr")
    np.testing.assert_array_equal(whole.y, ds.y)
