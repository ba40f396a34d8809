"""Memory through which bodies pass is not given back to the kernel, to be got back page by page."""

import subprocess
import sys

import pytest

PASS_BODIES = """
import resource
from vennue.server.memory import keep_freed_memory

kept = {call}

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take_a_body():
    return [b"x" * 200_000 for _ in range(5)] and None

for _ in range(3):
    take_a_body()
before = faults()
for _ in range(100):
    take_a_body()
print(kept, faults() - before)
"""


def page_faults(call: str) -> tuple[str, int]:
    program = PASS_BODIES.format(call=call)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    kept, faults = ran.stdout.split()
    return kept, int(faults)


def test_bodies_that_follow_each_other_pass_through_the_same_pages():
    kept, faults = page_faults("keep_freed_memory()")
    if kept == "False":
        pytest.skip("this C library has no such option")
    assert faults < 1_000  # a page is 4 KiB: a hundred bodies have 24 400 of them
    _, by_default = page_faults("None")
    assert by_default > 10 * faults


def test_python_seldom_looks_for_cycles_and_never_in_what_a_server_starts_with():
    program = """
import gc
from vennue.server.memory import collect_rarely

collect_rarely()
before = gc.get_stats()[0]["collections"]
kept = [[] for _ in range(9_000)]
print(gc.get_freeze_count() > 1_000, gc.get_stats()[0]["collections"] - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "0"]
