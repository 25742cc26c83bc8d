"""A study trains and scores each point of a grid once, goes on where it was killed, and tabulates what it found."""

import copy
import json
import math
import re
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from html_page import Page
from scored_rows import by_rate
from user_errors import raises

from rvtssm.contrib.studies import run_study as verb
from rvtssm.contrib.studies import study, study_report
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.contrib.studies.study_config import StudyConfig
from rvtssm.contrib.studies.study_report import (
    STUDY_FILES,
    Score,
    StudyReport,
    console_tables,
    score_from_json,
    score_to_json,
    study_html,
    write_study,
)
from rvtssm.evaluation.coco import Resampled
from rvtssm.system.user_error import UserError
from tests.killed import killed_at_each_call

ROOT = Path(__file__).parents[3]
ANY_RATE = ROOT / "benchmarks" / "any_rate"
AP = {"s5": 0.4, "lstm": 0.3}  # of the first seed at 20 Hz


def make_score(
    row="s5",
    seed="0",
    condition="",
    names=("a", "b", "c"),
    num_replicates=20,
    hz=(20.0, 40.0),
    num_objects=(5, 6, 7),
) -> Score:
    """Scores whose replicates are the same for equal recordings, shifted by the AP."""
    ap = AP[row] - 0.1 * int(seed)
    draws = np.random.default_rng(5).normal(0, 0.02, num_replicates)
    rates = {each: Resampled(names, {"AP": ap * 20 / each}, {"AP": ap * 20 / each + draws}, num_objects) for each in hz}
    objects = {"still": ap / 2, "speed below 0.05": ap / 4}
    return Score(row, seed, condition, 20.0, 1_234_567, 9.5, "abc", rates, objects)


GRID = [make_score(row, seed, c) for c in ("window=slide", "window=shrink") for row in AP for seed in "01"]


def tables(scores, **values) -> dict[str, list[list[str]]]:
    """The tables of the page of a study by id."""
    return Page(study_html(StudyReport(scores, **values))).tables


def test_a_row_is_the_mean_over_its_seeds():
    report = StudyReport(GRID)
    assert list(report.conditions) == ["window=slide", "window=shrink"]
    for condition in report.conditions:
        assert report.table(condition) == [
            ["model", "seeds", "20 Hz", "40 Hz", "drop"],
            ["s5", "2", "35.0 ± 7.1", "17.5 ± 3.5", "17.5 ± 3.5"],
            ["lstm", "2", "25.0 ± 7.1", "12.5 ± 3.5", "12.5 ± 3.5"],
        ]
    page = tables(GRID)
    assert page["table-1-1"] == report.table() and page["table-2-1"] == report.table("window=shrink")
    assert page["table-1-4"][:2] == [["model", "still", "speed below 0.05"], ["s5", "17.5 ± 3.5", "8.8 ± 1.8"]]
    assert page["costs"][1] == ["s5", "1.23 M", "10"]
    one = StudyReport([make_score(hz=(20.0,))])
    assert one.table() == [["model", "seeds", "20 Hz"], ["s5", "1", "40.0"]]
    assert set(tables(one.scores)) == {"table-1-1", "table-1-2", "table-1-3", "costs"}


def test_rates_have_four_digits():
    scores = [make_score(hz=(20.0, 1e6 / 24_400))]
    assert tables(scores)["table-1-1"][0] == ["model", "seeds", "20 Hz", "40.98 Hz", "drop"]


def test_differences_of_rows_are_paired():
    """The same draws for both rows cancel out: the interval of the difference of single trainings has no width."""
    report = StudyReport([score for score in GRID if score.seed == "0"])
    first, second, *_ = report.to_json()["rows"]
    assert first["rates"]["20"]["minus_the_first"] is None
    assert np.allclose(second["rates"]["20"]["minus_the_first"], [-0.1] * 3)
    low, high = second["rates"]["20"]["interval"]
    assert low < second["rates"]["20"]["AP"] < high and high - low > 0.03
    for table in console_tables(report):
        line, *notes = table.lines
        assert line == "lstm minus s5, in points, paired: 20 Hz -10.0 [-10.0, -10.0], 40 Hz -5.0 [-5.0, -5.0]"
        assert "single trainings" in notes[0] and "only 3 recordings" in notes[1]


