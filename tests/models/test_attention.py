"""Who sees whom in block and grid attention, and the folded scale."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from rvtssm.models.backbones import attention
from rvtssm.models.backbones.attention import WRITTEN_OUT, PartitionAttention, ScaledLinear, SelfAttention, attend

HEIGHT, WIDTH, DIM = 8, 12, 8
PARTITION = (4, 3)


def influence(kind: Literal["block", "grid"], y: int, x: int) -> set[tuple[int, int]]:
    """The pixels that change when the input at (y, x) does."""
    torch.manual_seed(0)
    layer = PartitionAttention(DIM, kind, PARTITION, head_dim=4, layer_scale=1.0)
    image = torch.randn(1, HEIGHT, WIDTH, DIM)
    other = image.clone()
    other[0, y, x, 0] += 1
    with torch.no_grad():
        changed = (layer(image) != layer(other)).any(dim=-1)[0]
    return {(int(row), int(column)) for row, column in changed.nonzero()}


@pytest.mark.parametrize(("y", "x"), [(0, 0), (5, 7), (7, 11)])
def test_a_block_is_a_window_of_neighbours_and_a_grid_is_spread_over_the_image(y, x):
    top, left = y // 4 * 4, x // 3 * 3
    assert influence("block", y, x) == {(top + i, left + j) for i in range(4) for j in range(3)}
    rows, columns = HEIGHT // 4, WIDTH // 3  # distance of pixels in a group
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
