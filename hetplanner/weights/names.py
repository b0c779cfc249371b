"""What transformers calls the weights of our formulas, and how they lie in its files.

GPT-2 keeps its linear layers transposed ([in, out], Conv1D); both keep one fused or three single projections where we
have one: our rows are query heads, then key heads, then value heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from hetplanner.errors import InvalidInput
from hetplanner.workload.calls import STATISTICS_CALLS
from hetplanner.workload.program import Program, references
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

EXPERTS_NDIM = 3
"""Axes of the weights of a layer's experts: expert, rows, columns."""

MOST_EXPERTS = 65_536


@dataclass(frozen=True, slots=True)
class Part:
    """Where some rows of one of our weights lie.

    Attributes:
        name: of the tensor in the file.
        shape: of it there.
        first_row: of our weight; one with more axes than the part counts the rows of all its matrices.
        transposed: whether the file has columns for rows.
        dtype: our element type.
        other: another name that the tensor may have, '' for none.
    """

    name: str
    shape: tuple[int, ...]
    first_row: int = 0
    transposed: bool = False
    dtype: str = "float32"
    other: str = ""

    @property
    def num_rows(self) -> int:
        """Rows of our weight that it fills; a number without axes is one."""
        return (self.shape[-1] if self.transposed else self.shape[0]) if self.shape else 1

    @property
    def num_elements(self) -> int:
        """Elements of it."""
        return prod(self.shape)


def is_adapter(name: str) -> bool:
    """Whether a weight of a captured model is an adapter's, which is no part of its files."""
    return name.endswith((".lora_A.default.weight", ".lora_B.default.weight"))


def base_name(name: str) -> str:
    """What a weight of a captured model is called without the adapters beside it."""
    return name.replace(".base_layer.", ".")


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """By our name of a tensor that training keeps, the tensors of a file that make it up; not those of adapters."""
    if workload.program is not None:
        known = workload.huggingface
        found = _program_parts(workload.program, known.stored_names if known is not None else {})
        for name, patterns in (known.stored_experts if known is not None else {}).items():
            found[name] = _expert_parts(workload.program, name, patterns)
        return found
    assert workload.transformer is not None
    return (_gpt2 if workload.transformer.family == "gpt2" else _llama)(workload.transformer)


def _program_parts(program: Program, stored: Mapping[str, str]) -> dict[str, tuple[Part, ...]]:
    found: dict[str, tuple[Part, ...]] = {
        name: (Part(stored.get(name, name), parameter.shape, other=base_name(name)),)
        for name, parameter in program.parameters.items()
        if not is_adapter(name)
    }
    moving = {
        name for node in program.nodes if node.call in STATISTICS_CALLS and node.op is not None
        for kind, name in references(node) if kind == "buffer"
    }  # fmt: skip
    moving |= {name.removesuffix("running_mean") + "num_batches_tracked" for name in moving}
    for name, buffer in program.buffers.items():
        if buffer.running and name in moving:
            found[name] = (Part(stored.get(name, name), buffer.shape, dtype=buffer.dtype, other=name),)
    return found


def _expert_parts(program: Program, name: str, patterns: tuple[str, ...]) -> tuple[Part, ...]:
    """A weight of all experts of a layer as files have it: expert by expert, a matrix a pattern."""
    shape = program.parameters[name].shape if name in program.parameters else ()
    if len(shape) != EXPERTS_NDIM or shape[0] > MOST_EXPERTS or not patterns or shape[1] % len(patterns):
        raise InvalidInput(
            f"workload: huggingface.stored_experts: {name!r:.80} is no weight of experts of {len(patterns)} parts each;"
            " capture the model again"
        )
    experts, rows, columns = shape
    height = rows // len(patterns)
    names = [pattern.replace("*", str(expert)) for expert in range(experts) for pattern in patterns]
    return tuple(Part(stored, (height, columns), first_row=height * i) for i, stored in enumerate(names))


