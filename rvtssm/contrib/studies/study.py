"""`rvtssm study`: trains every point of a grid that is not trained, scores each at every rate, writes the tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rvtssm.cli.console import console, say
from rvtssm.cli.evaluate import check_rates, evaluate
from rvtssm.cli.generate import generate
from rvtssm.cli.inputs import check_training, writable
from rvtssm.cli.preprocess import preprocess
from rvtssm.cli.run_files import SETTINGS_OF_WEIGHTS, overrides, run_files
from rvtssm.cli.train import train
from rvtssm.cli.weight_settings import WeightSettings, read_settings
from rvtssm.contrib.studies.cells import CELLS_FILE, cells_page
from rvtssm.contrib.studies.study_config import StudyConfig, StudySettings, makes_recordings
from rvtssm.contrib.studies.study_tables import (
    STUDY_FILES,
    Score,
    score_from_json,
    score_to_json,
    study_rows,
    to_score,
    write_study,
)
from rvtssm.datasets import build_spec
from rvtssm.detection.track_objects import check_installed
from rvtssm.evaluation.terminal_table import TerminalTable
from rvtssm.models.checkpoint import OFFICIAL_PREFIX, load_file, read_checkpoint, weights_digest, write_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.models.official import convert_official
from rvtssm.system.files import atomic_file
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.user_error import UserError
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint, latest_checkpoint
from rvtssm.training.checks import check

_OF_EVALUATION = ("evaluation", "precision")  # what axes vary without another training
_SEED = "seed"  # what rows are the mean over
# of every bootstrap, so that the scores of parts of a study that were made apart can be compared
_BOOTSTRAP_SEED = 0
# of the settings that decide the weights, those that `train` may not compare with the run it goes on from
_NOT_COMPARED_BY_TRAIN = ("dataset.", "training.validate_every=")
_READ_BY_EVALUATION = ("dataset", "data", "postprocess", "evaluation", "precision")


@dataclass(frozen=True)
class _Cell:
    """One training, or weights that were given, in one condition."""

    row: str
    seed: str
    condition: str
    folder: Path  # of the training
    out: Path  # where its evaluation is written
    is_trained: bool  # here, instead of given by `checkpoint`
    config: StudySettings
    words: list[str]  # its settings as they were asked for


def study(config: StudySettings, points: Sequence[tuple[Mapping[str, str], StudySettings]]) -> None:
    """Train and evaluate all points in `out` and write `study.*`, also after every training; skip what is complete.

    `points` have the values of a point by key, and its configuration. Points that differ only in how they are evaluated
    share a training. Trainings go seed by seed. Rows are points without their seed. With `checkpoint` nothing is
    trained: these weights, which are converted if they are official ones, are evaluated at all points, the rows.
    """
    out = writable(Path(config.out or "outputs/study"))
    makes_own = makes_recordings(config) and not config.checkpoint
    if makes_own:
        _check_shared_recordings(config, points)
    cells = [_to_cell(values, each, out) for values, each in points]
    if makes_own:
        cells = [replace(cell, config=_with_own_recordings(cell.config, out)) for cell in cells]
        config = _with_own_recordings(config, out)
    _check(cells)
    by_training: dict[Path, list[_Cell]] = {}
    for cell in sorted(cells, key=lambda cell: list(dict.fromkeys(each.seed for each in cells)).index(cell.seed)):
        by_training.setdefault(cell.folder, []).append(cell)
    shared = [word for word in cells[0].words if all(word in cell.words for cell in cells)]
    with locked(out):
        with run_files(out, "study", config, _of_no_row(config, shared)):
            pass
        scores: dict[int, list[Score]] = {}
        if makes_own and not all(_is_complete(cell) for cell in cells):
            generate(config)
            if any(cell.config.dataset.source != "raw" for cell in cells) and preprocess(config):
                raise UserError(
                    "study.not_prepared", f"some recordings in {out / 'raw'} could not be prepared; see the lines above"
                )
        weights = _given_weights(config, out) if config.checkpoint else None
        if weights is None:
            _check_rates(cells)
        for number, of_training in enumerate(by_training.values(), start=1):
            name = of_training[0].folder.name if weights is None else Path(str(config.checkpoint)).name
            console.rule(f"{number} of {len(by_training)}: {name}", align="left")
            try:
                found = _scores(of_training, weights)
            except UserError as error:
                raise UserError(error.key, f"{name}: {error}") from error
            scores |= {cells.index(cell): by_window for cell, by_window in zip(of_training, found, strict=True)}
            with result_set(out, "study", (*STUDY_FILES, CELLS_FILE)) as staged:
                done = [score for place in sorted(scores) for score in scores[place]]
                write_study(done, _settings(config, shared), staged, config.study.numbers_beside())
                if weights is not None:
                    scored = [(cell.config, _by_window(cell)) for cell in cells]
                    page = cells_page(read_checkpoint(weights), name, scored, config.study.numbers_beside())
                    (staged / CELLS_FILE).write_text(page)
    for condition, rows in study_rows(done):
        console.print(TerminalTable(condition or "AP in percent", rows, elsewhere="study.md"))
    written = [*STUDY_FILES, *([CELLS_FILE] if config.checkpoint else [])]
    say("wrote " + ", ".join(str(out / name) for name in written))


def _with_own_recordings(config: StudySettings, out: Path) -> StudySettings:
    dataset = replace(config.dataset, raw_dir=str(out / "raw"), prepared_dir=str(out / "prepared"))
    return replace(config, dataset=dataset)


def _to_cell(values: Mapping[str, str], config: StudySettings, out: Path) -> _Cell:
    of_evaluation = (*_OF_EVALUATION, "postprocess") if config.checkpoint else _OF_EVALUATION
    trained = {key: value for key, value in values.items() if key.split(".")[0] not in of_evaluation}
    scored = {key.rpartition(".")[2]: value for key, value in values.items() if key not in trained}
    varied = {key: value for key, value in trained.items() if key != _SEED}
    folder = out / _file_name(_words(dict(sorted(trained.items()))) or "point")
    row = next(iter(varied.values())) if len(varied) == 1 else _words(varied).removeprefix("variant=")
    row, condition = row or "as configured", _words(scored)
    if config.checkpoint and trained:
        raise UserError(
            "study.trains_nothing",
            f"{_words(trained)}: a study with checkpoint={config.checkpoint} trains nothing; vary keys of the section "
            "evaluation, or leave checkpoint out",
        )
    folder = out if config.checkpoint else folder
    evaluated = folder / (_file_name(condition) or "evaluation")
    if config.checkpoint:
        row, condition = condition or row, ""
    settings = replace(config, out=None, study=StudyConfig(), checkpoint=None, resume=None)
    words = overrides(settings)
    return _Cell(row, str(config.seed), condition, folder, evaluated, not config.checkpoint, settings, words)


def _words(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _file_name(words: str) -> str:
    return words.replace("/", "_")


def _check(cells: Sequence[_Cell]) -> None:
    """Raise ValueError for what would fail after hours."""
    by_folder: dict[Path, _Cell] = {}
    for cell in cells:
        if (other := by_folder.setdefault(cell.out, cell)) is not cell:
            raise UserError(
                "study.same_folder", f"two points of the study have the folder {other.out}; name each value once"
            )
        check_training(cell.config)
        check(cell.config)
        if cell.config.evaluation.track:
            check_installed(f"evaluation.track={cell.config.evaluation.track}")
        for path in cell.folder.glob("*/score.json") if cell.is_trained else ():
            _check_same_training(cell, json.loads(path.read_text())["point"])


def _check_rates(cells: Sequence[_Cell]) -> None:
    """Raise ValueError if labels do not allow the rates of a cell that is not complete, before anything is trained."""
    by_settings: dict[str, _Cell] = {}
    for cell in cells:
        if not _is_complete(cell):
            sections = cell.config.dataset, cell.config.windows, cell.config.evaluation
            by_settings.setdefault(json.dumps([asdict(section) for section in sections]), cell)
    for cell in by_settings.values():
        try:
            check_rates(cell.config)
        except UserError as error:
            raise UserError(error.key, f"{cell.out.relative_to(cell.folder.parent)}: {error}") from error


def _check_same_training(cell: _Cell, kept: Sequence[str]) -> None:
    """Raise ValueError if scores in the folder of a training are of other settings that `train` does not compare."""
    found, now = ({word for word in words if word.startswith(_NOT_COMPARED_BY_TRAIN)} for words in (kept, cell.words))
    if found != now:
        differences = [" ".join(sorted(words)) or "the defaults" for words in (found - now, now - found)]
        raise UserError(
            "study.other_settings",
            f"{cell.folder.name} was trained with other settings ({differences[0]}, now {differences[1]}); "
            "go on with the same ones, or start a new study in another folder",
        )


def _check_shared_recordings(config: StudySettings, points: Sequence[tuple[Mapping[str, str], StudySettings]]) -> None:
    """Raise ValueError if the recordings that a study makes, one set of them, would not be those of all points."""
    for values, each in points:
        sections = ["dataset", "synthetic"]
        if each.dataset.source != "raw":
            sections += ["windows", "preprocess"]
        wanted = replace(each, dataset=replace(each.dataset, source=config.dataset.source))
        differ = [name for name in sections if getattr(wanted, name) != getattr(config, name)]
        if differ:
            raise UserError(
                "study.shared_recordings",
                f"{_words(values)}: the study makes the same recordings for all points, so {' and '.join(differ)} "
                "cannot differ; name recordings by dataset.raw_dir or dataset.prepared_dir"
                + ("" if {"dataset", "synthetic"} & {*differ} else ", or set dataset.source=raw"),
            )


def _given_weights(config: StudySettings, out: Path) -> Path:
    """Return the weights of `checkpoint`, which are converted into `out` if they are official ones."""
    content = load_file(str(config.checkpoint))
    weights = content.get("state_dict", {})
    if "rvtssm" in content or not any(key.startswith(OFFICIAL_PREFIX) for key in weights):
        return Path(str(config.checkpoint))
    converted = convert_official(weights, build_spec(config.dataset), config.model.size)
    write_checkpoint(out / "weights.ckpt", converted.detector, converted)
    return out / "weights.ckpt"


def _scores(cells: Sequence[_Cell], given: Path | None) -> list[list[Score]]:
    """Return the scores of one training in its conditions; train and evaluate what is missing.

    If weights are given, nothing is trained.
    An evaluation with both lengths of windows gives two scores, whose conditions name them.
    All evaluations of a study draw the same recordings in their bootstraps, so that they can be compared.
    Scores that are complete are taken as they are if their weights were deleted.
    """
    first = cells[0]
    if given is None:
        is_complete = all(_is_complete(cell) for cell in cells)
        if is_complete and not last_checkpoint(first.folder).is_file():
            return [_kept_scores(cell) for cell in cells]
        if not is_complete:
            train(replace(first.config, out=str(first.folder), resume="auto"))
    best = given or best_checkpoint(cells[0].folder)
    detector = read_checkpoint(best).detector
    weights = weights_digest(detector.state_dict())
    seconds = 0.0 if given else round(load_file(latest_checkpoint(best.parents[1]))["train_seconds"], 1)
    cost = count_parameters(detector)["total"], seconds
    scores = []
    for cell in cells:
        sections = asdict(cell.config)
        read = {name: sections[name] for name in _READ_BY_EVALUATION}
        settings = json.loads(json.dumps({"bootstrap seed": _BOOTSTRAP_SEED, **read}))  # as they are read again
        kept = _kept(cell)
        now = {"settings": settings, "weights": weights}
        if kept is None or {key: kept[key] for key in now} != now:
            asked = replace(cell.config, out=str(cell.out), checkpoint=str(best), seed=_BOOTSTRAP_SEED)
            (report,) = evaluate(asked)
            by_window = report.by_window if report.others else {"": report}
            found = {window: to_score(cell.row, cell.seed, "", each, cost) for window, each in by_window.items()}
            plain = {window: score_to_json(score, has_replicates=True) for window, score in found.items()}
            kept = {**now, "scores": plain}
        kept["point"] = cell.words
        with atomic_file(_file_of(cell)) as staged:
            staged.write_text(json.dumps(kept) + "\n")
        scores.append(_kept_scores(cell))
    return scores


def _kept_scores(cell: _Cell) -> list[Score]:
    return list(_by_window(cell).values())


def _by_window(cell: _Cell) -> dict[str, Score]:
    """Return the scores of a cell by kind of windows; the name is empty if there is one kind."""
    scores = json.loads(_file_of(cell).read_text())["scores"]
    return {window: score_from_json(score | _names(cell, window)) for window, score in scores.items()}


def _names(cell: _Cell, window: str) -> dict[str, str]:
    """Return how the tables name a score. `window` is empty unless an evaluation has two lengths of windows."""
    named = {"row": cell.row, "seed": cell.seed, "condition": cell.condition}
    which = "condition" if cell.is_trained else "row"
    return named | {which: ",".join(filter(None, [named[which], window and f"window={window}"]))}


def _is_complete(cell: _Cell) -> bool:
    """Return whether a cell was trained and scored with the same settings."""
    kept = _kept(cell)
    return kept is not None and kept["point"] == cell.words


def _kept(cell: _Cell) -> dict[str, Any] | None:
    path = _file_of(cell)
    kept = json.loads(path.read_text()) if path.is_file() else {}
    return kept if "scores" in kept else None


def _file_of(cell: _Cell) -> Path:
    return cell.out / "score.json"


def _of_no_row(config: StudySettings, shared: Sequence[str]) -> list[str]:
    """Return the words of weights to start from that rows replace; a row that keeps them takes them from the weights.

    Words in `shared` are those of all rows. Words that were named are not returned, because rows may keep them.
    """
    if not config.training.init_from:
        return []
    of_weights = read_settings(config.training.init_from, None, None)
    others = WeightSettings(config.model, config.temporal, config.windows).others(of_weights)
    named = {word.partition("=")[0] for word in others}
    words = [word for word in overrides(config) if word.split(".")[0] in SETTINGS_OF_WEIGHTS and word not in shared]
    return [word for word in words if word.partition("=")[0] not in named]


def _settings(config: StudySettings, shared: Sequence[str]) -> dict[str, str]:
    """Return what the tables say of the study; `shared` are the settings of all rows."""
    return {
        "axes": " ".join(config.study.axes) or "none",
        **({"variants": "; ".join(config.study.variants)} if config.study.variants else {}),
        "settings": " ".join([*overrides(StudySettings(checkpoint=config.checkpoint)), *shared]),
        "numbers": "AP in percent; mean and standard deviation over seeds; drop: AP at the rate of training minus the "
        "mean of the other rates",
    }
