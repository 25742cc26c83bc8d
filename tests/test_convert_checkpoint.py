"""The door scripts/convert_checkpoint.py: official checkpoints become ours, mistakes one line and exit code 2."""

import json
import runpy
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scored_rows import by_rate

from rvtssm.cli import main as cli
from rvtssm.datasets import DATASETS
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.models.official import rename_official
from rvtssm.models.postprocess import to_probabilities
from rvtssm.models.rvt import derive_partition

SCRIPT = Path(__file__).parents[1] / "scripts" / "convert_checkpoint.py"
MODELS = {"s5": "model_small.npz", "lstm": "rvt_small.npz"}


@dataclass
class NotPlain:
    """Stands for the configuration objects that Lightning may pickle into a checkpoint."""

    name: str = "gen1"


@pytest.fixture
def convert():
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture
def official(golden_dir, tmp_path, monkeypatch):
    """A function: temporal layer -> (path of a Lightning checkpoint, its arrays, options that name its sizes).

    The datasets get as many classes as were recorded: gen1 the same number, onempx one more.
    """

    def write(temporal: str = "s5", **extra: object):
        arrays = dict(np.load(golden_dir / MODELS[temporal]))
        weights = {key.removeprefix("sd/"): torch.from_numpy(value) for key, value in arrays.items() if "sd/" in key}
        path = tmp_path / f"{temporal}.ckpt"
        torch.save({"state_dict": weights, "epoch": 3, **extra}, path)
        embed_dim = len(weights["mdl.backbone.stages.0.downsample_cf2cl.conv.weight"])
        num_classes = len(weights["mdl.yolox_head.cls_preds.0.bias"])
        names = tuple(f"class {number}" for number in range(num_classes + 1))
        monkeypatch.setitem(DATASETS, "gen1", replace(DATASETS["gen1"], class_names=names[:-1]))
        monkeypatch.setitem(DATASETS, "onempx", replace(DATASETS["onempx"], class_names=names))
        return path, arrays, ["--dataset", "gen1", "--head-dim", str(embed_dim // 2)]

    return write


@pytest.mark.parametrize(("temporal", "memory"), [("s5", ("chunk", 21)), ("lstm", ("carried", None))])
@torch.no_grad()
def test_every_weight_arrives_and_predicts_what_was_recorded(
    convert, official, tmp_path, capsys, monkeypatch, temporal, memory
):
    """The release forgets after each chunk, and RVT carries its memory."""
    path, arrays, sizes = official(temporal)
    num_steps, num_streams, _, height, width = arrays["input"].shape
    monkeypatch.setitem(DATASETS, "gen1", replace(DATASETS["gen1"], height=height, width=width))
    assert convert([str(path), str(tmp_path / "new" / "ours.ckpt"), *sizes]) == 0
    assert f"custom {temporal}" in capsys.readouterr().out
    loaded = read_checkpoint(tmp_path / "new" / "ours.ckpt")
    weights = rename_official(torch.load(path, weights_only=True)["state_dict"])
    for key, value in loaded.detector.state_dict().items():
        assert torch.equal(value, weights[key]), key
    assert loaded.windows.convention == "rvt"
    assert loaded.windows.stride_us == 50_000
    config = loaded.temporal_config
    assert config.name == temporal
    if temporal == "s5":
        assert (config.discretization, config.bandlimit) == ("bilinear", 0)
    assert (loaded.model_config.memory, loaded.model_config.memory_chunk) == memory
    if derive_partition(height, width)[1] != 1:
        pytest.skip("recorded with a partition that no frame of this size gets")
    last = torch.tensor([(num_steps - 1, stream) for stream in range(num_streams)])
    (predictions,), _ = loaded.detector(torch.from_numpy(arrays["input"]), frame_index=last)
    wanted = torch.from_numpy(arrays["pred_eval"])
    assert (to_probabilities(predictions) - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize(
    ("temporal", "option", "value", "memory"),
    [("s5", "--memory", "carried", ("carried", None)), ("lstm", "--memory-chunk", "5", ("chunk", 5))],
)
def test_a_model_remembers_as_it_is_told_to(convert, official, tmp_path, temporal, option, value, memory):
    path, _, sizes = official(temporal)
    assert convert([str(path), str(tmp_path / "ours.ckpt"), *sizes, option, value]) == 0
    model = read_checkpoint(tmp_path / "ours.ckpt").model_config
    assert (model.memory, model.memory_chunk) == memory


def refused(convert, capsys, *argv: object) -> str:
    """The one line that a refused command prints."""
    assert convert([str(part) for part in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_mistakes_get_one_line_and_leave_no_file(convert, official, tmp_path, capsys):
    path, _, sizes = official()
    target = tmp_path / "ours.ckpt"
    assert "there is no such checkpoint" in refused(convert, capsys, tmp_path / "missing.ckpt", target, *sizes)
    assert "s5.ckpt exists already" in refused(convert, capsys, path, path, *sizes)
    (tmp_path / "other.ckpt").write_text("of somebody")
    assert "other.ckpt exists already" in refused(convert, capsys, path, tmp_path / "other.ckpt", *sizes)
    assert (tmp_path / "other.ckpt").read_text() == "of somebody"
    assert "classes, but onempx has" in refused(convert, capsys, path, target, "--dataset", "onempx", *sizes[2:])
    assert "base has 64" in refused(convert, capsys, path, target, *sizes[:2], "--size", "base")
    assert "divisor" in refused(convert, capsys, path, target, *sizes[:2], "--head-dim", 3)

    weights = torch.load(path, weights_only=True)["state_dict"]
    torch.save({"state_dict": {**weights, "mdl.backbone.extra": torch.ones(1)}}, path)
    assert "1 keys unknown, such as backbone.extra" in refused(convert, capsys, path, target, *sizes)
    torch.save({"state_dict": {"model.weight": torch.ones(1)}}, path)
    assert "only RVT and the official SSM release" in refused(convert, capsys, path, target, *sizes)
    torch.save(weights, path)
    assert "no state_dict" in refused(convert, capsys, path, target, *sizes)
    assert not target.exists()


def test_pickled_objects_are_read_only_on_request(convert, official, tmp_path, capsys):
    path, _, sizes = official(hyper_parameters=NotPlain())
    target = tmp_path / "ours.ckpt"
    assert "--trust-pickle" in refused(convert, capsys, path, target, *sizes)
    assert convert([str(path), str(target), *sizes, "--trust-pickle"]) == 0
    assert torch.load(target, weights_only=True)["rvtssm"]["spec"]["name"] == "gen1"


@pytest.mark.parametrize(
    "options", [[], ["--dataset", "gen1"], ["--dataset", "gen1", "--size", "base", "--head-dim", "4"]]
)
def test_sizes_must_be_named_once(convert, options):
    with pytest.raises(SystemExit) as stopped:
        convert(["a.ckpt", "b.ckpt", *options])
    assert stopped.value.code == 2


# trees


TOY = (
    "model=tiny",
    "model.embed_dim=8",
    "model.head_dim=8",
    "model.num_blocks=[1,0,0,0]",
    "model.fpn_blocks=0",
    "sampling.batch_size=2",
    "sampling.chunk_length=2",
    "data.workers=0",
    "data.eval_batch_size=1",
    "data.eval_chunk_length=3",
    "training.steps=1",
    "training.accelerator=cpu",
    "training.pictures=false",
)


@pytest.mark.parametrize(("name", "folder", "hz"), [("gen1", "gen1", "7.999"), ("onempx", "gen4", "20")])
def test_trained_and_scored_as_they_are(golden_dir, tmp_path, name, folder, hz):
    tree = golden_dir / "preprocess" / folder / "official"
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    where = (f"dataset={name}", f"dataset.prepared_dir={tree}")
    assert cli.main(["train", *where, *TOY, f"out={tmp_path / 'run'}"]) == 0
    weights = tmp_path / "moved.ckpt"
    shutil.copy(tmp_path / "run" / "checkpoints" / "best.ckpt", weights)
    arguments = (f"checkpoint={weights}", "data.workers=0", "split=test", "postprocess.min_score=0", "bootstrap=0")
    assert cli.main(["evaluate", *where, *arguments, f"out={tmp_path / 'scores'}"]) == 0
    found = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert found["conditions"]["windows"].startswith(
        "slide, counted from prepared data, convention rvt"
    )  # of one length
    assert set(by_rate(found)) == {hz}  # the median step between labels of the gen1 recording is 125 ms
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
