"""The package as users meet it: what it promises about its version, its types and what an import costs them."""

import signal
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import vennue
from vennue.core import errors

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def modules_loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after it has run the statement."""
    program = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    )


def test_the_version_is_the_one_in_the_projects_metadata():
    assert vennue.__version__ == PROJECT["version"]


def test_the_package_is_marked_as_typed():
    assert (Path(vennue.__file__).parent / "py.typed").exists()


def test_the_console_script_starts_the_command_line():
    (script,) = entry_points(group="console_scripts", name="vennue")
    assert script.value == PROJECT["scripts"]["vennue"]
    assert callable(script.load())


INTERRUPTED = """
import signal
import sys


class Interrupt:
    def find_spec(self, name, *_):
        if name == {during!r}:
            signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, Interrupt())
sys.argv = ["vennue", "--version"]
from vennue.__main__ import main

main()
"""


def interrupted(during: str, **options: Any) -> tuple[int, str, str]:
    program = INTERRUPTED.format(during=during)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("during", ["vennue.cli", "cyclopts", "rich.console"])
def test_ctrl_c_while_the_command_line_is_being_loaded_ends_it_without_a_word(during):
    assert interrupted(during) == (130, "", "")


def test_ctrl_c_is_not_heard_where_the_shell_has_it_ignored():
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    assert interrupted("cyclopts", preexec_fn=ignore) == (0, f"{PROJECT['version']}\n", "")


def test_every_error_can_be_imported_from_the_public_module():
    from vennue.errors import JobEnded

    assert JobEnded is vennue.errors.JobEnded is errors.JobEnded
    theirs = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert set(vennue.errors.__all__) == theirs


@pytest.mark.parametrize("statement", ["import vennue", "import vennue.sdk", "import vennue.cli"])
def test_an_import_needs_no_optional_library(statement):
    optional = {"asyncpg", "numba", "pyarrow", "ray", "sklearn", "torch"}
    assert modules_loaded_by(statement).isdisjoint(optional)


def test_a_device_loads_nothing_of_the_server():
    assert modules_loaded_by("import vennue.sdk").isdisjoint({"granian", "litestar", "sqlalchemy", "aiosqlite"})
