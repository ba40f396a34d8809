"""``vennue submit | jobs | show | pull | cancel``: what owners and operators do with jobs.

A submitted job is a *driven* one, whose place in the pool the server holds while the owner's program opens its rounds
(`vennue.Job.attach` with the id that ``submit`` prints); or, if its file has a ``model``, a *managed* one, whose rounds
the platform runs to the end.
"""

import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from vennue import protocol
from vennue.cli import terminal
from vennue.cli.chain import in_order, with_ids
from vennue.cli.jobfile import JobFile
from vennue.cli.remote import REMOTE, Operator, Remote, operator, path_of
from vennue.cli.terminal import ExitCode, duration, plural, rate
from vennue.core.errors import Conflict, InvalidInput, NotFound
from vennue.core.ids import JobId
from vennue.core.job import JobSpec
from vennue.simulation.traces.columns import replacing

_POLL_S = 1.0


def submit(
    file: Path,
    /,
    *more: Path,
    wait: bool = False,
    key: str | None = None,
    remote: Remote = REMOTE,
) -> ExitCode:
    """Submit a job, or several that wait for one another by name (`after: [NAME]`), and print their ids.

    Args:
        file: The job's specification.
        more: The other jobs' specifications, in any order.
        wait: Wait until the jobs have ended; exit with 1 unless they completed.
        key: Idempotency key: submitting twice with the same key makes one job. By default every submission is new.
    """
    files = in_order([JobFile(path) for path in (file, *more)])
    ids: dict[str, JobId] = {}
    jobs = []
    with operator(remote) as server:
        for job_file in files:
            name = job_file.spec.name
            own_key = uuid.uuid4().hex if key is None else key if not more else f"{key}/{name}"
            job = _submit(server, job_file, with_ids(job_file.spec, ids), own_key)
            ids[name] = job.id
            if not remote.json:
                console = terminal.notes() if wait else terminal.output()
                console.print(f"submitted {job.id}" if wait else job.id, markup=False, highlight=False)
            jobs.append(job)
        if wait:
            jobs = [_wait(server, job) for job in jobs]
    if remote.json:
        terminal.print_json(jobs if more else jobs[0])
    elif wait:
        for job in jobs:
            terminal.output().print(_outcome(job), markup=False)
    return ExitCode.OK if all(job.state in {"active", "completed"} for job in jobs) else ExitCode.FAILED


def jobs(*, remote: Remote = REMOTE) -> ExitCode:
    """List the jobs, oldest first, and why each is where it is."""
    with operator(remote) as server:
        listed = server.jobs()
    if remote.json:
        terminal.print_json({"jobs": listed})
        return ExitCode.OK
    if not listed:
        terminal.output().print("no jobs yet: `vennue submit job.yaml` makes one", markup=False)
        return ExitCode.OK
    shown = terminal.table(
        "job", "name", "state", "rounds", "devices", "lasted", "why", numbers=("rounds", "devices", "lasted")
    )
    for job in listed:
        shown.add_row(
            job.id, escape(job.spec.name), _state(job.state), _rounds(job), _devices(job.open_round),
            duration(_age_s(job)), escape(job.reason.text),
        )  # fmt: skip
    terminal.output().print(shown)
    return ExitCode.OK


def show(job: str, /, *, rounds: int = 10, remote: Remote = REMOTE) -> ExitCode:
    """Show a job: its state, its latest rounds, and what it waits for, in numbers.

    Args:
        job: The job's id.
        rounds: How many of its latest rounds to show.
    """
    if rounds < 0:
        raise InvalidInput(f"must be at least 0, got {rounds}", field="rounds", value=rounds, limit=0)
    with operator(remote) as server:
        view = server.get(path_of(job), protocol.JobView)
        latest = _latest_rounds(server, view, rounds)
    if remote.json:
        terminal.print_json(msgspec.structs.asdict(view) | {"rounds": latest})
        return ExitCode.OK
    console = terminal.output()
    facts = terminal.table("", "")
    facts.show_header = False
    for name, value in _facts(view):
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts)
    if latest:
        console.print()
        console.print(_round_table(latest))
    return ExitCode.OK


