"""From the words of a command line to a typed configuration: full keys, quoted paths, and Hydra."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rvtssm.cli.verbs import GROUPS, in_words, known_verb, verbs, verbs_that_read
from rvtssm.system.extras import import_plugins
from rvtssm.system.files import check_name
from rvtssm.system.user_error import UserError, in_one_line

# `doctor` has to work without Hydra and the configuration, so both are imported where they are used.
if TYPE_CHECKING:
    from rvtssm.cli.config import Config

PATH_KEYS = (
    *("recording", "out", "checkpoint", "resume", "training.init_from", "dataset.raw_dir", "dataset.prepared_dir"),
    *("export.calibrate", "detection.camera_settings", "model.timm_weights"),
)
_NO_LOGGING = ("hydra/job_logging=none", "hydra/hydra_logging=none")  # only a sweep logs, and to read these takes time
PATH_LIST_KEYS = ("evaluation.checkpoints", "plugins")


def compose(overrides: list[str], verb: str = "") -> Config:
    """Return the typed configuration of a verb for overrides such as ["model=small", "training.steps=100"]."""
    import hydra

    from rvtssm.cli.config import Config, register_schema
    from rvtssm.system.files import configs_dir

    register_schema(verbs()[verb].settings_class if verb else Config)
    overrides = with_dataset_names(overrides)
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        try:
            composed = hydra.compose("config", [*_NO_LOGGING, *overrides])
        except ValueError as error:
            if type(error) is not ValueError:  # Hydra and OmegaConf say what is wrong by errors of their own
                raise
            raise UserError(
                "command.element_of_a_list",
                f"a list has no such element ({in_one_line(error)}); give the whole list, as in filters=[background]",
            ) from None
        return with_settings_of_files(to_config(composed), overrides, verb)


def with_dataset_names(words: list[str]) -> list[str]:
    """Return words with `dataset.name=NAME` in place of `dataset=NAME`, since a dataset is a name and no group."""
    return [re.sub("^dataset=", "dataset.name=", word) for word in words]


def with_settings_of_files(config: Config, overrides: list[str], verb: str) -> Config:
    """Return the configuration, composed anew if weights or prepared frames decide it, while Hydra is initialised.

    With a `training.init_from`, the sections `model`, `temporal` and `windows` are those of the weights, or of the run
    that goes on. If the verb reads prepared frames, `windows` is that of the frames. What the overrides and their
    experiment name is kept. Raise UserError for a file that holds no weights.
    """
    start, dataset = config.training.init_from, config.dataset
    follows_frames = bool(verb) and verbs()[verb].follows_frames
    reads_frames = follows_frames and dataset.prepared_dir is not None and dataset.source != "raw"
    if not start and not reads_frames:
        return config
    import hydra

    from rvtssm.cli.weights import PRIMARY, read_settings, read_windows, store_defaults

    weights = read_settings(config) if start else None
    windows = read_windows(dataset) if reads_frames else None
    if not weights and windows in (None, config.windows):
        return config
    store_defaults(type(config), weights, windows)
    started = to_config(hydra.compose(PRIMARY, [*_NO_LOGGING, *overrides]))
    if weights and started.temporal.name != weights.temporal.name:
        started.temporal = config.temporal  # the settings of another layer say nothing of this one
    return started


def to_config(composed: Any) -> Config:
    """Return what Hydra composed as a typed configuration, after importing its plugins."""
    from omegaconf import OmegaConf

    from rvtssm.cli.config import Config

    import_plugins(composed.plugins)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    for name in vars(config).keys() - {field.name for field in fields(config)}:
        delattr(config, name)  # settings of another verb, which the recipe holds
    return config


def full_words(verb: str, words: list[str]) -> list[str]:
    """Return the words of a command line with full keys, and with a path that stands alone behind its key.

    Paths are quoted, so that brackets, commas, `=` and `${` have no meaning in them.

    Raises:
        UserError: Two paths stand alone, one that looks like `key=value` does not exist, the verb does not read a key,
            or a word adds or removes one.
    """
    known, short = known_verb(verb), short_keys(verb)
    paths = [word for word in words if _is_path(verb, word, is_first=word is words[0])]
    places = [key for key in (known.bare, known.second) if key]
    if len(paths) > max(1, len(places)):
        raise UserError("command.several_paths", f"{' and '.join(paths)}: name one path, or a folder that holds them")
    full, rest = [], iter(places)
    for word in words:
        check_name(word)
        key, equals, value = word.partition("=")
        first = key.partition(".")[0]
        if word not in paths and word.startswith(("+", "~")):
            raise UserError("command.key_exists", f"{word!r}: every key exists already; write key=value")
        if word in paths:
            key, equals, value = next(rest, ""), "=", word
        elif first in short:
            key = short[first] + key.removeprefix(first)
        _check_is_read(verb, key)
        full.append(f"{key}{equals}{_with_quotes(verb, key, value)}")
    return full


def short_keys(verb: str) -> dict[str, str]:
    """Return the keys that need no section behind a verb, those of its own sections, with their full names."""
    known = known_verb(verb)
    settings, taken = known.settings_class(), {*known.keys, *known.reads, "plugins"}
    short: dict[str, str] = {}
    for section in known.own:
        for field in fields(getattr(settings, section)):
            short.setdefault(field.name, f"{section}.{field.name}")
    return {name: full for name, full in short.items() if name not in taken}


def _is_path(verb: str, word: str, is_first: bool) -> bool:
    """Return whether a word is a path that stands alone: it exists and is the first word, or its key is none.

    Raises:
        UserError: The word looks like `key=value`, but there is neither such a key nor such a file.
    """
    known = known_verb(verb)
    key, equals, _ = word.partition("=")
    first = key.partition(".")[0]
    names = {field.name for field in fields(known.settings_class)} | {*GROUPS, *short_keys(verb), "experiment", "hydra"}
    names |= {section for other in verbs().values() for section in other.reads}
    is_key = bool(equals) and (first in names or key.startswith("hydra/"))
    if not known.bare or (is_key and not (is_first and os.path.exists(word))):
        return False
    if equals and "://" not in word and not os.path.exists(word):
        raise UserError(
            "command.no_such_key",
            f"{word}: there is no such file, and no key {key!r}; `rvtssm {verb} --help` lists the keys",
        )
    return True


def _check_is_read(verb: str, key: str) -> None:
    """Raise UserError, which says what reads a key, if the verb does not; what no verb reads is Hydra's to refuse."""
    readers = verbs_that_read(key)
    if readers and verb not in readers:
        raise UserError("command.key_not_read", f"{key}: {verb} does not read it; {in_words(readers)}")


