"""Training in chunks with stored states is training on whole recordings, cut only where the gradient is."""

from dataclasses import replace

import event_examples
import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.boxes import xyxy_to_ltwh
from rvtssm.cli.train import train
from rvtssm.datasets.store import open_sequence
from rvtssm.datasets.store_writer import sequence_writer
from rvtssm.events.labels import BOX_DTYPE, read_boxes, to_labels, write_boxes
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import load_file, save_file
from rvtssm.models.detector import BACKBONES, NECKS, build_detector, head_class, heads
from rvtssm.models.postprocess import postprocess
from rvtssm.models.streams import map_state
from rvtssm.models.yolox import YoloxPredictions
from rvtssm.records import Detections, Labels, SequenceBatch, Windows
from rvtssm.ssm import TemporalConfig
from rvtssm.training import TrainingConfig, module
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.module import DetectionModule, ModuleSettings

HEIGHT, WIDTH, STRIDE_US = 64, 96, 50_000
SPEC = replace(event_examples.SPEC, height=HEIGHT, width=WIDTH, label_interval_us=STRIDE_US, skip_us=0)


def build_module(
    temporal: str = "s5", memory_chunk: int | None = None, hw=(HEIGHT, WIDTH), **memory
) -> DetectionModule:
    """A module of a small detector whose memory lasts, and whose losses are kept in `module.logged`."""
    torch.manual_seed(0)
    model = ModelConfig(size="custom", embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0, layer_scale=1.0)
    layer = TemporalConfig(name=temporal, dt_min=0.2, dt_max=1.0, bandlimit=0.0, **memory)
    height, width = hw
    detector = build_detector(model, layer, height, width, 2)
    for name, parameter in detector.head.named_parameters():
        if name.endswith(("class_out.bias", "objectness_out.bias")):  # as sure as after some training
            torch.nn.init.zeros_(parameter)
    settings = ModuleSettings(SPEC, STRIDE_US, batch_size=2, memory_chunk=memory_chunk)
    module = DetectionModule(detector, settings, {}, {}, [])
    # the statistics of a batch depend on what else is in it
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    module.logged = {}
    module.log_dict = lambda values, **options: module.logged.update(values)
    return module


def draw_counts(num_steps: int, num_streams: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_streams, 20, HEIGHT, WIDTH)
    return torch.randint(0, 11, shape, generator=generator, dtype=torch.uint8)


def make_batch(hist, slots, is_first, frames=None, dt_us: int = STRIDE_US) -> SequenceBatch:
    """A batch of hist (L, B, ...) with one box at every frame of `frames`, by default at every step and stream."""
    num_steps, num_streams = hist.shape[:2]
    if frames is None:
        frames = [(step, stream) for step in range(num_steps) for stream in range(num_streams)]
    targets = torch.zeros(len(frames), 1, 5)
    targets[:, 0] = torch.tensor([1.0, 40.0, 30.0, 24.0, 20.0])
    return SequenceBatch(
        hist=hist,
        dt_us=torch.full((num_steps, num_streams), dt_us),
        is_first=torch.tensor(is_first),
        is_pad=torch.zeros(num_steps, num_streams, dtype=torch.bool),
        frame_index=torch.tensor(frames, dtype=torch.int64).reshape(-1, 2),
        targets=targets,
        num_targets=torch.ones(len(frames), dtype=torch.int64),
        t_us=torch.tensor([(step + 1) * dt_us for step, _ in frames], dtype=torch.int64),
        slot=torch.tensor(slots),
        recording=torch.tensor(slots),
    )


@pytest.mark.parametrize("temporal", ["s4d", "s5", "s7", "lstm"])
def test_chunks_in_a_row_are_the_whole_recording(temporal):
    module, hist = build_module(temporal), draw_counts(7, 2)
    (whole,), _ = module.detector(hist)
    whole = whole.unflatten(0, (7, 2))
    cuts = [(0, 3), (3, 4), (4, 7)]
    for start, stop in cuts:
        batch = make_batch(hist[start:stop], [0, 1], [start == 0] * 2)
        loss = module.training_step(batch, 0)
        answers = whole[start:stop].flatten(0, 1)
        expected = module.detector.head.loss(YoloxPredictions(answers), batch.targets, batch.num_targets)
        torch.testing.assert_close(loss, expected["total"], rtol=1e-5, atol=1e-5)
        assert {f"train/{name}" for name in expected} == module.logged.keys()
    (fresh,), _ = module.detector(hist[4:])
    assert not torch.allclose(fresh, whole[4:].flatten(0, 1), rtol=1e-3)  # what came before matters


