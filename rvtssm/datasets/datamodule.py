"""Batches for training, validation, and evaluation at any rate, with or without a Trainer of Lightning."""

import functools
import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

from rvtssm.datasets import SOURCES, AugmentConfig, DataConfig, DatasetConfig, SamplingConfig, build_spec
from rvtssm.datasets.agreement import missing_and_deleted, prepared_lines, raw_lines
from rvtssm.datasets.loader import ChunkDataset, Collate, ResumableLoader, SequenceLoader, leave_signals_to_the_parent
from rvtssm.datasets.sampling import ChunkRequest, EvalBatchSampler, MixedBatchSampler
from rvtssm.datasets.sequence import FrameSequence, RawSplit, open_prepared_split, steps_of
from rvtssm.datasets.tree import find_all_sequences
from rvtssm.events.labels import Boxes
from rvtssm.readers.faults import say
from rvtssm.records import Labels, SequenceBatch, WindowSettings
from rvtssm.system.limits import check_choice
from rvtssm.system.machine import check_memory
from rvtssm.system.user_error import UserError

Loader = TypeVar("Loader", bound=SequenceLoader)


@dataclass(eq=False)
class SequenceDataModule:
    """The batches of a dataset. Training batches are mixed; evaluation streams every recording from its start.

    A training makes a LightningDataModule of it (`rvtssm.training.loop`); importing Lightning takes seconds. The
    trainer must be created with `use_distributed_sampler=False`, because the samplers divide the work among
    processes themselves. `rvtssm.datasets.sampling` explains the batches.

    Args:
        config: Which dataset, and where its files are.
        sampling: Composition of training batches.
        augment: Augmentation of training chunks; None leaves them as they are.
        data: Loading of batches.
        seed: Seed of the plans.
        windows: Windows for raw recordings, by default 50 ms.
        has_pseudo_labels: Whether to train on labels that a detector made. They are never scored.

    Raises:
        UserError: `augment` asks for other windows of prepared recordings, or draws windows for chunks that the
            sampling mode does not have.
    """

    config: DatasetConfig
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    augment: AugmentConfig | None = None
    data: DataConfig = field(default_factory=DataConfig)
    seed: int = 0
    windows: WindowSettings = field(default_factory=WindowSettings)
    has_pseudo_labels: bool = True
    trainer: ClassVar[Any] = None

    def __post_init__(self) -> None:
        super().__init__()
        self.spec = build_spec(self.config)
        self._sequences: dict[tuple[str, str], list[FrameSequence]] = {}
        self._raw: dict[str, RawSplit] = {}
        self._compared: set[str] = set()  # sources whose files were compared
        augment = self.augment
        if augment is None or not self.draws_windows:
            return
        if self.source != "raw":
            raise UserError("prepared.fixed", name=f"augment.window_ms={augment.window_ms} augment.hz={augment.hz}")
        if augment.draws == {"random": "stream", "stream": "random"}.get(self.sampling.mode):
            needed = f"sampling.mode={self.sampling.mode} has no such chunks"
            raise UserError(
                "setting.conflict", name="augment.draws", found=augment.draws, needed=needed, advice="give all"
            )

    @functools.cached_property
    def source(self) -> str:
        """Where training and validation frames come from: prepared files if there are any, otherwise raw events."""
        if self.config.source is not None:
            return self.config.source
        folder = self.config.prepared_dir
        is_prepared = folder is not None and "train" in dict(find_all_sequences(folder))
        if is_prepared or self.config.raw_dir is None:
            return "prepared"
        return "raw"

    def sequences(self, split: str, source: str | None = None) -> list[FrameSequence]:
        """Return the sequences of a split, in the order in which `SequenceBatch.recording` numbers them.

        Args:
            split: train, val or test.
            source: raw or prepared; None for the source of training.
        """
        source = source or self.source
        self._say_what_disagrees(source)
        if split == "train" and source == "prepared":
            self._check_whole()
        if (split, source) not in self._sequences:
            is_trained = split == "train" and self.has_pseudo_labels
            if source == "raw":
                sequences = self._raw_split(split).sequences(self.windows, has_pseudo_labels=is_trained)
            else:
                folder = _given(self.config.prepared_dir, "dataset.prepared_dir")
                sequences = open_prepared_split(folder, split, self.spec)
                if not is_trained:
                    sequences = _annotated(sequences)
            self._sequences[split, source] = sequences
        return self._sequences[split, source]

    def boxes(self, split: str) -> dict[str, Boxes]:
        """Return the boxes of the raw recordings of a split as they are on disk, by the name of their recording."""
        return self._raw_split(split).boxes

    def in_words(self, split: str, sequences: list[FrameSequence], source: str | None = None) -> str:
        """Return how many recordings of a split have how many labels, and how many are left out without a box.

        Args:
            split: train, val or test.
            sequences: The sequences of the split.
            source: raw or prepared; None for the source of training. Prepared files without boxes do not exist.
        """
        text = f"{len(sequences)} with {sum(len(sequence.labels) for sequence in sequences)} labels"
        if (source or self.source) == "raw" and len(self.boxes(split)) > len(sequences):
            text += f", {len(self.boxes(split)) - len(sequences)} without boxes left out"
        return text

    @property
    def settings(self) -> WindowSettings:
        """How the frames of the training sequences are counted."""
        return self.sequences("train")[0].settings

    @property
    def window_lengths_us(self) -> tuple[int, ...]:
        """The window lengths of training chunks, ascending.

        In mixed batches, lengths shorter than all of random chunks or all of streams are left out, because weights lose
        accuracy when windows shrink if only one kind of chunks had short ones.
        """
        if not self.draws_windows:
            return (self.settings.nominal_length_us,)
        random, stream = self._windows_to_draw()
        nominal_length_us = attrgetter("nominal_length_us")
        of_random = {*map(nominal_length_us, random)}
        of_stream = {*map(nominal_length_us, stream)}
        shortest_of_both = max(min(of_random), min(of_stream))
        both = {length_us for length_us in of_random | of_stream if length_us >= shortest_of_both}
        return tuple(sorted({"random": of_random, "stream": of_stream}.get(self.sampling.mode, both)))

    @property
    def draws_windows(self) -> bool:
        """Whether training chunks are counted with other windows than those of the configuration."""
        return self.augment is not None and (self.augment.window_ms is not None or self.augment.hz is not None)

    def _windows_to_draw(self) -> tuple[list[WindowSettings], list[WindowSettings]]:
        """Return the windows that random chunks draw from, and the windows that streams draw from."""
        assert self.augment is not None, "no windows are drawn"
        of_random = of_stream = [self.windows]
        if self.augment.draws != "stream":
            of_random = drawn_windows(self.windows, self.augment)
        if self.augment.draws != "random":
            lengths_ms = self.augment.stream_window_ms or self.augment.window_ms
            of_stream = drawn_windows(self.windows, replace(self.augment, stream_window_ms=None, window_ms=lengths_ms))
        return of_random, of_stream

    def labels(self, split: str) -> list[Labels]:
        """Return the labels of the sequences of a split."""
        return [sequence.labels for sequence in self.sequences(split)]

    def sequences_to_draw(self) -> tuple[list[FrameSequence], list[int], list[int]]:
        """Return the training sequences for every kind of windows that training draws.

        Returns:
            All sequences with the first kind of windows, then all with the second, and so on; the kinds that random
            chunks draw from; the kinds that streams draw from. Without drawn windows: the training sequences, [0], [0].
        """
        if not self.draws_windows:
            return self.sequences("train"), [0], [0]
        random, stream = self._windows_to_draw()
        kinds = list(dict.fromkeys([*random, *stream]))
        split = self._raw_split("train")
        sequences: list[FrameSequence] = []
        for kind in kinds:
            sequences += split.sequences(kind, has_pseudo_labels=self.has_pseudo_labels)
        return sequences, [*map(kinds.index, random)], list(map(kinds.index, stream))

    def train_dataloader(self) -> ResumableLoader:
        sequences, random_kinds, stream_kinds = self.sequences_to_draw()
        num_kinds = len({*random_kinds, *stream_kinds})
        accumulate = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        num_steps = [len(sequence.windows) for sequence in sequences]
        label_steps = [sequence.label_steps for sequence in sequences]
        of_run = self.sampling, self.seed, *self._place()
        sampler = MixedBatchSampler(num_steps, label_steps, *of_run, random_kinds, stream_kinds, accumulate)
        dataset = ChunkDataset(sequences, self.augment, self.sampling.frames_per_chunk, num_kinds=num_kinds)
        size = self.sampling.chunk_length, self.sampling.num_chunks
        return self._on_device(_loader(ResumableLoader, dataset, sampler, self.data.workers, *size))

    def val_dataloader(self) -> SequenceLoader:
        return self._on_device(eval_loader(self.sequences("val"), self.data, *self._place()))

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> SequenceBatch:
        return batch.to(device, non_blocking=True)

    def eval_sequences(
        self,
        split: str,
        settings: WindowSettings,
        source: str | None = None,
        grid: str = "labels",
        label_hz: float | None = None,
    ) -> list[FrameSequence]:
        """Return the sequences of a split at any rate.

        Args:
            split: train, val or test.
            settings: How events become frames.
            source: raw: count the events of the recordings with `settings`, on either grid. prepared: read stored
                frames. None: the source of training.
            grid: labels or free.
            label_hz: Interpolate the labels to this rate; None keeps the annotated ones.

        Raises:
            UserError: Prepared frames have other settings, or cannot be used on this grid or with interpolated labels.
        """
        check_choice("source", source, (*SOURCES, None))
        self._say_what_disagrees(source or self.source)
        if (source or self.source) == "raw":
            return self._raw_split(split).sequences(settings, grid, label_hz)
        if grid == "free" or label_hz is not None:
            key = "grid=free" if grid == "free" else f"label_hz={label_hz:g}"
            found = "windows of prepared recordings end at the labels, which have no tracks"
            raise UserError("prepared.fixed", name=f"evaluation.{key}", found=found)
        sequences = self.sequences(split, source)
        for sequence in sequences:
            sequence.check_settings(settings, self.spec.downsample)
        return _annotated(sequences)

    def _say_what_disagrees(self, source: str) -> None:
        """Say once what the files of the dataset do not agree on."""
        if source in self._compared:
            return
        self._compared.add(source)
        config = self.config
        lines = raw_lines(config.raw_dir, self.spec)
        if source == "prepared" and config.prepared_dir is not None:
            lines += prepared_lines(config.prepared_dir, config.raw_dir, self.spec)
        for line in lines:
            say(line)

    def _check_whole(self) -> None:
        """Raise UserError if half of the training recordings are not prepared, unless the user chose the others."""
        config = self.config
        folder = config.prepared_dir
        if config.source is not None or folder is None:
            return
        missing, _, num_raw = missing_and_deleted(folder, config.raw_dir, "train", self.spec)
        if 2 * len(missing) >= num_raw > 0:
            needed = f"{len(missing)} of {num_raw} training recordings in {config.raw_dir} are not prepared"
            advice = "run `rvtssm preprocess` again, or say dataset.source=prepared to use only the others"
            raise UserError("setting.needs", name="dataset.prepared_dir", found=folder, needed=needed, advice=advice)

    def _raw_split(self, split: str) -> RawSplit:
        if split not in self._raw:
            self._raw[split] = RawSplit(_given(self.config.raw_dir, "dataset.raw_dir"), split, self.spec)
        return self._raw[split]

    def _place(self) -> tuple[int, int]:
        """Return the rank of this process and the number of processes."""
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def _on_device(self, loader: Loader) -> Loader:
        """Let a loader count on the device of the trainer."""
        if self.trainer is not None:
            loader.count_on = self.trainer.strategy.root_device
        return loader


