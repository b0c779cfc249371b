"""Samples a second of the input pipeline beside `torch.utils.data` on the same tokens, and the memory of tokenizing.

    python tests/benchmarks/training/bench_input_pipeline.py [--tokens 50000000] [--seconds 3] [--rounds 3]
    python tests/benchmarks/training/bench_input_pipeline.py --tokenize-mb 20 200

Both read inputs and labels of shuffled sequences, in micro-batches of int64 tensors, from a mapped file that is in the
page cache. torch has its own order (`shuffle=True`) and 0, 1, 2 and 4 worker processes, started before the clock.
Packed documents with answers (every other token, at random: the worst case) come beside the same samples from a
`Dataset` as people write it, and beside one that packs nothing. Theirs and ours take turns; reported are medians.
Of tokenizing, each size is a process of its own, whose greatest resident memory the kernel tells.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.data.documents import IGNORED
from hetplanner.data.registry import open_data
from hetplanner.runtime.train.data import Batches
from tests.support.plans.factories import tiny_workload

MICRO_BATCH = 8
WORKERS = (0, 1, 2, 4)
LINE = "The quick brown fox jumps over the lazy dog, said the {} traveller to no one at all. "

TOKENIZE = """
import resource, sys
from pathlib import Path
from hetplanner.data.tokenizing.writing import write_tokens
write_tokens(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What people write for a mapped file of tokens (as nanoGPT has it)."""

    def __init__(self, path: Path, length: int) -> None:
        self.ids, self.length = np.memmap(path, dtype=np.uint16, mode="r"), length

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = i * self.length
        part = self.ids[first : first + self.length + 1].astype(np.int64)
        return torch.from_numpy(part[:-1]), torch.from_numpy(part[1:])


class Packed(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """The same for packed documents with answers: whole documents in a row as long as they fit."""

    def __init__(self, folder: Path, length: int) -> None:
        self.ids, self.length = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r"), length
        self.answers = np.memmap(folder / "train.answers", dtype=np.uint8, mode="r")
        starts = np.fromfile(folder / "train.documents", dtype=np.int64).tolist()
        self.ends = np.array(starts[1:])
        # One that is longer than a sequence is cut.
        pieces = [cut for begin, end in itertools.pairwise(starts) for cut in range(begin, end, length)]
        bounds, before = [0], 0
        for end in [*pieces[1:], starts[-1]]:
            if end - bounds[-1] > length:
                bounds.append(before)
            before = end
        self.bounds = np.array([*bounds, before])

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first, end = self.bounds[i], self.bounds[i + 1]
        a, b = np.searchsorted(self.ends, (first, end), side="right")
        ends, size = self.ends[a:b] - first, end - first
        inputs, labels = np.zeros(self.length, dtype=np.int64), np.full(self.length, IGNORED, dtype=np.int64)
        inputs[:size] = self.ids[first:end]
        following = self.ids[first + 1 : end + 1].astype(np.int64)
        labels[: len(following)] = np.where(self.answers[first + 1 : end + 1], following, IGNORED)
        labels[ends - 1] = IGNORED
        documents = np.repeat(np.arange(len(ends) + 1), np.diff(ends, prepend=0, append=self.length))
        return torch.from_numpy(inputs), torch.from_numpy(labels), torch.from_numpy(documents)


def rate(draw: Callable[[], Any], seconds: float) -> float:
    """Samples a second."""
    for _ in range(20):
        draw()
    count, began_s = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - began_s) < seconds:
        draw()
        count += MICRO_BATCH
    return count / spent_s


def our_batches(folder: Path, length: int) -> Batches:
    base = tiny_workload(micro_batch=MICRO_BATCH)
    model = base.transformer.replace(max_seq_len=length, vocab=2**15)
    return Batches(open_data(str(folder), base.replace(seq_len=length, transformer=model)), 0, MICRO_BATCH, 4)


def ours(batches: Batches) -> Callable[[], Any]:
    count = itertools.count()
    return lambda: batches.draw(*divmod(next(count), 4))


def theirs(data: Dataset[Any], workers: int) -> Callable[[], Any]:
    loader = DataLoader(data, MICRO_BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    def for_ever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = for_ever()
    return lambda: next(batches)


def compare(folder: Path, tokens: int, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """A row a sequence length."""
    plain, packed = folder / "plain", folder / "packed"
    plain.mkdir()
    packed.mkdir()
    write_data(plain, packed, tokens)
    for length in (256, 1024, 4096):
        windows, documents = Tokens(plain / "train.bin", length), Packed(packed, length)
        batches = our_batches(packed, length)
        check_same(batches, documents)
        sources = {"ours": ours(our_batches(plain, length)), "ours, packed": ours(batches)}
        for w in WORKERS:
            sources |= {f"torch, {w} workers": theirs(windows, w), f"torch packed, {w} workers": theirs(documents, w)}
        found: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(rounds):
            for name, draw in sources.items():
                found[name].append(rate(draw, seconds))
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        best, best_packed = (
            max(value for name, value in medians.items() if name.startswith(kind))
            for kind in ("torch,", "torch packed")
        )
        ratios = {
            "to the default": medians["ours"] / medians["torch, 0 workers"],
            "to the best": medians["ours"] / best,
            "packed, to the best packed": medians["ours, packed"] / best_packed,
            "packed, to the best that packs nothing": medians["ours, packed"] / best,
        }
        yield {"tokens": length} | {name: round(v) for name, v in medians.items()} | ratios


def write_data(plain: Path, packed: Path, tokens: int) -> None:
    """The same tokens as one long text, and as documents of 20 to 999 tokens with answers."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 2**15, tokens, dtype=np.uint16)
    for place in (plain, packed):
        ids.tofile(place / "train.bin")
    lengths = random.integers(20, 1000, tokens // 200)
    starts = np.append(0, np.cumsum(lengths))
    starts = np.append(starts[starts < tokens], tokens)
    starts.astype("<i8").tofile(packed / "train.documents")
    (random.random(tokens) < 0.5).astype(np.uint8).tofile(packed / "train.answers")
    info = {"format": "hetplanner/tokens@2", "dtype": "uint16", "vocab": 2**15, "documents": True, "answers": True}
    (packed / "train.json").write_text(json.dumps(info))
    for suffix in ("bin", "documents", "answers", "json"):  # else a tenth of the documents would be held out
        shutil.copy(packed / f"train.{suffix}", packed / f"val.{suffix}")


def check_same(batches: Batches, data: Packed) -> None:
    """What torch is compared with makes the same samples."""
    assert len(data) == batches.source.num_samples("train")
    for micro_batch in range(4):
        theirs = [
            torch.stack(part) for part in zip(*map(data.__getitem__, batches.sample_ids(0, micro_batch)), strict=True)
        ]
        assert all(torch.equal(a, b) for a, b in zip(batches.draw(0, micro_batch), theirs, strict=True))


def memory(folder: Path, megabytes: list[int]) -> Iterator[dict[str, Any]]:
    """A row a size: seconds, and greatest resident MB."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: n for n, word in enumerate(["?", *{w for w in LINE.split() if w != "{}"}, "old", "young"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    for size in megabytes:
        for kind in ("text", "rows"):
            path = folder / (f"{size}.txt" if kind == "text" else f"{size}.jsonl")
            line = LINE.format("old") * 10
            line = line + "\n" if kind == "text" else json.dumps({"text": line}) + "\n"
            with path.open("w", encoding="utf-8") as file:
                for _ in range(size * 10**6 // len(line)):
                    file.write(line)
            began_s = time.perf_counter()
            command = [sys.executable, "-c", TOKENIZE, str(path), str(folder), str(folder / f"{size}-{kind}")]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            path.unlink()
            seconds = round(time.perf_counter() - began_s, 1)
            yield {"MB": size, "kind": kind, "seconds": seconds, "greatest resident MB": int(told) // 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenize-mb", type=int, nargs="*", default=[])
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row in (
            memory(folder, parsed.tokenize_mb)
            if parsed.tokenize_mb
            else compare(folder, parsed.tokens, parsed.seconds, parsed.rounds)
        ):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
