"""Vennue lets many federated-learning jobs share one pool of devices.

This module is the public surface: what users import is re-exported here, and nothing else is promised to stay. The
parts behind it import one way only, core ← policies ← simulation, control ← server ← cli.
"""

from importlib.metadata import version

__version__ = version("vennue")
