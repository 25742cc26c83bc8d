"""What a run folder says of its run, so that it can be cited and repeated: settings, changes, environment."""

import contextlib
import json
import platform
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from rvtssm.cli.composition import quoted
from rvtssm.cli.config import Config
from rvtssm.cli.verbs import verbs_that_read
from rvtssm.system.output_folder import result_set
from rvtssm.system.provenance import processor, written_by

SETTINGS_OF_WEIGHTS = ("model", "temporal", "windows")  # sections
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
    number, place, words = 1, folder, _words(verb, config)
    while (settings := place / "overrides.yaml").is_file() and settings.read_text() != words:
        number += 1
        place = folder.with_name(f"{folder.name}_{number}")
    return place


def words_of_run(folder: Path, verb: str) -> list[str]:
    """Return the words that repeat the run of a verb in a folder; none if there is no such run."""
    for place in (folder, folder / verb):
        if _verb_of(place / RUN_FILES[-1]) == verb:
            return list(yaml.safe_load((place / "overrides.yaml").read_text()))
    return []


def _words(verb: str, config: Config, left_out: Collection[str] = ()) -> str:
    """Return the content of `overrides.yaml`: the words that repeat the run."""
    words = [word for word in overrides(config) if verb in verbs_that_read(word.partition("=")[0])]
    return yaml.safe_dump([word for word in words if word not in left_out], sort_keys=False)


def overrides(config: Config) -> list[str]:
    """Return the settings that are not the defaults, as words `key=value` in JSON.

    Of a training that starts from weights, whose settings are then the defaults, all of its detector are named.
    """
    default = dict(_leaves(type(config)()))
    if config.training.init_from:
        default = {key: value for key, value in default.items() if key.split(".")[0] not in SETTINGS_OF_WEIGHTS}
    return [f"{key}={_in_json(value)}" for key, value in _leaves(config) if key not in default or value != default[key]]


def _leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:  # of a tuple, Hydra makes a list
            yield prefix + field.name, list(value) if isinstance(value, tuple) else value


def _in_json(value: Any) -> str:
    """Return a value in JSON, with the names in a dict and the letters of a text as Hydra reads them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_in_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_in_json, value))}]"
    if isinstance(value, str):
        return quoted(value, '"')
    return json.dumps(value)


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
