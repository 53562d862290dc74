"""A traced program walked through once, with an abstract value for each of its variables.

In: a jaxpr and what is known of its inputs. Out: what follows for its outputs. Calls and branches are entered, loops until nothing
changes any more. What is known, and how an equation hands it on, is said by a subclass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from engine.jaxprs import callee, expanded, is_literal, opened, parts_of_scan, written

Known = TypeVar("Known")


class Analysis(Generic[Known]):
    """What is known of each value; grows along `join` only, so that loops come to an end."""

    def constant(self, value: Any) -> Known:
        """What is known of a constant or a literal; of a constant that the program does not hold, None is given."""
        raise NotImplementedError

    def join(self, a: Known, b: Known) -> Known:
        """What holds in either case."""
        raise NotImplementedError

    def step(self, eqn: Any, operands: list[Known], site: Any) -> list[Known]:
        """What is known of the results of an equation that is not entered.

        Args:
            eqn: the equation.
            operands: what is known of what it takes.
            site: the equation whose line the user wrote: `eqn`, or the call of a library's function in which it stands.
        """
        raise NotImplementedError

    def enters(self, eqn: Any) -> bool:
        """Whether a call is looked into."""
        return True

    def decided(self, result: Known, by: Known) -> Known:
        """What is known of a result of a loop or a branch, given what is known of the condition."""
        return result

    def run(self, jaxpr: Any, given: Sequence[Known], site: Any = None) -> list[Known]:
        """What is known of the outputs."""
        inner = opened(jaxpr)
        consts = getattr(jaxpr, "consts", None) or [None] * len(inner.constvars)
        found = {v: self.constant(c) for v, c in zip(inner.constvars, consts, strict=True)}
        found |= dict(zip(inner.invars, given, strict=True))

        def read(atom: Any) -> Known:
            return self.constant(atom.val) if is_literal(atom) else found[atom]

        for eqn in inner.eqns:
            found.update(zip(eqn.outvars, self.apply(eqn, [read(v) for v in eqn.invars], site), strict=True))
        return [read(v) for v in inner.outvars]

    def apply(self, eqn: Any, operands: list[Known], site: Any) -> list[Known]:
        """What is known of the results of an equation."""
        name = eqn.primitive.name
        if (inner := callee(eqn)) is not None and self.enters(eqn):
            own = written(inner) or expanded(eqn) is not None
            return self.run(inner, operands, site or (None if own else eqn))
        if name == "cond":
            found = [self.run(branch, operands[1:], site) for branch in eqn.params["branches"]]
            return [self.decided(self.joined(outs), operands[0]) for outs in zip(*found, strict=True)]
        if name == "while":
            test, held = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            outs = self.repeat(
                eqn.params["body_jaxpr"], operands[test : test + held], operands[test + held :], [], site
            )
            (goes_on,) = self.run(eqn.params["cond_jaxpr"], [*operands[:test], *outs], site)
            return [self.decided(out, goes_on) for out in outs]
        if name == "scan" and (parts := parts_of_scan(eqn)) is not None:
            constants, carry = parts
            rest = operands[constants + carry :]
            start = operands[constants : constants + carry]
            return self.repeat(eqn.params["jaxpr"], operands[:constants], start, rest, site)
        return self.step(eqn, operands, site or eqn)

    def repeat(
        self, body: Any, constants: list[Known], carry: list[Known], slices: list[Known], site: Any
    ) -> list[Known]:
        """What is known of the state of a loop after any number of turns, and of what each turn gives."""
        while True:
            outs = self.run(body, [*constants, *carry, *slices], site)
            after = [self.join(a, b) for a, b in zip(carry, outs, strict=False)]
            if after == carry:
                return [*carry, *outs[len(carry) :]]
            carry = after

    def joined(self, values: Sequence[Known]) -> Known:
        """What holds in every case."""
        first, *others = values
        for value in others:
            first = self.join(first, value)
        return first
