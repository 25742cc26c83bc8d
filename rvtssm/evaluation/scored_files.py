"""Write what was scored: labels and detections for COCO's tools, and the results of each recording and image as CSV.

pycocotools on the two files gives the AP of the report, because they hold the boxes that are left after the rules of
`protocol.py`, in the order in which they were scored, and every image that counts.
"""

import csv
import io
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.evaluation.breakdown import confusions
from rvtssm.evaluation.coco import METRICS, average_precisions
from rvtssm.evaluation.matching import RecordingMatches, ScoredRecording
from rvtssm.evaluation.pages import REPORT_FILES
from rvtssm.evaluation.protocol import image_times_us, scored_detections, scored_labels, scoring_rules
from rvtssm.records import DatasetSpec, Detections, Labels
from rvtssm.system.output_folder import result_set

SCORED = "scored"  # the folder below that of the report, and its set of files


class ScoredImage(NamedTuple):
    """One image that counts, with the boxes that are scored."""

    recording: str
    t_us: int
    labels: Labels
    detections: Detections  # best first


def scored_images(recordings: Sequence[ScoredRecording], spec: DatasetSpec) -> Iterator[ScoredImage]:
    """Yield the images of recordings in the order in which they are scored.

    Args:
        recordings: Labels and detections.
        spec: The dataset.
    """
    for name, labels, detections in recordings:
        kept = scored_labels(labels, spec)
        by_time = {frame.t_us: frame for frame in detections}
        for t_us in image_times_us(labels, spec).tolist():
            frame = scored_detections(by_time[t_us], spec)
            best_first = np.argsort(-frame.score, kind="stable")
            yield ScoredImage(name, t_us, kept[kept.t_us == t_us], frame[best_first])


def coco_files(images: Sequence[ScoredImage], spec: DatasetSpec) -> dict[str, str]:
    """Return labels and detections for COCO's tools, by file name. Boxes are in pixels of the frame, and not clipped.

    Args:
        images: The images.
        spec: The dataset.
    """
    # One image after the other, with its labels and its detections.
    size = {"width": spec.frame_width, "height": spec.frame_height}
    listed = list[Any]()
    annotations = list[Any]()
    results = list[Any]()
    for number, image in enumerate(images, start=1):
        file_name = f"{image.recording}_{image.t_us}"
        listed.append({"id": number, "file_name": file_name, "recording": image.recording, "t_us": image.t_us, **size})
        for box, class_id in zip(image.labels.boxes_ltwh.tolist(), image.labels.class_id, strict=True):
            where = {"image_id": number, "category_id": spec.disk_class_ids[class_id], "bbox": box}
            annotations.append({"id": len(annotations) + 1, **where, "area": box[2] * box[3], "iscrowd": 0})
        found = image.detections
        columns = xyxy_to_ltwh(found.xyxy).tolist(), found.class_id, found.score.tolist()
        for box, class_id, score in zip(*columns, strict=True):
            where = {"image_id": number, "category_id": spec.disk_class_ids[class_id], "bbox": box}
            results.append({**where, "score": score})
    # Ids are those of the label files.
    categories = []
    for disk_id, name in zip(spec.disk_class_ids, spec.class_names, strict=True):
        categories.append({"id": disk_id, "name": name})
    labels = {
        "info": {"description": scoring_rules(spec), "dataset": spec.name},
        "images": listed,
        "annotations": annotations,
        "categories": categories,
    }
    return {"labels.json": json.dumps(labels), "detections.json": json.dumps(results)}


def csv_files(images: Sequence[ScoredImage], matches: Sequence[RecordingMatches], spec: DatasetSpec) -> dict[str, str]:
    """Return a table of recordings and one of images, by file name.

    AP of a recording counts its own images alone. Hits, missed objects and false boxes of an image are those of the
    confusions in the report: detections from the score at which boxes are drawn, at an overlap of 0.5.

    Args:
        images: The images.
        matches: The matches of each recording.
        spec: The dataset.
    """
    # A row per recording, as if it were the only one.
    recordings = []
    for match in matches:
        metrics = average_precisions([match], spec)
        row: dict[str, Any] = {"recording": match.name, "boxes": int(match.num_truths[0].sum())}
        recordings.append(row | {name: metrics[name] for name in METRICS if name in metrics})
    # A row per image.
    rows = []
    for image in images:
        pairs = confusions(image.labels, image.detections, spec.num_classes)
        hits = int((pairs[:, 0] == pairs[:, 1]).sum())
        false = int((pairs[:, 1] < spec.num_classes).sum()) - hits
        counts = {"boxes": len(image.labels), "hits": hits, "missed": len(image.labels) - hits, "false": false}
        rows.append({"recording": image.recording, "t_us": image.t_us, **counts})
    return {"recordings.csv": _csv(recordings), "images.csv": _csv(rows)}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def scored_names(formats: Sequence[str], places: Iterable[str]) -> list[str]:
    """Return the names of the files of some formats.

    Args:
        formats: See `EvaluationConfig.formats`.
        places: What was scored, such as 20hz_slide.
    """
    of_format = {"coco": ("labels.json", "detections.json"), "csv": ("recordings.csv", "images.csv")}
    names: list[str] = []
    for place, name in itertools.product(places, formats):
        names += [f"{place}_{file_name}" for file_name in of_format[name]]
    return names


def write_scored(
    out: Path,
    place: str,
    formats: Sequence[str],
    recordings: Sequence[ScoredRecording],
    matches: Sequence[RecordingMatches],
    spec: DatasetSpec,
    kept: Collection[str] | None = None,
) -> None:
    """Write what was scored to the folder `scored` of a report, in place of what was scored before.

    Args:
        out: The folder of the report.
        place: The start of the names, such as 20hz_slide.
        formats: See `EvaluationConfig.formats`.
        recordings: Labels and detections.
        matches: The matches of each recording.
        spec: The dataset.
        kept: Names of files that belong to the report in the folder, which stay; None if it is the report of other
            boxes, which must not stand beside these and goes.
    """
    if not (formats or (out / SCORED).is_dir()):
        return
    if kept is None:
        with result_set(out, "evaluation", REPORT_FILES):
            pass
    images = list(scored_images(recordings, spec))
    content: dict[str, str] = {}
    if "coco" in formats:
        content |= coco_files(images, spec)
    if "csv" in formats:
        content |= csv_files(images, matches, spec)
    with result_set(out / SCORED, SCORED, scored_names(formats, [place]), kept or ()) as staged:
        for name, text in content.items():
            (staged / f"{place}_{name}").write_text(text, "utf-8")