def pull(
    job: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("model.safetensors"),
    round: int | None = None,
    remote: Remote = REMOTE,
) -> ExitCode:
    """Write a job's newest model to a file.

    Args:
        job: The job's id.
        output: The file to write.
        round: The result of this round instead.
    """
    with operator(remote) as server:
        if round is None:
            view = server.get(path_of(job), protocol.JobView)
            number, digest = view.committed_rounds, view.model
        else:
            number, digest = round, server.get(f"{path_of(job)}/rounds/{round}", protocol.RoundView).result
        if digest is None:
            raise Conflict(
                f"job {job} has no model yet" if round is None else f"round {round} of job {job} has not committed",
                field="round", value=round, fix=f"`vennue show {job}` says how far it is",
            )  # fmt: skip
        with replacing(output) as file:
            file.write(server.fetch(digest))
    if remote.json:
        terminal.print_json({"job": job, "round": number, "model": digest, "file": str(output)})
    else:
        terminal.output().print(f"{output}: the model of {job} after round {number}", markup=False, soft_wrap=True)
    return ExitCode.OK


def cancel(
    job: str,
    /,
    *,
    reason: Annotated[str, Parameter(name=("--reason", "-r"))] = "cancelled by its owner",
    remote: Remote = REMOTE,
) -> ExitCode:
    """Cancel a job; its devices are free at once. Cancelling one that has ended changes nothing.

    Args:
        job: The job's id.
        reason: What the job's state will say.
    """
    with operator(remote) as server:
        view = server.post(f"{path_of(job)}/cancel", protocol.JobView, protocol.CancelRequest(reason=reason))
    if remote.json:
        terminal.print_json(view)
    else:
        terminal.output().print(_outcome(view), markup=False)
    return ExitCode.OK


def _read(model: Path) -> bytes:
    try:
        return model.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"cannot read {model}: {error.strerror}", field="model", value=str(model), fix="give a .safetensors file"
        ) from error


def _submit(server: Operator, file: JobFile, spec: JobSpec, key: str) -> protocol.JobView:
    managed = file.managed
    if managed is not None and file.model is not None:
        managed = msgspec.structs.replace(managed, model=server.store(_read(file.model)))
    request = protocol.SubmitRequest(spec=spec, managed=managed)
    try:
        return server.post("/v1/jobs", protocol.JobView, request, idempotency_key=key)
    except InvalidInput as error:
        raise file.locate(error) from None


def _wait(server: Operator, job: protocol.JobView) -> protocol.JobView:
    """The job once it has ended; meanwhile says on stderr what it does."""
    console = terminal.notes()
    with console.status(escape(job.reason.text)) as status:
        said = ""
        while job.state == "active":
            text = f"{_rounds(job)} rounds: {job.reason.text}"
            status.update(escape(text))
            if not console.is_terminal and text != said:
                console.print(text, markup=False)
            said = text
            time.sleep(_POLL_S)
            job = server.get(path_of(job.id), protocol.JobView)
    return job


def _latest_rounds(server: Operator, job: protocol.JobView, count: int) -> list[protocol.RoundView]:
    last = job.open_round.round if job.open_round else job.committed_rounds
    found = []
    for number in range(max(1, last - count + 1), last + 1):
        try:
            found.append(server.get(f"{path_of(job.id)}/rounds/{number}", protocol.RoundView))
        except NotFound:  # an asynchronous job has versions of one model, not rounds
            continue
    return found


def _facts(job: protocol.JobView) -> list[tuple[str, str]]:
    spec = job.spec
    facts = [
        ("job", job.id),
        ("name", spec.name),
        ("state", job.state),
        ("why", job.reason.text),
        ("rounds", f"{_rounds(job)} committed"),
        ("demand", f"{plural(spec.demand, 'device')} {'per round' if spec.mode == 'sync' else 'at once'}"),
        ("requirement", spec.requirement),
    ]
    if spec.private_requirement is not None:
        facts.append(("on the device", spec.private_requirement))
    facts += [(name, str(value)) for name, value in _terms(spec)]
    if job.managed is not None:
        facts.append(("run by", "the platform" + _until(job.managed.target)))
    facts += [
        ("submitted", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.submitted_at))),
        ("took" if job.ended_at else "age", duration(_age_s(job))),
        ("waited for devices", duration(job.scheduling_delay_s)),
        ("collected reports", duration(job.collection_s)),
        ("devices bound", str(job.devices_bound)),
        *setback_facts(job.setbacks),
    ]
    if job.model is not None:
        facts.append(("model", job.model))
    return facts + _numbers(job.reason)


