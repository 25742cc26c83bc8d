"""A backbone, a neck, a head, a temporal layer and a dataset from files outside the package, through every verb."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from live_examples import draw_events, live_checkpoint  # noqa: F401
from scored_rows import by_rate
from user_errors import raises

from rvtssm.cli import main as cli
from rvtssm.datasets import DATASETS
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.models.detector import BACKBONES, HEADS, NECKS
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.extras import import_plugins

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
TOY = (
    "model.embed_dim=8",
    "model.head_dim=8",
    "model.fpn_blocks=0",
    "sampling.batch_size=2",
    "sampling.chunk_length=3",
    "training.steps=2",
    "training.accelerator=cpu",
    "data.workers=0",
)
CHOSEN = {
    "pooling_backbone": "model.backbone=pooling",
    "one_map_neck": "model.neck=one_map",
    "centre_head": "model.head=centre",
    "leaky_layer": "temporal.name=leaky",
    "toy_dataset": "dataset.name=toy",
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """The folder of a few short recordings in the layout that the dataset of the plugin has."""
    folder = tmp_path_factory.mktemp("toy") / "raw"
    size = ("dataset=synthetic", "dataset.height=64", "dataset.width=96", f"dataset.raw_dir={folder}")
    few = ("num_train=1", "num_val=1", "num_test=1", "duration_s=1", "workers=1")
    assert cli.main(["generate", *size, *few]) == 0
    return folder


@pytest.fixture(autouse=True)
def other_tests_see_no_plugin(monkeypatch):
    """Restore the tables and the path of imports afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    tables = (BACKBONES, NECKS, HEADS, TEMPORAL_LAYERS, DATASETS)
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for path in FILES:
        sys.modules.pop(path.stem, None)


def test_parts_from_outside_train_evaluate_stream_and_are_exported(raw, tmp_path):
    pytest.importorskip("onnxscript")
    plugins = f"plugins=[{','.join(map(str, FILES))}]"
    data = (CHOSEN["toy_dataset"], f"dataset.raw_dir={raw}")
    assert cli.main(["train", plugins, *data, *TOY, *CHOSEN.values(), f"out={tmp_path / 'run'}"]) == 0
    weights = f"checkpoint={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}"
    detector = read_checkpoint(weights.partition("=")[2]).detector
    classes = {type(part).__name__ for part in detector.modules()}
    assert classes >= {"PoolingBackbone", "OneMapNeck", "CentreHead", "LeakyLayer"}
    where = (plugins, weights, "data.workers=0", *data, f"out={tmp_path / 'scores'}")
    assert cli.main(["evaluate", *where, "hz=[20,40]"]) == 0
    assert set(by_rate(json.loads((tmp_path / "scores" / "evaluation.json").read_text()))) == {"20", "40"}
    assert cli.main(["export", plugins, weights, f"out={tmp_path / 'model.onnx'}"]) == 0
    (recording,) = (raw / "test").glob("*.dat")
    found = []
    for model in (weights, f"checkpoint={tmp_path / 'model.onnx'}"):
        out = tmp_path / f"out{len(found)}"
        options = ("formats=[jsonl]", "postprocess.max_detections=20", f"recording={recording}", f"out={out}")
        assert cli.main(["predict", plugins, model, *options]) == 0
        lines = [json.loads(line) for line in (out / "detections.jsonl").read_text().splitlines()]
        found.append([box["score"] for line in lines for box in line["detections"]])
    assert found[0] and found[0] == pytest.approx(found[1], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("json.py", "another module is named json"),
        ("time.py", "another module is named time"),  # which has no file
        ("my.part.py", ".*name a Python file, such as my_part.py"),
        ("part.txt", ".*name a Python file, such as my_part.py"),
    ],
)
def test_a_file_that_cannot_be_imported_by_its_name_is_refused(name, answer, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=rf"plugins=\[.*{name}\]: {answer}"):
        cli.compose([f"plugins=[{tmp_path / name}]"])


def test_a_part_of_a_file_that_is_not_imported_is_told_for_the_command_line_and_for_python():
    with raises("setting.no_such_part"):
        build_temporal_layer(TemporalConfig(name="elsewhere"), 4)


def test_weights_of_a_part_that_is_not_imported_ask_for_its_file(live_checkpoint, tmp_path):  # noqa: F811
    import_plugins([str(HERE / "leaky_layer.py")])
    usual = live_checkpoint(num_blocks=(0, 0, 0, 1))
    meta = replace(usual, temporal_config=TemporalConfig(name="leaky"))
    write_checkpoint(tmp_path / "leaky.ckpt", meta.build(), meta)
    del TEMPORAL_LAYERS["leaky"]
    with raises("setting.no_such_part", "plugins=[FILE]"):
        read_checkpoint(tmp_path / "leaky.ckpt")


def test_a_layer_says_what_it_does_not_define():
    from leaky_layer import LeakyLayer

    layer = LeakyLayer(4)
    with raises("layer.lacks"):
        layer.kernel(3)
    with raises("layer.lacks"):
        layer.h2_norm()
    assert layer.spectrum() == "LeakyLayer has no spectrum()"


WITH_OPTIONS = """
from dataclasses import dataclass

from leaky_layer import LeakyLayer
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS


@dataclass(frozen=True)
class SlowOptions:
    slowest: float = -3.0


class SlowLayer(LeakyLayer):
    name = "slow"
    options = SlowOptions

    def __init__(self, dim, config=None):
        super().__init__(dim, config)
        self.log_rate.data.clamp_(min=config.options_of(SlowOptions).slowest)


TEMPORAL_LAYERS["slow"] = SlowLayer
"""


def test_settings_of_a_layer_of_its_own_are_checked_shown_and_kept(tmp_path, monkeypatch, printed_by):
    monkeypatch.syspath_prepend(HERE)
    (tmp_path / "slow_layer.py").write_text(WITH_OPTIONS)
    plugin = f"plugins=[{tmp_path / 'slow_layer.py'}]"
    assert "    slowest: -1\n" in printed_by(
        "train", plugin, "temporal.name=slow", "temporal.options.slowest=-1", "--config"
    )
    config = TemporalConfig(name="slow", options={"slowest": -1.5})
    layer = build_temporal_layer(config, 8)
    assert float(layer.log_rate.detach().min()) == -1.5
    meta = CheckpointMeta(DATASETS["gen1"], ModelConfig(), config, WindowSettings())
    assert CheckpointMeta.from_dict(meta.to_dict()).temporal_config == config
    for options, kind in (({"slow": 1}, "setting.unknown"), ({"slowest": "much"}, "setting.form")):
        with raises(kind, f"temporal.options.{next(iter(options))}"):
            build_temporal_layer(TemporalConfig(name="slow", options=options), 8)
    with raises("setting.unknown", "temporal.options.slowest"):
        build_temporal_layer(TemporalConfig(options={"slowest": 1}), 8)
