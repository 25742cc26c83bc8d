"""What makes a step faster or smaller leaves its losses, its gradients and its checkpoints as they are."""

import sys
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from user_errors import raises

from rvtssm.cli.train import train
from rvtssm.models import ModelConfig
from rvtssm.models import detector as detector_module
from rvtssm.models.checkpoint import load_file
from rvtssm.models.detector import Detector, build_detector
from rvtssm.models.rvt import SPATIAL_MIXERS
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.training import OptimConfig, loop
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.optim import build_optimizer
from rvtssm.training.trainer import check_compiler, choose_precision, speed_up
from tests.closeness import assert_near
from tests.training.test_module import build_module, draw_counts, make_batch

L, B = 2, 2
every_layer = pytest.mark.parametrize("name", TEMPORAL_LAYERS)


def build(name: str = "s5", **model) -> Detector:
    torch.manual_seed(0)
    few_parts = {"embed_dim": 8, "head_dim": 4, "num_blocks": (1, 0, 0, 1), "fpn_blocks": 0, "layer_scale": 1.0}
    config = ModelConfig(size="custom", **{**few_parts, **model})
    return build_detector(config, TemporalConfig(name=name, dt_min=0.2, dt_max=1.0, bandlimit=0.0), 64, 96, 2)


def losses_and_gradients(detector: Detector) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Predictions, loss and gradients of one step on random counts and one box per frame."""
    generator = torch.Generator().manual_seed(1)
    hist = torch.randint(0, 11, (L, B, 20, 64, 96), generator=generator, dtype=torch.uint8)
    frames = torch.tensor([(0, 0), (1, 1)])
    targets = torch.tensor([[[1.0, 40, 30, 24, 20]], [[0.0, 60, 20, 30, 26]]])
    predictions, _ = detector(hist, None, 0.5, frames)
    loss = detector.head.loss(predictions, targets, torch.ones(2, dtype=torch.int64))["total"]
    detector.zero_grad()
    loss.backward()
    gradients = {name: weight.grad for name, weight in detector.named_parameters() if weight.grad is not None}
    return predictions.rows.detach(), loss.detach(), gradients


def assert_same_step(found, wanted, tolerance: float) -> None:
    """Predictions, loss and gradients that differ by at most `tolerance` of the largest value of each tensor."""
    assert_near(found[0], wanted[0], tolerance)
    assert_near(found[1], wanted[1], tolerance)
    assert found[2].keys() == wanted[2].keys()
    for name, gradient in wanted[2].items():
        if gradient.abs().max() > 1e-5:
            assert_near(found[2][name], gradient, 10 * tolerance, name)


LAYERS = [{"name": name} for name in TEMPORAL_LAYERS]
MIXERS = [{"mixer": mixer} for mixer in SPATIAL_MIXERS]


@pytest.mark.parametrize("parts", [*LAYERS, *MIXERS, {"drop_path": 0.5}], ids=str)
def test_what_is_computed_again_is_the_same(parts):
    steps = []
    for strides in ((4, 8, 16, 32), ()):
        detector = build(**parts)
        speed_up(detector, "cpu", recompute_strides=strides)
        torch.manual_seed(3)
        steps.append(losses_and_gradients(detector))
    assert_same_step(*steps, 1e-6)


def test_a_recomputed_step_in_bf16_is_the_same():
    plain, recomputing = (build(num_blocks=(1, 0, 0, 0)) for _ in range(2))
    speed_up(recomputing, "cpu", recompute_strides=(4, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_step(losses_and_gradients(recomputing), losses_and_gradients(plain), 1e-6)


def kept_bytes(detector: Detector) -> int:
    """What autograd keeps between forward and backward."""
    total = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        detector(torch.zeros(4, B, 20, 64, 96, dtype=torch.uint8))
    return total


def test_computing_again_saves_memory():
    plain, recomputing = build(), build()
    speed_up(recomputing, "cpu", recompute_strides=(4, 8, 16, 32))
    assert kept_bytes(recomputing) < 0.5 * kept_bytes(plain)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_run_goes_on_in_another_layout(before, fused):
    """Averages of the optimiser follow the layout of the weights that they belong to."""
    torch.manual_seed(0)
    source, target, twin = (nn.Conv2d(4, 6, 3) for _ in range(3))
    x = torch.randn(2, 4, 8, 8)

    def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.step()

    def layout(module: nn.Module, is_last: bool) -> torch.optim.Optimizer:
        module.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)
        return build_optimizer(module, OptimConfig(learning_rate=0.1), 10, 8, fused)[0]

    first = layout(source, before)
    step(source, first)
    followers = [(target, layout(target, not before)), (twin, layout(twin, before))]
    for module, optimizer in followers:
        module.load_state_dict(source.state_dict())
        optimizer.load_state_dict(deepcopy(first.state_dict()))
        step(module, optimizer)
        step(module, optimizer)
    torch.testing.assert_close(target.weight, twin.weight, rtol=1e-5, atol=1e-6)


@every_layer
def test_products_of_16_bits_stay_near(name):
    """Predictions and their gradients within 3 %; statistics as in use, since those of two frames exaggerate."""
    hist = torch.randint(0, 11, (L, B, 20, 64, 96), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    steps = []
    for is_low in (False, True):
        detector = build(name).eval()
        with torch.autocast("cpu", torch.bfloat16) if is_low else nullcontext():
            (predictions,), _ = detector(hist, None, 0.5)
        assert predictions.dtype == torch.float32
        predictions[..., 4:].square().mean().backward()
        gradient = torch.cat([weight.grad.flatten() for weight in detector.parameters() if weight.grad is not None])
        steps.append((predictions.detach(), gradient))
    (wanted, gradient), (found, low_gradient) = steps
    assert_near(found[..., 4:], wanted[..., 4:], 0.03)
    assert (low_gradient - gradient).norm() <= 0.03 * gradient.norm()


@every_layer
def test_every_temporal_layer_is_one_graph_at_any_rate(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = build_temporal_layer(TemporalConfig(name=name), 8), torch.randn(3, 4, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    without_memory = torch.compile(layer.forward_without_memory, fullgraph=True, backend="eager")
    for scale in (0.5, torch.full((3, 4), 0.3)):
        assert_near(compiled(x, layer.init_state(4), scale)[0], layer(x, layer.init_state(4), scale)[0], 1e-5)
        assert_near(without_memory(x, scale), layer.forward_without_memory(x, scale), 1e-5)


@pytest.mark.parametrize("mixer", SPATIAL_MIXERS)
def test_every_mixer_is_one_graph(mixer):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = SPATIAL_MIXERS[mixer](8, (2, 3), ModelConfig(head_dim=4), True), torch.randn(2, 4, 6, 8)
    assert_near(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x), 1e-5)


def test_a_compiled_detector_trains_in_bf16_and_is_validated_in_chunks_of_any_length():
    torch._dynamo.reset()
    plain, compiled = build_module(), build_module()
    names = compiled.state_dict().keys()
    speed_up(compiled.detector, "cpu", compile_parts=True, backend="aot_eager")  # a break of the graph is an error
    assert compiled.state_dict().keys() == names
    losses, gradients = [], []
    with torch._dynamo.config.patch(recompile_limit=1):  # one graph of each part: another would be an error
        for module in (plain, compiled):
            with torch.autocast("cpu", torch.bfloat16):
                loss = module.training_step(make_batch(draw_counts(3, 2), [0, 1], [True, True]), 0)
            loss.backward()
            losses.append(loss.detach())
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
            module.eval()
            with torch.no_grad():
                for length, slots in ((4, [0, 1]), (2, [0, 1]), (1, [0])):
                    module.validation_step(make_batch(draw_counts(length, len(slots)), slots, [False] * len(slots)), 0)
    assert_near(losses[1], losses[0], 1e-6)
    assert (gradients[1] - gradients[0]).norm() <= 1e-2 * gradients[0].norm()
    assert plain.detections.keys() == compiled.detections.keys()
    for key, frame in plain.detections.items():
        torch.testing.assert_close(compiled.detections[key].xyxy, frame.xyxy, rtol=1e-4, atol=1e-3)


class Parts(nn.Module):
    """As little as has a backbone, a neck and a head, of which one has something to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = nn.Sequential(nn.Linear(4, 8), nn.GELU()), nn.Identity(), nn.Identity()
        self.backbone.recompute = lambda strides: None

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.backbone(x)))


