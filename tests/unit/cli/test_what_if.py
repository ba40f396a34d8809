"""``vennue what-if``: its patience is for simulating, and not for what comes before."""

import time

from vennue.cli.what_if import _after


def test_patience_begins_when_it_is_first_asked_for(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    is_over = _after(60.0)
    now = 150.0  # the simulator was being compiled until now
    assert not is_over()
    now = 210.0
    assert not is_over()
    now = 210.5
    assert is_over()
