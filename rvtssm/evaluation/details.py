"""What a report says beside the numbers of its rates: breakdown, worst frames, conditions, provenance."""

from collections.abc import Sequence

import numpy as np

from rvtssm.detection.track_objects import TRACK_MEMORY_S
from rvtssm.drawing import to_png
from rvtssm.drawing.draw import draw_frame, shown_events
from rvtssm.evaluation.breakdown import Breakdown, break_down
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.protocol import num_images_left_out, num_scored, scoring_rules
from rvtssm.evaluation.rates import PlannedRate, ScoredRate
from rvtssm.evaluation.report import Picture, Row, column, in_hz, percent_of
from rvtssm.evaluation.tracks import read_tracks, track_speeds
from rvtssm.evaluation.weights_on_data import differences_in_scoring
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import head_class
from rvtssm.records import DatasetSpec
from rvtssm.records.settings import SHOWN_SCORE
from rvtssm.system.files import written_by


def title(checkpoint: LoadedCheckpoint, options: EvaluationConfig) -> str:
    """Return which weights were scored on which recordings."""
    words = [f"{checkpoint.spec.name} {options.split}"]
    words.append(f"{checkpoint.model_config.preset} {checkpoint.temporal_config.name}")
    if options.grid == "free":
        words.append("free grid")
    if options.streaming:
        words.append("streaming")
    if options.label_hz:
        words.append(f"labels interpolated to {options.label_hz:g} Hz")
    return ", ".join(words)


def conditions(run: DetectorRun, rates: Sequence[PlannedRate], scored: ScoredRate) -> dict[str, str]:
    """Describe everything that decides the numbers of an evaluation.

    Args:
        run: The detector, and how it runs.
        rates: The rates.
        scored: One of the rates, whose labels are those of all.
    """
    checkpoint = run.checkpoint
    options = run.options
    # What holds for every evaluation.
    kinds = dict.fromkeys(kind for rate in rates for kind in rate.windows)
    lines = {
        "weights": f"{run.weights.path}, trained at {checkpoint.windows.hz:g} Hz",
        "score": _score(run),
        "scored": _scored(checkpoint.spec, scored),
        "data": _data(run),
        "frames": _frames(checkpoint),
        "windows": f"{' and '.join(kinds)}, counted from {run.source} data, convention "
        f"{checkpoint.windows.convention}, {_grid(options, rates)}",
        "time step": "window end to window end over the stride of training",
        "memory": options.memory or checkpoint.model_config.memory,
        "precision": f"{run.weights.precision} on {checkpoint.detector.device.type}",
        "still objects": f"no motion for {options.still_ms:g} ms or more, where labels tell; other boxes are ignored",
    }
    # What the options change.
    if options.step_scale is not None:
        lines["time step"] = f"{options.step_scale:g} whatever the rate"
    if checkpoint.temporal_config.bidirectional:
        chunk = run.data.data.eval_chunk_length
        lines["memory"] += f", and events after the label, to the end of each chunk of {chunk} steps"
    if run.classes is not None:
        lines["classes"] = _classes(run, options)
    if options.label_hz is not None:
        lines["labels"] = f"interpolated linearly along tracks to {options.label_hz:g} Hz; only some were annotated"
    if options.track is not None:
        lines["tracks"] = (
            f"{options.track} on the outputs at label times, from a score of {SHOWN_SCORE:g}; an object that is not "
            f"found is remembered for {TRACK_MEMORY_S:g} s; HOTA, MOTA and IDF1 over the labels with a track"
        )
    if options.streaming:
        lines["streaming"] = _streaming(options)
    return lines


def _score(run: DetectorRun) -> str:
    parts = [head_class(run.checkpoint.model_config).describe_scores(run.postprocess)]
    if run.postprocess.max_detections is not None:
        parts.append(f"at most {run.postprocess.max_detections} per frame")
    return "; ".join([*parts, *differences_in_scoring(run.postprocess, run.checkpoint.scored_as)])


def _scored(spec: DatasetSpec, scored: ScoredRate) -> str:
    labels = [recording.labels for recording in scored.recordings]
    parts = [f"{num_scored(labels, spec)} boxes", scoring_rules(spec)]
    if images := num_images_left_out(labels, spec):
        parts.append(f"{images} label times without such a box are left out")
    return "; ".join(parts)


def _data(run: DetectorRun) -> str:
    """Describe which files were read, and how if that is unusual."""
    dataset = run.data.config
    spec = run.data.spec
    parts = [str(dataset.raw_dir if run.source == "raw" else dataset.prepared_dir)]
    if spec.repair:
        parts.append("faulty recordings repaired")
    if spec.label_offset_us is None:
        parts.append("the time shift of each recording added to its label times")
    elif spec.label_offset_us:
        parts.append(f"{spec.label_offset_us} us added to label times")
    return "; ".join(parts)


