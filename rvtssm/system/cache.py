"""The folder for files that the package can make or load again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: in RVTSSM_CACHE_DIR, XDG_CACHE_HOME or ~/.cache, whichever is set first."""
    cache = os.environ.get("RVTSSM_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "rvtssm"
