"""What a simulated run does, one rule of the world at a time; both engines keep each."""

from typing import Any

import numpy as np
import pytest

from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.job import DAY_S, JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.policies import Policy
from vennue.simulation.options import Options, options
from vennue.simulation.result import Columns, RunResult
from vennue.simulation.run import Engine, simulate
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate
from vennue.simulation.world import World

pytestmark = pytest.mark.timeout(600)  # the first run of all compiles the kernel

# On the mean device and link a task takes 30 s of training and 2 × 10 s of transfers: 50 s.
MEAN = DevicePopulation(DeviceTable({"ram_gb": [4.0]}), Capacity([78.0], [13_736.0]))
ONCE = Options(poll_interval_s=0, anonymous_sessions=True, dispatch_s=0, lease_s=None, overcommit=1, horizon_s=5000)

both_engines = pytest.mark.parametrize("engine", ["reference", "kernel"])


def run(sessions: list[tuple[int, int, int]], engine: Engine, given: Options = ONCE, **job: Any) -> RunResult:
    spec = JobSpec(**{"name": "j", "demand": 1, "rounds": 1, "deadline_s": 300.0, **job})
    trace = Trace(*zip(*sessions, strict=True), period_s=10_000)
    return simulate(
        [JobTemplate(spec, 0.0, 30.0)], "fifo", trace=trace, population=MEAN, options=given, engine=engine,
        keep_assignments=True,
    )  # fmt: skip


def rows(result: RunResult) -> Columns:
    assert result.assignments is not None
    return result.assignments


@both_engines
def test_a_round_ends_when_its_only_device_has_finished(engine: Engine):
    result = run([(0, 10, 500)], engine)
    assert result.jobs["ended_s"].tolist() == [60.0]
    assert result.jobs["scheduling_delay_s"].tolist() == [10.0]
    assert result.jobs["collection_s"].tolist() == [50.0]


@both_engines
def test_an_asynchronous_job_waits_for_devices_until_its_slots_are_first_all_filled(engine: Engine):
    buffered: dict[str, Any] = {"mode": "async", "demand": 2, "buffer_size": 1, "deadline_s": None}
    result = run([(0, 10, 500), (1, 40, 500), (2, 100, 500)], engine, rounds=3, **buffered)
    assert result.jobs["ended_s"].tolist() == [150.0]
    assert (result.jobs["scheduling_delay_s"].tolist(), result.jobs["collection_s"].tolist()) == ([40.0], [110.0])
    never_filled = run([(0, 10, 500), (1, 100, 500)], engine, rounds=2, **buffered)
    assert never_filled.jobs["ended_s"].tolist() == [150.0]
    assert never_filled.jobs["scheduling_delay_s"].tolist() == [10.0 + 40.0]
    assert never_filled.jobs["collection_s"].tolist() == [50.0 + 50.0]


@both_engines
def test_a_device_declines_a_task_that_would_outlast_its_session(engine: Engine):
    result = run([(0, 10, 59), (1, 20, 70)], engine)
    assert rows(result)["session"].tolist() == [1]
    assert result.jobs["ended_s"].tolist() == [70.0]


@both_engines
def test_a_device_that_leaves_is_lost_silently_and_the_round_aborts_at_its_deadline(engine: Engine):
    given = options("faithful", accept_only_what_fits=False, extend_s=0, dispatch_s=0, horizon_s=5000)
    result = run([(0, 10, 40), (1, 310, 400)], engine, given)
    assert result.attempts["outcome"].tolist() == [1, 0]
    assert result.attempts["closed_s"].tolist() == [300.0, 360.0]
    assert result.jobs["failed"].tolist() == [1]


@both_engines
def test_a_lease_replaces_a_lost_device_within_the_round(engine: Engine):
    result = run([(0, 10, 40), (1, 100, 200)], engine, ONCE_WITH_LEASE)
    assert result.jobs["attempts"].tolist() == [1]
    assert result.jobs["ended_s"].tolist() == [150.0]


