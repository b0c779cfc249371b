"""Measuring the hosts of a cluster from the Cluster page: real probes of hosts that are all this machine.

A program called ssh stands in for OpenSSH: it runs what it is asked to here. Each host has an address of the loopback.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hetplanner.cluster.formats.cluster_files import save_cluster
from tests.support.pages.served_dashboard import TOKEN, Server
from tests.support.plans.factories import sites_cluster

pytestmark = pytest.mark.browser

LAB = sites_cluster([2, 1])
SSH = """#!/bin/sh
for command; do :; done
case "$*" in *h9*) echo "Permission denied (publickey)." >&2; exit 255; esac
cd "$HOME" && exec sh -c "$command"
"""


def write_hosts(file: Path, **ssh: str) -> None:
    lines = ['format = "hetplanner/hosts@1"']
    for i, host in enumerate(LAB.hosts):
        lines += [f'[hosts."{host.id}"]', f'address = "127.0.0.{i + 2}"', f'python = "{sys.executable}"']
        lines += [f'ssh = "{ssh.get(host.id.replace("-", "_"), host.id)}"']
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)


@pytest.fixture
def lab_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose agent offers two hosts files, one of them with a key that a host refuses."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    one = Server(tmp_path / "home")
    one.home.mkdir(mode=0o700)
    write_hosts(tmp_path / "lab.toml")
    write_hosts(tmp_path / "locked.toml", h1_0="h9")
    offers = "".join(f'{name} = "{tmp_path / name}.toml"\n' for name in ("locked", "lab"))
    (one.home / "agent.toml").write_text(f"[hosts]\n{offers}")
    (one.home / "agent.toml").chmod(0o600)
    save_cluster(LAB, tmp_path / "lab.json")
    one.start()
    yield one
    one.stop()


def test_hosts_are_measured_cancelled_gone_on_with_and_taken(lab_server, visit, tmp_path):
    one = visit(lab_server.url)
    page = one.page
    one.upload("Import files").set_input_files(tmp_path / "lab.json")
    one.sees(re.compile("sites: 3 devices"))

    def press(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).filter(visible=True).click()

    press("Start")
    one.sees("measure: type the launch token first")
    page.get_by_label("Launch token").filter(visible=True).fill(TOKEN)
    press("Unlock")
    one.sees("Launching is unlocked for this page.")
    press("Start")
    one.sees("ssh as h9 is refused (Permission denied (publickey).); it must log in without a password")
    page.get_by_label("Hosts file").select_option("lab")
    page.get_by_label("Measure", exact=True).select_option("links")
    press("Start")
    one.sees(re.compile(r"Round [2-9] of \d+: .*; about .* left\."))
    one.sees("The map shows the measurements so far.")
    press("Cancel")
    one.sees(re.compile("Cancelled. Measured: [246] links"))
    press("Go on")
    use = page.get_by_role("button", name="Use the measured cluster")
    expect(use).to_be_visible()
    one.sees(re.compile("Measured: 6 links, begun .* The cluster is as it was before"))
    one.sees(re.compile("h0-0 → h1-0: bandwidth is .*, the cluster file says 50 Mbit/s"))
    use.click()
    one.sees("The cluster uses these numbers")
    one.sees(re.compile("links: .*measured"))
    press("Undo")
    one.sees("The cluster is as it was before")
    again = visit(page.url)
    again.sees(re.compile("Measured: 6 links"))
    assert str(tmp_path) not in again.page.content()
