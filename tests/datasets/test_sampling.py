"""The laws of the plans: constant batches, contiguous streams, everything once, the same again, apart by rank."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_datamodule import assert_all_equal
from user_errors import raises

from rvtssm.datasets import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.datasets.datamodule import SequenceDataModule, drawn_windows
from rvtssm.datasets.loader import ChunkDataset
from rvtssm.datasets.sampling import ChunkRequest, EvalBatchSampler, MixedBatchSampler, chunks_of, random_chunk
from rvtssm.records import WindowSettings

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
        ({"stream_share": 0}, "stream_share=0.*use sampling.mode=random"),
        ({"stream_share": 1}, "stream_share=1.*use sampling.mode=stream"),
    ],
)
def test_a_choice_that_makes_no_batch_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        sampler([10], **options)


def test_missing_labels_and_missing_steps_are_named():
    config = SamplingConfig(chunk_length=5)
    with raises("labels.missing"):
        MixedBatchSampler([10], [np.zeros(0, np.int64)], config)
    with raises("labels.missing"):
        sampler([0], "stream")
    with raises("run.other_settings"):
        sampler([10]).load_state_dict({"epoch": 0, "batch": len(sampler([10]))})


# random windows


LENGTHS_MS = [5.0, 20.0, 50.0]
STILL = {"flip_prob": 0, "zoom_prob": 0, "stream_zoom_prob": 0}


def augmentation(**options) -> AugmentConfig:
    return AugmentConfig(**STILL | {"draws": "all"} | options)


def module(tree, augment, num_workers=0, batch_size=4, **options) -> SequenceDataModule:
    sampling = SamplingConfig(batch_size=batch_size, chunk_length=8)
    data = DataConfig(workers=num_workers, eval_batch_size=2, eval_chunk_length=6)
    return SequenceDataModule(replace(tree, source="raw"), sampling, augment, data, **options)


# a recording of 40 steps with a label every 4, one of 20 and one of 6, at three rates
FACTORS = (1, 4, 10)
NUM_STEPS = [factor * n for factor in FACTORS for n in (40, 20, 6)]
LABEL_STEPS = [factor * np.arange(4, n + 1, 4) - 1 for factor in FACTORS for n in (40, 20, 6)]


def window_sampler(mode="mixed", batch_size=4, rank=0, world_size=1, seed=0) -> MixedBatchSampler:
    config = SamplingConfig(mode=mode, batch_size=batch_size, chunk_length=5)
    return MixedBatchSampler(
        NUM_STEPS, LABEL_STEPS, config, seed, rank, world_size, random_kinds=(0, 1, 2), stream_kinds=(0, 1, 2)
    )


def epochs_of(plan: MixedBatchSampler, count: int) -> list[list[list[ChunkRequest]]]:
    epochs: list[list[list[ChunkRequest]]] = []
    for _ in range(count):
        epochs.append([])
        assert len(plan) == len(list(plan))
        for batch in plan:
            plan.advance()
            epochs[-1].append(batch)
    return epochs


def test_an_epoch_streams_every_recording_once_with_windows_of_one_kind():
    kinds = set()
    by_rank = [epochs_of(window_sampler("stream", 2, rank, world_size=2), 6) for rank in range(2)]
    for parts in zip(*by_rank, strict=True):
        assert len({len(part) for part in parts}) == 1, "every process has equally many batches"
        read = defaultdict(list)
        for part in parts:
            for slot in range(2):
                requests = [batch[slot] for batch in part if not batch[slot].is_empty]
                for before, request in pairwise(requests):
                    if request.recording == before.recording:
                        assert (request.kind, request.start, request.is_first) == (before.kind, before.stop, False)
                    else:
                        assert request.is_first
                for request in requests:
                    read[request.recording, request.kind].append((request.start, request.stop))
        assert sorted(recording for recording, _ in read) == [0, 1, 2]
        for (recording, kind), chunks in read.items():
            assert sorted(chunks) == chunks_of(NUM_STEPS[3 * kind + recording], 5)
            kinds.add((recording, kind))
    assert len(kinds) > 5, "other epochs have other kinds"


@pytest.mark.parametrize("mode", ["mixed", "random"])
def test_a_plan_with_many_kinds_resumes_anywhere(mode):
    whole = [batch for epoch in epochs_of(window_sampler(mode), 4) for batch in epoch]
    plan = window_sampler(mode)
    for consumed in range(len(whole)):
        resumed = window_sampler(mode)
        resumed.load_state_dict(plan.state_dict())
        assert next(iter(resumed)) == whole[consumed]
        plan.advance()


@pytest.mark.parametrize(
    "options",
    [
        {"hz": [20.0, 80.0], "window_ms": [12.5, 50.0]},
        {"window_ms": LENGTHS_MS, "draws": "random"},
        {"window_ms": [5.0, 20.0], "draws": "stream"},
    ],
)
def test_chunks_are_those_of_recordings_counted_with_the_drawn_windows(small_tree, options):
    data = module(small_tree, augmentation(**options))
    loader = data.train_dataloader()
    plain_first = {"stream": [data.windows], "random": []}
    kinds = plain_first.get(data.augment.draws, []) + drawn_windows(data.windows, data.augment)
    requests = [request for batch in loader.batch_sampler for request in batch if not request.is_empty]
    batches = list(loader)
    chunks = [(batch, stream) for batch in batches for stream in range(4) if not batch.is_pad[0, stream]]
    plain_sequences = [module(small_tree, None, windows=settings).sequences("train") for settings in kinds]
    seen = set()
    for (batch, stream), request in zip(chunks, requests, strict=True):
        settings = kinds[request.kind]
        plain = plain_sequences[request.kind][request.recording]
        num_steps = request.stop - request.start
        found = batch.hist[:num_steps, stream].numpy()
        np.testing.assert_array_equal(found, plain.read(request.start, request.stop))
        np.testing.assert_array_equal(
            batch.dt_us[:num_steps, stream], plain.windows.dt_us[request.start : request.stop]
        )
        assert batch.recording[stream] == request.recording
        mine = batch.frame_index[:, 1] == stream
        inside = (plain.label_steps >= request.start) & (plain.label_steps < request.stop)
        np.testing.assert_array_equal(batch.frame_index[mine, 0], plain.label_steps[inside] - request.start)
        # a labelled frame is the end of its window
        np.testing.assert_array_equal(batch.t_us[mine], plain.windows.ends_us[plain.label_steps[inside]])
        seen.add((settings.stride_us, settings.length_us))
        if request.slot < 0:
            assert settings == data.windows or data.augment.draws != "stream", "random chunks stay as they are"
        else:
            assert settings == data.windows or data.augment.draws != "random", "streams stay as they are"
    assert len(seen) > 2


def test_every_rate_is_drawn_with_every_length():
    windows = WindowSettings(50_000, None, "exact", 10, 10)

    def drawn(of=windows, **options):
        return [(one.stride_us, one.length_us) for one in drawn_windows(of, AugmentConfig(**options))]

    assert drawn(window_ms=[5.0, 20.0]) == [(50_000, 5_000), (50_000, 20_000)]
    assert drawn(hz=[40.0, 30.0]) == [(25_000, 50_000), (1e6 / 30, 50_000)], "windows keep their length"
    assert drawn(hz=[40.0], window_ms=[25.0, 5.0]) == [(25_000, 25_000), (25_000, 5_000)]
    assert drawn(replace(windows, length_us=80_000), hz=[40.0]) == [(25_000, 80_000)]
    assert drawn(window_ms=[5.0, 50.0]) == [(50_000, 5_000), (50_000, None)], "these windows stay as they were"


def test_a_length_that_is_named_twice_is_drawn_twice_as_often():
    plan = MixedBatchSampler(
        NUM_STEPS[:6],
        LABEL_STEPS[:6],
        SamplingConfig(mode="random", batch_size=4, chunk_length=5),
        random_kinds=(0, 1, 1, 1),
    )
    drawn = [request.kind for epoch in epochs_of(plan, 40) for batch in epoch for request in batch]
    assert 0.68 < np.mean(drawn) < 0.82


def test_batches_with_random_windows_do_not_depend_on_the_workers(small_tree):
    augment = augmentation(window_ms=LENGTHS_MS)
    alone, helped = (module(small_tree, augment, n, seed=3).train_dataloader() for n in (0, 2))
    first = [*alone, *alone]
    assert_all_equal(first, [*helped, *helped])
    resumed = module(small_tree, augment, seed=3).train_dataloader()
    resumed.load_state_dict({"epoch": 0, "batch": 2})
    assert_all_equal([*resumed, *resumed], first[2:])


@pytest.mark.parametrize(
    ("windows", "options"),
    [
        (WindowSettings(), {"window_ms": [50.0, 50.0], "hz": [20.0]}),
        (WindowSettings(25_000, 25_000), {"hz": [40.0], "window_ms": [25.0]}),
    ],
)
def test_one_kind_of_windows_is_training_with_these(small_tree, windows, options):
    plain = module(small_tree, augmentation(), windows=windows).train_dataloader()
    found = module(small_tree, augmentation(**options)).train_dataloader()
    assert_all_equal(list(found), list(plain))


def test_evaluation_keeps_its_windows(small_tree):
    plain, found = (
        module(small_tree, augment).val_dataloader() for augment in (None, augmentation(window_ms=LENGTHS_MS))
    )
    assert_all_equal(list(found), list(plain))


def test_only_one_file_is_open_for_all_kinds_of_a_recording(numbered_sequence):
    sequences = [numbered_sequence(recording, 4, [3]) for _ in range(2) for recording in range(2)]
    dataset = ChunkDataset(sequences, max_open=1, num_kinds=2)
    assert len(dataset) == 2
    dataset[ChunkRequest(0, 0, 2, True, 0, 0, kind=1)]
    dataset[ChunkRequest(1, 0, 2, True, 0, 0, kind=0)]
    assert [sequence.source.is_open for sequence in sequences] == [False, True, False, False]


def test_prepared_recordings_have_one_kind_of_windows(small_tree):
    with raises("prepared.fixed"):
        SequenceDataModule(replace(small_tree, source="prepared"), augment=augmentation(window_ms=LENGTHS_MS))


def test_windows_of_streams_alone_need_streams_that_draw():
    with raises("setting.needs"):
        AugmentConfig(window_ms=[5.0], stream_window_ms=[50.0])


def test_batches_without_the_chunks_that_draw_are_refused(small_tree):
    sampling = SamplingConfig(mode="stream", batch_size=2, chunk_length=8)
    with raises("setting.conflict"):
        SequenceDataModule(replace(small_tree, source="raw"), sampling, AugmentConfig(window_ms=LENGTHS_MS))


@pytest.mark.parametrize(
    ("mode", "draws", "lengths_us"),
    [
        ("mixed", "all", (5_000, 20_000, 50_000)),
        ("mixed", "random", (50_000,)),
        ("mixed", "stream", (50_000,)),
        ("random", "random", (5_000, 20_000, 50_000)),
        ("stream", "all", (5_000, 20_000, 50_000)),
    ],
)
def test_weights_are_of_the_lengths_that_all_their_chunks_had(small_tree, mode, draws, lengths_us):
    sampling = SamplingConfig(mode=mode, batch_size=2, chunk_length=8)
    augment = AugmentConfig(window_ms=LENGTHS_MS, draws=draws)
    assert SequenceDataModule(replace(small_tree, source="raw"), sampling, augment).window_lengths_us == lengths_us


def test_streams_draw_from_lengths_of_their_own(small_tree):
    augment = replace(augmentation(window_ms=[5.0, 20.0], draws="all"), stream_window_ms=[50.0, 50.0, 5.0])
    data = module(small_tree, augment)
    sequences, random, stream = data.sequences_to_draw()
    num_recordings = len(data.sequences("train"))
    lengths_ms = [each.settings.nominal_length_us / 1000 for each in sequences[::num_recordings]]
    assert [lengths_ms[kind] for kind in random] == [5, 20]
    assert [lengths_ms[kind] for kind in stream] == [50, 50, 5]
    assert data.window_lengths_us == (5_000, 20_000, 50_000)
    longer = replace(augment, stream_window_ms=[50.0, 20.0])
    assert module(small_tree, longer).window_lengths_us == (20_000, 50_000)
