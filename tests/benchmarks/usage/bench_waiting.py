"""How long a person waits: help, a plan, the page, a launch, a stop.

    python tests/benchmarks/usage/bench_waiting.py [--repeats 3]

Prints per waiting the limit, then best, median and worst of the repeats. Uses a home of its own.
"""

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "hetplanner.cli"]
WORLD = str(ROOT / "sample_clusters" / "dtfm_5_worldwide.json")
LAB = str(ROOT / "sample_clusters" / "lab_2_sites_4.json")
BUDGET_S = 1.0
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def seconds(command):
    """Wall time of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def show_help():
    return seconds([*PROGRAM, "--help"])


def plan_64_devices():
    shape = ["--stages", "8", "--replicas", "8", "--budget", f"{BUDGET_S}s", "--json"]
    return seconds([*PROGRAM, "plan", WORLD, "gpt3-xl", *shape]) - BUDGET_S


def open_page():
    """From starting the server to a page whose map is drawn and whose tabs can be clicked."""
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.support.pages.find_browser import find_browser

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=CHROMIUM_FLAGS)
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "panel",
            "serve",
            "apps/planner.py",
            "--address",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/planner")
            page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
            page.get_by_role("tab", name=re.compile("plan", re.I)).first.click()
            return time.perf_counter() - began
        finally:
            server.terminate()
            server.wait()
            browser.close()


def launch_and_stop():
    """Seconds from the launch to the first loss, and from the stop to the last process's end."""
    import hetplanner as hp
    from hetplanner.runs.agent.client import AgentClient

    problem = hp.Problem(
        cluster=hp.load_cluster(LAB), workload=hp.preset("tiny-gpt"), constraints=hp.Constraints(stages=2, replicas=2)
    )
    plan = hp.search(problem, budget="500 evaluations", live=False).plan
    began = time.perf_counter()
    run = hp.launch(plan, emulate_links=True, steps=10_000)
    while not run.losses():
        run.poll()
        time.sleep(0.02)
    first_loss_s = time.perf_counter() - began
    time.sleep(3)
    began = time.perf_counter()
    run.stop()
    stop_s = time.perf_counter() - began
    AgentClient().shutdown()
    return first_loss_s, stop_s


def report(what, limit, values):
    print(f"{what:42} {limit:>7} {min(values):8.2f} {statistics.median(values):8.2f} {max(values):8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = range(parser.parse_args().repeats)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HETPLANNER_HOME"] = home
        seconds([*PROGRAM, "plan", WORLD, "gpt3-xl", "--stages", "8", "--replicas", "8", "--evaluations", "1"])  # warm
        print(f"{'seconds':42} {'limit':>7} {'best':>8} {'median':>8} {'worst':>8}")
        report("hetplanner --help", "0.5", [show_help() for _ in repeats])
        report("hetplanner plan, 64 devices, beyond budget", "3", [plan_64_devices() for _ in repeats])
        report("panel serve to a usable page", "10", [open_page() for _ in repeats])
        runs = [launch_and_stop() for _ in repeats]
        report("launch to first loss, 4 ranks, tiny-gpt", "20", [first for first, _ in runs])
        report("stop to last process gone", "5", [stop for _, stop in runs])


if __name__ == "__main__":
    main()