def test_a_model_that_forgets_by_the_chunk_is_trained_so():
    module, hist = build_module(memory_chunk=3), draw_counts(6, 2)
    for start in (0, 3):
        batch = make_batch(hist[start : start + 3], [0, 1], [start == 0] * 2)
        (found,) = module.train_streams.push_batch(batch)
        torch.testing.assert_close(found, module.detector(batch.hist)[0].rows, rtol=1e-5, atol=1e-4)
    whole = module.train_streams.push_batch(make_batch(hist, [0, 1], [True, True])).rows.unflatten(0, (6, 2))
    torch.testing.assert_close(whole[3:].flatten(0, 1), found, rtol=1e-5, atol=1e-4)


def test_one_frame_of_one_position_trains_without_statistics_of_its_own():
    """Such a batch has no variance, so it is normed by the statistics so far; the next batch has its own again."""
    module = build_module(hw=(32, 32))
    module.train()
    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    hist = draw_counts(2, 1)[..., :32, :32]
    alone = module.training_step(make_batch(hist[:1], [-1], [True]), 0)
    alone.backward()
    assert alone.isfinite() and not any(norm.num_batches_tracked for norm in norms)
    module.training_step(make_batch(hist, [-1], [True]), 0)
    assert all(norm.training and norm.num_batches_tracked for norm in norms)


@pytest.mark.parametrize("factor", [0.1, 0.5])
def test_the_step_is_the_one_of_the_data(factor):
    module, hist = build_module(), draw_counts(4, 2)
    batch = make_batch(hist, [0, 1], [True, True], dt_us=round(factor * STRIDE_US))
    (found,) = module.train_streams.push_batch(batch)
    torch.testing.assert_close(found, module.detector(hist, None, factor)[0].rows, rtol=1e-5, atol=1e-4)
    assert not torch.allclose(found, module.detector(hist)[0].rows, rtol=1e-3)


PARTS = [{"backbone": "timm", "timm_name": name} for name in ("test_resnet", "test_efficientnet", "test_convnext")]
PARTS += [{"backbone": name} for name in BACKBONES if name != "timm"]
PARTS += [{"neck": name} for name in NECKS] + [{"head": name} for name in heads()]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_padding_is_not_data(parts):
    """What stands after the end of a shorter recording changes no loss, no gradient and no batch statistics."""
    hist, is_pad = draw_counts(4, 2), torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1]], dtype=torch.bool)
    found = []
    for padding in (0, 10):
        hist[is_pad] = padding
        torch.manual_seed(0)
        config = ModelConfig(size="custom", embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0, **parts)
        detector = build_detector(config, TemporalConfig(), HEIGHT, WIDTH, 2)
        module = DetectionModule(detector, ModuleSettings(SPEC, STRIDE_US, batch_size=2), {}, {}, [])
        batch = make_batch(hist, [0, 1], [True, True], [(0, 0), (1, 1), (3, 0)])
        module.losses_of(replace(batch, is_pad=is_pad))["total"].backward()
        gradients = {name: p.grad for name, p in detector.named_parameters() if p.grad is not None}
        found.append({**gradients, **dict(detector.named_buffers())})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_a_batch_without_labels_moves_the_streams_and_nothing_else():
    module, hist = build_module(), draw_counts(6, 2)
    whole = module.detector(hist)[0].rows.unflatten(0, (6, 2))
    loss = module.training_step(make_batch(hist[:4], [0, 1], [True, True], frames=[]), 0)
    assert loss == 0 and module.logged == {}
    loss.backward()
    # processes that train together wait for the gradient of every parameter
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters())
    (found,) = module.train_streams.push_batch(make_batch(hist[4:], [0, 1], [False, False]))
    torch.testing.assert_close(found.unflatten(0, (2, 2)), whole[4:], rtol=1e-5, atol=1e-4)


