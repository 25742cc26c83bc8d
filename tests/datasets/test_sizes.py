"""Recordings whose frames have several sizes: each batch has one size, and every plan keeps its laws."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rvtssm.datasets.loading_config import SamplingConfig
from rvtssm.datasets.sampling import EvalBatchSampler, MixedBatchSampler, SizedBatchSampler

SIZES = [[0, 2, 4], [1, 3]]
NUM_STEPS = [23, 7, 9, 16, 40]
LENGTH = 4


def plan(mode: str = "mixed", rank: int = 0, world_size: int = 1, accumulate: int = 1) -> SizedBatchSampler:
    config = SamplingConfig(mode=mode, batch_size=3, chunk_length=LENGTH)
    plans = [
        MixedBatchSampler(
            [NUM_STEPS[r] for r in mine],
            [np.arange(0, NUM_STEPS[r], 3) for r in mine],
            config,
            5,
            rank,
            world_size,
            accumulate=accumulate,
        )
        for mine in SIZES
    ]
    return SizedBatchSampler(plans, SIZES, 5)


@pytest.mark.parametrize("mode", ["mixed", "stream", "random"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_batch_has_one_size_and_an_epoch_reads_every_chunk_once(mode, accumulate):
    sampler = plan(mode, accumulate=accumulate)
    for _ in range(2):
        batches = list(sampler)
        assert len(batches) == len(sampler) and len(batches) % accumulate == 0
        order = []
        for batch in batches:
            (size,) = {next(k for k, mine in enumerate(SIZES) if request.like in mine) for request in batch}
            assert all(request.recording in SIZES[size] for request in batch if not request.is_empty)
            order.append(size)
            sampler.advance()
        assert order != sorted(order) and set(order) == {0, 1}
        if mode != "random":
            streamed = [(r.recording, r.start) for batch in batches for r in batch if r.slot >= 0 and not r.is_empty]
            wanted = [(r, start) for r, n in enumerate(NUM_STEPS) for start in range(0, n, LENGTH)]
            assert Counter(streamed) == Counter(wanted)
    assert sampler.state_dict() == {"epoch": 2, "batch": 0}


def test_streams_of_a_size_go_on_where_they_were():
    ahead: dict[tuple[int, int], tuple[int, int]] = {}
    for batch in plan():
        for request in batch:
            if request.slot < 0 or request.is_empty:
                continue
            if not request.is_first:
                assert ahead[request.like, request.slot] == (request.recording, request.start)
            ahead[request.like, request.slot] = (request.recording, request.stop)


def test_every_place_is_resumed_from():
    whole = plan()
    batches = list(whole)
    for _ in range(len(batches) - 1):
        whole.advance()
        resumed = plan()
        resumed.load_state_dict(whole.state_dict())
        assert list(resumed) == batches[whole.batch :]


def test_processes_have_the_same_size_in_a_step():
    ranks = [[[request.like for request in batch] for batch in plan(rank=rank, world_size=2)] for rank in range(2)]
    assert [set(batch) for batch in ranks[0]] == [set(batch) for batch in ranks[1]]


def test_an_evaluation_streams_every_recording_beside_those_of_its_size():
    requests = [list(EvalBatchSampler(NUM_STEPS, LENGTH, 2, rank, 2, SIZES)) for rank in range(2)]
    assert len(requests[0]) == len(requests[1])
    read = []
    for batch in [*requests[0], *requests[1]]:
        shown = {r.like if r.is_empty else r.recording for r in batch}
        assert sum(bool(shown & set(mine)) for mine in SIZES) == 1
        read += [(r.recording, r.start) for r in batch if not r.is_empty]
    assert sorted(read) == [(r, start) for r, n in enumerate(NUM_STEPS) for start in range(0, n, LENGTH)]
    one_size = list(EvalBatchSampler(NUM_STEPS, LENGTH, 2))
    assert one_size == list(EvalBatchSampler(NUM_STEPS, LENGTH, 2, sizes=[range(5)]))
    assert [replace(r, like=0) for r in one_size[0]] == one_size[0]
