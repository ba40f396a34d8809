"""A whole pool under simulation: real coordinator, real SDK, virtual time, and all that can go wrong, from one seed.

Owners and devices work on a `LocalPool` through a network that loses, delays, repeats and breaks their calls. The
server dies at ledger writes and at other moments, ledgers fail, clocks jump, devices vanish. Every invariant of the
core is checked after every event, and what anybody was told is held against what is kept (`vennue.testing.witness`).
In the end nothing goes wrong any more, and every job must finish. The same seed gives the same history, step by step:

    python -m vennue.testing.simulate --seed 123 --verbose

With ``--leaves``, the pool has trees of leaves, which die as well (`vennue.testing.leaves`).
"""

import argparse
import functools
import hashlib
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from vennue.testing.leaves import LeafWorld, leaf_scenario
from vennue.testing.play import Run, SimulationFailed, play
from vennue.testing.scenario import scenario
from vennue.testing.world import World


def simulate(seed: int, *, verbose: bool = False) -> Run[World]:
    """Run the seed's scenario of a pool without leaves.

    Raises:
        SimulationFailed: with the complaints, the end of the history and the command that repeats it.
    """
    return play(scenario(seed), World, repeat=_command(seed), verbose=verbose)


def simulate_leaves(seed: int, *, verbose: bool = False) -> Run[LeafWorld]:
    """Run the seed's scenario of a pool with leaves.

    Raises:
        SimulationFailed: as `simulate`.
    """
    return play(leaf_scenario(seed), LeafWorld, repeat=_command(seed, "--leaves"), verbose=verbose)


def _command(seed: int, *more: str) -> str:
    return " ".join(["python -m vennue.testing.simulate --seed", str(seed), *more, "--verbose"])


def _attempt(seed: int, *, leaves: bool) -> tuple[str, str | None]:
    run = simulate_leaves if leaves else simulate
    try:
        return run(seed).fingerprint, None
    except SimulationFailed as failure:
        return "", str(failure)


def main(arguments: list[str] | None = None) -> int:
    """``python -m vennue.testing.simulate``: one seed, or many; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m vennue.testing.simulate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share them")
    parser.add_argument("--leaves", action="store_true", help="pools with leaves")
    parser.add_argument("--verbose", action="store_true", help="tell everything that happens")
    options = parser.parse_args(arguments)
    if options.seeds == 1:
        try:
            seed, verbose = options.seed, options.verbose
            run = simulate_leaves(seed, verbose=verbose) if options.leaves else simulate(seed, verbose=verbose)
        except SimulationFailed as failure:
            print(failure)  # noqa: T201 - a command
            return 1
        print(  # noqa: T201 - a command
            f"seed {options.seed}: {run.commits} rounds, {run.restarts} restarts, {sum(run.faults.values())} faults in "
            f"{run.virtual_s:.0f} s of virtual time; history {run.fingerprint}"
        )
        return 0
    return _many(range(options.seed, options.seed + options.seeds), options.processes, leaves=options.leaves)


def _many(seeds: range, processes: int, *, leaves: bool) -> int:
    began, failed, histories = time.monotonic(), 0, hashlib.sha256()
    with ProcessPoolExecutor(processes) as workers:
        attempts = workers.map(functools.partial(_attempt, leaves=leaves), seeds, chunksize=4)
        for number, (fingerprint, failure) in enumerate(attempts, 1):
            histories.update(fingerprint.encode())
            if failure is not None:
                failed += 1
                print(failure, end="\n\n")  # noqa: T201 - a command
            if number % 500 == 0:
                print(f"{number} seeds in {time.monotonic() - began:.0f} s, {failed} failed", flush=True)  # noqa: T201
    print(  # noqa: T201 - a command
        f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s, {failed} failed; "
        f"histories {histories.hexdigest()[:16]}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
