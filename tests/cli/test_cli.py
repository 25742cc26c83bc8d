"""The command line answers a mistake with one line and exit code 2, and does what can be done."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from event_examples import HEIGHT, WIDTH, boxes_of, random_events, write_labelled

from rvtssm.cli import main as cli
from rvtssm.cli.composition import full_words, short_keys
from rvtssm.cli.help import keys_of
from rvtssm.cli.verbs import verbs
from rvtssm.contrib.studies.grid import compose_study
from rvtssm.datasets import DATASETS
from rvtssm.models import MODEL_SIZES
from rvtssm.models.checkpoint import load_file, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.readers.dat import write_dat
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.system.user_error import UserError

SENSOR = (f"dataset.height={HEIGHT}", f"dataset.width={WIDTH}")


# Words that are refused before any work: the kind of the mistake, and what its line has to name.
REFUSED = {
    "predict dirve.dat": ("", "did you mean drive.dat?"),
    "predict a=c.raw": ("setting.unknown", "a=c.raw"),
    "inspect link.dat": ("", "/gone/drive.dat"),
    "evaluate bset.ckpt": ("", "did you mean best.ckpt?"),
    "train zzz=1": ("setting.unknown", "zzz"),
    "train --help optimm": ("setting.unknown", "optimm"),
    "trian": ("setting.choice", "train"),
    "predict a.raw b.raw": ("setting.form", "a.raw and b.raw"),
    "train model=huge": ("setting.unknown", "tiny"),
    "train model.size=huge": ("setting.choice", "tiny"),
    "train dataset": ("setting.form", "key=value"),
    "train class_map={vehicle: car}": ("setting.form", "quotes"),
    "train +steps=3": ("setting.form", "+steps=3"),
    "predict drive.dat --hz 50": ("setting.unknown", "--hz"),
    "predict drive.dat window=50": ("setting.choice", "slide"),
    "train": ("", "dataset=NAME"),
    "train dataset=gen1": ("setting.missing", "dataset.raw_dir=DIR"),
    "train dataset=custom dataset.raw_dir=/nowhere": ("", "/nowhere"),
    "train dataset=gen1 dataset.prepared_dir=/nowhere": ("", "/nowhere/train"),
    "preprocess dataset=gen1": ("setting.missing", "dataset.raw_dir=DIR"),
    "generate dataset=gen1": ("", "gen1"),
    "evaluate": ("setting.missing", "checkpoint=FILE"),
    "predict filters.background=true": ("setting.form", "filters=[background]"),
    "evaluate best.ckpt hz=20,100": ("setting.form", "[20,100]"),
    "evaluate checkpoints=['a=1,b=2/best.ckpt',no.ckpt]": ("", "no.ckpt"),
    "evaluate checkpoints=[a": ("setting.form", "evaluation.checkpoints"),
    "predict": ("setting.missing", "recording=FILE"),
    "export best.ckpt out=a.onnx precision=int8": ("setting.missing", "calibrate=RECORDINGS"),
    "export checkpoint=/nowhere.ckpt out=model.so": ("", "model.so"),
    "export best.ckpt out=a.xml calibrate=a.raw": ("", "a.raw"),
    "demo synthetic.num_test=0": ("", "num_test"),
    "demo evaluation.hz=[40]": ("", "20 Hz"),
    "evaluate training.steps=3": ("setting.not_read", "train"),
    "evaluate model=tiny": ("setting.not_read", "info"),
    "serve recording.x=1": ("setting.form", "recording"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_is_refused_by_its_kind(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drive.dat").touch()
    (tmp_path / "link.dat").symlink_to("/gone/drive.dat")
    (tmp_path / "best.ckpt").touch()
    (tmp_path / "a=1,b=2").mkdir()
    (tmp_path / "a=1,b=2/best.ckpt").touch()
    verb, *words = command.split(" ")
    kind, about = REFUSED[command]
    with pytest.raises(UserError) as caught:
        cli.run(verb, [word for word in words if not word.startswith("-")], [word for word in words if word[0] == "-"])
    assert about in str(caught.value)
    assert caught.value.key == (kind or caught.value.key)


def test_a_name_that_is_not_utf8_is_refused_before_the_work(refused):
    line = refused("predict", os.fsdecode(b"m\xfcnchen.dat"))
    assert "'m\\udcfcnchen.dat': The name of a file is not UTF-8; rename" in line


@pytest.mark.parametrize("error", [AssertionError(), ValueError("x")])
def test_a_bug_is_a_traceback_below_a_line_that_says_so(error, does, capsys):
    def broken(config):
        raise error

    does("info", broken)
    assert cli.main(["info", "dataset=gen1"]) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("rvtssm info: this is a bug of rvtssm; please report it")
    assert rest[0].startswith("Traceback") and rest[-1].startswith(type(error).__name__)


@pytest.mark.parametrize("where", ["option", "variable"])
def test_a_mistake_shows_its_traceback_on_request(where, monkeypatch, capsys):
    monkeypatch.setenv("RVTSSM_TRACEBACK", "1" if where == "variable" else "0")
    assert cli.main(["train", "steps=0", *(["--traceback"] if where == "option" else [])]) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("rvtssm train: training.steps=0") and rest[0].startswith("Traceback")


def test_no_verb_shows_the_verbs(capsys):
    for arguments, code in (([], 2), (["--help"], 0), (["-h"], 0)):
        assert cli.main(arguments) == code
        shown = capsys.readouterr().out
        assert all(re.search(rf"^  {verb}\b", shown, re.MULTILINE) for verb in verbs())


# What takes a noticeable time to import, and words that are answered before anything is computed.
SLOW = ("torch", "torchvision", "lightning", "timm", "scipy.linalg", "cv2", "matplotlib", "pandas")
ANSWERED_AT_ONCE = (
    *(["--help"], ["train", "--help"], ["live", "--config"], ["train", "stepz=3"], ["train", "steps=0"], ["train"]),
    *(["evaluate"], ["demo", "synthetic.num_test=0"], ["study", "temporal=s5,selective_s5"], ["live", "nobody=1"]),
    *(["predict", "checkpoint=model.ckpt"], ["export", "checkpoint=model.ckpt"], ["audit"], ["info"]),
)
OBSERVED = f"""
import contextlib, gc, importlib, io, json, sys
from rvtssm.cli.main import main
imported = lambda names: [name for name in names if name in sys.modules]
with contextlib.redirect_stdout(io.StringIO()):
    at_once = [(words, imported({SLOW!r})) for words in {ANSWERED_AT_ONCE!r} if main(words) is not None]
    before = gc.get_stats()[2]["collections"]
    sys.argv = ["rvtssm", "info", "checkpoint=street-tiny"]
    main()
