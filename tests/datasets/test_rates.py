"""Training at random rates: each chunk is one of a recording counted at that rate, and nothing else changes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from rvtssm.datasets.chunks import ChunkDataset
from rvtssm.datasets.datamodule import SequenceDataModule, at_rates
from rvtssm.datasets.loading_config import AugmentConfig, DataConfig, FlipZoomConfig, SamplingConfig
from rvtssm.datasets.sampling import ChunkRequest, MixedBatchSampler, chunks_of, random_chunk
from rvtssm.records import SequenceBatch, WindowSettings

RATES_HZ = [20.0, 80.0, 200.0]
STILL = FlipZoomConfig(flip_prob=0, zoom_prob=0)


def augmentation(**options) -> AugmentConfig:
    return AugmentConfig(
        random=STILL, stream=replace(STILL, zoom_in_weight=0.0, zoom_out_weight=1.0), rates_hz=RATES_HZ, **options
    )


def module(tree, augment, num_workers=0, batch_size=4, **options) -> SequenceDataModule:
    sampling = SamplingConfig(batch_size=batch_size, chunk_length=8)
    data = DataConfig(num_workers=num_workers, eval_batch_size=2, eval_chunk_length=6)
    return SequenceDataModule(replace(tree, source="raw"), sampling, augment, data, **options)


def assert_all_equal(left: list[SequenceBatch], right: list[SequenceBatch]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        for field in fields(SequenceBatch):
            torch.testing.assert_close(getattr(one, field.name), getattr(other, field.name), rtol=0, atol=0)


# a recording of 40 steps with a label every 4, one of 20 and one of 6, at three rates
FACTORS = (1, 4, 10)
NUM_STEPS = [factor * n for factor in FACTORS for n in (40, 20, 6)]
LABEL_STEPS = [factor * np.arange(4, n + 1, 4) - 1 for factor in FACTORS for n in (40, 20, 6)]


def sampler(mode="mixed", batch_size=4, rank=0, world_size=1, seed=0) -> MixedBatchSampler:
    config = SamplingConfig(mode=mode, batch_size=batch_size, chunk_length=5)
    return MixedBatchSampler(NUM_STEPS, LABEL_STEPS, config, seed, rank, world_size, num_rates=3)


def epochs_of(plan: MixedBatchSampler, count: int) -> list[list[list[ChunkRequest]]]:
    epochs: list[list[list[ChunkRequest]]] = []
    for _ in range(count):
        epochs.append([])
        assert len(plan) == len(list(plan))
        for batch in plan:
            plan.advance()
            epochs[-1].append(batch)
    return epochs


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_streams_every_recording_once_at_one_rate(world_size):
    rates = set()
    by_rank = [epochs_of(sampler("stream", 2, rank, world_size), 6) for rank in range(world_size)]
    for parts in zip(*by_rank, strict=True):
        assert len({len(part) for part in parts}) == 1, "every process has equally many batches"
        read = defaultdict(list)
        for part in parts:
            for slot in range(2):
                requests = [batch[slot] for batch in part if not batch[slot].is_empty]
                for before, request in pairwise(requests):
                    if request.recording == before.recording:
                        assert (request.rate, request.start, request.is_first) == (before.rate, before.stop, False)
                    else:
                        assert request.is_first
                for request in requests:
                    read[request.recording, request.rate].append((request.start, request.stop))
        assert sorted(recording for recording, _ in read) == [0, 1, 2]
        for (recording, rate), chunks in read.items():
            assert sorted(chunks) == chunks_of(NUM_STEPS[3 * rate + recording], 5)
            rates.add((recording, rate))
    assert len(rates) > 5, "other epochs have other rates"


def test_random_chunks_end_at_every_label_once_at_any_rate():
    plan = sampler("random", 5)
    (epoch,) = epochs_of(plan, 1)
    requests = [request for batch in epoch for request in batch][: len(plan._labelled)]
    assert {request.rate for request in requests} == {0, 1, 2}
    labels = []
    for request in requests:
        sequence = 3 * request.rate + request.recording
        (number,) = (
            i
            for i, step in enumerate(LABEL_STEPS[sequence])
            if random_chunk(int(step), NUM_STEPS[sequence], 5) == (request.start, request.stop)
        )
        labels.append((request.recording, number))
    assert sorted(labels) == [(r, number) for r in range(3) for number in range(len(LABEL_STEPS[r]))]


@pytest.mark.parametrize("mode", ["mixed", "random", "stream"])
def test_a_plan_at_many_rates_resumes_anywhere(mode):
    whole = [batch for epoch in epochs_of(sampler(mode), 4) for batch in epoch]
    plan = sampler(mode)
    for consumed in range(len(whole)):
        resumed = sampler(mode)
        resumed.load_state_dict(plan.state_dict())
        assert next(iter(resumed)) == whole[consumed]
        plan.advance()


@pytest.mark.parametrize("window", ["shrink", "slide", "random"])
def test_chunks_are_those_of_recordings_counted_at_the_rate(small_tree, window):
    data = module(small_tree, augmentation(rate_window=window))
    loader = data.train_dataloader()
    requests = [request for batch in loader.batch_sampler for request in batch if not request.is_empty]
    batches = list(loader)
    chunks = [(batch, stream) for batch in batches for stream in range(4) if not batch.is_pad[0, stream]]
    seen = set()
    for (batch, stream), request in zip(chunks, requests, strict=True):
        settings = at_rates(data.windows, data.augment)[request.rate]
        plain = module(small_tree, None, windows=settings).sequences("train")[request.recording]
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
    assert len(seen) > 2


def test_windows_are_as_long_as_the_stride_or_as_in_training():
    windows = WindowSettings(50_000, None, "exact", 10, 10)
    for window, lengths in (("shrink", [None]), ("slide", [50_000]), ("random", [None, 50_000])):
        found = at_rates(windows, AugmentConfig(rates_hz=[40.0, 30.0], rate_window=window))
        wanted = [(1e6 / hz, length) for hz in (40.0, 30.0) for length in lengths]
        assert [(one.stride_us, one.length_us) for one in found] == wanted
    (found,) = at_rates(replace(windows, length_us=80_000), AugmentConfig(rates_hz=[40.0], rate_window="slide"))
    assert found.length_us == 80_000


def test_batches_at_random_rates_do_not_depend_on_the_workers(small_tree):
    alone, helped = (module(small_tree, augmentation(), n, seed=3).train_dataloader() for n in (0, 2))
    first = [*alone, *alone]
    assert_all_equal(first, [*helped, *helped])
    resumed = module(small_tree, augmentation(), seed=3).train_dataloader()
    resumed.load_state_dict({"epoch": 0, "batch": 2})
    assert_all_equal([*resumed, *resumed], first[2:])


def test_one_rate_is_training_at_that_rate(small_tree):
    windows = WindowSettings(25_000, None, "exact", 10, 10)
    plain = module(small_tree, replace(augmentation(), rates_hz=None), windows=windows).train_dataloader()
    found = module(small_tree, replace(augmentation(), rates_hz=[40.0])).train_dataloader()
    assert_all_equal(list(found), list(plain))


def test_evaluation_keeps_its_rate(small_tree):
    plain, found = (module(small_tree, augment).val_dataloader() for augment in (None, augmentation()))
    assert_all_equal(list(found), list(plain))


def test_only_one_file_is_open_for_all_rates_of_a_recording(numbered_sequence):
    sequences = [numbered_sequence(recording, 4, [3]) for _ in range(2) for recording in range(2)]
    dataset = ChunkDataset(sequences, max_open=1, num_rates=2)
    assert len(dataset) == 2
    dataset[ChunkRequest(0, 0, 2, True, 0, 0, rate=1)]
    dataset[ChunkRequest(1, 0, 2, True, 0, 0, rate=0)]
    assert [sequence.source.is_open for sequence in sequences] == [False, True, False, False]


def test_prepared_recordings_have_one_rate(small_tree):
    with pytest.raises(
        ValueError, match=r"augment.rates_hz=\[20.0, 80.0, 200.0\] with dataset.source=prepared: only raw"
    ):
        SequenceDataModule(replace(small_tree, source="prepared"), augment=augmentation())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rates_hz": []}, "name positive rates"),
        ({"rates_hz": [20.0, 0.0]}, "name positive rates"),
        ({"rate_window": "grow"}, "choose from shrink, slide, random"),
    ],
)
def test_a_choice_of_rates_that_makes_no_sense_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        AugmentConfig(**options)
