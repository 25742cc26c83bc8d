"""Settings of one robot or one study in a file: `rvtssm live config=robot.yaml`.

The file is what `--config` prints, or a part of it, and may use the short keys of the verb. Words of the command line
win over it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rvtssm.cli.composition import fields_by_key, full_words
from rvtssm.cli.words import in_grammar
from rvtssm.system.files import did_you_mean
from rvtssm.system.user_error import UserError, in_one_line

_KEY = "config="


def with_settings_files(verb: str, words: list[str]) -> list[str]:
    """Return the words of a command line with the settings of a file in place of `config=FILE`, before all others.

    Args:
        verb: Whose short keys the file may use.
        words: The words of the command line.

    Raises:
        UserError: The file is missing, or holds no settings.
    """
    files = [word.removeprefix(_KEY) for word in words if word.startswith(_KEY)]
    named = [word for word in words if not word.startswith(_KEY)]
    keys = {word.partition("=")[0] for word in named}
    settings = [word for file in files for word in _words_of(verb, Path(file).expanduser())]
    return [word for word in settings if word.partition("=")[0] not in keys] + named


def _words_of(verb: str, path: Path) -> Iterator[str]:
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
    yield from _flat(verb, content, "")


def _flat(verb: str, content: dict[str, Any], prefix: str) -> Iterator[str]:
    known = fields_by_key(verb)
    for name, value in content.items():
        key = full_words(verb, [f"{prefix}{name}="])[0].removesuffix("=")
        if isinstance(value, dict) and key not in known:  # a section, and no setting that holds a dict
            yield from _flat(verb, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={in_grammar(verb, key, value)}"
