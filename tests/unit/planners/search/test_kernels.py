"""Compiled kernels are cached under a name that changes with their sources."""

import os
import shutil
from pathlib import Path

import hetplanner
from hetplanner import kernels
from hetplanner.kernels import kernel, source_digest

PACKAGE = Path(hetplanner.__file__).parent


@kernel
def double(x: float) -> float:
    return 2 * x


@kernel(forceinline=True)
def triple(x: float) -> float:
    return 3 * x


def test_a_kernel_computes_with_and_without_options():
    assert double(2.0) == 4.0
    assert triple(2.0) == 6.0


def test_other_packages_keep_their_cache_setting():
    given = kernels.config.CACHE_DIR
    kernel(lambda x: x)
    assert given == kernels.config.CACHE_DIR


def test_the_digest_changes_with_a_kernel_file_only(tmp_path):
    for name in ("simulator", "planners"):
        shutil.copytree(PACKAGE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = source_digest(tmp_path)
    (tmp_path / "planners" / "registry.py").write_text("# nothing compiled here\n")
    assert source_digest(tmp_path) == before
    callee = tmp_path / "planners" / "search" / "kernel_random.py"
    callee.write_text(callee.read_text() + "\n# changed\n")
    assert source_digest(tmp_path) != before


def test_former_caches_are_forgotten_but_for_the_last(tmp_path):
    for i in range(kernels.KEPT_CACHES + 2):
        made = kernels._make(tmp_path, f"{i}")
        assert made is not None
        assert made.is_dir()
    assert len(list(tmp_path.iterdir())) == kernels.KEPT_CACHES


def test_a_cache_that_somebody_else_made_is_not_loaded(tmp_path, monkeypatch):
    made = kernels._make(tmp_path, "0")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    assert kernels._make(tmp_path, "0") == made
    assert made.stat().st_mode & 0o777 == 0o700
    me = os.getuid()
    monkeypatch.setattr(kernels.os, "getuid", lambda: me + 1)
    assert kernels._make(tmp_path, "0") is None


def test_without_a_place_to_write_numba_chooses(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert kernels._make(blocked, "0") is None
