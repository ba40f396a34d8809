"""The wheel that is published: built from the checkout, it holds the package, its types and its licence, no more."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.slow_suite


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (path,) = folder.glob("vennue-*.whl")
    return zipfile.ZipFile(path)


def test_it_holds_the_package_and_its_metadata_only(wheel):
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"vennue"}


def test_it_holds_the_type_marker_and_the_licence(wheel):
    names = wheel.namelist()
    assert "vennue/py.typed" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


def test_it_holds_every_file_of_the_source(wheel):
    source = {
        path.relative_to(REPOSITORY / "src").as_posix()
        for path in (REPOSITORY / "src/vennue").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert source <= set(wheel.namelist())


def test_it_is_small_enough_for_a_device(wheel):
    assert sum(entry.compress_size for entry in wheel.infolist()) < 4_000_000