def _terms(spec: JobSpec) -> list[tuple[str, Any]]:
    """What the owner asked for beyond the usual."""
    terms: list[tuple[str, Any]] = [("mode", "asynchronous")] if spec.mode == "async" else []
    if spec.deadline_s is not None:
        terms.append(("deadline", f"{duration(spec.deadline_s)}, with {spec.min_fraction:.0%} of the reports"))
    if spec.overcommit != 1:
        terms.append(("overcommit", spec.overcommit))
    if spec.weight != 1:
        terms.append(("weight", spec.weight))
    return terms


def _until(target: protocol.Target | None) -> str:
    if target is None:
        return ""
    if target.at_least is not None:
        return f", until {target.metric} is at least {target.at_least:g}"
    return f", until {target.metric} is at most {target.at_most:g}"


def _numbers(reason: protocol.Reason) -> list[tuple[str, str]]:
    numbers: list[tuple[str, str]] = []
    if reason.needs is not None:
        numbers.append(("needs", plural(reason.needs, "device")))
    if reason.supply_per_s is not None:
        numbers.append(("supply", f"{rate(reason.supply_per_s)} eligible check-ins"))
    if reason.demand_ahead is not None:
        numbers.append(("demand ahead", plural(reason.demand_ahead, "device")))
    if reason.blocking:
        numbers.append(("behind", ", ".join(reason.blocking)))
    if reason.eta_s is not None:
        numbers.append(("devices expected in", duration(reason.eta_s)))
    return numbers


def setback_facts(setbacks: protocol.Setbacks | None) -> list[tuple[str, str]]:
    """What went wrong with a job's reports, kind by kind."""
    if setbacks is None:
        return []
    sums = {"reports refused": setbacks.refused_reports, "tasks given back": setbacks.returned_tasks}
    facts = [(name, str(number)) for name, number in sums.items() if number]
    for each in setbacks.kinds:
        at = time.strftime("%H:%M:%S", time.localtime(each.last_at))
        facts.append((f"  {each.count} {each.kind}", f"{each.told} (the last at {at})"))
    return facts


def _round_table(rounds: list[protocol.RoundView]) -> Any:
    names = sorted({name for view in rounds for name in view.metrics})
    columns = ("round", "attempt", "state", "bound", "reported", "waited", "collected", *names)
    shown = terminal.table(*columns, numbers=set(columns) - {"state"})
    for view in rounds:
        shown.add_row(
            str(view.round), str(view.attempt), _state(view.state), f"{view.bound}/{view.demand}", str(view.reported),
            duration(view.scheduling_delay_s), duration(view.collection_s),
            *(f"{view.metrics[name]:.4g}" if name in view.metrics else "–" for name in names),
        )  # fmt: skip
    return shown


def _state(state: str) -> str:
    colour = {"completed": "green", "committed": "green", "failed": "red", "aborted": "red", "cancelled": "yellow"}
    return f"[{colour[state]}]{state}[/]" if state in colour else state


def _rounds(job: protocol.JobView) -> str:
    return f"{job.committed_rounds}/{job.spec.rounds}" if job.spec.rounds else str(job.committed_rounds)


def _devices(view: protocol.RoundView | None) -> str:
    return f"{view.bound}/{view.demand}" if view else "–"


def _age_s(job: protocol.JobView) -> float:
    """Its completion time; the time since its submission while it runs (the clocks may differ by a little)."""
    return job.jct_s if job.jct_s is not None else max(0.0, time.time() - job.submitted_at)


def _outcome(job: protocol.JobView) -> str:
    return f"{job.id} {job.state}: {job.reason.text}"
