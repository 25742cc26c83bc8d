"""Every recipe composes, and its detector takes a training and an evaluation step at toy size."""

import functools
import re
from dataclasses import replace

import pytest
import torch

from rvtssm.cli.config import Config, configs_dir
from rvtssm.cli.main import compose
from rvtssm.datasets import DATASETS
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.detection.stream import stream
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.training.checks import check
from rvtssm.training.module import DetectionModule, ModuleSettings
from rvtssm.training.optim import build_optimizer

FILES = sorted((configs_dir() / "experiment").glob("*.yaml"))
RECIPES = [path for path in FILES if path.stem.split("_")[0] in ("gen1", "onempx") and "check" not in path.stem]
# with a part that the paper does not have, a head or a backbone
OURS = [path for path in RECIPES if {"rtdetr", "timm"} & set(path.stem.split("_"))]
# the rows that have a published number, on both datasets and on Gen1 only
ROWS = {
    *("lstm_base", "lstm_small", "s4d_base", "s5_base", "s5_base_h2", "s5_convnext_base", "s5_small", "s5_ssm2d_base")
}
GEN1_ROWS = {
    *("s4_base", "s4d_base_alpha0", "s4d_base_alpha1", "s4d_base_h2"),
    *("s5_base_alpha0", "s5_base_alpha1", "s5_small_h2"),
}
recipe = functools.cache(lambda name: compose([f"experiment={name}"], "study"))
# one of the recipes of 1Mpx, which have the detectors of those of Gen1, and none that differ in one number
TRAINED = [path.stem for path in FILES if not re.search("^onempx|alpha|worlds", path.stem)]
TRAINED.append("onempx_s5_base")


def test_the_rows_of_the_paper_are_there():
    rows = {"gen1": ROWS | GEN1_ROWS, "onempx": ROWS}
    names = {path.stem for path in RECIPES if path not in OURS}
    assert names == {f"{dataset}_{row}" for dataset in rows for row in rows[dataset]}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_what_its_name_says(path):
    config = recipe(path.stem)
    check(config)
    dataset, layer, *rest = path.stem.split("_")
    assert (config.dataset.name, config.temporal.name) == (dataset, layer)
    assert config.model.size in rest and config.training.steps == 400_000
    assert config.model.mixer == next((mixer for mixer in ("convnext", "ssm2d") if mixer in rest), "attention")
    assert config.model.head == ("rtdetr" if "rtdetr" in rest else "yolox")
    limit = {"alpha0": 0, "alpha1": 1, "h2": 0}.get(rest[-1], 0.5 if layer in ("s5", "s4d") else 0)
    assert config.temporal.bandlimit == limit
    assert bool(config.optim.h2_weight) == (rest[-1] == "h2")


@functools.cache
def batches(dataset: str, folders: tuple[str, ...]):
    """The data of a recipe at toy size, a training batch and an evaluation batch; small boxes count as well."""
    overrides = [f"dataset={dataset}", "dataset.height=64", "dataset.width=96", "dataset.source=raw", *folders]
    few = ["sampling.batch_size=2", "sampling.chunk_length=3", "data.workers=0", "data.eval_chunk_length=4"]
    config = compose([*overrides, *few])
    with pytest.MonkeyPatch.context() as patch:
        spec = replace(DATASETS[dataset], prepare_min_side_px=4, prepare_min_diagonal_px=8)
        patch.setitem(DATASETS, dataset, spec)
        data = SequenceDataModule(config.dataset, config.sampling, config.augment, config.data)
    batch = next(batch for batch in data.train_dataloader() if len(batch.frame_index))
    evaluated = next(iter(data.val_dataloader()))
    return data, batch, evaluated


def at_toy_size(config: Config) -> Config:
    model = replace(config.model, embed_dim=8, head_dim=4, timm_name=config.model.timm_name and "test_resnet")
    return replace(config, model=model, temporal=replace(config.temporal, state_size=None))


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains_and_evaluates(name, toy_data):
    config = at_toy_size(recipe(name))
    folders = tuple(word for word in toy_data if word.startswith("dataset.raw_dir"))
    data, batch, evaluated = batches(config.dataset.name, folders)
    torch.manual_seed(0)
    detector = CheckpointMeta(data.spec, config.model, config.temporal, data.settings).build()
    stride_us = data.settings.stride_us
    settings = ModuleSettings(data.spec, stride_us, config.optim, memory_chunk=config.model.memory_chunk)
    module = DetectionModule(detector, settings, {}, {}, [])
    optimizer, schedule = build_optimizer(detector, config.optim, 10, 2)
    before = {key: value.clone() for key, value in detector.named_parameters()}
    with torch.autocast("cpu", torch.bfloat16, enabled=config.training.precision in ("bf16", "float16")):
        loss = module.losses_of(batch)["total"]
    loss.backward()
    optimizer.step()
    schedule.step()
    assert torch.isfinite(loss)
    learned = {
        id(value)
        for key, value in detector.named_parameters()
        if value.grad is not None and value.grad.any() and not torch.equal(value, before[key])
    }
    parts = {"backbone": detector.backbone, "neck": detector.neck, "head": detector.head}
    parts |= {f"memory at {stride}": layer for stride, layer in detector.backbone.temporal_layers().items()}
    assert [name for name, part in parts.items() if not learned & {id(value) for value in part.parameters()}] == []
    found = stream(detector, [evaluated], trained_stride_us=stride_us, config=config.postprocess)
    assert sum(map(len, found.values())) == len(evaluated.frame_index) > 0
