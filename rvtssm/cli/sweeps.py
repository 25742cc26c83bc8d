"""The sweeps of Hydra: many runs of one verb, by any launcher and sweeper that is installed."""

import os
import sys
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from rvtssm.cli.composition import compose, quoted, to_config, with_dataset_names, with_settings_of_files
from rvtssm.cli.config import register_schema
from rvtssm.cli.inputs import check_inputs
from rvtssm.cli.verbs import named, verbs
from rvtssm.system.extras import check_extra
from rvtssm.system.files import configs_dir
from rvtssm.system.user_error import UserError

_PLUGINS = {
    "hydra/launcher=joblib": ("sweeps", "hydra_joblib_launcher"),
    "hydra/launcher=submitit_local": ("sweeps", "hydra_submitit_launcher"),
    "hydra/launcher=submitit_slurm": ("sweeps", "hydra_submitit_launcher"),
    "hydra/sweeper=optuna": ("search", "hydra_optuna_sweeper"),
}


def sweep_with_hydra(verb: str, words: list[str]) -> None:
    """Let Hydra run a verb: once for each point of a sweep, by any launcher and sweeper that is installed.

    Each run has a folder of its own below `out`, which is named by its values. Its result for sweepers that search is
    `run.objective`. An error in a run is raised.
    """
    register_schema(verbs()[verb].settings_class)
    words = with_dataset_names(words)
    parsed = OverridesParser.create().parse_overrides(words)
    plain = [word for word, override in zip(words, parsed, strict=True) if not override.is_sweep_override()]
    for word in plain:
        if word in _PLUGINS:
            extra, module_of_it = _PLUGINS[word]
            check_extra(word, extra, f"hydra_plugins.{module_of_it}")
    out = quoted(compose([word for word in plain if not word.startswith("hydra")], verb).out or f"outputs/{verb}")
    fixed = ",".join(word.partition("=")[0] for word in plain)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra would end the process and show a part of the error
    sys.argv = [
        f"rvtssm {verb}",
        "--multirun",
        *words,
        f"hydra.job.name={verb}",
        f"hydra.sweep.dir={out}",
        "hydra.sweep.subdir=${hydra.job.override_dirname}",
        f"hydra.job.config.override_dirname.exclude_keys=[{fixed}]",
    ]

    def job(composed: DictConfig) -> float | None:
        settings = HydraConfig.get()
        config = with_settings_of_files(to_config(composed), [*settings.overrides.task], verb)
        config.out = settings.runtime.output_dir
        # for the description of the run; of two values the last one counts
        sys.argv = ["rvtssm", verb, *settings.overrides.task, f"out={quoted(config.out)}"]
        check_inputs(verb, config)
        result = named(verbs()[verb].work)(config)
        if isinstance(result, int) and result:  # the exit code of the verb
            raise UserError("command.not_all_done", f"not all is done in {config.out}; the lines above say why")
        return objective(verb, result)

    hydra.main(config_path=str(configs_dir()), config_name="config", version_base="1.3")(job)()


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
