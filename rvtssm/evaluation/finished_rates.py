"""The rates of an interrupted evaluation, which `evaluation.json` keeps until all rates are done."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rvtssm.datasets.sequence import FrameSequence
from rvtssm.evaluation.bootstrap import Resampled
from rvtssm.evaluation.detector_run import DetectorRun
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.report import REPORT_FILES
from rvtssm.evaluation.split_plan import PlannedRate, SplitPlan
from rvtssm.readers.index import identity_of
from rvtssm.system.output_folder import result_set
from rvtssm.system.provenance import written_by

_KEY = "unfinished"


class FinishedRates:
    """Rates of an evaluation that are done, in memory and, if there is a folder, in its `evaluation.json`.

    Args:
        out: The folder of the report; None keeps nothing on disk.
        conditions: Plain values of everything that the rows depend on. Rows of an evaluation with others are not read.
    """

    def __init__(self, out: Path | None, conditions: Mapping[str, Any]) -> None:
        self._out = out
        self._conditions = json.loads(json.dumps(conditions))
        self._rows: dict[str, dict[str, Any]] = {}
        if out is not None and (out / REPORT_FILES[0]).is_file():
            unfinished = json.loads((out / REPORT_FILES[0]).read_text()).get(_KEY, {})
            if unfinished.get("conditions") == self._conditions:
                self._rows = unfinished["rows"]

    def get(self, rate: PlannedRate) -> RateRow | None:
        """Return the row of a rate; None if it is not done."""
        row = self._rows.get(_name(rate))
        return None if row is None else _from_plain(row)

    def add(self, rate: PlannedRate, row: RateRow) -> None:
        """Keep the row of a rate that is done."""
        self._rows[_name(rate)] = _to_plain(row)
        if self._out is not None:
            with result_set(self._out, "evaluation", REPORT_FILES) as staged:
                content = {_KEY: {"conditions": self._conditions, "rows": self._rows}}
                (staged / REPORT_FILES[0]).write_text(json.dumps(content) + "\n")


def row_conditions(
    run: DetectorRun, split: SplitPlan, rates: Sequence[PlannedRate], weights_sha256: str, seed: int
) -> dict[str, Any]:
    """Return everything that the rows of an evaluation depend on, as plain values.

    Args:
        run: The detector, and how it runs.
        split: The recordings and the options.
        rates: The rates.
        weights_sha256: Digest of the weights.
        seed: Seed of the bootstrap replicates.
    """
    program = written_by()
    return {
        "program": [program["rvtssm"], program["commit"], torch.__version__],
        "weights": weights_sha256,
        "description": run.checkpoint.without_folders().to_dict(),
        "precision": run.weights.precision,
        "device": run.checkpoint.detector.device.type,
        "dataset": asdict(split.data.spec),
        "postprocess": asdict(run.postprocess),
        "options": asdict(split.options) | {"hz": None, "workers": None},
        "classes": run.classes,
        "loading": [split.data.data.eval_chunk_length, split.data.data.eval_batch_size],
        "seed": seed,
        "data": data_digest(split.sequences(rates[0], split.options.label_hz)),
    }


def data_digest(sequences: Sequence[FrameSequence]) -> str:
    """Return a digest of recordings and labels: names, labels, and size, time stamp and samples of each file."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(f"\n{sequence.name} {sequence.frame_shape}".encode())
        path, labels = sequence.source.path, sequence.labels
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(identity_of(file, str(file.resolve()).encode()))
        for array in (labels.boxes_ltwh, labels.class_id, labels.t_us, labels.empty_us):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _name(rate: PlannedRate) -> str:
    return f"{rate.asked_hz:g} Hz, {' and '.join(rate.windows)}"


def _to_plain(row: RateRow) -> dict[str, Any]:
    assert row.resampled is not None
    plain = asdict(row)
    plain["resampled"]["replicates"] = {name: values.tolist() for name, values in row.resampled.replicates.items()}
    return plain


def _from_plain(plain: Mapping[str, Any]) -> RateRow:
    numbers = plain["resampled"]
    replicates = {name: np.array(values, np.float64) for name, values in numbers["replicates"].items()}
    resampled = Resampled(tuple(numbers["recordings"]), numbers["metrics"], replicates, tuple(numbers["num_objects"]))
    return RateRow(plain["hz"], plain["metrics"], plain["extra"], resampled, tuple(plain["windows"]))
