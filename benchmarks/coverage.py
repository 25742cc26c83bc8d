"""Whether intervals hold what they promise: how many test splits give a 95 % interval that contains the true AP.

    python -m benchmarks.coverage --checkpoint FILE --folder DIR --json FILE [--sizes 5,10,20]

A detector runs once over many short recordings, which are generated in DIR with seeds of their own. Each test split is
a different part of them; its interval should contain the AP over all recordings together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import write_json
from benchmarks.scan import machine
from rvtssm.cli.main import compose
from rvtssm.contrib.demo.generate import generate
from rvtssm.datasets.datamodule import SequenceDataModule, eval_loader
from rvtssm.evaluation.coco import average_precisions, resample
from rvtssm.evaluation.detector_run import stream
from rvtssm.evaluation.matching import RecordingMatches, ScoredRecording, match_detections
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.records import DatasetSpec

SEED = 1_000  # far from the seeds of trainings
NUM_SPLITS = 100
REPLICATES = 1_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for recordings")
    parser.add_argument("--recordings", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each recording; the first 0.5 are not scored")
    parser.add_argument("--sizes", default="5,10,20", help="recordings of a split")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    matches, spec = measured_matches(options.checkpoint, options.folder, options.recordings, options.seconds)
    rows = [coverage(matches, spec, int(size)) for size in options.sizes.split(",")]
    result: dict[str, Any] = {**machine("cpu"), "recordings": len(matches), "seconds": options.seconds}
    result["replicates"] = REPLICATES
    result |= {"AP": average_precisions(matches, spec)["AP"], "rows": rows}
    table = Table(*rows[0], title=f"AP over {len(matches)} recordings together: {100 * result['AP']:.2f}")
    for row in rows:
        table.add_row(*(f"{value:.4g}" for value in row.values()))
    Console().print(table)
    write_json(options.json, result)


def coverage(matches: Sequence[RecordingMatches], spec: DatasetSpec, size: int) -> dict[str, float]:
    """Return how many of NUM_SPLITS splits of `size` recordings have an interval that contains the AP over all.

    Splits share no recording as long as there are enough; then the recordings are shuffled and shared out again.
    """
    truth = average_precisions(matches, spec)["AP"]
    rng, order = np.random.default_rng(SEED), np.zeros(0, np.int64)
    intervals = []
    for split in range(NUM_SPLITS):
        if len(order) < size:
            order = rng.permutation(len(matches))
        chosen, order = order[:size], order[size:]
        some = [matches[index] for index in chosen]
        intervals.append(resample(some, spec, REPLICATES, seed=split).interval("AP"))
    values, lows, highs = np.array(intervals).T
    return {
        "recordings": size,
        "splits": NUM_SPLITS,
        "contain the AP over all": int(((lows <= truth) & (truth <= highs)).sum()),
        "too low": int((highs < truth).sum()),
        "too high": int((lows > truth).sum()),
        "mean AP": float(values.mean()),
        "deviation of AP": float(values.std()),
        "mean width": float((highs - lows).mean()),
    }


def measured_matches(
    checkpoint: Path, folder: Path, num_recordings: int, seconds: float
) -> tuple[list[RecordingMatches], DatasetSpec]:
    """Return the matches of the detector in recordings that are generated."""
    loaded = read_checkpoint(checkpoint)
    words = ["experiment=demo", f"dataset.raw_dir={folder / 'raw'}", f"synthetic.duration_s={seconds}"]
    counts = [f"synthetic.seed={SEED}", "synthetic.num_train=0", "synthetic.num_val=0"]
    config = compose([*words, *counts, f"synthetic.num_test={num_recordings}", "data.eval_batch_size=20"], "generate")
    generate(config)
    data = SequenceDataModule(replace(config.dataset, prepared_dir=None), data=config.data)
    sequences = data.eval_sequences("test", loaded.windows, "raw")
    found = stream(
        loaded.detector,
        eval_loader(sequences, data.data),
        trained_stride_us=loaded.windows.stride_us,
        memory_chunk=loaded.model_config.memory_chunk,
    )
    scored = [
        ScoredRecording(sequences[number].name, sequences[number].labels, detections)
        for number, detections in found.items()
    ]
    return match_detections(scored, loaded.spec), loaded.spec


if __name__ == "__main__":
    main()
