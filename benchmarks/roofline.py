"""What the recipes cost: a training step counted without running it, and what limits GPUs at it.

    python -m benchmarks.roofline [--recipes gen1_s5_base,onempx_s5_base] [--gpu A100] --json FILE
    python -m benchmarks.roofline --page   # the tables of docs/training.md, for all recipes of Gen1 and 1Mpx

PyTorch's fake tensors have shapes and no content, so the count needs neither a GPU nor the memory of the step: products
(two operations per multiply-add), bytes that every operation of eager PyTorch reads and writes, their number, and the
bytes that wait for the backward pass. The forward pass runs in the precision of the recipe; loss, optimiser and loader
are left out. The table sets the counts beside the limits of a GPU, and a step cannot be shorter than these.

Hours are an estimate: each step takes as long as its products at the speed of the data sheet, or as its bytes at a
third of the memory speed, whichever is longer. Memory is what `rvtssm train` estimates before the first step. Nobody
has measured either on a GPU.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import write_json
from rvtssm.cli.composition import compose
from rvtssm.cli.config import Config
from rvtssm.datasets import build_spec
from rvtssm.evaluation.render import TerminalTable
from rvtssm.models import ModelConfig, attention
from rvtssm.models.detector import build_detector
from rvtssm.ssm import TemporalConfig
from rvtssm.system.files import configs_dir
from rvtssm.training.optim import peak_learning_rate
from rvtssm.training.preflight import probe_step

# Dense products per second in 16 and in 32 bits, bytes of memory per second; from the data sheets of the SXM modules.
GPUS = {"A100": (312e12, 19.5e12, 2.04e12), "H100": (989e12, 67e12, 3.35e12)}
_REACHED_SHARE = 1 / 3  # of the memory speed, assumed of eager PyTorch
_TYPES = {"float32": None, "bf16": torch.bfloat16, "float16": torch.bfloat16}  # CPUs have no float16, of the same size
_MOVE_NOTHING = {"device", "empty", "new_empty", "empty_like", "_unsafe_view", "detach"}


class _Traffic(TorchDispatchMode):
    """Counts operations that are not views, and the bytes of their inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operations = self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in _MOVE_NOTHING:
            tensors = {id(each): each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)}
            self.num_operations += 1
            self.num_bytes += sum(each.numel() * each.element_size() for each in tensors.values())
        return result


