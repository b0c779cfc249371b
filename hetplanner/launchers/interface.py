"""The one interface of launchers: a plan and a run directory in, a typed request out, nothing started.

To add a launcher: one file with a class that has `name` and `request`, an entry in `registry.LAUNCHERS`;
the conformance tests then run over it.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.train import TrainConfig

WORKER_MODULE = "hetplanner.runtime.worker"
LAUNCH = ("-u", "-m", "hetplanner.runtime.launch")
"""What Python runs to start a host's ranks, with torchrun's options; they share what it has loaded. Unbuffered."""
SWARM_MODULE = "hetplanner.swarm.launch.rehearse"
SWARM_HOST_MODULE = "hetplanner.swarm.launch.host_part"
HEAD_MODULE = "hetplanner.hosts.head"
"""Launchers name workers by these strings and never import them: planning machines may have no torch."""

ATTEMPT_VARIABLE = "HETPLANNER_ATTEMPT"
"""Tells a worker how often its run has been started again (the worker knows the same word)."""


@dataclass(frozen=True)
class HostCommand:
    """What one host runs.

    Attributes:
        host: name of the host, `localhost` for this machine.
        argv: program and arguments; never passes through a shell.
        env: variables on top of the host's own environment.
        num_ranks: ranks that this command starts.
    """

    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    num_ranks: int = 1

    def script(self) -> str:
        """One line of shell that does the same: environment, then the quoted command."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*variables, shlex.join(self.argv)])


@dataclass(frozen=True)
class LaunchRequest:
    """Everything that a launch would run. Its text *is* the script.

    Attributes:
        warnings: one line each of what a person should know before they launch it.
        starter: what this machine runs to have all commands started; None: it runs the one command itself.
        by_hand: what a person does with the text of `--dry-run` where it cannot be started from here; else empty.
        file: what starts all commands, where that is a file for another program.
    """

    launcher: str
    run_dir: Path
    commands: tuple[HostCommand, ...]
    warnings: tuple[str, ...] = ()
    starter: HostCommand | None = None
    by_hand: str = ""
    file: str = ""

    @property
    def starts(self) -> bool:
        """Whether it can be started from here."""
        return not self.by_hand

    @property
    def num_ranks(self) -> int:
        """Ranks over all hosts."""
        return sum(command.num_ranks for command in self.commands)

    def command_here(self) -> HostCommand:
        """The one command that this machine runs. Raises InvalidInput where there is none."""
        if not self.starts:
            raise InvalidInput(f"launcher: {self.launcher} starts no process; {self.by_hand}, or take --launcher ssh")
        if self.starter is not None:
            return self.starter
        (command,) = self.commands
        return command

    def script(self) -> str:
        """The file that starts all, or shell text that a person could paste: one command per host."""
        if self.file:
            return self.file
        lines = []
        for i, command in enumerate(self.commands):
            if len(self.commands) > 1:
                lines.append(f"# host {i}: {command.host}")
            lines.append(command.script())
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.script()


class Launcher(Protocol):
    """Turns a plan into the commands that start its ranks."""

    @property
    def name(self) -> str:
        """The word behind `--launcher`."""
        ...

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """The commands that start every rank of `plan` once, working in `run_dir`. Starts nothing.

        Args:
            plan: what to run; already saved as `run_dir/plan.json` when the request is carried out.
            run_dir: absolute path of the run directory.
            config: how to train; already saved as `run_dir/run.json`.

        Raises:
            InvalidInput: where this launcher cannot express the plan.
        """
        ...
