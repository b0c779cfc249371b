"""Gives each host of a plan a network namespace on this machine, and runs a command that reaches them by ssh.

    python tests/support/hosts/hosts_here.py PLAN HOSTS_FILE -- COMMAND ...

As root, on Linux. Links and network cards have the bandwidths of the plan. The kernel limits them; nothing delays
packets. The hosts file is written for the command. Its runs go to a home beside it. Hosts and their files are gone at
the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import permutations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan
from hetplanner.plan.placement import ranks_by_host
from tests.support.hosts import netns
from tests.support.hosts.host_bed import HEAD, HostBed, HostSpec

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
END_AGENT = "from hetplanner.runs.agent.client import AgentClient; AgentClient(start=False).shutdown(stop_runs=True)"


def bed_of(plan: AnyPlan) -> HostBed:
    """The plan's hosts and links. Raises InvalidInput: a name is none for a namespace."""
    cluster = plan.problem.cluster
    names = list(ranks_by_host(plan))
    if odd := next((name for name in names if not NAME.fullmatch(name)), None):
        raise InvalidInput(f"host {odd!r:.60}: must have at most 16 small letters, digits and - to be a namespace")
    first_device = {host: next(d.id for d in cluster.devices if cluster.host_of(d.id).id == host) for host in names}
    hosts = {host.id: host for host in cluster.hosts if host.id in names}
    numbers = {site: f"s{number}" for number, site in enumerate(dict.fromkeys(hosts[name].site for name in names))}
    specs = [
        HostSpec(
            name,
            None if hosts[name].nic_out is None else 8.0 * hosts[name].nic_out,
            None if hosts[name].nic_in is None else 8.0 * hosts[name].nic_in,
            numbers[hosts[name].site],
        )
        for name in names
    ]
    rates = {
        (numbers[hosts[a].site], numbers[hosts[b].site]): 8.0 * cluster.link(first_device[a], first_device[b]).bandwidth
        for a, b in permutations(names, 2)
        if hosts[a].site != hosts[b].site
    }
    return HostBed(specs, site_rates=rates)


def hosts_text(bed: HostBed) -> str:
    """A hosts file for the ssh launcher."""
    lines = ['format = "hetplanner/hosts@1"', f"ssh_config = {json.dumps(str(bed.ssh_config))}"]
    for name in bed.hosts:
        lines += [f"[hosts.{name}]", f'address = "{bed.address(name)}"', f"python = {json.dumps(sys.executable)}"]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """The command."""
    if len(arguments) < 4 or arguments[2] != "--":
        sys.stderr.write("usage: python tests/support/hosts/hosts_here.py PLAN HOSTS_FILE -- COMMAND ...\n")
        return InvalidInput.exit_code
    plan_file, hosts_file, command = Path(arguments[0]), Path(arguments[1]), arguments[3:]
    if not netns.CAN_MAKE:
        sys.stderr.write(f"{netns.NEEDS_ROOT}\n")
        return InvalidInput.exit_code
    try:
        bed = bed_of(load_any_plan(plan_file))
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    home = hosts_file.resolve().with_name(f"{hosts_file.stem}-home")
    env = os.environ | {"HETPLANNER_HOME": str(home)}  # an agent outside would not reach these hosts
    with bed:
        hosts_file.write_text(hosts_text(bed), encoding="utf-8")
        code = subprocess.run(bed.command(HEAD, command), env=env, check=False).returncode
        if (home / "agent").is_dir():
            subprocess.run(bed.command(HEAD, [sys.executable, "-c", END_AGENT]), env=env, check=False)
    sys.stdout.write(f"runs are in {home}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
