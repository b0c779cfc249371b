"""A probe of a cluster's hosts for a page: a process of its own that measures over ssh and writes JSON lines to stdout.

`python -m hetplanner.ui.jobs.probe_worker`, started by `hetplanner.ui.jobs.probe_jobs`. The first line on stdin is what
to measure; answers are `round` when a round begins, its record in the file by then, and `end` or `error`. When stdin
closes, a person has cancelled the probe or the server is gone: this process ends at once, with the ssh of every host.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO


class Worker:
    """One probe, told of on `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def send(self, kind: str, **fields: Any) -> None:
        """Writes one line."""
        self._out.write(json.dumps({"type": kind, **fields}, allow_nan=False) + "\n")
        self._out.flush()

    def probe(self, request: dict[str, Any]) -> None:
        """Measures what `probe_jobs.ProbeRequest.to_message` asks for, and says how far it is."""
        from hetplanner.errors import HetplannerError

        try:
            self._probe(request)
        except HetplannerError as error:
            self.send("error", text=str(error))
        except Exception as error:
            self.send("error", text=f"{type(error).__name__}: {error}"[:500])
            raise
        else:
            self.send("end")

    def _probe(self, request: dict[str, Any]) -> None:
        from hetplanner.atomic_files import remove_drafts
        from hetplanner.cluster.model import Cluster
        from hetplanner.hosts.probe.kept import kept_record, new_record, run_kept, targets
        from hetplanner.hosts.probe.measuring import Job, Probe
        from hetplanner.hosts.probe.pace import Pace
        from hetplanner.hosts.probe.record import Record
        from hetplanner.launchers.hosts_file import place_cluster
        from hetplanner.runs.agent.allowed_paths import allowed_hosts
        from hetplanner.schema import checked

        cluster = checked(Cluster, request["cluster"], "cluster", from_file=True)
        path, home = Path(request["record"]), request["home"]
        hosts = allowed_hosts(request["hosts"], home and Path(home))
        placed = place_cluster(cluster, hosts)
        record = kept_record(path, cluster) if not request["anew"] and path.exists() else new_record(cluster)
        site_of, devices_of = targets(cluster, request["only"])
        remove_drafts(path.parent)  # a probe that is ended while it writes its record leaves one
        pace = Pace()

        def tell(_: Record, job: Job) -> bool:
            self.send("round", done=job.done, total=job.total, words=job.words, left_s=pace.left_s(job))
            return True

        session = Probe(placed, site_of, hosts.ssh_config)
        try:
            run_kept(session, record, devices_of, path, all_pairs=request["all_pairs"], tell=tell)
        finally:
            session.close()


def end_with(lines: TextIO) -> None:
    """Waits until stdin closes, then ends this process and the ssh of every host."""
    for _ in lines:
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGTERM)
    os._exit(0)


def main() -> None:
    """Entry point of `python -m hetplanner.ui.jobs.probe_worker`."""
    # Answers go to a private copy of stdout: a library that prints must not break the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with, args=(sys.stdin,), daemon=True).start()
    Worker(out).probe(request)


if __name__ == "__main__":
    main()
