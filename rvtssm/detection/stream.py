"""For evaluation: run the recordings of a loader through a detector, in constant memory."""

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
    """Return the detections at every labelled frame of an evaluation loader.

    Args:
        detector: The detector.
        loader: Batches that read every recording from its start.
        trained_stride_us: The stride of training. The step scale is `dt_us / trained_stride_us`.
        memory_chunk: Reset the state after this many steps; None never does. With 1, the loss in accuracy shows how
            much the memory contributes.
        step_scale: Use this step scale instead.
        config: Post-processing.
        advance: Called with 1 after every batch.

    Returns:
        Detections ordered by time, by the number of their recording in its split. Recordings without a labelled frame
        are left out.
    """
    by_recording: dict[int, list[Detections]] = defaultdict(list)
    streams = Streams(detector, trained_stride_us, memory_chunk, step_scale)
    was_training = detector.training
    detector.eval()
    try:
        for batch in loader:
            if not bool(batch.is_pad.all()):
                for recording, frame in streams.detect_batch(batch, config):
                    by_recording[recording].append(frame)
            advance(1)
    finally:
        detector.train(was_training)
    return {number: sorted(frames, key=lambda frame: frame.t_us) for number, frames in sorted(by_recording.items())}


def check_causal(detector: Detector) -> None:
    """Raise UserError for a detector whose outputs depend on later windows, because it cannot run step by step."""
    if not detector.is_causal:
        raise UserError(
            "stream.not_causal",
            "these weights only work on whole chunks (temporal.bidirectional=true) and cannot run step by step; score "
            "them with `rvtssm evaluate`, or train with temporal.bidirectional=false",
        )
