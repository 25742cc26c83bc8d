"""From the words of a command line to typed settings: one composition by Hydra, and paths as they stand."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rvtssm.cli.verbs import GROUPS, all_sections, in_words, known_verb, verbs_that_read
from rvtssm.system.extras import import_plugins
from rvtssm.system.files import check_name
from rvtssm.system.limits import field_names, limits_of
from rvtssm.system.user_error import UserError, in_one_line

# `doctor` has to work without Hydra and the configuration, so both are imported where they are used.
if TYPE_CHECKING:
    from rvtssm.cli.config import Config

_NO_LOGGING = ("hydra/job_logging=none", "hydra/hydra_logging=none")  # only a sweep logs, and to read these takes time

# Lines of Hydra's and OmegaConf's messages that only help their own developers.
_NOISE = ("full_key:", "object_type=", "reference_type=", "Config search path:", "provider=", "To append to your")


def compose(words: Sequence[str], verb: str = "") -> Config:
    """Return the settings of a verb for words such as ["model=small", "training.steps=100"].

    What is not named is decided by the run that goes on, by weights that a training starts from or by prepared frames,
    or else it is the default. Paths are no part of Hydra's grammar: commas, `=` and brackets have no meaning in them.

    Args:
        words: The words of a command line. Without a verb, all keys have their section.
        verb: Name of the verb; empty: the settings of the core.

    Raises:
        UserError: A word cannot be read, or the settings do not fit each other.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from rvtssm.cli.config import register_schema
    from rvtssm.system.files import configs_dir

    # Full keys, a recipe before what is typed, and paths apart from what Hydra reads.
    words = with_recipe(verb, full_words(verb, words)) if verb else [*words]
    paths, others = split_paths(words, verb)
    # A run that goes on has its own words; what is typed wins over them.
    if verb == "train" and paths.get("resume") == "auto":
        from rvtssm.cli.words import below, words_of_run

        of_run = words_of_run(Path(paths.get("out") or "outputs/train"), verb)
        paths, others = split_paths([*below(words, of_run), *words], verb)
    # The only composition.
    register_schema(settings_class(verb))
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        try:
            composed = hydra.compose("config", [*_NO_LOGGING, *others])
        except (HydraException, OmegaConfBaseException) as error:
            raise refusal(error, verb) from error
        except ValueError as error:
            needed = "give the whole list, as in filters=[background]"
            found = f"a list has no such element ({in_one_line(error)})"
            raise UserError("setting.form", found=found, needed=needed) from None
    return to_config(composed, paths, verb)


