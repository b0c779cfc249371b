"""Seconds that `hetplanner train --launcher ssh` takes to begin and to end over four hosts of a test bed; as root.

    python tests/benchmarks/usage/bench_ssh_launcher.py

From nothing (no agent) to the first step, with what it consists of, and from Ctrl-C until no process is on any host.
The hosts share this machine's cores: on machines of their own four torchruns and four ranks import torch at once.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.hosts.test_ssh_launcher import HOSTS, Lab
from tests.support.hosts.host_bed import HostBed, HostSpec

ROUNDS = 3


def measured(lab: Lab) -> dict[str, float]:
    """One run that is interrupted after its third step."""
    began_s, began_unix_s = time.monotonic(), time.time()
    process = lab.begin("--steps", "1000000")
    run = lab.run()
    phases: dict[str, float] = {"submitted": time.time() - began_unix_s}
    while not run.steps():
        run.read_all()
        time.sleep(0.01)
    first_step_s = time.monotonic() - began_s
    lab.reach(process, 3)
    for line in (run.path / "rank-0.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["type"] == "phase":
            phases[record["name"]] = record["time_s"] - began_unix_s
    process.send_signal(signal.SIGINT)
    began_s = time.monotonic()
    while any(lab.on(name) for name in HOSTS):
        time.sleep(0.02)
    gone_s = time.monotonic() - began_s
    process.communicate()
    return phases | {"first step": first_step_s, "Ctrl-C to nothing left": gone_s}


def main() -> None:
    """Prints a line for each round."""
    with HostBed([HostSpec(name) for name in HOSTS]) as bed:
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                lab = Lab(bed, Path(folder))
                print(f"load {os.getloadavg()[0]:.1f}:", end=" ")
                print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured(lab).items()), flush=True)
                lab.close()


if __name__ == "__main__":
    main()