def eval_loader(sequences: list[FrameSequence], data: DataConfig, rank: int = 0, world_size: int = 1) -> SequenceLoader:
    """Return a loader that reads every recording from its start, in order, with all its labelled frames.

    Args:
        sequences: The sequences; `SequenceBatch.recording` is an index into them.
        data: Loading of batches.
        rank: Rank of this process.
        world_size: Number of processes.
    """
    num_steps = [len(sequence.windows) for sequence in sequences]
    sampler = EvalBatchSampler(num_steps, data.eval_chunk_length, data.eval_batch_size, rank, world_size)
    return _loader(SequenceLoader, ChunkDataset(sequences), sampler, data.workers, data.eval_chunk_length)


def _loader(
    kind: type[Loader],
    dataset: ChunkDataset,
    sampler: Sampler[list[ChunkRequest]],
    workers: int,
    num_steps: int,
    num_streams: int | None = None,
) -> Loader:
    """Return a loader that counts on a GPU if there is one.

    Args:
        kind: The class of the loader.
        dataset: Makes the chunks.
        sampler: Names the chunks of each batch.
        workers: Number of loading processes.
        num_steps: Most steps of a chunk.
        num_streams: Chunks per batch, all padded to `num_steps`. None: chunks keep their length.
    """
    shape = dataset.sequences[0].frame_shape
    streams = num_streams or 1
    what = f"a batch of {num_steps} steps of {streams} frames of {shape}, use fewer or a smaller num_bins"
    check_memory(num_steps * streams * math.prod(shape), what)
    dt_us = steps_of(dataset.sequences)
    pad_dt_us = int(np.median(dt_us)) if len(dt_us) else 0
    loader = kind(
        dataset,  # type: ignore[arg-type]  # its chunks become batches
        batch_sampler=sampler,
        collate_fn=Collate(num_steps if num_streams else None, pad_dt_us=pad_dt_us),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=leave_signals_to_the_parent,
        generator=torch.Generator(),  # its own, since a loader draws seeds, which would change the training
    )
    if torch.cuda.is_available():
        loader.count_on = torch.device("cuda")
    return loader


def drawn_windows(windows: WindowSettings, augment: AugmentConfig) -> list[WindowSettings]:
    """Return the windows that training draws from: every rate of the augmentation with every window length."""
    at_rates = [windows]
    if augment.hz:
        at_rates = [windows.at_rate(hz, "slide") for hz in augment.hz]
    if augment.window_ms is None:
        return at_rates
    drawn = []
    for at_rate in at_rates:
        for window_ms in augment.window_ms:
            length_us = round(window_ms * 1000)
            has_length = length_us == at_rate.nominal_length_us
            drawn.append(at_rate if has_length else replace(at_rate, length_us=length_us))
    return drawn


def _annotated(sequences: list[FrameSequence]) -> list[FrameSequence]:
    """Return the sequences without labels that a detector made. Drop sequences that have only such labels."""
    annotated = []
    for sequence in sequences:
        is_own = sequence.labels.pseudo_score == 0
        if is_own.any() or not len(is_own):
            annotated.append(replace(sequence, labels=sequence.labels[is_own]))
    return annotated


def _given(folder: str | None, key: str) -> str:
    if folder is None:
        raise UserError("setting.missing", name=key, needed="the folder that holds train/, val/ and test/")
    return folder
