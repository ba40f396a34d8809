"""Experiments: what is refused before the work, what a failure or an interrupt leaves, and what processes change."""

import dataclasses
import os

import numpy as np
import pytest

from tests.unit.simulation.results import TINY, experiment, results, run_result
from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.plan import Plan
from vennue.policies import Policy, register
from vennue.simulation.experiment import Experiment, Failure, PolicyChoice, run_experiment, settings
from vennue.simulation.options import options
from vennue.simulation.result import RunResult


@register
class Raises(Policy):
    name = "test-raises"

    def plan(self, view):
        if view.now > 0:
            raise ValueError("seven devices")
        return Plan.ordered([])


class Dies(Experiment):
    """The process of seed 1 dies whenever it is begun."""

    def simulate(self, run, progress, stop):
        if run.seed == 1:
            os._exit(7)
        return super().simulate(run, progress, stop)


def test_a_policy_is_named_with_its_parameters_after_colons():
    assert PolicyChoice.parse("venn:tiers=2:epsilon=1") == PolicyChoice("venn", {"tiers": "2", "epsilon": "1"})


def test_a_policy_is_labelled_with_the_parameters_that_are_not_its_defaults():
    assert PolicyChoice.parse("venn:tiers=2:epsilon=0").label == "venn(tiers=2)"


def test_a_parameter_without_a_value_is_refused():
    with pytest.raises(InvalidInput, match="'tiers' in 'venn:tiers' is no PARAMETER=VALUE"):
        PolicyChoice.parse("venn:tiers")


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (["venm"], "did you mean 'venn"),
        (["venn:tier=2"], "did you mean 'tiers'"),
        (["venn:tiers=0"], "tiers"),
        (["fifo", "fifo"], "fifo is there twice"),
        ([], "none to run"),
    ],
)
def test_policies_that_cannot_be_compared_are_refused(policies, said):
    with pytest.raises(InvalidInput, match=said):
        experiment(*policies).check()


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), (2**32,)])
def test_seeds_are_distinct_and_fit_the_generators(seeds):
    with pytest.raises(InvalidInput) as caught:
        experiment("fifo", seeds=seeds).check()
    assert caught.value.field == "seeds"


def test_a_requirement_that_no_device_meets_is_named_before_the_work():
    workload = TINY.replace("cpu_score: 7", "cpu_score: 70000")
    with pytest.raises(Infeasible, match=r"no device meets 'device\.cpu_score >= 70000'"):
        experiment("fifo", workload=workload).check()


def test_a_horizon_in_which_no_job_can_end_is_named_before_the_work():
    late = TINY.replace("gap_s: 300", "gap_s: 300, first_s: 100")
    with pytest.raises(InvalidInput) as caught:
        experiment("fifo", workload=late, options=options("faithful", horizon_s=50)).check()
    assert caught.value.field == "horizon_s"


def test_a_trace_that_ends_a_session_before_it_starts_is_named_with_its_line(tmp_path):
    trace = tmp_path / "sessions.csv"
    trace.write_text("device,start_s,end_s\n0,0,50\n1,70,60\n")
    with pytest.raises(InvalidInput, match=r"sessions\.csv, line 3: the session ends at 60 s, before it starts"):
        experiment("fifo", trace=str(trace)).check()


def test_settings_are_name_and_value():
    assert settings(["poll_interval_s=30", "lease_s = none"]) == {"poll_interval_s": "30", "lease_s": "none"}


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(InvalidInput, match="'poll' is no NAME=VALUE"):
        settings(["poll"])


def test_runs_come_back_by_policy_and_seed():
    found = run_experiment(experiment("srsf", "fifo", seeds=(3, 1)))
    assert [(run.policy, run.seed) for run in found.runs] == [("srsf", 3), ("srsf", 1), ("fifo", 3), ("fifo", 1)]


def test_policies_of_one_seed_meet_the_same_jobs_and_devices():
    first, second = run_experiment(experiment("random-order", "fifo", seeds=(5,), options=options("faithful"))).runs
    hours = min(len(first.usage["sessions"]), len(second.usage["sessions"]))
    assert np.array_equal(first.jobs["arrival_s"], second.jobs["arrival_s"])
    assert np.array_equal(first.usage["sessions"][:hours], second.usage["sessions"][:hours])


