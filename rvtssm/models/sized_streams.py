"""The memory of streams whose frames have several sizes: a state per size, one detector that takes each in turn."""

from collections.abc import Callable
from typing import Any

from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, SequenceBatch

FrameSize = tuple[int, int]  # height and width in pixels


class SizedStreams:
    """Use this in place of `Streams` where batches differ in the size of their frames, as in training.

    All frames of a batch have one size. Streams of another size keep their states while a batch is run, so a slot is
    one stream per size. `build` makes the `Streams` of one size; all run `detector`.
    """

    def __init__(self, detector: Detector, build: Callable[[], Streams]) -> None:
        self.detector = detector
        self._build = build
        self._by_size: dict[FrameSize, Streams] = {}

    def push_batch(self, batch: SequenceBatch) -> Any:
        """Run a batch as `Streams.push_batch` does."""
        return self._of(batch).push_batch(batch)

    def detect_batch(
        self, batch: SequenceBatch, config: PostprocessConfig | None = None
    ) -> list[tuple[int, Detections]]:
        """Run a batch as `Streams.detect_batch` does."""
        return self._of(batch).detect_batch(batch, config)

    def clear(self) -> None:
        """Forget every stream of every size."""
        self._by_size.clear()

    def states(self) -> dict[FrameSize, dict[str, Any]]:
        """Return the states of all streams by the size of their frames, as they are, not copied."""
        return {size: streams.states() for size, streams in self._by_size.items()}

    def state_dict(self) -> dict[FrameSize, dict[str, Any]]:
        """Return the states of all streams by the size of their frames, on the CPU."""
        return {size: streams.state_dict() for size, streams in self._by_size.items()}

    def load_state_dict(self, stored: dict[Any, Any]) -> None:
        """Go on from what `state_dict` returned. Raise ValueError if the states are those of another detector."""
        self.clear()
        if "steps" in stored:  # of an earlier version, for the one size of the detector
            stored = {self.detector.frame_hw: stored}
        for size, states in stored.items():
            self._sized(size).load_state_dict(states)

    def _of(self, batch: SequenceBatch) -> Streams:
        height, width = batch.hist.shape[-2:]
        return self._sized((height, width))

    def _sized(self, size: FrameSize) -> Streams:
        if size != self.detector.frame_hw:
            self.detector.take_frames(size)
        if size not in self._by_size:
            self._by_size[size] = self._build()
        return self._by_size[size]