def test_intervals_are_over_recordings_and_trainings():
    """Trainings that lie 10 points apart make intervals wider than those of recordings alone, at all rates alike."""
    both, alone = (StudyReport(scores).to_json()["rows"] for scores in (GRID, [s for s in GRID if s.seed == "0"]))
    for hz, scale in (("20", 1), ("40", 0.5)):
        low, high = both[1]["rates"][hz]["interval"]
        narrow = alone[1]["rates"][hz]["interval"]
        assert high - low > 0.09 * scale + 0.5 * (narrow[1] - narrow[0]) - 0.05 * (1 - scale)
        value, low, high = both[1]["rates"][hz]["minus_the_first"]
        assert value == pytest.approx(-0.1 * scale) and low < value < high and high - low > 0.09 * scale
    assert not any("single" in line for table in console_tables(StudyReport(GRID)) for line in table.lines)


@pytest.mark.parametrize("change", [{"names": ("a", "b")}, {"num_replicates": 0}, {"num_objects": (5, 6, 8)}], ids=str)
def test_rows_of_other_recordings_are_not_compared(change):
    page = tables([make_score("s5"), make_score("lstm", **change)])
    assert page["table-1-3"] == [["model", "20 Hz", "40 Hz"], ["s5", "–", "–"], ["lstm", "–", "–"]]


