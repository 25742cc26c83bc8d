"""The recordings of an evaluation loader through a detector, in constant memory."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from rvtssm.models.detector import Detector
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.streams import Streams
from rvtssm.records import Detections, SequenceBatch
from rvtssm.system.user_error import UserError


def stream(
    detector: Detector,
    loader: Iterable[SequenceBatch],
    *,
    trained_stride_us: float,
    memory_chunk: int | None = None,
    step_scale: float | None = None,
    config: PostprocessConfig | None = None,
    advance: Callable[[int], object] = lambda steps: None,
) -> dict[int, list[Detections]]:
    """Return the detections at every wanted frame of an evaluation loader, ordered by time.

    They are by the number of their recording in its split; a recording without such a frame is left out.

    The detector steps by `dt_us / trained_stride_us`, or by `step_scale`. The state is reset after every
    `memory_chunk` steps; with 1, what is lost is what memory is worth. `advance` is called with 1 after every batch.
    """
    found: dict[int, list[Detections]] = defaultdict(list)
    streams = Streams(detector, trained_stride_us, memory_chunk, step_scale)
    was_training = detector.training
    detector.eval()
    try:
        for batch in loader:
            if not bool(batch.is_pad.all()):
                for recording, frame in streams.detect_batch(batch, config):
                    found[recording].append(frame)
            advance(1)
    finally:
        detector.train(was_training)
    return {recording: sorted(frames, key=lambda frame: frame.t_us) for recording, frames in sorted(found.items())}


def check_causal(detector: Detector) -> None:
    """Raise ValueError for a detector whose outputs depend on later windows, since it cannot run step by step."""
    if not detector.is_causal:
        raise UserError(
            "these weights see whole chunks only (temporal.bidirectional=true) and cannot go step by step; score them "
            "with `rvtssm evaluate`, or train with temporal.bidirectional=false"
        )
