"""The report stands by itself, says what is partial, escapes what it is given, and draws what is there."""

import math
import re
from html.parser import HTMLParser

import msgspec
import pytest

from tests.unit.simulation.results import TINY, experiment, results, run_result
from vennue.simulation.experiment import Failure, run_experiment
from vennue.simulation.options import Options, options
from vennue.simulation.report import render, svg
from vennue.simulation.report.euler import lay_out

VENN_PAPER = {0b1111: 43.5, 0b0001: 31.8, 0b0101: 12.9, 0b0011: 8.1, 0b0000: 3.7}
"""Shares of the regions of general (bit 0), compute, memory and high performance (bit 3) among 959 phone models."""


class Page(HTMLParser):
    """What a page consists of; a tag that is closed in the wrong place is an error."""

    VOID = ("meta", "input", "br", "!doctype")

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.attributes = []
        self.text = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def simulated():
    workload = TINY.replace("gap_s: 300", "gap_s: 9000")  # so that there are hours to show
    asked = experiment("random-order", "fifo", "venn", seeds=(0, 1), workload=workload, options=options("faithful"))
    return Page(render(run_experiment(asked), command="vennue simulate tiny.yaml"))


def test_a_page_has_all_its_figures(simulated):
    assert simulated.tags.count("figure") == 9
    titles = re.findall(r"Figure (\d)\.", simulated.said)
    assert titles == [str(number) for number in range(1, 10)]


def test_a_page_needs_nothing_from_elsewhere(simulated):
    assert not {"script", "link", "img", "iframe", "object"} & set(simulated.tags)
    assert not [value for name, value in simulated.attributes if name in {"src", "href", "xlink:href"}]
    assert "url(" not in simulated.said


def test_a_page_says_how_it_was_made(simulated):
    assert "vennue simulate tiny.yaml" in simulated.said
    for option in Options.__struct_fields__:
        assert option in simulated.said
    assert "epsilon = 0" in simulated.said


def test_figures_are_described_to_those_who_cannot_see_them(simulated):
    described = [value for name, value in simulated.attributes if name == "aria-label"]
    assert len(described) >= 9
    assert all(described)


def test_the_headline_is_the_best_policys_speedup_with_its_interval():
    runs = [run_result("fifo", seed, jct_s=(200 + seed, 400)) for seed in range(3)]
    runs += [run_result("venn", seed, jct_s=(100, 200)) for seed in range(3)]
    said = Page(render(results(*runs))).said
    assert "Under venn , jobs complete 2.00 times as soon as under fifo, on average over 3 seeds" in said


def test_a_difference_that_may_be_chance_is_called_so():
    runs = [run_result("fifo", seed, jct_s=(200, 400)) for seed in range(2)]
    runs += [run_result("venn", seed, jct_s=(100 + 250 * seed, 200)) for seed in range(2)]
    assert "2 seeds cannot tell that from chance" in Page(render(results(*runs))).said


def test_an_interrupted_experiment_says_so():
    said = Page(render(results(run_result(ended="stopped"), missing=4))).said
    assert "interrupted: 1 of its 1 runs are partial, and 4 have no result" in said


def test_unfinished_jobs_mark_their_policy_and_every_figure_of_its_times():
    said = Page(render(results(run_result("fifo"), run_result("venn", jct_s=(100, None))))).said
    assert "venn 1 of 2" in said
    assert "lower bounds" in said
    assert said.count("≥") >= 4


def test_a_failed_run_is_told_with_its_reason():
    said = Page(render(results(run_result(), failures=[Failure("venn", 3, "out of memory")]))).said
    assert "venn, seed 3, failed and is left out: out of memory" in said


def test_names_are_shown_and_not_interpreted():
    run = run_result()
    run.jobs["name"][0] = "<b>&"
    hostile = results(run)
    workload = msgspec.structs.replace(hostile.experiment.workload, name="<script>alert(1)</script>")
    object.__setattr__(hostile.experiment, "workload", workload)
    page = Page(render(hostile))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.said


