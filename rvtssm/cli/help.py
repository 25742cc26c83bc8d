"""The keys of a verb: `rvtssm VERB --help`, and `rvtssm VERB TOPIC --help` for a section or a key."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from rvtssm.cli.config import CHOICES, configs_dir
from rvtssm.cli.config_keys import Key, keys_of, purpose
from rvtssm.cli.verbs import GROUPS, known_verb, verbs
from rvtssm.cli.words import short_keys
from rvtssm.system.user_error import UserError


def verb_help(name: str, topics: list[str]) -> str:
    """Return the text of `rvtssm VERB --help`, or that of sections and keys; a path that stands alone is passed over.

    Raises:
        UserError: A verb or a topic does not exist.
    """
    verb = known_verb(name)
    config = verb.settings_class()
    texts = {topic: _topic(topic, name) for topic in topics}
    if unknown := [topic for topic in texts if not texts[topic] and not verb.bare and "=" not in topic]:
        raise UserError(
            "command.no_such_help", f"there is no section or key {unknown[0]!r}; `rvtssm {name} --help` lists them"
        )
    if any(texts.values()):
        return "\n\n".join(filter(None, texts.values()))
    parts = [f"rvtssm {name}: {verb.meaning}", f"Example: rvtssm {name} {verb.example}".rstrip()]
    if verb.own:
        own = [key for section in verb.own for key in keys_of(getattr(config, section))]
        parts.append(_table(f"Keys of {' and '.join(verb.own)}, which need no prefix here", own))
    if verb.keys:
        parts.append(_table("Other keys", [key for key in keys_of(config) if key.name in (*verb.keys, "plugins")]))
    if verb.sections:
        parts.append("\n".join(["Named files of settings", *(f"  {line}" for line in _choices(verb.reads))]))
        title = f"Other sections; `rvtssm {name} {verb.sections[-1]} --help` describes the keys of one"
        parts.append(_rows(title, [(section, purpose(getattr(config, section))) for section in verb.sections]))
    return "\n\n".join(parts)


def sections() -> dict[str, Any]:
    """Return every section that a verb reads, with its defaults, by name."""
    return {name: getattr(verb.settings_class(), name) for verb in verbs().values() for name in verb.reads}


def _topic(topic: str, verb: str) -> str:
    """Return the keys of a section, or one key; nothing if there is none of that name."""
    config = known_verb(verb).settings_class()
    section, short = getattr(config, topic, None), short_keys(verb)
    if topic not in short and is_dataclass(section):
        return _table(f"{topic}: {purpose(section)}", list(keys_of(section, f"{topic}.")))
    name = short.get(topic, topic)
    keys = [key for key in keys_of(config) if f"{key.name}.".startswith(f"{name}.")]
    return _table(topic, keys) if keys else ""


def _choices(sections: tuple[str, ...]) -> list[str]:
    """Return for every group that concerns the sections what can be chosen."""
    lines = []
    for group, section in [*GROUPS.items(), ("experiment", "training")]:
        if section in sections:
            files = sorted(path.stem for path in Path(configs_dir(), group).glob("*.yaml"))
            lines.append(f"{group}={'|'.join(files or CHOICES[group][1])}")
    return lines


def _table(title: str, keys: list[Key]) -> str:
    return _rows(title, [(f"{key.name}={key.default}", key.meaning) for key in keys])


def _rows(title: str, rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows) + 2
    return "\n".join([title, *(f"  {left:<{width}}{right}".rstrip() for left, right in rows)])
