"""The ``vennue`` command: one file per group of commands, mounted here on one application.

It stands on top of everything else and holds no logic of its own. A command is named here by its import path and
imported when it is used, so that ``vennue --help`` answers at once. `main` is the one place where errors become
messages and exit codes (`vennue.cli.terminal.ExitCode`).
"""

import logging
import os
import sys
from collections.abc import Sequence

import cyclopts

import vennue
from vennue.cli import terminal
from vennue.cli.terminal import ExitCode

_ENDING = terminal.lines(
    "Exit codes: 0 done, 1 failed, 2 invalid input, 3 server unreachable, 4 not found, 130 interrupted.",
    'With --json, stdout holds one JSON document: the answer, or {"error": ...}.',
)


def _default(value: object) -> str | None:
    """A default as the help shows it: none of a switch, 7 and not 7.0."""
    if value is None or value is False:
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


app = cyclopts.App(
    name="vennue",
    help="Many federated-learning jobs, one pool of devices.",
    help_format="markdown",  # which joins the lines of an argument's text
    help_epilogue=_ENDING,
    version=lambda: vennue.__version__,
    default_parameter=cyclopts.Parameter(negative=(), show_default=_default),
    # Failures are shown by `main`, in one form for all.
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)

_POOL = cyclopts.Group("A pool", sort_key=0)
_JOBS = cyclopts.Group("Jobs", sort_key=1)
_TRY = cyclopts.Group("Trying it out", sort_key=2)
_SIMULATE = cyclopts.Group("Simulation", sort_key=3)


