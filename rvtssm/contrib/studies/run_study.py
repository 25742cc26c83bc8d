"""`rvtssm study`: trains every point of a grid that is not trained, scores each at every rate, writes the report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rvtssm.cli.config import DECIDED
from rvtssm.cli.console import console, say
from rvtssm.cli.evaluate import check_rates, evaluate
from rvtssm.cli.inputs import check_training, writable
from rvtssm.cli.preprocess import preprocess
from rvtssm.cli.train import train
from rvtssm.cli.words import overrides, run_files, settings_of
from rvtssm.contrib.demo.generate import generate
from rvtssm.contrib.studies.cells_page import CELLS_FILE, cells_page
from rvtssm.contrib.studies.study_cells import Cell, Point, in_words, study_cells
from rvtssm.contrib.studies.study_config import (
    NOT_READ_WITH_WEIGHTS,
    READ_BY_EVALUATION,
    StudySettings,
    given_weights,
    makes_recordings,
)
from rvtssm.contrib.studies.study_report import (
    STUDY_FILES,
    Score,
    StudyReport,
    console_tables,
    score_to_json,
    to_score,
    write_study,
)
from rvtssm.datasets import build_spec
from rvtssm.models.checkpoint import OFFICIAL_PREFIX, load_file, read_checkpoint, weights_digest, write_checkpoint
from rvtssm.models.detector import count_parameters
from rvtssm.models.official import convert_official
from rvtssm.models.weight_files import local_weights
from rvtssm.system.extras import check_extra
from rvtssm.system.files import atomic_file
from rvtssm.system.output_folder import locked, result_set
from rvtssm.system.user_error import UserError, errors_about
from rvtssm.training import start_settings
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint, latest_checkpoint
from rvtssm.training.preflight import check

# of every bootstrap, so that the scores of parts of a study that were made apart can be compared
_BOOTSTRAP_SEED = 0
# of the settings that decide the weights, those that `train` may not compare with the run it goes on from
_NOT_COMPARED_BY_TRAIN = ("dataset.", "training.validate_every=")


def run_study(config: StudySettings, points: Sequence[Point]) -> StudyReport:
    """Train and evaluate all points in `out`, and write STUDY_FILES, also after every training; skip what is complete.

    Points that differ only in how they are evaluated share a training. Trainings go seed by seed. Rows are points
    without their seed. If weights are given, nothing is trained: one file (`checkpoint`) is evaluated at all points,
    which are the rows; of several files (`evaluation.checkpoints`) each is a row. Official weights are converted.

    Args:
        config: The settings without those of the points.
        points: The points.
    """
    out = writable(Path(config.out or "outputs/study"))
    makes_own = makes_recordings(config) and not given_weights(config)
    if makes_own:
        _check_shared_recordings(config, points)
        config = _with_own_recordings(config, out)
        points = [(values, _with_own_recordings(point, out)) for values, point in points]
    cells = study_cells(config, points, out)
    _check(cells)
    of_all = set.intersection(*(set(cell.words) for cell in cells))
    shared = [word for word in cells[0].words if word in of_all]
    with locked(out):
        with run_files(out, "study", config, _not_to_repeat(config, shared)):
            pass
        if makes_own and not all(cell.is_complete for cell in cells):
            _make_recordings(config, cells, out)
        if not given_weights(config):
            _check_rates(cells)
        report = _run(cells, config, shared, out)
    for table in console_tables(report):
        console.print(table)
    written = [out / name for name in (*STUDY_FILES, CELLS_FILE)]
    say("wrote " + ", ".join(str(path) for path in written if path.is_file()))
    return report


def _run(cells: Sequence[Cell], config: StudySettings, shared: Sequence[str], out: Path) -> StudyReport:
    """Train and score what is missing, and write the report after every training."""
    by_folder: dict[Path, list[Cell]] = {}
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    for cell in sorted(cells, key=lambda cell: seeds.index(cell.seed)):
        by_folder.setdefault(cell.folder, []).append(cell)
    scored: set[Path] = set()
    for number, (folder, of_folder) in enumerate(by_folder.items(), start=1):
        weights = of_folder[0].weights
        name = Path(weights).name if weights else folder.name
        console.rule(f"{number} of {len(by_folder)}: {name}", align="left")
        with errors_about(name):
            _train_and_score(of_folder)
        scored.add(folder)
        done: list[Score] = []
        for cell in cells:
            if cell.folder in scored:
                done += cell.scores.values()
        report = StudyReport(done, _settings(config, shared), config.study.numbers_beside())
        with result_set(out, "study", (*STUDY_FILES, CELLS_FILE)) as staged:
            write_study(report, staged)
            if config.checkpoint:
                (staged / CELLS_FILE).write_text(_cells_page(cells, config))
    return report


def _cells_page(cells: Sequence[Cell], config: StudySettings) -> str:
    """Return the page of all cells of one file of weights."""
    converted = cells[0].folder / "weights.ckpt"
    meta = read_checkpoint(converted if converted.is_file() else str(config.checkpoint))
    return cells_page(meta, Path(str(config.checkpoint)).name, cells, config.study.numbers_beside())


def _with_own_recordings(config: StudySettings, out: Path) -> StudySettings:
    dataset = replace(config.dataset, raw_dir=str(out / "raw"), prepared_dir=str(out / "prepared"))
    return replace(config, dataset=dataset)


def _make_recordings(config: StudySettings, cells: Sequence[Cell], out: Path) -> None:
    generate(config)
    if any(cell.config.dataset.source != "raw" for cell in cells) and preprocess(config):
        raise UserError("run.not_all_done", found=f"some recordings in {out / 'raw'} could not be prepared")


def _check(cells: Sequence[Cell]) -> None:
    """Raise UserError for what would fail after hours."""
    by_folder: dict[Path, Cell] = {}
    for cell in cells:
        if (other := by_folder.setdefault(cell.out, cell)) is not cell:
            found = f"two points of the study have the folder {other.out}"
            raise UserError("setting.conflict", found=found, advice="name each value once")
        check_training(cell.config)
        check(cell.config)
        if cell.config.evaluation.track:
            check_extra(f"evaluation.track={cell.config.evaluation.track}", "tracks", "trackers")
        if cell.weights is None:
            for path in cell.folder.glob("*/score.json"):
                _check_same_training(cell, json.loads(path.read_text())["point"])


def _check_rates(cells: Sequence[Cell]) -> None:
    """Raise UserError if labels do not allow the rates of a cell that is not complete, before anything is trained."""
    by_settings: dict[str, Cell] = {}
    for cell in cells:
        if not cell.is_complete:
            sections = asdict(cell.config.dataset), asdict(cell.config.windows), asdict(cell.config.evaluation)
            by_settings.setdefault(json.dumps(sections), cell)
    for cell in by_settings.values():
        with errors_about(cell.out.relative_to(cell.folder.parent)):
            check_rates(cell.config)


def _check_same_training(cell: Cell, stored: Sequence[str]) -> None:
    """Raise UserError if scores in the folder of a training are of other settings that `train` does not compare."""
    before = {word for word in stored if word.startswith(_NOT_COMPARED_BY_TRAIN)}
    now = {word for word in cell.words if word.startswith(_NOT_COMPARED_BY_TRAIN)}
    if before != now:
        differences = [" ".join(sorted(words)) or "the defaults" for words in (before - now, now - before)]
        found = f"it was trained with other settings ({differences[0]}, now {differences[1]})"
        advice = "go on with the same ones, or start a new study in another folder"
        raise UserError("run.other_settings", name=cell.folder.name, found=found, advice=advice)


def _check_shared_recordings(config: StudySettings, points: Sequence[Point]) -> None:
    """Raise UserError if the recordings that a study makes, one set of them, would not be those of all points."""
    for values, point in points:
        sections = ["dataset", "synthetic"]
        if point.dataset.source != "raw":
            sections += ["windows", "preprocess"]
        alike = replace(point, dataset=replace(point.dataset, source=config.dataset.source))
        differ = [name for name in sections if getattr(alike, name) != getattr(config, name)]
        if differ:
            advice = "name recordings by dataset.raw_dir or dataset.prepared_dir"
            if not {"dataset", "synthetic"} & {*differ}:
                advice += ", or set dataset.source=raw"
            needed = f"the study makes the same recordings for all points, so {' and '.join(differ)} cannot differ"
            raise UserError("setting.conflict", found=in_words(values), needed=needed, advice=advice)


def _train_and_score(cells: Sequence[Cell]) -> None:
    """Store the scores of one training, or of weights that are given, in its conditions; make what is missing.

    An evaluation with both lengths of windows gives two scores, whose conditions name them.
    All evaluations of a study draw the same recordings in their bootstraps, so that they can be compared.
    Scores that are complete are taken as they are if their weights were deleted.
    """
    folder, is_complete = cells[0].folder, all(cell.is_complete for cell in cells)
    if cells[0].weights is not None:
        best, seconds = _readable_weights(cells[0]), 0.0
    elif is_complete and not last_checkpoint(folder).is_file():
        return
    else:
        if not is_complete:
            _refuse_other_steps(cells[0])
            train(replace(cells[0].config, out=str(folder), resume="auto"))
        best = best_checkpoint(folder)
        seconds = round(load_file(latest_checkpoint(best.parents[1]))["train_seconds"], 1)
    detector = read_checkpoint(best).detector
    digest = weights_digest(detector.state_dict())
    cost = count_parameters(detector)["total"], seconds
    for cell in cells:
        _score(cell, best, digest, cost)


def _refuse_other_steps(cell: Cell) -> None:
    """Raise UserError if the training of a cell had another number of steps, with which it would go on."""
    path, num_steps = latest_checkpoint(cell.folder), cell.config.training.steps
    if not path.is_file():
        return
    trained_steps = load_file(path)["decisive"]["training.steps"]
    if trained_steps != num_steps:
        found = f"it is of a training of {trained_steps} steps, and the study is of {num_steps}"
        raise UserError("run.other_settings", name=path, found=found, advice="choose another out=")


def _readable_weights(cell: Cell) -> Path:
    """Return the weights of a cell, which are converted into its folder if they are official ones."""
    path = Path(local_weights(str(cell.weights)))
    content = load_file(path)
    weights = content.get("state_dict", {})
    if "rvtssm" in content or not any(key.startswith(OFFICIAL_PREFIX) for key in weights):
        return path
    converted = convert_official(weights, build_spec(cell.config.dataset), cell.config.model.size)
    write_checkpoint(cell.folder / "weights.ckpt", converted.detector, converted)
    return cell.folder / "weights.ckpt"


def _score(cell: Cell, weights: Path, digest: str, cost: tuple[int, float]) -> None:
    """Evaluate weights as a cell asks, unless its file holds these scores, and write its file."""
    sections = asdict(cell.config)
    read = {name: sections[name] for name in READ_BY_EVALUATION}
    del read["data"]["workers"], read["evaluation"]["workers"]  # which change no number
    settings = json.loads(json.dumps({"bootstrap seed": _BOOTSTRAP_SEED, **read}))  # as they are read again
    now = {"settings": settings, "weights": digest}
    stored = cell.stored
    if stored is None or any(stored[key] != value for key, value in now.items()):
        asked = replace(cell.config, out=str(cell.out), checkpoint=str(weights), seed=_BOOTSTRAP_SEED)
        (report,) = evaluate(asked)
        scores = {}
        for window in report.windows:
            score = to_score(cell.row, cell.seed, "", report, window, cost)
            name = window if len(report.windows) > 1 else ""  # one kind of windows needs no name
            scores[name] = score_to_json(score, has_replicates=True)
        stored = {**now, "scores": scores}
    stored["point"] = cell.words
    with atomic_file(cell.file) as staged:
        staged.write_text(json.dumps(stored) + "\n")


def _not_to_repeat(config: StudySettings, shared: Sequence[str]) -> list[str]:
    """Return the words of a configuration that its command line does not need: another file brings them.

    With given weights nothing reads the settings of a training. Of weights to start from, rows replace settings; a row
    that keeps them takes them from the weights. Words in `shared` are those of all rows. Words that were named are not
    returned, because rows may keep them.
    """
    if given_weights(config):
        return [word for word in overrides(config) if word.split(".")[0] in NOT_READ_WITH_WEIGHTS]
    if not config.training.init_from:
        return []
    source = start_settings(replace(config, resume=None))
    of_weights = settings_of(source.model, source.temporal, source.windows)
    others = settings_of(config.model, config.temporal, config.windows.settings).others(of_weights)
    named = {word.partition("=")[0] for word in others}
    words = [word for word in overrides(config) if word.split(".")[0] in DECIDED and word not in shared]
    return [word for word in words if word.partition("=")[0] not in named]


def _settings(config: StudySettings, shared: Sequence[str]) -> dict[str, str]:
    """Return what the page says of the study; `shared` are the settings of all rows."""
    given = [word for word in overrides(config) if word.startswith(("checkpoint=", "evaluation.checkpoints="))]
    settings = {"axes": " ".join(config.study.axes) or "none"}
    if config.study.variants:
        settings["variants"] = "; ".join(config.study.variants)
    settings["settings"] = " ".join([*given, *shared])
    return settings
