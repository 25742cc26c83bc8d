"""The keys of a verb, for `rvtssm VERB --help`, for mistyped keys, and as scripts that complete them in a shell."""

from pathlib import Path
from typing import Any

from rvtssm.cli.config import CHOICES, configs_dir
from rvtssm.cli.config_keys import Key, keys_of, purpose, similar
from rvtssm.cli.verbs import GROUPS, in_words, known_verb, verbs, verbs_that_read
from rvtssm.cli.words import RENAMED, short_keys
from rvtssm.system.user_error import UserError

# keys, some with their values, by words that others use for them
_MEANT = {"rate": "hz", "frequency": "hz", "fps": "hz", "size": f"model={'|'.join(CHOICES['model'][1])}"}


def verb_help(name: str, topics: list[str]) -> str:
    """Return the text of `rvtssm VERB --help`, or of `rvtssm VERB TOPIC --help`, whose topics are sections and keys.

    Raise ValueError for a verb or topic that does not exist.
    """
    verb = known_verb(name)
    config = verb.settings_class()
    if topics:
        return "\n\n".join(_topic(topic, name) for topic in topics)
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


def hint(key: str, verb: str) -> str:
    """Return what to do about a key that does not exist: its new name, or similar keys, first those of the verb."""
    section, _, last = key.rpartition(".")
    if last in RENAMED:
        return f"{key} is called {f'{section}.' if section else ''}{RENAMED[last]} now"
    if (meant := _MEANT.get(key, "")) and meant.partition("=")[0] in words_before_equals(verb):
        return f"did you mean {meant}?"
    found, readers = similar(key, _names(verb)), [name for name in verbs() if key in short_keys(name)]
    if readers and found and all(name.startswith("augment.") for name in found):  # nobody means these
        return f"{verb} does not read it, {in_words(readers)}"
    if found:
        return f"did you mean {' or '.join(found)}?"
    others = similar(key, [known.name for known in keys_of(known_verb(verb).settings_class())])[:1]
    said = [f"{verb} does not read {name}, {in_words(verbs_that_read(name))}" for name in others]
    return said[0] if said else f"`rvtssm {verb} --help` describes its keys"


def completion_script(shell: str) -> str:
    """Return a script that completes verbs and keys; the shell reads it when it starts. ValueError for other shells."""
    if shell not in _SHELLS:
        raise UserError(f"there is no completion for {shell!r}; choose from {', '.join(_SHELLS)}")
    case, line, script = _SHELLS[shell]
    words = {name: [f"{word}=" for word in words_before_equals(name)] for name in verbs()} | {
        "completion": list(_SHELLS)
    }
    cases = case.join(line.format(verb=name, words=" ".join(found)) for name, found in words.items() if found)
    return script.replace("VERBS", " ".join(verbs())).replace("CASES", cases)


def _names(verb: str) -> list[str]:
    """Return the sections and the full names of the keys that a verb reads."""
    known = verbs()[verb]
    config = known.settings_class()
    of_sections = [key.name for name in known.reads for key in keys_of(getattr(config, name), f"{name}.")]
    return [*known.keys, *known.reads, "experiment", "plugins", *of_sections]


def words_before_equals(verb: str) -> list[str]:
    """Return what can stand before `=`: keys, with and without the prefix of own sections, and groups of files."""
    known = verbs()[verb]
    groups = [group for group, section in GROUPS.items() if section in known.reads]
    return sorted({*_names(verb), *short_keys(verb), *groups} - {*known.reads} | {*groups}) if known.reads else []


def _topic(topic: str, verb: str) -> str:
    config, short = known_verb(verb).settings_class(), short_keys(verb)
    names = [name for word, name in short.items() if f"{word}.".startswith(f"{topic}.")]
    section = getattr(config, topic, None)
    if not names and hasattr(section, "__dataclass_fields__"):
        return _table(f"{topic}: {purpose(section)}", list(keys_of(section, f"{topic}.")))
    if found := [key for key in keys_of(config) if key.name in (names or [topic])]:
        return _table(topic, found)
    raise UserError(f"there is no section or key {topic!r}; {hint(topic, verb)}")


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


# The shells, each with what separates two cases, one case, and the script. Where no word fits, files are completed.
_SHELLS = {
    "bash": (
        "\n    ",
        '{verb}) words="{words}" ;;',
        """_rvtssm() {
  local word="${COMP_WORDS[COMP_CWORD]}" words=
  COMPREPLY=()
  if ((COMP_CWORD > 2)) && [[ "$word" == = || "${COMP_WORDS[COMP_CWORD - 1]}" == = ]]; then
    return # a value: bash completes files
  fi
  if ((COMP_CWORD == 1)); then
    words="VERBS"
  else
    compopt -o nospace
    case "${COMP_WORDS[1]}" in
    CASES
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _rvtssm rvtssm""",
    ),
    "zsh": (
        "\n    ",
        "{verb}) compadd -S '' -- {words} ;;",
        """#compdef rvtssm
_rvtssm() {
  if ((CURRENT == 2)); then
    compadd -- VERBS
  elif [[ "$PREFIX" == *=* ]]; then
    compset -P '*='
    _files
  else
    case "$words[2]" in
    CASES
    esac
  fi
}
compdef _rvtssm rvtssm""",
    ),
    "fish": (
        "\n",
        "complete -c rvtssm -n '__fish_seen_subcommand_from {verb}' -a '{words}'",
        """complete -c rvtssm -n __fish_use_subcommand -f -a 'VERBS'
CASES""",
    ),
}