def _gpt2(c: TransformerConfig) -> dict[str, tuple[Part, ...]]:
    found: dict[str, tuple[Part, ...]] = {
        "embedding.tokens.weight": (Part("transformer.wte.weight", (c.vocab, c.hidden)),),
        "embedding.positions.weight": (Part("transformer.wpe.weight", (c.max_seq_len, c.hidden)),),
    }

    def linear(ours: str, theirs: str, wide_in: int, wide_out: int) -> None:
        found[f"{ours}.weight"] = (Part(f"{theirs}.weight", (wide_in, wide_out), transposed=True),)
        found[f"{ours}.bias"] = (Part(f"{theirs}.bias", (wide_out,)),)

    def norm(ours: str, theirs: str) -> None:
        for leaf in ("weight", "bias"):
            found[f"{ours}.norm_in.{leaf}"] = (Part(f"{theirs}.{leaf}", (c.hidden,)),)

    for i in range(c.layers):
        ours, theirs = f"layer.{i}", f"transformer.h.{i}"
        norm(f"{ours}.attention", f"{theirs}.ln_1")
        linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", c.hidden, 3 * c.hidden)
        linear(f"{ours}.attention.out", f"{theirs}.attn.c_proj", c.hidden, c.hidden)
        norm(f"{ours}.mlp", f"{theirs}.ln_2")
        linear(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc", c.hidden, c.ffn)
        linear(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj", c.ffn, c.hidden)
    norm("final_norm", "transformer.ln_f")
    if not c.tie_embeddings:
        found["head.weight"] = (Part("lm_head.weight", (c.vocab, c.hidden)),)
    return found


def _llama(c: TransformerConfig) -> dict[str, tuple[Part, ...]]:
    wide = c.num_kv_heads * c.head_dim
    found: dict[str, tuple[Part, ...]] = {
        "embedding.tokens.weight": (Part("model.embed_tokens.weight", (c.vocab, c.hidden)),)
    }
    for i in range(c.layers):
        ours, theirs = f"layer.{i}", f"model.layers.{i}"
        found[f"{ours}.attention.norm_in.weight"] = (Part(f"{theirs}.input_layernorm.weight", (c.hidden,)),)
        found[f"{ours}.attention.qkv.weight"] = (
            Part(f"{theirs}.self_attn.q_proj.weight", (c.hidden, c.hidden)),
            Part(f"{theirs}.self_attn.k_proj.weight", (wide, c.hidden), first_row=c.hidden),
            Part(f"{theirs}.self_attn.v_proj.weight", (wide, c.hidden), first_row=c.hidden + wide),
        )
        if c.qkv_bias:
            found[f"{ours}.attention.qkv.bias"] = (
                Part(f"{theirs}.self_attn.q_proj.bias", (c.hidden,)),
                Part(f"{theirs}.self_attn.k_proj.bias", (wide,), first_row=c.hidden),
                Part(f"{theirs}.self_attn.v_proj.bias", (wide,), first_row=c.hidden + wide),
            )
        found[f"{ours}.attention.out.weight"] = (Part(f"{theirs}.self_attn.o_proj.weight", (c.hidden, c.hidden)),)
        found[f"{ours}.mlp.norm_in.weight"] = (Part(f"{theirs}.post_attention_layernorm.weight", (c.hidden,)),)
        found[f"{ours}.mlp.gate.weight"] = (Part(f"{theirs}.mlp.gate_proj.weight", (c.ffn, c.hidden)),)
        found[f"{ours}.mlp.up.weight"] = (Part(f"{theirs}.mlp.up_proj.weight", (c.ffn, c.hidden)),)
        found[f"{ours}.mlp.down.weight"] = (Part(f"{theirs}.mlp.down_proj.weight", (c.hidden, c.ffn)),)
    found["final_norm.norm_in.weight"] = (Part("model.norm.weight", (c.hidden,)),)
    if not c.tie_embeddings:
        found["head.weight"] = (Part("lm_head.weight", (c.vocab, c.hidden)),)
    return found
