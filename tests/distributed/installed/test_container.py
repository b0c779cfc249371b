"""The Containerfile, without a container: no tool that builds one is needed here.

Its instructions are read, its shell lines are parsed, the lines of Python in them are run, and its start command serves
the page in the environment at hand. `test_wheel.py` builds and installs the wheel from the same files.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from inspect import signature
from pathlib import Path

import httpx
import pytest

from hetplanner.cli.services import dashboard
from tests.support.processes.patience import until
from tests.support.repository.documentation import ROOT

pytestmark = pytest.mark.distributed

PAGE = (ROOT / "docs" / "how_to" / "use_a_container.md").read_text(encoding="utf-8")
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"}


def instructions() -> list[tuple[str, str]]:
    """Word and rest of each, continued lines joined."""
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#")).replace("\\\n", "")
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def final(word: str) -> str:
    """What the image has of an instruction: the last one in the last stage."""
    return [rest for other, rest in stages()[-1] if other == word][-1]


def shell_lines() -> list[str]:
    """What each RUN gives to the shell."""
    return [re.sub(r"^(--mount=\S+ )+", "", rest) for word, rest in instructions() if word == "RUN"]


def start_command() -> list[str]:
    return [*json.loads(final("ENTRYPOINT")), *json.loads(final("CMD"))]


def environment(home: Path) -> dict[str, str]:
    """This one, with this installation's programs first."""
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "HETPLANNER_HOME": os.fspath(home)}


def test_the_instructions_and_their_shell_lines_parse() -> None:
    assert {word for word, _ in instructions()} <= KNOWN
    names = [rest.split(" AS ") for word, rest in instructions() if word == "FROM"]
    bases = {"debian:bookworm-slim", *(name[1] for name in names if len(name) == 2)}
    assert {name[0] for name in names} <= bases
    assert set(re.findall(r"from=(\w+)", str(instructions()))) <= bases
    for line in shell_lines():
        subprocess.run(["sh", "-n", "-c", line], check=True)


def test_it_names_no_address_and_takes_the_index_from_an_argument() -> None:
    assert "://" not in (ROOT / "Containerfile").read_text(encoding="utf-8")
    assert [rest for word, rest in instructions() if word == "ARG"] == ['PIP_OPTIONS=""'] * 2
    from_an_index = [line for line in shell_lines() if re.search(r"pip (install|wheel)\b(?!.* /wheel/)", line)]
    assert len(from_an_index) == 2
    assert all("$PIP_OPTIONS" in line for line in from_an_index)


def test_the_context_holds_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *rest = [line for line in lines if line and not line.startswith("#")]
    assert first == "*"
    # As test_wheel.py copies them.
    needed = {"hetplanner", "sample_clusters", "pyproject.toml", "README.md", "LICENSE"}
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == needed
    assert all((ROOT / name).exists() for name in needed)


def test_the_lines_of_python_say_what_the_build_needs(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    said = []
    for code in [found for line in shell_lines() for found in re.findall(r"""python -c (?:".*?"|'.*?')""", line)]:
        here = code.replace("/tmp/", f"{tmp_path}/")
        argv = ["sh", "-c", here]
        done = subprocess.run(argv, env=environment(tmp_path), capture_output=True, text=True, check=True)
        said.append(done.stdout.splitlines())
    dependencies, (kernels,) = said
    assert dependencies == tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["dependencies"]
    assert Path(kernels).is_dir()


def test_the_image_is_as_the_page_says() -> None:
    port, home = final("EXPOSE"), final("VOLUME")
    assert port == str(signature(dashboard).parameters["port"].default)
    assert final("ENV") == f"HETPLANNER_HOME={home}"
    assert final("USER") not in ("root", "0")
    documented = [shlex.split(line) for line in re.findall(r"^docker .*", PAGE, flags=re.M)]
    builds = [words for words in documented if words[1] == "build"]
    (run,) = [words for words in documented if words[1] == "run"]
    assert all(words[words.index("-f") + 1] == "Containerfile" for words in builds)
    assert {words[words.index("-t") + 1] for words in builds} == {run[-1]}
    assert run[run.index("-p") + 1] == f"127.0.0.1:{port}:{port}"
    assert run[run.index("-v") + 1].partition(":")[2] == home
    assert any("PIP_OPTIONS=" in word for words in builds for word in words)


def test_the_start_command_serves_the_page(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert start_command() == ["hetplanner", "dashboard", "--host", "0.0.0.0"]
    with log.open("w") as out:
        argv = [*start_command(), "--port", "0"]
        server = subprocess.Popen(argv, cwd=tmp_path, env=environment(tmp_path / "home"), stdout=out, stderr=out)
    try:
        until(lambda: "token=" in log.read_text() or server.poll() is not None, log.read_text)
        ((port, token),) = re.findall(r"http://\S+:(\d+)/planner\?token=(\S+)", log.read_text())
        address = f"http://localhost:{port}/planner"  # as the page says: not that of the container
        closed = httpx.get(address, timeout=120)
        page = httpx.get(f"{address}?token={token}", follow_redirects=True, timeout=120)
        strange = httpx.get(address, headers={"Host": f"example.org:{port}"}, timeout=120)
    finally:
        server.terminate()
        server.wait()
    assert closed.status_code == 401
    assert page.status_code == 200
    assert "hetplanner" in page.text
    assert strange.status_code == 403
