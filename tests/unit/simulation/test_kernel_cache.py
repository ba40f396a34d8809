"""Compiled code is kept apart for each version of all that it depends on, so none ever runs with another's memory."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vennue
from vennue.simulation.kernel import caching

PACKAGE = Path(vennue.__file__).parent


def run(code: str, *, path: Path = PACKAGE.parent, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.strip()


def test_every_module_that_compiled_code_takes_something_from_is_in_the_digest():
    taken = set()
    for file in (PACKAGE / "simulation" / "kernel").glob("*.py"):
        if file.stem in {"checks", "compiling", "driver", "setup"}:
            continue  # these run in Python
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vennue."):
                taken.add(node.module)
    beside = {module for module in taken if not module.startswith("vennue.simulation.kernel")}
    assert beside == set(caching.SOURCES)


def test_a_change_of_any_of_these_files_leads_to_another_directory(tmp_path: Path):
    ask = "from vennue.simulation.kernel.caching import digest; print(digest())"
    shutil.copytree(PACKAGE, tmp_path / "vennue", ignore=shutil.ignore_patterns("__pycache__"))
    digests = [run(ask, path=tmp_path)]
    assert digests == [caching.digest()]
    for changed in ("simulation/kernel/state.py", "core/profile.py"):
        with (tmp_path / "vennue" / changed).open("a", encoding="utf-8") as file:
            file.write("# another version\n")
        digests.append(run(ask, path=tmp_path))
    assert len(set(digests)) == 3


def test_another_numba_or_processor_has_another_directory(monkeypatch: pytest.MonkeyPatch):
    before = caching.digest()
    monkeypatch.setattr("numba.__version__", "0.0")
    other_numba = caching.digest()
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "abacus")
    assert len({before, other_numba, caching.digest()}) == 3


WHERE = "from vennue.simulation.kernel.loop import advance; print(advance.stats.cache_path)"


def test_compiled_code_is_kept_beside_the_byte_code():
    kept = Path(run(WHERE, NUMBA_CACHE_DIR=""))
    assert kept.parent == PACKAGE / "simulation" / "kernel" / "__pycache__" / f"kernel-{caching.digest()}"


def test_a_directory_that_the_user_has_set_for_numba_is_used(tmp_path: Path):
    kept = Path(run(WHERE, NUMBA_CACHE_DIR=str(tmp_path)))
    assert kept.parent == tmp_path / f"kernel-{caching.digest()}"


def test_numbas_own_setting_stays_as_it_was(tmp_path: Path):
    unchanged = "from numba.core import config; import vennue.simulation.kernel.loop; print(config.CACHE_DIR)"
    assert run(unchanged, NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_where_nothing_can_be_written_the_kernel_is_compiled_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(caching, "_is_writable", lambda _: False)
    with caching.cache_directory() as cached:
        assert not cached
