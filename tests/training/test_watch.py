"""What a run writes for a person to look at: losses, learning rate, gradients, AP, pictures and spectra."""

import csv
import math
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from user_errors import raises

from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.models.detector import count_parameters, parameters_by_room
from rvtssm.records import Detections, Labels, WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS
from rvtssm.training import logs, progress
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.logs import DetectionImages, build_loggers
from rvtssm.training.progress import Progress
from tests.training.test_module import build_module, draw_counts, make_batch

STRIDE_US = 50_000


class Notebook(Logger):
    """A logger of somebody else, with the interface of Lightning's WandbLogger."""

    written: list[tuple[str, object]] = []  # noqa: RUF012

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self.save_dir_ = save_dir

    @property
    def name(self) -> str:
        return "toy"

    @property
    def version(self) -> str:
        return "1"

    def log_hyperparams(self, params, *arguments, **options) -> None:
        pass

    def log_metrics(self, metrics, step=None) -> None:
        self.written += metrics.items()

    def log_image(self, key, images, step=None) -> None:
        self.written.append((key, images[0]))


@pytest.fixture(scope="module")
def watched(toy_config, tmp_path_factory) -> Path:
    """The folder of a run that draws all it can, also in a `Notebook`."""
    out = tmp_path_factory.mktemp("watched")
    words = ("training.steps=3", "training.log_every=2", "training.pictures=true", "optim.clip_value=1e-6")
    train(toy_config(out, *words, f"training.loggers=[tensorboard,{__name__}.Notebook]"))
    return out


def tensorboard(out: Path) -> EventAccumulator:
    return EventAccumulator(str(out / "tensorboard")).Reload()


def test_tensorboard_shows_numbers_and_pictures(watched):
    board = tensorboard(watched)
    losses = {f"train/{name}" for name in ("total", "iou", "objectness", "class", "data_wait")}
    gradients = {f"grad_norm/{room}" for room in ("spatial", "temporal", "neck", "head")}
    stages = {f"spectrum/stride{stride}" for stride in (4, 8, 16, 32)}
    numbers = {f"{stage}_{name}" for stage in stages for name in ("timescale_ms_median", "masked_share")}
    assert losses | gradients | numbers | {"val/AP"} <= set(board.Tags()["scalars"])
    assert any(name.startswith("lr-") for name in board.Tags()["scalars"])
    assert stages | {"val/detections_0"} <= set(board.Tags()["images"])


