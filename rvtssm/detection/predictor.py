"""Detection in a few lines of Python: load weights, then predict on a recording or on a stream."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from rvtssm.detection.inference_config import TRACKERS, PredictConfig
from rvtssm.detection.live import LiveWindow, StreamDetector
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.schedule import FixedRate
from rvtssm.detection.sources import EventsInMemory, Source, find_sources, opened_source
from rvtssm.detection.track_objects import Tracker
from rvtssm.detection.window_results import Prediction, WindowResult
from rvtssm.export.exported import ExportedDetector, read_weights_file
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.hub import CARD_FILE, WEIGHTS_FILE, upload_folder
from rvtssm.models.model_card import model_card
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.models.named_weights import default_weights
from rvtssm.readers import Recording
from rvtssm.readers.event_checks import to_events
from rvtssm.readers.header import sensor_size
from rvtssm.readers.recording import MANY_EVENTS, join_events, warn_of_density
from rvtssm.records import SHOWN_SCORE, Detections, Events, WindowSettings
from rvtssm.system.limits import check_choice, check_counts
from rvtssm.system.user_error import UserError


def load(path: str | Path | None = None, *, precision: str = "float32") -> "Predictor":
    """Load trained weights, onto the GPU if there is one. An exported file runs on the CPU.

    Args:
        path: A file, the name of weights that come with the package, such as "street-tiny", or `hf://OWNER/NAME` for
            safetensors on the Hugging Face Hub. None takes the weights that `rvtssm predict FILE` takes.
        precision: float32, or bf16 for matrix products.

    Raises:
        UserError: The file is neither a checkpoint nor an exported detector.
    """
    path = default_weights() if path is None else path
    if path is None:
        raise UserError('this installation lacks its weights; name yours, as in rvtssm.load("best.ckpt")')
    return Predictor(read_weights_file(path, precision))


class Predictor:
    """Trained weights, ready for recordings and live events. `rvtssm.load` returns one.

    Args:
        checkpoint: The weights.
    """

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.checkpoint.spec.class_names

    def predict(
        self,
        recording: str | Path | Recording | Events | np.ndarray,
        *,
        hz: float | None = None,
        window: str | None = None,
        height: int | None = None,
        width: int | None = None,
        downsample: int | None = None,
        repair: bool = False,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        progress: bool = False,
    ) -> Prediction:
        """Detect objects in all windows of a recording, like `rvtssm predict`.

        Args:
            recording: What that command accepts (a file, folder, URL or stream), an opened recording, or events in
                memory: Events, or a structured array with the fields t (integer microseconds), x, y and p.
            hz: The rate; by default that of training.
            window: Length of windows at other rates: slide (as in training), shrink (as long as the stride) or None (as
                the weights allow, see `CheckpointMeta.windows_at`).
            height: Height of the sensor in pixels; needed for events in memory. For a file that does not give its size,
                the default is the smallest common sensor that fits.
            width: Width of the sensor in pixels, likewise.
            downsample: Frames keep one pixel of each downsample x downsample square; by default the first windows
                decide, see `choose_downsample`. `summary.downsample` of the result says which value it was: pass it to
                `stream`, or to `predict` for other parts of the recording, so that they give the same boxes.
            repair: Read a file even if many of its events are out of order, see `rvtssm.open`.
            min_score: Return boxes with at least this score.
            track: "bytetrack" gives each object a constant number (`found.track_id`). Boxes below `min_score` do not
                continue tracks.
            progress: Whether to show a progress bar.

        Returns:
            One result per window, and the summary of the run.

        Raises:
            UserError: The recording cannot be read, or an argument is invalid.
        """
        _warn(self.checkpoint, self.checkpoint.windows_at(hz, window))
        check_counts(height=height, width=width, downsample=downsample)
        height, width, downsample = (None if n is None else int(n) for n in (height, width, downsample))
        check_choice("track", track, (*TRACKERS, None))
        settings = PostprocessConfig(min_score=min_score, max_detections=PredictConfig().postprocess.max_detections)
        config = PredictConfig(
            hz=hz,
            window=window,
            downsample=downsample,
            height=height,
            width=width,
            postprocess=settings,
            formats=[],
            track=track,
        )
        spec, note, frames = self.checkpoint.spec, self.checkpoint.note, list[tuple[Detections, int]]()
        with tempfile.TemporaryDirectory() as folder, _opened(recording, height, width, repair) as source:
            summary = predict_recording(
                self.checkpoint, source, folder, config, on_frame=lambda *frame: frames.append(frame), progress=progress
            )
        if summary.doubt:
            warnings.warn(summary.doubt, stacklevel=2)
        if summary.remedy and summary.step_ms["p50"] > 1000 / summary.hz:
            warnings.warn(f"a window took {summary.step_ms['p50']:.0f} ms; {summary.remedy}", stacklevel=2)
        read = None if source.is_piped else source.between
        results = [WindowResult(found, start_us, summary.sensor_hw, spec, note, read) for found, start_us in frames]
        return Prediction(results, replace(summary, files=()))  # they went with the folder

    def stream(
        self,
        height: int,
        width: int,
        *,
        hz: float | None = None,
        window: str | None = None,
        downsample: int | None = None,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        track_memory_s: float = 1.0,
    ) -> "LiveStream":
        """Return a stream for the events of a live camera.

        Args:
            height: Height of the sensor, pixels.
            width: Width of the sensor, pixels.
            hz: The rate; by default that of training.
            window: Length of windows at other rates, see `predict`.
            downsample: Frames keep one pixel of each downsample x downsample square; by default the largest value that
                leaves frames as large as in training. `predict` may choose a smaller one: for the same boxes, pass
                `summary.downsample` of its result.
            min_score: Return boxes with at least this score.
            track: "bytetrack" gives each object a constant number.
            track_memory_s: How long a lost object keeps its number, in seconds.
        """
        windows = self.checkpoint.windows_at(hz, window)
        _warn(self.checkpoint, windows)
        schedule = FixedRate(windows.hz, windows.length_us)
        config = PostprocessConfig(min_score=min_score, max_detections=PredictConfig().postprocess.max_detections)
        detector = StreamDetector(
            self.checkpoint, height, width, schedule=schedule, downsample=downsample, config=config
        )
        tracker = Tracker(track, len(self.class_names), windows.hz, track_memory_s, SHOWN_SCORE) if track else None
        return LiveStream(detector, self, tracker)

    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Upload the weights as safetensors, with a model card, to the Hugging Face Hub.

        Paths of the training data are left out. A card (README.md) that is already there is kept.

        Args:
            repo: OWNER/NAME, created if missing.
            private: Make the repository private.

        Returns:
            The address for `load`.

        Raises:
            UserError: The upload fails, the weights are an exported file, or `private` is set and the repository is
                public.
        """
        if isinstance(self.checkpoint.detector, ExportedDetector):
            raise UserError(f"{repo}: an exported file has no weights to share; load the checkpoint it was made from")
        with tempfile.TemporaryDirectory() as folder:
            public = self.checkpoint.without_folders()
            write_checkpoint(Path(folder) / WEIGHTS_FILE, self.checkpoint.detector, public)
            (Path(folder) / CARD_FILE).write_text(model_card(repo, self.checkpoint))
            return upload_folder(repo, Path(folder), private, "Weights and card, written by rvtssm")

    def __repr__(self) -> str:
        checkpoint = self.checkpoint
        return (
            f"Predictor({checkpoint.model_config.size} {checkpoint.temporal_config.name}, "
            f"{', '.join(self.class_names)}, trained at {checkpoint.windows.hz:g} Hz on {checkpoint.spec.name}"
            f"{f'; {checkpoint.note}' if checkpoint.note else ''})"
        )


