"""A command line called in the process of a test: a process of its own takes half a second to begin."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from hetplanner.cli import main


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> "CompletedProcess[str]":
    """What the installed program prints and ends with: its entry point runs, in the current folder.

    Args:
        monkeypatch: of the test.
        arguments: behind the program's name.
    """
    monkeypatch.setattr(sys, "argv", ["hetplanner", *arguments])
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return CompletedProcess(sys.argv, code, *printed)