def test_both_files_have_the_numbers(tmp_path):
    report = StudyReport(GRID, {"study": "seed=0,1 <b>"}, {"a paper": {20: 47.7}})
    write_study(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(STUDY_FILES)
    page = Page((tmp_path / "study.html").read_text())
    assert json.loads(page.script) == json.loads((tmp_path / "study.json").read_text()) == report.to_json()
    assert page.tables["published"] == [["model", "20 Hz"], ["a paper", "47.7"]]
    assert len(page.loaded) == 1 and page.loaded[0].startswith("data:image/png;base64,")


@pytest.mark.parametrize("has_replicates", [True, False])
def test_a_score_is_read_as_it_was_written(has_replicates):
    score = make_score()
    score.rates[20.0].metrics["AP/car"] = score.objects["still"] = math.nan
    plain = json.loads(json.dumps(score_to_json(score, has_replicates)))
    assert score_to_json(score_from_json(plain), has_replicates) == plain
    assert "NaN" not in json.dumps(plain)


def test_a_row_without_ground_truth_has_no_deviation():
    scores = [make_score(seed=seed) for seed in "01"]
    scores[0].rates[20.0].metrics["AP"] = math.nan
    report = StudyReport(scores)
    (row,) = report.to_json()["rows"]
    assert row["rates"]["20"]["deviation"] is None and row["rates"]["40"]["deviation"] > 0
    assert report.plot().axes[0].containers


def test_the_points_are_the_product_of_all_axes():
    config, points = compose_study(["seed=range(0,2)", "evaluation.window=slide,shrink"])
    wanted = [(seed, window) for seed in (0, 1) for window in ("slide", "shrink")]
    assert [(each.seed, each.evaluation.window) for _, each in points] == wanted
    assert [tuple(values.values()) for values, _ in points] == [(str(seed), window) for seed, window in wanted]
    assert config.study.axes == ["seed=0,1", "evaluation.window=slide,shrink"]


def test_the_command_line_replaces_axes_of_the_same_key():
    axes = 'study.axes=["seed=0,1","temporal=s5,selective_s5","evaluation.bootstrap=9"]'
    config, points = compose_study([axes, "temporal=lstm,s4", "seed=7"])
    found = {(each.evaluation.bootstrap, each.temporal.name, each.seed) for _, each in points}
    assert found == {(9, "lstm", 7), (9, "s4", 7)}
    again, _ = compose_study([f"study.axes={json.dumps(config.study.axes)}", "seed=7"])
    assert again.study.axes == config.study.axes


def test_variants_are_rows_of_several_words():
    _, points = compose_study(['study.variants=["small: model=small temporal=lstm","as it is:"]', "seed=3"])
    found = [(values["variant"], each.model.size, each.temporal.name, each.seed) for values, each in points]
    assert found == [("small", "small", "lstm", 3), ("as it is", "base", "s5", 3)]


@pytest.mark.parametrize(
    ("variants", "key"),
    [
        (["model=small"], "setting.form"),
        (["a: seed=1", "a: seed=2"], "setting.conflict"),
        ([": seed=1"], "setting.form"),
    ],
    ids=str,
)
def test_a_variant_needs_a_name_of_its_own(variants, key):
    with raises(key):
        StudyConfig(variants=variants)


@pytest.mark.parametrize("beside", [["20=47.7"], ["a: 20=1", "a: 20=2"]], ids=str)
def test_a_published_row_needs_a_name_of_its_own(beside):
    with raises("setting.form"):
        StudyConfig(beside=beside)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["dataset=gen1", "temporal=s5,lstm"], "dataset.raw_dir=DIR or dataset.prepared_dir=DIR is needed"),
        (
            ["dataset=synthetic", "synthetic.num_train=1,2"],
            "so synthetic cannot differ; name recordings by dataset.raw",
        ),
        (
            ["dataset=synthetic", "synthetic.sensor=plain,imx636"],
            "sensor=imx636; the study makes the same recordings",
        ),
        (["dataset=gen1", "dataset.raw_dir=/data", "temporal=glob(*)"], "as in key=value,value"),
        (["checkpoint=a.ckpt", "checkpoints=[b.ckpt,c.ckpt]"], "and not both"),
        (["checkpoints=[a.ckpt,b.ckpt]"], "is needed: what to score the weights on"),
        (["checkpoint=a.ckpt", "training.steps=9", "temporal=s5"], "training.steps=9 temporal=s5: a study of weights"),
        (["--multirun", "seed=0,1"], "--multirun does not go with study"),
        (["study.axes=[seed=0]"], "'study.axes=[seed=0]'; this is not of the form key=value; put quotes"),
    ],
    ids=str,
)
def test_a_mistake_is_named_before_anything_is_done(words, answer, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert answer in refused("study", *words)
    assert not list(tmp_path.iterdir())


TOY = (
    *("dataset.height=64", "dataset.width=96", "synthetic.workers=1"),
    *("synthetic.num_train=2", "synthetic.num_val=1", "synthetic.num_test=2", "synthetic.duration_s=0.7"),
    *("preprocess.workers=1", "model.embed_dim=8", "model.head_dim=8", "model.num_blocks=[0,0,0,1]"),
    *("model.fpn_blocks=0", "temporal.num_blocks=1", "sampling.batch_size=2", "sampling.chunk_length=2"),
    *("training.accelerator=cpu", "training.steps=1", "training.validate_every=1"),
    *("training.precision=float32", "postprocess.min_score=0", "evaluation.ablate_memory=false"),
    *("training.pictures=false", "evaluation.workers=1", "evaluation.bootstrap=50", "postprocess.max_detections=20"),
)


@pytest.mark.usefixtures("without_pictures")
def test_a_study_from_nothing_to_its_tables(tmp_path, monkeypatch, printed_by, refused):
    monkeypatch.setattr(study_report, "figure_png", lambda figure: b"picture")
    command = ["study", "experiment=demo", *TOY, "seed=0,1", "window=slide", "hz=[20]", f"out={tmp_path}"]
    printed = printed_by(*command)
    found = (tmp_path / "study.json").read_bytes()
    plain = json.loads(found)
    tables = [line for line in printed.splitlines() if "│" in line]  # which are printed as well
    assert any("│ as configured" in line for line in tables) and max(map(len, tables)) <= 80
    assert [(line["row"], line["seeds"]) for line in plain["rows"]] == [("as configured", ["0", "1"])]
    reports = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("seed=*/evaluation/evaluation.json"))]
    assert [score["rates"] for score in plain["scores"]] == [
        {hz: {name: rate[name] for name in rate if name != "step_ms"} for hz, rate in by_rate(report).items()}
        for report in reports
    ]
    assert plain["rows"][0]["rates"]["20"]["interval"] is not None  # the same recordings in the draws of all seeds
    assert not (tmp_path / "prepared").exists()  # which trainings on raw recordings do not read

    settings = dict(word.split("=", 1) for word in TOY)
    with monkeypatch.context() as patch:
        for name in ("train", "evaluate", "generate"):  # nothing is left to be done
            patch.setattr(verb, name, None)
        axes, given = {"seed": [0, 1]}, {"experiment": "demo", "window": "slide", "hz": [20]}
        report = study(axes, settings, **given, out=str(tmp_path))  # the same from Python
    assert report.to_json() == plain and (tmp_path / "study.json").read_bytes() == found
    _check_study_of_weights(tmp_path)
    line = refused(*command, "hz=[33]")  # the first training would say nothing of it
    assert line.startswith("rvtssm study: seed=0/evaluation: evaluation.hz=33 Hz cannot be reached")
    assert "seed=0: " in refused(*command, "training.steps=2")  # another budget


