"""The settings of batches: how chunks are chosen, augmented and loaded. This file does not import torch."""

import math
from dataclasses import dataclass, field

from rvtssm.system.limits import check_at_least, check_choice, check_share
from rvtssm.system.user_error import UserError


@dataclass
class SamplingConfig:
    """The composition of training batches. Numbers are per process."""

    mode: str = "mixed"
    """mixed, random (BPTT) or stream (TBPTT)."""
    batch_size: int | str = 8
    """Chunks per batch; auto: as many as fit in memory, with `training.accumulate` so that a step has 8."""
    chunk_length: int = 21
    """Steps per chunk."""
    stream_share: float = 0.5
    """Share of streams in a mixed batch, which holds at least one chunk of each kind."""
    frames_per_chunk: int | None = None
    """Labelled frames of a chunk that reach the loss; null: all."""
    batches_per_epoch: int | None = None
    """Only for mode=random; null: every labelled step once."""

    @property
    def num_streams(self) -> int:
        """Number of chunks in a batch that continue an earlier chunk."""
        if self.mode != "mixed":
            return self.num_chunks if self.mode == "stream" else 0
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
        check_choice("sampling.mode", self.mode, ("mixed", "random", "stream"))
        check_at_least("sampling", self, 1, "chunk_length", "frames_per_chunk", "batches_per_epoch")
        check_share("sampling", self, "stream_share")
        if isinstance(self.batch_size, str):
            check_choice("sampling.batch_size", self.batch_size, ("auto",))
        elif self.batch_size < self.smallest_batch:
            raise UserError(
                "sampling.batch_too_small",
                f"sampling.batch_size={self.batch_size} is too small for sampling.mode={self.mode}; "
                "a mixed batch holds at least one random chunk and one stream",
            )
        if self.mode == "mixed" and self.stream_share in (0, 1):
            raise UserError(
                "sampling.stream_share",
                f"sampling.stream_share={self.stream_share:g} with sampling.mode=mixed, whose batches contain "
                f"random chunks and streams; use sampling.mode={'stream' if self.stream_share else 'random'}",
            )
        if self.batches_per_epoch is not None and self.mode != "random":
            raise UserError(
                "sampling.batches_per_epoch",
                f"sampling.batches_per_epoch={self.batches_per_epoch} needs sampling.mode=random; "
                "with streams an epoch is one pass over all recordings",
            )


@dataclass
class FlipZoomConfig:
    """Probabilities and ranges of flips and zooms. The defaults are for random chunks."""

    flip_prob: float = 0.5
    """Probability that a chunk is mirrored left to right."""
    zoom_prob: float = 0.8
    """Probability that a chunk is zoomed in or out."""
    zoom_in_weight: float = 8.0
    """Relative frequency of zooming in."""
    zoom_out_weight: float = 2.0
    """Relative frequency of zooming out."""
    zoom_in_min: float = 1.0
    """Smallest factor by which objects grow."""
    zoom_in_max: float = 1.5
    """Largest factor by which objects grow."""
    zoom_out_min: float = 1.0
    """Smallest divisor by which objects shrink."""
    zoom_out_max: float = 1.2
    """Largest divisor by which objects shrink."""

    def check(self, section: str) -> None:
        """Raise UserError for values out of range.

        Args:
            section: Section of the configuration, for messages.
        """
        check_share(section, self, "flip_prob", "zoom_prob")
        check_at_least(section, self, 0, "zoom_in_weight", "zoom_out_weight")
        if self.zoom_in_weight + self.zoom_out_weight == 0:
            raise UserError(
                "augment.zoom_weights",
                f"{section}: zoom_in_weight and zoom_out_weight are both 0; set zoom_prob=0 for no zoom",
            )
        for kind in ("zoom_in", "zoom_out"):
            check_at_least(section, self, 1, f"{kind}_min")
            check_at_least(section, self, getattr(self, f"{kind}_min"), f"{kind}_max")


@dataclass
class AugmentConfig:
    """Augmentation of training chunks. Streams do not zoom in, since a zoom depends on the labels of one chunk.

    With `window_ms` or `hz`, the windows are drawn: `draws` says whether for each random chunk, for each recording in
    the streams of an epoch, or for both. A value that is listed twice is drawn twice as often. This needs raw
    recordings. Chunks have the same number of steps at every rate, so they cover less time at high rates.
    """

    random: FlipZoomConfig = field(default_factory=FlipZoomConfig)
    stream: FlipZoomConfig = field(
        default_factory=lambda: FlipZoomConfig(zoom_prob=0.5, zoom_in_weight=0.0, zoom_out_weight=1.0)
    )
    window_ms: list[float] | None = None
    """Window lengths to draw, such as [5,10,20,35,50]; null: as in `windows`."""
    stream_window_ms: list[float] | None = None
    """Window lengths that streams draw; null: those of window_ms."""
    hz: list[float] | None = None
    """Rates to draw, such as [20,40,100]; null: as in `windows`."""
    draws: str = "random"
    """Which chunks draw their windows: random, stream or all; the others use `windows`."""

    def __post_init__(self) -> None:
        self.random.check("augment.random")
        self.stream.check("augment.stream")
        lengths = "lengths", "[5,20,50]"
        named = {"window_ms": lengths, "stream_window_ms": lengths, "hz": ("rates", "[20,40,100]")}
        for name, (what, example) in named.items():
            values = getattr(self, name)
            if values is not None and not (values and all(0.001 <= value < math.inf for value in values)):
                raise UserError(
                    "augment.not_positive", f"augment.{name}={values}; name positive {what}, such as {example}, or null"
                )
        check_choice("augment.draws", self.draws, ("random", "stream", "all"))
        if self.stream_window_ms is not None and (self.draws == "random" or self.window_ms is None):
            raise UserError(
                "augment.stream_window",
                f"augment.stream_window_ms={self.stream_window_ms} with augment.draws={self.draws} and "
                f"augment.window_ms={self.window_ms}; it needs augment.draws=all and lengths for random chunks",
            )
        if self.stream.zoom_in_weight:
            raise UserError(
                "augment.zoom_of_streams",
                f"augment.stream.zoom_in_weight={self.stream.zoom_in_weight}; a zoom in depends on the labels of one "
                "chunk and cannot stay the same over a stream: use 0",
            )


@dataclass
class DataConfig:
    """Loading of batches. Numbers are per process."""

    workers: int = 2
    """Loader processes; 0: load in the main process."""
    prefetch_factor: int = 2
    """Batches that each worker keeps ready."""
    pin_memory: bool = True
    """Put batches into pinned memory, which a GPU can read while it computes."""
    eval_batch_size: int = 8
    """Recordings evaluated in parallel."""
    eval_chunk_length: int = 21
    """Steps per evaluation batch."""
    max_open_recordings: int = 32
    """Files that each worker keeps open."""

    def __post_init__(self) -> None:
        check_at_least("data", self, 0, "workers")
        check_at_least("data", self, 1, "prefetch_factor", "max_open_recordings")
        check_at_least("data", self, 1, "eval_batch_size", "eval_chunk_length")
