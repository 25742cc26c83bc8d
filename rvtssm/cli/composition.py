"""From words `key=value` to a typed configuration, with Hydra."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rvtssm.cli.verbs import verbs
from rvtssm.system.extras import import_plugins

# `doctor` has to work without Hydra and the configuration, so both are imported where they are used.
if TYPE_CHECKING:
    from rvtssm.cli.config import Config


def compose(overrides: list[str], verb: str = "") -> Config:
    """Return the typed configuration of a verb for overrides such as ["model=small", "training.steps=100"]."""
    import hydra

    from rvtssm.cli.config import Config, configs_dir, register_schema

    register_schema(verbs()[verb].settings_class if verb else Config)
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        return with_settings_of_files(to_config(hydra.compose("config", overrides)), overrides, verb)


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

    from rvtssm.cli.weight_settings import PRIMARY, read_settings, read_windows, store_defaults

    weights = read_settings(start, config.resume, config.out) if start else None
    windows = read_windows(dataset) if reads_frames else None
    if not weights and not windows:
        return config
    store_defaults(type(config), weights, windows)
    started = to_config(hydra.compose(PRIMARY, overrides))
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
    return config


def quoted(value: str, mark: str = "'") -> str:
    """Return a value between quotation marks, where brackets, commas, `=` and `${` have no meaning."""
    value = re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    ended = re.sub(rf"(\\*)({mark}|$)", lambda found: 2 * found[1] + found[2].replace(mark, f"\\{mark}"), value)
    return f"{mark}{ended}{mark}"
