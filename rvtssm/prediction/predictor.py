"""Detection in a few lines of Python: load weights, predict on a recording or on a stream, use what was found."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rvtssm.drawing.draw import class_name, draw_frame
from rvtssm.events.event_checks import check_events
from rvtssm.events.frame_counter import count_windows
from rvtssm.events.readers import Recording
from rvtssm.export.exported import ExportedDetector, read_weights_file
from rvtssm.models.checkpoint import LoadedCheckpoint, write_checkpoint
from rvtssm.models.hub import CARD_FILE, WEIGHTS_FILE, upload_folder
from rvtssm.models.model_config import PostprocessConfig
from rvtssm.prediction.detection_files import coco_results
from rvtssm.prediction.inference_config import SHOWN_SCORE, PredictConfig
from rvtssm.prediction.model_card import model_card
from rvtssm.prediction.predict_recording import predict_recording
from rvtssm.prediction.summary import PredictionSummary
from rvtssm.prediction.track_objects import Tracker
from rvtssm.records import DatasetSpec, Detections, Events, Windows, WindowSettings
from rvtssm.streaming.live import StreamDetector
from rvtssm.streaming.schedule import FixedRate
from rvtssm.streaming.sources import EventsInMemory, Source
from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError


def load(path: str | Path, *, precision: str = "float32", trust: bool = False) -> "Predictor":
    """Return the detector of a checkpoint, on the GPU if there is one, or of an exported file, on the CPU.

    `path` is a file, the name of weights that come with the package, such as "street-tiny", or `hf://OWNER/NAME` for
    weights in safetensors on the Hugging Face Hub.

    `precision` is float32, or bf16 for products. `trust` allows .pt2 and .aot.pt2, which are programs that can run any
    code. Raise ValueError if the file is neither.
    """
    return Predictor(read_weights_file(path, precision, trust))


@dataclass(frozen=True)
class FrameResult:
    """The objects of one window. `found` holds them as arrays, in pixels of the sensor, best score first."""

    found: Detections
    start_us: int  # of the window, which ends at found.t_us
    sensor_hw: tuple[int, int]  # pixels
    spec: DatasetSpec  # of the training, for the classes
    note: str | None = None  # of the weights, which pictures show

    def __len__(self) -> int:
        return len(self.found)

    @property
    def names(self) -> list[str]:
        """The class of every object."""
        return [class_name(self.spec.class_names, class_id) for class_id in self.found.class_id.tolist()]

    def draw(self, events: Events, min_score: float = SHOWN_SCORE) -> Image.Image:
        """Return a picture of the objects on those of `events` that lie in the window; a notebook shows it."""
        check_events(events, *self.sensor_hw)
        start_us, end_us = self.start_us, self.found.t_us
        window = Windows(np.array([[start_us, end_us]]), np.array([end_us - start_us]))
        (hist,) = count_windows(events.between(start_us, end_us), window, *self.sensor_hw)
        names = self.spec.class_names
        return Image.fromarray(draw_frame(hist, self.found, None, names, min_score=min_score, note=self.note))

    def to_coco(self) -> list[dict[str, object]]:
        """Return results for COCO's tools; `image_id` is the end of the window in microseconds."""
        return coco_results(self.found, self.spec.disk_class_ids)

    def to_supervision(self) -> Any:
        """Return `supervision.Detections`. Raise ValueError if that library is not installed."""
        check_extra("to_supervision", "supervision", "supervision")
        import supervision

        return supervision.Detections(
            xyxy=self.found.xyxy,
            confidence=self.found.score,
            class_id=self.found.class_id,
            tracker_id=self.found.track_id,
            data={"class_name": np.array(self.names)},
        )

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{score:.2f}", *(f"{edge:.0f}" for edge in xyxy))
            for name, score, xyxy in zip(self.names, self.found.score, self.found.xyxy, strict=True)
        ]
        caption = f"{len(self)} objects at {self.found.t_us / 1e6:.3f} s"
        return _table(caption, ("class", "score", "left", "top", "right", "bottom"), rows)


@dataclass(frozen=True)
class Prediction(Sequence[FrameResult]):
    """The objects of every window of a recording, in order, and the summary of the run."""

    frames: list[FrameResult]
    summary: PredictionSummary

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: Any) -> Any:
        """Return the result of one window, or a list of them for a slice."""
        return self.frames[index]

    def to_coco(self) -> list[dict[str, object]]:
        """Return the results of all windows for COCO's tools."""
        return [result for frame in self.frames for result in frame.to_coco()]

    def _repr_html_(self) -> str:
        counts = Counter(name for frame in self.frames for name in frame.names)
        return _table(" | ".join(self.summary.sentences()[:2]), ("class", "boxes"), sorted(counts.items()))