def test_a_process_goes_on_with_its_own_streams_and_random_numbers(tmp_path):
    """The first one of the second node: number 0 there, number 1 of all."""
    module = build_module()
    states = [map_state(lambda leaf, v=v: leaf + v, module.detector.init_state(1)) for v in (0, 1)]
    randoms = [torch.Generator().manual_seed(seed).get_state() for seed in (0, 1)]
    stored = [{"steps": {0: 1}, "state": state} for state in states]
    parts = [{"streams": streams, "random": random} for streams, random in zip(stored, randoms, strict=True)]
    place = {"world_size": 2, "global_rank": 1, "local_rank": 0, "ckpt_path": tmp_path / "last.ckpt"}
    module.trainer = type("Second", (), place)()
    module.decisive = {"training.steps": 8, "optim.learning_rate": 1e-3}
    checkpoint = {"decisive": module.decisive, "global_step": 3, "extended_at": [], "train_seconds": 60.0}
    checkpoint["optimizer_states"] = []
    checkpoint["processes"] = [parts[0], "step_3_process_1.pt"]
    with raises("file.missing", "step_3_process_1.pt"):
        module.on_load_checkpoint(checkpoint)
    save_file(tmp_path / "step_3_process_1.pt", parts[1])
    module.on_load_checkpoint(checkpoint)
    assert module.train_seconds == 60 and torch.equal(module.random_state, randoms[1])
    resumed = module.train_streams.states()
    assert resumed["steps"] == {0: 1}
    for found, wanted in zip(resumed["state"], states[1], strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("temporal", ["s4d", "s5", "lstm"])
def test_stages_that_forget_leave_no_process_waiting_for_a_gradient(temporal):
    module, hist = build_module(temporal, strides=(8, 32), discretization="dirac"), draw_counts(2, 2)
    batch = make_batch(hist, [0, 1], [True, True])
    loss = module.training_step(batch, 0)
    loss.backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    wanted = module.detector.head.loss(module.detector(hist)[0], batch.targets, batch.num_targets)
    torch.testing.assert_close(loss, wanted["total"], rtol=1e-5, atol=1e-5)


def test_with_statistics_over_all_processes_none_leaves_the_others_waiting():
    module, hist = build_module(), draw_counts(4, 2)
    module.detector = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module.detector)
    norms = [part for part in module.modules() if isinstance(part, torch.nn.SyncBatchNorm)]
    calls = []
    for norm in norms:
        norm.eval()
        norm.register_forward_hook(lambda *_: calls.append(1))
    loss = module.training_step(make_batch(hist, [0, 1], [True, True], frames=[]), 0)
    loss.backward()
    assert loss == 0 and len(calls) == len(norms) > 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters())


def test_frozen_statistics_stay_frozen():
    module = build_module()
    module.settings = replace(module.settings, training=TrainingConfig(freeze_batchnorm=True))
    for mode in (False, True):
        module.train(mode)
        norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        assert norms and not any(norm.training for norm in norms)
        assert module.detector.backbone.training == mode
    module.settings = replace(module.settings, training=TrainingConfig())
    module.train()
    assert all(norm.training for norm in norms)


def validate(module: DetectionModule, batches: list[SequenceBatch]) -> dict[str, float]:
    module.logged.clear()
    module.trainer = type("OneProcess", (), {"world_size": 1})()
    module.eval()
    module.on_validation_epoch_start()
    with torch.no_grad():
        for index, batch in enumerate(batches):
            module.validation_step(batch, index)
    module.on_validation_epoch_end()
    assert not module.val_streams.states()["steps"]
    return dict(module.logged)


def test_the_score_does_not_depend_on_which_process_comes_first():
    """Equal scores are ranked by their place, and batches of all processes come in any order."""
    box, elsewhere = np.array([[10, 10, 30, 30]], np.float32), np.array([[50, 10, 90, 50]], np.float32)
    one = np.zeros(1, np.int64)
    labels = Labels(xyxy_to_ltwh(box), one, one + STRIDE_US, one, one - 1)
    right, wrong = (Detections(xyxy, np.float32([0.5]), one, STRIDE_US) for xyxy in (box, elsewhere))
    found, scores = {(0, STRIDE_US): right, (1, STRIDE_US): wrong}, []
    for keys in (found, reversed(found)):
        module = build_module()
        module.val_labels = [labels, labels]
        module.trainer = type("OneProcess", (), {"world_size": 1})()
        module.detections = {key: found[key] for key in keys}
        module.on_validation_epoch_end()
        scores.append(module.logged["val/AP"])
    assert scores[0] == scores[1] == pytest.approx(51 / 101)  # recall 0.5 at precision 1


def labels_near(module: DetectionModule, hist: torch.Tensor) -> list[Labels]:
    """For each recording, at each step, a box close to the tenth that the module finds there."""
    num_steps, num_streams = hist.shape[:2]
    frames = postprocess(module.eval().detector(hist)[0].rows.detach(), [0] * num_steps * num_streams)
    steps = np.arange(num_steps, dtype=np.int64)
    return [
        Labels(
            xyxy_to_ltwh(np.stack([frame.xyxy[10] for frame in frames[stream::num_streams]])) + np.float32(1),
            np.array([frame.class_id[10] for frame in frames[stream::num_streams]]),
            STRIDE_US * (steps + 1),
            steps,
            np.full(num_steps, -1, np.int64),
        )
        for stream in range(num_streams)
    ]


