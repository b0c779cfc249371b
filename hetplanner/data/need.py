"""What a workload needs of its data: token windows, or images with a class each."""

from dataclasses import dataclass

from hetplanner.errors import InvalidInput
from hetplanner.workload.program import Node, Program, references
from hetplanner.workload.task import Task
from hetplanner.workload.workload import Workload


@dataclass(frozen=True)
class TokenNeed:
    """Windows of `seq_len` token ids with the ids one place on as labels.

    Attributes:
        vocab: ids must be below it; None if the program does not tell.
        ignores_labels: whether its loss leaves out targets of -100.
        task: what it learns, where that is not the next token of every place.
    """

    workload: str
    seq_len: int
    vocab: int | None
    ignores_labels: bool = True
    task: Task | None = None


@dataclass(frozen=True)
class ImageNeed:
    """Images [channels, height, width] in float32 with a class number each.

    Attributes:
        classes: class numbers must be below it; None if the program does not tell.
    """

    workload: str
    channels: int
    height: int
    width: int
    classes: int | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return (self.channels, self.height, self.width)


Need = TokenNeed | ImageNeed


def need_of(workload: Workload) -> Need:
    """What the workload reads.

    Raises:
        InvalidInput: a captured program whose inputs are neither tokens nor images, or no program at all.
    """
    if workload.transformer is not None:
        return TokenNeed(workload.name, workload.seq_len, workload.transformer.vocab)
    if workload.program is None:
        raise InvalidInput(f"workload {workload.name}: is a captured graph without a program, it takes no data")
    return _need_of_program(workload.name, workload.program)


def _need_of_program(name: str, program: Program) -> Need:
    inputs, labels = program.inputs, program.labels
    if program.task is not None:
        return TokenNeed(name, inputs[1], _vocab(program), task=program.task)
    if program.labels_dtype == "int64":
        if program.inputs_dtype == "int64" and len(inputs) == 2 and labels == inputs:
            known = [n for n in (_vocab(program), _classes(program)) if n is not None]
            return TokenNeed(name, inputs[1], min(known, default=None), _ignores_labels(program))
        if program.inputs_dtype == "float32" and len(inputs) == 4 and labels == inputs[:1]:
            return ImageNeed(name, *inputs[1:], _classes(program))
    raise InvalidInput(
        f"workload {name}: no kind of data gives inputs {program.inputs_dtype} {list(inputs)} with labels"
        f" {program.labels_dtype} {list(labels)}; there are tokens (int64 [B, T] twice) and images (float32 [B, C, H,"
        " W] with int64 [B])"
    )


def _ignores_labels(program: Program) -> bool:
    """Whether the loss is a sum of cross-entropies that leaves targets of -100 out, as torch does unless told else."""
    loss = next(node for node in program.nodes if node.name == program.loss)
    given = dict(zip(("input", "target", "weight", "reduction", "ignore_index"), loss.args, strict=False)) | loss.kwargs
    is_sum = given.get("reduction", 1) == 2  # torch's enum: none, mean, sum
    return loss.call == "cross_entropy_loss.default" and is_sum and given.get("ignore_index", -100) == -100


def _vocab(program: Program) -> int | None:
    """Rows of the first table that is looked up by the batch's inputs."""
    reading: set[str] = set()
    for node in program.nodes:
        sources = references(node)
        if not any(s == ("batch", "inputs") or (s[0] == "node" and s[1] in reading) for s in sources):
            continue
        reading.add(node.name)
        tables = [name for kind, name in sources if kind == "parameter"]
        if node.call.startswith("embedding.") and tables:
            return program.parameters[tables[0]].shape[0]
    return None


def _classes(program: Program) -> int | None:
    """Width of the logits in front of the cross-entropy."""
    shapes = {node.name: node.shape for node in program.nodes}
    for node in reversed(program.nodes):
        if node.call.startswith(("cross_entropy_loss.", "nll_loss")):
            shape = shapes.get(_first_node(node))
            if shape:
                return shape[1] if len(shape) > 1 else shape[0]
    return None


def _first_node(node: Node) -> str:
    return next((name for kind, name in references(node) if kind == "node"), "")