def test_a_run_in_which_nothing_happened_yet_can_be_shown():
    empty = {name: column[:0] for name, column in run_result().attempts.items()}
    usage = {name: column[:1] * 0 for name, column in run_result().usage.items()}
    run = run_result(jct_s=(None, None), end_s=0.0, attempts=empty, usage=usage, ended="stopped")
    for column in ("committed", "bound", "used", "aborted", "straggling", "failed", "scheduling_delay_s"):
        run.jobs[column][:] = 0
    run.regions["check_ins"][:] = 0
    assert Page(render(results(run))).tags.count("figure") >= 2


def test_many_policies_have_colours_or_dashes_of_their_own():
    kinds = [svg.series(index) for index in range(17)]
    assert len(set(kinds)) == 17


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.93, 2.1, [1, 1.2, 1.4, 1.6, 1.8, 2.0]), (0, 0.04, [0, 0.01, 0.02, 0.03, 0.04])],
)
def test_ticks_are_round_and_within_their_axis(low, high, ticks):
    assert svg.nice_ticks(low, high, 6) == pytest.approx(ticks)


def test_a_short_logarithmic_axis_has_ticks_between_powers_of_ten():
    assert svg.log_ticks(3, 60) == pytest.approx([5, 10, 20, 50])
    assert svg.log_ticks(1, 1000) == pytest.approx([1, 10, 100, 1000])


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1.0, "1"), (12.345, "12.3"), (0.01234, "0.0123"), (31_870, "31\u2009870"), (math.nan, "–")],
)
def test_figures_have_three_digits(value, said):
    assert svg.short(value) == said


@pytest.mark.parametrize(("seconds", "unit"), [(100, "s"), (1000, "min"), (50_000, "h"), (900_000, "days")])
def test_times_are_told_in_the_unit_that_reads_best(seconds, unit):
    assert svg.time_unit(seconds)[0] == unit


def test_the_papers_classes_are_three_circles_and_a_common_part():
    layout = lay_out(VENN_PAPER, 4)
    assert layout is not None
    assert layout.derived == {3: (1, 2)}  # high performance is compute-rich and memory-rich
    assert [circle.sets for circle in layout.circles] == [(0,), (2,), (1,)]
    areas = [math.pi * circle.radius**2 for circle in layout.circles]
    assert areas == pytest.approx([96.3, 56.4, 51.6])
    assert layout.error < 0.01


def test_the_common_part_of_circles_has_the_area_of_the_region():
    layout = lay_out({0b01: 30.0, 0b10: 20.0, 0b11: 10.0}, 2)
    assert layout is not None
    large, small = layout.circles
    distance = math.hypot(large.x - small.x, large.y - small.y)
    # By the formula of a lens, for circles of areas 40 and 30 that share 10.
    r, s = math.sqrt(40 / math.pi), math.sqrt(30 / math.pi)
    a = (distance**2 + r**2 - s**2) / (2 * distance)
    lens = r**2 * math.acos(a / r) - a * math.sqrt(r**2 - a**2)
    lens += s**2 * math.acos((distance - a) / s) - (distance - a) * math.sqrt(s**2 - (distance - a) ** 2)
    assert lens == pytest.approx(10.0, rel=0.02)


def test_equal_sets_are_one_circle_and_disjoint_ones_lie_apart():
    layout = lay_out({0b011: 10.0, 0b100: 10.0}, 3)
    assert layout is not None
    one, other = layout.circles
    assert {one.sets, other.sets} == {(0, 1), (2,)}
    assert math.hypot(one.x - other.x, one.y - other.y) >= one.radius + other.radius


def test_what_circles_cannot_show_is_not_drawn_with_them():
    assert lay_out({1 << bit: 1.0 for bit in range(6)}, 6) is None
    assert lay_out({0: 5.0}, 1) is None
