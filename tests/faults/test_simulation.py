"""The whole control plane in one process, in virtual time, under faults from a seed: no promise is broken.

What goes wrong, and what is checked, is told in `vennue.testing.simulate`. ``make soak`` runs ten thousand.
"""

import logging
import os
import subprocess
import sys

import pytest

from vennue.state.ledger import Batch
from vennue.testing.ledgers import WRITE_FAULTS, MemoryLedger
from vennue.testing.play import SimulationFailed, play
from vennue.testing.scenario import DevicePlan, JobPlan, Scenario
from vennue.testing.simulate import main, simulate
from vennue.testing.world import World

SEEDS = 100
MORE_SEEDS = 200


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_is_kept_under_faults(seed):
    simulate(seed)


@pytest.mark.slow_suite
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MORE_SEEDS, 20))
def test_every_promise_is_kept_under_further_faults(first):
    for seed in range(first, first + 20):
        simulate(seed)


@pytest.mark.slow_suite
@pytest.mark.parametrize("kind", [(), ("--leaves",)])
def test_the_same_seeds_give_the_same_histories_in_any_process(kind):
    command = [sys.executable, "-m", "vennue.testing.simulate", "--seeds", "8", *kind]
    told = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, capture_output=True, text=True
        ).stdout
        for hash_seed in ("1", "2")
    ]
    first, second = (one.rpartition("histories ")[2] for one in told)
    assert first == second != ""


def test_simulations_do_what_they_are_for():
    """On the average, each sees several rounds, a restart and dozens of faults of every kind."""
    runs = [simulate(seed) for seed in range(12)]
    assert sum(run.commits for run in runs) > 4 * len(runs)
    assert sum(run.restarts for run in runs) > len(runs)
    faults = {"drop", "delay", "duplicate", "replay", "disconnect", *WRITE_FAULTS}
    assert faults <= {fault for run in runs for fault in run.faults}


def test_what_is_logged_after_a_simulation_is_heard_again(caplog):
    simulate(1)  # in which the server warns of something
    logging.getLogger("vennue.control").warning("heard")
    assert "heard" in caplog.text


def forgets_keys(ledger, batch, save=MemoryLedger.save):
    """A ledger with a defect: it forgets which idempotency key made which job."""
    return save(ledger, Batch(jobs=batch.jobs, attempts=batch.attempts, commits=batch.commits, notes=batch.notes))


def test_a_broken_promise_is_told_with_the_command_that_repeats_it(monkeypatch, capsys):
    monkeypatch.setattr(MemoryLedger, "save", forgets_keys)
    for seed in range(SEEDS):
        try:
            simulate(seed)
        except SimulationFailed as failure:
            told = str(failure)
            break
    else:
        pytest.fail("nobody noticed")
    assert "the job of key" in told
    assert told.endswith(f"to repeat it: python -m vennue.testing.simulate --seed {seed} --verbose")
    assert main(["--seed", str(seed)]) == 1
    assert capsys.readouterr().out.strip() == told


# -- a crash at every write ------------------------------------------------------------------------------------------

CALM = Scenario(
    seed=0,
    policy="venn-sched",
    jobs=(
        JobPlan(key="driven", starts_at_s=0.0, spec={"name": "driven", "demand": 2, "rounds": 2, "lease_s": 60.0}),
        JobPlan(
            key="after it",
            starts_at_s=1.0,
            spec={"name": "after it", "demand": 1, "rounds": 1, "private_requirement": "device.samples >= 50"},
            is_managed=True,
            after=((0, "completed"),),
        ),
    ),
    devices=tuple(
        DevicePlan(name=f"d{number}", attributes={"ram_gb": 8}, private={"samples": 100}) for number in range(3)
    ),
)
WRITES = play(CALM, World).writes


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_r1_whatever_happens_at_a_write_of_the_ledger_every_promise_is_kept(write, fault):
    # The crash comes while all goes well, and so does the recovery from it.
    run = play(Scenario(**{**vars(CALM), "ledger_faults": ((write, fault),), "chaos_s": 60.0}), World)
    assert (run.commits, run.faults) == (3, {fault: 1})