def test_a_policy_that_raises_fails_alone_with_its_reason():
    found = run_experiment(experiment("fifo", "test-raises", "srsf"))
    assert [run.policy for run in found.runs] == ["fifo", "srsf"]
    (failure,) = found.failures
    assert (failure.policy, failure.seed) == ("test-raises", 0)
    assert "seven devices" in failure.reason


def test_progress_never_falls_and_ends_at_the_whole():
    told = []
    run_experiment(experiment("fifo", "srsf"), told=lambda fraction, ended: told.append((fraction, ended)))
    assert told == sorted(told)
    assert told[-1] == (1.0, 2)


def test_an_experiment_that_is_stopped_keeps_what_there_is_and_says_what_is_missing():
    looks = iter([False] * 5)
    asked = experiment("fifo", "srsf", "las")
    found = run_experiment(asked, stop=lambda: next(looks, True))
    assert found.stopped
    assert found.missing == 2
    (partial,) = found.runs
    assert partial.ended == "stopped"


def test_processes_change_no_result():
    asked = experiment("fifo", "random-order", seeds=(0, 1))
    here = run_experiment(asked)
    there = run_experiment(asked, workers=2)
    assert not there.failures
    for one, other in zip(here.runs, there.runs, strict=True):
        assert (one.policy, one.seed, one.counters) == (other.policy, other.seed, other.counters)
        assert np.array_equal(one.jobs["ended_s"], other.jobs["ended_s"])


def test_a_policy_that_a_module_registers_is_known_in_processes_too():
    (failure, other) = run_experiment(experiment("test-raises", seeds=(0, 1)), workers=2).failures
    assert "seven devices" in failure.reason
    assert "seven devices" in other.reason


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_in_a_file_takes_part_wherever_runs_are_made(tmp_path, workers):
    path = tmp_path / "policy.py"
    path.write_text(
        f"from vennue.policies.fifo import Fifo\nclass Mine(Fifo):\n    name = 'test-from-a-file-{workers}'\n"
    )
    asked = experiment("fifo", seeds=(0, 1))
    with_file = dataclasses.replace(
        asked,
        policies=(*asked.policies, PolicyChoice(f"test-from-a-file-{workers}")),
        policy_files=(str(path),),
    )
    found = run_experiment(with_file, workers=workers)
    assert not found.failures
    fifo, mine = found.runs[:2], found.runs[2:]
    assert [run.jobs["ended_s"].tolist() for run in mine] == [run.jobs["ended_s"].tolist() for run in fifo]


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_a_policy_that_raises_is_told_of_with_its_file_and_line(tmp_path, engine):
    path = tmp_path / "policy.py"
    path.write_text(
        "from vennue.policies import Policy\n\nclass Mine(Policy):\n"
        f"    name = 'test-from-a-file-{engine}'\n\n"
        "    def order(self, view):\n        return sorted(view.requests, key=lambda request: request.waiting)\n"
    )
    asked = dataclasses.replace(
        experiment(), policies=(PolicyChoice(f"test-from-a-file-{engine}"),), policy_files=(str(path),), engine=engine
    )
    (failure,) = run_experiment(asked).failures
    assert "AttributeError in policy.py, line 7: 'Request' object has no attribute 'waiting'" in failure.reason


def test_a_process_that_dies_takes_no_other_run_with_it():
    asked = experiment("fifo", seeds=(0, 1, 2))
    dying = Dies(**{name: getattr(asked, name) for name in Experiment.__dataclass_fields__})
    found = run_experiment(dying, workers=2)
    assert [run.seed for run in found.runs] == [0, 2]
    (failure,) = found.failures
    assert (failure.policy, failure.seed) == ("fifo", 1)
    assert "killed" in failure.reason


def test_a_cluster_without_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"vennue\[ray\]"):
        run_experiment(experiment("fifo"), cluster=True)


def test_every_run_is_a_result_or_a_failure_or_was_missing():
    found = run_experiment(experiment("fifo", "test-raises"))
    assert [type(entry) for entry in (*found.runs, *found.failures)] == [RunResult, Failure]


def test_results_show_what_they_are_of_instead_of_their_columns():
    made = results(run_result("fifo", jct_s=(100.0, None), ended="horizon"), run_result("venn", seed=1))
    assert repr(made.runs[0]) == "<RunResult of 'tiny' under fifo, seed 0: horizon at 1000 s, 1 of 2 jobs completed>"
    assert repr(made) == "<Results of 'tiny' under fifo, venn, 2 seeds: 2 runs, 0 failed, 0 missing>"