def _check_study_of_weights(folder):
    """Two files of weights are two rows, whose differences are paired; classes may have other names in one of them."""
    weights = [str(folder / f"seed={seed}" / "checkpoints" / "best.ckpt") for seed in (0, 1)]
    settings = {"dataset": "synthetic", "dataset.raw_dir": str(folder / "raw"), "class_map": {}, "bootstrap": 50}
    settings |= {"data.workers": 0, "postprocess.min_score": 0, "postprocess.max_detections": 20}
    settings |= {"window": "slide", "hz": [20]}
    report = study(settings=settings, checkpoints=weights, out=str(folder / "of_weights"))
    (rows,) = report.conditions.values()
    assert [row.row for row in rows] == ["seed=0_best", "seed=1_best"]
    assert rows[1].minus_the_first(20) is not None
    again = json.loads((folder / "seed=0" / "evaluation" / "evaluation.json").read_text())
    assert report.to_json()["scores"][0]["rates"]["20"]["AP"] == by_rate(again)["20"]["AP"]
    with pytest.raises(UserError) as refused:
        study(settings={**settings, "class_map": {"boat": "car"}}, checkpoints=weights, out=str(folder / "other"))
    assert refused.value.key == "setting.choice"


@pytest.fixture(scope="module")
def composed():
    return compose_study(
        ["dataset=gen1", "dataset.raw_dir=/data", "temporal=s5,lstm", "seed=0,1", "evaluation.window=slide,shrink"]
    )


@pytest.fixture
def fake(monkeypatch, composed):
    """Trainings and evaluations that take no time; a function: a folder -> the configurations of its study."""
    done: list[str] = []

    class Weights:
        def __init__(self, text: str) -> None:
            self.text = text

        detector = property(lambda self: self)
        state_dict = parameters = lambda self: self.text

    def train(config):
        folder = Path(config.out) / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        done.append(f"train {Path(config.out).name}")
        for name in ("last.ckpt", "best.ckpt"):
            (folder / name).write_text(f"{config.temporal.name} {config.seed}")

    def evaluate(config):
        done.append(f"evaluate {Path(config.out).relative_to(Path(config.out).parents[1])}")
        return (SimpleNamespace(checkpoint=config.checkpoint, windows=[config.evaluation.window]),)

    def to_score(row, seed, condition, report, window, cost):
        score = make_score(row, seed, condition)
        return replace(score, weights=Path(report.checkpoint).read_text())

    replaced = {
        "train": train,
        "evaluate": evaluate,
        "to_score": to_score,
        "check": lambda config: None,
        "check_rates": lambda config: None,
        "read_checkpoint": lambda path: Weights(Path(path).read_text()),
        "weights_digest": str,
        "count_parameters": lambda detector: {"total": 7},
        "load_file": lambda path: {"train_seconds": 1.0, "decisive": {"training.steps": 400_000}},
    }
    for name, function in replaced.items():
        monkeypatch.setattr(verb, name, function)
    monkeypatch.setattr(study_report, "figure_png", lambda figure: b"picture")
    config, points = copy.deepcopy(composed)
    return done, lambda folder: verb.run_study(replace(config, out=str(folder)), points), points


def test_trainings_go_seed_by_seed_and_are_not_repeated(fake, tmp_path):
    done, run, _ = fake
    run(tmp_path)
    assert [word for word in done if word.startswith("train")] == [
        f"train seed={seed},temporal={name}" for seed in (0, 1) for name in ("s5", "lstm")
    ]
    assert len(done) == 4 + 8
    found = (tmp_path / "study.json").read_text()
    (tmp_path / "seed=1,temporal=lstm" / "window=slide" / "score.json").unlink()
    del done[:]
    run(tmp_path)
    assert done == ["train seed=1,temporal=lstm", "evaluate seed=1,temporal=lstm/window=slide"]
    assert (tmp_path / "study.json").read_text() == found


