"""Files that launch a plan on its own hosts, as the Export page shows them: one for each launcher over hosts."""

from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import hosts_template
from hetplanner.launchers.registry import make_launcher
from hetplanner.launchers.torchrun import TorchrunLauncher
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.placement import ranks_by_host, workers_of
from hetplanner.plan.train import TrainConfig
from hetplanner.schema import one_line

MAX_HOSTS = 64
"""Hosts whose lines are written."""
FILES = {"torchrun": "torchrun.sh", "ssh": "hosts.toml", "slurm": "job.sbatch", "kubernetes": "run.yaml"}
"""What the file of a launcher is called."""
TRAIN = "hetplanner train plan.json --launcher {launcher} --hosts hosts.toml"
_USE = {
    "ssh": f"# save as hosts.toml, correct it, then: {TRAIN.format(launcher='ssh')}",
    "slurm": f"# on a login node this submits it, with all that it needs: {TRAIN.format(launcher='slurm')}",
    "kubernetes": (
        f"# with your image, claim and nodes: {TRAIN.format(launcher='kubernetes')} --dry-run > run.yaml\n"
        "# then: kubectl create -f run.yaml"
    ),
}


def host_file(plan: AnyPlan, launcher: str) -> str:
    """The file for a launcher; where it cannot express the plan, a comment that says why."""
    try:
        if launcher == "torchrun":
            return lines_of_hosts(plan)
        if launcher == "ssh":
            return f"{_USE[launcher]}\n{hosts_template(plan)}"
        text = make_launcher(launcher).request(plan, Path(plan.problem.workload.name), TrainConfig()).script()
    except InvalidInput as error:
        return f"# {one_line(str(error))}\n"
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    return "\n".join(line for line in (first, _USE[launcher], rest) if line)


def lines_of_hosts(plan: AnyPlan) -> str:
    """What the launcher `torchrun` prints, with the ranks of each host. Raises InvalidInput."""
    hosts, workers = ranks_by_host(plan), workers_of(plan)
    commands = TorchrunLauncher().request(plan, Path("."), TrainConfig()).commands
    lines = ["# every host has plan.json and run.json, and reaches the others by these names"]
    for command, (host, ranks) in list(zip(commands, hosts.items(), strict=True))[:MAX_HOSTS]:
        places = ", ".join(f"{rank} ({one_line(workers[rank])})" for rank in ranks[:4])
        more = ", …" if len(ranks) > 4 else ""
        lines += [f"# host {one_line(host)}: rank{'s' if len(ranks) > 1 else ''} {places}{more}", command.script()]
    if len(hosts) > MAX_HOSTS:
        lines.append(f"# … and {len(hosts) - MAX_HOSTS} more: hetplanner train plan.json --launcher torchrun --dry-run")
    return "\n".join([*lines, ""])
