"""The settings of prepared recordings and of batches. This file does not import torch."""

from dataclasses import dataclass, replace

from rvtssm.records.settings import SPLITS
from rvtssm.system.limits import Settings, setting
from rvtssm.system.user_error import UserError


@dataclass
class PreprocessConfig(Settings, section="preprocess"):
    """Which recordings to prepare, whether to use their labels, and which processes do the work."""

    labels: str = setting("required", choices=("required", "none"))
    """required: a window ends at every label; none: a fixed stride from the first event."""
    splits: tuple[str, ...] = setting(SPLITS, is_filled=True)
    """The splits to prepare."""
    scheduler: str | None = None
    """Address of a dask cluster that sees the same folders, such as tcp://node1:8786; null: none."""
    workers: int | None = setting(None, at_least=1)
    """Number of worker processes; null: one per core."""
    overwrite: bool = False
    """Replace files that were made with other settings."""

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"


@dataclass
class SamplingConfig(Settings, section="sampling"):
    """The composition of training batches. All numbers except total_batch are per process.

    >>> rvtssm.SamplingConfig(batch_size=8, stream_share=0.25).num_streams
    2
    """

    mode: str = setting("mixed", choices=("mixed", "random", "stream"))
    """mixed, random (BPTT) or stream (TBPTT)."""
    batch_size: int | str = setting(8, at_least=1, choices=("auto",))
    """Chunks per batch; auto: as many as fit in memory, accumulated to total_batch, or without one to 8 per process."""
    total_batch: int | None = setting(None, at_least=1)
    """Chunks per optimiser step over all processes, divided into batches and `training.accumulate`; null: any."""
    chunk_length: int = setting(21, at_least=1)
    """Steps per chunk."""
    stream_share: float = setting(0.5, at_least=0, at_most=1)
    """Share of streams in a mixed batch, which holds at least one chunk of each kind."""
    frames_per_chunk: int | None = setting(None, at_least=1)
    """Labelled frames of a chunk that reach the loss; null: all."""

    @property
    def num_streams(self) -> int:
        """Number of chunks in a batch that continue an earlier chunk."""
        if self.mode == "random":
            return 0
        if self.mode == "stream":
            return self.num_chunks
        return min(max(round(self.num_chunks * self.stream_share), 1), self.num_chunks - 1)

    @property
    def num_chunks(self) -> int:
        """`batch_size` as a number, which it is once a training has chosen in place of `auto`."""
        assert not isinstance(self.batch_size, str), "sampling.batch_size=auto is not decided yet"
        return self.batch_size

    @property
    def smallest_batch(self) -> int:
        """The fewest chunks of a batch."""
        return 2 if self.mode == "mixed" else 1

    def __post_init__(self) -> None:
        super().__post_init__()
        # a mixed batch holds at least one random chunk and one stream
        for key in ("batch_size", "total_batch"):
            size = getattr(self, key)
            if isinstance(size, int) and size < self.smallest_batch:
                needed = "a mixed batch holds a random chunk and a stream; give 2 or more, or another sampling.mode"
                raise UserError("setting.conflict", name=f"sampling.{key}", found=size, needed=needed)
        if self.mode == "mixed" and self.stream_share in (0, 1):
            advice = f"use sampling.mode={'stream' if self.stream_share else 'random'}"
            needed = "a mixed batch holds random chunks and streams"
            found = f"{self.stream_share:g}"
            raise UserError("setting.conflict", name="sampling.stream_share", found=found, needed=needed, advice=advice)


@dataclass
class AugmentConfig(Settings, section="augment"):
    """Augmentation of training chunks. Streams do not zoom in, since a zoom depends on the labels of one chunk.

    With `window_ms` or `hz`, the windows are drawn: `draws` says whether for each random chunk, for each recording in
    the streams of an epoch, or for both. A value that is listed twice is drawn twice as often. This needs raw
    recordings. Chunks have the same number of steps at every rate, so they cover less time at high rates.

    >>> rvtssm.AugmentConfig(window_ms=[5, 20, 50]).stream.zoom_in_share
    0.0
    """

    flip_prob: float = setting(0.5, at_least=0, at_most=1)
    """Probability that a chunk or a stream is mirrored left to right."""
    zoom_prob: float = setting(0.8, at_least=0, at_most=1)
    """Probability that a random chunk is zoomed, in or out."""
    stream_zoom_prob: float = setting(0.5, at_least=0, at_most=1)
    """Probability that a stream is zoomed out."""
    zoom_in_share: float = setting(0.8, at_least=0, at_most=1)
    """Share of the zooms of random chunks that go in; as in RVT, like the largest zooms."""
    max_zoom_in: float = setting(1.5, at_least=1)
    """Largest factor by which objects grow."""
    max_zoom_out: float = setting(1.2, at_least=1)
    """Largest factor by which objects shrink."""
    window_ms: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Window lengths to draw, such as [5,10,20,35,50]; null: as in `windows`."""
    stream_window_ms: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Window lengths that streams draw; null: those of window_ms."""
    hz: list[float] | None = setting(None, at_least=0.001, is_filled=True)
    """Rates to draw, such as [20,40,100]; null: as in `windows`."""
    draws: str = setting("random", choices=("random", "stream", "all"))
    """Which chunks draw their windows: random, stream or all; the others use `windows`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_window_ms is not None and (self.draws == "random" or self.window_ms is None):
            needed = "set augment.draws=all and augment.window_ms as well"
            lengths = self.stream_window_ms
            raise UserError("setting.needs", name="augment.stream_window_ms", found=lengths, needed=needed)

    @property
    def stream(self) -> "AugmentConfig":
        """The settings for chunks of streams, which these are for random ones."""
        return replace(self, zoom_prob=self.stream_zoom_prob, zoom_in_share=0.0)


@dataclass
class DataConfig(Settings, section="data"):
    """Loading of batches. Numbers are per process.

    >>> rvtssm.DataConfig(workers=0).eval_batch_size
    8
    """

    workers: int = setting(2, at_least=0)
    """Loader processes; 0: load in the main process."""
    eval_batch_size: int = setting(8, at_least=1)
    """Recordings evaluated in parallel."""
    eval_chunk_length: int = setting(21, at_least=1)
    """Steps per evaluation batch."""
