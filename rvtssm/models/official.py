"""Converts checkpoints of RVT and of the official SSM release: a map of keys, and settings derived from the weights.

Sources: uzh-rpg/ssms_event_cameras 7c871b5 and uzh-rpg/RVT b80f568 (Lightning checkpoints, keys under `mdl.`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from rvtssm.models import MODEL_SIZES, ModelConfig, PostprocessConfig
from rvtssm.models.checkpoint import fill_detector
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.system.user_error import UserError

RELEASED_CHUNKS = {"gen1": 21, "onempx": 10}  # steps after which the released SSM weights are reset, by dataset

# Substitutions that turn an official key into ours, applied from top to bottom.
OFFICIAL_KEYS = (
    (r"^mdl\.", ""),
    (r"\.downsample_cf2cl\.", ".downsample."),
    (r"\.att_blocks\.", ".blocks."),
    (r"\.att_window\.", ".block."),
    (r"\.att_grid\.", ".grid."),
    (r"\.self_attn\.", ".attention."),
    (r"\.ls1\.gamma$", ".attention.proj.gamma"),
    (r"\.mlp\.net\.0\.0\.", ".mlp.0."),
    (r"\.mlp\.net\.2\.", ".mlp.2."),
    (r"\.ls2\.gamma$", ".mlp.2.gamma"),
    (r"\.s5_block\.s5\.seq\.", ".temporal.ssm."),
    (r"\.s5_block\.", ".temporal."),
    (r"\.lstm\.conv1x1\.", ".temporal.gates."),
    (r"\.bn\.", ".norm."),
    (r"^fpn\.", "neck."),
    (r"^neck\.lateral_conv0\.", "neck.reduce32."),
    (r"^neck\.C3_p4\.", "neck.merge16_down."),
    (r"^neck\.reduce_conv1\.", "neck.reduce16."),
    (r"^neck\.C3_p3\.", "neck.merge8_down."),
    (r"^neck\.bu_conv2\.", "neck.shrink8."),
    (r"^neck\.C3_n3\.", "neck.merge16_up."),
    (r"^neck\.bu_conv1\.", "neck.shrink16."),
    (r"^neck\.C3_n4\.", "neck.merge32_up."),
    (r"\.m\.(\d+)\.conv1\.", r".blocks.\1.0."),
    (r"\.m\.(\d+)\.conv2\.", r".blocks.\1.1."),
    (r"^yolox_head\.stems\.(\d)\.", r"head.levels.\1.stem."),
    (r"^yolox_head\.cls_convs\.(\d)\.", r"head.levels.\1.class_convs."),
    (r"^yolox_head\.reg_convs\.(\d)\.", r"head.levels.\1.box_convs."),
    (r"^yolox_head\.cls_preds\.(\d)\.", r"head.levels.\1.class_out."),
    (r"^yolox_head\.reg_preds\.(\d)\.", r"head.levels.\1.box_out."),
    (r"^yolox_head\.obj_preds\.(\d)\.", r"head.levels.\1.objectness_out."),
)


def convert_official(
    state_dict: Mapping[str, Tensor],
    spec: DatasetSpec,
    size: str | None = None,
    *,
    head_dim: int | None = None,
    memory: str | None = None,
    memory_chunk: int | None = None,
) -> LoadedCheckpoint:
    """Convert a checkpoint of RVT or of the official SSM release.

    Two settings are not in the weights. The attention partition follows from the frame size of the dataset; the number
    of channels per attention head must be given through `size` or `head_dim`.

    Args:
        state_dict: The weights by their official names.
        spec: The dataset on which they were trained.
        size: A key of MODEL_SIZES, which gives the channels per head.
        head_dim: Channels per head, if no size is given.
        memory: `carried` or `chunk`. None means `chunk` for the SSM release, whose state is reset at every chunk
            border, and `carried` for RVT.
        memory_chunk: Steps between two resets; None means the number for the dataset in RELEASED_CHUNKS.

    Raises:
        UserError: If the weights do not fit the arguments, or a number is missing.
    """
    model, temporal, num_classes, in_channels = derive_configs(state_dict, size, head_dim)
    if num_classes != spec.num_classes:
        raise UserError(
            "weights.other_classes",
            found=f"the checkpoint has {num_classes} classes, but {spec.name} has {spec.num_classes} "
            f"({', '.join(spec.class_names)})",
            advice="name the dataset that it was trained on",
        )
    # RVT carries its state; the release of the SSM paper forgets after each chunk.
    if memory is None:
        memory = "chunk"
        if temporal.name == "lstm" and memory_chunk is None:
            memory = "carried"
    if memory == "chunk" and memory_chunk is None:
        if spec.name not in RELEASED_CHUNKS:
            needed = f"no chunk length is known for {spec.name}"
            advice = "give it in steps, or use memory=carried"
            raise UserError("setting.missing", name="memory_chunk", needed=needed, advice=advice)
        memory_chunk = RELEASED_CHUNKS[spec.name]
    model = replace(model, memory=memory, memory_chunk=memory_chunk)
    scored_as = PostprocessConfig(score="class_only")
    meta = CheckpointMeta(spec, model, temporal, released_windows(in_channels), scored_as=scored_as)
    return fill_detector(meta, rename_official(state_dict), "cpu")


def released_windows(in_channels: int) -> WindowSettings:
    """Return the windows of both releases: 50 ms long, every 50 ms, as RVT prepares them.

    Args:
        in_channels: Number of channels of a frame, two per bin.
    """
    return WindowSettings(50_000, None, "rvt", num_bins=in_channels // 2, count_cutoff=10)


def rename_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the detector under our names. Names that the map does not know stay unchanged.

    Args:
        state_dict: The weights by their official names. Weights of other modules are left out.
    """
    renamed = {}
    for key, value in state_dict.items():
        if not key.startswith("mdl."):
            continue
        for pattern, name in OFFICIAL_KEYS:
            key = re.sub(pattern, name, key)
        if key.endswith(".temporal.gates.weight"):  # a 1x1 convolution is a linear map of each pixel
            value = value.flatten(1)
        renamed[key] = value
    return renamed


