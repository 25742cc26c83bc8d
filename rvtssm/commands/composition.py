"""From words `key=value` to a typed configuration, with Hydra."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import OmegaConf

from rvtssm.system.plugins import import_plugins

# `doctor` has to work where the configuration cannot be imported, so it is imported where it is used.
if TYPE_CHECKING:
    from rvtssm.config import Config


def compose(overrides: list[str]) -> Config:
    """Return the typed configuration for overrides such as ["model=small", "training.steps=100"]."""
    from rvtssm.config import configs_dir, register_schema

    register_schema()
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        return with_settings_of_weights(to_config(hydra.compose("config", overrides)), overrides)


def with_settings_of_weights(config: Config, overrides: list[str]) -> Config:
    """Return the configuration, composed anew if it has a `training.init_from`, while Hydra is initialised.

    The sections `model`, `temporal` and `windows` are then those of the weights, or of the run that goes on, except for
    what the overrides and their experiment name. Raise UserError for a file that holds no weights.
    """
    start = config.training.init_from
    if not start:
        return config
    from rvtssm.commands.weight_settings import PRIMARY, read_settings, store_defaults

    settings = read_settings(start, config.resume, config.out)
    store_defaults(settings, is_same_layer=True)
    found = to_config(hydra.compose(PRIMARY, overrides))
    if found.temporal.name == settings.temporal.name:
        return found
    store_defaults(settings, is_same_layer=False)
    return to_config(hydra.compose(PRIMARY, overrides))


def to_config(composed: Any) -> Config:
    """Return what Hydra composed as a typed configuration, after importing its plugins."""
    from rvtssm.config import Config

    import_plugins(composed.plugins)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    return config


def quoted(value: str) -> str:
    """Return a value in quotes, in which brackets, commas, `=` and `${` have no meaning."""
    value = re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    return "'" + re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", r"\'"), value) + "'"
