"""The settings of `rvtssm serve`. This file does not import torch."""

from dataclasses import dataclass

from rvtssm.system.limits import check_at_least, check_choice, check_positive
from rvtssm.system.user_error import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_HZ, MAX_HZ = 5, 200  # of the slider, which also reaches the rate that the page begins with


@dataclass
class ServeConfig:
    """One run of `rvtssm serve`."""

    host: str = "127.0.0.1"  # address to listen at; 0.0.0.0 is reachable from other machines
    port: int = 8000  # 0: one that is free
    token: str | None = None  # what a page must know to be let in, null: nothing here, a random one at other addresses
    max_upload_mb: float = 512.0  # the largest file that a page may send
    max_pages: int = 8  # open at the same time; each has its own detector state
    camera_settings: str | None = None  # YAML file: biases, region of interest of the camera (docs/cameras.md)
    hz: float | None = None  # the rate that a page begins with, null: the rate of training
    # at other rates: slide, as long as in training; shrink, as long as the stride; null: what the weights are made for
    window: str | None = None
    downsample: int | None = None  # frames keep one pixel in n x n, null: the largest that keeps the size of training

    def __post_init__(self) -> None:
        check_positive("serve", self, "max_upload_mb", "hz", "downsample")
        check_choice("serve.window", self.window, ("slide", "shrink", None))
        if self.hz is not None and self.hz > 1e6:
            raise UserError(f"serve.hz={self.hz:g} must be at most 1000000, windows of a microsecond")
        check_at_least("serve", self, 1, "max_pages")
        if not 0 <= self.port <= 65535:
            raise UserError(f"serve.port={self.port} must lie between 0 and 65535")
        if self.token is not None and not self.token:
            raise UserError("serve.token is empty; give some letters, or null")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK
