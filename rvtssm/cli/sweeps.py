"""The sweeps of Hydra: many runs of one verb, by any launcher and sweeper that is installed."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from rvtssm.cli import composition
from rvtssm.cli.composition import compose, is_path, settings_class
from rvtssm.cli.config import register_schema
from rvtssm.cli.inputs import check_inputs
from rvtssm.cli.verbs import GROUPS, named, verbs
from rvtssm.cli.words import quoted, unlike_others
from rvtssm.system.extras import check_extra
from rvtssm.system.files import configs_dir
from rvtssm.system.user_error import UserError

_PLUGINS = {
    "hydra/launcher=joblib": ("sweeps", "hydra_joblib_launcher"),
    "hydra/launcher=submitit_local": ("sweeps", "hydra_submitit_launcher"),
    "hydra/launcher=submitit_slurm": ("sweeps", "hydra_submitit_launcher"),
    "hydra/sweeper=optuna": ("search", "hydra_optuna_sweeper"),
}


def sweep_with_hydra(verb: str, words: Sequence[str]) -> None:
    """Let Hydra run a verb: once for each point of a sweep, by any launcher and sweeper that is installed.

    Each run has a folder of its own below `out`, which is named by its values. Its result for sweepers that search is
    `run.objective`. An error in a run is raised.

    Raises:
        UserError: A key is fixed and swept, or a value is swept twice, so that two runs would share a folder.
    """
    register_schema(settings_class(verb))
    fixed, swept = _split(verb, words)
    # Launchers and sweepers are packages of their own.
    for word in fixed:
        if word in _PLUGINS:
            extra, module_of_it = _PLUGINS[word]
            check_extra(word, extra, f"hydra_plugins.{module_of_it}")
    _check_folders(fixed, swept)
    # Hydra sees what is swept; the folder of a run is named by its values.
    config = compose([word for word in fixed if not word.startswith("hydra")], verb)
    paths, others = composition.split_paths(fixed, verb)
    folder = "${hydra.job.override_dirname}"
    if any(word.startswith("hydra/sweeper=") for word in fixed):  # a search may try the same values again
        folder = "${hydra.job.num}," + folder
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra would end the process and show a part of the error
    sys.argv = [
        f"rvtssm {verb}",
        "--multirun",
        *others,
        *swept,
        f"hydra.job.name={verb}",
        f"hydra.sweep.dir={quoted(config.out or f'outputs/{verb}')}",
        f"hydra.sweep.subdir={folder}",
        f"hydra.job.config.override_dirname.exclude_keys=[{','.join(word.partition('=')[0] for word in others)}]",
    ]

    def job(composed: DictConfig) -> float | None:
        settings = HydraConfig.get()
        config = composition.to_config(composed, paths, verb)
        out = Path(settings.runtime.output_dir)
        # Without `out`, the sweeps of several weights have one folder; a run of other settings in it keeps its own.
        config.out = str(out if "out" in paths else unlike_others(out, verb, config))
        # for the description of the run; of two values the last one counts
        as_given = [f"{key}={path}" for key, path in paths.items() if isinstance(path, str)]
        sys.argv = ["rvtssm", verb, *settings.overrides.task, *as_given, f"out={config.out}"]
        check_inputs(verb, config)
        result = named(verbs()[verb].work)(config)
        if isinstance(result, int) and result:  # the exit code of the verb
            found = f"not all is done in {config.out}"
            raise UserError("run.not_all_done", found=found)
        return objective(verb, result)

    hydra.main(config_path=str(configs_dir()), config_name="config", version_base="1.3")(job)()


def _split(verb: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of one value, and those of several values in Hydra's grammar.

    In a sweep, a comma between paths separates values too. A value for a list gets its brackets.
    """
    fixed = []
    swept = []
    for word in composition.with_recipe(verb, composition.full_words(verb, words)):
        key, _, value = word.partition("=")
        # One path, which Hydra does not read unless it stands between quotation marks.
        is_plain = is_path(verb, key) and not value.startswith(("'", '"'))
        if is_plain and (key == "out" or value.startswith("[") or "," not in value):
            fixed.append(word)
            continue
        # Several values: paths by commas, lists with brackets, all else as Hydra has it.
        (override,) = composition.parsed([word])
        if not override.is_sweep_override():
            fixed.append(f"{key}={override.value()}" if is_path(verb, key) else word)
        elif is_path(verb, key):
            swept.append(f"{key}={','.join(map(_plain, _values(override)))}")
        elif override.is_choice_sweep() and _holds_list(verb, key) and "[" not in value:
            swept.append(f"{key}={','.join(f'[{one}]' for one in _values(override))}")
        else:
            swept.append(composition.hydra_word(word))
    return fixed, swept


def _plain(path: str) -> str:
    """Return a path in the only spelling that a folder of a sweep has: it cannot lead out of it."""
    if not path or "://" in path:
        return path
    quote = path[0] if path[0] in "'\"" else ""
    plain = os.path.normpath(path.strip(quote) if quote else path)
    return quote + (os.path.abspath(plain) if plain.startswith("..") else plain) + quote


def _holds_list(verb: str, key: str) -> bool:
    field = composition.fields_by_key(verb).get(key)
    return field is not None and str(field.type).startswith(("list", "tuple"))


def _values(override: Override) -> list[str]:
    return list(override.sweep_string_iterator())


def _check_folders(fixed: Sequence[str], swept: Sequence[str]) -> None:
    """Raise UserError if two runs would have one folder: a key is named twice, or has a value twice."""
    counts: Counter[str] = Counter()
    for word in (*fixed, *swept):
        key = word.partition("=")[0]
        counts[GROUPS.get(key, key)] += 1
    for override in composition.parsed(swept):
        key = override.key_or_group
        if counts[GROUPS.get(key, key)] > 1:
            raise UserError("setting.conflict", name=key, needed="it is swept and named twice", advice="name it once")
        values = _values(override) if override.is_choice_sweep() or override.is_range_sweep() else []
        for value, count in Counter(values).items():
            if count > 1:
                raise UserError("setting.conflict", name=key, found=value, needed="the sweep has this value twice")


def objective(verb: str, result: Any) -> float | None:
    """Return what a sweep that searches maximises.

    This is the best validation AP of a training, and the AP of an evaluation at its reference rate. Other
    verbs have None.
    """
    from rvtssm.training.checkpoints import best_ap

    if result is None:
        return None
    if verb == "train":
        return best_ap(result)
    if verb == "evaluate" and result:  # only the first process of a launcher has reports
        return float(result[0].reference()["AP"])
    return None
