"""What a codec is called and how many bytes it puts on the wire; no torch, no data.

To add a codec: a name in `CodecName`, its size in `wire_bytes`, its work in `WORK_PASSES`, its place in
`CODEC_NAMES` (weakest first), its tensor half in a `torch_*.py` beside; the conformance tests then run over it.
"""

import math
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hetplanner.schema import Noun

CodecName = Literal["none", "fp16", "bf16", "int8", "int4", "topk", "powersgd"]
CODEC_NAMES: tuple[CodecName, ...] = ("none", "fp16", "bf16", "int8", "int4", "topk")
"""Weakest first, by size. On a tiny GPT with one boundary (300 steps, two seeds; loss against dense) int8 cost nothing,
int4 1.6 and 1.7 %, top-k of a third -0.3 and 0.3 %, of a tenth 1.4 and 3.8 %, of a thirtieth 9.7 % (one seed)."""

AllowedCodec = Literal["none", "fp16", "bf16", "int8", "int4", "topk", "adatopk", "powersgd"]
ALLOWED_CODECS: tuple[AllowedCodec, ...] = (*CODEC_NAMES, "adatopk")
"""What a planner may choose from: `topk` with the weakest ratio that is enough on each link, `adatopk` with the ratios
of FusionLLM's rule. A problem may allow `powersgd` as well, for plans that name it: no planner chooses it."""

DEFAULT_MAX_RATIO = 100.0
"""Greatest compression by top-k unless the user says otherwise (ours; FusionLLM's own experiments go this far)."""

SEGMENT = 65536
"""Elements that a 16-bit position can name; longer tensors are cut into segments of this length."""
VALUE_BYTES = 2
"""Top-k's kept values travel as fp16."""


class Work(NamedTuple):
    """Passes over the dense tensor in memory: its bytes times this, over the memory's bandwidth, is the time."""

    encode: float
    decode: float


# Measured by tests/benchmarks/training/bench_codecs.py, 4 M elements on one core, where a copy is two passes.
WORK_PASSES: dict[str, Work] = {
    "none": Work(0.0, 0.0),
    "fp16": Work(2.0, 1.5),
    "bf16": Work(2.0, 1.5),
    "int8": Work(2.5, 2.5),
    "int4": Work(2.5, 2.0),
    "topk": Work(15.0, 6.0),
    "powersgd": Work(25.0, 5.0),
}
# Top-k's gradients: gather and scatter at positions that are known.
WORK_AT_POSITIONS = Work(5.0, 3.0)
# More of a codec with `delta`: what is remembered is looked up, the sum is remembered (the sender decodes for it).
DELTA_WORK = Work(12.5, 8.0)

