"""Trees that RVT prepared are trained and evaluated on as they are."""

import json
import shutil

import pytest

from rvtssm.cli import main as cli

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


@pytest.mark.golden
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
    assert found["settings"]["windows"].startswith("slide, counted from prepared data, convention rvt")  # of one length
    assert set(found["rates"]) == {hz}  # the median step between labels of the gen1 recording is 125 ms
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
