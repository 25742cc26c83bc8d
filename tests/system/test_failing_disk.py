"""On a disk that is full or broken every verb ends with one line, and what was there before is as it was."""

import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.font_manager  # noqa: F401  writes its list of fonts when it is first imported
import pytest

from rvtssm.cli.main import main
from rvtssm.datasets import DATASETS
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.readers import open_recording
from tests.failing_disk import files_of_at_most, one_failing_call

SENSOR = ("dataset=synthetic", "dataset.height=64", "dataset.width=96")
TOY = (
    *("synthetic.num_train=1", "synthetic.num_val=1", "synthetic.num_test=1"),
    *("synthetic.duration_s=0.6", "synthetic.workers=1"),
)
TRAIN = (
    *("model=tiny", "model.embed_dim=8", "model.head_dim=8", "model.num_blocks=[1,0,0,0]", "model.fpn_blocks=0"),
    *("sampling.batch_size=1", "sampling.chunk_length=2", "sampling.mode=random", "data.workers=0"),
    *("training.steps=2", "training.checkpoint_every=1", "training.accelerator=cpu"),
    *("training.pictures=false", "training.log_every=1"),
)
FAULTS = {
    "a file": lambda: files_of_at_most(1_000),
    "a large file": lambda: files_of_at_most(20_000),
    "early call": lambda: one_failing_call(1),
    "late call": lambda: one_failing_call(6),
}
CAUSES = ("File too large", "No space left on device", "Input/output error")
OLD = {  # a file that each verb replaces
    "evaluate": "evaluation.json",
    "predict": "prediction.json",
    "export": "model.safetensors",
    "audit": "audit.json",
    "inspect": "inspection.json",
}


def recording_in(made: Path) -> Path | None:
    return next((made / "generate" / "test").glob("*.dat"), None)


def words_of(verb: str, made: Path, out: Path) -> list[str]:
    """The command line of a verb that writes to `out` and reads what the verbs before it wrote below `made`."""
    raw, prepared = f"dataset.raw_dir={made / 'generate'}", f"dataset.prepared_dir={made / 'preprocess'}"
    checkpoint = f"checkpoint={made / 'best.ckpt'}"
    return [
        verb,
        *{
            "generate": (*SENSOR, *TOY, f"dataset.raw_dir={out}"),
            "preprocess": (*SENSOR, raw, f"dataset.prepared_dir={out}", "preprocess.workers=1", "overwrite=true"),
            "train": (*SENSOR, *TRAIN, raw, prepared, f"out={out}"),
            "evaluate": (checkpoint, f"out={out}", "hz=[20]", "data.workers=0"),
            "predict": (checkpoint, f"recording={recording_in(made)}", f"out={out}"),
            "export": (checkpoint, f"out={out / 'model.safetensors'}"),
            "audit": (checkpoint, f"out={out}", "duration_s=1.2", "hz=[20]", "finer=[1]"),
            "inspect": (str(recording_in(made)), f"out={out}"),
        }[verb],
    ]


@pytest.fixture(scope="module")
def made(made_once, live_checkpoint) -> Path:
    """A folder with what `generate` and `preprocess` write if nothing fails, and with weights for these recordings."""

    def fill(folder: Path) -> None:
        for verb in ("generate", "preprocess"):
            assert main(words_of(verb, folder, folder / verb)) == 0, verb
        spec = replace(DATASETS["synthetic"], height=64, width=96)
        weights = replace(live_checkpoint(), spec=spec, raw_dir=str(folder / "generate"))
        write_checkpoint(folder / "best.ckpt", weights.detector, weights)

    return made_once("failing_disk", fill)


def visible(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not any(part.startswith(".") for part in Path(name).parts)}


# every verb at an early call, and the other faults with verbs that write in different ways
CASES = [(verb, "early call") for verb in ("generate", "preprocess", "train", *OLD)]
CASES += [("generate", "a file"), ("train", "a large file"), ("predict", "a file")]
CASES += [("train", "late call"), ("evaluate", "late call")]


@pytest.mark.parametrize(("verb", "fault"), CASES)
def test_a_verb_ends_with_one_line_and_keeps_what_was_there(tmp_path, capsys, made, verb, fault):
    out = tmp_path / "out"
    if verb in OLD:
        out.mkdir()
        (out / OLD[verb]).write_text("{}")
    elif verb != "train":
        shutil.copytree(made / verb, out)
        for path in (out / "val").iterdir():  # so that there is something to do
            path.unlink()
    open_recording(recording_in(made)).time_range_us  # noqa: B018  keeps its index
    before = visible(out)
    capsys.readouterr()
    with FAULTS[fault]():
        code = main(words_of(verb, made, out))
    printed = "".join(capsys.readouterr())
    assert code == 2, printed
    assert "Traceback" not in printed
    (line,) = (line for line in printed.splitlines() if any(cause in line for cause in CAUSES))
    assert line.startswith(f"rvtssm {verb}: ") or verb == "preprocess"  # that names each recording that failed
    after = visible(out)
    if verb == "train":
        for path in (out / "checkpoints").glob("*.ckpt"):
            read_checkpoint(path)
    elif verb in ("generate", "preprocess"):
        whole = visible(made / verb)
        assert after.keys() >= before.keys() and all(whole[name] == data for name, data in after.items())
    elif fault != "late call":  # files that were moved before it are new
        assert after == before
