"""The order of samples: a permutation every epoch, a pure function of its arguments."""

import numpy as np
import pytest

from hetplanner.data.order import SampleOrder, permuted


@pytest.mark.parametrize("num", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_every_epoch_is_a_permutation(num: int) -> None:
    for epoch in (0, 1, 500):
        assert sorted(permuted(np.arange(num), num, 7, np.full(num, epoch))) == list(range(num))


def test_a_sample_returns_exactly_once_an_epoch_whatever_the_batch() -> None:
    order = SampleOrder(num_samples=30, seed=3, micro_batch=4, num_micro_batches=3)
    dealt = np.concatenate([order.ids(t, m) for t in range(10) for m in range(3)])  # 120 = four epochs
    for epoch in range(4):
        assert sorted(dealt[30 * epoch : 30 * epoch + 30]) == list(range(30))
    regrouped = SampleOrder(num_samples=30, seed=3, micro_batch=2, num_micro_batches=6)
    assert list(np.concatenate([regrouped.ids(0, m) for m in range(6)])) == list(dealt[:12])


def test_epochs_and_seeds_differ_and_look_shuffled() -> None:
    num = 2000
    at = np.arange(num)
    orders = [permuted(at, num, seed, np.full(num, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for i, a in enumerate(orders):
        assert abs(np.corrcoef(at, a)[0, 1]) < 0.1
        assert np.mean(np.diff(a) == 1) < 0.01
        for b in orders[i + 1 :]:
            assert np.mean(a == b) < 0.01


def test_the_order_is_pinned_so_that_old_runs_can_be_resumed() -> None:
    assert list(permuted(np.arange(8), 8, 0, np.zeros(8, dtype=np.int64))) == PINNED


def test_huge_data_takes_no_memory() -> None:
    ids = SampleOrder(10**15, 1, 8, 4).ids(10**6, 3)
    assert len(set(ids)) == 8
    assert all(0 <= i < 10**15 for i in ids)


PINNED = [1, 6, 3, 7, 0, 4, 5, 2]
