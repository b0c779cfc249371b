"""The terms of a step's time in the words that people read: tables, figures, reports and the page share them."""

TERM_WORDS = {"bubble": "waiting", "pipeline_transfer": "transfer", "data_parallel": "reduction"}
"""Names in files -> words, where they differ."""

TERM_SENTENCES = {
    "compute": "forward and backward passes",
    "waiting": "a device waits until another has computed: fill and drain of the pipeline, unequal stages",
    "transfer": "a device waits for activations or gradients on their way between stages",
    "reduction": "replicas agree on gradients behind the pipeline's end",
    "optimizer": "the update of the weights",
}
"""Words -> what they are."""


def term_label(term: str) -> str:
    """'reduction' for 'data_parallel' or 'data_parallel_s'."""
    name = term.removesuffix("_s")
    return TERM_WORDS.get(name, name.replace("_", " "))
