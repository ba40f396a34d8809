"""A managed job from a file to its model: the owner submits, closes the laptop, and pulls what has been learned."""

import json
import threading

import numpy as np
import pytest

import vennue
from tests.e2e.calls import until
from tests.e2e.server_process import ServerProcess
from vennue.cli import run
from vennue.cli.terminal import ExitCode
from vennue.tensors.model import load, save

JOB = """\
name: count
demand: 2
rounds: {rounds}
strategy: fedavgm
strategy_options: {{momentum: 0.5}}
model: start.safetensors
config: {{step: 1.0}}
"""


@pytest.fixture
def say(capsys):
    """Runs a command line in this process: its exit code and its JSON."""

    def ask(server, *arguments):
        capsys.readouterr()
        code = run([*arguments, "--server", server.url, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "start.safetensors").write_bytes(save({"w": np.zeros(2, np.float32)}))

    def write(rounds):
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(rounds=rounds))
        return str(path)

    return write


class Devices:
    """Two devices that add a step to the model, until they are stopped."""

    def __init__(self, url):
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(url,)) for _ in range(2)]

    def _serve(self, url):
        with vennue.Device(url) as device:
            for task in device.tasks(stop=self._stop):
                task.report({"w": task.model["w"] + np.float32(task.config["step"])}, examples=1, metrics={"loss": 1.0})

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def once(say, server, id, condition):
    """The job, once a condition holds."""
    views = []

    def holds():
        views.append(say(server, "show", id)[1])
        return condition(views[-1])

    until(holds)
    return views[-1]


def test_a_managed_job_runs_to_its_end_by_its_strategy_and_its_model_is_pulled(say, job_file, tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        code, submitted = say(server, "submit", job_file(rounds=3))
        assert code == ExitCode.OK
        out = tmp_path / "model.safetensors"
        code, refused = say(server, "pull", submitted["id"], "-o", str(out))
        assert (code, refused["error"]["code"]) == (ExitCode.FAILED, "conflict")
        with Devices(server.url):
            view = once(say, server, submitted["id"], lambda view: view["state"] == "completed")
        assert view["committed_rounds"] == 3
        assert say(server, "pull", submitted["id"], "-o", str(out))[0] == ExitCode.OK
        # Momentum 0.5 over changes of 1: steps of 1, 1.5 and 1.75.
        assert load(out.read_bytes())["w"].tolist() == [4.25, 4.25]
        assert say(server, "pull", submitted["id"], "--round", "2", "-o", str(out))[0] == ExitCode.OK
        assert load(out.read_bytes())["w"].tolist() == [2.5, 2.5]


def test_a_killed_server_goes_on_with_it_and_its_strategy_remembers(say, job_file, tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        id = say(server, "submit", job_file(rounds=6))[1]["id"]
        with Devices(server.url):
            once(say, server, id, lambda view: view["committed_rounds"] >= 2)
            port = server.port
            server.kill()
            with ServerProcess(tmp_path / "data", port=port) as again:
                view = once(say, again, id, lambda view: view["state"] == "completed")
                out = tmp_path / "model.safetensors"
                say(again, "pull", id, "-o", str(out))
    assert view["committed_rounds"] == 6
    momenta = [2 - 0.5**k for k in range(6)]
    assert load(out.read_bytes())["w"].tolist() == pytest.approx([sum(momenta)] * 2)