def test_csv_has_the_same_numbers(watched):
    with open(watched / "csv" / "version_0" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {name: float(row[name]) for row in rows for name in row if row[name]}
    board = tensorboard(watched)
    for name in ("grad_norm/temporal", "spectrum/stride32_frequency_hz_max", "val/AP", "train/total"):
        shown = board.Scalars(name)[-1].value
        assert shown == pytest.approx(found[name], rel=1e-5, nan_ok=True), name
    assert found["grad_norm/head"] > 1e-2, "the norm is that before clipping"


@pytest.mark.parametrize("temporal", TEMPORAL_LAYERS)
def test_the_rooms_are_all_there_is(temporal):
    detector = build_module(temporal).detector
    rooms = parameters_by_room(detector)
    listed = [id(parameter) for parameters in rooms.values() for parameter in parameters]
    assert sorted(listed) == sorted(map(id, detector.parameters()))
    assert count_parameters(detector)["total"] == sum(p.numel() for p in detector.parameters())


def test_gradient_norms_are_euclidean_and_only_where_they_are_logged():
    module = build_module()
    module.training_step(make_batch(draw_counts(2, 1), [0], [True]), 0).backward()
    whole = math.sqrt(sum(float(p.grad.square().sum()) for p in module.detector.parameters() if p.grad is not None))
    module.logged.clear()
    module.trainer = SimpleNamespace(global_step=3, log_every_n_steps=5, precision="32-true")
    module.configure_gradient_clipping(None)
    assert module.logged == {}
    module.trainer.global_step = 4
    module.configure_gradient_clipping(None)
    assert set(module.logged) == {f"grad_norm/{room}" for room in ("spatial", "temporal", "neck", "head")}
    assert math.sqrt(sum(float(norm) ** 2 for norm in module.logged.values())) == pytest.approx(whole, rel=1e-4)


def test_a_spectrum_is_told_in_milliseconds_and_hertz():
    layer = S5SSM(2, TemporalConfig(bandlimit=0.5, clip_real=False))
    with torch.no_grad():
        layer.log_step.zero_()
        layer.Lambda.copy_(torch.tensor([[-0.5, 0.2 * math.pi], [-2.0, 0.8 * math.pi]]))
    summary = logs.summary(layer.spectrum(), STRIDE_US)
    assert summary == pytest.approx(
        {
            "timescale_ms_min": 25.0,
            "timescale_ms_median": 62.5,
            "timescale_ms_max": 100.0,
            "frequency_hz_median": 5.0,  # the mean of 2 and 8 Hz
            "frequency_hz_max": 8.0,
            "masked_share": 0.5,  # above half of the Nyquist rate of 10 Hz
        }
    )


@pytest.mark.parametrize(("name", "bandlimit"), [("s5", 0.5), ("s7", 0.0), ("s4", 0.0)])
def test_every_layer_with_modes_is_drawn(name, bandlimit):
    layer = TEMPORAL_LAYERS[name](8, TemporalConfig(name=name, bandlimit=bandlimit)).ssm
    picture = logs.spectrum_figure(layer.spectrum(), STRIDE_US, "stage 1")
    assert picture.dtype == np.uint8 and picture.shape[2] == 3 and len(np.unique(picture.reshape(-1, 3), axis=0)) > 5


def test_any_logger_of_lightning_takes_numbers_and_pictures(watched, tmp_path, logged):
    rows = {step: row for step, row in logged(watched).items() if "train/total" in row}
    assert list(rows) == [1, 2], "the last step is logged too"
    assert all(float(row["train/total"]) > 0 and float(row["grad_norm/head"]) > 0 for row in rows.values())
    found = dict(sys.modules[__name__].Notebook.written)
    assert found["val/detections_0"].dtype == np.uint8 and "spectrum/stride4" in found and "train/total" in found
    chosen = build_loggers([f"{__name__}.Notebook"], tmp_path)
    assert [type(logger).__name__ for logger in chosen] == ["Notebook", "OneCSV"]


def test_a_row_that_was_cut_does_not_end_the_logs_of_a_run_that_goes_on(tmp_path):
    path = tmp_path / "csv" / "version_0" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"train/total,step\r\n5.0,0\r\n4.0,1\r\n3.")
    (logger,) = build_loggers([], tmp_path, first_step=2)
    logger.log_metrics({"train/total": 2.0}, 2)
    logger.save()
    with open(path, newline="") as file:
        rows = [(row["step"], row["train/total"]) for row in csv.DictReader(file)]
    assert rows == [("0", "5.0"), ("1", "4.0"), ("2", "2.0")]


def draw_validation(is_global_zero: bool, has_labels: bool = True, has_detections: bool = True) -> list[np.ndarray]:
    """The pictures of a validation batch with one frame, in which the detector finds something beside the object."""
    module, batch = build_module(), make_batch(draw_counts(1, 1), [0], [True])
    boxes, one = np.array([[20, 10, 24, 20]], np.float32)[: int(has_labels)], np.zeros(int(has_labels), np.int64)
    found = np.array([[60, 30, 90, 60]], np.float32)[: int(has_detections)]
    score, class_id = np.ones(len(found), np.float32), np.ones(len(found), np.int64)
    module.val_labels = [Labels(boxes, one, one + STRIDE_US, one, one)]
    module.detections = {(0, STRIDE_US): Detections(found, score, class_id, STRIDE_US)}
    module.checkpoint_meta = {"windows": asdict(WindowSettings(STRIDE_US))}
    pictures: list[np.ndarray] = []
    logger = SimpleNamespace(log_image=lambda name, images, step: pictures.extend(images))
    trainer = SimpleNamespace(is_global_zero=is_global_zero, global_step=1, loggers=[logger])
    DetectionImages().on_validation_batch_end(trainer, module, None, batch, 0)
    return pictures


