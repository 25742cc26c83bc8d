"""Check that the search of the built site finds every verb and every key of the configuration.

python scripts/site_search.py outputs/site
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rvtssm.cli.config import Config
from rvtssm.cli.help import keys_of, sections
from rvtssm.cli.verbs import verbs


def not_found(items: list[dict[str, str]]) -> list[str]:
    """Return the verbs and keys that no entry of the index has: verbs as a title, keys as code in a section."""
    titles = {item["title"] for item in items}
    codes = "".join(item["text"] for item in items if item["location"].startswith("commands.html"))
    keys = [key.name for key in keys_of(Config()) if "." not in key.name]
    keys += [key.name for section, settings in sections().items() for key in keys_of(settings, f"{section}.")]
    missing = [f"rvtssm {verb}" for verb in verbs() if f"rvtssm {verb}" not in titles]
    return missing + [key for key in keys if f"<code>{key}</code>" not in codes]


if __name__ == "__main__":
    missing = not_found(json.loads((Path(sys.argv[1]) / "search.json").read_text())["items"])
    if missing:
        raise SystemExit(f"the search of the site does not find {', '.join(missing)}")