def test_the_compiler_gives_the_same():
    try:
        check_compiler("cpu")
    except ValueError as error:
        pytest.skip(str(error))
    torch._dynamo.reset()
    torch.manual_seed(0)
    parts, x = Parts(), torch.randn(5, 4)
    # neither a precompiled header nor a search for vector units, which take longer than the kernel
    options = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1}
    with torch.no_grad(), torch._inductor.config.patch(options):
        wanted = parts(x)
        speed_up(parts, "cpu", compile_parts=True)
        torch.testing.assert_close(parts(x), wanted)


def test_without_a_compiler_nothing_starts(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with raises("install.compiler", "CXX"):
        check_compiler("cpu")
    monkeypatch.setitem(sys.modules, "triton", None)
    with raises("install.compiler", "Triton"):
        check_compiler("cuda")


def test_a_run_does_not_know_how_fast_it_is(toy_config, two_steps, tmp_path, monkeypatch, logged):
    """Frames reach the detector as counts, however far ahead they are loaded."""
    asked, met = [], []
    forward = Detector.forward

    def spy(self, hist, *arguments):
        met.append(hist.dtype)
        return forward(self, hist, *arguments)

    monkeypatch.setattr(Detector, "forward", spy)
    monkeypatch.setattr(loop, "speed_up", lambda detector, device, **options: asked.append(options))
    fast = ("training.compile=true", "training.recompute_strides=[4,8]", "data.workers=1")
    train(toy_config(tmp_path, "training.steps=2", *fast))
    assert asked == [{"recompute_strides": (4, 8), "compile_parts": True}]
    assert set(met) == {torch.uint8}
    assert load_file(last_checkpoint(tmp_path))["decisive"] == load_file(last_checkpoint(two_steps))["decisive"]
    assert logged(tmp_path) == logged(two_steps)


@pytest.mark.parametrize(("bf16_s", "precision"), [(0.5, "bf16"), (2.0, "float32")])
def test_auto_is_bf16_where_a_product_is_faster_in_it(monkeypatch, request, bf16_s, precision):
    seconds = {torch.float32: 1.0, torch.bfloat16: bf16_s}
    monkeypatch.setattr(detector_module, "_seconds_of_product", lambda matrix: seconds[matrix.dtype])
    request.addfinalizer(detector_module._bf16_is_faster.cache_clear)
    detector_module._bf16_is_faster.cache_clear()
    assert choose_precision("auto", "cpu") == precision
    assert choose_precision("auto", "cpu", num_processes=2) == "float32"  # each would measure for itself
    assert choose_precision("float64", "cpu") == "float64"
    assert choose_precision("auto", "mps") == "float32"
    assert choose_precision("float16", "mps") == "float16"
    with raises("setting.needs", "training.precision"):
        choose_precision("float16", "cpu")


@pytest.mark.parametrize("has_units", [False, True])
@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
def test_auto_on_a_gpu_asks_the_gpu(monkeypatch, has_units, accelerator):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_units)
    assert choose_precision("auto", accelerator) == ("bf16" if has_units else "float32")


def test_a_training_in_bf16_says_so_is_fused_and_clips(toy_config, tmp_path, monkeypatch, capsys):
    largest, steps = [], []
    original = torch.optim.AdamW.step

    def step(self, *arguments, **keywords):
        found = original(self, *arguments, **keywords)  # computes the gradients first
        largest.append(max(float(w.grad.abs().max()) for g in self.param_groups for w in g["params"]))
        steps.append(self.defaults["fused"])
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(detector_module, "_bf16_is_faster", lambda: True)
    settings = ("training.steps=2", "training.precision=auto", "optim.clip_value=1e-4")
    train(toy_config(tmp_path, *settings))
    assert steps == [True, True]
    assert largest == pytest.approx([1e-4] * 2)
    said = " ".join(capsys.readouterr().out.split())
    assert "training.precision=auto: bf16" in said and "s in bf16" in said
    assert load_file(last_checkpoint(tmp_path))["decisive"]["training.precision"] == "bf16"
    monkeypatch.setattr(detector_module, "_bf16_is_faster", lambda: False)
    train(toy_config(tmp_path, *settings, "resume=auto"))  # which goes on in bf16
