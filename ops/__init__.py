"""Ordinary JAX for simulation: solvers, events, adjoints. Knows nothing of the engine."""
