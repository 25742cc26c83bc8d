"""`rvtssm benchmark`: the rates that this machine sustains, over the factors by which frames can be smaller."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from rvtssm.cli.chosen_weights import precision_in_words, weights_to_detect
from rvtssm.cli.config import Config
from rvtssm.cli.console import changing_line, console, say
from rvtssm.cli.inputs import out_folder, weights_label
from rvtssm.detection import shown_boxes
from rvtssm.detection.configured_detector import halved, sustained_hz
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.event_camera import CAMERA
from rvtssm.detection.sources import find_sources, opened_source
from rvtssm.detection.summary import counted
from rvtssm.evaluation.render import TerminalTable
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import LoadedCheckpoint, downsample_by_size
from rvtssm.models.detector import Detector
from rvtssm.records import ReadOptions, WindowSettings
from rvtssm.system.output_folder import result_set

NUM_TIMED = 20  # windows for each line of the table


@dataclass(frozen=True)
class SustainedRate:
    """The time of a window at one factor, measured one window at a time as in live detection."""

    downsample: int  # frames are smaller than the sensor by this factor per side
    frame_hw: tuple[int, int]  # pixels
    smallest_object_px: float  # diagonal of the smallest objects of the training, in pixels of the sensor
    p50_ms: float  # time of a window, from counting its events to its boxes
    p95_ms: float
    hz: float  # the highest rate that is sustained, see `sustained_hz`


def benchmark(config: Config, as_json: bool = False) -> None:
    """Measure the rates for the sensor of a recording or a camera, print a table, and write `benchmark.json`."""
    label = weights_label(config.checkpoint)
    where = config.recording or CAMERA
    name = next(iter(find_sources(where)))
    # Only the size of the sensor matters, since windows hold one event each.
    with opened_source(where, ReadOptions.of(config.dataset), config.detection.camera_settings) as opened:
        sensor_hw = opened.events.height, opened.events.width
    config, checkpoint = weights_to_detect(config)
    detection = config.detection
    windows = checkpoint.windows_at(detection.rate, detection.window, detection.reduce)
    rates = list[SustainedRate]()
    with changing_line("measuring") as show:
        shown = shown_boxes(config.postprocess)
        for rate in sustained_rates(checkpoint, sensor_hw, windows, shown, detection.downsample):
            rates.append(rate)
            show(f"measuring: downsample={rate.downsample} takes {rate.p50_ms:.0f} ms per window")
    # What a reader must know to compare the numbers.
    about = {
        "source": opened.name,
        "weights": config.checkpoint,
        "sensor_hw": sensor_hw,
        "window_ms": windows.nominal_length_us / 1000,
        "windows": NUM_TIMED,
        "precision": precision_in_words(config.precision, checkpoint),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],  # of the last minute: other programs that run slow the detector down
        "rates": [asdict(rate) for rate in rates],
    }
    content = json.dumps(about, indent=2) + "\n"
    out = out_folder(config, "benchmark", name, label)
    with result_set(out, "benchmark", ["benchmark.json"]) as staged:
        (staged / "benchmark.json").write_text(content)
    if as_json:
        say(content.rstrip())
        return
    how = f"{NUM_TIMED} windows each, {counted(torch.get_num_threads(), 'thread')}, {about['precision']}"
    console.print(_table(rates, how))
    say(f"in {out / 'benchmark.json'}")


def sustained_rates(
    checkpoint: LoadedCheckpoint,
    sensor_hw: tuple[int, int],
    windows: WindowSettings,
    config: PostprocessConfig,
    downsample: int | None = None,
) -> Iterator[SustainedRate]:
    """Yield the rates of the usual factor, of half of it, and so on down to 1.

    Args:
        checkpoint: The weights.
        sensor_hw: Height and width of the sensor, pixels.
        windows: Stride and length of windows.
        config: Post-processing.
        downsample: Measure only this factor.
    """
    usual = downsample_by_size(checkpoint, *sensor_hw)
    factors = [downsample or usual]
    if downsample is None and isinstance(checkpoint.detector, Detector):  # exported frames have one size
        factors = halved(usual)
    for factor in factors:
        detector = StreamDetector(checkpoint, *sensor_hw, windows=windows, downsample=factor, config=config)
        seconds = detector.warm_up(NUM_TIMED)
        yield SustainedRate(
            downsample=factor,
            frame_hw=detector.frame_hw,
            smallest_object_px=factor * checkpoint.spec.prepare_min_diagonal_px / checkpoint.spec.downsample,
            p50_ms=1000 * float(np.percentile(seconds, 50)),
            p95_ms=1000 * float(np.percentile(seconds, 95)),
            hz=sustained_hz(seconds, checkpoint.windows.hz),
        )


def _table(rates: Sequence[SustainedRate], how: str) -> TerminalTable:
    rows: list[tuple[str, ...]] = [("downsample", "frame", "smallest object", "median", "95 % within", "sustained")]
    for rate in rates:
        frame = f"{rate.frame_hw[1]} x {rate.frame_hw[0]}"
        times = f"{rate.p50_ms:.1f} ms", f"{rate.p95_ms:.1f} ms", f"{rate.hz:g} Hz"
        rows.append((str(rate.downsample), frame, f"{rate.smallest_object_px:.0f} pixels", *times))
    return TerminalTable(f"time of a window ({how})", rows)
