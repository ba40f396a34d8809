"""The speed of this machine, as plain Python sees it. Every expected range is stated relative to it."""

from collections.abc import Iterator

from benchmarks.harness import Result, calibration_loop_ns


def bench_calibration() -> Iterator[Result]:
    """One iteration of a Python loop with an addition and a mask."""
    yield Result(name="calibration", value=calibration_loop_ns(), unit="ns", higher_is_better=False)
