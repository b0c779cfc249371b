"""What a captured model of token ids is to learn, where that is not the next token of every place."""

from typing import Annotated, Literal

from pydantic import Field

from hetplanner.schema import Noun

HIDDEN_SHARE = 0.15
"""Of a sequence's tokens. Source: Devlin et al. 2018 (BERT, arXiv 1810.04805), section 3.1."""

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class HiddenTokens(Noun):
    """To name tokens of the input that are hidden: a fixed number of each sequence, so all samples weigh the same.

    Of the hidden tokens 80 % become `mask_token`, 10 % a random id below `vocab`, and 10 % stay. Labels are the tokens
    at these places, and IGNORED elsewhere.
    """

    kind: Literal["hidden tokens"]
    mask_token: TokenId
    vocab: Annotated[int, Field(strict=True, ge=1, le=2**31)]


class Continuation(Noun):
    """To go on with a text: an encoder reads the first half of a window, a decoder writes the second.

    Inputs are [B, 2T]: T tokens for the encoder; then `start_token` and T - 1 tokens for the decoder. Labels are the
    window's last T tokens.
    """

    kind: Literal["continuation"]
    start_token: TokenId


class Pairs(Noun):
    """To write the target of a source: an encoder reads a text, a decoder writes another.

    Inputs are [B, 2T]: T tokens for the encoder, filled up with `pad_token`, which it does not see; then `start_token`
    and T - 1 tokens for the decoder. Labels are the T tokens of the target, IGNORED behind its end.
    """

    kind: Literal["pairs"]
    start_token: TokenId
    pad_token: TokenId


Task = Annotated[HiddenTokens | Continuation | Pairs, Field(discriminator="kind")]

IGNORED = -100
"""The label of a token that counts in no loss, as torch's cross-entropy has it."""


def num_hidden(seq_len: int) -> int:
    """Hidden tokens of a sequence: 15 % of it, at least one."""
    return max(1, round(HIDDEN_SHARE * seq_len))
