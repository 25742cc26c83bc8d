"""Settings of one robot or one study in a file: `rvtssm live config=robot.yaml`.

The file is what `--config` prints, or a part of it, and may use the short keys of the verb. Words of the command line
win over it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rvtssm.cli.words import as_written
from rvtssm.system.files import did_you_mean
from rvtssm.system.user_error import UserError, in_one_line

_KEY = "config="


def with_settings_files(words: list[str]) -> list[str]:
    """Return the words of a command line with the settings of a file in place of `config=FILE`, before all others.

    Raises:
        UserError: The file is missing, or holds no settings.
    """
    files = [word.removeprefix(_KEY) for word in words if word.startswith(_KEY)]
    named = [word for word in words if not word.startswith(_KEY)]
    keys = {word.partition("=")[0] for word in named}
    settings = [word for file in files for word in _words_of(Path(file).expanduser())]
    return [word for word in settings if word.partition("=")[0] not in keys] + named


def _words_of(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise UserError("file.missing", name=path, found="there is no such file", advice=did_you_mean(path).strip("; "))
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError("file.content", name=path, found=in_one_line(error), needed="settings in YAML") from None
    if not isinstance(content, dict):
        raise UserError(
            "file.content", name=path, found="it holds no settings", needed="names with values, as in hz: 50"
        )
    yield from _flat(content, "")


def _flat(content: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={as_written(value)}"