def refusal(error: Exception, verb: str) -> UserError:
    """Return an error of Hydra or OmegaConf as one of ours, with the key that it is about."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    if override := getattr(error, "override", None):
        needed = "this is not of the form key=value"
        advice = "put quotes around a value with =, spaces or brackets"
        return UserError("setting.form", found=repr(override), needed=needed, advice=advice)
    # The message without the lines for developers of the library.
    cause = error.__cause__ or error
    lines = [*map(str.strip, str(cause).splitlines())]
    message = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    if several := re.match("Ambiguous value for argument '([^=]+)=(.*?)' 1[.]", message):
        needed = "these are several values"
        advice = f"a list has brackets: [{several[2]}]"
        return UserError("setting.form", name=several[1], found=several[2], needed=needed, advice=advice)
    key = getattr(cause, "full_key", None)  # OmegaConf's errors carry the key as an attribute
    if not key:
        return UserError("setting.unknown", found=message)
    advice = f"`rvtssm {verb} --help` lists its keys"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return UserError("setting.unknown", name=key, needed=message, advice=advice)
    return UserError("setting.form", name=key, needed=message, advice=advice)


def settings_class(verb: str) -> type[Config]:
    """Return the dataclass of the settings of a verb; of an empty name, that of the core."""
    from rvtssm.cli.config import Config

    return known_verb(verb).settings_class if verb else Config


def to_config(composed: Any, paths: dict[str, Any] | None = None, verb: str = "") -> Config:
    """Return what Hydra composed as typed settings, after importing its plugins.

    Args:
        composed: The composed configuration, where keys that were not named may be missing.
        paths: Paths by key, which are set as they stand.
        verb: Name of the verb.
    """
    from omegaconf import OmegaConf

    from rvtssm.cli.config import DECIDED, Config

    # Paths as they stand; then plugins, whose names the settings may hold.
    for key, value in (paths or {}).items():
        OmegaConf.update(composed, key, _literal(value))
    import_plugins(composed.plugins)
    # The sections that files decide are made of the named keys only, so that they know which ones these are.
    made: dict[str, Any] = {}
    for name, kind in DECIDED.items():
        section = composed[name]
        named = {key: _plain(section[key]) for key in section if not OmegaConf.is_missing(section, key)}
        for key, value in list(named.items()):
            if value == {} or (value is None and OmegaConf.is_interpolation(section, key)):
                del named[key]  # neither the command nor its dataset names it
        made[name] = kind(**named)
        composed[name] = OmegaConf.structured(made[name])
    # Plain dataclasses from here on: below this room nobody knows Hydra.
    typed = OmegaConf.to_object(composed)
    assert isinstance(typed, Config)
    config = replace(typed, **made)  # without settings of another verb, which a recipe may hold
    if config.training.init_from or (verb and known_verb(verb).follows_frames):
        from rvtssm.training import with_settings_of_files

        return with_settings_of_files(config, follows_frames=bool(verb) and known_verb(verb).follows_frames)
    return config


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _literal(value: Any) -> Any:
    """Return a path, or a list of them, in which OmegaConf reads no `${`."""
    if isinstance(value, list):
        return [*map(_literal, value)]
    return value and re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)


@functools.cache
def fields_by_key(verb: str) -> dict[str, Field[Any]]:
    """Return the fields of the settings of a verb, and of the sections within them, by full key."""
    return {key: field for key, _, field in leaves(settings_class(verb)())}


def leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield the full key of every setting, with the section that holds it and its field there.

    Args:
        settings: A dataclass, whose fields may be sections.
        prefix: What comes before the keys.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, settings, field


def is_path(verb: str, key: str) -> bool:
    """Return whether a key of a verb holds a path or a list of paths."""
    field = fields_by_key(verb).get(key)
    return field is not None and limits_of(field).is_path


def split_paths(words: Iterable[str], verb: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the keys that hold paths, of which the last one counts, and all other words."""
    paths = {}
    others = []
    for word in words:
        key, _, value = word.partition("=")
        if is_path(verb, key):
            paths[key] = _paths(key, value, is_list=str(fields_by_key(verb)[key].type).startswith("list"))
        else:
            others.append(hydra_word(word))
    return paths, others


def hydra_word(word: str) -> str:
    """Return a word as Hydra knows its key: a dataset is a name and no group."""
    return re.sub("^dataset=", "dataset.name=", word)


def _paths(key: str, value: str, is_list: bool) -> Any:
    """Return the path, or the list of paths, that a word gives; a list is written as in YAML."""
    if value == "null":
        return None
    if not is_list:
        return _from_home(value)
    if not value.startswith("["):
        return [_from_home(value)] if value else []
    try:
        listed = yaml.load(value, yaml.BaseLoader)
    except yaml.YAMLError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        needed = "a list of paths is written [a,b]; a path with a comma or a bracket needs quotes in it"
        raise UserError("setting.form", name=key, found=value, needed=needed)
    return [*map(_from_home, listed)]


def _from_home(path: str) -> str:
    """Return a path with the home folder in place of `~`, which a shell only replaces at the start of a word."""
    if os.path.exists(path):
        return path
    return os.path.expanduser(path)


def with_recipe(verb: str, words: list[str]) -> list[str]:
    """Return words with the recipe of a verb in front, if they name no experiment."""
    recipe = known_verb(verb).recipe
    if recipe and not any(word.startswith("experiment=") for word in words):
        return [f"experiment={recipe}", *words]
    return words


