"""A server from one job to a thousand, and from 4 requirements to 64: what check-ins, binds and reports cost it.

Over HTTP on loopback, the server on one core and the load generator on the other; each cell is a server of its own.
In each, devices check in one after the other and report small updates, then check-ins come as fast as they are
answered, and then at half that rate. It takes three minutes, so it runs by its name only:

    python -m benchmarks load_grid
"""

import itertools
from collections.abc import Iterator
from typing import Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.bench_load import (
    DEVICES,
    GATE_PER_CPU_S,
    attributes_of,
    check_in_of,
    load,
    open_jobs,
    report_of,
    server_alone,
)
from benchmarks.harness import Result

JOBS: Final = (1, 10, 100, 1000)
REQUIREMENTS: Final = (4, 16, 64)
SECONDS: Final = 2.0
REPORTS: Final = 4000
GATE_P99_MS: Final = 10.0


def bench_load_grid() -> Iterator[Result]:
    """Throughput and latency by the numbers of jobs and of requirements."""
    cells: dict[tuple[int, int], dict[str, float]] = {}
    for jobs, requirements in itertools.product(JOBS, REQUIREMENTS):
        seen = cells[jobs, requirements] = _cell(jobs, requirements)
        name = f"load_grid/{jobs}_jobs_{requirements}_requirements"
        yield Result(name=f"{name}/check_ins", value=seen["check_ins"], unit="/s")
        yield Result(name=f"{name}/per_cpu_second", value=seen["per_cpu_s"], unit="/s", gate=GATE_PER_CPU_S)
        yield Result(name=f"{name}/binds", value=seen["binds"], unit="/s")
        yield Result(name=f"{name}/p50_half_load", value=seen["p50_ms"], unit="ms", higher_is_better=False)
        yield Result(
            name=f"{name}/p99_half_load", value=seen["p99_ms"], unit="ms", higher_is_better=False, gate=GATE_P99_MS
        )
        yield Result(name=f"{name}/reports", value=seen["reports"], unit="/s")
        yield Result(name=f"{name}/reports_per_cpu_second", value=seen["reports_per_cpu_s"], unit="/s")
    Console().print(_table(cells))


bench_load_grid.by_name_only = True  # type: ignore[attr-defined]  # see benchmarks.__main__


def _cell(jobs: int, requirements: int) -> dict[str, float]:
    with server_alone() as server:
        open_jobs(server.url, jobs, requirements, DEVICES // 2)
        reports = _reports(server.url)
        before_s = server.cpu_s()
        reporting = load(server, reports, seconds=0.5, once=True)
        reports_per_cpu_s = reporting["sent"] / (server.cpu_s() - before_s)
        requests = [check_in_of(f"device-{number}", number) for number in range(DEVICES)]
        before_s = server.cpu_s()
        full = load(server, requests, seconds=SECONDS)
        per_cpu_s = full["sent"] / (server.cpu_s() - before_s)
        half = load(server, requests, seconds=SECONDS, rate_per_s=full["per_s"] / 2)
    return {
        "check_ins": full["per_s"],
        "per_cpu_s": per_cpu_s,
        "binds": full["per_s"] * full["tasks"],
        "p50_ms": half["p50_ms"],
        "p99_ms": half["p99_ms"],
        "reports": reporting["per_s"],
        "reports_per_cpu_s": reports_per_cpu_s,
    }


def _reports(url: str) -> list[str]:
    """Reports, ready to be sent, of devices that were given tasks."""
    reports: list[str] = []
    with httpx.Client(base_url=url) as client:
        for number in itertools.count():
            body = {"device": f"reporter-{number}", "attributes": attributes_of(number)}
            task = client.post("/v1/check-ins", json=body).json().get("task")
            if task is not None:
                reports.append(report_of(task))
            if len(reports) == REPORTS:
                return reports
    raise AssertionError("devices do not run out")


def _table(cells: dict[tuple[int, int], dict[str, float]]) -> Table:
    """The grid as a reader wants it."""
    shown = Table("jobs", "reqs", box=None, title="A server under load; latencies at half of it", title_justify="left")
    for heading in ("check-ins/s", "/CPU s", "binds/s", "p50", "p99", "reports/s", "/CPU s"):
        shown.add_column(heading, justify="right")
    for (jobs, requirements), seen in cells.items():
        shown.add_row(
            str(jobs), str(requirements), f"{seen['check_ins']:,.0f}", f"{seen['per_cpu_s']:,.0f}",
            f"{seen['binds']:,.0f}", f"{seen['p50_ms']:.1f} ms", f"{seen['p99_ms']:.1f} ms",
            f"{seen['reports']:,.0f}", f"{seen['reports_per_cpu_s']:,.0f}",
        )  # fmt: skip
    return shown
