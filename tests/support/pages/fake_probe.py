"""Stands for `hetplanner.ui.jobs.probe_worker` in tests: says line by line what a test has put into its folder.

`python fake_probe.py FOLDER` writes the request to `FOLDER/request-N.json`, then says `FOLDER/N-0`, `FOLDER/N-1`, …
when they come, of the N-th probe. It ends when stdin closes, unless there is `FOLDER/stubborn`.
"""

import json
import os
import sys
import threading
import time
from itertools import count
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    request = sys.stdin.readline()
    number = next(n for n in count() if not (folder / f"request-{n}.json").exists())
    (folder / "request.new").write_text(request)
    (folder / "request.new").rename(folder / f"request-{number}.json")

    def wait_for_end() -> None:
        sys.stdin.read()
        if not (folder / "stubborn").exists():
            os._exit(0)

    threading.Thread(target=wait_for_end, daemon=True).start()
    for step in count():
        line = folder / f"{number}-{step}"
        while not line.exists():
            time.sleep(0.005)
        text = line.read_text()
        print(text, flush=True)
        if text.startswith("die"):
            sys.stderr.write("it has died of something\n")
            os._exit(3)
        if json.loads(text)["type"] in ("end", "error"):
            break


if __name__ == "__main__":
    main()