# Bytes on the wire per element, scales of blocks left out.
_ELEMENT_BYTES: dict[str, float] = {"fp16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
# A ratio chosen for one tensor may be off by an element, and by the count of a segment, for another.
_RATIO_SLACK, _SLACK_BYTES = 1.01, 8


class Codec(Noun):
    """One choice of compression.

    Attributes:
        name: the codec.
        block: elements that share one scale (int8, int4).
        ratio: of all elements to those kept, the largest by magnitude (topk). With activations their positions
            travel too; gradients follow at the same positions and need none.
        delta: what travels is the change of each sample's activation since its last visit (int8 and int4, activations
            only). As many bytes; both ends remember samples (`TrainConfig.delta_cache_bytes`).
        rank: of the two factors that stand for a whole bucket of gradients (powersgd, which has no other use).
    """

    name: CodecName = "none"
    block: Annotated[int, Field(strict=True, ge=16, le=65536)] = 256
    ratio: Annotated[float, Field(strict=True, ge=1, le=1e6)] = 1.0
    rank: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    delta: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _settings_belong_to_the_codec(self) -> Self:
        if self.name != "powersgd" and self.rank != 1:
            raise ValueError(f"rank: belongs to powersgd only, got {self.rank} with {self.name}; remove it")
        if self.name != "topk" and self.ratio != 1.0:
            raise ValueError(f"ratio: belongs to topk only, got {self.ratio:g} with {self.name}; remove it")
        if self.delta and self.name not in ("int8", "int4"):
            raise ValueError(f"delta: belongs to int8 and int4 only, got {self.name}; remove it")
        return self

    def kept(self, num_elements: int) -> int:
        """Elements of a tensor that top-k keeps: at least one, if there is any."""
        return min(num_elements, max(1, math.floor(num_elements / self.ratio + 0.5)))

    def wire_bytes(self, num_elements: int, element_bytes: int, *, positions_known: bool = False) -> int:
        """Exact bytes on the wire for a tensor.

        Args:
            num_elements: its elements.
            element_bytes: bytes of each when dense.
            positions_known: whether the other side has top-k's positions already (a gradient's).
        """
        match self.name:
            case "none":
                return num_elements * element_bytes
            case "fp16" | "bf16":
                return num_elements * 2
            case "int8":
                return num_elements + self.scale_bytes(num_elements)
            case "int4":
                return -(-num_elements // 2) + self.scale_bytes(num_elements)
            case "powersgd":
                return 4 * sum(self.factor_elements(num_elements))
            case "topk":
                kept = self.kept(num_elements)
                return kept * VALUE_BYTES + (0 if positions_known else min(position_bytes(num_elements, kept)))

    def factor_elements(self, num_elements: int) -> tuple[int, int]:
        """Elements of powersgd's two factors of a bucket."""
        rows, columns = folded(num_elements)
        rank = min(self.rank, rows, columns)
        return rows * rank, columns * rank

    @property
    def is_lossy(self) -> bool:
        """Whether what comes out may differ from what went in."""
        return self.name != "none"

    def scale_bytes(self, num_elements: int) -> int:
        """Bytes of a block codec's scales: one float32 a block."""
        return 4 * -(-num_elements // self.block)

    def work(self, *, positions_known: bool = False) -> Work:
        """Passes over memory to encode and to decode."""
        if self.name == "topk" and positions_known:
            return WORK_AT_POSITIONS
        work = WORK_PASSES[self.name]
        return Work(work.encode + DELTA_WORK.encode, work.decode + DELTA_WORK.decode) if self.delta else work

    def __str__(self) -> str:
        if self.name == "powersgd":
            return f"powersgd:{self.rank}"
        if self.name == "topk":
            return f"topk:{self.ratio:.4g}"
        return f"{self.name} delta" if self.delta else self.name


NO_CODEC = Codec()


def folded(num_elements: int) -> tuple[int, int]:
    """Rows and columns of the matrix, as near to a square as can be, into which a bucket is folded."""
    rows = math.isqrt(max(num_elements - 1, 0)) + 1
    return rows, -(-num_elements // rows)


class Positions(NamedTuple):
    """Bytes of the three ways to say which elements are kept; the shortest travels, the first one of equals."""

    narrow: int
    bitmap: int
    wide: int


def position_bytes(num_elements: int, kept: int) -> Positions:
    """Sizes of top-k's positions: 16 bits each (with the count of every segment), one bit per element, 32 bits each."""
    segments = -(-num_elements // SEGMENT)
    counts = 4 * segments if segments > 1 else 0
    return Positions(2 * kept + counts, -(-num_elements // 8), 4 * kept)


def most_kept(num_elements: int, num_bytes: float, *, positions_known: bool = False) -> int:
    """Most elements that top-k can keep within so many bytes on the wire; 0 if not even one."""
    if positions_known:
        return max(0, math.floor(min(num_elements, num_bytes / VALUE_BYTES)))
    none = position_bytes(num_elements, 0)
    choices = (
        (num_bytes - none.narrow) / (VALUE_BYTES + 2),
        (num_bytes - none.bitmap) / VALUE_BYTES,
        num_bytes / (VALUE_BYTES + 4),
    )
    return max(0, math.floor(min(num_elements, max(choices))))


def topk_of(num_elements: int, kept: int) -> Codec:
    """The top-k codec that keeps so many elements of a tensor of this size."""
    return Codec(name="topk", ratio=max(1.0, num_elements / kept))


def least_topk_bytes(num_elements: float, element_bytes: int, max_ratio: float) -> float:
    """Bytes below which no activations may be pressed by top-k if its greatest compression is `max_ratio`."""
    return max(VALUE_BYTES, num_elements * element_bytes / (_RATIO_SLACK * max_ratio) - _SLACK_BYTES)


def least_wire_bytes(
    allowed: Iterable[AllowedCodec], num_elements: float, element_bytes: int, max_ratio: float
) -> tuple[float, float]:
    """Bytes below which no message of activations, and none of gradients, is with any of the codecs allowed."""
    names = set(allowed)
    least = num_elements * min([float(element_bytes), *(_ELEMENT_BYTES[n] for n in names if n in _ELEMENT_BYTES)])
    if not names & {"topk", "adatopk"}:
        return least, least
    pressed = least_topk_bytes(num_elements, element_bytes, max_ratio)
    # Without positions, of 4 bytes each at most, a value of 2 bytes is left.
    return min(least, pressed), min(least, max(VALUE_BYTES, pressed / 3.0))


def least_reduction_bytes(allowed: Iterable[AllowedCodec], max_ratio: float) -> float:
    """Fewest bytes on the wire of one weight's gradient (float32 when dense) with any of the codecs allowed."""
    names = set(allowed)
    if "powersgd" in names:
        return 0.0  # its bytes grow with the root of the bucket
    least = min([4.0, *(_ELEMENT_BYTES[name] for name in names if name in _ELEMENT_BYTES)])
    if not names & {"topk", "adatopk"}:
        return least
    # Of a short range a third less may be kept than the ratio says: 1 of 1.5 times the ratio's elements.
    kept = 1.0 / (1.5 * max_ratio)
    return min(least, kept * (VALUE_BYTES + 2), kept * VALUE_BYTES + 0.125)
