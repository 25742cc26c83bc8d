"""What the words of a command line mean: keys without their section, a bare path, and keys by their former names."""

import os
from dataclasses import fields

from rvtssm.cli.composition import quoted
from rvtssm.cli.config import configs_dir
from rvtssm.cli.config_keys import keys_of
from rvtssm.cli.verbs import in_words, verbs, verbs_that_read
from rvtssm.system.user_error import UserError

# keys that were renamed, by the last part of their former name
RENAMED = {"frequencies_hz": "hz", "length_ms": "window_ms", "num_workers": "workers", "processes": "workers"}


def full_words(verb: str, words: list[str]) -> list[str]:
    """Return the words of a command line with full keys, and with a bare path behind its key.

    Raise UserError for more than one bare path, for a key that the verb does not read, and for the prefixes `+` and `~`
    of Hydra.
    """
    known, short, found = verbs()[verb], _short_fields(verb), []
    bare = [] if not known.bare else [word for word in words if "=" not in word]
    if known.bare and words and "=" in words[0] and os.path.exists(words[0]):
        bare.insert(0, words[0])
    if len(bare) > 1:
        raise UserError(f"{' and '.join(bare)}: name one path, or a folder that holds them")
    for word in words:
        if word.startswith(("+", "~")) and word not in bare:
            raise UserError(f"{word!r}: every key exists already; write key=value")
        key = word.partition("=")[0].partition(".")[0]
        if word in bare:
            found.append(f"{known.bare}={quoted(word)}")
        elif word.startswith("temporal=") and _is_of_plugin(word.removeprefix("temporal=")):
            found.append(f"temporal.name={word.removeprefix('temporal=')}")
        else:
            found.append(short.get(key, key) + word[len(key) :])
        _check_is_read(verb, found[-1].partition("=")[0], word.partition("=")[0])
    return found


def _check_is_read(verb: str, key: str, written: str) -> None:
    """Raise UserError, which says what reads a key, if the verb does not; what no verb reads is Hydra's to refuse."""
    readers = verbs_that_read(key)
    if readers and verb not in readers:
        raise UserError(f"{written}: {verb} does not read it; {in_words(readers)}")


def _is_of_plugin(layer: str) -> bool:
    """Return whether a word can be the name of a temporal layer that no file of ours chooses."""
    return layer.isidentifier() and not (configs_dir() / "temporal" / f"{layer}.yaml").is_file()


def short_keys(verb: str) -> dict[str, str]:
    """Return the keys that a verb takes without a section, with their full names."""
    known = [key.name for key in keys_of(verbs()[verb].settings_class())]
    return {
        word + name.removeprefix(full): name
        for word, full in _short_fields(verb).items()
        for name in known
        if name == full or name.startswith(f"{full}.")
    }


def _short_fields(verb: str) -> dict[str, str]:
    """Return the fields of the verb's own sections, and of their part `postprocess`, with their full names.

    The name of another section or key that the verb reads is none of them.
    """
    known = verbs()[verb]
    config = known.settings_class()
    own = [(name, getattr(config, name)) for name in known.own]
    own += [(f"{name}.postprocess", section.postprocess) for name, section in own if hasattr(section, "postprocess")]
    found: dict[str, str] = {}
    for name, section in own:
        for field in fields(section):
            if field.name not in (*known.keys, *known.reads, "plugins"):
                found.setdefault(field.name, f"{name}.{field.name}")
    return found
