"""The benchmarks' frame: gates, ratios, calibration, and the runner's choice of what to run."""

import json

import pytest

from benchmarks import __main__ as runner
from benchmarks.harness import Result


def test_a_rate_passes_when_it_reaches_its_gate():
    assert Result(name="bind", value=200_000, unit="/s", gate=200_000).passes
    assert not Result(name="bind", value=199_999, unit="/s", gate=200_000).passes


def test_a_duration_passes_when_it_stays_at_or_below_its_gate():
    assert Result(name="plan", value=1.0, unit="ms", gate=1.0, higher_is_better=False).passes
    assert not Result(name="plan", value=1.1, unit="ms", gate=1.0, higher_is_better=False).passes


def test_a_ratio_gate_can_fail_while_the_value_passes():
    result = Result(name="check_in", value=11_000, unit="/s", gate=10_000, baseline=22_000, ratio_gate=0.6)
    assert result.ratio == 0.5
    assert not result.passes


def test_a_figure_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        Result(name="bind", value=float("nan"), unit="/s")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (2.0, "ms", 50_000.0),  # 2 000 000 ns of a loop of 40 ns
        (250_000.0, "/s", 0.01),  # one every 4 000 ns: a hundredth per iteration
        (2.0, "GB/s", 80.0),  # two bytes per ns
        (7.0, "MB", 7.0),  # no time in it
    ],
)
def test_figures_are_stated_in_iterations_of_the_calibration_loop(value, unit, expected):
    assert Result(name="x", value=value, unit=unit).in_loops(40.0) == pytest.approx(expected)


def test_a_record_holds_exactly_the_agreed_fields():
    record = Result(name="fold", value=3.0, unit="GB/s", gate=2.0, baseline=6.0).record()
    assert record == {
        "name": "fold",
        "value": 3.0,
        "unit": "GB/s",
        "gate": 2.0,
        "passes": True,
        "baseline": 6.0,
        "ratio": 0.5,
    }


def test_the_name_of_a_variant_selects_its_benchmark_and_keeps_only_that_variant():
    assert runner.select({"fold": list, "bind": list}, ["fold/float16"]) == {"fold": ["fold/float16"]}


def test_an_unknown_benchmark_is_answered_with_the_nearest_one():
    with pytest.raises(LookupError, match="did you mean 'bind'"):
        runner.select({"bind": list}, ["bnd"])


def test_a_result_must_bear_its_benchmarks_name():
    with pytest.raises(ValueError, match="bench_fold yields 'folding'"):
        list(runner.run("fold", lambda: [Result(name="folding", value=1.0, unit="s")]))


def test_a_run_writes_its_results_and_a_missed_gate_fails_only_a_strict_one(tmp_path, monkeypatch, capsys):
    slow = Result(name="bind", value=1.0, unit="/s", gate=2.0)
    monkeypatch.setattr(runner, "discover", lambda: {"bind": lambda: [slow]})
    monkeypatch.setattr(runner, "OUTPUT", tmp_path / "bench.json")
    monkeypatch.setattr(runner, "calibration_loop_ns", lambda: 40.0)
    assert runner.main([]) == 0
    assert runner.main(["--strict"]) == 1
    assert json.loads((tmp_path / "bench.json").read_text()) == [slow.record()]
    assert "gate missed: bind" in capsys.readouterr().out


def test_a_benchmark_that_raises_fails_the_run_but_not_the_others(tmp_path, monkeypatch, capsys):
    def broken():
        raise OSError("no such device")

    fine = Result(name="fine", value=1.0, unit="s")
    monkeypatch.setattr(runner, "discover", lambda: {"broken": broken, "fine": lambda: [fine]})
    monkeypatch.setattr(runner, "OUTPUT", tmp_path / "bench.json")
    monkeypatch.setattr(runner, "calibration_loop_ns", lambda: 40.0)
    assert runner.main([]) == 1
    assert json.loads((tmp_path / "bench.json").read_text()) == [fine.record()]
    assert "failed: broken" in capsys.readouterr().out


def test_every_expected_range_is_of_a_benchmark_that_exists():
    assert {name.partition("/")[0] for name in runner.load_ranges()} <= runner.discover().keys()
