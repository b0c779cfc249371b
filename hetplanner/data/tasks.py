"""Windows of token ids as inputs and labels of a task: pure functions of seed, step and sample.

Shape legend: B samples of a micro-batch, T tokens (a continuation: of each half), K hidden tokens of a sequence.
"""

import numpy as np

from hetplanner.data.order import random_numbers
from hetplanner.workload.task import IGNORED, Continuation, HiddenTokens

MASKED_OF_10, RANDOM_OF_10 = 8, 1
"""Of ten hidden tokens; the others stay. Source: Devlin et al. 2018, section 3.1."""


def inputs_and_labels(
    task: HiddenTokens | Continuation, window: np.ndarray, *, num_targets: int, seed: int, step: int, ids_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What a model reads and shall say.

    Args:
        task: what it learns.
        window: token ids (int64) [B, T], for a continuation [B, 2T]; not changed.
        num_targets: of a sample.
        seed, step: of the run; validation has its own.
        ids_B: which samples these are.

    Returns:
        Inputs (int64, as the window) and labels (int64 [B, T]).
    """
    if isinstance(task, Continuation):
        return _continued(window, task.start_token)
    return _hidden(window, task, num_targets, random_numbers(seed, step, ids_B, 3 * window.shape[1]))


def _continued(window: np.ndarray, start_token: int) -> tuple[np.ndarray, np.ndarray]:
    half = window.shape[1] // 2
    start_B1 = np.full((len(window), 1), start_token, dtype=np.int64)
    inputs = np.concatenate([window[:, :half], start_B1, window[:, half:-1]], axis=1)
    return inputs, np.ascontiguousarray(window[:, half:])


def _hidden(
    window_BT: np.ndarray, task: HiddenTokens, count: int, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rank_BT, fate_BT, id_BT = np.split(numbers, 3, axis=1)
    place_BK = np.argsort(rank_BT, axis=1, kind="stable")[:, :count]
    token_BK = np.take_along_axis(window_BT, place_BK, axis=1)
    tenth_BK = np.take_along_axis(fate_BT % np.uint64(10), place_BK, axis=1)
    random_BK = np.take_along_axis(id_BT % np.uint64(task.vocab), place_BK, axis=1).astype(np.int64)
    shown_BK = np.where(tenth_BK < MASKED_OF_10, task.mask_token, token_BK)
    is_random_BK = (tenth_BK >= MASKED_OF_10) & (tenth_BK < MASKED_OF_10 + RANDOM_OF_10)
    inputs_BT, labels_BT = window_BT.copy(), np.full_like(window_BT, IGNORED)
    np.put_along_axis(inputs_BT, place_BK, np.where(is_random_BK, random_BK, shown_BK), axis=1)
    np.put_along_axis(labels_BT, place_BK, token_BK, axis=1)
    return inputs_BT, labels_BT
