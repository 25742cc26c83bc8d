"""On a disk that is full or broken every verb ends with one line, and what was there before is as it was."""

import shutil
from pathlib import Path

import pytest

from rvtssm.cli.main import main
from rvtssm.models.checkpoint import read_checkpoint
from tests.failing_disk import run_verb

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
FAULTS = {"a file": {"most_bytes": 1000}, "early call": {"failing_call": 1}, "late call": {"failing_call": 6}}
CAUSES = ("File too large", "No space left on device", "Input/output error")
VERBS = ("generate", "preprocess", "train", "evaluate", "predict", "export", "audit", "inspect")


def words_of(verb: str, made: Path, out: Path) -> list[str]:
    """The command line of a verb that writes to `out` and reads what the verbs before it wrote below `made`."""
    raw, prepared = f"dataset.raw_dir={made / 'generate'}", f"dataset.prepared_dir={made / 'preprocess'}"
    checkpoint = f"checkpoint={made / 'train' / 'checkpoints' / 'best.ckpt'}"
    recording = f"recording={next((made / 'generate' / 'test').glob('*.dat'), None)}"
    return [
        verb,
        *{
            "generate": (*SENSOR, *TOY, f"dataset.raw_dir={out}"),
            "preprocess": (*SENSOR, raw, f"dataset.prepared_dir={out}", "preprocess.workers=1", "overwrite=true"),
            "train": (*SENSOR, *TRAIN, raw, prepared, f"out={out}"),
            "evaluate": (checkpoint, f"out={out}", "hz=[20]", "data.workers=0"),
            "predict": (checkpoint, recording, f"out={out}"),
            "export": (checkpoint, f"out={out / 'model.safetensors'}"),
            "audit": (checkpoint, f"out={out}", "duration_s=1.2", "hz=[20]", "finer=[1]"),
            "inspect": (recording.removeprefix("recording="), f"out={out}"),
        }[verb],
    ]


@pytest.fixture(scope="module")
def made(made_once) -> Path:
    """A folder with one folder per verb, which holds what the verb writes if nothing fails."""

    def fill(folder: Path) -> None:
        for verb in VERBS:
            assert main(words_of(verb, folder, folder / verb)) == 0, verb

    return made_once("failing_disk", fill)


def visible(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not any(part.startswith(".") for part in Path(name).parts)}


# every verb at an early call, and the other faults with verbs that write in different ways
CASES = [(verb, "early call") for verb in VERBS]
CASES += [(verb, "a file") for verb in ("generate", "train", "predict")] + [
    ("train", "late call"),
    ("evaluate", "late call"),
]


@pytest.mark.parametrize(("verb", "fault"), CASES)
def test_a_verb_ends_with_one_line_and_keeps_what_was_there(tmp_path, prepared, made, verb, fault):
    out = tmp_path / "out"
    if verb != "train":
        shutil.copytree(made / verb, out)
    if verb in ("generate", "preprocess"):
        for path in (out / "val").iterdir():  # so that there is something to do
            path.unlink()
    before = visible(out)
    limits = {"most_bytes": 20_000} if verb == "train" and "most_bytes" in FAULTS[fault] else FAULTS[fault]
    done = run_verb(prepared, words_of(verb, made, out), **limits)
    assert done.code == 2, done.printed
    assert "Traceback" not in done.printed
    (line,) = (line for line in done.printed.splitlines() if any(cause in line for cause in CAUSES))
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
