"""The ways a request can fail; each knows the exit code the command line ends with."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def one_line(text: str) -> str:
    """`text` with line breaks and other unprintable characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class HetplannerError(Exception):
    """Base of every error raised on purpose; its text is one line for a person, whatever a file's words held."""

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(one_line(str(text)))


class InvalidInput(HetplannerError, ValueError):
    """A file, flag or field breaks a stated law. The text names the place, the law, the value, the remedy."""

    exit_code = 2


class Infeasible(HetplannerError):
    """The request is well formed, but no plan satisfies it. The text says what is short, and by how much."""

    exit_code = 3


class RunError(HetplannerError):
    """A run, a worker or the agent failed. The text names the rank or process and its last words."""

    exit_code = 4


class Preempted(RunError):
    """A run, or a process of one, was told to end from outside (SIGTERM) and has saved what it could."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: "try again"


def last_line(stderr: bytes) -> str:
    """The last thing that a process said, for a message of one line."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "no message"
