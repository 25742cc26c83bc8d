"""The keys of a verb and what they mean: `rvtssm VERB --help`, and `rvtssm VERB TOPIC --help` for a section or a key.

The meaning of a key is the docstring below its field in the source.
"""

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rvtssm.cli.composition import leaves, short_keys
from rvtssm.cli.verbs import GROUPS, known_verb, verbs
from rvtssm.cli.words import as_written
from rvtssm.datasets import DATASETS
from rvtssm.models import PRESETS
from rvtssm.system.files import configs_dir
from rvtssm.system.user_error import UserError


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its full name, its default as it is written on the command line, and what it means."""

    name: str
    default: str
    meaning: str


def verb_help(name: str, topics: list[str]) -> str:
    """Return the text of `rvtssm VERB --help`, or that of sections and keys; a path that stands alone is passed over.

    Raises:
        UserError: A verb or a topic does not exist.
    """
    verb = known_verb(name)
    config = verb.settings_class()
    # Help on single keys or sections, if some are named.
    texts = {topic: _topic(topic, name) for topic in topics}
    if unknown := [topic for topic in texts if not texts[topic] and not verb.bare and "=" not in topic]:
        found = f"there is no section or key {unknown[0]!r}"
        raise UserError("setting.unknown", found=found, advice=f"`rvtssm {name} --help` lists them")
    if any(texts.values()):
        return "\n\n".join(filter(None, texts.values()))
    # Otherwise help on the verb: its own keys, other keys, named files, and other sections.
    parts = [f"rvtssm {name}: {verb.meaning}", f"Example: rvtssm {name} {verb.example}".rstrip()]
    if verb.own:
        own = [key for section in verb.own for key in keys_of(getattr(config, section))]
        parts.append(_table(f"Keys of {' and '.join(verb.own)}, which need no prefix here", own))
    if verb.keys:
        parts.append(_table("Other keys", [key for key in keys_of(config) if key.name in (*verb.keys, "plugins")]))
    if choices := _choices(verb.reads):
        parts.append("\n  ".join(["Named files of settings", *choices]))
    if verb.sections:
        title = f"Other sections; `rvtssm {name} {verb.sections[-1]} --help` describes the keys of one"
        parts.append(_rows(title, [(section, purpose(getattr(config, section))) for section in verb.sections]))
    return "\n\n".join(parts)


def sections() -> dict[str, Any]:
    """Return every section that a verb reads, with its defaults, by name."""
    return {name: getattr(verb.settings_class(), name) for verb in verbs().values() for name in verb.reads}


def _topic(topic: str, verb: str) -> str:
    """Return the keys of a section, or one key; nothing if there is none of that name."""
    config = known_verb(verb).settings_class()
    section = getattr(config, topic, None)
    short = short_keys(verb)
    if topic not in short and is_dataclass(section):
        return _table(f"{topic}: {purpose(section)}", list(keys_of(section, f"{topic}.")))
    name = short.get(topic, topic)
    keys = [key for key in keys_of(config) if f"{key.name}.".startswith(f"{name}.")]
    return _table(topic, keys) if keys else ""


def _choices(sections: tuple[str, ...]) -> list[str]:
    """Return for every group that concerns the sections what can be chosen."""
    lines = []
    tables = {"dataset": [*DATASETS], "model": [*PRESETS]}
    for group, key in [*GROUPS.items(), ("experiment", "training")]:
        if key.partition(".")[0] in sections:
            files = sorted(path.stem for path in Path(configs_dir(), group).glob("*.yaml"))
            lines.append(f"{group}={'|'.join(tables.get(group, files))}")
    return lines


def _table(title: str, keys: list[Key]) -> str:
    return _rows(title, [(f"{key.name}={key.default}", key.meaning) for key in keys])


def _rows(title: str, rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([title, *(f"  {left:<{width}}{right}".rstrip() for left, right in rows)])


def keys_of(settings: Any, prefix: str = "") -> Iterator[Key]:
    """Yield all keys of a dataclass, whose values are the defaults, and of those within it; `prefix` stands before."""
    for key, section, field in leaves(settings, prefix):
        # The base class that has the field describes it.
        described = (_meanings(kind) for kind in type(section).__mro__ if is_dataclass(kind))
        meaning = next(meanings[field.name] for meanings in described if field.name in meanings)
        yield Key(key, as_written(getattr(section, field.name)), meaning)


def purpose(settings: Any) -> str:
    """Return the first sentence of the docstring of a dataclass on one line."""
    paragraph = (inspect.getdoc(type(settings)) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).split(". ")[0].rstrip(".")


@functools.cache
def _meanings(settings: type) -> dict[str, str]:
    """Return the docstring below every field of a class on one line.

    A constant of the same file that a docstring names is replaced by its values.
    """
    (body,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(body, ast.ClassDef)
    named = functools.partial(_values, sys.modules[settings.__module__])
    meanings = {}
    for field, below in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split()).rstrip(".")
            meanings[ast.unparse(field.target)] = re.sub(r"\b[A-Z_]{3,}\b", named, text)
    return meanings


def _values(module: ModuleType, name: re.Match[str]) -> str:
    constant = getattr(module, name[0], None)
    if isinstance(constant, (tuple, dict)):
        return ", ".join(constant)
    return name[0]
