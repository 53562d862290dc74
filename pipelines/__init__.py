"""Worked models: vector fields and observables as pure functions. They use `ops` and know nothing of the engine."""