def test_validation_does_not_depend_on_how_recordings_are_cut():
    module, hist = build_module(), draw_counts(6, 2)
    module.val_labels = labels_near(module, hist)
    whole = validate(module, [make_batch(hist, [0, 1], [True, True])])
    found = {key: frame.xyxy for key, frame in module.detections.items()}
    assert set(found) == {(recording, STRIDE_US * step) for recording in (0, 1) for step in range(1, 7)}
    assert 0 < whole["val/AP"] < 1

    late = [make_batch(hist[start : start + 2], [0, 1], [start == 0] * 2) for start in (0, 2, 4)]
    late = [replace(batch, t_us=batch.t_us + 2 * i * STRIDE_US) for i, batch in enumerate(late)]
    cut = validate(module, late)
    assert cut == pytest.approx(whole, rel=1e-4, nan_ok=True)
    for key, boxes in found.items():
        np.testing.assert_allclose(module.detections[key].xyxy, boxes, rtol=1e-3, atol=1e-2)


def test_validation_starts_anew_and_leaves_training_alone():
    module, hist = build_module(), draw_counts(6, 2)
    module.val_labels = labels_near(module, hist)
    whole = module.detector(hist)[0].rows.unflatten(0, (6, 2))
    module.train_streams.push_batch(make_batch(hist[:4], [0, 1], [True, True]))
    batches = [make_batch(draw_counts(6, 2, seed=1), [0, 1], [True, True])]
    assert validate(module, batches) == pytest.approx(validate(module, batches), nan_ok=True)
    (found,) = module.train_streams.push_batch(make_batch(hist[4:], [0, 1], [False, False]))
    torch.testing.assert_close(found.unflatten(0, (2, 2)), whole[4:], rtol=1e-5, atol=1e-4)


def test_without_any_label_there_is_no_metric():
    module = build_module()
    assert validate(module, [make_batch(draw_counts(2, 1), [0], [True], frames=[])]) == {}


def test_a_model_that_forgets_needs_no_chunks_of_its_memory(toy_config, tmp_path):
    train(toy_config(tmp_path, "training.steps=1", "model.memory=chunk", "model.memory_chunk=3"))
    assert load_file(last_checkpoint(tmp_path))["rvtssm"]["model"]["memory_chunk"] == 3


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float16", "bf16"])
def test_lower_precision_trains_on_a_gpu(toy_config, tmp_path, precision, logged):
    settings = ("training.steps=2", "training.accelerator=gpu", f"training.precision={precision}")
    train(toy_config(tmp_path, *settings))
    assert all(np.isfinite(float(row["train/total"])) for row in logged(tmp_path).values())


# labels of a detector


OPTIONS = {"rtdetr": {"queries": 20, "denoising": 4}}
CHANNELS = {8: 8, 16: 16, 32: 32}
TARGETS = torch.tensor([[[1.0, 30, 20, 24, 16], [0, 70, 40, 30, 30]], [[0, 50, 32, 40, 20], [0, 0, 0, 0, 0]]])
NUM_TARGETS = torch.tensor([2, 1])
ONES = torch.tensor([[1.0, 1.0], [1.0, 0.0]])


