"""What another ordinary user of this machine tries against runs under the agent: all of it ends in nothing.

Where tests run as root they become that user; elsewhere owners and modes are held. Where the system allows no network
of a run's own, that has to be said, and a swarm's calls are closed all the same.
"""

import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hetplanner.launchers.isolate import CLONE_NEWNET, why_open
from hetplanner.liveness.processes import processes_of_run
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.home import socket_path
from hetplanner.runs.run import Run
from hetplanner.swarm.wire.certificates import run_certificates
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan
from tests.support.processes.other_user import CAN_BECOME, as_another_user, closed_to_others, listening
from tests.support.processes.patience import until
from tests.support.swarms.swarm_runs import events_of, small_spec, start_swarm

pytestmark = pytest.mark.distributed

FOREVER = TrainConfig(steps=100_000)
CLUSTER = small_cluster(4, bandwidth="200 Mbit/s", latency="2 ms")
WORKLOAD = preset("tiny-gpt", global_batch=8, micro_batch=2)


def reached(ports: list[int]) -> list[int]:
    """Ports of loopback on which somebody listens in the network of the one who asks."""
    found = []
    for port in ports:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 5).close()
            found.append(port)
    return found


def opened(paths: list[str]) -> list[str]:
    """What can be read, listed or, were it not there, made."""
    found = []
    for path in paths:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with suppress(OSError):
                os.close(os.open(path, flags))
                found.append(path)
        with suppress(OSError):
            Path(path, "planted").touch()
            found.append(path)
    return found


def disturbed(pids: list[int]) -> list[str]:
    """What was done to processes."""
    import ctypes

    found = []
    for pid in pids:
        for name in ("environ", "ns/net", "ns/user", "mem", "fd"):
            found += opened([f"/proc/{pid}/{name}"])
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            found.append(f"killed {pid}")
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
        found.append("has rights of root")
    return found


def asked_agent(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
        except OSError as error:
            return type(error).__name__
    return "connected"


def is_closed_to_everybody_else(run: Run, home: Path) -> None:
    """Tries what another user could."""
    processes = processes_of_run(run.path, run.status().pid)
    ports = sorted({port for _, port in listening(processes)})
    assert ports  # store and gloo, coordinator and peers
    if why_open() is None:
        assert reached(ports) == []  # whoever asks from outside
    else:
        assert "other users reach" in run.directory.launcher_log.read_text()
    assert closed_to_others(run.path)
    files = [path for path in run.path.rglob("*") if not path.is_symlink()]
    assert len(files) > 5
    assert [path for path in files if not closed_to_others(path)] == []
    if not CAN_BECOME:
        return
    assert as_another_user(reached, ports if why_open() is None else []) == []
    assert as_another_user(opened, [str(path) for path in (home, run.path, *files)]) == []
    assert as_another_user(disturbed, [process.pid for process in processes]) == []
    assert as_another_user(asked_agent, str(socket_path(home))) == "PermissionError"


def test_a_static_run_in_a_folder_of_choice(client, tmp_path_factory):
    plan = chain_plan(shares=(2, 2), cuts=(len(WORKLOAD.graph.ops) // 2,), cluster=CLUSTER, workload=WORKLOAD)
    folder = tmp_path_factory.mktemp("chosen") / "run"
    for above in folder.parents[:3]:
        above.chmod(0o755)  # so that only the folder itself keeps others out
    run = client.start(plan, FOREVER, folder)
    until(lambda: (run.poll() and run.losses()) or run.status().is_over, "no loss")
    is_closed_to_everybody_else(run, client.home)
    assert client.stop(run.id).state == "stopped"
    assert [p for p in folder.rglob("*") if not closed_to_others(p)] == []  # the model too


def test_a_swarm(client, tmp_path):
    plan = swarm_plan([2, 2], [WORKLOAD.boundaries[2]], cluster=CLUSTER, workload=WORKLOAD)
    run = client.start(plan, FOREVER)
    until(lambda: (run.poll() and run.losses()) or run.status().is_over, "no loss")
    is_closed_to_everybody_else(run, client.home)

    # Its own user comes in by the run's name, and by no other.
    join = [sys.executable, "-m", "hetplanner.cli", "peer", "join", run.id, "--name", "mine"]
    mine = subprocess.Popen([*join, "--checkpoints", str(tmp_path / "kept")], stderr=subprocess.DEVNULL)
    try:
        until(lambda: "mine" in {e["peer"] for e in events_of(run.path, "serving")}, "the joiner does not serve")
    finally:
        mine.send_signal(signal.SIGINT)
        mine.wait(60)
    assert client.stop(run.id).state == "stopped"


def shaken_hands(ports: list[int]) -> list[str]:
    """What somebody without a certificate gets from those who listen: by TLS, and in the clear."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    said = []
    for port in ports:
        for wrap in (context.wrap_socket, lambda one: one):
            try:
                with wrap(socket.create_connection(("127.0.0.1", port), 10)) as one:
                    one.settimeout(10)
                    one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                    said.append(one.recv(100).decode("latin-1"))
            except OSError:
                said.append("")
    return [text for text in said if "\x04" in text and not text.startswith("\x15\x03")]


def test_a_swarm_s_calls_are_closed_also_without_a_network_of_its_own(tmp_path):
    spec = small_spec(steps=40, stages=2)
    with start_swarm(spec, tmp_path, peers=2, speed=20.0, certificates=run_certificates(tmp_path)) as swarm:
        until(lambda: (tmp_path / "events.jsonl").exists() and len(events_of(tmp_path, "serving")) == 2, "no peers")
        ports = [int(swarm.address.rpartition(":")[2])]
        for peer in ("peer-0", "peer-1"):
            said = (tmp_path / f"log-of-{peer}.txt").read_text()
            ports.append(int(said.split(f"peer {peer} at ")[1].split(":")[1].split()[0]))
        assert reached(ports) == ports
        assert shaken_hands(ports) == []
        if CAN_BECOME:
            assert as_another_user(shaken_hands, ports) == []
        assert events_of(tmp_path, "gone") == []
