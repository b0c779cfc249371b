"""Which of transformers' architectures are captured, cut in two and trained as one process trains them?

    python tests/benchmarks/training/bench_architectures.py [--steps 20] [--only gpt2 vit] [--json]

Every configuration of `tests/support/models/architectures.py` is captured, two ranks train its two halves, and the
losses are held against those of one process: the largest relative difference over all steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.errors import HetplannerError
from tests.support.models.architectures import ARCHITECTURES, captured, losses_in_two_stages


@dataclass
class Row:
    """What became of one architecture."""

    name: str
    capture_s: float
    operators: int = 0
    boundaries: int = 0
    difference: float | None = None
    fell: bool = False
    error: str = ""


def tried(name: str, steps: int) -> Row:
    """Captures and trains one."""
    began_s = time.monotonic()
    try:
        workload = captured(name)
    except HetplannerError as error:
        return Row(name, time.monotonic() - began_s, error=str(error))
    row = Row(name, time.monotonic() - began_s, len(workload.graph.ops), len(workload.boundaries))
    try:
        with tempfile.TemporaryDirectory() as folder:
            losses, expected = losses_in_two_stages(workload, steps, Path(folder))
        row.difference = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        row.fell = losses[-1] < losses[0]
    except (HetplannerError, AssertionError) as error:
        row.error = str(error)[-300:]
    return row


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in args.only:
        rows.append(tried(name, args.steps))
        if not args.json:
            row = rows[-1]
            told = row.error or f"{row.difference:.1e}, losses {'fall' if row.fell else 'do not fall'}"
            sizes = f"{row.operators:4} operators {row.boundaries:4} cuts"
            print(f"{name:10} {row.capture_s:6.1f} s {sizes}  {told}", flush=True)
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
