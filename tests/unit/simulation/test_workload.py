"""Workloads: the nine of the paper draw exactly the published jobs, and a wrong file is named by field."""

import collections

import pytest

from vennue.core.errors import Infeasible, InvalidInput, InvalidRequirement
from vennue.simulation import workload
from vennue.simulation.traces import CLASSES, Capacity, DevicePopulation, DeviceTable, phone_population


def configs(name, seed=None):
    return [job.config for job in workload.draw(workload.load(name), seed)]


def test_nine_workloads_ship():
    assert workload.names() == ["compute", "even", "general", "high", "large", "low", "memory", "resource", "small"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("even", [6, 13, 4, 28, 5, 13, 32, 33, 16, 28, 9, 20]),
        ("low", [5, 12, 4, 17, 5, 12, 18, 18]),
        ("high", [11, 22, 2, 30, 3, 22]),
    ],
)
def test_a_workload_begins_with_the_published_configurations(name, first):
    assert configs(name)[: len(first)] == first


@pytest.mark.parametrize(
    ("name", "millions"), [("even", 29.91), ("small", 14.51), ("large", 46.60), ("low", 6.62), ("high", 38.08)]
)
def test_a_workload_asks_for_the_published_device_rounds(name, millions):
    jobs = workload.draw(workload.load(name))
    assert sum(job.device_rounds for job in jobs) / 1e6 == pytest.approx(millions, abs=0.005)


def test_even_arrives_within_a_day_as_published():
    jobs = workload.draw(workload.load("even"))
    assert len(jobs) == 50
    assert jobs[0].arrival_s == 3600
    assert jobs[1].arrival_s - jobs[0].arrival_s == pytest.approx(2655.782, abs=0.001)
    assert jobs[-1].arrival_s / 3600 == pytest.approx(23.48, abs=0.005)
    assert sum(job.spec.rounds or 0 for job in jobs) == pytest.approx(81_000, rel=0.01)


def test_even_jobs_ask_for_the_four_classes_in_turn():
    jobs = workload.draw(workload.load("even"))
    assert [job.category for job in jobs[:5]] == ["general", "compute", "memory", "high_performance", "general"]
    assert [jobs[k].spec.requirement for k in range(4)] == list(CLASSES.values())


@pytest.mark.parametrize(
    ("name", "category"),
    [("general", "general"), ("compute", "compute"), ("memory", "memory"), ("resource", "high_performance")],
)
def test_seven_in_ten_jobs_of_a_biased_workload_ask_for_its_class(name, category):
    counts = collections.Counter(job.category for seed in range(40) for job in workload.draw(workload.load(name), seed))
    # 2000 draws: a standard deviation of 1 %.
    assert {key: count / 2000 for key, count in counts.items()} == pytest.approx(
        {key: 0.7 if key == category else 0.1 for key in CLASSES}, abs=0.03
    )


def test_the_bias_is_drawn_last_so_it_moves_neither_arrivals_nor_configurations():
    biased = workload.draw(workload.load("resource"), seed=10)
    even = workload.draw(workload.load("even"), seed=10)
    assert [(job.config, job.arrival_s) for job in biased] == [(job.config, job.arrival_s) for job in even]


def test_a_job_of_the_paper_has_its_demand_rounds_and_deadline():
    job = workload.draw(workload.load("even"))[3]
    spec = job.spec
    # Configuration 28: 500 devices, 1800 rounds, 1000 s.
    assert (job.config, spec.demand, spec.rounds, spec.deadline_s, job.workload_s) == (28, 500, 1800, 1000, 30)
    assert (spec.mode, spec.min_fraction, spec.overcommit) == ("sync", 0.8, 1.0)


def test_the_same_seed_draws_the_same_jobs_and_another_seed_others():
    assert workload.draw(workload.load("even"), 3) == workload.draw(workload.load("even"), 3)
    assert configs("even", 3) != configs("even", 4)


def test_scaling_divides_rounds_and_arrivals_so_that_demand_per_second_stays():
    whole = workload.draw(workload.load("even"))
    eighth = workload.draw(workload.load("even").scaled(8))
    assert [job.arrival_s * 8 for job in eighth] == pytest.approx([job.arrival_s for job in whole])
    assert [job.spec.rounds for job in eighth[:3]] == [375, 125, 125]
    assert [job.spec.demand for job in eighth] == [job.spec.demand for job in whole]
    assert sum(j.device_rounds for j in eighth) * 8 == pytest.approx(sum(j.device_rounds for j in whole), rel=0.002)


