"""What a run folder says of its run, so that it can be cited and repeated: settings, changes, environment."""

import contextlib
import json
import platform
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from rvtssm.cli.composition import is_path
from rvtssm.cli.config import Config
from rvtssm.cli.verbs import verbs_that_read
from rvtssm.cli.words import overrides
from rvtssm.system.files import processor, written_by
from rvtssm.system.output_folder import result_set

RUN_FILES = ("config.yaml", "overrides.yaml", "environment.json")


@contextlib.contextmanager
def run_files(folder: Path, verb: str, config: Config, left_out: Collection[str] = ()) -> Iterator[None]:
    """Write RUN_FILES when the block ends: all settings, the words that repeat the run, where and by what it was run.

    Words in `left_out` are not needed to repeat the run.
    If the folder has such files of another verb or of someone else, they go to a folder below it with the verb's name.
    """
    if any((folder / name).exists() for name in RUN_FILES) and _verb_of(folder / RUN_FILES[-1]) != verb:
        folder = folder / verb
    settings = json.loads(json.dumps(asdict(config)))  # lists in place of tuples, which YAML does not have
    contents = (
        yaml.safe_dump(settings, sort_keys=False),
        _words(verb, config, left_out),
        json.dumps(environment(verb), indent=2) + "\n",
    )
    with result_set(folder, "run", RUN_FILES) as staged:
        yield
        for name, text in zip(RUN_FILES, contents, strict=True):
            (staged / name).write_text(text)


def unlike_others(folder: Path, verb: str, config: Config) -> Path:
    """Return the first of FOLDER, FOLDER_2, FOLDER_3, ... without a finished run that has other settings."""
    number = 1
    place = folder
    words = _words(verb, config)
    while (settings := place / "overrides.yaml").is_file() and settings.read_text() != words:
        number += 1
        place = folder.with_name(f"{folder.name}_{number}")
    return place


def words_of_run(folder: Path, verb: str) -> list[str]:
    """Return the words that repeat the run of a verb in a folder; none if there is no such run."""
    for place in (folder, folder / verb):
        if _verb_of(place / RUN_FILES[-1]) == verb:
            words = yaml.safe_load((place / "overrides.yaml").read_text())
            return [_without_quotes(word) if is_path(verb, word.partition("=")[0]) else word for word in words]
    return []


def _without_quotes(word: str) -> str:
    """Return the word of a path without the quotation marks that older versions wrote around it."""
    key, _, value = word.partition("=")
    if value.startswith('"'):
        value = value[1:-1].replace('\\"', '"').replace("\\${", "${")
    return f"{key}={value}"


def _words(verb: str, config: Config, left_out: Collection[str] = ()) -> str:
    """Return the content of `overrides.yaml`: the words that repeat the run."""
    words = [word for word in overrides(config) if verb in verbs_that_read(word.partition("=")[0])]
    return yaml.safe_dump([word for word in words if word not in left_out], sort_keys=False)


def environment(verb: str) -> dict[str, Any]:
    """Return where and by what a verb is run, as plain values."""
    return {
        "verb": verb,
        "command": shlex.join(sys.argv),
        **written_by(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def _verb_of(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content.get("verb") if isinstance(content, dict) else None