def test_a_picture_shows_the_true_boxes_and_those_that_were_found_and_one_process_draws_it():
    cases = [(True, True), (True, False), (False, True), (False, False)]
    pictures = [picture for case in cases for picture in draw_validation(True, *case)]
    assert len(pictures) == len({picture.tobytes() for picture in pictures}) == 4
    assert draw_validation(is_global_zero=False) == []


class Failing(Notebook):
    """A logger that raises wherever it can."""

    fails_at_start = False

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir)
        if self.fails_at_start:
            raise ConnectionError("there is no network")

    def fail(self, *arguments, **options) -> None:
        raise ConnectionError("there is no network")

    log_metrics = log_image = finalize = log_hyperparams = save = after_save_checkpoint = fail
    experiment = property(fail)


@pytest.mark.parametrize("fails_at_start", [False, True])
def test_a_logger_ends_no_run(toy_config, tmp_path, monkeypatch, logged, fails_at_start):
    monkeypatch.setattr(Failing, "fails_at_start", fails_at_start)
    config = toy_config(
        tmp_path, "training.steps=2", f"training.loggers=[{__name__}.Failing]", "training.pictures=true"
    )
    with pytest.warns(UserWarning) as warned:
        train(config)
    told = [str(warning.message) for warning in warned if "no network" in str(warning.message)]
    assert len(told) == 1 and "Failing has failed" in told[0]
    assert list(logged(tmp_path)) == [0, 1]


class Demanding(Notebook):
    """A logger that needs an argument."""

    def __init__(self, project: str) -> None:
        super().__init__("")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nowhere.at.AllLogger", "setting.choice"),
        (".WandbLogger", "setting.choice"),
        ("lightning.pytorch.loggers.WandLogger", "setting.choice"),
        ("lightning.pytorch.Trainer", "setting.choice"),
        (f"{__name__}.Demanding", "setting.form"),
    ],
)
def test_a_logger_that_cannot_be_had_is_named(tmp_path, name, kind):
    with raises(kind, name):
        build_loggers([name], tmp_path)


@pytest.mark.skipif("wandb" in sys.modules, reason="it is there")
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    with raises("install.extra"):
        build_loggers(["lightning.pytorch.loggers.WandbLogger"], tmp_path)


# the progress line


def test_waiting_is_what_lies_between_batches_and_no_validation(monkeypatch):
    """Over all parts of a run: workers start anew in each, so that its first batch does not count."""
    now, logged = [100.0], []
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    module = SimpleNamespace(log=lambda name, value, batch_size: logged.append((name, value)))

    def batch(shown: Progress, waiting: float, working: float) -> None:
        now[0] += waiting
        shown.on_train_batch_start()
        now[0] += working
        shown.on_train_batch_end(None, module)

    first, second = Progress(), Progress()
    batch(first, waiting=7, working=50)
    assert first.data_wait is None and logged == []
    batch(first, waiting=1, working=3)
    assert logged == [("train/data_wait", 0.25)] and first.data_wait == 0.25
    now[0] += 1000
    first.on_validation_end(SimpleNamespace(callback_metrics={}), None)
    batch(first, waiting=3, working=1)
    second.load_state_dict(first.state_dict())
    batch(second, waiting=60, working=60)
    batch(second, waiting=0, working=8)
    assert second.data_wait == 0.25


def test_a_run_says_how_it_goes_where_no_bar_moves(toy_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0)
    train(toy_config(tmp_path, "training.steps=3"))
    told = capsys.readouterr().out
    assert re.findall(r"^step (\d)/3  ", told, re.MULTILINE) == ["1", "2", "3"]
    assert re.search(r"^step 3/3  \S+ it/s  \S+ left  \d+% data wait  total \S+  iou", told, re.MULTILINE)
    saved = load_file(last_checkpoint(tmp_path))["callbacks"]["Progress"]
    share = saved["waiting_s"] / (saved["waiting_s"] + saved["working_s"])
    (said,) = re.findall(r"([\d.]+)% data wait; weights", told)
    assert float(said) == pytest.approx(100 * share, abs=0.1)
