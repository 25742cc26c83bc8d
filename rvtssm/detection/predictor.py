"""Detection in a few lines of Python: load weights, then predict on a recording or on a stream."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rvtssm.detection import TRACKERS, DetectionConfig, PredictConfig
from rvtssm.detection.configured_detector import sensor_detector
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.feed import Feed, Packet, PythonSource
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.predict_recording import RecordingRun
from rvtssm.detection.sources import EventsInMemory, OpenedSource, find_sources, opened_source
from rvtssm.detection.window_results import Prediction, WindowResult
from rvtssm.export.exported import read_weights_file
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.weight_files import default_weights
from rvtssm.readers import Recording
from rvtssm.readers.event_checks import to_events
from rvtssm.readers.filters import Filters
from rvtssm.readers.header import sensor_size
from rvtssm.readers.source import EventSource, LiveSource
from rvtssm.records import Events, ReadOptions, WindowSettings
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.limits import check_choice, check_counts
from rvtssm.system.user_error import UserError


def load(path: str | Path | None = None, *, precision: str = "float32") -> "Predictor":
    """Load trained weights, onto the GPU if there is one. An exported file runs on the CPU.

    >>> rvtssm.load("street-tiny").class_names
    ('person', 'vehicle', 'two-wheeler')

    Args:
        path: A file, the name of weights that come with the package, such as "street-tiny", or `hf://OWNER/NAME` for
            safetensors on the Hugging Face Hub. None takes the weights that `rvtssm predict FILE` takes.
        precision: float32, or bf16 for matrix products.

    Raises:
        UserError: The file is neither a checkpoint nor an exported detector.
    """
    if path is None:
        path = default_weights()
    if path is None:
        found = "this installation lacks its weights"
        raise UserError("weights.missing", found=found, advice='name yours, as in rvtssm.load("best.ckpt")')
    return Predictor(read_weights_file(path, precision))


def live(
    source: EventSource | Iterable[Packet],
    weights: str | Path | None = None,
    *,
    height: int | None = None,
    width: int | None = None,
    **options: Any,
) -> Iterator[WindowResult]:
    """Yield the boxes of the newest window whenever one has closed, while a camera or a program sends events.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> for window in rvtssm.live(recording.blocks(), "street-tiny", height=64, width=96, hz=20):
    ...     last_us = window.t_us
    >>> last_us <= recording.time_range_us[1] + 50_000
    True

    Args:
        source: As in `Predictor.live`, such as a generator of packets.
        weights: As in `load`.
        height: Height of the sensor in pixels, if the source does not give it.
        width: Width of the sensor in pixels, if the source does not give it.
        **options: As in `Predictor.stream`, without `latest`.
    """
    return load(weights).live(source, height, width, **options)


class Predictor:
    """Trained weights, ready for recordings and live events. `rvtssm.load` returns one.

    >>> weights = rvtssm.load("street-tiny")
    >>> len(weights.predict("street/test/test_0000_td.dat", hz=100))
    100

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
        reduce: str | None = None,
        tiles: str | None = None,
        repair: bool = False,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        filters: Filters = (),
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
            downsample: Each downsample x downsample square of the sensor is one pixel of the frame; by default the
                first windows decide, see `choose_downsample`. `summary.downsample` of the result says which value it
                was: pass it to `stream`, or to `predict` for other parts of the recording, so that they give the same
                boxes.
            reduce: How a square becomes a pixel: nearest (one pixel is kept), sum (the events of all are counted) or
                None (as in training).
            tiles: Cut frames into overlapping tiles, across and down, such as "2x2", for small objects.
            repair: Read a file even if many of its events are out of order, see `rvtssm.open`.
            min_score: Return boxes with at least this score.
            track: "bytetrack" gives each object a constant number (`found.track_id`). Boxes below `min_score` do not
                continue tracks.
            filters: Filters of the events, such as ["flicker", "background"], see `FilterChain`.
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
        # The same settings as on the command line.
        detection = DetectionConfig(hz, window, downsample, reduce, tiles, track=track)
        postprocess = PostprocessConfig(min_score=min_score)
        results = list[WindowResult]()
        with _opened(recording, height, width, repair) as source:
            run = RecordingRun(self.checkpoint, source, detection, PredictConfig(formats=[]), postprocess, filters)

            def read(start_us: int, end_us: int) -> Events:
                """Read events for a picture, also after the source was closed."""
                events = run.detector.filters.between(source.events, start_us, end_us)
                if isinstance(source.events, Recording):
                    source.events.close()
                return events

            for result in run.windows(progress):
                run.tally.add(result, len(result))
                results.append(result if source.events.is_live else replace(result, read=read))
        return Prediction(results, run.summary())

    def stream(
        self,
        height: int,
        width: int,
        *,
        hz: float | str | None = None,
        window: str | None = None,
        downsample: int | None = None,
        reduce: str | None = None,
        tiles: str | None = None,
        min_score: float = SHOWN_SCORE,
        track: str | None = None,
        track_memory_s: float = 1.0,
        filters: Filters = (),
        latest: bool = False,
    ) -> StreamDetector:
        """Return a detector for the events of a live camera.

        The first window takes longer than later ones; call `warm_up()` before the first events to avoid this. Until
        another window closes, results can draw the events of their windows.

        Args:
            height: Height of the sensor, pixels.
            width: Width of the sensor, pixels.
            hz: The rate; by default that of training. "auto" takes the highest one that this machine sustains, timed on
                ten windows; `windows.hz` of the result says which.
            window: Length of windows at other rates, see `predict`.
            downsample: Each downsample x downsample square of the sensor is one pixel; by default the largest value
                that leaves frames as large as in training. `predict` may choose a smaller one: for the same boxes, pass
                `summary.downsample` of its result.
            reduce: As in `predict`.
            tiles: As in `predict`.
            min_score: Return boxes with at least this score.
            track: "bytetrack" gives each object a constant number.
            track_memory_s: How long a lost object keeps its number, in seconds.
            filters: As in `predict`.
            latest: Compute only the newest window that a push closes, as `rvtssm live` does, so that a detector that is
                slower than the events does not fall behind. `num_passed` of a result counts the windows before it.
        """
        stream = sensor_detector(
            self.checkpoint,
            (height, width),
            DetectionConfig(hz, window, downsample, reduce, tiles, track=track),
            PostprocessConfig(min_score=min_score),
            filters,
            track_memory_s,
            skip="late" if latest else "empty",
            keeps_events=True,
        )
        _warn(self.checkpoint, stream.windows)
        return stream

    def live(
        self,
        source: EventSource | Iterable[Packet],
        height: int | None = None,
        width: int | None = None,
        **options: Any,
    ) -> Iterator[WindowResult]:
        """Yield the newest window whenever one has closed, while a camera or a program sends events.

        A thread reads the source meanwhile. If the detector is slower than the windows, it passes some over
        (`num_passed`), and `lag_s` says how old the boxes are.

        Args:
            source: Packets of events from a Python iterator (see `PythonSource`), or an `EventSource`, such as a
                camera.
            height: Height of the sensor in pixels, if the source does not give it.
            width: Width of the sensor in pixels, if the source does not give it.
            **options: As in `stream`.

        Raises:
            UserError: The source broke off, its events cannot be used, or an option is invalid.
        """
        if not isinstance(source, EventSource):
            if height is None or width is None:
                raise UserError("sensor.unknown", found="packets do not tell the size of their sensor")
            source = PythonSource(source, height, width)
        live_source = source if isinstance(source, LiveSource) else Feed(source)
        run = LiveRun(live_source, self.stream(live_source.height, live_source.width, **options, latest=True))
        run.warm_up()
        try:
            while not live_source.is_ended:
                result = run.step()
                if result is not None:
                    yield result
        finally:
            live_source.end()
        if live_source.broke_off:
            raise UserError("source.broke_off", found=live_source.broke_off)

    def __repr__(self) -> str:
        checkpoint = self.checkpoint
        note = f"; {checkpoint.note}" if checkpoint.note else ""
        return (
            f"Predictor({checkpoint.model_config.preset} {checkpoint.temporal_config.name}, "
            f"{', '.join(self.class_names)}, trained at {checkpoint.windows.hz:g} Hz on {checkpoint.spec.name}"
            f"{note})"
        )


