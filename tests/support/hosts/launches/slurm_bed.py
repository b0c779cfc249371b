"""Slurm for tests: its own daemons, from Debian's packages, on a `HostBed`; its controller is on `head`."""

import json
import os
from pathlib import Path

from tests.support.hosts.host_bed import HEAD, HostBed
from tests.support.hosts.host_tools import program
from tests.support.processes.patience import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SHELL = 'mount -t tmpfs none /sys/fs/cgroup; exec "$0" "$@"'
"""slurmd wants a folder of cgroups, though it is told to use none; a network namespace has a /sys of its own."""
CONF = """
ClusterName=test
SlurmctldHost=localhost({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmBed:
    """A Slurm cluster whose nodes are the bed's hosts; it ends with the bed.

    Attributes:
        env: of everybody who talks to it.
    """

    def __init__(self, bed: HostBed) -> None:
        for name in PROGRAMS:
            program(name)
        self.bed, self.folder = bed, bed.folder / "slurm"
        (self.folder / "state").mkdir(parents=True)
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        cores = max(2, os.cpu_count() or 2)
        nodes = [
            f"NodeName={name} NodeHostname=localhost NodeAddr={bed.address(name)} CPUs={cores} State=UNKNOWN"
            for name in bed.hosts
        ]
        text = CONF.format(head=bed.address(HEAD), folder=self.folder)
        Path(self.env["SLURM_CONF"]).write_text("\n".join([text, *nodes, ""]))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._start_munge()
        self._daemon(HEAD, "slurmctld", "-D", "-i")
        for name in bed.hosts:
            (self.folder / f"spool-{name}").mkdir()
            self._daemon(name, "slurmd", "-D", "-N", name)
        until(lambda: self.states() == dict.fromkeys(bed.hosts, "IDLE"), "the nodes of Slurm do not come up")

    def _start_munge(self) -> None:
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": key, "socket": socket}
        files |= {f"{name}-file": self.folder / f"munge.{name}" for name in ("log", "pid", "seed")}
        self._daemon(HEAD, "munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()))
        until(socket.exists, "munged does not listen")

    def _daemon(self, host: str, name: str, *arguments: str) -> None:
        argv = ["sh", "-ec", SHELL, program(name), *arguments]
        with (self.folder / f"{name}-{host}.txt").open("w") as log:
            self.bed.popen(host, argv, env=self.env, stdout=log, stderr=log)

    def ask(self, *words: str) -> str:
        """What one of Slurm's programs prints, on `head`; '' where it fails."""
        done = self.bed.run(HEAD, [program(words[0]), *words[1:]], env=self.env)
        return done.stdout if done.returncode == 0 else ""

    def states(self) -> dict[str, str]:
        """What Slurm says of each node."""
        lines = self.ask("scontrol", "--oneliner", "show", "node").splitlines()
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return {f["NodeName"]: f["State"] for f in fields}

    def jobs(self) -> dict[str, str]:
        """Jobs that are not over, and their states."""
        return dict(line.split() for line in self.ask("squeue", "--noheader", "--format=%i %T").splitlines())

    def submit(self, script: str, *options: str) -> str:
        """Submits somebody else's job; returns its number."""
        argv = [program("sbatch"), "--parsable", "--output=/dev/null", *options]
        return self.bed.run(HEAD, argv, env=self.env, input=f"#!/bin/sh\n{script}\n").stdout.strip()


def hosts_file(bed: HostBed, python: str, *options: str) -> str:
    """A hosts file for the launcher slurm."""
    lines = ['format = "hetplanner/hosts@1"']
    for name in bed.hosts:
        lines += [f"[hosts.{name}]", f'address = "{bed.address(name)}"', f"python = {json.dumps(python)}"]
        lines += [f"folder = {json.dumps(str(bed.folder / 'runs'))}"]
    return "\n".join([*lines, "[slurm]", f"options = {json.dumps(list(options))}", ""])
