"""What a report says of its numbers: the title, everything that decides them, and where they come from."""

from collections.abc import Sequence

from rvtssm.detection.track_objects import TRACK_MEMORY_S
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.evaluation_config import EvaluationConfig
from rvtssm.evaluation.fit import differences_in_scoring
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.protocol import num_images_left_out, num_scored, scoring_rules
from rvtssm.evaluation.rates import ScoredRate
from rvtssm.evaluation.result import percent_interval
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.parts import head_class
from rvtssm.records import SHOWN_SCORE
from rvtssm.system.provenance import written_by


def title(checkpoint: LoadedCheckpoint, options: EvaluationConfig) -> str:
    """Return which weights were scored on which recordings."""
    words = [f"{checkpoint.spec.name} {options.split}"]
    words.append(f"{checkpoint.model_config.size} {checkpoint.temporal_config.name}")
    words += ["free grid"] if options.grid == "free" else []
    words += ["streaming"] if options.streaming else []
    words += [f"labels interpolated to {options.label_hz:g} Hz"] if options.label_hz else []
    return ", ".join(words)


def conditions(run: DetectorRun, split: SplitPlan, rates: Sequence[PlannedRate], scored: ScoredRate) -> dict[str, str]:
    """Describe everything that decides the numbers of an evaluation.

    Args:
        run: The detector, and how it runs.
        split: The recordings and the options.
        rates: The rates.
        scored: One of the rates, whose labels are those of all.
    """
    checkpoint, options = run.checkpoint, split.options
    labels = [recording.labels for recording in scored.recordings]
    images = num_images_left_out(labels, checkpoint.spec)
    left_out = f"; {images} label times without such a box are left out" if images else ""
    differences = differences_in_scoring(run.postprocess, checkpoint.scored_as)
    lines = {
        "weights": f"{run.weights.path}, trained at {checkpoint.windows.hz:g} Hz",
        "score": "; ".join([head_class(checkpoint.model_config).describe_scores(run.postprocess), *differences]),
        "scored": f"{num_scored(labels, checkpoint.spec)} boxes; {scoring_rules(checkpoint.spec)}{left_out}",
        "windows": f"{' and '.join(dict.fromkeys(kind for rate in rates for kind in rate.windows))}, "
        f"counted from {split.source} data, convention {checkpoint.windows.convention}, {_grid(options, rates)}",
        "time step": "window end to window end over the stride of training",
        "memory": options.memory or checkpoint.model_config.memory,
        "still objects": f"no motion for {options.still_ms:g} ms or more, where labels tell; other boxes are ignored",
    }
    if checkpoint.spec.downsample > 1:
        lines["windows"] += f", downsample={checkpoint.spec.downsample} by {checkpoint.windows.reduce}"
    if options.step_scale is not None:
        lines["time step"] = f"{options.step_scale:g} whatever the rate"
    if checkpoint.temporal_config.bidirectional:
        chunk = run.data.data.eval_chunk_length
        lines["memory"] += f", and events after the label, to the end of each chunk of {chunk} steps"
    if run.classes is not None:
        unknown = [name for number, name in enumerate(checkpoint.spec.class_names) if number not in run.classes]
        lines["classes"] = f"of the weights by evaluation.class_map={options.class_map}"
        if unknown:
            lines["classes"] += f"; the weights do not know {', '.join(unknown)}, whose boxes all count as missed"
    if options.label_hz is not None:
        lines["labels"] = f"interpolated linearly along tracks to {options.label_hz:g} Hz; only some were annotated"
    if options.track is not None:
        lines["tracks"] = (
            f"{options.track} on the outputs at label times, from a score of {SHOWN_SCORE:g}; an object that is not "
            f"found is remembered for {TRACK_MEMORY_S:g} s; HOTA, MOTA and IDF1 over the labels with a track"
        )
    return lines | _streaming(options)


def _grid(options: EvaluationConfig, rates: Sequence[PlannedRate]) -> str:
    """Describe when windows end."""
    if options.grid == "free":
        late = "" if options.streaming else ", each label scored at the next window end"
        return f"free grid: the exact rate from the first event on{late}"
    others = {rate.asked_hz: rate.hz for rate in rates if rate.hz != rate.asked_hz}
    run = (f"; {hz:g} Hz was run for {asked:g} Hz" for asked, hz in others.items())
    return "every label time ends a window" + "".join(run)


def _streaming(options: EvaluationConfig) -> dict[str, str]:
    """Describe how streaming accuracy was measured; empty without streaming."""
    if not options.streaming:
        return {}
    late = "takes the newest window" if options.when_late == "skip" else "takes every window in order"
    source = options.latency_from or "measured on this machine"
    source = "given" if options.latency_ms is not None else source
    return {
        "streaming": "each label is scored with the newest output that had finished; time of a step: "
        f"{source}; a detector that is late {late}"
    }


def best_rate(rows: Sequence[RateRow], options: EvaluationConfig) -> dict[str, str]:
    """Describe at which rate the streaming accuracy is highest; empty without streaming."""
    if not options.streaming:
        return {}
    best = max(rows, key=lambda row: row.metrics["AP"])
    is_measured = options.latency_ms is None and options.latency_from is None
    where = "on this machine" if is_measured else f"with {best.extra['latency_ms']:g} ms per step"
    windows = f", window={best.windows[0]}" if len({row.windows for row in rows}) > 1 else ""
    assert best.resampled is not None
    ap = percent_interval(best.resampled.interval("AP"))
    return {"best rate": f"best {where}: {best.hz:g} Hz{windows}, AP {ap}"}


def provenance(scored: ScoredRate, weights_sha256: str) -> dict[str, str]:
    """Say where intervals come from, which program computed the numbers, and of which weights."""
    program = written_by()
    commit = f", commit {program['commit']}" if program["commit"] else ""
    assert scored.row.resampled is not None
    return {
        "intervals": scored.row.resampled.sentence(),
        "made by": f"rvtssm {program['rvtssm']}{commit}, {program['date']}",
        "weights SHA-256": weights_sha256,
    }
