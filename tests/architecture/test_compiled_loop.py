"""What XLA makes of the loop over attempts in a pool of lanes: arithmetic alone, of explicit methods each operation once."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from ops.ensemble import BARRIERS
from ops.ode import solve

SAMPLES = 256

ARITHMETIC = {"add", "subtract", "multiply", "divide", "sqrt", "rsqrt", "power", "exponential", "log"}
OF_JAX = {"add", "add_any", "sub", "mul", "div", "sqrt", "rsqrt", "pow", "exp", "log", "square"}
DEAR = {"scatter", "sort", "custom-call", "power"}
"""What costs as much as a step, or more."""

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Instruction(NamedTuple):
    """A line of a compiled program."""

    name: str
    shape: str
    operation: str
    rest: str

    @property
    def size(self) -> int:
        """Numbers of its result."""
        found = re.match(r"\w+\[([\d,]*)\]", self.shape)
        return math.prod(map(int, filter(None, found[1].split(",")))) if found else 0

    @property
    def called(self) -> dict[str, str]:
        """The computations that it calls, by their part."""
        return dict(CALLED.findall(self.rest))

    @property
    def trips(self) -> int | None:
        """How often a loop is run, if that is known."""
        found = TRIPS.search(self.rest)
        return int(found[1]) if found else None


class Program:
    """A compiled program."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        for line in text.splitlines():
            if begun := COMPUTATION.match(line):
                inside = self.computations.setdefault(begun[1], [])
            elif found := INSTRUCTION.match(line):
                inside.append(Instruction(*found.groups()))
        self.sizes = {i.name: i.size for inside in self.computations.values() for i in inside}

    @functools.cache  # noqa: B019
    def operations(self, computation: str) -> frozenset[str]:
        """Those of a computation and of what it calls."""
        inside = self.computations[computation]
        inner = [self.operations(name) for i in inside for name in i.called.values()]
        return frozenset({i.operation for i in inside}).union(*inner)

    @functools.cache  # noqa: B019
    def arithmetic(self, computation: str) -> int:
        """Floating-point operations of a computation and of what it calls."""
        total = 0
        for i in self.computations[computation]:
            if i.operation in ARITHMETIC and i.shape.startswith(("f64", "f32")):
                total += i.size
            elif i.operation == "reduce":
                operand = re.search(r"%?([\w.\-]+)[,)]", i.rest.split(" ")[-1] if " " in i.rest else i.rest)
                names = re.findall(r"%([\w.\-]+)", i.rest.split(")")[0])
                total += self.arithmetic(i.called["to_apply"]) * self.sizes[names[0] if names else operand[1]]  # type: ignore[index]
            else:
                inner = sum(self.arithmetic(name) for name in i.called.values())
                total += (i.trips or 1) * inner if i.operation == "while" else inner
        return total

    def attempts(self) -> list[tuple[int, str]]:
        """The lanes and the bodies of the loops over attempts: those of a known length in one whose length depends on the samples."""

        def inside(computation: str) -> list[Instruction]:
            found = []
            for i in self.computations[computation]:
                if i.operation == "while":
                    found.append(i)
                else:
                    found += [loop for name in i.called.values() for loop in inside(name)]
            return found

        every = [i for computation in self.computations.values() for i in computation if i.operation == "while"]
        outer = [i for i in every if i.trips is None]
        loops = [i for o in outer for i in inside(o.called["body"]) if i.trips]
        return [(int(re.findall(r"s8\[(\d+)\]", i.shape)[0]), i.called["body"]) for i in loops if "s8[" in i.shape]


def arithmetic(jaxpr: Any) -> int:
    """Floating-point operations of a program before it is compiled."""
    total = 0
    for eqn in jaxpr.eqns:
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        if name == "custom_linear_solve":
            total += arithmetic(eqn.params["jaxprs"].solve.jaxpr)
        elif name == "scan":
            total += eqn.params["length"] * arithmetic(eqn.params["jaxpr"].jaxpr)
        elif not jnp.issubdtype(getattr(out, "dtype", jnp.int32), jnp.inexact) and not list(
            jaxprs_in_params(eqn.params)
        ):
            continue
        elif name in OF_JAX:
            total += math.prod(out.shape)
        elif name == "integer_pow":
            n = abs(eqn.params["y"])
            total += math.prod(out.shape) * (n.bit_length() + n.bit_count() - 2)
        elif name == "reduce_sum":
            total += math.prod(eqn.invars[0].aval.shape)
        else:
            total += sum(map(arithmetic, jaxprs_in_params(eqn.params)))
    return total


def rules_and_shapes(function: Any, given: Any) -> tuple[Any, list[Any]]:
    """The rules of the pool in a traced program, and the shapes of its operands for one sample."""

    def search(jaxpr: Any) -> Any:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "ensemble":
                return eqn
            for inner in jaxprs_in_params(eqn.params):
                if found := search(inner):
                    return found
        return None

    eqn = search(jax.make_jaxpr(function)(given).jaxpr)
    return eqn.params["rules"], [v.aval for v in eqn.invars]


def coupled(t: Any, y: Any, p: Any) -> Any:
    """Three components, each in several rates, so that what is computed again for each of them counts."""
    a, b, c = y["a"], y["b"], y["c"]
    return {"a": p[0] * b + a * c, "b": b - p[1] * a * c, "c": a * b - p[0] * c}


@pytest.mark.parametrize(("method", "bound"), [("tsit5", 1.02), ("dopri8", 1.02), ("rodas5p", 1.6)])
def test_attempts_are_arithmetic_and_few_operations_are_repeated(method: str, bound: float) -> None:
    def final(p: Any) -> Any:
        return solve(coupled, {"a": 1.0, "b": 0.5, "c": 0.2}, p, t1=10.0, solver=method)

    given = jnp.ones((SAMPLES, 2))
    program = Program(jax.jit(jax.vmap(final)).lower(given).compile().as_text())
    loops = program.attempts()
    assert loops, "no loop over attempts"
    rules, shapes = rules_and_shapes(final, given[0])
    flags = [True] * len(shapes)
    held = [jax.ShapeDtypeStruct((*x.shape, 1), x.dtype) for x in shapes]
    state = jax.eval_shape(lambda o: rules.start(o, flags), held)
    step = jax.make_jaxpr(lambda s, o: rules.advance(s, o, flags, [], None)[0])(state, held).jaxpr
    needed = arithmetic(dce_jaxpr(step, [True] * len(step.outvars))[0])
    if not BARRIERS:  # the stages are computed again where they are used: that costs less there than to keep them
        bound *= 5
    for lanes, body in loops:
        assert not DEAR & program.operations(body)
        assert program.arithmetic(body) <= bound * needed * lanes, (program.arithmetic(body) / lanes, needed)
        assert program.arithmetic(body) >= 0.6 * needed * lanes, "the loop was not understood"
