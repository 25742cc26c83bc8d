"""The settings of the head, `model.head_options`."""

from dataclasses import dataclass

from rvtssm.system.limits import check_number
from rvtssm.system.user_error import UserError


@dataclass(frozen=True)
class RtdetrOptions:
    """How many boxes a frame has at most, and how large the decoder is."""

    queries: int = 100
    """Boxes per frame."""
    layers: int = 3
    """Layers of the decoder."""
    dim: int | None = None
    """Channels, a multiple of 32; null: half of the widest map, at least 32."""
    denoising: int = 50
    """Noisy copies of objects per frame in training, to restore and to reject; 0: off."""

    def __post_init__(self) -> None:
        # A checkpoint with more is not read, since it could fill the memory.
        check_number("model.head_options.queries", self.queries, 1, 1024, is_whole=True)
        check_number("model.head_options.layers", self.layers, 1, is_whole=True)
        check_number("model.head_options.denoising", self.denoising, 0, 1024, is_whole=True)
        if self.dim is not None and (self.dim < 32 or self.dim % 32):
            needed = "a multiple of 32, or null"
            raise UserError("setting.out_of_range", name="model.head_options.dim", found=self.dim, needed=needed)