def _mount(path: str, group: cyclopts.Group, about: str, *examples: str, usage: str | None = None) -> None:
    """Add the command that the function at an import path is. Its arguments are described in its docstring."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
    name = path.rpartition(":")[2].replace("_", "-")
    app.command(
        path,
        name=name,
        usage=None if usage is None else f"Usage: vennue {name} {usage}",
        help="\n\n".join(paragraphs),
        group=group,
        help_epilogue=terminal.lines("Examples:", *(f"$ {example}" for example in examples)),
    )


_mount(
    "vennue.cli.serve:serve",
    _POOL,
    """Run a pool: the server that jobs and devices talk to.

    Runs until Ctrl-C or SIGTERM, and then stops gracefully: what is in flight is answered, commits are finished. What
    was promised survives even a crash, so a server that is started again on the same data goes on where it stopped.
    Each option has a variable, as in VENNUE_PORT; further settings have only that, as in VENNUE_LIMITS_BLOB_BYTES.""",
    "vennue serve --data-dir ./pool",
    "vennue serve --policy venn-sched --set demand_scope=job --port 9000",
)
_mount(
    "vennue.cli.ready:ready",
    _POOL,
    "Wait until a server, root or leaf, is ready; give up after some seconds, and say why it is not.",
    "vennue serve --data-dir ./pool & vennue ready",
    "vennue ready --within 60 --server http://pool.example:8765",
)
_mount(
    "vennue.cli.pool:pool",
    _POOL,
    "Show the pool: policy, check-ins, requirements with their supply and demand, regions.",
    "vennue pool",
    "vennue pool --json | jq .check_ins_per_s",
)
_mount(
    "vennue.cli.pool:plan",
    _POOL,
    "Show the plan in force: which jobs each region's devices serve, first to last.",
    "vennue plan",
    "vennue plan --server http://pool.example:8765",
)
_mount(
    "vennue.cli.what_if:what_if",
    _JOBS,
    """Simulate the running pool with and without a job, before you submit it: when each job would be done.

    The coming days are taken to be like the last one. Each check-in stands for a device that does one task. Nothing is
    submitted, and the pool notices nothing but one request.""",
    "vennue what-if job.yaml",
    "vennue what-if job.yaml --policy venn --seeds 5 --json",
)
_mount(
    "vennue.cli.jobs:submit",
    _JOBS,
    """Submit a job and print its id.

    The file is YAML. A job needs a name and a demand (devices per round), as in `{name: next-word, demand: 20}`;
    rounds, requirement, deadline_s and other fields may follow. The server holds the job's place in the pool; your
    program attaches to it by its id, and opens its rounds.

    With `model: start.safetensors`, the platform runs the rounds itself, by `strategy`, to the last of `rounds` or
    until `target: {metric: loss, at_most: 0.5}` is reached; `config` goes to the devices, and `evaluate_every` says in
    which rounds these evaluate.""",
    "vennue submit job.yaml",
    'id=$(vennue submit job.yaml) && vennue show "$id"',
    "vennue submit job.yaml --wait",
    "vennue submit second.yaml first.yaml",
    usage="[OPTIONS] FILE [MORE...]",
)
_mount(
    "vennue.cli.jobs:jobs",
    _JOBS,
    "List the jobs, oldest first, and why each is where it is.",
    "vennue jobs",
    "vennue jobs --json | jq -r '.jobs[].id'",
)
_mount(
    "vennue.cli.jobs:show",
    _JOBS,
    "Show a job: its state, its latest rounds, and what it waits for, in numbers.",
    "vennue show next-word-4f1c2a",
    "vennue show next-word-4f1c2a --json | jq .reason",
)
_mount(
    "vennue.cli.why:why",
    _JOBS,
    """Explain why a job is where it is: its supply now and over the day, its place in each region that it may use, when
    its round and the job may end, and what would change that.""",
    "vennue why next-word-4f1c2a",
    "vennue why next-word-4f1c2a --json | jq .changes",
)
_mount(
    "vennue.cli.jobs:pull",
    _JOBS,
    "Write a job's newest model to a file, verified by its digest.",
    "vennue pull next-word-4f1c2a",
    "vennue pull next-word-4f1c2a --round 10 -o ten.safetensors",
)
_mount(
    "vennue.cli.jobs:cancel",
    _JOBS,
    "Cancel a job; its devices are free at once. Cancelling one that has ended changes nothing.",
    "vennue cancel next-word-4f1c2a",
    "vennue cancel next-word-4f1c2a --reason 'wrong learning rate'",
)
_mount(
    "vennue.cli.demo:demo",
    _TRY,
    """Watch jobs contend for a pool of simulated phones, and learn.

    Starts a server and a fleet of phones, and runs six jobs that want the same phones; then does it all again under a
    baseline, on the same phones, data and models. Phones come and go as 300 recorded ones did, in time that passes 500
    times as fast, and really train. Takes about a minute and a half. Exits with 1 unless every job completes with a
    lower loss on held-out data than it began with.""",
    "vennue demo",
    "vennue demo --baseline srsf --seed 2",
    "vennue demo --json > result.json",
)
_mount(
    "vennue.cli.fleet:fleet",
    _TRY,
    """Run simulated phones against a server, until Ctrl-C or for so many seconds.

    They use the SDK like any device, and train on local data of their own. They serve jobs named next-character,
    missing-letter, clothes or digits, or whose rounds' config names one of these as `task`, and decline others. Their
    public attributes are those of real phone models (cpu_score, memory_score, ram_gb, android, latency_ms, model); how
    much data they hold is private (clothes_samples, ...).

    A server calls devices back after seconds, or minutes if there are many, which is long in time that passes so fast:
    start it with VENNUE_PACING_SHORT_S=0.3 VENNUE_PACING_BUSY_S=0.6 VENNUE_PACING_IDLE_S=1.""",
    "vennue fleet --devices 200 --speedup 500",
    "vennue fleet --sessions synth --for 60 --json",
)
_mount(
    "vennue.cli.simulate:simulate",
    _SIMULATE,
    """Simulate a workload under policies, and compare them.

    Months of devices' comings and goings pass in seconds, on the core that servers run. Seeds draw jobs, devices and
    chance, the same for every policy, so policies are compared pair by pair. Runs are made side by side in processes.
    Ctrl-C ends them early; what there is by then is shown, and marked as partial.""",
    "vennue simulate even --policy random-order,fifo,srsf,venn --seeds 5 --report out.html",
    "vennue simulate jobs.yaml --trace sessions.csv --set poll_interval_s=30",
    "vennue simulate low --preset faithful --policy venn:tiers=1,venn:tiers=2,venn:tiers=3 --scale 8 --json",
)
_mount(
    "vennue.cli.papers:papers",
    _SIMULATE,
    """Repeat an experiment of the Venn or the Propius paper, and show its figures beside those that were published.

    Runs are made side by side in processes, and written down as they end: stop it when you like, the same command goes
    on. Full size is --scale 1.""",
    "vennue papers",
    "vennue papers speedups --scale 64 --seeds 2",
    "vennue papers ablation --scale 1 --out results",
    usage="[OPTIONS] [STUDY]",
)
app.command(
    "vennue.cli.trace:trace_app",
    name="trace",
    help="When devices are there: make, convert and inspect traces.",
    group=_SIMULATE,
)


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command line and return its exit code; whatever goes wrong has been shown."""
    as_json = "--json" in arguments
    try:
        code = app(list(arguments))
    except cyclopts.CycloptsError as error:
        return terminal.show_usage_error(error, as_json=as_json)
    except KeyboardInterrupt:
        terminal.show_interrupt()
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        terminal.discard_output()
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the outermost handler: a traceback is of no use to a user
        return terminal.show_error(error, as_json=as_json)
    return ExitCode(code) if isinstance(code, int) else ExitCode.OK


def main() -> None:
    """Run the command line (the console script's entry point)."""
    # Before numpy is imported: its threads would only wait for one another, on models as small as the demo's.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What the SDK says of single devices and retries is counted, or ends in an error of the command's own.
    logging.getLogger("vennue.sdk").setLevel(logging.DEBUG if terminal.debugging() else logging.CRITICAL)
    sys.exit(run(sys.argv[1:]))
