"""The workload: a model's OP-DAG with the batch it is trained on."""

from functools import cached_property
from typing import Literal, Self

from pydantic import model_validator

from hetplanner.dtypes import DTYPE_BYTES, DType
from hetplanner.schema import Name, Noun, Text
from hetplanner.workload.model import OpGraph
from hetplanner.workload.program import Program, check_program
from hetplanner.workload.transformer import Size, TransformerConfig, transformer_graph


class Workload(Noun):
    """What is trained in one step: `global_batch` sequences in micro-batches of `micro_batch`.

    Either `transformer` (the graph follows by formula) or `captured` (a graph from elsewhere) is given; with
    `program` a captured model can be trained, without it only planned. A sample of a captured model has `seq_len`
    targets (images: 1), which are what its tokens are.

    Attributes:
        provenance: what was captured, and the digest of the code it came from.
    """

    name: Name
    transformer: TransformerConfig | None = None
    captured: OpGraph | None = None
    program: Program | None = None
    provenance: Text | None = None
    global_batch: Size
    micro_batch: Size
    seq_len: Size
    dtype: DType = "float16"
    optimizer: Literal["adamw"] = "adamw"
    recompute: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.transformer is None) == (self.captured is None):
            raise ValueError("exactly one of transformer and captured must be given")
        if self.program is not None:
            if self.captured is None:
                raise ValueError("program: belongs to a captured graph, and there is none")
            self._check_program(self.program, self.captured)
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch must be a multiple of micro_batch, got {self.global_batch} and {self.micro_batch}"
            )
        if self.transformer and self.seq_len > self.transformer.max_seq_len:
            raise ValueError(
                f"seq_len must be at most the model's max_seq_len {self.transformer.max_seq_len}, got {self.seq_len}"
            )
        return self

    def _check_program(self, program: Program, graph: OpGraph) -> None:
        if program.micro_batch != self.micro_batch:
            raise ValueError(
                f"micro_batch must be {program.micro_batch}, for which the model was captured, got {self.micro_batch};"
                f" capture it again: hetplanner workload capture ... --micro-batch {self.micro_batch}"
            )
        if program.num_targets != self.seq_len:
            raise ValueError(
                f"seq_len must be {program.num_targets}, for which the model was captured, got {self.seq_len};"
                " capture it again with other example inputs"
            )
        check_program(program, graph)

    @cached_property
    def graph(self) -> OpGraph:
        """The OP-DAG, per sample of `seq_len` tokens in `dtype`."""
        if self.transformer is not None:
            return transformer_graph(self.transformer, seq_len=self.seq_len, dtype_bytes=self.dtype_bytes)
        assert self.captured is not None
        return self.captured

    @property
    def reads_tokens(self) -> bool:
        """Whether a sample is a sequence of token ids."""
        return self.program is None or (self.program.inputs_dtype == "int64" and len(self.program.inputs) == 2)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of weights and activations."""
        return DTYPE_BYTES[self.dtype]

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches in one step, over all replicas."""
        return self.global_batch // self.micro_batch

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
        return self.global_batch * self.seq_len
