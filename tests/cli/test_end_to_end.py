"""The whole chain at toy size: one command from nothing to a report, and its weights used alone afterwards."""

import base64
import csv
import html
import io
import itertools
import json
import re
import runpy
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from event_examples import boxes_of, random_events, write_labelled
from scored_rows import by_rate

from rvtssm.cli import main as cli
from rvtssm.cli.composition import compose, full_words
from rvtssm.cli.evaluate import evaluate
from rvtssm.cli.main import main
from rvtssm.cli.verbs import verbs, verbs_that_read
from rvtssm.contrib.studies import run_study as study
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.datasets.sequence import RawSplit
from rvtssm.evaluation.protocol import published_rows
from rvtssm.events.frame_counter import count_windows
from rvtssm.models import MODEL_SIZES, SCORES
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.models.detector import build_detector, count_parameters
from rvtssm.models.official import rename_official
from rvtssm.models.streams import Streams
from rvtssm.readers import open_recording
from rvtssm.ssm import TemporalConfig

RATES = ("20", "40")
# every split of this seed has objects that stand still for 0.3 s
TOY = (
    "synthetic.num_train=3",
    "synthetic.num_val=1",
    "synthetic.num_test=2",
    "synthetic.duration_s=1.5",
    "synthetic.workers=1",
    "dataset.height=64",
    "dataset.width=96",
    "model.embed_dim=8",
    "model.head_dim=8",
    "model.num_blocks=[1,0,0,1]",
    "model.fpn_blocks=0",
    "sampling.batch_size=2",
    "sampling.chunk_length=5",
    "training.steps=4",
    "training.accelerator=cpu",
    "training.log_every=2",
    "training.pictures=false",
    "data.workers=0",
    f"evaluation.hz=[{','.join(RATES)}]",
    "evaluation.still_ms=250",
    "evaluation.workers=1",
    "evaluation.bootstrap=50",
    "postprocess.min_score=0",
    "precision=float32",
    "predict.scale=2",
)


NOTEBOOKS = runpy.run_path(str(Path(__file__).parents[2] / "scripts/notebook_pages.py"))


def read_by(verb: str, words: tuple[str, ...]) -> list[str]:
    return [word for word in words if verb in verbs_that_read(word.partition("=")[0])]