def test_weights_of_other_settings_are_not_taken(fake, tmp_path):
    """Of these settings `train` says nothing, when it goes on from a training that is complete."""
    done, run, points = fake
    run(tmp_path)
    del done[:]
    changes = ["dataset.raw_dir=/others", "training.validate_every=7"]
    _, others = compose_study(["dataset=gen1", *changes, "temporal=s5"])
    points[:] = [({**values, "temporal": "s5", "seed": "0"}, config) for values, config in others]
    with raises("run.other_settings"):
        run(tmp_path)
    assert not done


def test_a_study_from_weights_states_the_settings_of_all_rows(fake, tmp_path):
    """The layer of the weights, which is selective_s5, has settings that no row has."""
    *_, points = fake
    words = ["dataset=gen1", "dataset.raw_dir=/data", "training.init_from=street-tiny", "temporal.dt_max=0.2"]
    config, points[:] = compose_study([*words, "temporal=s5,lstm"])
    verb.run_study(replace(config, out=str(tmp_path)), points)
    settings = json.loads((tmp_path / "study.json").read_text())["settings"]["settings"]
    assert "temporal.dt_max=0.2" in settings and "model.layer_scale=0.1" in settings
    assert "temporal.name" not in settings and 'temporal.block="gated"' not in settings
    again, others = compose_study(yaml.safe_load((tmp_path / "overrides.yaml").read_text()))
    others = [(values, replace(each, out=None, study=StudyConfig())) for values, each in others]
    assert others == points and again.study == config.study


def test_a_package_that_tracks_need_is_asked_for_before_anything_is_trained(fake, tmp_path, monkeypatch):
    done, run, points = fake
    points[0][1].evaluation.track = "bytetrack"
    monkeypatch.setitem(sys.modules, "trackers", None)
    with raises("install.extra", "evaluation.track=bytetrack"):
        run(tmp_path)
    assert not done


def test_rates_of_every_cell_are_planned_before_anything_is_trained(fake, tmp_path, monkeypatch):
    done, run, _ = fake
    planned: list[str] = []

    def check_rates(config):
        planned.append(config.evaluation.window)
        if config.evaluation.window == "shrink":
            raise UserError("evaluation.rate_not_reached", "33 Hz cannot be reached")

    monkeypatch.setattr(verb, "check_rates", check_rates)
    with raises("evaluation.rate_not_reached"):
        run(tmp_path)
    assert not done and planned == ["slide", "shrink"]  # once for all that differ in nothing that rates depend on


def test_recordings_of_the_user_in_the_folder_of_the_study_are_not_generated(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "generate", lambda config: pytest.fail("recordings were generated"))
    config, points = compose_study(["dataset=synthetic", f"dataset.raw_dir={tmp_path / 'raw'}", "temporal=s5,lstm"])
    verb.run_study(replace(config, out=str(tmp_path)), points)
    assert any(word.startswith("train") for word in fake[0]) and (tmp_path / "study.json").is_file()


def test_only_other_weights_are_scored_again(fake, tmp_path):
    """Another number of processes changes nothing, and scores outlive their weights."""
    done, run, points = fake
    run(tmp_path)
    for _, config in points:
        config.data.workers = config.evaluation.workers = 3
    del done[:]
    run(tmp_path)
    assert not [word for word in done if word.startswith("evaluate")]
    weights = tmp_path / "seed=0,temporal=s5" / "checkpoints"
    (weights / "best.ckpt").write_text("others")
    del done[:]
    run(tmp_path)
    assert done == [f"evaluate seed=0,temporal=s5/window={window}" for window in ("slide", "shrink")]
    found = (tmp_path / "study.json").read_text()
    shutil.rmtree(weights)
    del done[:]
    run(tmp_path)
    assert not done and (tmp_path / "study.json").read_text() == found


def test_parts_that_were_made_apart_are_one_study(fake, tmp_path):
    done, run, points = fake
    whole = list(points)
    (tmp_path / "all").mkdir()
    for seed in "01":
        points[:] = [(values, config) for values, config in whole if values["seed"] == seed]
        run(tmp_path / seed)
        for folder in (tmp_path / seed).glob("seed=*"):
            folder.rename(tmp_path / "all" / folder.name)
    points[:] = whole
    del done[:]
    run(tmp_path / "all")
    assert not done