def _frames(checkpoint: LoadedCheckpoint) -> str:
    """Describe how events become frames and how the frames fit the detector."""
    spec = checkpoint.spec
    windows = checkpoint.windows
    parts = [f"{spec.frame_width} x {spec.frame_height} pixels"]
    if spec.downsample > 1:
        parts.append(f"downsample={spec.downsample} by {windows.reduce}")
    return (
        f"{windows.representation} of {windows.num_bins} bins over {windows.nominal_length_us / 1000:g} ms in "
        f"training; {', '.join(parts)}, padded with zeros at the right and the bottom"
    )


def _classes(run: DetectorRun, options: EvaluationConfig) -> str:
    known = f"of the weights by evaluation.class_map={options.class_map}"
    assert run.classes is not None
    names = enumerate(run.checkpoint.spec.class_names)
    unknown = [name for number, name in names if number not in run.classes]
    if not unknown:
        return known
    return f"{known}; the weights do not know {', '.join(unknown)}, whose boxes all count as missed"


def _grid(options: EvaluationConfig, rates: Sequence[PlannedRate]) -> str:
    """Describe when windows end."""
    if options.grid == "free" and options.streaming:
        return "free grid: the exact rate from the first event on"
    if options.grid == "free":
        return "free grid: the exact rate from the first event on, each label scored at the next window end"
    said = ["every label time ends a window"]
    for rate in rates:
        other = f"{rate.hz:g} Hz was run for {rate.asked_hz:g} Hz"
        if rate.hz != rate.asked_hz and other not in said:
            said.append(other)
    return "; ".join(said)


def _streaming(options: EvaluationConfig) -> str:
    """Describe how streaming accuracy was measured."""
    late = {"skip": "takes the newest window", "queue": "takes every window in order"}[options.when_late]
    source = options.latency_from or "measured on this machine"
    if options.latency_ms is not None:
        source = "given"
    return (
        "each label is scored with the newest output that had finished; time of a step: "
        f"{source}; a detector that is late {late}"
    )


def best_rate(rows: Sequence[Row], options: EvaluationConfig) -> dict[str, str]:
    """Describe at which rate the streaming accuracy is highest; empty without streaming."""
    if not options.streaming:
        return {}
    best = max(rows, key=lambda row: row["AP"])
    where = f"with {best['latency_ms']:g} ms per step"
    if options.latency_ms is None and options.latency_from is None:
        where = "on this machine"
    rate = in_hz(best["hz"])
    if len({*column(rows, "window")}) > 1:
        rate += f", window={best['window']}"
    return {"best rate": f"best {where}: {rate}, AP {percent_of(best)}"}


def provenance(scored: ScoredRate, weights_sha256: str) -> dict[str, str]:
    """Say where intervals come from, which program computed the numbers, and of which weights."""
    program = written_by()
    commit = f", commit {program['commit']}" if program["commit"] else ""
    return {
        "intervals": scored.resampled.sentence(),
        "made by": f"rvtssm {program['rvtssm']}{commit}, {program['date']}",
        "weights SHA-256": weights_sha256,
    }


def break_down_rate(run: DetectorRun, scored: ScoredRate) -> Breakdown:
    """Return the breakdown of the AP at one rate."""
    speeds = read_tracks(run, scored.recordings, scored.sequences, track_speeds)
    return break_down(scored.recordings, run.checkpoint.spec, speeds, matched=scored.matches)


def worst_pictures(breakdown: Breakdown, scored: ScoredRate, spec: DatasetSpec) -> list[Picture]:
    """Draw the worst frames with detections and ground truth.

    Args:
        breakdown: Names the worst frames.
        scored: What the breakdown was computed from.
        spec: The dataset.
    """
    number = {recording.name: place for place, recording in enumerate(scored.recordings)}
    pictures = []
    for worst in breakdown.worst:
        place = number[worst.recording]
        recording = scored.recordings[place]
        sequence = scored.sequences[place]
        labels = recording.labels[recording.labels.t_us == worst.t_us]
        (frame,) = (frame for frame in recording.detections if frame.t_us == worst.t_us)
        times_us, steps = scored.label_steps[place]
        # The frame that the detector saw for this label.
        step = max(0, int(steps[np.searchsorted(times_us, worst.t_us)]))  # -1 for a label before any output
        (hist,) = sequence.read(step, step + 1)
        image = draw_frame(shown_events(hist, sequence.settings), frame, labels, spec.class_names)
        caption = f"{worst.recording} at {worst.t_us / 1e6:.3f} s: {worst.num_missed} missed, {worst.num_false} false"
        pictures.append(Picture(caption, to_png(image)))
    for sequence in scored.sequences:
        sequence.close()
    return pictures
