"""The counts of a training step follow its shape, and the table has one row per recipe."""

from benchmarks import roofline
from rvtssm.models import ModelConfig
from rvtssm.ssm import TemporalConfig

TOY = ModelConfig(embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 0), fpn_blocks=0)


def count(batch: int) -> dict[str, int]:
    return roofline.count_step(TOY, TemporalConfig(), (64, 64), batch, 1, batch)


def test_twice_the_batch_is_twice_the_work_and_the_same_gradients():
    one, two = count(1), count(2)
    assert two["bytes_frames"] == 2 * one["bytes_frames"] == 2 * 20 * 64 * 64
    for name in ("products", "bytes_moved", "bytes_kept"):  # a part belongs to the weights, which do not grow
        assert one[name] < two[name] < 2 * one[name]
    assert two["products"] / one["products"] > 1.9
    assert two["bytes_gradients"] == one["bytes_gradients"]


def test_hours_follow_the_slower_of_products_and_memory_in_the_precision_of_the_recipe():
    row = {"precision": "float32", "products": 19.5e12, "bytes_moved": 2.04e12 / 6}  # one second, and half a second
    assert roofline.limits(row, "A100") == (1.0, 1 / 6)
    assert roofline.hours(row, 3600, "A100") == 1.0
    assert roofline.hours({**row, "precision": "bf16"}, 3600, "A100") == 0.5
