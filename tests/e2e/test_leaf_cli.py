"""A root and a leaf, started as a user starts them, with a device that knows only the leaf."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import numpy as np
import pytest

import vennue
from tests.e2e.server_process import FAST
from vennue.cli import run

VENNUE = Path(sys.executable).with_name("vennue")


class Served:
    """A server that the command line has started."""

    def __init__(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VENNUE_")}
        self.process = subprocess.Popen(
            [VENNUE, "serve", "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | FAST,
        )
        assert self.process.stdout is not None
        document = ""
        while not document.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, f"vennue serve {arguments} ended"
            document += line
        self.started = json.loads(document)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=250)
        assert self.process.returncode == 0


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret of thirty-two letters..\n")
    return str(path)


def train_once(url: str) -> None:
    with vennue.Device(url, device_id="d") as device:
        for task in device.tasks():
            assert task.report({"w": np.full(2, 3.0, np.float32)}, examples=5)
            return


def test_a_device_trains_through_a_leaf_that_flags_have_started(tmp_path, secret):
    at_root, at_leaf = str(tmp_path / "root"), str(tmp_path / "leaf")
    with Served("--data-dir", at_root, "--leaf-key-file", secret) as root:
        url = root.started["url"]
        flags = ("--role", "leaf", "--root", url, "--leaf-key-file", secret, "--data-dir", at_leaf)
        with Served(*flags) as leaf:
            assert (leaf.started["role"], leaf.started["root"]) == ("leaf", url)
            training = threading.Thread(target=train_once, args=(leaf.started["url"],))
            training.start()
            with vennue.Job(url, name="mean", demand=1, rounds=1) as job:
                for turn in job.rounds():
                    assert turn.run({"w": np.zeros(2, np.float32)})["w"].tolist() == [3.0, 3.0]
            training.join()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--role", "leaf"], "the root's address"),
        (["--role", "leaf", "--root", "http://localhost:1"], "the root's secret for leaves"),
        (["--role", "leaf", "--root", "localhost:1"], "the root's address"),
        (["--root", "http://localhost:1"], "VENNUE_ROLE=leaf"),
        (["--leaf-key-file", "missing"], "No such file"),
        (["--leaf-key-file", "empty"], "the file is empty"),
        (["--leaf-key-file", "short"], "16 characters or more"),
        (["--leaf-key-file", "."], "Is a directory"),
    ],
)
def test_flags_of_a_leaf_that_make_no_sense_are_refused_with_the_fix(tmp_path, monkeypatch, capsys, flags, told):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("VENNUE_")]:
        monkeypatch.delenv(name)
    Path("empty").write_text("\n")
    Path("short").write_text("short\n")
    assert run(["serve", *flags]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
