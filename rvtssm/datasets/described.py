"""What files in the folders of a dataset say of it: `dataset.yaml`, or the `synthetic.json` of `rvtssm generate`."""

import json
from pathlib import Path
from typing import Any

from rvtssm.datasets import custom, synthetic
from rvtssm.datasets.synthetic import GENERATED_FILE
from rvtssm.system.extras import installed_parts
from rvtssm.system.files import CONTENT_ERRORS, file_errors
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError

_GENERATED = (synthetic.SPEC.name, *installed_parts("rvtssm.simulated"))


def described(name: str, *folders: str | None) -> dict[str, Any]:
    """Return what the first folder with a description says, as fields of DatasetConfig; nothing without one.

    Args:
        name: The dataset that was asked for. Empty: any. Only generated and custom datasets are described by files.
        folders: Folders or URLs of the dataset, in order. None is left out.

    Returns:
        The name of the dataset. For generated recordings also their height and width.

    Raises:
        UserError: The file of generated recordings cannot be read, or it belongs to another dataset than `name`.
    """
    if name not in ("", custom.SPEC.name, *_GENERATED):
        return {}
    for folder in filter(None, folders):
        if name not in _GENERATED and (local_path(folder, custom.FILE) / custom.FILE).is_file():
            return {"name": custom.SPEC.name}
        if (path := local_path(folder, GENERATED_FILE) / GENERATED_FILE).is_file():
            found = _generated(path)
            if name not in ("", found["name"]):
                raise UserError(
                    "dataset.other_generated",
                    f"{folder} was written by `rvtssm generate` and holds dataset={found['name']} ({GENERATED_FILE}), "
                    f"not {name}; leave dataset out, or name that one",
                )
            return found
    return {}


def copy_generated(name: str, raw_dir: str, prepared_dir: str) -> None:
    """Copy the description of the generated dataset `name`, if there is one, to the folder of its prepared files."""
    source = local_path(raw_dir, GENERATED_FILE) / GENERATED_FILE
    if name in _GENERATED and source.is_file():
        custom.write_description(Path(prepared_dir) / GENERATED_FILE, source.read_bytes())


def _generated(path: Path) -> dict[str, Any]:
    fault, advice = " is not a file that `rvtssm generate` writes", "name dataset, dataset.height and dataset.width"
    with file_errors(path, fault, advice, CONTENT_ERRORS):
        settings = json.loads(path.read_text("utf-8"))
        return {
            "name": str(settings.get("dataset", "synthetic")),
            "height": int(settings["height"]),
            "width": int(settings["width"]),
        }
