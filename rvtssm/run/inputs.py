"""What several verbs read from the configuration: required values, a folder to write to, the folders of the data."""

import os
from pathlib import Path

from rvtssm.config import Config


def needed(value: str | None, key: str, what: str) -> str:
    """Return the value; raise ValueError, which names the key, if it is missing."""
    if not value:
        raise ValueError(f"{key} is needed: {what}")
    return value


def writable(folder: Path) -> Path:
    """Return the folder, which need not exist; raise ValueError now, not after hours of work, if it is not writable."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"{folder} is or lies below a file ({place}), and a folder is needed; choose another")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{place} is not writable; choose another folder, or change its permissions")
    return folder


def folders(config: Config) -> dict[str, str | None]:
    """Return the folders of the data by their key in the section `dataset`."""
    return {"raw_dir": config.dataset.raw_dir, "prepared_dir": config.dataset.prepared_dir}