def parsed(words: Iterable[str]) -> list[Any]:
    """Return words as Hydra reads them, one `Override` each. An error of its grammar names the word."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides([*words])


def full_words(verb: str, words: Sequence[str]) -> list[str]:
    """Return the words of a command line with full keys, with a path that stands alone behind its key.

    A lone element of a list gets its brackets.

    Raises:
        UserError: Two paths stand alone, one that looks like `key=value` does not exist, or a word adds or removes a
            key.
    """
    known = known_verb(verb)
    short = short_keys(verb)
    # Paths that stand alone, for which the verb has at most two places.
    alone = [word for number, word in enumerate(words) if _stands_alone(verb, word, is_first=number == 0)]
    places = [*filter(None, (known.bare, known.second))]
    if len(alone) > max(1, len(places)):
        needed = "name one path, or a folder that holds them"
        raise UserError("setting.form", found=" and ".join(alone), needed=needed)
    full = []
    rest = iter(places)
    for word in words:
        check_name(word)
        key, equals, value = word.partition("=")
        first = key.partition(".")[0]
        if word in alone:
            key = next(rest, "")
            equals = "="
            value = word
        elif word.startswith(("+", "~")):
            raise UserError("setting.form", found=repr(word), needed="every key exists already; write key=value")
        elif first in short:
            key = short[first] + key.removeprefix(first)
        # A lone element of a list gets its brackets.
        full.append(f"{key}{equals}{_with_brackets(verb, key, value)}")
    return full


def check_read(verb: str, words: Sequence[str]) -> None:
    """Raise UserError for a word whose key only other verbs read; an unknown key is Hydra's to refuse."""
    for word in full_words(verb, words):
        key = word.partition("=")[0]
        readers = verbs_that_read(key)
        if readers and verb not in readers:
            raise UserError("setting.not_read", name=key, needed=f"{verb} does not read it", advice=in_words(readers))


def short_keys(verb: str) -> dict[str, str]:
    """Return the keys that need no section behind a verb, those of its own sections, with their full names."""
    known = known_verb(verb)
    settings = known.settings_class()
    taken = {*known.keys, *known.reads, "plugins"}
    short: dict[str, str] = {}
    for section in known.own:
        for field in fields(getattr(settings, section)):
            if field.name not in taken:
                short.setdefault(field.name, f"{section}.{field.name}")
    return short


def _stands_alone(verb: str, word: str, is_first: bool) -> bool:
    """Return whether a word is a path that stands alone: it exists and is the first word, or its key is none.

    Raises:
        UserError: The word looks like `key=value`, but there is neither such a key nor such a file.
    """
    known = known_verb(verb)
    key, equals, _ = word.partition("=")
    first = key.partition(".")[0]
    # All that can stand before `=`.
    names = {*field_names(known.settings_class), *all_sections(), *GROUPS, *short_keys(verb), "experiment", "hydra"}
    is_key = bool(equals) and (first in names or key.startswith("hydra/"))
    if not known.bare or (is_key and not (is_first and os.path.exists(word))):
        return False
    if equals and "://" not in word and not os.path.exists(word):
        advice = f"`rvtssm {verb} --help` lists the keys"
        if known.second == "out" and not is_first:
            advice = f"a new file is named as in out={word}"
        needed = f"there is no such file, and no key {key!r}"
        raise UserError("setting.unknown", found=word, needed=needed, advice=advice)
    return True


def _with_brackets(verb: str, key: str, value: str) -> str:
    """Return the value of a key that holds a list with brackets, if it is one element."""
    field = fields_by_key(verb).get(key)
    is_list = field is not None and str(field.type).startswith(("list", "tuple"))
    is_element = bool(value) and value != "null" and not re.match(r"\[|\$|\w+\(", value)
    if not is_list or not is_element or is_path(verb, key) or ("," in value and not value.startswith("{")):
        return value
    return f"[{value}]"