def quoted(value: str, mark: str = "'") -> str:
    """Return a value between quotation marks, where brackets, commas, `=` and `${` have no meaning."""
    value = re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)
    ended = re.sub(rf"(\\*)({mark}|$)", lambda match: 2 * match[1] + match[2].replace(mark, f"\\{mark}"), value)
    return f"{mark}{ended}{mark}"


def as_written(value: Any) -> str:
    """Return a value in the form that the command line takes."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(as_written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{as_written(part)}' for key, part in value.items())}}}"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return str(value) or "''"


def _with_quotes(verb: str, key: str, value: str) -> str:
    """Return a value with quotation marks if it is a path, or a list of paths, with the home folder in place of `~`."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if key in PATH_LIST_KEYS and value.startswith("[") and value.endswith("]") and not set(value) & {*"'\""}:
        return f"[{','.join(quoted(_from_home(path)) for path in _split_paths(value[1:-1]))}]"
    if key in (*PATH_KEYS, *known_verb(verb).paths) and not is_quoted and value not in ("", "null"):
        return quoted(_from_home(value))
    return value


def _from_home(path: str) -> str:
    """Return a path with the home folder in place of `~`, which a shell only replaces at the start of a word."""
    if os.path.exists(path):
        return path
    return os.path.expanduser(path)


def _split_paths(listed: str) -> Iterator[str]:
    """Yield the paths of a list with commas between them; a path with commas is seen if there is such a file."""
    parts = listed.split(",")
    while parts and listed:
        joined = (number for number in range(len(parts), 1, -1) if os.path.exists(",".join(parts[:number]).strip()))
        number = next(joined, 1)
        yield ",".join(parts[:number]).strip()
        parts = parts[number:]
