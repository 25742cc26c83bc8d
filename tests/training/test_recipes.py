"""Recipes are those of the paper, and train on generated recordings in the layout in which their data are published.

Chunks are short, the detector has few channels and a plain neck, and most frames are small; all else is the recipe's
own.
"""

import functools
import math
import re
from pathlib import Path

import pytest
from dsec_examples import write_sequence
from event_examples import boxes_of, random_events, write_hdf5, write_labelled

from benchmarks import roofline
from benchmarks.roofline import counted_as, page_table, recipes
from rvtssm.cli.composition import compose
from rvtssm.cli.config import Config
from rvtssm.cli.main import main
from rvtssm.events.labels import write_boxes
from rvtssm.models.checkpoint import load_file
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.optim import build_optimizer, peak_learning_rate
from rvtssm.training.preflight import check

ROOT = Path(__file__).parents[2]
SMALL = (
    *("model.embed_dim=8", "model.head_dim=4", "model.fpn_blocks=0", "temporal.state_size=null"),
    "sampling.chunk_length=2",
    *("training.devices=1", "training.accelerator=cpu", "training.pictures=false", "data.workers=0"),
    *("data.eval_batch_size=1", "data.eval_chunk_length=4", "training.steps=1"),
)
END_US = 600_000
SMALL_HW = (96, 128)
SPLITS = ("train", "val")

# the rows that have a published number, on both datasets and on Gen1 only, and recipes with parts of other papers
ROWS = {
    *("lstm_base", "lstm_small", "s4d_base", "s5_base", "s5_base_h2", "s5_convnext_base", "s5_small", "s5_ssm2d_base")
}
GEN1_ROWS = {
    *("s4_base", "s4d_base_alpha0", "s4d_base_alpha1", "s4d_base_h2"),
    *("s5_base_alpha0", "s5_base_alpha1", "s5_small_h2"),
}
OURS = {"s5_rtdetr_base", "s5_timm_resnet18"}
# they have every part that a recipe has: the others differ in numbers, or have the detectors of Gen1 on frames of 1Mpx
TRAINED = (
    *("gen1_lstm_small", "gen1_s4_base", "gen1_s4d_base_h2", "gen1_s5_convnext_base"),
    *("gen1_s5_ssm2d_base", "gen1_s5_rtdetr_base", "gen1_s5_timm_resnet18", "onempx_s5_base"),
)
OWN_FRAMES = "onempx_s5_base"  # the others are trained on smaller ones
recipe = functools.cache(lambda name: compose([f"experiment={name}"]))


def parts_of(config: Config) -> set[tuple[str, object]]:
    model = config.model
    return {
        *(("dataset", config.dataset.name), ("layer", config.temporal.name), ("mixer", model.mixer)),
        *(("head", model.head), ("backbone", model.timm_name), ("h2", bool(config.optim.h2_weight))),
    }


def test_the_rows_of_the_paper_are_there():
    rows = {"gen1": ROWS | GEN1_ROWS | OURS, "onempx": ROWS | OURS}
    assert {*recipes()} == {f"{dataset}_{row}" for dataset in rows for row in rows[dataset]}


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_is_what_its_name_says(name):
    config = recipe(name)
    check(config)
    dataset, layer, *rest = name.split("_")
    assert (config.dataset.name, config.temporal.name) == (dataset, layer)
    if "timm" in rest:  # its sizes are those of the timm model
        assert (config.model.backbone, config.model.timm_name) == ("timm", rest[-1])
    else:
        assert config.model.backbone == "rvt" and config.model.size in rest
    assert config.training.steps == 400_000
    assert config.model.mixer == next((mixer for mixer in ("convnext", "ssm2d") if mixer in rest), "attention")
    assert config.model.head == ("rtdetr" if "rtdetr" in rest else "yolox")
    limit = {"alpha0": 0, "alpha1": 1, "h2": 0}.get(rest[-1], 0.5 if layer in ("s5", "s4d") else 0)
    assert config.temporal.bandlimit == limit
    assert bool(config.optim.h2_weight) == (rest[-1] == "h2")
    # the rule of the paper: 2e-4 for a batch of 8, and the square root of the batch
    total = config.sampling.total_batch
    assert total == config.sampling.num_chunks * config.training.devices * config.training.num_nodes
    assert peak_learning_rate(config.optim, total) == pytest.approx(2e-4 * math.sqrt(total / 8))


def test_the_recipes_that_are_trained_have_the_parts_of_all():
    trained_parts = set().union(*(parts_of(recipe(name)) for name in TRAINED))
    assert all(parts_of(recipe(name)) <= trained_parts for name in recipes())


