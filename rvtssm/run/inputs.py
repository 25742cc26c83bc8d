"""What verbs ask of their configuration: a value that has to be there, the folders of the data."""

from __future__ import annotations

from rvtssm.config import Config


def needed(value: str | None, key: str, what: str) -> str:
    """The value; ValueError names the key where it is missing."""
    if not value:
        raise ValueError(f"{key} is needed: {what}")
    return value


def folders(config: Config) -> dict[str, str | None]:
    """Where the data lie, by key of the dataset section."""
    return {"raw_dir": config.dataset.raw_dir, "prepared_dir": config.dataset.prepared_dir}
