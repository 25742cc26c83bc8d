"""The settings of `rvtssm serve`. This file does not import torch."""

from dataclasses import dataclass, field

from rvtssm.cli.config import Config
from rvtssm.records.settings import check_window
from rvtssm.system.limits import Settings, setting
from rvtssm.system.user_error import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# range of the slider, extended if necessary to the rate that the page starts with
MIN_HZ = 5
MAX_HZ = 200


@dataclass
class ServeConfig(Settings, section="serve"):
    """Settings of `rvtssm serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 can be reached from other machines."""
    port: int = setting(8000, at_least=0, at_most=65535)
    """Port to listen on; 0: any free port."""
    token: str | None = None
    """Password in the page's address; null: none on this machine, a random one for others."""
    max_upload_mb: float = setting(512.0, above=0)
    """Size of the largest file that a page may upload, in MB."""
    max_pages: int = setting(8, at_least=1)
    """Pages open at the same time; each has its own detector state."""
    camera_settings: str | None = setting(None, is_path=True)
    """YAML file with biases and region of interest of the camera (docs/live.md)."""
    hz: float | None = setting(None, above=0, at_most=1_000_000)
    """The rate that a page starts with, in Hz; null: the rate of training."""
    window: str | None = None
    """Windows at other rates. slide: as long as in training; shrink: as long as the stride; null: as the weights allow.
    """
    downsample: int | None = setting(None, at_least=1)
    """Frames keep one pixel of each n x n square; null: for a recording as in `predict`, for the camera the largest n
    that leaves frames as large as in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("serve.window", self.window)
        if self.token is not None and not self.token:
            raise UserError("setting.form", name="serve.token", needed="give at least one character, or null")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK


@dataclass
class ServeSettings(Config):
    """All settings, with those of `serve`."""

    serve: ServeConfig = field(default_factory=ServeConfig)