def test_scaling_leaves_every_job_a_round():
    assert {job.spec.rounds for job in workload.draw(workload.load("even").scaled(1e9))} == {1}


LISTED = """
name: mine
classes:
  big: {ram_gb: 8}
  any: "true"
arrivals: {kind: list, at_s: [0, 5.5, 60]}
jobs:
  - {demand: 10, rounds: 3, class: big, deadline_s: 300}
  - {demand: 20, rounds: 4, requirement: 'device.android >= 11', mode: async, buffer_size: 5, workload_s: 12}
  - {name: last, demand: 30, rounds: 5, class: any, overcommit: 1.3, min_fraction: 0.9, deadline_s: 60, arrival_s: 7}
"""


def test_listed_jobs_keep_what_they_say():
    first, second, last = workload.draw(workload.parse(LISTED))
    assert (first.spec.name, first.spec.requirement, first.arrival_s) == ("job-1", "device.ram_gb >= 8", 0)
    assert (second.spec.requirement, second.spec.mode, second.workload_s, second.arrival_s) == (
        "device.android >= 11", "async", 12, 5.5,
    )  # fmt: skip
    assert second.device_rounds == 4 * 5
    assert (last.spec.name, last.spec.overcommit, last.spec.min_fraction, last.arrival_s) == ("last-3", 1.3, 0.9, 7)
    assert last.spec.requirement == "true"


def test_a_counted_job_is_so_many_jobs():
    text = "name: x\narrivals: {kind: fixed, first_s: 5, gap_s: 10}\njobs: [{demand: 1, rounds: 2, count: 3}]"
    assert [job.arrival_s for job in workload.draw(workload.parse(text))] == [5, 15, 25]


def test_a_mixture_can_bring_its_own_catalogue_and_weights():
    text = """
    name: x
    mixture:
      jobs: 100
      catalogue: [{demand: 1, rounds: 2}, {demand: 2, rounds: 2}, {demand: 3, rounds: 2}]
      configs: [1, 3]
      config_weights: [1, 0]
    """
    jobs = workload.draw(workload.parse(text))
    assert {(job.config, job.spec.demand, job.spec.requirement) for job in jobs} == {(1, 1, "true")}


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"'evn' is neither a file nor one of .* \(did you mean 'even'\?\)"):
        workload.load("evn")


def test_a_workload_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(LISTED)
    assert workload.load(str(path)).name == "mine"


