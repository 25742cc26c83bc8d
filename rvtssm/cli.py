"""The command line: a verb and `key=value` overrides; Hydra composes them, `run` does the work.

Exit codes: 0 done, 2 the user can mend it (one line says how), 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

# before torch is loaded: threads that spin while they wait make a shared machine several times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from rvtssm import __version__

# The configuration, and with it torch, is imported where it is needed: seconds that --help need not wait for.
if TYPE_CHECKING:
    from rvtssm.config import Config

VERBS = {
    "demo": "from nothing to a trained detector, a table over rates and a video; out=DIR",
    "generate": "make recordings of the synthetic dataset; dataset.raw_dir=DIR",
    "preprocess": "raw recordings to histograms; dataset=NAME dataset.raw_dir=DIR dataset.prepared_dir=DIR",
    "train": "train a detector; dataset=NAME dataset.raw_dir=DIR and/or dataset.prepared_dir=DIR out=DIR [resume=auto]",
    "evaluate": "average precision at any rates; checkpoint=FILE evaluation.frequencies_hz=[20,200]",
    "predict": "detections and pictures; checkpoint=FILE recording=FILE (or a folder, -, tcp://HOST:PORT) out=DIR",
    "export": "a detector as one file for other programs; checkpoint=FILE out=model.onnx",
    "audit": "what memory and time step of a detector do; checkpoint=FILE [recording=FILE] out=DIR [--json]",
    "verify": "check a dataset completely; dataset=NAME dataset.raw_dir=DIR and/or dataset.prepared_dir=DIR",
    "inspect": "what a recording or a dataset contains; PATH [dataset=NAME] [out=DIR] [--json]",
    "info": "parameters of a model by room; model=base dataset=gen1 temporal=s5 [--json]",
    "doctor": "what of this installation works",
}

MODULES = {"inspect": "inspect_data"}  # of verbs whose name is that of a module of Python
JSON_VERBS = ("audit", "info", "inspect")
PATH_VERBS = ("inspect",)  # their first word may be a path, which is `recording=PATH`
FOLDER_KEYS = ("dataset.raw_dir", "dataset.prepared_dir")
PATH_KEYS = ("recording", "out", "checkpoint", "resume", "training.init_from", *FOLDER_KEYS)

_HYDRA_NOISE = ("full_key:", "object_type=", "reference_type=", "Config search path:", "provider=", "To append to your")


# the section a verb reads: `rvtssm preprocess labels=none` is `preprocess.labels=none`
SECTIONS = {
    "generate": "synthetic",
    "preprocess": "preprocess",
    "verify": "preprocess",
    "inspect": "dataset",
    "train": "training",
    "evaluate": "evaluation",
    "predict": "predict",
    "export": "export",
    "audit": "audit",
}


def usage() -> str:
    """What --help shows: every verb with what it needs."""
    lines = ["rvtssm VERB [key=value ...]    --config prints every key with its value", ""]
    return "\n".join(lines + [f"  {verb:<11}{text}" for verb, text in VERBS.items()])


def compose(overrides: list[str]) -> Config:
    """The typed configuration for a list of overrides, such as ["model=small", "training.steps=100"]."""
    from rvtssm.config import Config, configs_dir, register_schema

    register_schema()
    with hydra.initialize_config_dir(str(configs_dir()), version_base="1.3"):
        composed = hydra.compose("config", overrides)
    import_plugins(composed.plugins)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    return config


def import_plugins(paths: Iterable[str]) -> None:
    """Import Python files by their path: what they add to the tables of parts can then be named in a configuration.

    A file that is imported already is not imported again. ValueError if there is none, or its name is taken.
    """
    for path in paths:
        file = Path(path).resolve()
        if not file.is_file():
            raise ValueError(f"plugins=[{path}]: there is no such file")
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # so that processes that are started from this one find it
        found = importlib.import_module(file.stem).__file__
        if found is None or Path(found).resolve() != file:
            raise ValueError(f"plugins=[{path}]: {file.stem} is the name of another module ({found}); rename the file")


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    console, errors = Console(), Console(stderr=True)
    arguments = sys.argv[1:] if argv is None else argv
    flags = ["--help" if a == "-h" else a for a in arguments if a.startswith("-")]
    words = [a for a in arguments if not a.startswith("-")]
    if "--version" in flags:
        console.print(__version__)
        return 0
    if not words or "--help" in flags:
        console.print(usage(), markup=False, highlight=False, soft_wrap=True)
        return 0 if "--help" in flags else 2
    verb, overrides = words[0], words[1:]
    try:
        if verb not in VERBS:
            raise ValueError(f"there is no verb {verb!r}; choose from {', '.join(VERBS)}")
        path = overrides.pop(0) if verb in PATH_VERBS and overrides and _is_path(overrides[0]) else None
        overrides = [_literal_path(_in_section(word, SECTIONS.get(verb))) for word in overrides]
        unknown = [flag for flag in flags if flag not in ("--json", "--config")]
        if unknown:
            raise ValueError(f"there is no option {unknown[0]}; values are given as key=value")
        if "--json" in flags and verb not in JSON_VERBS:
            raise ValueError(f"{verb} has no --json; {' and '.join(JSON_VERBS)} do")
        if verb == "demo" and not any(word.startswith("experiment=") for word in overrides):
            overrides = ["experiment=demo", *overrides]
        config = compose(overrides)
        config.recording = path or config.recording
        if "--config" in flags:
            console.print(OmegaConf.to_yaml(OmegaConf.structured(config)), markup=False, highlight=False)
            return 0
        return _run(verb, config, as_json="--json" in flags)
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        errors.print(f"rvtssm {verb}: {_one_line(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        again = ", resume=auto goes on" if verb == "train" else ""
        errors.print(f"rvtssm {verb}: interrupted; what is complete on disk stays{again}", style="red")
        return 130


def _is_path(word: str) -> bool:
    return "=" not in word or os.path.exists(word)


def _in_section(override: str, section: str | None) -> str:
    """An override as it is, or of the verb's own section when its key is only known there."""
    if override.startswith(("+", "~")):
        raise ValueError(f"{override!r}: every key is there already; write key=value")
    from rvtssm.config import Config

    key = override.partition("=")[0]
    top = [field.name for field in fields(Config)]
    if section is None or key in (*top, "experiment") or not hasattr(getattr(Config(), section), key.split(".")[0]):
        return override
    return f"{section}.{override}"