ONCE_WITH_LEASE = Options(
    poll_interval_s=0, anonymous_sessions=True, dispatch_s=0, lease_s=60.0, overcommit=1, horizon_s=5000,
    accept_only_what_fits=False,
)  # fmt: skip


@both_engines
def test_an_idle_device_asks_again_as_long_as_its_session_lasts(engine: Engine):
    given = Options(poll_interval_s=40, dispatch_s=0, overcommit=1, horizon_s=5000)
    result = run([(0, 10, 500)], engine, given, rounds=2)
    # Bound at 10, done at 60, idle until it asks again at 100, done at 150.
    assert rows(result)["bound_s"].tolist() == [10.0, 100.0]
    assert result.jobs["ended_s"].tolist() == [150.0]


@both_engines
def test_a_known_device_starts_anew_what_it_had_not_finished(engine: Engine):
    given = Options(poll_interval_s=0, dispatch_s=0, lease_s=None, accept_only_what_fits=False, horizon_s=5000)
    result = run([(0, 10, 40), (0, 100, 200)], engine, given)
    assert result.jobs["bound"].tolist() == [1]
    assert result.jobs["ended_s"].tolist() == [150.0]


@both_engines
def test_a_report_after_the_round_is_straggling(engine: Engine):
    result = run([(0, 10, 500), (1, 20, 500)], engine, demand=2, min_fraction=0.5)
    assert {fate: result.counters[fate] for fate in ("bound", "used", "straggling")} == {
        "bound": 2, "used": 1, "straggling": 1,
    }  # fmt: skip


@both_engines
def test_busy_time_is_the_time_of_the_tasks(engine: Engine):
    result = run([(0, 10, 500), (1, 4000, 4500)], engine, rounds=1)
    assert result.usage["busy_s"].sum() == 50.0


@both_engines
def test_the_horizon_leaves_a_marked_result(engine: Engine):
    result = run([(0, 10, 500)], engine, rounds=2)
    assert (result.ended, result.end_s, result.complete) == ("horizon", 5000.0, False)
    assert result.jobs["state"].tolist() == ["unfinished"]
    assert np.isnan(result.jobs["ended_s"]).all()


@both_engines
def test_stopping_leaves_a_marked_result(engine: Engine):
    trace = Trace(np.arange(3000), np.arange(3000), np.arange(3000) + 100, period_s=10_000)
    result = simulate(
        [JobTemplate(JobSpec(name="j", demand=1, rounds=9000, deadline_s=300.0), 0.0, 30.0)], "fifo", trace=trace,
        population=MEAN, options=options("default", horizon_s=1e6), engine=engine, stop=lambda: True,
    )  # fmt: skip
    assert result.ended == "stopped"
    assert not result.complete


@both_engines
def test_a_policy_that_raises_ends_the_run_with_its_name_for_the_defect(engine: Engine):
    class Broken(Policy):
        name = "broken"

        def plan(self, view: PoolView) -> Plan:
            raise ZeroDivisionError("oops")

    trace = Trace([0], [10], [500], period_s=10_000)
    job = JobTemplate(JobSpec(name="j", demand=1, rounds=1), 0.0, 30.0)
    with pytest.raises(InvalidInput, match=r"ZeroDivisionError in test_engine\.py, line \d+: oops"):
        simulate([job], Broken(), trace=trace, population=MEAN, options=ONCE, engine=engine)


def test_policies_meet_the_same_sessions_and_jobs_under_one_seed():
    runs = [
        simulate("low", policy, options=options("faithful", horizon_s=20_000), seed=3) for policy in ("fifo", "srsf")
    ]
    assert runs[0].jobs["arrival_s"].tolist() == runs[1].jobs["arrival_s"].tolist()
    assert runs[0].usage["online_s"].tolist() == runs[1].usage["online_s"].tolist()


