"""Small data that ships with Vennue: phones' plug-in sessions, a table of phone models, capacities, jobs, workloads.

Every file here is a few kilobytes of CSV or JSON whose source and licence `README.md` beside it names. This module only
finds and decodes them; their meaning lives with their users (`vennue.simulation.traces`, `vennue.simulation.workload`).
"""

import csv
import gzip
import io
import json
from importlib import resources
from typing import Any


def read_bytes(name: str) -> bytes:
    """The content of a shipped file, decompressed when its name ends in ``.gz``."""
    raw = resources.files(__name__).joinpath(name).read_bytes()
    return gzip.decompress(raw) if name.endswith(".gz") else raw


def read_json(name: str) -> Any:
    """A shipped JSON document."""
    return json.loads(read_bytes(name))


def read_csv(name: str) -> dict[str, list[str]]:
    """A shipped CSV table as columns of text."""
    header, *rows = csv.reader(io.StringIO(read_bytes(name).decode()))
    return {column: [row[index] for row in rows] for index, column in enumerate(header)}


def names(folder: str, suffix: str) -> list[str]:
    """The stems of the shipped files in ``folder`` that end in ``suffix``, sorted."""
    found = (entry.name for entry in resources.files(__name__).joinpath(folder).iterdir())
    return sorted(name.removesuffix(suffix) for name in found if name.endswith(suffix))
