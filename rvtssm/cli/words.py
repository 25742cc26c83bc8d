"""Settings as the words of a command line: those that differ from the defaults, and those that decide a detector."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from rvtssm.cli.composition import is_path
from rvtssm.cli.config import DECIDED, Config
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.model_config import MODEL_SIZES, ModelConfig
from rvtssm.records import WindowSettings
from rvtssm.ssm.temporal_config import TemporalConfig


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
    default = dict(_leaves(type(config)()))
    if config.training.init_from:
        default = {key: value for key, value in default.items() if key.split(".")[0] not in DECIDED}
    changed = [(key, value) for key, value in _leaves(config) if key not in default or value != default[key]]
    return [f"{key}={in_grammar('', key, value)}" for key, value in changed]


def _leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:  # of a tuple, Hydra makes a list
            yield prefix + field.name, list(value) if isinstance(value, tuple) else value


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
