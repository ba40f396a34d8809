"""A newcomer's first job, device and policy, each copied from the README, work unchanged against a real server."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.markdown import REPOSITORY, blocks

EXAMPLES = REPOSITORY / "examples"
OWN = ("own_job.py", "own_device.py", "own_policy.py")


@contextmanager
def program(path: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that runs, until the end of the block at the latest."""
    with python(path.parent, str(path), *arguments, **variables) as running:
        yield running


@contextmanager
def python(folder: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | variables
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.terminate()


@contextmanager
def server(policy_file: Path, folder: Path) -> Iterator[str]:
    """The address of a server that follows the README's policy."""
    variables = {
        "VENNUE_PORT": "0",
        "VENNUE_DATA_DIR": str(folder / "data"),
        "VENNUE_POLICY_FILES": json.dumps([str(policy_file)]),
        "VENNUE_POLICY": "longest-wait",
    }
    with python(folder, "-m", "vennue.server", **variables) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()


def readme_programs() -> dict[str, str]:
    found = blocks((REPOSITORY / "README.md").read_text())
    return {block.directives["file"]: block.text for block in found if block.directives.get("file") in OWN}


def test_job_device_and_policy_work_as_the_readme_shows_them(tmp_path):
    for name, text in readme_programs().items():
        (tmp_path / name).write_text(text)
    with ExitStack() as stack:
        address = stack.enter_context(server(tmp_path / "own_policy.py", tmp_path))
        for _ in range(3):
            stack.enter_context(program(tmp_path / "own_device.py", VENNUE_SERVER=address))
        job = stack.enter_context(program(tmp_path / "own_job.py", VENNUE_SERVER=address))
        assert job.stdout is not None
        said = job.stdout.read()
        job.wait()
        with urllib.request.urlopen(f"{address}/v1/pool") as answer:
            pool = json.load(answer)
    losses = [float(loss) for loss in re.findall(r"^round \d: loss ([\d.]+)$", said, re.MULTILINE)]
    assert job.returncode == 0
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert "weights: [" in said
    assert (pool["policy"], pool["jobs"]) == ("longest-wait", {"completed": 1})


@pytest.mark.parametrize("name", OWN)
def test_each_takes_at_most_ten_lines_of_code(name):
    code = [line for line in readme_programs()[name].splitlines() if line]
    assert len(code) <= 10


@pytest.mark.parametrize("name", OWN)
def test_the_example_files_are_what_the_readme_shows(name):
    docstring, _, program_text = (EXAMPLES / name).read_text().partition('"""\n\n')
    assert docstring.startswith('"""')
    assert program_text == readme_programs()[name]


@pytest.mark.extras
@pytest.mark.timeout(300)
def test_the_pytorch_examples_learn_together(tmp_path):
    pytest.importorskip("torch")
    with ExitStack() as stack:
        address = stack.enter_context(server(EXAMPLES / "own_policy.py", tmp_path))
        for _ in range(2):
            stack.enter_context(program(EXAMPLES / "torch_device.py", VENNUE_SERVER=address))
        job = stack.enter_context(program(EXAMPLES / "torch_job.py", VENNUE_SERVER=address))
        assert job.stdout is not None
        said = job.stdout.read()
        job.wait()
    assert job.returncode == 0
    assert float(said.split()[-1]) > 0.9