JOB = "jobs: [{demand: 1, rounds: 2}]\n"


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("name: [", "workload", "is not YAML"),
        ("hello", "workload", "Expected `object`, got `str`"),
        ("name: x\n", "jobs", "needs either jobs or a mixture"),
        ("name: x\nmixture: {jobs: 2}\n" + JOB, "jobs", "needs either jobs or a mixture"),
        ("name: x\nspeed: 3\n" + JOB, "workload", "unknown field `speed`"),
        ("name: x\njobs: [{demand: many, rounds: 2}]", "jobs[0].demand", "Expected `int`, got `str`"),
        ("name: x\njobs: [{demand: 1}]", "jobs[0].rounds", "a simulated job must end"),
        ("name: x\njobs: [{demand: 0, rounds: 2}]", "jobs[0].demand", "must be 1 to"),
        ("name: x\njobs: [{demand: 1, rounds: 2, deadline_s: 0}]", "jobs[0].deadline_s", "no device can answer"),
        ("name: x\njobs: [{demand: 1, rounds: 2, min_fraction: 2}]", "jobs[0].min_fraction", "at most 1"),
        ("name: x\njobs: [{demand: 1, rounds: 2, min_fraction: 0.5}]", "jobs[0].min_fraction", "with a deadline"),
        ("name: x\njobs: [{demand: 1, rounds: 2, mode: async}]", "jobs[0].buffer_size", "needs at least 1"),
        ("name: x\njobs: [{demand: 1, rounds: 2, class: big}]", "jobs[0].class", "unknown class 'big'"),
        ("name: x\nclasses: {bigger: 'true'}\njobs: [{demand: 1, rounds: 2, class: bigge}]", "jobs[0].class", "bigger"),
        (
            "name: x\nclasses: {big: 'true'}\njobs: [{demand: 1, rounds: 2, class: big, requirement: 'false'}]",
            "jobs[0].requirement", "has a class already",
        ),
        ("name: x\njobs: [{demand: 1, rounds: 2, requirement: 'device.ram_gb >='}]", "jobs[0].requirement", "x"),
        ("name: x\nclasses: {big: 'device.ram_gb >='}\n" + JOB, "classes.big", "x"),
        ("name: x\narrivals: {kind: list, at_s: [1, 2]}\n" + JOB, "arrivals.at_s", "2 arrivals for 1 jobs"),
        ("name: x\narrivals: {kind: list, at_s: [-1]}\n" + JOB, "arrivals.at_s[0]", ">= 0"),
        ("name: x\narrivals: {kind: exponential, mean_gap_s: 0}\n" + JOB, "arrivals.mean_gap_s", "> 0"),
        ("name: x\narrivals: {kind: poisson}\n" + JOB, "arrivals.kind", "poisson"),
        ("name: x\nscale: 0\n" + JOB, "scale", "> 0"),
        ("name: x\nmixture: {jobs: 0}", "mixture.jobs", ">= 1"),
        ("name: x\nmixture: {jobs: 2, catalogue: mine}", "mixture.catalogue", "unknown catalogue 'mine'"),
        ("name: x\nmixture: {jobs: 2, configs: [34]}", "mixture.configs", "[34] is not among the entries 1 to 33"),
        ("name: x\nmixture: {jobs: 2, configs: []}", "mixture.configs", "is not among"),
        ("name: x\nmixture: {jobs: 2, configs: [1], config_weights: [0]}", "mixture.config_weights", "not all 0"),
        ("name: x\nmixture: {jobs: 2, configs: [1], config_weights: [1, 2]}", "mixture.config_weights", "for each"),
        ("name: x\nmixture: {jobs: 2, class_weights: {big: 1}}", "mixture.class_weights", "unknown class 'big'"),
        (
            "name: x\nclasses: {big: 'true'}\nmixture: {jobs: 2, class_weights: {big: 0}}",
            "mixture.class_weights", "above 0",
        ),
    ],
)  # fmt: skip
def test_a_workload_without_meaning_is_refused_by_field(text, field, said):
    with pytest.raises(InvalidInput) as caught:
        workload.parse(text, "x.yaml")
    assert caught.value.field == field
    assert said in caught.value.message
    assert caught.value.fix or isinstance(caught.value, InvalidRequirement)


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text("#" * (5 << 20))
    with pytest.raises(InvalidInput, match="larger than 4 MiB"):
        workload.load(str(path))


def test_every_shipped_workload_can_run_on_the_shipped_phones():
    for name in workload.names():
        workload.check(workload.load(name), phone_population())


def test_a_requirement_that_no_device_meets_is_refused_before_the_run():
    text = "name: x\nclasses: {huge: {ram_gb: 4096}}\njobs: [{demand: 1, rounds: 2, class: huge}]"
    with pytest.raises(Infeasible, match=r"classes\.huge: no device meets 'device.ram_gb >= 4096'"):
        workload.check(workload.parse(text), phone_population())


def test_devices_without_weight_do_not_count():
    population = DevicePopulation(DeviceTable({"ram_gb": [4.0, 16.0]}), Capacity.fedscale(), weights=[1, 0])
    text = "name: x\njobs: [{demand: 1, rounds: 2, requirement: device.ram_gb > 8}]"
    with pytest.raises(Infeasible, match=r"jobs\[0\]\.requirement"):
        workload.check(workload.parse(text), population)


def test_an_attribute_that_devices_lack_is_named():
    text = "name: x\njobs: [{demand: 1, rounds: 2, requirement: device.gpu_gb > 8}]"
    with pytest.raises(InvalidInput) as caught:
        workload.check(workload.parse(text), phone_population())
    assert caught.value.field == "jobs[0].requirement"
    assert "gpu_gb" in str(caught.value)
