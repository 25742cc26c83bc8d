"""Files that belong together: all of them are written before the first of them appears under its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_together(folder: Path | str, content: Mapping[str, bytes]) -> list[Path]:
    """Write files by name into a folder, which is made where it is missing; their paths. OSError leaves none of them
    half-written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    asides = {name: folder / f".{name}.{os.getpid()}.tmp" for name in content}
    try:
        for name, data in content.items():
            asides[name].write_bytes(data)
        for name, aside in asides.items():
            os.replace(aside, folder / name)
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
    return [folder / name for name in content]
