"""A wheel serves the dashboard without the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx
import pytest

from tests.support.processes.patience import until
from tests.support.repository.documentation import ROOT

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel is installed; what it needs is this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source = folder / "source"  # a build leaves files beside what it reads
    for name in ("hetplanner", "sample_clusters"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, source], check=True)
    (wheel,) = folder.glob("hetplanner-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", wheel], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_package_is_the_wheels_and_plans_on_a_sample(programs: Path, tmp_path: Path) -> None:
    code = "import hetplanner, hetplanner.ui.serve as s; print(hetplanner.__file__, s.samples_folder(), sep='\\n')"
    said = subprocess.run([programs / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    package, samples = map(Path, said.stdout.split())
    assert programs.parent in package.parents
    assert len(list(samples.glob("*.json"))) == len(list((ROOT / "sample_clusters").glob("*.json")))
    argv = [programs / "hetplanner", "plan", samples / "lab_2_sites_4.json", "tiny-gpt", "--planner", "rank-order"]
    done = subprocess.run([*argv, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["step_s"] > 0


def test_the_dashboard_answers(programs: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("w") as out:
        argv = [programs / "hetplanner", "dashboard", "--port", "0"]
        env = os.environ | {"HETPLANNER_HOME": str(tmp_path / "home")}
        server = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=out, stderr=out)
    try:
        until(lambda: "token=" in log.read_text() or server.poll() is not None, log.read_text)
        (link,) = re.findall(r"http://localhost:\d+/planner\?token=\S+", log.read_text())
        page = httpx.get(link, follow_redirects=True, timeout=120)
    finally:
        server.terminate()
        server.wait()
    assert page.status_code == 200
    assert "hetplanner" in page.text
