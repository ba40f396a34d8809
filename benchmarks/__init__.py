"""Vennue's benchmarks: ``python -m benchmarks [name]``, or ``make bench [ONLY=name]``."""