def _literal_path(override: str) -> str:
    """An override; a path is taken as it stands: brackets, commas and `=` mean nothing in it."""
    key, _, value = override.partition("=")
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if key not in PATH_KEYS or is_quoted or value in ("", "null"):
        return override
    before_quotes = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", r"\'"), value)
    return f"{key}='{before_quotes}'"


def _run(verb: str, config: Config, as_json: bool) -> int:
    act = getattr(importlib.import_module(f"rvtssm.run.{MODULES.get(verb, verb)}"), verb)
    result = act(config, as_json=True) if as_json else act(config)
    return result if isinstance(result, int) else 0


def _one_line(error: BaseException) -> str:
    """An error on one line: what a user needs, without what only Hydra's own developers do."""
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        return f"{error.filename} is or lies below a file, and a folder is needed; choose another"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not of the form key=value"
    if isinstance(error, HydraException) and error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_HYDRA_NOISE)]
    key = getattr(error, "full_key", None)  # OmegaConf knows it, and says it on a line of its own
    if key and "is not a ListConfig" in str(error):
        return f"{key}: give a list, as in {key}=[{getattr(error, 'value', None) or '...'}]"
    hint = _hint(key) if key and re.search("Key '.*' not in ", str(error)) else ""
    return " ".join([f"{key}:", *kept] if key else kept) + hint


def _hint(key: str) -> str:
    """Where a key that is not where it was looked for stands, else how to find out."""
    from rvtssm.config import Config

    sections = [name for name in (field.name for field in fields(Config)) if hasattr(getattr(Config(), name), key)]
    found = " or ".join(f"{section}.{key}" for section in sections)
    return f"; did you mean {found}?" if found else "; `rvtssm VERB --config` prints every key"