def boxes(height: int, width: int, **fields):
    """A box that is large enough to be scored, at times that are labelled in Gen1 and, thinned, in 1Mpx."""
    size = (width // 4, height // 4)
    return boxes_of(*((time, width // 3, height // 3, *size) for time in (250_000, 500_000, END_US - 1)), **fields)


def write_small(folder: Path) -> None:
    """`a_td.dat` and `a_bbox.npy`, as Prophesee publishes Gen1, of a smaller sensor."""
    for split in SPLITS:
        events = random_events(5000, 0, END_US, size_hw=SMALL_HW)
        write_labelled(folder / split, "a", events, boxes(*SMALL_HW), SMALL_HW)


def write_onempx(folder: Path) -> None:
    """`a_td.h5` with columns and size in the group `events`, and `a_bbox.npy` with seven classes."""
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        events = random_events(5000, 0, END_US, size_hw=(720, 1280))
        write_hdf5(folder / split / "a_td.h5", events, size=(720, 1280))
        write_boxes(folder / split / "a_bbox.npy", boxes(720, 1280, class_id=2))


def write_dsec(folder: Path) -> None:
    """One sequence of each split, as DSEC and DSEC-Det publish them."""
    for name in ("thun_00_a", "zurich_city_16_a"):
        write_sequence(folder / "train" / name, num_images=6, has_images=False)


@pytest.fixture(scope="session")
def layouts(made_once):
    """A function: the name of a layout -> the words that name its folder."""
    writers = {"small": write_small, "onempx": write_onempx, "dsec": write_dsec}

    def words(name: str) -> list[str]:
        size = [f"dataset.height={SMALL_HW[0]}", f"dataset.width={SMALL_HW[1]}"] if name == "small" else []
        return [f"dataset.raw_dir={made_once(f'layout_{name}', writers[name])}", *size]

    return words


def trained(out: Path, *words: str) -> dict:
    assert main(["train", *words, *SMALL, f"out={out}"]) == 0
    return load_file(last_checkpoint(out))


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_runs_on_its_data(name, layouts, tmp_path, capsys):
    config = recipe(name)
    words = [f"experiment={name}", *layouts("onempx" if name == OWN_FRAMES else "small")]
    if config.training.precision == "float16":  # which CPUs do not have
        words.append("training.precision=bf16")
    if config.model.timm_name:
        words += ["model.timm_name=test_resnet", "model.timm_weights=null"]
    state = trained(tmp_path, *words, "sampling.batch_size=2", "sampling.total_batch=4")
    assert (state["global_step"], state["decisive"]["training.accumulate"]) == (1, 2)
    assert "of 4 x 2 windows (2 accumulated batches x 2)" in " ".join(capsys.readouterr().out.split())
    for key in ("temporal.bandlimit", "temporal.name", "optim.h2_weight", "model.mixer", "model.head"):
        section, field = key.split(".")
        assert state["decisive"][key] == getattr(getattr(config, section), field)
    detector = CheckpointMeta.from_dict(state["rvtssm"]).build()
    optimizer, _ = build_optimizer(detector, config.optim, 1, 4)
    optimizer.load_state_dict(state["optimizer_states"][0])
    learned = {id(weight) for weight, averages in optimizer.state.items() if averages["exp_avg"].any()}
    parts = {"backbone": detector.backbone, "neck": detector.neck, "head": detector.head}
    parts |= {f"memory at {stride}": layer for stride, layer in detector.backbone.temporal_layers().items()}
    assert [part for part, module in parts.items() if not learned & {*map(id, module.parameters())}] == []


def test_dsec_runs_with_the_settings_of_the_paper(layouts, tmp_path):
    words = ("dataset=dsec", "model=base", "temporal=s5", "temporal.bandlimit=0.5", "sampling.batch_size=2")
    state = trained(tmp_path, *words, *layouts("dsec"))
    assert state["global_step"] == 1 and len(state["rvtssm"]["spec"]["class_names"]) == 8


def test_the_page_has_a_row_per_recipe_and_the_settings_of_all(monkeypatch):
    """`python -m benchmarks.roofline --page` prints both tables. Its estimates are counted, and not checked here."""
    monkeypatch.setattr(roofline, "compose", lambda words: recipe(words[0].removeprefix("experiment=")))
    page = (ROOT / "docs/training.md").read_text()
    counts = {"precision": "bf16", "products": 1, "bytes_moved": 1, "bytes_peak": 1}
    rows = [{"recipe": counted_as(name), **counts} for name in recipes()]
    settings, costs = page_table(rows).split("\n\n")
    assert settings in page
    for row in costs.splitlines()[2:]:
        name, _, _, *published = row.split(" | ")
        pattern = " | ".join([name, "ESTIMATE", "ESTIMATE", *published])
        assert re.search(re.escape(pattern).replace("ESTIMATE", r"[\d.]+"), page), row
