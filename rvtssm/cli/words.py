"""Settings as the words of a command line, and the files of a run folder, by which a run can be cited and repeated.

The words are those that differ from the defaults, decide a detector, or are in a file.
"""

import contextlib
import json
import platform
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from rvtssm.cli.composition import fields_by_key, full_words, is_path, leaves
from rvtssm.cli.config import DECIDED, Config
from rvtssm.cli.verbs import GROUPS, verbs_that_read
from rvtssm.events.windows import WindowsConfig
from rvtssm.models import MODEL_SIZES, PRESETS, ModelConfig
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.system.files import configs_dir, did_you_mean, processor, written_by
from rvtssm.system.output_folder import result_set
from rvtssm.system.user_error import UserError, in_one_line

_CONFIG = "config="  # before the name of a file: `rvtssm live config=robot.yaml`
_EXPERIMENT = "experiment="


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


def overrides(config: Config) -> list[str]:
    """Return the settings that are not the defaults, as words that compose them again.

    Of a training that starts from weights, whose settings are then the defaults, all of its detector are named.
    """
    default = _values(type(config)())
    words = []
    for key, value in _values(config).items():
        is_decided = bool(config.training.init_from) and key.split(".")[0] in DECIDED
        if is_decided or value != default[key]:
            words.append(f"{key}={in_grammar('', key, value)}")
    return words


def _values(config: Config) -> dict[str, Any]:
    """Return the values of all settings by their full keys."""
    values = {}
    for key, section, field in leaves(config):
        value = getattr(section, field.name)
        values[key] = list(value) if isinstance(value, tuple) else value  # of a tuple, Hydra makes a list
    return values


def in_grammar(verb: str, key: str, value: Any) -> str:
    """Return a value as `compose` reads it: a path as it stands, a list of paths in YAML, all else as for Hydra."""
    if is_path(verb, key):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _for_hydra(value)


def _for_hydra(value: Any) -> str:
    """Return a value in JSON, with the names in a dict and the letters of a text as Hydra reads them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_for_hydra(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_for_hydra, value))}]"
    if isinstance(value, str):
        return quoted(value)
    return json.dumps(value)


def quoted(text: str) -> str:
    """Return a text between quotation marks, where Hydra reads brackets, commas, `=` and `${` as they stand."""
    text = re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", text)
    ended = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + match[2].replace('"', '\\"'), text)
    return f'"{ended}"'


def pasted(words: list[str]) -> str:
    """Return words as one line for a shell."""
    return " ".join(map(shlex.quote, words))


@dataclass(frozen=True)
class DetectorSettings:
    """The sections of the settings that decide a detector."""

    model: ModelConfig | None  # None where weights do not tell
    temporal: TemporalConfig
    windows: WindowsConfig

    def words(self) -> list[str]:
        """Return the settings as words `key=value`; those that are the defaults of the layer or the size are left out.

        A configuration that is composed from them has the same settings.
        """
        words = []
        if self.model is not None:
            known = MODEL_SIZES.get(self.model.size)
            if known:
                words.append(f"model={self.model.size}")
            words += _differing("model", self.model, known or ModelConfig())
        return [*words, *self._temporal_words(), *_differing("windows", self.windows, WindowsConfig())]

    def _temporal_words(self) -> list[str]:
        name = self.temporal.name
        from rvtssm.ssm.temporal_layers import with_layer_defaults  # imports torch

        usual = with_layer_defaults(TemporalConfig(name=name))
        return [f"temporal={name}", *_differing("temporal", self.temporal, usual)]

    def others(self, own: "DetectorSettings") -> list[str]:
        """Return the words that a training with the settings `own` lacks to have these."""
        words: list[str] = []
        if self.model is not None:
            words += _differing("model", self.model, own.model or ModelConfig())
        if self.temporal.name == own.temporal.name:
            words += _differing("temporal", self.temporal, own.temporal)
        else:
            words += self._temporal_words()
        return [*words, *_differing("windows", self.windows, own.windows)]


def settings_of(model: ModelConfig | None, temporal: TemporalConfig, windows: WindowSettings) -> DetectorSettings:
    """Return the settings of weights by what their description says."""
    from rvtssm.ssm.temporal_layers import with_layer_defaults  # imports torch

    return DetectorSettings(model, with_layer_defaults(temporal), WindowsConfig.of(windows))


def _differing(section: str, settings: Any, others: Any) -> Iterator[str]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(others, field.name):
            yield f"{section}.{field.name}={as_written(value)}"


def with_settings_files(verb: str, words: list[str]) -> list[str]:
    """Return the words of a command line with the settings of a file in place of `config=FILE`, before all others.

    The file is what `--config` prints, or a part of it, and may use the short keys of the verb. Words of the command
    line win over it, and so does all that an experiment among them sets.

    Args:
        verb: Whose short keys the file may use.
        words: The words of the command line.

    Raises:
        UserError: The file is missing, or holds no settings, or several experiments are named beside it.
    """
    named = []
    settings: list[str] = []
    for word in words:
        if word.startswith(_CONFIG):
            settings += _words_of(verb, Path(word.removeprefix(_CONFIG)).expanduser())
        else:
            named.append(word)
    if not settings:
        return named
    winning = full_words(verb, named)
    for word in named:
        if word.startswith(_EXPERIMENT):
            winning += _words_of_experiment(verb, word.removeprefix(_EXPERIMENT))
    return [*below(winning, settings), *named]


def below(named: Iterable[str], words: Iterable[str]) -> list[str]:
    """Return the words of a file without those that words of the command line replace.

    A choice among these, such as `model=tiny`, replaces all that it sets.
    """
    keys = set()
    for word in named:
        key, _, value = word.partition("=")
        keys |= {key, GROUPS.get(key, key)}
        if key == "model":
            keys.update(f"model.{name}" for name in PRESETS.get(value, ()))
    return [word for word in words if word.partition("=")[0] not in keys]


def _words_of_experiment(verb: str, name: str) -> Iterator[str]:
    """Yield the words that set what an experiment sets, with those of the experiments that it is based on."""
    if "," in name:
        needed = "a file of settings goes with one experiment"
        raise UserError("setting.conflict", name="experiment", found=name, needed=needed, advice="name one at a time")
    path = configs_dir() / "experiment" / f"{name}.yaml"
    if not path.is_file():
        return  # the composition says which ones there are
    content = yaml.safe_load(path.read_text())
    for base in content.pop("defaults", []):
        if isinstance(base, dict):  # {"override /model": "tiny"}
            for group, choice in base.items():
                yield f"{group.removeprefix('override /')}={choice}"
        elif base != "_self_":
            yield from _words_of_experiment(verb, base)
    yield from _flat(verb, content, "")


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
            yield f"{key}={in_grammar(verb, key, value)}"


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
    words = []
    for word in overrides(config):
        if word not in left_out and verb in verbs_that_read(word.partition("=")[0]):
            words.append(word)
    return yaml.safe_dump(words, sort_keys=False)


def environment(verb: str) -> dict[str, Any]:
    """Return where and by what a verb is run, as plain values."""
    import torch  # which most users of this file do without

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
