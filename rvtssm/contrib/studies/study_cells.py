"""The cells of a study: every training, or file of weights, in every condition, with row, folder and scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rvtssm.cli.inputs import weights_label
from rvtssm.cli.words import overrides
from rvtssm.contrib.studies.study_config import StudyConfig, StudySettings, given_weights
from rvtssm.contrib.studies.study_report import Score, score_from_json
from rvtssm.evaluation.weights_on_data import class_maps
from rvtssm.export.exported import read_weights_file

Point = tuple[Mapping[str, str], StudySettings]  # its values by key, and its settings

_OF_EVALUATION = ("evaluation", "precision")  # sections whose values do not change a training
_PLAIN = "as configured"  # a row of which nothing was varied
_SEED = "seed"  # what rows are the mean over


@dataclass(frozen=True)
class Cell:
    """One training, or weights that were given, in one condition."""

    row: str  # empty: the only file of weights, whose conditions are the rows
    seed: str
    condition: str
    folder: Path  # of the training, or of the weights
    out: Path  # where its evaluation is written
    weights: str | None  # given ones; None: they are trained here
    config: StudySettings
    words: list[str]  # its settings as they were asked for

    @property
    def file(self) -> Path:
        """Where its scores are stored."""
        return self.out / "score.json"

    @property
    def stored(self) -> dict[str, Any] | None:
        """The content of its file; None if it has no scores yet."""
        content = json.loads(self.file.read_text()) if self.file.is_file() else {}
        return content if "scores" in content else None

    @property
    def is_complete(self) -> bool:
        """Whether it was trained and scored with the same settings."""
        stored = self.stored
        return stored is not None and stored["point"] == self.words

    @property
    def scores(self) -> dict[str, Score]:
        """Its scores by kind of windows; the name is empty if there is one kind."""
        scores = json.loads(self.file.read_text())["scores"]
        return {window: score_from_json(plain | self._names(window)) for window, plain in scores.items()}

    def _names(self, window: str) -> dict[str, str]:
        """Return how the tables name a score."""
        parts = [self.condition, f"window={window}" if window else ""]
        condition = ",".join(filter(None, parts))
        if not self.row:
            return {"row": condition or _PLAIN, "seed": self.seed, "condition": ""}
        return {"row": self.row, "seed": self.seed, "condition": condition}


def study_cells(config: StudySettings, points: Sequence[Point], out: Path) -> list[Cell]:
    """Return the cells of all points: one per point, or one per point and file of weights.

    Args:
        config: The settings without those of the points.
        points: The points.
        out: The folder of the study.
    """
    given = given_weights(config)
    if not given:
        return [_trained_cell(values, point, out) for values, point in points]
    if config.checkpoint:
        return [_cell("", _condition(values), out, config.checkpoint, point) for values, point in points]
    labels, maps = _labels(given), _class_maps(given, config.evaluation.class_map)
    cells = []
    for path in given:
        for values, point in points:
            own = replace(point, evaluation=replace(point.evaluation, checkpoints=None, class_map=maps[path]))
            cells.append(_cell(labels[path], _condition(values), out / _file_name(labels[path]), path, own))
    return cells


def _trained_cell(values: Mapping[str, str], config: StudySettings, out: Path) -> Cell:
    trained = {key: value for key, value in values.items() if key.split(".")[0] not in _OF_EVALUATION}
    condition = _condition({key: value for key, value in values.items() if key not in trained})
    varied = {key: value for key, value in trained.items() if key != _SEED}
    row = next(iter(varied.values())) if len(varied) == 1 else in_words(varied).removeprefix("variant=")
    folder = out / _file_name(in_words(dict(sorted(trained.items()))) or "point")
    return _cell(row or _PLAIN, condition, folder, None, config)


def _cell(row: str, condition: str, folder: Path, weights: str | None, config: StudySettings) -> Cell:
    settings = replace(config, out=None, study=StudyConfig(), checkpoint=None, resume=None)
    out = folder / (_file_name(condition) or "evaluation")
    return Cell(row, str(config.seed), condition, folder, out, weights, settings, overrides(settings))


def _condition(values: Mapping[str, str]) -> str:
    """Return values in words, by short keys."""
    return in_words({key.rpartition(".")[2]: value for key, value in values.items()})


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """Return a short name for each file of weights; the paths if two short names are equal."""
    labels = {path: weights_label(path) for path in paths}
    return labels if len(set(labels.values())) == len(paths) else {path: path for path in paths}


def _class_maps(paths: Sequence[str], class_map: dict[str, str] | None) -> Mapping[str, dict[str, str] | None]:
    """Return the class map of each file of weights."""
    if class_map is None:
        return dict.fromkeys(paths)
    return class_maps(class_map, {path: read_weights_file(path).spec.class_names for path in paths})


def in_words(values: Mapping[str, str]) -> str:
    """Return values by key as text."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def _file_name(words: str) -> str:
    return words.replace("/", "_")
