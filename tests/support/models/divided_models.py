"""Small models that members of a group divide, each with a trait that a division has to see."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from hetplanner.capture.assemble import capture_workload
from hetplanner.workload.workload import Workload

SAMPLES, TOKENS, WIDTH, HEADS = 4, 8, 16, 4


class Framed(nn.Module):
    """A table in front of a body and a head behind it."""

    words = 64

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(self.words, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, self.words, bias=False)

    def body(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        logits: Tensor = self.head(x + self.body(x))
        return logits


class Thirds(Framed):
    """Queries, keys and values behind one another, then heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def body(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        y: Tensor = self.out(found.transpose(1, 2).reshape(x.shape))
        return y + super().body(y)


class Sliced(Framed):
    """Gate and value are slices of one product; a scale and a shift for each of its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 4 * WIDTH)
        self.scale, self.shift = nn.Parameter(torch.rand(2 * WIDTH)), nn.Parameter(torch.rand(2 * WIDTH))

    def body(self, x: Tensor) -> Tensor:
        both = self.both(self.norm(x))
        y: Tensor = self.down(both[..., : 2 * WIDTH].sigmoid() * both[..., 2 * WIDTH :] * self.scale + self.shift)
        return y


class OddWords(Framed):
    """Words that no degree divides."""

    words = 67


class Tied(OddWords):
    """The table is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.table.weight


class ReadElsewhere(Framed):
    """A weight that a product and another call read."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) * self.up.weight.mean()


class Compared(Framed):
    """Softmax over all columns of a product."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) * self.up(x).softmax(-1)[..., :WIDTH]


class ScaledTwice(Framed):
    """One norm for tokens, and for what every member has."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) + self.norm(x.cumsum(1).flip(1))


class Quantised(Framed):
    """Rows of a large table by numbers that are made of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(self.words, WIDTH)

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) + self.codes((self.norm(x).sum(-1) * 3).abs().long() % self.words)


MODELS = (Framed, Thirds, Sliced, OddWords, Tied, ReadElsewhere, Compared, ScaledTwice, Quantised)


def made(kind: type[nn.Module]) -> Workload:
    """A workload of two micro-batches."""
    tokens = torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)
    return capture_workload(lambda: (kind(), tokens), kind.__name__, global_batch=2 * SAMPLES)