class Predictor:
    """Trained weights, ready for recordings and for live events. `rvtssm.load` returns one."""

    def __init__(self, checkpoint: LoadedCheckpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.checkpoint.spec.class_names

    def predict(
        self,
        recording: str | Path | Recording | Events,
        *,
        hz: float | None = None,
        window: str | None = None,
        height: int | None = None,
        width: int | None = None,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        progress: bool = False,
    ) -> Prediction:
        """Return the objects of all windows, with at least `min_score`, as `rvtssm predict` finds them.

        `recording` is what that command takes, or an opened recording, or events in memory. `hz` is the rate, by
        default that of the training; `window` says how long windows are at other rates: as in training (slide), as the
        stride (shrink), or what the weights are made for (None, see `CheckpointMeta.windows_at`). `height` and `width`,
        in sensor pixels, are needed for what does not say them.
        `track="bytetrack"` numbers the objects (`found.track_id`); boxes below `min_score` do not continue tracks.
        """
        settings = PostprocessConfig(min_score=min_score, max_detections=PredictConfig().postprocess.max_detections)
        config = PredictConfig(
            hz=hz, window=window, height=height, width=width, postprocess=settings, formats=[], track=track
        )
        source: str | Source = str(recording)
        if isinstance(recording, Events):
            if height is None or width is None:
                raise UserError("events in memory do not say the size of their sensor; give height= and width=")
            source = Source("events in memory", EventsInMemory(recording, height, width))
        elif isinstance(recording, Recording):
            source = Source(recording.name, recording)
        _warn(self.checkpoint, self.checkpoint.windows_at(hz, window))
        spec, frames = self.checkpoint.spec, list[tuple[Detections, int]]()
        with tempfile.TemporaryDirectory() as folder:
            summary = predict_recording(
                self.checkpoint, source, folder, config, on_frame=lambda *frame: frames.append(frame), progress=progress
            )
        note = self.checkpoint.note
        results = [FrameResult(found, start_us, summary.sensor_hw, spec, note) for found, start_us in frames]
        return Prediction(results, summary)

    def stream(
        self,
        height: int,
        width: int,
        *,
        hz: float | None = None,
        window: str | None = None,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        track_memory_s: float = 1.0,
    ) -> "LiveStream":
        """Return a stream for the events of a camera with a sensor of height x width pixels.

        `hz` is the rate, by default that of the training, and `window` as in `predict`.
        `track="bytetrack"` numbers the objects; one that is not found keeps its number for `track_memory_s` seconds.
        """
        windows = self.checkpoint.windows_at(hz, window)
        _warn(self.checkpoint, windows)
        schedule = FixedRate(windows.hz, windows.length_us)
        config = PostprocessConfig(min_score=min_score, max_detections=PredictConfig().postprocess.max_detections)
        detector = StreamDetector(self.checkpoint, height, width, schedule=schedule, config=config)
        tracker = Tracker(track, len(self.class_names), windows.hz, track_memory_s, SHOWN_SCORE) if track else None
        return LiveStream(detector, self, tracker)

    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Upload the weights, as safetensors, with a card to the Hugging Face Hub; return the address for `load`.

        `repo` is OWNER/NAME, which is created if it is missing; a card (README.md) that is there already is kept. Paths
        of the training data are left out. Raise ValueError if it fails, for an exported file, and if `private` is given
        and the repository is public.
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
    """The windows of a live camera as results with class names; `detector` has the rate and the state."""

    def __init__(self, detector: StreamDetector, predictor: Predictor, tracker: Tracker | None = None) -> None:
        self.detector = detector
        self._spec, self._note = predictor.checkpoint.spec, predictor.checkpoint.note
        self._tracker = tracker

    def push(self, events: Events, until_us: int | None = None) -> list[FrameResult]:
        """Return the results of the windows that close with these events, as `StreamDetector.push` does."""
        results = []
        for window in self.detector.push(events, until_us):
            found = self._tracker.update(window.detections[0]) if self._tracker else window.detections[0]
            results.append(FrameResult(found, window.start_us, self.detector.sensor_hw, self._spec, self._note))
        return results


def _warn(checkpoint: LoadedCheckpoint, settings: WindowSettings) -> None:
    """Warn of windows that the weights have not seen in training."""
    if warning := checkpoint.warn_of_windows(settings):
        warnings.warn(warning, stacklevel=3)


def _table(caption: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<p>{escape(caption)}</p><table><tr>{head}</tr>{body}</table>"
