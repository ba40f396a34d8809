"""Tools to test what is built on Vennue: a virtual clock, a faulty transport, an in-process pool, fake devices.

They are part of the public surface, and Vennue's own tests use the same ones.
"""

from vennue.testing.transport import FaultyTransport

__all__ = ["FaultyTransport"]
