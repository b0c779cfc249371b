"""Wrong input of a user is one line with what, where and the remedy, and exit code 2. Faster than whole programs."""

from pathlib import Path

import pytest

import hetplanner.cli as cli_package
from hetplanner.cli import app as cli

LAB = str(Path(__file__).parents[3] / "sample_clusters" / "lab_2_sites_4.json")


@pytest.fixture
def refusal(tmp_path, monkeypatch, capfd):
    """The line that a wrong command prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    (tmp_path / "a.yaml").write_text("name: x\n")
    (tmp_path / "newer.json").write_text('{"format": "hetplanner/plan@99"}')
    (tmp_path / "folder").mkdir()

    def run(arguments):
        monkeypatch.setattr("sys.argv", ["hetplanner", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        assert ended.value.code == 2, (out, err)
        (line,) = err.splitlines()
        assert line.startswith("hetplanner: ")
        return line

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "a.yaml", "tiny-gpt"], ["a.yaml:1", "YAML is not read", "JSON"]),
        (["plan", "folder", "tiny-gpt"], ["folder", "not a regular file"]),
        (["plan", LAB, "tiny-gpt", "--tighter-bound", "5"], ["tighter bound", "only for the objective dtfm"]),
        (["plan", LAB, "gpt5"], ["unknown preset 'gpt5'", "hetplanner workload presets"]),
        (["plan", LAB, "tiny-gpt", "--exclude", "north 0"], ["unknown device 'north 0'", "north-0"]),
        (["plan", LAB, "tiny-gpt", "--pin", "north 0=0"], ["'north 0'", "unknown device", "north-0"]),
        (["plan", LAB, "tiny-gpt", "--micro-batch", "0"], ["micro_batch", "at least 1|greater than or equal to 1"]),
        (["simulate", "newer.json"], ["plan@99", "upgrade"]),
        (["train", "newer.json"], ["plan@99", "upgrade"]),
        (["simulate", "newer.json", "--policies", "none"], ["--policies", "--lifetime"]),
        (["simulate", "newer.json", "--download", "1s"], ["--download", "--lifetime"]),
        (["runs", "list", "--state", "runing"], ["--state", "running", "'runing'"]),
        (["peer", "join", "10.0.0.7:5"], ["address", "hetplanner peer certificates"]),
        (["peer", "join", "127.0.0.1:x"], ["HOST:PORT", "127.0.0.1:x"]),
        (["peer", "join", "127.0.0.1:5", "--tensor", "3"], ["--tensor", "1, 2, 4, 8", "3"]),
        (["peer", "join", "127.0.0.1:5", "--sharding", "rows"], ["--sharding", "tensor, zero2, zero3", "'rows'"]),
        (["peer", "join", "127.0.0.1:5", "--sharding", "zero3"], ["zero3", "--tensor 2 or more"]),
    ],
)
def test_wrong_input_is_one_line_with_the_remedy(refusal, arguments, words):
    line = refusal(arguments)
    assert all(any(one in line for one in word.split("|")) for word in words), line


def test_an_interrupt_while_the_program_loads_is_one_line(monkeypatch, capfd):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as loading:
        loading.setattr("builtins.__import__", interrupted)
        with pytest.raises(SystemExit) as ended:
            cli_package.main()
    assert ended.value.code == 130
    assert capfd.readouterr().err == "hetplanner: interrupted\n"