def modified(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The folder of a demo."""
    out = tmp_path_factory.mktemp("demo")
    assert cli.main(["demo", f"out={out}", *TOY]) == 0
    return out


def test_a_demo_shows_boxes_before_it_generates_the_rest(demo):
    """By the weights in the package, on the first test recording."""
    folder = demo / "first_boxes"
    assert (folder / "strip.png").is_file() and (folder / "video.mp4").is_file()
    assert json.loads((folder / "prediction.json").read_text())["source"].endswith("raw/test/test_0000_td.dat")
    written = [(demo / path).stat().st_mtime_ns for path in ("first_boxes/strip.png", "raw/test/test_0001_td.dat")]
    assert written == sorted(written)


def test_the_demo_writes_metrics(demo):
    metrics = json.loads((demo / "metrics.json").read_text())
    rates = by_rate(metrics)
    assert set(rates) == set(RATES)
    for row in rates.values():
        assert {"AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AP/vehicle", "AP/person"} <= set(row)
        assert 0 <= row["AP"] <= row["AP50"] <= 1
    assert (metrics["ap"], metrics["ap50"]) == (rates["20"]["AP"], rates["20"]["AP50"])
    others = [rates[hz]["AP"] for hz in RATES[1:]]
    assert next(iter(metrics["drop"].values())) == pytest.approx(metrics["ap"] - sum(others) / len(others))
    assert set(metrics["still_objects"]) == {"carried", "reset"}
    assert all(0 <= value <= 1 for value in metrics["still_objects"].values())
    assert metrics["train_seconds"] > 0
    weights = read_checkpoint(demo / "checkpoints" / "best.ckpt")
    assert metrics["num_parameters"] == count_parameters(weights.detector)["total"]


def test_the_demo_writes_one_page_to_send_on(demo):
    """Nothing is beside it: video and pictures are inside, and the video is one that browsers play."""
    page = (demo / "report.html").read_text()
    loaded = re.findall(r'(?:src|poster|href)="([^"]*)"', page)
    assert len(loaded) > 4 and all(
        source.startswith(("data:image/png;base64,", "data:video/mp4;base64,")) for source in loaded
    )
    (video,) = (base64.b64decode(source.partition(",")[2]) for source in loaded if source.startswith("data:video"))
    with av.open(io.BytesIO(video)) as opened:
        frame = next(opened.decode(video=0)).to_ndarray(format="bgr24")
        assert opened.streams.video[0].codec_context.name == "h264"
    assert frame.shape[:2] >= (128, 192) and frame.std() > 0
    assert "objects that have stood still for 0.25 s" in page
    assert "The memory, temporal=selective_s5, is a system in continuous" in page
    assert ">carried</td>" in page and ">reset at every step</td>" in page
    short = page.index("This training was too short to learn: it had 4 steps, and the default of a demo is ")
    assert short < page.index('<dl class="tiles">')


def test_what_the_page_of_the_demo_says_to_try_next_is_understood(demo):
    commands = [
        html.unescape(text) for text in re.findall("<code>(rvtssm .*? .*?)</code>", (demo / "report.html").read_text())
    ]
    assert len(commands) > 5 and any(str(demo / "checkpoints/best.ckpt") in command for command in commands)
    for command in commands:
        _, verb, *words = shlex.split(command)
        if verb == "study":  # the example of its help, which other tests compose
            assert command == f"rvtssm study {verbs()['study'].example}"
        else:
            cli.compose(full_words(verb, words))


SHORTER = {
    "STEPS, SECONDS = 20, 3": "STEPS, SECONDS = 2, 1",
    "[20, 200]": "[20]",
    "num_train=4": 'num_train=1", "workers=1',
    'num_test=1", "d': 'num_test=1", "duration_s=0.6", "d',
    '"sampling.chunk_length=6"': '"sampling.chunk_length=2", "data.workers=0", "training.pictures=false"',
    "range(100)": "range(30)",
}


@pytest.mark.parametrize("example", NOTEBOOKS["NOTEBOOKS"], ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path, monkeypatch):
    """With fewer data and a shorter training."""
    monkeypatch.chdir(tmp_path)
    shorter, text = tmp_path / example.name, example.read_text()
    for whole, part in SHORTER.items():
        text = text.replace(whole, part)
    shorter.write_text(text)
    cells = list(NOTEBOOKS["outputs"](shorter))
    shown = [printed or value for cell, printed, value in cells if not cell.is_prose]
    assert not any(hasattr(value, "savefig") for *_, value in cells), "Jupyter shows such a figure as text"
    assert any(shown) and "nan" not in " ".join(map(str, shown))


def test_a_second_demo_repeats_nothing_and_says_what_it_is_about_to_do(demo, printed_by):
    folders = ("first_boxes", "raw", "checkpoints")
    before = [modified(demo / folder) for folder in folders]
    metrics = json.loads((demo / "metrics.json").read_text())
    told = printed_by("demo", f"out={demo}", *TOY)
    for line in (
        r"generate: recordings 3 \+ 1 \+ 2 of 1.5 s, sensor 96 x 64",
        r"evaluate: weights .*, stride 50 and 25 ms, recordings 2 with \d+ labels, of which \d+ are scored, ",
    ):
        assert re.search(f"^about to {line}", told, re.MULTILINE), told
    assert re.search("^complete already: .* has all 4 steps; weights: .*best.ckpt", told, re.MULTILINE)
    assert [modified(demo / folder) for folder in folders] == before and all(before)
    again = json.loads((demo / "metrics.json").read_text())
    assert again == metrics


def test_a_demo_of_other_settings_needs_another_folder(demo, refused):
    line = refused("demo", f"out={demo}", *TOY, "optim.learning_rate=0.1")
    assert re.search(r"optim.learning_rate=[0-9.]+, now 0.1;? *\)", line)
    assert "made with seed=0 instead of 1" in refused("demo", f"out={demo}", *TOY, "synthetic.seed=1")


def test_the_weights_say_on_what_to_evaluate_them(demo, tmp_path):
    arguments = [f"checkpoint={demo / 'checkpoints' / 'best.ckpt'}", f"out={tmp_path}", "postprocess.min_score=0"]
    assert cli.main(["evaluate", *arguments, "hz=[20,40]", "bootstrap=50", "data.workers=0"]) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    metrics = json.loads((demo / "metrics.json").read_text())
    assert set(by_rate(found)) == {"20", "40"} and found["dataset"] == "synthetic"
    for hz, row in by_rate(found).items():
        for name, value in row.items():
            assert value == pytest.approx(by_rate(metrics)[hz][name], abs=1e-6), (hz, name)
    assert "objectness_times_class, from 0;" in found["conditions"]["score"]
    assert "0.5 s" in found["conditions"]["scored"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".html", ".yaml"}
    groups = found["breakdown"]["groups"]
    assert set(groups) == {"size", "time since last motion", "speed"}  # raw labels have tracks
    page = (tmp_path / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 2 + len(found["breakdown"]["worst_frames"]) > 2


def test_raw_and_prepared_recordings_score_alike(demo, tmp_path):
    """What was prepared with another stride than that of training scores as the raw recordings do at that rate."""
    weights = f"checkpoint={demo / 'checkpoints' / 'best.ckpt'}"
    where = [f"dataset.raw_dir={demo / 'raw'}", f"dataset.prepared_dir={tmp_path / 'prepared'}"]
    settings = ["splits=[test]", "workers=1", "stride_ms=16.667"]
    assert cli.main(["preprocess", *where, *settings]) == 0  # the folder says which dataset it is, and its size
    inspected = [f"preprocess.{word}" for word in settings[:2]] + [f"windows.{settings[2]}"]
    assert cli.main(["inspect", str(tmp_path / "prepared"), "full=true", *inspected]) == 0
    scores = []
    for source in ("raw", "prepared"):
        how = [f"source={source}", "postprocess.min_score=0", "hz=[60]", "window=shrink"]
        how += ["bootstrap=0", "data.workers=0"]
        out = f"out={tmp_path / source}"
        assert cli.main(["evaluate", weights, *where, *how, out]) == 0
        scores += by_rate(json.loads((tmp_path / source / "evaluation.json").read_text())).values()
    assert scores[0] == pytest.approx(scores[1], abs=0, nan_ok=True) and scores[0]["AP"] > 0


def test_an_evaluation_says_that_weights_see_what_comes_later(demo, tmp_path):
    trained = read_checkpoint(demo / "checkpoints" / "best.ckpt")
    meta = replace(trained, temporal_config=replace(trained.temporal_config, name="s5", bidirectional=True))
    write_checkpoint(tmp_path / "both.ckpt", meta.build(), meta)
    arguments = [f"checkpoint={tmp_path / 'both.ckpt'}", f"out={tmp_path / 'out'}", "split=val", "data.workers=0"]
    assert cli.main(["evaluate", *arguments]) == 0
    settings = json.loads((tmp_path / "out" / "evaluation.json").read_text())["conditions"]
    assert settings["memory"] == "carried, and events after the label, to the end of each chunk of 21 steps"


def test_a_detector_learns_a_recording_by_heart(tmp_path):
    where = (f"dataset.raw_dir={tmp_path / 'raw'}", f"dataset.prepared_dir={tmp_path / 'prepared'}")
    few = ("synthetic.num_train=1", "synthetic.num_test=0", "synthetic.duration_s=1.2")
    data = ("dataset=synthetic", *TOY, *few, *where)
    assert cli.main(["generate", *read_by("generate", data)]) == 0
    for path in (tmp_path / "raw" / "train").iterdir():  # validation is on the same recording, so that AP is not 0
        shutil.copy(path, tmp_path / "raw" / "val" / path.name)
    assert cli.main(["preprocess", *read_by("preprocess", data), "workers=1", "splits=[train,val]"]) == 0
    as_it_is = [f"augment.{name}=0" for name in ("flip_prob", "zoom_prob", "stream_zoom_prob")]
    fast = ("optim.learning_rate=7e-3", "model.layer_scale=0.1", "training.steps=45")
    assert cli.main(["train", *read_by("train", data), "model=tiny", *as_it_is, *fast, f"out={tmp_path}"]) == 0
    weights = f"checkpoint={tmp_path / 'checkpoints' / 'last.ckpt'}"
    out = f"out={tmp_path / 'evaluation'}"
    how = ["split=train", "source=prepared", "bootstrap=0", "data.workers=0"]
    assert cli.main(["evaluate", weights, *how, out]) == 0
    report = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert by_rate(report)["20"]["AP50"] > 0.5
    # a validation and an evaluation of the same weights, however they are batched and whatever they read, agree
    other = ("source=raw", "data.eval_chunk_length=5", "data.eval_batch_size=1", "split=val", *how[2:])
    assert cli.main(["evaluate", weights, *other, out]) == 0
    report = by_rate(json.loads((tmp_path / "evaluation" / "evaluation.json").read_text()))["20"]
    with open(next(tmp_path.glob("csv/version_*/metrics.csv")), newline="") as file:
        last = [row for row in csv.DictReader(file) if row["val/AP"]][-1]
    assert int(last["step"]) == 44
    for name in ("AP", "AP50", "AP75", "AP_small"):
        assert np.float32(last[f"val/{name}"]) == np.float32(report[name]), name


def test_several_weights_in_one_report(demo, tmp_path):
    weights = [demo / "checkpoints" / name for name in ("best.ckpt", "last.ckpt")]
    names = f"checkpoints=[{','.join(map(str, weights))}]"
    how = ["hz=[20]", "split=val", "bootstrap=50", "data.workers=0"]
    assert cli.main(["evaluate", names, f"out={tmp_path}", *how]) == 0
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert list(found) == [str(path) for path in weights]
    for number, report in enumerate(found.values(), start=1):
        assert set(by_rate(report)) == {"20"}
        assert all("minus_the_first" not in row for row in report["rows"])  # one recording has no intervals
        alone = json.loads((tmp_path / str(number) / "evaluation.json").read_text())
        assert report == {name: alone[name] for name in report}
    assert cli.main(["evaluate", names, f"checkpoint={weights[0]}"]) == 2
    assert cli.main(["evaluate", f"checkpoints=[{weights[0]},{weights[0]}]"]) == 2


def test_a_forced_step_scale_changes_other_rates_and_not_the_own(demo, tmp_path):
    weights = f"checkpoint={demo / 'checkpoints' / 'best.ckpt'}"
    words = [weights, f"out={tmp_path}", "hz=[20,40]", "bootstrap=50", "data.workers=0", "step_scale=1"]
    assert cli.main(["evaluate", *words, "postprocess.min_score=0"]) == 0
    fixed = json.loads((tmp_path / "evaluation.json").read_text())
    assert fixed["conditions"]["time step"] == "1 whatever the rate"
    rescaled = by_rate(json.loads((demo / "metrics.json").read_text()))
    assert by_rate(fixed)["20"] == rescaled["20"]
    assert by_rate(fixed)["40"] != rescaled["40"]


@pytest.mark.parametrize(("hz", "window"), [(20, "slide"), (30, "shrink"), (200, "slide")])
def test_no_detection_sees_an_event_after_its_label(demo, hz, window):
    """The causality check: whatever happens after a label time changes none of its scores, but later ones."""
    checkpoint = read_checkpoint(demo / "checkpoints" / "best.ckpt")
    checkpoint.detector.float()
    settings = replace(checkpoint.windows, stride_us=1e6 / hz, length_us=50_000 if window == "slide" else None)
    sequences = RawSplit(demo / "raw", "test", checkpoint.spec).sequences(settings)
    (sequence, *_) = sequences
    cut_us = int(np.unique(sequence.labels.t_us)[5])

    def scores(is_perturbed: bool) -> dict[int, np.ndarray]:
        events = open_recording(sequence.source.path).read()
        if is_perturbed:  # everything from the label time on is noise
            later = events.t >= cut_us
            rng = np.random.default_rng(0)
            events.x[later] = rng.integers(0, checkpoint.spec.width, later.sum())
            events.y[later] = rng.integers(0, checkpoint.spec.height, later.sum())
            events.p[later] = rng.integers(0, 2, later.sum())
        hist = count_windows(events, sequence.windows, checkpoint.spec.height, checkpoint.spec.width)
        streams = Streams(checkpoint.detector, checkpoint.windows.stride_us)
        steps = torch.from_numpy(sequence.label_steps)
        frame_index = torch.stack([steps, torch.zeros_like(steps)], dim=1)
        dt_us = torch.from_numpy(sequence.windows.dt_us)[:, None]
        predictions = streams.push(torch.from_numpy(hist)[:, None], dt_us, frame_index, [0], [True])
        return dict(zip(sequence.windows.ends_us[sequence.label_steps].tolist(), predictions.rows.numpy(), strict=True))

    clean, perturbed = scores(False), scores(True)
    assert set(clean) == set(np.unique(sequence.labels.t_us).tolist())  # every label time ends a window
    for t_us, found in clean.items():
        assert np.array_equal(found, perturbed[t_us]) == (t_us <= cut_us), t_us


# official weights at several rates


KINDS = ("slide", "shrink")


@pytest.fixture
def official(golden_dir, tmp_path, monkeypatch):
    """A small checkpoint under the keys of the release, with random weights and few channels."""
    monkeypatch.setitem(MODEL_SIZES, "tiny", replace(MODEL_SIZES["tiny"], embed_dim=8, head_dim=8))
    with np.load(golden_dir / "model_small.npz") as recorded:
        shapes = {key.removeprefix("sd/"): recorded[key] for key in recorded.files if key.startswith("sd/mdl.")}
    official_of = {next(iter(rename_official({key: torch.from_numpy(value)}))): key for key, value in shapes.items()}
    torch.manual_seed(0)
    temporal = TemporalConfig(name="s5", clip_real=False)
    weights = {}
    for name, value in build_detector(MODEL_SIZES["tiny"], temporal, 240, 304, 2).state_dict().items():
        block = re.search(r"^neck\.merge.*\.blocks\.(\d+)\.", name)  # the recorded model has one of them each
        number = block[1] if block else "0"
        key = official_of[re.sub(r"(^neck\.merge.*\.blocks)\.\d+\.", r"\1.0.", name)]
        weights[key.replace(".m.0.", f".m.{number}.")] = value
    torch.save({"state_dict": weights}, tmp_path / "gen1_tiny.ckpt")
    return tmp_path / "gen1_tiny.ckpt"


@pytest.fixture
def raw(tmp_path):
    """A test recording of half a second, of the size of Gen1."""
    events = random_events(20_000, 0, 560_000, size_hw=(240, 304))
    boxes = boxes_of((300_000, 0, 0, 60, 40), (550_000, 0, 0, 60, 40), still_us=-1)
    write_labelled(tmp_path / "raw/test", "a", events, boxes, (240, 304))
    return tmp_path / "raw"


def test_official_weights_are_converted_and_scored_without_a_training(official, raw, tmp_path, refused, monkeypatch):
    """With the memory of the release and a carried one. A command that was killed goes on with the missing cells."""
    out = tmp_path / "out"
    command = ["study", "experiment=gen1_rate_check", f"checkpoint={official}", f"dataset.raw_dir={raw}", f"out={out}"]
    few = ["evaluation.step_scale=null", "hz=[20,40]", "bootstrap=0", "data.workers=0", "model=tiny"]
    few += ["postprocess.score=class_only"]
    calls = []

    def evaluated(config):
        calls.append(config.out)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(config)

    monkeypatch.setattr(study, "evaluate", evaluated)
    assert main([*command, *few]) == 130 and not (out / "study.json").exists()
    assert main([*command, *few]) == 0
    assert len(calls) == 3 and len({*calls}) == 2
    converted = read_checkpoint(out / "weights.ckpt")
    given = load_file(official)["state_dict"].values()
    assert sorted(float(value.double().sum()) for value in converted.detector.state_dict().values()) == sorted(
        float(value.double().sum()) for value in given
    )
    assert (converted.model_config.memory, converted.model_config.memory_chunk) == ("chunk", 21)
    found = json.loads((out / "study.json").read_text())
    rows = [f"memory={memory}" for memory in ("null", "carried")]
    assert [row["row"] for row in found["rows"]] == [f"{row},window={name}" for row in rows for name in KINDS]
    assert all(set(row["rates"]) == {"20", "40"} for row in found["rows"])
    reports = [json.loads((out / row / "evaluation.json").read_text()) for row in rows]
    assert [report["conditions"]["memory"] for report in reports] == ["chunk", "carried"]
    page = (out / "study.html").read_text()
    assert "S5-ViT-B, published" in page and "<td>44.5</td>" in page and "seconds of training" not in page
    page = (out / "cells.md").read_text()
    paragraph, _, table = page.partition("\n\n")
    assert paragraph.startswith("We scored the weights gen1_tiny.ckpt (SHA-256 of the tensors ")
    assert len(paragraph) < 3000
    assert "S5-ViT-B, published: 46.44; RVT, published: 35.13" in paragraph
    lines = table.splitlines()
    assert lines[0].endswith("| AP re-run | S5-ViT-B, published | RVT, published |") and len(lines) == 2 + 2 + 4
    assert lines[2].startswith("| 20 Hz | 50 ms every 50 ms | x 1 | chunk | class_only | ")
    assert lines[-1].startswith("| 40 Hz | 25 ms every 25 ms | x 0.5 | carried | class_only | ")
    assert lines[-1].endswith(" | 46.44 | 35.13 |")
    assert "seed: a study of weights that are given trains nothing" in refused(*command, "seed=0,1")


def test_the_rate_check_has_every_cell_and_the_published_rows():
    _, points = compose_study(["experiment=gen1_rate_check"])
    cells = {(each.evaluation.memory, each.evaluation.step_scale, each.postprocess.score) for _, each in points}
    assert cells == {*itertools.product((None, "carried"), (None, 1), SCORES)} and len(points) == 8
    config = compose(["experiment=gen1_rate_check"], "study")
    assert config.checkpoint == "gen1_base.ckpt"  # without weights, the study would train
    assert (config.evaluation.window, config.evaluation.hz) == ("both", [20, 40, 80, 100, 200])
    beside = config.study.numbers_beside()
    for model in ("S5-ViT-B", "RVT"):
        assert beside[f"{model}, published"] == pytest.approx(
            {hz: 100 * ap for hz, ap in published_rows("gen1")[model].items()}
        )
