"""Training with random windows: each chunk is one of a recording counted with them, and nothing else changes."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from test_datamodule import assert_all_equal
from user_errors import raises

from rvtssm.datasets.chunks import ChunkDataset
from rvtssm.datasets.data_config import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.datasets.datamodule import SequenceDataModule, drawn_windows
from rvtssm.datasets.sampling import ChunkRequest, MixedBatchSampler, chunks_of
from rvtssm.records import WindowSettings

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


def sampler(mode="mixed", batch_size=4, rank=0, world_size=1, seed=0) -> MixedBatchSampler:
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
    by_rank = [epochs_of(sampler("stream", 2, rank, world_size=2), 6) for rank in range(2)]
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
    whole = [batch for epoch in epochs_of(sampler(mode), 4) for batch in epoch]
    plan = sampler(mode)
    for consumed in range(len(whole)):
        resumed = sampler(mode)
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
    with raises("augment.needs_raw"):
        SequenceDataModule(replace(small_tree, source="prepared"), augment=augmentation(window_ms=LENGTHS_MS))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"hz": []}, "augment.not_positive"),
        ({"hz": [20.0, 0.0]}, "augment.not_positive"),
        ({"draws": "none"}, "settings.choice"),
        ({"window_ms": []}, "augment.not_positive"),
        ({"window_ms": [5.0], "draws": "all", "stream_window_ms": []}, "augment.not_positive"),
        ({"window_ms": [5.0], "stream_window_ms": [50.0]}, "augment.stream_window"),
        ({"window_ms": [5.0, float("nan")]}, "augment.not_positive"),
    ],
)
def test_a_choice_of_windows_that_makes_no_sense_is_named(options, key):
    with raises(key):
        AugmentConfig(**options)


def test_batches_without_the_chunks_that_draw_are_refused(small_tree):
    sampling = SamplingConfig(mode="stream", batch_size=2, chunk_length=8)
    with raises("augment.draws_without_chunks"):
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
