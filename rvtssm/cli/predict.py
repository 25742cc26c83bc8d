"""`rvtssm predict`: boxes and pictures of recordings, folders of them, DSEC sequences, or a stream of events."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, say, say_error, say_replaced
from rvtssm.cli.inputs import events_path, out_folder, weights_label, with_default_weights
from rvtssm.cli.weights import (
    check_classes,
    precision_in_words,
    read_weights,
    say_note,
    say_windows,
    with_chosen_precision,
)
from rvtssm.datasets import dsec
from rvtssm.datasets.tree import sensor_above
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.sources import DSEC_TRACKS, Interruption, find_sources
from rvtssm.detection.summary import RunSummary
from rvtssm.detection.window_results import WindowResult
from rvtssm.evaluation.coco import evaluate_detections
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.protocol import scoring_rules
from rvtssm.evaluation.result import percent
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.records import DatasetSpec, Detections, ReadOptions
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError


def predict(config: Config) -> int:
    """Write boxes and pictures of everything that `recording` names.

    Several recordings get a folder each below `out`. DSEC sequences with tracks are scored together in `scores.json`.
    Return 2 if one of several recordings cannot be read, or if a stream breaks off, and 130 after an interruption. What
    was found before is written.
    """
    label = weights_label(config.checkpoint)
    where = events_path(config)
    sources = find_sources(where)
    config = with_chosen_precision(with_default_weights(config))
    checkpoint = read_weights(config)
    check_classes(config, checkpoint)
    name = next(iter(sources)) if len(sources) == 1 else Path(where).resolve().name
    out = out_folder(config, "predict", name, label)
    announce(
        "predict",
        weights=config.checkpoint,
        source=where,
        stride=f"{1000 / (config.detection.hz or checkpoint.windows.hz):g} ms",
        recordings=len(sources),
        device=checkpoint.detector.device,
        precision=precision_in_words(config.precision, checkpoint),
        output=out,
    )
    say_note(config.checkpoint, checkpoint)
    detection = config.detection
    say_windows(checkpoint, checkpoint.windows_at(detection.hz, detection.window, detection.reduce))
    with result_set(out, "scores", ["scores.json"]) as staged:
        return _predict_all(config, checkpoint, sources, out, staged)


def _predict_all(config: Config, checkpoint: LoadedCheckpoint, sources: dict[str, str], out: Path, staged: Path) -> int:
    """Predict all sources, write `scores.json` to `staged`, and return the exit code."""
    scored: list[ScoredRecording] = []
    is_scored: dict[str, np.ndarray] = {}
    num_failed = num_unseen = 0
    is_cut_off, interruption = False, Interruption()
    for name, path in sources.items():
        if interruption.is_ended:
            say_error(f"{name} was not begun")
            continue
        try:
            folder = out if len(sources) == 1 else out / name
            say_replaced(folder, "prediction")
            summary, recording, is_scored[name], unseen = _predict_one(
                config, checkpoint, name, path, folder, interruption
            )
        except (UserError, OSError) as error:
            if len(sources) == 1:
                raise
            num_failed += 1
            say_error(f"{name}: {' '.join(str(error).split())}")
            continue
        if recording is not None:
            scored.append(recording)
            num_unseen += unseen
        for sentence in [*summary.lines(), f"in {folder}"]:
            say(sentence)
        if summary.broke_off:
            say_error(f"{summary.broke_off}; what was found before is kept")
            is_cut_off = True
    if num_failed == len(sources):  # what `out` holds from an earlier prediction stays
        raise UserError("predict.none_done", f"none of the {num_failed} recordings could be predicted")
    if interruption.is_ended:
        return 130
    if scored:
        (staged / "scores.json").write_text(_scores(scored, is_scored, num_unseen, checkpoint.spec, out))
    if num_failed:
        say(f"{num_failed} of {len(sources)} recordings could not be predicted")
    return 2 if num_failed or is_cut_off else 0


def _predict_one(
    config: Config, checkpoint: LoadedCheckpoint, name: str, path: str, out: Path, interruption: Interruption
) -> tuple[RunSummary, ScoredRecording | None, np.ndarray, int]:
    """Return the summary, what can be scored if the sequence has labels of the model's classes, which of those labels
    are to be found, and the number of label times without a window: those before the first or after the last event.
    """
    options = replace(ReadOptions.of(config.dataset), filters=config.filters)
    if options.height is options.width is None and Path(path).is_file():
        options = sensor_above(Path(path), options)
    tracks = Path(path) / DSEC_TRACKS
    has_labels = tracks.is_file()
    if has_labels:
        labels, is_wanted = dsec.labels_for(tracks, checkpoint.spec.class_names)
        has_labels = len(labels) > 0
    run = partial(
        predict_recording,
        checkpoint,
        path,
        out,
        config.detection,
        config.predict,
        postprocess=config.postprocess,
        options=options,
        interruption=interruption,
    )
    if not has_labels:
        return run(), None, np.empty(0, bool), 0
    at_labels, times_us = list[Detections](), set(labels.t_us.tolist())

    def keep(result: WindowResult) -> None:
        if result.t_us in times_us:
            at_labels.append(result.found)

    summary = run(ground_truth=labels[is_wanted], ends_us=labels.t_us, on_window=keep)
    seen = {frame.t_us for frame in at_labels}
    is_seen = np.isin(labels.t_us, list(seen))
    return summary, ScoredRecording(name, labels[is_seen], at_labels), is_wanted[is_seen], len(times_us - seen)


def _scores(
    recordings: list[ScoredRecording],
    is_scored: dict[str, np.ndarray],
    num_unseen: int,
    trained: DatasetSpec,
    out: Path,
) -> str:
    """Print and return as JSON the average precision over all sequences, and how their classes map to the model's."""
    spec = replace(dsec.SPEC, class_names=trained.class_names, class_ids=())
    metrics = evaluate_detections(recordings, spec, only=is_scored)
    plain = {name: None if np.isnan(value) else value for name, value in metrics.items()}
    mapping = dsec.mapping_in_words(spec.class_names)
    content = {
        "recordings": [recording.name for recording in recordings],
        "classes": mapping,
        "scored": scoring_rules(spec),
        "label_times_without_events": num_unseen,
        "metrics": plain,
    }
    say(
        f"AP {percent(metrics['AP'])}, AP50 {percent(metrics['AP50'])} over {len(recordings)} labelled sequences; "
        f"{mapping}; in {out / 'scores.json'}"
    )
    return json.dumps(content, indent=2) + "\n"