def count_step(
    model: ModelConfig,
    temporal: TemporalConfig,
    frame_hw: tuple[int, int],
    batch: int,
    steps: int,
    labelled: int,
    autocast: torch.dtype | None = torch.bfloat16,
) -> dict[str, int]:
    """Count forward and backward pass over `batch` chunks of `steps` frames, of which `labelled` reach the head."""
    detector = build_detector(model, temporal, *frame_hw, num_classes=2).train()
    kept: dict[int, tuple[int, object]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes(), storage  # the storage stays, so that no other takes its address
        return tensor

    named = [*detector.named_parameters(), *detector.named_buffers()]
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        patch.object(attention, "WRITTEN_OUT", frozenset()),  # PyTorch's call, as on a GPU
        torch.autocast("cpu", autocast, enabled=autocast is not None),
    ):
        fakes = {name: torch.empty_like(each, requires_grad=each.requires_grad) for name, each in named}
        hist = torch.zeros(steps, batch, 20, *frame_hw, dtype=torch.uint8)
        frames = {"frame_index": torch.zeros(labelled, 2, dtype=torch.int64)}
        with (
            FlopCounterMode(display=False) as products,
            _Traffic() as traffic,
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            predictions, _ = torch.func.functional_call(detector, fakes, (hist,), frames)
            outputs = [each for each in tree_leaves(predictions) if isinstance(each, torch.Tensor)]
            torch.stack([each.float().sum() for each in outputs if each.requires_grad]).sum().backward()
    bytes_kept = sum(size for size, _ in kept.values())
    return {
        "products": products.get_total_flops(),
        "bytes_moved": traffic.num_bytes,
        "operations": traffic.num_operations,
        "bytes_kept": bytes_kept,
        "bytes_frames": hist.numel(),
        "bytes_gradients": sum(4 * each.numel() for each in detector.parameters()),
    }


def count_recipe(recipe: str) -> dict[str, Any]:
    """Count a step of one GPU with the recipe `configs/experiment/NAME.yaml`, and estimate its memory in bytes."""
    config = compose([f"experiment={recipe}"])
    spec, sampling, autocast = build_spec(config.dataset), config.sampling, _TYPES[config.training.precision]
    frame_hw = (spec.frame_height, spec.frame_width)
    labels = max(round(sampling.chunk_length * config.windows.settings.stride_us / spec.label_interval_us), 1)
    shape = sampling.num_chunks, sampling.chunk_length, labels * sampling.num_chunks
    counts = count_step(config.model, config.temporal, frame_hw, *shape, autocast)
    detector = build_detector(config.model, config.temporal, *frame_hw, num_classes=spec.num_classes)
    memory = probe_step(detector, detector.in_channels * math.prod(frame_hw), autocast)
    peak = memory.peak(shape[0] * shape[1], shape[2])
    row = {"recipe": recipe, "precision": config.training.precision, "batch": shape[0], "steps": shape[1]}
    return {**row, "labelled": shape[2], **counts, "bytes_peak": peak}


def limits(row: dict[str, Any], gpu: str) -> tuple[float, float]:
    """Return the seconds that a GPU needs at least for the products of a step, and for its memory traffic."""
    of_16_bits, of_32_bits, memory = GPUS[gpu]
    products = of_32_bits if row["precision"] == "float32" else of_16_bits
    return row["products"] / products, row["bytes_moved"] / memory


def hours(row: dict[str, Any], num_steps: int, gpu: str) -> float:
    """Estimate how long a number of steps takes, by the count of one."""
    products_s, memory_s = limits(row, gpu)
    return num_steps * max(products_s, memory_s / _REACHED_SHARE) / 3600


def counted_as(recipe: str) -> str:
    """Return the recipe whose step has the same cost: neither bandlimit nor H2 term change the count."""
    return re.sub("_(alpha0|alpha1|h2)$", "", recipe)


def page_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return two tables in Markdown: the settings of each group of recipes, and all recipes with their cost.

    Args:
        rows: The counts of the recipes that `counted_as` names, for the GPUs that the paper used. A recipe that was not
            counted has empty cells.
    """
    counts = {row["recipe"]: row for row in rows}
    groups = ["| recipes | GPUs | batch | learning rate | steps | precision |", "|---|--:|--:|--:|--:|---|"]
    costs = ["| recipe | hours | GB per GPU | published AP |", "|---|--:|--:|---|"]
    for recipe in recipes():
        row, config = counts.get(counted_as(recipe)), compose([f"experiment={recipe}"])
        groups.append(_settings_row(recipe, config))
        time, memory = "", ""
        if row:
            time, memory = f"{hours(row, config.training.steps, 'A100'):.0f}", f"{row['bytes_peak'] / 1e9:.0f}"
        costs.append(f"| {' | '.join([f'`{recipe}`', time, memory, _published(recipe)])} |")
    return "\n".join([*dict.fromkeys(groups), "", *costs])


def _settings_row(recipe: str, config: Config) -> str:
    """Return the row of a recipe's group: recipes of one dataset with an LSTM, or its others."""
    sampling, training, total = config.sampling, config.training, config.sampling.total_batch or 0
    dataset, layer = recipe.split("_")[:2]
    cells = [
        f"`{dataset}_lstm_*`" if layer == "lstm" else f"other `{dataset}_*`",
        str(training.devices),
        f"{total} x {sampling.chunk_length}",
        f"{peak_learning_rate(config.optim, total):.3g}",
        f"{training.steps // 1000} k",
        training.precision,
    ]
    return f"| {' | '.join(cells)} |"


def _published(recipe: str) -> str:
    """Return the published AP of a recipe, as its file says."""
    text = (configs_dir() / "experiment" / f"{recipe}.yaml").read_text()
    (line,) = re.findall(r"^# Published: (.*)$", text, re.M)
    numbers = re.findall(r"(\d\d\.\d+)(?: AP)?(?: on the (test|val))?", line)
    return ", ".join(" ".join(filter(None, number)) for number in numbers) or "none"


def recipes() -> list[str]:
    """Return the names of the recipes of Gen1 and 1Mpx."""
    names = sorted(path.stem for path in (configs_dir() / "experiment").glob("*.yaml"))
    return [name for name in names if name.startswith(("gen1_", "onempx_")) and not name.endswith("_check")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print, and write the file if one is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", default="gen1_s5_base,onempx_s5_base", help="of configs/experiment")
    parser.add_argument("--gpu", choices=GPUS, default="A100", help="whose limits the table has")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--page", action="store_true", help="print the tables of docs/training.md, for all recipes")
    options = parser.parse_args(arguments)
    names = dict.fromkeys(map(counted_as, recipes())) if options.page else options.recipes.split(",")
    rows = [count_recipe(recipe) for recipe in names]
    Console().print(page_table(rows) if options.page else _table(rows, options.gpu), soft_wrap=True)
    write_json(options.json, {"recipes": rows})


def _table(rows: Sequence[dict[str, Any]], gpu: str) -> TerminalTable:
    head = ["recipe", "frames", "TFLOP", "ms", "GB moved", "ms", "kernels", "GB kept", "MB frames", "MB gradients"]
    cells = [
        [
            row["recipe"],
            f"{row['batch']} x {row['steps']}",
            f"{row['products'] / 1e12:.2f}",
            f"{limits(row, gpu)[0] * 1e3:.1f}",
            f"{row['bytes_moved'] / 1e9:.0f}",
            f"{limits(row, gpu)[1] * 1e3:.1f}",
            str(row["operations"]),
            f"{row['bytes_kept'] / 1e9:.1f}",
            f"{row['bytes_frames'] / 1e6:.0f}",
            f"{row['bytes_gradients'] / 1e6:.1f}",
        ]
        for row in rows
    ]
    return TerminalTable(f"a training step of one GPU; ms: limits of an {gpu}", [head, *cells])


if __name__ == "__main__":
    main()