def test_every_invariant_holds_throughout_a_run():
    trace = Trace(np.arange(60), np.arange(60) * 7, np.arange(60) * 7 + 120, period_s=600)
    jobs = [JobTemplate(JobSpec(name=f"j{n}", demand=3, rounds=2, deadline_s=100.0), n * 20.0, 30.0) for n in range(4)]
    result = simulate(jobs, "venn-sched", trace=trace, population=MEAN, options=options(horizon_s=9000), validate=True)
    assert result.complete


def test_a_requirement_that_no_device_meets_is_refused_before_the_run():
    with pytest.raises(Infeasible, match=r"no device meets .*ram_gb >= 64"):
        run([(0, 10, 500)], "reference", requirement="device.ram_gb >= 64")


def test_a_horizon_before_any_job_could_finish_is_refused_before_the_run():
    with pytest.raises(InvalidInput, match="no job can finish within 10 s"):
        simulate("low", "fifo", options=options("faithful", horizon_s=10))


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(InvalidInput, match="did you mean 'overcommit'"):
        options("default", overcomit=1.2)


def test_extended_sessions_need_to_be_anonymous():
    with pytest.raises(InvalidInput, match="may overlap"):
        options("default", extend_s=80)


class Apprentice(Policy):
    """A third party's policy that learns."""

    name = "apprentice"
    learns = True

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(view.requests)


@pytest.mark.parametrize(("policy", "engine"), [("venn", "kernel"), (Apprentice(), "reference")])
def test_what_a_policy_of_ones_own_learns_is_known_to_the_core_only(policy: str | Policy, engine: str):
    trace = Trace([0], [10], [500], period_s=10_000)
    job = JobTemplate(JobSpec(name="j", demand=1, rounds=1, deadline_s=300.0), 0.0, 30.0)
    result = simulate([job], policy, trace=trace, population=MEAN, options=ONCE)
    assert result.engine == engine


@both_engines
@pytest.mark.parametrize("policy", ["random", "venn"])
def test_invariants_hold_throughout_a_run(engine: Engine, policy: str):
    trace = Trace(list(range(20)), list(range(0, 200, 10)), list(range(120, 320, 10)), period_s=400)
    jobs = [JobTemplate(JobSpec(name=f"j{n}", demand=4, rounds=9, deadline_s=100.0), n * 20.0, 30.0) for n in range(4)]
    given = options(horizon_s=20_000, poll_interval_s=5)
    result = simulate(jobs, policy, trace=trace, population=MEAN, options=given, engine=engine, validate=True)
    assert result.engine == engine
    assert result.jobs["committed"].sum() > 0


def test_a_job_that_never_ends_does_not_keep_a_run_going_for_ever():
    trace = Trace([0], [10], [500], period_s=DAY_S)  # one device a day, for rounds of two
    job = JobTemplate(JobSpec(name="j", demand=2, rounds=1, deadline_s=300.0), 0.0, 30.0)
    given = options("faithful")
    result = simulate([job], "fifo", trace=trace, population=MEAN, options=given)
    assert (result.ended, result.end_s, result.complete) == ("horizon", 30 * DAY_S, False)


def test_the_default_horizon_is_ten_years_at_the_most():
    trace = Trace([0], [10], [500], period_s=DAY_S)
    job = JobTemplate(JobSpec(name="j", demand=1, rounds=800, deadline_s=300.0), 0.0, 30.0)
    assert World([job], trace, MEAN, seed=0, options=options("faithful")).horizon_s == 10 * 365.25 * DAY_S


def test_a_trace_whose_devices_cannot_do_any_job_in_ten_years_is_refused_with_the_figures():
    trace = Trace([0], [0], [60], name="one.csv")  # it asks twice a day
    job = JobTemplate(JobSpec(name="j", demand=100, rounds=1000, deadline_s=300.0), 0.0, 30.0)
    with pytest.raises(InvalidInput, match="at most 2 tasks a day, and the jobs ask for 80,000, which takes 110 years"):
        simulate([job], "fifo", trace=trace, population=MEAN)