def derive_configs(
    state_dict: Mapping[str, Tensor], size: str | None = None, head_dim: int | None = None
) -> tuple[ModelConfig, TemporalConfig, int, int]:
    """Derive the settings of a model from official weights.

    Args:
        state_dict: The weights by their official names.
        size: A key of MODEL_SIZES, which gives the channels per attention head.
        head_dim: Channels per attention head, if no size is given.

    Returns:
        The settings of the model and of its temporal layers, the number of classes, and the number of input channels.

    Raises:
        UserError: If these are not such weights, or do not fit the size.
    """
    if size is not None and size not in MODEL_SIZES:
        raise UserError("setting.choice", name="size", found=size, needed=MODEL_SIZES)
    # What no shape of a weight tells.
    if size is not None:
        head_dim = MODEL_SIZES[size].head_dim
    if head_dim is None:
        needed = "the weights do not reveal the number of channels per attention head"
        raise UserError("setting.missing", name="size", needed=needed, advice="give size or head_dim of the model")
    # Everything else is the shape or the number of some weights.
    stage = "mdl.backbone.stages.{}."
    try:
        stems = [state_dict[stage.format(i) + "downsample_cf2cl.conv.weight"] for i in range(4)]
        num_classes = len(state_dict["mdl.yolox_head.cls_preds.0.weight"])
    except (KeyError, TypeError) as error:  # of another model, or no weights by name at all
        found = f"the checkpoint has no weights of such a model ({error})"
        needed = "only RVT and the official SSM release can be converted"
        raise UserError("weights.not_a_checkpoint", found=found, needed=needed) from None
    dims = list(map(len, stems))
    if size is not None and MODEL_SIZES[size].embed_dim != dims[0]:
        found = f"the first stage has {dims[0]} channels, but size {size} has {MODEL_SIZES[size].embed_dim}"
        raise UserError("weights.do_not_fit", found=found, advice="name the right size")
    blocks = [_count(state_dict, re.escape(stage.format(i)) + r"att_blocks\.(\d+)\.") for i in range(4)]
    model = ModelConfig(
        size=size or "custom",
        embed_dim=dims[0],
        dim_multiplier=tuple(dim // dims[0] for dim in dims),
        num_blocks=tuple(blocks),
        head_dim=head_dim,
        fpn_blocks=_count(state_dict, r"mdl\.fpn\.C3_p4\.m\.(\d+)\."),
    )
    return model, _derive_temporal(state_dict, dims), num_classes, stems[0].shape[1]


def _derive_temporal(state_dict: Mapping[str, Tensor], dims: list[int]) -> TemporalConfig:
    modes = [state_dict.get(f"mdl.backbone.stages.{i}.s5_block.s5.seq.Lambda") for i in range(4)]
    if modes[0] is None:
        return TemporalConfig(name="lstm")
    sizes = [len(lambda_) for lambda_ in modes if lambda_ is not None]
    state_size = None
    if sizes != dims:
        state_size = sizes[0]
    return TemporalConfig(
        name="s5",
        discretization="bilinear",
        bandlimit=0.0,  # the release masks only at initialisation and then trains without a mask
        state_size=state_size,
        clip_real=False,  # the release does not clip
    )


def _count(state_dict: Mapping[str, Tensor], pattern: str) -> int:
    """Count the distinct values of the pattern's group over all keys."""
    return len({match[1] for match in map(re.compile(pattern).match, state_dict) if match})