searched = gc.isenabled(), gc.get_freeze_count() > 100_000, gc.get_stats()[2]["collections"] - before
for verb in ("inspect", "export", "predict", "live"):
    importlib.import_module(f"rvtssm.cli.{{verb}}")
loaded = imported(["lightning", "torch._dynamo", "torchvision"])
print(json.dumps({{"at_once": at_once, "searched": searched, "loaded": loaded}}))
"""


@pytest.fixture(scope="module")
def imports(tmp_path_factory) -> dict[str, Any]:
    """What a process imports, and whether that is searched for garbage."""
    folder = tmp_path_factory.mktemp("imports")
    done = subprocess.run([sys.executable, "-c", OBSERVED], capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(done.stdout)


def test_what_needs_no_computation_is_answered_at_once(imports):
    assert imports["at_once"] == [[words, []] for words in ANSWERED_AT_ONCE]


def test_nothing_that_a_command_imports_is_searched_for_garbage(imports):
    assert imports["searched"] == [True, True, 0]


def test_a_verb_that_trains_nothing_loads_neither_lightning_nor_a_compiler(imports):
    assert imports["loaded"] == []


@pytest.mark.parametrize("verb", verbs())
def test_help_of_a_verb_shows_its_keys_with_default_and_meaning(verb, printed_by, capsys):
    shown, known = printed_by(verb, "--help"), verbs()[verb]
    assert f"Example: rvtssm {verb} {known.example}".rstrip() in shown
    if verb != "doctor":  # it takes no keys
        words = full_words(verb, known.example.split())
        compose_study(words) if verb == "study" else cli.compose(words, verb)
    for section in known.own:
        for key in keys_of(getattr(known.settings_class(), section)):
            assert re.search(
                rf"^  {re.escape(key.name)}={re.escape(key.default)} +{re.escape(key.meaning)}$", shown, re.M
            )
    for section in known.sections:
        assert cli.main([verb, section, "--help"]) == 0
        assert all(
            key.meaning in capsys.readouterr().out
            for key in list(keys_of(getattr(known.settings_class(), section)))[:1]
        )


def test_help_of_a_key_shows_that_of_the_verb(printed_by, capsys):
    assert cli.main(["inspect", "data/drive.raw", "--help"]) == 0
    assert "auto, float32, bf16, float16, float64" in printed_by("train", "precision", "--help")
    assert cli.main(["live", "hz", "--help"]) == 0  # of a section that predict shares
    assert "detection.hz=null " in capsys.readouterr().out


def test_a_verb_prints_the_sections_that_it_reads(printed_by):
    shown = yaml.safe_load(printed_by("export", "out=model.onnx", "--config"))
    assert set(shown) == {"export", "postprocess", "plugins", "out", "checkpoint"}
    assert shown["out"] == "model.onnx"


@pytest.mark.parametrize(
    ("verb", "key"),
    [
        *((verb, "recording") for verb in ("predict", "live", "serve", "inspect")),
        *((verb, "checkpoint") for verb in ("evaluate", "export", "audit", "info")),
        ("preprocess", "dataset.raw_dir"),
        ("simulate", "simulate.video"),
    ],
)
def test_a_path_may_stand_bare(verb, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a=b,${x}'.raw", "plugins=x"):
        Path(name).touch()
    for path in PATHS:
        for words in ([path], [path, "plugins=[]"], ["plugins=[]", path]):
            assert f"{key}={path}" in full_words(verb, words)
    assert full_words(verb, ["plugins=x"]) == [f"{key}=plugins=x"]  # the first word, if there is such a file


PATHS = ("-", "runs/best one.ckpt", "a=b,${x}'.raw", "[4].raw", "it's (x): #b\\", '"q"', "true", "\\${y}")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_taken_as_it_stands(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.compose([f"recording={path}"]).recording == path
    assert cli.compose([f"evaluation.checkpoints={json.dumps([path, 'b'])}"]).evaluation.checkpoints == [path, "b"]
    monkeypatch.setenv("HOME", "/home/me")
    assert cli.compose(["recording=~/best"]).recording == "/home/me/best"
    Path("~").mkdir()
    Path("~/best").touch()  # a folder of this name
    assert cli.compose(["recording=~/best"]).recording == "~/best"


@pytest.mark.parametrize("verb", sorted(set(verbs()) - {"doctor"}))
def test_a_verb_takes_all_keys_that_it_reads_and_those_of_every_verb(verb):
    known = verbs()[verb]
    keys = [
        *known.keys,
        *(key.name for name in known.reads for key in keys_of(getattr(known.settings_class(), name), f"{name}.")),
    ]
    assert all(full_words(verb, [f"{key}=1"])[0].startswith(f"{key}=") for key in keys if "." in key)
    free = ["experiment=demo", "plugins=[a.py]", "hydra/launcher=joblib", "hydra.sweep.dir=x"]
    assert full_words(verb, free) == free


def test_every_key_of_an_own_section_stands_without_it():
    for verb in verbs():
        short = short_keys(verb)
        words = full_words(verb, [f"{key}=1" for key in short])
        assert [word.partition("=")[0] for word in words] == list(short.values())


@pytest.mark.parametrize(("result", "code"), [(None, 0), (2, 2), (Path("weights"), 0)])
def test_the_exit_code_of_a_verb(does, result, code):
    does("preprocess", lambda config: result)
    assert cli.main(["preprocess"]) == code


def test_an_interruption_is_no_mistake(does, capsys):
    def interrupted(config):
        raise KeyboardInterrupt

    does("train", interrupted)
    assert cli.main(["train"]) == 130
    assert re.search("interrupted.*resume=auto", capsys.readouterr().err)


def test_info_counts_the_parameters_of_the_paper(printed_by):
    arguments = ["info", "model=base", "dataset=gen1", "temporal=s5"]
    told = json.loads(printed_by(*arguments, "--json"))
    rooms = told["parameters"]
    assert rooms["total"] == 18_192_149 == sum(rooms.values()) - rooms["total"]
    assert (told["model"], told["temporal"], told["dataset"]) == ("base", "s5", "gen1")
    assert (told["frame_hw"], told["padded_hw"], told["partition_hw"]) == ([240, 304], [256, 320], [8, 10])
    assert "18.192149 M" in printed_by(*arguments)


def test_info_says_how_many_modes_start_masked(printed_by):
    """A mode that is masked gets no gradient, so what starts masked is lost to the training."""
    arguments = ["info", "model=tiny", "dataset=gen1", "temporal=s5"]
    shares = []
    for limit in ("0.5", "1", "0"):
        shares.append(json.loads(printed_by(*arguments, f"temporal.bandlimit={limit}", "--json"))["share_masked"])
    half, whole, off = shares
    assert list(half) == ["4", "8", "16", "32"] and off == {}
    assert all(0 < whole[stride] < half[stride] < 1 for stride in half)
    assert re.search(
        r"bandlimit 0\.5 masks \d+% of the modes at stride 4; ", printed_by(*arguments, "temporal.bandlimit=0.5")
    )


def test_info_describes_weights(tmp_path, refused, printed_by):
    windows = WindowSettings(25_000, None, "exact", 10, 10)
    meta = CheckpointMeta(DATASETS["gen1"], MODEL_SIZES["tiny"], TemporalConfig(name="s4d"), windows)
    meta = replace(meta, window_lengths_us=(5_000, 25_000))
    detector = meta.build()
    write_checkpoint(tmp_path / "tiny.ckpt", detector, meta)
    told = json.loads(printed_by("info", f"checkpoint={tmp_path / 'tiny.ckpt'}", "--json"))
    assert told["parameters"]["total"] == sum(weight.numel() for weight in detector.parameters())
    assert (told["model"], told["temporal"], told["stride_us"]) == ("tiny", "s4d", 25_000)
    assert told["classes"] == ["car", "pedestrian"] and told["has_digest"] is True
    words = ["model=tiny", "temporal=s4d", "windows.stride_ms=25.0", "windows.reduce=nearest"]
    assert told["settings"] == words
    assert (told["window_lengths_us"], told["may_shrink_windows"]) == ([5_000, 25_000], True)
    line = refused("info", str(tmp_path / "tiny.ckpt"), "model=small", "temporal=lstm")
    assert "model, temporal: info describes" in line
    torch.save(load_file(tmp_path / "tiny.ckpt"), tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    said = printed_by("info", f"checkpoint={tmp_path / 'old.ckpt'}")
    assert "the file has no digest" in said
    assert f"settings: {' '.join(words)}\n" in said
    assert "windows of 5, 25 ms in training, which may shrink at higher rates" in said


# preparing, with recordings of every kind of fault


def write_recording(folder: Path, name: str, seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Path:
    boxes = boxes_of((250_000, 2, 3, 30, 25), (1_000_000, 2, 3, 30, 25), class_confidence=1, still_us=-1)
    return write_labelled(folder, name, random_events(5_000, seed, 1_090_000, 10_000), boxes, (height, width))


FAULTS = {
    "empty": (lambda path: write_dat(path, random_events(0), HEIGHT, WIDTH), "holds no events"),
    "labels_only": (lambda path: path.unlink(), "belongs to no recording"),
}
SOUND = ("a", "z")


def write_tree(raw: Path) -> None:
    """A training split with two recordings to use and one of each fault; the other splits are sound."""
    for number, split in enumerate(("val", "test")):
        write_recording(raw / split, "a", seed=10 + number)
    for seed, name in enumerate([*SOUND, *FAULTS]):
        path = write_recording(raw / "train", name, seed)
        if name in FAULTS:
            FAULTS[name][0](path)


def prepare(raw: Path, out: Path, *overrides: str) -> int:
    where = (f"dataset.raw_dir={raw}", f"dataset.prepared_dir={out}")
    return cli.main(["preprocess", "dataset=gen1", *SENSOR, *where, "workers=1", *overrides])


def test_bad_recordings_get_a_line_each_and_the_others_are_done(tmp_path, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_tree(raw)
    assert prepare(raw, out) == 2
    told, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "━" not in line]
    assert len(lines) == len(FAULTS)
    for name, (_, message) in FAULTS.items():
        (line,) = (line for line in lines if line.startswith(f"train/{name}: "))
        assert re.search(message, line)
    wanted = f"^about to preprocess: source {raw} .*, stride 50 ms, recordings 5, labels required, output {out}"
    assert re.search(wanted, told, re.MULTILINE)
    assert "4 recordings prepared, 0 were complete, 0 left out, 2 failed" in told
    assert sorted(path.stem for path in (out / "train").iterdir()) == sorted(SOUND)


def test_a_second_preparation_into_the_same_folder_is_refused(tmp_path, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_recording(raw / "train", "a")
    holder = f"from rvtssm.system.output_folder import locked\nwith locked({str(out)!r}): print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert prepare(raw, out, "splits=[train]", "stride_ms=25") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"rvtssm preprocess: {out}: it is in use by process {other.pid} on ")
        assert not list(out.glob("[!.]*"))
        other.kill()
    assert prepare(raw, out, "splits=[train]", "stride_ms=25") == 0


def test_labels_that_are_all_left_out_are_a_mistake(tmp_path, refused, capsys):
    raw = tmp_path / "raw"
    path = write_recording(raw / "train", "a").with_name("a_bbox.npy")
    boxes = np.load(path)
    boxes["class_id"] = 7
    np.save(path, boxes)
    where = f"dataset.raw_dir={raw}", f"dataset.prepared_dir={tmp_path / 'out'}", "splits=[train]", "workers=1"
    line = refused("preprocess", "dataset=gen1", *SENSOR, *where)
    assert re.search("raw: no recording has a usable box: classes 0 car, 1 pedestrian, sensor 64x48", line)


def test_prepared_files_lie_in_a_folder_apart_from_the_recordings(tmp_path, refused):
    write_recording(tmp_path / "train", "a")
    where = f"dataset.raw_dir={tmp_path}", "splits=[train]", f"dataset.prepared_dir={tmp_path}/train/.."
    answer = refused("preprocess", "dataset=gen1", *SENSOR, *where)
    assert "holds the recordings; choose another folder" in answer and not list(tmp_path.rglob("*.h5"))


@pytest.mark.parametrize("name", ["a b=c [1],ü{x}", "it's (x): #b\\", "[red]x[/]", "true"])
def test_paths_are_taken_as_they_stand(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    raw = Path(name)
    write_recording(raw / "train", name.replace("/", "-"))
    assert prepare(raw, Path(f"{name}-out"), "splits=[train]") == 0
    assert f"they are in {name}-out" in capsys.readouterr().out
    assert [path.parent.parent for path in tmp_path.rglob("*.h5")] == [tmp_path / f"{name}-out"]
    assert cli.main(["inspect", str(raw), "dataset=gen1", *SENSOR, f"out={name}"]) == 0
    assert Path(f"{name}/{raw.name}.png").is_file()


# weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory, live_checkpoint) -> Path:
    """A checkpoint of an untrained detector for the synthetic dataset."""
    path, trained = tmp_path_factory.mktemp("weights") / "weights.ckpt", live_checkpoint()
    write_checkpoint(path, trained.detector, replace(trained, spec=DATASETS["synthetic"]))
    return path


def test_preprocess_keeps_the_description_of_files_that_it_may_not_replace(tmp_path, capsys):
    raw, prepared = tmp_path / "raw", tmp_path / "prepared"
    (raw / "train").mkdir(parents=True)
    labels = "labels: .txt\nlabel_columns: [time_us, class, cx, cy, w, h]"
    description = f"height: {HEIGHT}\nwidth: {WIDTH}\n{labels}\nclasses: "
    (raw / "train" / "a.csv").write_text("".join(f"{t},{t % 64},{t % 48},{t % 2}\n" for t in range(0, 200_000, 50)))
    (raw / "train" / "a.txt").write_text("150000 0 .5 .5 .5 .5\n")
    arguments = ["preprocess", "dataset=custom", f"dataset.raw_dir={raw}", f"dataset.prepared_dir={prepared}"]
    arguments += ["preprocess.splits=[train]", "preprocess.workers=1"]

    def prepared_with(classes: str, code: int) -> str:
        (raw / "dataset.yaml").write_text(description + classes)
        assert cli.main(arguments) == code, capsys.readouterr().err
        return (prepared / "dataset.yaml").read_text().removeprefix(description)

    assert prepared_with("[car]", 0) == "[car]"
    assert prepared_with("[person, car]", 2) == "[car]"
    assert prepared_with("[car]\nmin_side_px: 3", 0) == "[car]\nmin_side_px: 3"
    (raw / "dataset.yaml").unlink()
    assert cli.main(arguments) == 0  # the copy describes them


def test_weights_are_not_evaluated_on_another_dataset(refused, tmp_path, weights):
    answer = refused("evaluate", f"checkpoint={weights}", "dataset=gen1", f"dataset.raw_dir={tmp_path}")
    assert "was trained on the dataset synthetic, not gen1; " in answer
    assert "the classes (vehicle, person), not (car, pedestrian); frames of 160 x 120 " in answer
    assert f"training.init_from={weights} 'training.class_map={{NAME_IN_WEIGHTS: NAME_IN_DATA}}'`" in answer


def test_weights_are_not_evaluated_on_another_sensor(refused, tmp_path, weights):
    for name in ([], ["dataset=synthetic"]):
        answer = refused("evaluate", f"checkpoint={weights}", *name, "dataset.height=64")
        assert "was trained on frames of 160 x 120 pixels, not 160 x 64 pixels; fine-tune it" in answer
    assert "training.class_map" not in answer and "the dataset synthetic" not in answer
    assert "score it as it is with 'evaluation.class_map={}'" in answer


def test_a_terminal_that_lacks_a_letter_does_not_fail_a_command(tmp_path, run_afresh):
    path = tmp_path / "größe→.npy"
    np.save(path, np.zeros((3, 4), np.int64))
    words = ["inspect", str(path), "dataset.height=4", "dataset.width=4"]
    program = f"import sys; from rvtssm.cli.main import main; sys.exit(main({words!r}))"
    code, shown = run_afresh(program, encoding="ascii")
    assert code == 0 and r"gr\xf6\xdfe\u2192.npy" in shown


def test_memory_that_is_full_is_one_line(does, capsys):
    def fill(config):
        raise MemoryError("Unable to allocate 9 PiB")

    does("preprocess", fill)
    assert cli.main(["preprocess"]) == 2
    message = "rvtssm preprocess: memory is full (Unable to allocate 9 PiB); give it less at once\n"
    assert capsys.readouterr().err == message
