"""The workload: a model's OP-DAG with the batch it is trained on."""

from functools import cached_property
from math import prod
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hetplanner.dtypes import DTYPE_BYTES, DType
from hetplanner.schema import Name, Noun, Text
from hetplanner.units import short_count
from hetplanner.workload.capturing.dividing import divide
from hetplanner.workload.capturing.division import Division
from hetplanner.workload.capturing.samples import check_numbers, for_samples, why_undivided
from hetplanner.workload.capturing.whole_shares import WholeShares, whole_shares
from hetplanner.workload.fine_tuning import Adapters, FineTuning, adapted_layers
from hetplanner.workload.model import OpGraph
from hetplanner.workload.optimizers import OptimizerName
from hetplanner.workload.program import Program, check_fits_graph
from hetplanner.workload.transformer import Size, TransformerConfig
from hetplanner.workload.transformer_graph import transformer_graph


class HuggingFace(Noun):
    """How transformers knows a captured model.

    Attributes:
        config: content of its config.json.
        stored_names: by the name of a tensor in the model, that in files, where they differ.
        stored_experts: by the name of a weight of all experts of a layer [experts, rows, columns], the names in files
            of what each expert has, with `*` for its number: one expert's lie under one another, in this order.
        unused: names in files of tensors that the captured program does not read.
        adapters: that were put beside its linear layers before it was captured, as PEFT does.
        fan_in_fan_out: whether those layers keep their weights as [in, out] (transformers' Conv1D).
    """

    config: dict[str, Any]
    stored_names: dict[Name, Name] = Field(default_factory=dict)
    stored_experts: Annotated[dict[Name, tuple[Name, ...]], Field(exclude_if=lambda value: not value)] = Field(
        default_factory=dict
    )
    unused: tuple[Name, ...] = ()
    adapters: Annotated[Adapters | None, Field(exclude_if=lambda value: value is None)] = None
    fan_in_fan_out: Annotated[bool, Field(strict=True, exclude_if=lambda value: not value)] = False