def losses_of(name, weights=None):
    torch.manual_seed(0)
    config = ModelConfig(head=name, head_options=OPTIONS.get(name, {}))
    head = head_class(config)(config, CHANNELS, 2, (64, 96))
    maps = {s: torch.randn(2, c, 64 // s, 96 // s) for s, c in CHANNELS.items()}
    torch.manual_seed(1)
    predictions = head(maps, (TARGETS, NUM_TARGETS))
    extra = {} if weights is None else {"weights": weights}
    return head, predictions, head.loss(predictions, TARGETS, NUM_TARGETS, **extra)


@pytest.mark.parametrize("name", ["yolox", "rtdetr"])
def test_weights_of_one_change_nothing(name):
    _, _, plain = losses_of(name)
    _, _, weighted = losses_of(name, ONES)
    for key, value in plain.items():
        torch.testing.assert_close(weighted[key], value)


@pytest.mark.parametrize(("name", "key"), [("yolox", "iou"), ("rtdetr", "giou")])
def test_a_smaller_weight_counts_less_and_zero_not_at_all(name, key):
    values = []
    for weight in (1.0, 0.25):
        head, predictions, losses = losses_of(name, torch.tensor([[0.0, 0.0], [weight, 0.0]]))
        (gradient,) = torch.autograd.grad(losses[key], [predictions[0]])  # its first four columns are boxes
        assert not gradient[0].any() and gradient[1].any()
        values.append(losses[key].detach())
    torch.testing.assert_close(0.25 * values[0], values[1])
    second = type(predictions)(*(None if field is None else field[1:] for field in predictions))
    torch.testing.assert_close(values[0], head.loss(second, TARGETS[1:], NUM_TARGETS[1:])[key].detach())


def test_an_uncertain_object_is_no_background_either():
    """No gradient of objectness where it is matched: what is there is neither rewarded nor punished."""
    gradients = []
    for weights in (ONES, torch.tensor([[0.0, 1.0], [1.0, 0.0]])):
        _, predictions, losses = losses_of("yolox", weights)
        (gradient,) = torch.autograd.grad(losses["objectness"], [predictions.rows])
        gradients.append(gradient[0, :, 4])
    is_ignored = (gradients[1] == 0) & (gradients[0] != 0)
    assert is_ignored.any() and (gradients[0][is_ignored] < 0).all()  # they were pushed up


def test_noisy_copies_of_an_uncertain_object_teach_nothing():
    """Neither those to restore nor those to reject; the copies of other objects teach as before."""
    gradients = []
    for weights in (ONES, torch.tensor([[0.0, 1.0], [1.0, 0.0]])):
        _, predictions, losses = losses_of("rtdetr", weights)
        (gradient,) = torch.autograd.grad(losses["denoising"], [predictions.noisy_logits])
        gradients.append(
            gradient.abs().sum((1, 3))[0].unflatten(0, (-1, 2, 2))
        )  # (groups, to restore or reject, objects)
    assert (gradients[0] > 0).all()
    assert not gradients[1][..., 0].any() and (gradients[1][..., 1] > 0).all()


@pytest.mark.parametrize(
    ("own", "of_others", "wanted"),
    [((0, 4), (3, 5), 1.5), ((0, 4), (0, 2), 3), ((0, 0), (0, 0), 0.5), ((6,), (2, 9), 4)],
)
def test_whether_a_match_counts_is_decided_for_all_processes_together(own, of_others, wanted, monkeypatch):
    def add_others(totals):
        totals += torch.tensor(of_others)

    monkeypatch.setattr(module, "has_others", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", add_others)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert float(build_module().matched_per_process(*own)) == wanted


def test_targets_of_a_batch_count_by_score_and_setting():
    built = build_module()
    built.settings = replace(built.settings, training=TrainingConfig(pseudo_weight=0.5))
    batch = make_batch(draw_counts(1, 2), [0, 1], [True, True])
    scores = torch.tensor([[0.0, 0.8, -0.9], [0.6, 0.0, 0.0]])
    found = built.weights_of(replace(batch, num_targets=torch.tensor([3, 1])), scores)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.4, 0.0], [0.3, 0.0, 0.0]]))
    assert batch.dt_us[0, 0] == STRIDE_US and batch.to("cpu").pseudo_scores is None

    annotated, uncertain = (
        build_module().losses_of(replace(batch, pseudo_scores=scores))["total"]
        for scores in (None, torch.full((2, 1), -0.5))
    )
    assert float(uncertain) < float(annotated)


def test_scores_survive_a_label_file_and_a_prepared_file(tmp_path):
    boxes = np.zeros(3, BOX_DTYPE)
    boxes["t"], boxes["w"], boxes["h"] = (50_000, 50_000, 100_000), 20, 20
    bounds_us = np.array([[0, 50_000], [50_000, 100_000]])
    windows = Windows(bounds_us, np.diff(bounds_us)[:, 0])
    for name, scores in (("pseudo", [0.0, 0.75, -0.5]), ("plain", [0.0, 0.0, 0.0])):
        boxes["pseudo_score"] = scores
        path = tmp_path / f"{name}_bbox.npy"
        write_boxes(path, boxes)
        assert read_boxes(path)["pseudo_score"].tolist() == scores
        assert ("pseudo_score" in (np.load(path).dtype.names or ())) == (name == "pseudo")
        labels = to_labels(read_boxes(path), windows)
        with sequence_writer(tmp_path / f"{name}.h5", windows, labels, (2, 4, 4)) as writer:
            writer.append([b"", b""])
        stored = open_sequence(tmp_path / f"{name}.h5").labels
        assert isinstance(stored, Labels) and stored.pseudo_score.tolist() == scores


def test_a_head_that_takes_no_weights_says_how_to_go_on(monkeypatch):
    built = build_module()
    monkeypatch.setattr(built.detector.head, "loss", lambda predictions, targets, num_targets, divisor: {})
    batch = replace(make_batch(draw_counts(1, 2), [0, 1], [True, True]), pseudo_scores=torch.zeros(2, 3))
    with raises("setting.conflict", "training.pseudo_weight"):
        built.losses_of(batch)
