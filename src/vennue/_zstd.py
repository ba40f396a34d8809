"""Zstandard, from the standard library where that has it (Python 3.14), else from its backport: the same interface."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