def test_demand_that_devices_can_never_meet_is_told_before_the_run():
    trace = Trace([0], [0], [60], name="one.csv")
    jobs = [JobTemplate(JobSpec(name=f"j{n}", demand=1, rounds=n, deadline_s=300.0), 0.0, 30.0) for n in (1, 20_000)]
    said = World(jobs, trace, MEAN, seed=0, options=Options()).scarcity()
    assert said is not None
    assert "at most 2 tasks a day, and the jobs ask for 20,001, which takes 27 years or more" in said
    assert World(jobs[:1], trace, MEAN, seed=0, options=Options()).scarcity() is None


def test_devices_that_stay_do_many_tasks_so_few_of_them_are_no_scarcity():
    trace = Trace([0], [0], [DAY_S])
    job = JobTemplate(JobSpec(name="j", demand=1, rounds=5000, deadline_s=300.0), 0.0, 30.0)
    assert World([job], trace, MEAN, seed=0, options=Options()).scarcity() is None


def test_sessions_that_all_end_as_they_start_serve_no_job_unless_they_are_extended():
    trace = Trace([0, 1], [5, 9], [5, 9], name="zero.csv")
    job = JobTemplate(JobSpec(name="j", demand=1, rounds=1, deadline_s=300.0), 0.0, 30.0)
    with pytest.raises(InvalidInput, match=r"every session of zero\.csv ends as it starts"):
        World([job], trace, MEAN, seed=0, options=Options())
    extended = simulate([job], "fifo", trace=trace, population=MEAN, options="faithful")
    assert extended.complete


@both_engines
def test_a_run_whose_rounds_all_end_in_vain_gives_up_before_it_fills_the_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    for module in ("result", "engine", "kernel.driver"):
        monkeypatch.setattr(f"vennue.simulation.{module}.MAX_ATTEMPTS", 50)
    given = options("faithful", horizon_s=1e9)
    with pytest.raises(InvalidInput, match="the jobs made 50 attempts in"):
        run([(0, 10, 20)], engine, given, demand=2, deadline_s=1.0)


def test_a_run_can_be_stopped_while_its_policy_thinks():
    """One device that stays for days gives the kernel few events, and the policy a plan for each round."""

    class Restless(Policy):
        name = "restless-in-tests"

        def plan(self, view: PoolView) -> Plan:
            plans.append(view.now)
            return Plan.ordered(view.requests)

    plans: list[float] = []
    trace = Trace([0], [10], [900_000], period_s=1_000_000)
    jobs = [JobTemplate(JobSpec(name=f"j{n}", demand=1, rounds=900, deadline_s=600.0), n, 1.0) for n in range(9)]
    result = simulate(
        jobs, Restless(), trace=trace, population=MEAN, options=Options(), engine="kernel",
        stop=lambda: len(plans) > 100,
    )  # fmt: skip
    assert result.ended == "stopped"
    assert len(plans) < 500


def test_the_default_horizon_follows_the_demand_for_the_devices_that_can_serve_it():
    trace = Trace([0, 1], [10, 20], [500, 500], period_s=DAY_S)  # two devices a day, half of them large
    large = DevicePopulation(DeviceTable({"ram_gb": [4.0, 8.0]}), Capacity([78.0], [13_736.0]))
    jobs = [
        JobTemplate(JobSpec(name="j", demand=1, rounds=rounds, requirement=requirement), 500.0, 30.0)
        for rounds, requirement in ((30, "device.ram_gb >= 8"), (4, "true"))
    ]
    world = World(jobs, trace, large, seed=0, options=options("faithful"))
    assert world.horizon_s == 500.0 + 10 * 30 * DAY_S
