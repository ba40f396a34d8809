"""``vennue demo``: jobs that contend for a fleet of simulated phones, under a policy and under a baseline."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vennue.cli import terminal
from vennue.cli.running import run_until_interrupted
from vennue.cli.terminal import ExitCode, plural

if TYPE_CHECKING:
    from vennue.demo.demo import DemoResult

_BUSY = 2.0
"""Processes per processor, the demo's own included, above which time that passes 500 times as fast is not kept."""


def demo(
    *,
    policy: str = "venn-sched",
    baseline: str = "random-order",
    seed: int = 1,
    devices: int = 300,
    speedup: float = 500.0,
    jobs: Path | None = None,
    keep: Path | None = None,
    limit: float = 300.0,
    json: bool = False,
) -> ExitCode:
    """Watch jobs contend for a pool of simulated phones, and learn.

    Args:
        policy: The policy to show.
        baseline: The policy to compare it with; "none" for a single run.
        seed: Of the phones, their data, the initial models and the baseline's lottery.
        devices: Size of the fleet.
        speedup: Simulated seconds per second.
        jobs: A file of other jobs than the demo's own.
        keep: A new folder in which to leave the servers' data, their logs and result.json.
        limit: A run that takes longer than so many seconds has failed.
        json: Print one JSON document instead.
    """
    from vennue.demo.demo import DemoConfig, data_folder, run_demo
    from vennue.demo.jobs import SHIPPED, load
    from vennue.demo.live import report, watch_on

    config = DemoConfig(
        policy=policy, baseline=None if baseline == "none" else baseline, jobs=load(jobs or SHIPPED), seed=seed,
        devices=devices, speedup=speedup, limit_s=limit,
    )  # fmt: skip
    console = terminal.notes()
    console.print(
        f"{devices} phones, {plural(len(config.jobs), 'job')}: {', then '.join(config.policies)}", markup=False
    )
    with data_folder(keep) as folder:
        result = run_until_interrupted(run_demo(config, watch_on(console), folder))
        if keep is not None:
            _keep(result, folder)
    if json:
        terminal.print_json(result)
    else:
        report(result, terminal.output())
        busy, processors = os.getloadavg()[0], os.cpu_count() or 1
        if busy > _BUSY * processors:
            terminal.notes().print(
                f"this machine is busy ({busy:.1f} processes want its {plural(processors, 'processor')}): phones and "
                "server came late, so these figures say little; try again on a quiet one, or with a lower --speedup",
                soft_wrap=True,
            )
    return ExitCode.OK if result.succeeded else ExitCode.FAILED


def _keep(result: "DemoResult", folder: Path) -> None:
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