class Workload(Noun):
    """What is trained in one step: `global_batch` sequences in micro-batches of `micro_batch`.

    Either `transformer` (the graph follows by formula) or `captured` (a graph from elsewhere) is given; with
    `program` a captured model can be trained, without it only planned. A sample of a captured model has `seq_len`
    targets (images: 1), which are what its tokens are.

    Attributes:
        provenance: what was captured, and the digest of the code it came from.
        optimizer: by name; what it keeps of the weights counts in the memory of a plan.
        fine_tuning: of a transformer by formula, what of it is trained; None for all.
        huggingface: of a model captured from a config of transformers: what its weights load with there.
    """

    name: Name
    transformer: TransformerConfig | None = None
    captured: OpGraph | None = None
    program: Program | None = None
    provenance: Text | None = None
    huggingface: HuggingFace | None = None
    global_batch: Size
    micro_batch: Size
    seq_len: Size
    dtype: DType = "float16"
    optimizer: OptimizerName = "adamw"
    fine_tuning: FineTuning | None = None
    recompute: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.transformer is None) == (self.captured is None):
            raise ValueError("exactly one of transformer and captured must be given")
        if self.program is not None:
            if self.captured is None:
                raise ValueError("program: belongs to a captured graph, and there is none")
            self._check_program(self.program, self.captured)
        self._check_fine_tuning()
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch must be a multiple of micro_batch, got {self.global_batch} and {self.micro_batch}"
            )
        if self.transformer and self.seq_len > self.transformer.max_seq_len:
            raise ValueError(
                f"seq_len must be at most the model's max_seq_len {self.transformer.max_seq_len}, got {self.seq_len}"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Digests of plans that were made before there was the field stay what they were.
        fields: dict[str, Any] = dump(self)
        for name in ("huggingface", "fine_tuning"):
            if fields.get(name) is None:
                fields.pop(name, None)
        return fields

    def _check_fine_tuning(self) -> None:
        if self.fine_tuning is None:
            return
        if self.transformer is None:
            raise ValueError("fine_tuning: a captured model says itself what is frozen; capture it with adapters")
        if self.fine_tuning.adapters is not None:
            adapted_layers(self.transformer, self.fine_tuning.adapters)
        if self.fine_tuning.frozen_layers >= self.transformer.layers:
            raise ValueError(
                f"fine_tuning.frozen_layers must be below the model's {self.transformer.layers} layers,"
                f" got {self.fine_tuning.frozen_layers}"
            )

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
        check_fits_graph(program, graph)
        check_numbers(program)

    def with_micro_batch(self, samples: int, **changes: Any) -> Self:
        """The same in micro-batches of another size, and other fields changed.

        Raises:
            InvalidInput: it does not divide the global batch; or of a captured model only the calls for its own size
                are known.
        """
        if self.program is None or self.program.per_sample is None or samples < 1:
            return self.replace(micro_batch=samples, **changes)
        return self.replace(micro_batch=samples, program=for_samples(self.program, samples), **changes)

    @cached_property
    def why_samples_are_whole(self) -> str:
        """Why devices cannot divide the samples of a captured model's micro-batch; '' if they can."""
        assert self.program is not None
        return why_undivided(self.program, [name for names in self.program.outputs.values() for name in names])

    def division(self, degree: int) -> Division:
        """How so many devices divide the layers of a captured model."""
        assert self.program is not None
        if degree not in self._divisions:
            self._divisions[degree] = divide(self.program, degree)
        return self._divisions[degree]

    def whole_shares(self, degree: int) -> WholeShares:
        """What each of so many devices computes and keeps of a captured model whose layers they divide."""
        assert self.program is not None
        if degree not in self._whole_shares:
            self._whole_shares[degree] = whole_shares(self.program, self.division(degree))
        return self._whole_shares[degree]

    @cached_property
    def _divisions(self) -> dict[int, Division]:
        return {}

    @cached_property
    def _whole_shares(self) -> dict[int, WholeShares]:
        return {}

    @cached_property
    def graph(self) -> OpGraph:
        """The OP-DAG, per sample of `seq_len` tokens in `dtype`."""
        if self.transformer is not None:
            return transformer_graph(
                self.transformer,
                seq_len=self.seq_len,
                dtype_bytes=self.dtype_bytes,
                fine_tuning=self.fine_tuning,
            )
        assert self.captured is not None
        return self.captured

    @property
    def trained_text(self) -> str:
        """What of the model is trained in words, such as 'trains 0.3 M of 124.7 M weights (…)'; '' for all."""
        graph = self.graph
        if graph.num_trained == graph.num_params:
            return ""
        how = str(self.fine_tuning) if self.fine_tuning else "the captured model's others are frozen"
        return f"trains {short_count(graph.num_trained)} of {short_count(graph.num_params)} weights ({how})"

    @property
    def base_params(self) -> int:
        """Weights of the model without the adapters that fine-tuning adds."""
        graph = self.graph
        has_adapters = self.fine_tuning is not None and self.fine_tuning.adapters is not None
        return graph.num_params - (graph.num_trained if has_adapters else 0)

    @cached_property
    def output_elements(self) -> tuple[int, ...]:
        """By op: elements that one micro-batch's output has where later ops read it."""
        program = self.program
        if program is None or program.micro_batch != self.micro_batch:
            return tuple(op.output_bytes * self.micro_batch // self.dtype_bytes for op in self.graph.ops)
        # A tensor without a batch dimension has no whole number of bytes per sample.
        shapes = {node.name: node.shape or () for node in program.nodes}
        return tuple(sum(prod(shapes[n]) for n in program.outputs.get(op.name, ())) for op in self.graph.ops)

    @cached_property
    def boundary_elements(self) -> tuple[int, ...]:
        """By boundary: elements of all tensors of one micro-batch that cross it, as one message; 0 at both ends."""
        sizes = self.output_elements
        return tuple(sum(sizes[op] for op in crossing) for crossing in self.graph.crossing_ops)

    @cached_property
    def gradient_elements(self) -> tuple[int, ...]:
        """By boundary: elements of the gradient that goes back; 0 where nothing in front of it is trained."""
        first = self.graph.first_trained
        return tuple(n if k > first else 0 for k, n in enumerate(self.boundary_elements))

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """Where a stage may end: boundaries that a tensor crosses; of a transformer by formula those between layers."""
        ops, elements = self.graph.ops, self.boundary_elements
        return tuple(
            k
            for k in range(1, len(ops))
            if elements[k] and (self.transformer is None or ops[k].layer != ops[k - 1].layer)
        )

    @property
    def most_stages(self) -> int:
        """The most stages that the model can be cut into: a transformer by formula into its layers."""
        return self.graph.num_layers if self.transformer is not None else len(self.boundaries) + 1

    @property
    def most_stages_text(self) -> str:
        """The same in words, such as 'the model's 6 layers'."""
        return f"the model's {self.most_stages} {'layers' if self.transformer is not None else 'parts'}"

    @property
    def reads_tokens(self) -> bool:
        """Whether a sample is a sequence of token ids."""
        return self.program is None or (self.program.inputs_dtype == "int64" and len(self.program.inputs) == 2)

    @property
    def continues_text(self) -> bool:
        """Whether it learns the next token of every place."""
        return self.reads_tokens and (self.program is None or self.program.task is None)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of weights and activations."""
        return DTYPE_BYTES[self.dtype]

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches in one step, over all replicas."""
        return self.global_batch // self.micro_batch

    @property
    def token_word(self) -> str:
        """What `tokens_per_step` counts, in a word: an image is one sample, or one target a pixel."""
        if self.program is not None and self.program.task is not None:
            return "targets"
        return "samples" if self.seq_len == 1 else "tokens" if self.reads_tokens else "targets"

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
        return self.global_batch * self.seq_len
