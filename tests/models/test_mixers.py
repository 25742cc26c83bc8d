"""What every spatial mixer of the table keeps, and what makes each the one that it claims to be."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from timm.models.convnext import ConvNeXtBlock
from torch import Tensor

from rvtssm.export.graphs import DetectorStep
from rvtssm.models import ModelConfig, attention
from rvtssm.models.attention import WRITTEN_OUT, PartitionAttention, ScaledLinear, SelfAttention, attend
from rvtssm.models.rvt import SPATIAL_MIXERS
from rvtssm.models.ssm2d import SSM2D, RealSSM2D
from tests.closeness import assert_near

every_mixer = pytest.mark.parametrize("mixer", SPATIAL_MIXERS)
DIM, PARTITION = 8, (2, 3)


def build(mixer: str, **changes) -> torch.nn.Module:
    torch.manual_seed(0)
    normed_input = changes.pop("normed_input", True)
    model = ModelConfig(mixer=mixer, head_dim=4, **{"layer_scale": 1.0, **changes})
    return SPATIAL_MIXERS[mixer](DIM, PARTITION, model, normed_input)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@every_mixer
@torch.no_grad()
def test_frames_keep_their_shape_and_do_not_see_each_other(mixer):
    layer, x = build(mixer), draw(3, 6, 9, DIM)
    mixed = layer(x)
    assert mixed.shape == x.shape
    assert_near(layer(x[1:2]), mixed[1:2])


@every_mixer
@torch.no_grad()
def test_a_pixel_reaches_others(mixer):
    layer, x = build(mixer), draw(1, 6, 9, DIM)
    other = x.clone()
    other[0, 2, 4] += draw(DIM)  # one and the same for all channels would be taken out by the norm
    moved = (layer(x) - layer(other)).abs().amax(-1)[0] > 1e-4
    assert moved[2, 4] and moved.sum() > 6


@every_mixer
def test_every_parameter_learns(mixer):
    layer = build(mixer, normed_input=False)
    layer(draw(2, 6, 9, DIM)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


@every_mixer
@torch.no_grad()
def test_without_layer_scale_a_mixer_changes_nothing(mixer):
    x = draw(1, 6, 9, DIM)
    assert_near(build(mixer, layer_scale=0.0)(x), x)


@every_mixer
@torch.no_grad()
def test_the_exported_step_mixes_alike(build_small, draw_counts, mixer):
    detector, hist = build_small(mixer=mixer), draw_counts(1, 2)
    step = DetectorStep(detector)
    assert_near(step(hist[0], torch.ones(2), step.init_state(2))[0][0], detector(hist)[0].rows)


@torch.no_grad()
def test_what_is_exported_has_no_transform_and_no_complex_number(build_small):
    step = DetectorStep(build_small(mixer="ssm2d", strides=(16,), num_blocks=(1, 0, 0, 0), fpn_blocks=0))
    kinds = {type(part) for part in step.modules()}
    assert RealSSM2D in kinds and SSM2D not in kinds
    program = torch.export.export(RealSSM2D(SSM2D(3), 4, 6), (draw(2, 4, 6, 3),))
    for node in program.graph.nodes:
        value = node.meta.get("val")
        assert "fft" not in str(node.target)
        assert not (isinstance(value, Tensor) and value.is_complex()), node


@torch.no_grad()
def test_convnext_is_the_block_of_timm():
    layer, x = build("convnext"), draw(2, 6, 9, DIM)
    assert [type(block) for block in layer.blocks] == [ConvNeXtBlock] * 3
    wanted = x.permute(0, 3, 1, 2).contiguous()
    for block in layer.blocks:
        wanted = block(wanted)
    assert_near(layer(x), wanted.permute(0, 2, 3, 1))


def recur(layer: SSM2D, x: Tensor) -> Tensor:
    """The slow twin: the two recurrences, pixel by pixel, from each corner."""
    r, s = layer.decay.sigmoid(), layer.share.sigmoid()
    (a1, a4), (a2, a3) = (r * s).unbind(-1), (r * (1 - s)).unbind(-1)
    b1, b2 = ((1 - r) * layer.B).unbind(-1)
    c1, c2 = layer.C.unbind(-1)
    height, width = x.shape[1:3]
    total = layer.D * x
    for corner, flips in enumerate(((), (1,), (2,), (1, 2))):
        u, y = x.flip(flips), torch.zeros_like(x)
        h, v = {}, {}
        for i in range(height):
            for j in range(width):
                h[i, j], v[i, j] = (u[:, i, j, :, None] * b[corner] for b in (b1, b2))
                if j:
                    h[i, j] = h[i, j] + a1[corner] * h[i, j - 1] + a2[corner] * v[i, j - 1]
                if i:
                    v[i, j] = v[i, j] + a3[corner] * h[i - 1, j] + a4[corner] * v[i - 1, j]
                y[:, i, j] = (c1[:, corner] * h[i, j] + c2[:, corner] * v[i, j]).sum(-1)
        total = total + y.flip(flips)
    return total


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (6, 1), (5, 7)], ids=str)
def test_ssm2d_is_its_recurrence(size):
    torch.manual_seed(0)
    layer = SSM2D(3).double()
    torch.nn.init.normal_(layer.B)
    x = draw(2, *size, 3).double().requires_grad_()
    fast, slow = layer(x), recur(layer, x)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-13)
    weights = draw(*slow.shape).double()
    inputs = [x, *layer.parameters()]
    found, wanted = (
        torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
        for y in (fast, slow)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    torch.testing.assert_close(RealSSM2D(layer, *size)(x), slow, rtol=0, atol=1e-13)


@torch.no_grad()
def test_ssm2d_is_exact_in_single_precision_and_does_not_grow():
    torch.manual_seed(0)
    layer, x = SSM2D(4), draw(1, 64, 80, 4)
    torch.nn.init.constant_(layer.decay, 5.0)  # slow modes, the largest sums of ways
    wanted = layer.double()(x.double())
    assert_near(layer.float()(x).double(), wanted, 1e-5)
    flat = layer.responses(64, 80)
    assert bool((flat >= 0).all()) and float(flat.amax()) <= 1


@torch.no_grad()
def test_ssm2d_runs_in_full_precision_under_autocast():
    layer, x = SSM2D(4), draw(1, 5, 7, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), layer(x.clone()))
        found = layer(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_near(found.float(), layer(x), 2e-2)


# attention


ROWS, COLUMNS, CHANNELS = 8, 12, 8
GROUP = (4, 3)


def influence(kind: Literal["block", "grid"], y: int, x: int) -> set[tuple[int, int]]:
    """The pixels that change when the input at (y, x) does."""
    torch.manual_seed(0)
    layer = PartitionAttention(CHANNELS, kind, GROUP, head_dim=4, layer_scale=1.0)
    image = torch.randn(1, ROWS, COLUMNS, CHANNELS)
    other = image.clone()
    other[0, y, x, 0] += 1
    with torch.no_grad():
        changed = (layer(image) != layer(other)).any(dim=-1)[0]
    return {(int(row), int(column)) for row, column in changed.nonzero()}


@pytest.mark.parametrize(("y", "x"), [(0, 0), (5, 7), (7, 11)])
def test_a_block_is_a_window_of_neighbours_and_a_grid_is_spread_over_the_image(y, x):
    top, left = y // 4 * 4, x // 3 * 3
    assert influence("block", y, x) == {(top + i, left + j) for i in range(4) for j in range(3)}
    rows, columns = ROWS // 4, COLUMNS // 3  # distance of pixels in a group
    spread = {(y % rows + i * rows, x % columns + j * columns) for i in range(4) for j in range(3)}
    assert influence("grid", y, x) == spread


@torch.no_grad()
def test_attention_is_softmax_of_products_per_head():
    torch.manual_seed(0)
    layer, x = SelfAttention(dim=8, head_dim=4, layer_scale=1.0), torch.randn(2, 5, 8)
    heads = layer.qkv(x).view(2, 5, 2, 12)  # query, key and value of a head lie side by side
    outputs = []
    for head in range(2):
        query, key, value = heads[:, :, head].split(4, dim=-1)
        weights = (query @ key.transpose(1, 2) / 4**0.5).softmax(dim=-1)
        outputs.append(weights @ value)
    torch.testing.assert_close(layer(x), layer.proj(torch.cat(outputs, dim=-1)))


@torch.no_grad()
def test_a_scale_folded_into_the_weight_is_a_scale_of_the_output():
    layer = ScaledLinear(6, 4, scale=0.5)
    layer.gamma.copy_(torch.tensor([1.0, 2, 3, 4]))
    x = torch.randn(7, 6)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias) * layer.gamma)


@pytest.mark.parametrize(
    ("num_groups", "num_tokens", "num_heads", "head_dim"), [(3, 5, 2, 4), (1, 1, 1, 3), (2, 80, 4, 32)]
)
def test_written_out_is_the_call_of_pytorch_forward_and_backward(
    monkeypatch, num_groups, num_tokens, num_heads, head_dim
):
    torch.manual_seed(0)
    qkv = torch.randn(num_groups, num_tokens, 3 * num_heads * head_dim, dtype=torch.float64)
    weight = torch.randn(num_groups, num_tokens, num_heads * head_dim, dtype=torch.float64)
    found = []
    for chosen in (frozenset(), frozenset({("cpu", torch.float64)})):
        monkeypatch.setattr(attention, "WRITTEN_OUT", chosen)
        inputs = qkv.clone().requires_grad_()
        mixed = attend(inputs, head_dim)
        assert ("WrittenOut" in type(mixed.grad_fn).__name__) == bool(chosen)
        (mixed * weight).sum().backward()
        found.append((mixed.detach(), inputs.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_on_a_cpu_is_written_out_for_training_only(dtype):
    torch.manual_seed(0)
    assert ("cpu", dtype) in WRITTEN_OUT
    qkv = torch.randn(2, 6, 24)
    for requires_grad in (True, False):
        low = qkv.to(dtype).requires_grad_(requires_grad)
        mixed = attend(low, 4)
        assert ("WrittenOut" in type(mixed.grad_fn).__name__) == requires_grad
        torch.testing.assert_close(mixed.float(), attend(qkv, 4), rtol=0.03, atol=0.03)
