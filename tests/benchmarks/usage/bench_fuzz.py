"""Damages files of every kind and reads them: how many are taken, how many are refused in a line, what else happens.

    python tests/benchmarks/usage/bench_fuzz.py --cases 100000 --seed 0

prints a row per reader: cases, accepted, refused, unforeseen (refused by the general law and by no check of its own),
other exceptions (of which there should be none), and the CPU seconds of the slowest case with its number. A case is
found again by seed, reader and number: `--reader NAME --first 17 --cases 1`. Everything runs in one process.
"""

import argparse
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.files.fuzz import Failure, Outcome, fuzz
from tests.support.files.readers import READERS

SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="over all readers that run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each reader")
    parser.add_argument("--reader", default="", help="only readers whose name holds this")
    parser.add_argument("--part", default="1/1", help="such as 2/3: of the readers every third one, from the second on")
    parser.add_argument("--keep", type=Path, help="write files that gave other exceptions into this folder")
    asked = parser.parse_args()
    chosen = [reader for reader in READERS if asked.reader in reader.name]
    each = asked.cases / sum(reader.share for reader in chosen)
    part, parts = map(int, asked.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    print(
        f"{'reader':24}{'cases':>8}{'accepted':>10}{'refused':>9}{'unforeseen':>12}{'others':>8}{'slowest':>10}  case"
    )
    total, began_s = Outcome(), time.monotonic()
    for reader in chosen:
        found = fuzz(reader, range(asked.first, asked.first + math.ceil(each * reader.share)), asked.seed)
        print(_row(reader.name, found), flush=True)
        for title, failures in (("unforeseen", found.unforeseen), ("OTHER", found.others)):
            _show(title, failures)
        if asked.keep:
            _keep(asked.keep, reader.name, found.others)
        total.accepted += found.accepted
        total.refused += found.refused
        total.unforeseen += found.unforeseen
        total.others += found.others
        total.slowest_s = max(total.slowest_s, found.slowest_s)
    print(_row("all", total), f"  in {time.monotonic() - began_s:.0f} s, seed {asked.seed}")
    return 1 if total.others else 0


def _row(name: str, found: Outcome) -> str:
    return (
        f"{name:24}{found.cases:8}{found.accepted:10}{found.refused:9}{len(found.unforeseen):12}{len(found.others):8}"
        f"{found.slowest_s:8.2f} s  {found.slowest}"
    )


def _show(title: str, failures: list[Failure]) -> None:
    counts = Counter(failure.text for failure in failures)
    first = {failure.text: failure.case for failure in reversed(failures)}
    for text, count in counts.most_common(SHOWN):
        print(f"    {title} {count} × {text} (case {first[text]})", flush=True)


def _keep(folder: Path, name: str, failures: list[Failure]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for failure in failures[:20]:
        kept = folder / f"{name.replace(' ', '-')}-{failure.case}-{failure.file.replace('/', '-')}"
        kept.write_bytes(failure.content)


if __name__ == "__main__":
    sys.exit(main())