@contextmanager
def _opened(recording: object, height: int | None, width: int | None, repair: bool) -> Iterator[OpenedSource]:
    """Open what `Predictor.predict` accepts. Raise UserError for anything else."""
    if isinstance(recording, Recording):
        # An opened recording stays open, and gets its `repair` back.
        size_hw = recording.height, recording.width
        sensor_size(recording.path, size_hw, ReadOptions(height, width))  # both agree, or an error
        before = recording.repair
        recording.repair |= repair
        try:
            yield OpenedSource(recording.name, recording)
        finally:
            recording.repair = before
    elif isinstance(recording, str | Path):
        # A path or an address is opened here, and closed afterwards.
        sources = find_sources(str(recording))
        if len(sources) > 1:
            named = ", ".join(list(sources)[:3])
            found = f"it holds {len(sources)} recordings ({named}, ...)"
            raise UserError("source.kind", name=recording, found=found, advice="predict them one by one")
        options = ReadOptions(height, width, repair or None)
        with opened_source(next(iter(sources.values())), options) as source:
            yield source
    else:
        # Events in memory do not know their sensor.
        events = to_events(recording)
        if height is None or width is None:
            raise UserError("sensor.unknown", found="events in memory do not tell the size of their sensor")
        yield OpenedSource("events in memory", EventsInMemory(events, height, width, repair))


def _warn(checkpoint: LoadedCheckpoint, settings: WindowSettings) -> None:
    """Warn about windows that the weights have not seen in training."""
    if warning := checkpoint.warn_of_windows(settings):
        warnings.warn(warning, stacklevel=3)
