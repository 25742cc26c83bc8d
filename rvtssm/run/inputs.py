"""What verbs ask of their configuration: a value that has to be there, the folders of the data."""

from __future__ import annotations

import os
from pathlib import Path

from rvtssm.config import Config


def needed(value: str | None, key: str, what: str) -> str:
    """The value; ValueError names the key where it is missing."""
    if not value:
        raise ValueError(f"{key} is needed: {what}")
    return value


def writable(folder: Path) -> Path:
    """The folder, which need not be there yet; ValueError where it cannot be written, before hours of work."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"{folder} is or lies below a file ({place}), and a folder is needed; choose another")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{place} cannot be written to; choose another folder, or change its permissions")
    return folder


def folders(config: Config) -> dict[str, str | None]:
    """Where the data lie, by key of the dataset section."""
    return {"raw_dir": config.dataset.raw_dir, "prepared_dir": config.dataset.prepared_dir}