class LiveStream:
    """The windows of a live camera as results with class names. `detector` holds the rate and the state.

    Args:
        detector: The detector.
        predictor: The weights.
        tracker: Numbers the objects; None does not.
    """

    def __init__(self, detector: StreamDetector, predictor: Predictor, tracker: Tracker | None = None) -> None:
        self.detector = detector
        self._spec, self._note = predictor.checkpoint.spec, predictor.checkpoint.note
        self._tracker = tracker
        self._kept: list[Events] = []  # packets since the start of the first window of the last push
        self._kept_from_us: int | None = None
        self._first_us = 0
        self._num_checked = 0  # events whose density was checked; MANY_EVENTS or more: the check is over

    def push(self, events: Events | np.ndarray, until_us: int | None = None) -> list[WindowResult]:
        """Take in events, and return the results of the windows that they close.

        Until another window closes, the results can draw the events of their windows.

        Args:
            events: Events, or a structured array as in `Predictor.predict`.
            until_us: No event before this time is missing, see `StreamDetector.push`.
        """
        packet = to_events(events)
        windows = self.detector.push(packet, until_us)
        if len(packet):
            self._kept.append(packet)
            self._check_density(packet)
        return self._results(windows)

    def finish(self) -> list[WindowResult]:
        """Return the results of the last window, which the end of the events cuts short, as `predict` does."""
        return self._results(self.detector.finish())

    def _check_density(self, packet: Events) -> None:
        """Warn once if the first events of the stream are so dense that their times cannot be microseconds."""
        if self._num_checked >= MANY_EVENTS:
            return
        if not self._num_checked:
            self._first_us = int(packet.t[0])
        self._num_checked += len(packet)
        range_us = self._first_us, int(packet.t[-1])
        if warn_of_density("the stream", self._num_checked, range_us, *self.detector.sensor_hw):
            self._num_checked = MANY_EVENTS

    def _results(self, windows: list[LiveWindow]) -> list[WindowResult]:
        """Return the results of windows that have just closed."""
        if windows:
            self._kept_from_us = windows[0].start_us
            self._kept = [kept for kept in self._kept if kept.t[-1] >= windows[0].start_us]
        results = []
        for window in windows:
            found = self._tracker.update(window.detections[0]) if self._tracker else window.detections[0]
            sensor_hw = self.detector.sensor_hw
            results.append(WindowResult(found, window.start_us, sensor_hw, self._spec, self._note, self._read))
        return results

    def _read(self, start_us: int, end_us: int) -> Events:
        """Return the events of a window that the last push closed. Raise UserError for an earlier window."""
        if self._kept_from_us is None or start_us < self._kept_from_us:
            raise UserError(
                "a stream only keeps the events of the windows that closed last; draw results before the next push, or "
                "pass its events: draw(EVENTS)"
            )
        return join_events([kept.between(start_us, end_us) for kept in self._kept])

    def __repr__(self) -> str:
        return f"LiveStream({self.detector})"


@contextmanager
def _opened(recording: object, height: int | None, width: int | None, repair: bool) -> Iterator[Source]:
    """Open what `Predictor.predict` accepts. Raise UserError for anything else."""
    if isinstance(recording, Recording):
        sensor_size(recording.path, (recording.height, recording.width), (height, width))  # both agree, or an error
        before = recording.repair
        recording.repair |= repair
        try:
            yield Source(recording.name, recording)
        finally:
            recording.repair = before
    elif isinstance(recording, str | Path):
        sources = find_sources(str(recording))
        if len(sources) > 1:
            named = ", ".join(list(sources)[:3])
            raise UserError(f"{recording} holds {len(sources)} recordings ({named}, ...); predict them one by one")
        with opened_source(next(iter(sources.values())), height, width, repair=repair) as source:
            yield source
    else:
        events = to_events(recording)
        if height is None or width is None:
            raise UserError("events in memory do not tell the size of their sensor; give height= and width=")
        yield Source("events in memory", EventsInMemory(events, height, width))


def _warn(checkpoint: LoadedCheckpoint, settings: WindowSettings) -> None:
    """Warn about windows that the weights have not seen in training."""
    if warning := checkpoint.warn_of_windows(settings):
        warnings.warn(warning, stacklevel=3)
