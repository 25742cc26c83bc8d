"""The laws of the plans: constant batches, contiguous streams, everything once, the same again, apart by rank."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.datasets.data_config import SamplingConfig
from rvtssm.datasets.sampling import EvalBatchSampler, MixedBatchSampler, chunks_of, random_chunk

recordings = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def labelled_steps(num_steps):
    return np.arange(1, num_steps, 3) if num_steps > 1 else np.arange(num_steps)


def sampler(num_steps, mode="mixed", batch_size=4, length=5, seed=0, rank=0, world_size=1, accumulate=1, **options):
    config = SamplingConfig(mode=mode, batch_size=batch_size, chunk_length=length, **options)
    labelled = [labelled_steps(n) for n in num_steps]
    return MixedBatchSampler(num_steps, labelled, config, seed, rank, world_size, accumulate=accumulate)


def epoch_of(plan):
    """The batches of one epoch, consumed."""
    batches = []
    for batch in plan:
        plan.advance()
        batches.append(batch)
    return batches


def by_slot(batches):
    slots = defaultdict(list)
    for batch in batches:
        for request in batch:
            if request.slot >= 0:
                slots[request.slot].append(request)
    return slots


@settings(max_examples=60)
@given(recordings, st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_streams_are_constant_contiguous_and_complete(num_steps, batch_size, length, world_size, seed, accumulate):
    read = []
    lengths, shares = set(), []
    for rank in range(world_size):
        batches = list(sampler(num_steps, "stream", batch_size, length, seed, rank, world_size, accumulate))
        lengths.add(len(batches))
        assert all([r.slot for r in batch] == list(range(batch_size)) for batch in batches)
        for requests in by_slot(batches).values():
            filled = [r for r in requests if not r.is_empty]
            shares.append(len(filled))
            assert requests[: len(filled)] == filled, "empty requests come last"
            for before, request in zip([None, *filled], filled, strict=False):
                if before is not None and request.recording == before.recording:
                    assert request.start == before.stop and not request.is_first
                    assert request.augment_seed == before.augment_seed
                else:
                    assert request.is_first
                    assert before is None or request.start == 0, "only the first chunk of a slot may be a cut one"
                    assert before is None or before.stop == num_steps[before.recording]
            read += [(r.recording, r.start, r.stop) for r in filled]
    assert len(lengths) == 1, "every process has equally many batches"
    num_chunks = sum(len(chunks_of(n, length)) for n in num_steps)
    (num_batches,) = lengths
    assert num_batches % accumulate == 0, "and whole steps of the optimiser"
    assert (num_batches - accumulate) * batch_size * world_size < num_chunks, "of which none is without data"
    assert max(shares) - min(shares) <= 1, "and every slot as much to read"
    assert sorted(read) == [(r, *chunk) for r, n in enumerate(num_steps) for chunk in chunks_of(n, length)]


@given(recordings, st.integers(1, 4), st.integers(1, 7), st.integers(1, 3))
def test_evaluation_keeps_every_recording_whole(num_steps, batch_size, length, world_size):
    place = {}
    read = []
    lengths = set()
    for rank in range(world_size):
        plan = EvalBatchSampler(num_steps, length, batch_size, rank, world_size)
        batches = list(plan)
        lengths.add(len(batches))
        assert len(batches) == len(plan) and all(1 <= len(batch) <= batch_size for batch in batches)
        assert batches == list(plan), "a second pass is the same"
        for slot, requests in by_slot(batches).items():
            for request in (r for r in requests if not r.is_empty):
                assert place.setdefault(request.recording, (rank, slot)) == (rank, slot)
                assert request.is_first == (request.start == 0)
                read.append((request.recording, request.start, request.stop))
    assert len(lengths) == 1
    order = defaultdict(list)
    for recording, start, stop in read:
        order[recording].append((start, stop))
    assert order == {r: chunks_of(n, length) for r, n in enumerate(num_steps) if n}


def test_evaluation_takes_little_longer_than_the_longest_share():
    num_steps = [100, 90, 10, 10, 10, 80]
    assert len(EvalBatchSampler(num_steps, 10, 3)) == 10
    shares = [EvalBatchSampler([100, 90, 10, 8], 10, 2, rank, 2) for rank in range(2)]
    num_read = [sum(not request.is_empty for batch in share for request in batch) for share in shares]
    assert num_read == [11, 10], "each process has one of the long ones"


def test_a_mixed_batch_holds_random_chunks_and_streams():
    for share, num_streams in ((0.4, 2), (0.2, 1), (0.8, 4)):
        num_random = 5 - num_streams
        for batch in sampler([30, 20], batch_size=5, stream_share=share):
            assert [r.slot for r in batch] == [-1] * num_random + list(range(num_streams))
            assert [r.slot < 0 for r in batch] == [True] * num_random + [False] * num_streams


@settings(max_examples=10)
@given(recordings, st.integers(1, 7), st.integers(1, 3))
def test_random_chunks_draw_every_label_once_before_any_again(num_steps, length, world_size):
    drawn = []
    for rank in range(world_size):
        plan = sampler(num_steps, "random", 2, length, rank=rank, world_size=world_size)
        # whole passes: as many epochs as make the draws a multiple of the labels
        epochs = sum(len(labelled_steps(n)) for n in num_steps)
        for index, batch in enumerate(b for _ in range(epochs) for b in epoch_of(plan)):
            for j, request in enumerate(batch):
                assert request.is_first and request.slot == -1
                assert request.stop - request.start == min(length, num_steps[request.recording])
                drawn.append(((index * world_size + rank) * 2 + j, request))
    drawn = [request for _, request in sorted(drawn, key=lambda item: item[0])]
    wanted = sorted(
        (r, *random_chunk(step, n, length))
        for r, n in enumerate(num_steps)
        for step in (range(1, n, 3) if n > 1 else range(n))
    )
    for first in range(0, len(drawn), len(wanted)):
        part = drawn[first : first + len(wanted)]
        assert sorted((r.recording, r.start, r.stop) for r in part) == wanted
    assert len({r.augment_seed for r in drawn}) == len(drawn)


def test_a_random_chunk_ends_at_its_label_where_it_can():
    assert random_chunk(20, 40, 6) == (15, 21)
    assert random_chunk(5, 40, 6) == (0, 6)
    assert random_chunk(2, 40, 6) == (0, 6)
    assert random_chunk(2, 4, 6) == (0, 4)


@pytest.mark.parametrize("mode", ["random", "stream"])
def test_order_and_augmentation_change_with_the_seed_and_with_each_pass(mode):
    plan = sampler([12] * 12, mode)  # an epoch is one pass in both modes
    passes = [epoch_of(plan), epoch_of(plan), epoch_of(sampler([12] * 12, mode, seed=1))]
    requests = [[request for batch in batches for request in batch] for batches in passes]
    orders = {tuple((r.recording, r.start) for r in of_pass) for of_pass in requests}
    assert len(orders) == 3 and len({tuple(sorted(order)) for order in orders}) == 1
    seeds = [{request.augment_seed for request in of_pass} for of_pass in requests]
    assert len(set.union(*seeds)) == sum(map(len, seeds))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream_share": 0}, "stream_share=0 .*use sampling.mode=random"),
        ({"stream_share": 1}, "stream_share=1 .*use sampling.mode=stream"),
    ],
)
def test_a_choice_that_makes_no_batch_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        sampler([10], **options)


def test_missing_labels_and_missing_steps_are_named():
    config = SamplingConfig(chunk_length=5)
    with raises("sampling.no_labels"):
        MixedBatchSampler([10], [np.zeros(0, np.int64)], config)
    with raises("sampling.no_steps"):
        sampler([0], "stream")
    with raises("sampling.stored_place"):
        sampler([10]).load_state_dict({"epoch": 0, "batch": len(sampler([10]))})
