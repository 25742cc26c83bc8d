"""The settings of prepared recordings and of batches. This file does not import torch."""

import math
from dataclasses import dataclass

from rvtssm.records.settings import SPLITS
from rvtssm.system.limits import check_at_least, check_choice, check_share
from rvtssm.system.user_error import UserError


@dataclass
class PreprocessConfig:
    """Which recordings to prepare, whether to use their labels, and which processes do the work."""

    labels: str = "required"
    """required: a window ends at every label; none: a fixed stride from the first event."""
    splits: tuple[str, ...] = SPLITS
    """The splits to prepare."""
    scheduler: str | None = None
    """Address of a dask cluster that sees the same folders, such as tcp://node1:8786; null: none."""
    workers: int | None = None
    """Number of worker processes; null: one per core."""
    overwrite: bool = False
    """Replace files that were made with other settings."""

    def __post_init__(self) -> None:
        check_choice("preprocess.labels", self.labels, ("required", "none"))
        check_at_least("preprocess", self, 1, "workers")
        if not self.splits:
            raise UserError(
                "preprocess.no_splits",
                "preprocess.splits=[] leaves nothing to prepare; name some, such as [train,val,test]",
            )

    @property
    def is_labelled(self) -> bool:
        return self.labels == "required"


@dataclass
class SamplingConfig:
    """The composition of training batches. All numbers except total_batch are per process.

    >>> rvtssm.SamplingConfig(batch_size=8, stream_share=0.25).num_streams
    2
    """

    mode: str = "mixed"
    """mixed, random (BPTT) or stream (TBPTT)."""
    batch_size: int | str = 8
    """Chunks per batch; auto: as many as fit in memory, accumulated to total_batch, or without one to 8 per process."""
    total_batch: int | None = None
    """Chunks per optimiser step over all processes, divided into batches and `training.accumulate`; null: any."""
    chunk_length: int = 21
    """Steps per chunk."""
    stream_share: float = 0.5
    """Share of streams in a mixed batch, which holds at least one chunk of each kind."""
    frames_per_chunk: int | None = None
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
        if self.mode == "mixed":
            return 2
        return 1

    def __post_init__(self) -> None:
        check_choice("sampling.mode", self.mode, ("mixed", "random", "stream"))
        check_at_least("sampling", self, 1, "chunk_length", "frames_per_chunk")
        check_share("sampling", self, "stream_share")
        if isinstance(self.batch_size, str):
            check_choice("sampling.batch_size", self.batch_size, ("auto",))
        elif self.batch_size < self.smallest_batch:
            raise UserError(
                "sampling.batch_too_small",
                f"sampling.batch_size={self.batch_size} is too small for sampling.mode={self.mode}; "
                "a mixed batch holds at least one random chunk and one stream",
            )
        check_at_least("sampling", self, self.smallest_batch, "total_batch")
        if self.mode == "mixed" and self.stream_share in (0, 1):
            raise UserError(
                "sampling.stream_share",
                f"sampling.stream_share={self.stream_share:g} with sampling.mode=mixed, whose batches contain "
                f"random chunks and streams; use sampling.mode={'stream' if self.stream_share else 'random'}",
            )


# As in RVT (Gehrig and Scaramuzza, CVPR 2023): the share of zooms that zoom in on an object, and the ranges of both.
_ZOOM_IN_SHARE = 0.8
ZOOM_IN_FACTORS = (1.0, 1.5)  # by which objects grow
ZOOM_OUT_DIVISORS = (1.0, 1.2)  # by which objects shrink


@dataclass(frozen=True, slots=True)
class FlipZoom:
    """How chunks of one kind are flipped and zoomed."""

    flip_prob: float  # probability that a chunk is mirrored left to right
    zoom_prob: float  # probability that a chunk is zoomed
    zoom_in_share: float  # share of the zooms that zoom in; the others zoom out


@dataclass
class AugmentConfig:
    """Augmentation of training chunks. Streams do not zoom in, since a zoom depends on the labels of one chunk.

    With `window_ms` or `hz`, the windows are drawn: `draws` says whether for each random chunk, for each recording in
    the streams of an epoch, or for both. A value that is listed twice is drawn twice as often. This needs raw
    recordings. Chunks have the same number of steps at every rate, so they cover less time at high rates.

    >>> rvtssm.AugmentConfig(window_ms=[5, 20, 50]).stream.zoom_in_share
    0.0
    """

    flip_prob: float = 0.5
    """Probability that a chunk or a stream is mirrored left to right."""
    zoom_prob: float = 0.8
    """Probability that a random chunk is zoomed: in by up to 1.5 (four of five times), or out by up to 1.2."""
    stream_zoom_prob: float = 0.5
    """Probability that a stream is zoomed out by up to 1.2."""
    window_ms: list[float] | None = None
    """Window lengths to draw, such as [5,10,20,35,50]; null: as in `windows`."""
    stream_window_ms: list[float] | None = None
    """Window lengths that streams draw; null: those of window_ms."""
    hz: list[float] | None = None
    """Rates to draw, such as [20,40,100]; null: as in `windows`."""
    draws: str = "random"
    """Which chunks draw their windows: random, stream or all; the others use `windows`."""

    def __post_init__(self) -> None:
        check_share("augment", self, "flip_prob", "zoom_prob", "stream_zoom_prob")
        for name in ("window_ms", "stream_window_ms", "hz"):
            values = getattr(self, name)
            if values is not None and not (values and all(0.001 <= value < math.inf for value in values)):
                raise UserError(
                    "augment.not_positive", f"augment.{name}={values}; name positive numbers, as in [5,20,50], or null"
                )
        check_choice("augment.draws", self.draws, ("random", "stream", "all"))
        if self.stream_window_ms is not None and (self.draws == "random" or self.window_ms is None):
            raise UserError(
                "augment.stream_window",
                f"augment.stream_window_ms={self.stream_window_ms} with augment.draws={self.draws} and "
                f"augment.window_ms={self.window_ms}; it needs augment.draws=all and lengths for random chunks",
            )

    @property
    def random(self) -> FlipZoom:
        """How random chunks are flipped and zoomed."""
        return FlipZoom(self.flip_prob, self.zoom_prob, _ZOOM_IN_SHARE)

    @property
    def stream(self) -> FlipZoom:
        """How streams are flipped and zoomed."""
        return FlipZoom(self.flip_prob, self.stream_zoom_prob, 0.0)


@dataclass
class DataConfig:
    """Loading of batches. Numbers are per process.

    >>> rvtssm.DataConfig(workers=0).eval_batch_size
    8
    """

    workers: int = 2
    """Loader processes; 0: load in the main process."""
    eval_batch_size: int = 8
    """Recordings evaluated in parallel."""
    eval_chunk_length: int = 21
    """Steps per evaluation batch."""

    def __post_init__(self) -> None:
        check_at_least("data", self, 0, "workers")
        check_at_least("data", self, 1, "eval_batch_size", "eval_chunk_length")