def test_a_study_that_is_killed_anywhere_goes_on_to_equal_numbers(fake, tmp_path, monkeypatch):
    _, run, points = fake
    del points[2:]
    run(tmp_path / "whole")
    whole = {name: (tmp_path / "whole" / name).read_bytes() for name in STUDY_FILES}
    num_killed = 0
    monkeypatch.setattr(verb, "run_files", lambda *arguments: nullcontext())  # whose files have a test of their own
    for folder in killed_at_each_call(tmp_path, lambda folder: folder.mkdir(), run):
        run(folder)
        assert {name: (folder / name).read_bytes() for name in STUDY_FILES} == whole
        num_killed += 1
    assert num_killed > 10


def test_the_tables_of_the_pages_are_those_of_the_study():
    """One page has all rows; the first page has the means of three; frames without windows are shown once."""
    rows = {}
    report = StudyReport(committed_scores("windows"))
    for condition in report.conditions:
        for name, trainings, *cells in report.table(condition)[1:]:
            layer, _, kind = name.partition("-")
            seen = "none" if kind == "surfaces" else condition.removeprefix("window=")
            assert trainings == ("2" if kind == "surfaces" else "3"), "as the page says above its tables"
            rows[layer, kind, seen] = f"| {' | '.join([layer, seen, *cells])} |"
    for layer, trainings, *cells in StudyReport(committed_scores("drives")).table("")[1:]:
        assert trainings == "3", "as the page says above its tables"
        rows[layer, "drives", "slide"] = f"| {' | '.join([layer, 'slide', *cells])} |"
    ours = re.compile(r"^\| (?:selective_s5|s5|s7|lstm) \| .*$", re.MULTILINE)
    assert {*rows.values()} == {*ours.findall((ROOT / "docs/any_rate.md").read_text())}


def test_the_tables_of_the_first_page_are_those_of_40_recordings():
    readme = (ROOT / "README.md").read_text()
    names = {"selective_s5-random": "selective S5 (ours)", "s5-random": "S5", "lstm-random": "LSTM"}
    for row in committed_rows("forty_shrink"):
        assert row["seeds"] == ["0", "1", "2"] and list(row["rates"]) == ["20", "40", "80", "100", "200"]
        cells = [percent_cell(numbers) for numbers in row["rates"].values()]
        assert f"| {names.pop(row['row'])} | {' | '.join(cells)} | {100 * row['drop']:.1f} |" in readme
    assert not names
    ours, lstm = committed_rows("forty_slide")
    ap = [f"{100 * row['rates'][hz]['AP']:.1f}" for row in (ours, lstm) for hz in ("20", "200")]
    intervals = [percent_cell(ours["rates"][hz]).partition(" ")[2] for hz in ("20", "200")]
    assert f"95 % intervals {intervals[0]} and {intervals[1]}" in readme
    assert f"scores {ap[0]} AP at 20 Hz and {ap[1]} AP at 200 Hz" in readme
    assert f"drops from {ap[2]} to {ap[3]}" in readme
    page = (ANY_RATE / "README.md").read_text()
    for hz in ("20", "200"):
        difference, low, high = (100 * value for value in lstm["rates"][hz]["minus_the_first"])
        assert f"{difference:.1f} [{low:.1f}, {high:.1f}] at {hz} Hz" in page


def committed_rows(study: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ANY_RATE / f"{study}.json").read_text())["rows"]
    return rows


def percent_cell(numbers: dict[str, Any]) -> str:
    low, high = (100 * limit for limit in numbers["interval"])
    return f"{100 * numbers['AP']:.1f} [{low:.1f}, {high:.1f}]"


def test_the_rows_from_5_hz_to_1_khz_is_what_was_measured():
    hz = (5, 10, 20, 40, 80, 100, 200, 500, 1000)
    for frames, file in (("windows of 50 ms", "far.json"), ("surfaces", "far_surfaces.json")):
        rates = json.loads((ANY_RATE / file).read_text())["rates"]
        ap = [rates[str(each)]["AP"] for each in hz]
        row = " | ".join(f"{100 * each:.1f}" for each in ap)
        assert f"| {frames} | {row} |" in (ROOT / "docs/any_rate.md").read_text()
        assert 0 < ap[2] - ap[-1] < 0.01  # as both pages say
    assert max(ap) - min(ap) < 0.011


def committed_scores(study: str) -> list[Score]:
    return [score_from_json(each) for each in json.loads((ANY_RATE / f"{study}.json").read_text())["scores"]]
