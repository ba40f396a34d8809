"""The package as users meet it: what it promises about its version, its types and what an import costs them."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

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
    assert callable(script.load())


def test_every_error_can_be_imported_from_the_public_module():
    from vennue.errors import JobEnded

    assert JobEnded is vennue.errors.JobEnded is errors.JobEnded
    theirs = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert set(vennue.errors.__all__) == theirs


@pytest.mark.parametrize("statement", ["import vennue", "import vennue.sdk", "import vennue.cli"])
def test_an_import_needs_no_optional_library(statement):
    optional = {"asyncpg", "numba", "plotly", "polars", "pyarrow", "ray", "sklearn", "torch"}
    assert modules_loaded_by(statement).isdisjoint(optional)


def test_a_device_loads_nothing_of_the_server():
    assert modules_loaded_by("import vennue.sdk").isdisjoint({"granian", "litestar", "sqlalchemy", "aiosqlite"})
