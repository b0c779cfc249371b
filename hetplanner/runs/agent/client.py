"""Talking to the agent, which is started when there is none: runs are started and opened here."""

from pathlib import Path
from typing import Any

from hetplanner.data.registry import absolute_data
from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.launchers.launch_file import LOCAL
from hetplanner.launchers.registry import make_launcher
from hetplanner.plan.files.plan_files import AnyPlan, plan_to_data
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.allowed_paths import Choice, allowed_hosts
from hetplanner.runs.agent.connection import AgentConnection, status_of
from hetplanner.runs.directory import find_run
from hetplanner.runs.run import Run


class AgentClient(AgentConnection):
    """The agent of one home, from which runs are started."""

    def start(
        self,
        plan: AnyPlan,
        config: TrainConfig,
        out: Path | str | None = None,
        launcher: str = "local",
        choice: Choice | None = None,
        hosts: Hosts | None = None,
    ) -> Run:
        """Hands a run to the agent; it starts at once, or waits in the queue.

        Args:
            plan: what to run.
            config: how; relative `data` and `init_from` are taken from this process's directory, but of a run over
                hosts they are theirs.
            out: an empty folder for the run, else the home's `runs/`.
            launcher: where to run: `local` on this machine, `ssh` on hosts, `slurm` as a job.
            choice: names from the agent's offers instead of paths: what a page asks for.
            hosts: how `ssh` or Slurm reaches the plan's hosts; None calls each by its own name.

        Raises:
            InvalidInput, Infeasible: plan, data or machine do not allow it.
            RunError: the queue is full, or the agent is gone.
        """
        known = hosts if choice is None or choice.hosts is None else allowed_hosts(choice.hosts, self.home)
        chosen = make_launcher(launcher, known)  # an unknown name is refused here, with the list of those there are
        if launcher != LOCAL:
            chosen.request(plan, Path("/run"), config).command_here()  # so is what can only be pasted
        config = config.replace(
            data=data_for(launcher, config.data),
            eval_data=data_for(launcher, config.eval_data),
            init_from=folder_for(launcher, config.init_from),
            adapter=folder_for(launcher, config.adapter, "adapter"),
        )
        body: dict[str, Any] = {"plan": plan_to_data(plan), "config": config.model_dump(mode="json")}
        body["launcher"] = launcher
        if hosts is not None:
            body["hosts"] = hosts.model_dump(mode="json")
        if choice is not None:
            body["choice"] = choice.model_dump(mode="json")
        if out is not None:
            body["out"] = str(Path(out).expanduser().absolute())
        status = status_of(self.ask("POST", "/runs", body))
        return self.open(status.run)

    def open(self, run: str) -> Run:
        """The run itself, to read. Raises InvalidInput."""
        run_id, directory = find_run(run, self.home)
        return Run(directory.path, run_id, self.home)


def data_for(launcher: str, data: str | None) -> str | None:
    """A path of data as its run shall have it: made absolute on this machine, or one of the hosts'.

    Raises:
        InvalidInput: a relative path, which says nothing on another machine.
    """
    if launcher == LOCAL or data is None or data == absolute_data(data) or data.startswith("~/"):
        return absolute_data(data) if launcher == LOCAL else data
    raise InvalidInput(f"data: {data!r:.80} lies on the hosts, so it must be an absolute path or begin with ~/")


def folder_for(launcher: str, folder: str | None, setting: str = "init_from") -> str | None:
    """The path of a model folder as its run shall have it, by the law of `data_for`. Raises InvalidInput."""
    if launcher == LOCAL or folder is None:
        return None if folder is None else str(Path(folder).expanduser().absolute())
    if folder.startswith(("/", "~/")):
        return folder
    raise InvalidInput(f"{setting}: {folder!r:.80} lies on the hosts, so it must be an absolute path or begin with ~/")
