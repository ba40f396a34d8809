"""Runs the benchmarks: all of them, or those named. Prints a table and writes ``build/bench.json``.

A missed gate or a figure outside its range (``ranges.toml``) is shown, and is an error only with ``--strict``: machines
are noisy, and a reader decides. A benchmark that raises is an error always, but does not stop the others.
"""

import argparse
import difflib
import functools
import importlib
import json
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result, calibration_loop_ns

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "build" / "bench.json"

Benchmark = Callable[[], Iterable[Result]]


@dataclass(frozen=True, slots=True)
class Range:
    """Where a figure is expected, in iterations of the calibration loop."""

    low: float
    high: float

    def verdict(self, figure: float) -> str:
        """``"in range"``, or which side of it the figure lies on."""
        if figure < self.low:
            return f"{figure:.3g} < {self.low:g}"
        if figure > self.high:
            return f"{figure:.3g} > {self.high:g}"
        return "in range"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that the command line names; the exit code is 0 when none failed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of benchmarks; all when none is given")
    parser.add_argument("--strict", action="store_true", help="fail on a missed gate or a figure out of its range")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file has no width, and names cut at 80 say nothing
    benchmarks = discover()
    try:
        chosen = select(benchmarks, options.only)
    except LookupError as error:
        console.print(str(error), highlight=False)
        return 2

    start = time.monotonic()
    loop_ns = calibration_loop_ns()
    results: list[Result] = []
    failed: list[str] = []
    for name, wanted in chosen.items():
        console.print(f"{name} …", highlight=False)
        began = time.monotonic()
        try:
            for result in run(name, benchmarks[name]):
                if any(result.name == want or result.name.startswith(f"{want}/") for want in wanted):
                    results.append(result)
                    console.print(f"  {result.name}: {_figure(result.value)} {result.unit}", highlight=False)
        except Exception:  # noqa: BLE001 - one broken benchmark must not hide the others
            failed.append(name)
            console.print(traceback.format_exc(), style="red", markup=False, highlight=False)
        console.print(f"  {time.monotonic() - began:.1f} s", style="dim", highlight=False)

    ranges = load_ranges()
    console.print(table(results, ranges, loop_ns))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([result.record() for result in results], indent=2, ensure_ascii=False) + "\n")
    console.print(f"{len(results)} results in {time.monotonic() - start:.0f} s, written to build/bench.json")

    missed = [result.name for result in results if not result.passes]
    strayed = [result.name for result in results if _verdict(result, ranges, loop_ns) not in {"", "in range"}]
    for text, names in (("failed", failed), ("gate missed", missed), ("out of range", strayed)):
        if names:
            console.print(f"{text}: {', '.join(names)}", style="bold red", highlight=False)
    return 1 if failed or (options.strict and (missed or strayed)) else 0


def discover() -> dict[str, Benchmark]:
    """Every ``bench_<name>`` function of ``benchmarks/bench_*.py``, by name, in the order of files and definitions.

    A file that cannot be imported stands for itself, and fails when it is run.
    """
    found: dict[str, Benchmark] = {}
    for path in sorted(HERE.glob("bench_*.py")):
        try:
            module = importlib.import_module(f"benchmarks.{path.stem}")
        except ImportError as error:
            found[path.stem.removeprefix("bench_")] = functools.partial(_raise, error)
            continue
        for attribute, value in vars(module).items():
            if attribute.startswith("bench_") and callable(value) and value.__module__ == module.__name__:
                name = attribute.removeprefix("bench_")
                if name in found:
                    raise ValueError(f"two benchmarks are named {name!r}; the second is in {path.name}")
                found[name] = value
    return found


def _raise(error: ImportError) -> Iterable[Result]:
    raise error


def select(benchmarks: dict[str, Benchmark], names: list[str]) -> dict[str, list[str]]:
    """The benchmarks to run, each with the names of the results to keep.

    Without names, all but those that are too long to be run with the others: their functions say ``by_name_only``.

    Raises:
        LookupError: a name that is not there, with the nearest one that is.
    """
    if not names:
        return {name: [name] for name, each in benchmarks.items() if not getattr(each, "by_name_only", False)}
    chosen: dict[str, list[str]] = {}
    for name in names:
        function = name.partition("/")[0]
        if function not in benchmarks:
            near = difflib.get_close_matches(function, benchmarks, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LookupError(f"no benchmark is named {function!r}{hint} There are: {', '.join(sorted(benchmarks))}.")
        chosen.setdefault(function, []).append(name)
    return chosen


def run(name: str, benchmark: Benchmark) -> Iterator[Result]:
    """The benchmark's results as they come, each checked to bear its name."""
    for result in benchmark():
        if result.name != name and not result.name.startswith(f"{name}/"):
            raise ValueError(f"bench_{name} yields {result.name!r}, which is neither {name!r} nor '{name}/…'")
        yield result


def load_ranges(path: Path = HERE / "ranges.toml") -> dict[str, Range]:
    """The expected range of each result, by its name."""
    return {name: Range(**bounds) for name, bounds in tomllib.loads(path.read_text()).items()}


def table(results: Iterable[Result], ranges: dict[str, Range], loop_ns: float) -> Table:
    """The results as a reader wants them."""
    shown = Table(
        title=f"One iteration of the calibration loop: {loop_ns:.1f} ns", title_justify="left", box=SIMPLE_HEAD
    )
    shown.add_column("benchmark", overflow="fold")
    for heading in ("value", "gate", "baseline", "ratio"):
        shown.add_column(heading, justify="right")
    shown.add_column("unit")
    shown.add_column("")
    shown.add_column("range, in loops")
    for result in results:
        gates = [_figure(result.gate)] if result.gate is not None else []
        gates += [f"ratio {_figure(result.ratio_gate)}"] if result.ratio_gate is not None else []
        bound = "≥" if result.higher_is_better else "≤"
        shown.add_row(
            result.name,
            _figure(result.value),
            ", ".join(f"{bound} {gate}" for gate in gates),
            _figure(result.baseline),
            _figure(result.ratio),
            result.unit,
            ("[green]passes" if result.passes else "[bold red]MISSES") if gates else "",
            _verdict(result, ranges, loop_ns),
        )
    return shown


def _verdict(result: Result, ranges: dict[str, Range], loop_ns: float) -> str:
    expected = ranges.get(result.name)
    return "" if expected is None else expected.verdict(result.in_loops(loop_ns))


def _figure(value: float | None) -> str:
    """The value to three figures or more, with thin groups of thousands."""
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
