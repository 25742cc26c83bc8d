"""The command line: a verb and overrides `key=value`. Hydra composes the configuration, a file per verb does the work.

Exit codes: 0 if all is done, 1 after a bug of ours (a line says so above the traceback), 2 if the user has to change
something (one line says what), 130 after an interruption. `--traceback` and RVTSSM_TRACEBACK=1 show every traceback.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from rvtssm import __version__
from rvtssm.cli.composition import check_read, compose, refusal
from rvtssm.cli.console import console, plain_warnings, say, say_error
from rvtssm.cli.verbs import Verb, in_words, known_verb, named, usage, verbs
from rvtssm.system.machine import share_processors
from rvtssm.system.user_error import UserError, in_one_line

# `doctor` has to work without Hydra and the configuration, so what needs them is imported where it is used.
if TYPE_CHECKING:
    from rvtssm.cli.config import Config

_OPTIONS = ("-h", "--help", "--json", "--config", "--traceback", "--version")
_SWEEP = ("--multirun", "-m")  # as in Hydra
_A_BUG = "this is a bug of rvtssm; please report it where you got rvtssm, with the command and all lines below"


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit code. Without `argv`, it is the only task of the process."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:  # imports and settings stay; to look for garbage among them takes a fifth of a short command
        gc.disable()
    for stream in (sys.stdout, sys.stderr):  # a letter that the terminal lacks must not end what was computed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Flags may stand anywhere; the first other word is the verb.
    flags = [word for word in arguments if word.startswith("-") and word != "-"]  # a dash alone is standard input
    words = [word for word in arguments if word not in flags]
    # What needs no verb.
    if "--version" in flags:
        say(__version__)
        return 0
    if not words:
        say(usage())
        return 0 if {"--help", "-h"} & {*flags} else 2
    verb, *words = words
    try:
        with plain_warnings():
            return run(verb, words, flags)
    # A mistake of the user is one line and 2; a bug of ours is a traceback and 1.
    except Exception as error:
        line = _line_for_users(error, verb)
        say_error(f"rvtssm {verb}: {line or _A_BUG}")
        if line is None or "--traceback" in flags or os.environ.get("RVTSSM_TRACEBACK", "0") != "0":
            traceback.print_exc()
        return 1 if line is None else 2
    except KeyboardInterrupt:
        parts = [f"rvtssm {verb}: interrupted", "files that are complete stay", known_verb(verb).goes_on]
        say_error("; ".join(filter(None, parts)))
        return 130


def run(verb: str, words: list[str], flags: list[str]) -> int:
    """Run a verb with the words and the flags behind it, and return the exit code; raise whatever ends it."""
    known = known_verb(verb)
    # Options that nobody has, or that this verb has not.
    for flag in flags:
        if flag not in (*_OPTIONS, *_SWEEP):
            raise UserError(
                "setting.unknown", found=f"there is no option {flag}", advice="values are given as key=value"
            )
    if "--json" in flags and not known.has_json:
        others = [name for name in verbs() if verbs()[name].has_json]
        raise UserError("setting.not_read", found=f"{verb} has no --json", advice=in_words(others))
    if {"--help", "-h"} & {*flags}:
        from rvtssm.cli.help import verb_help

        say(verb_help(verb, words))
        return 0
    # It works without Hydra and the settings, of which it says whether they are broken.
    if verb == "doctor":
        return int(named(known.work)())
    if known.computes:  # before plugins and weights, which import PyTorch
        share_processors(may_use_one=True, is_alone=known.is_alone)
    from rvtssm.cli.inputs import check_inputs
    from rvtssm.cli.words import with_settings_files

    # The words: those of files first, then the ones that were typed.
    words = with_settings_files(verb, words)
    check_read(verb, words)
    # A sweep composes the settings of each of its runs itself.
    if sweep := {*_SWEEP} & {*flags}:
        beside = {*flags} - sweep - {"--traceback"}
        if known.grid or beside:
            found = f"{sweep.pop()} does not go with {' '.join([verb, *beside])}"
            raise UserError("setting.conflict", found=found, advice="leave it out")
        from rvtssm.cli.sweeps import sweep_with_hydra

        _collect_garbage()
        sweep_with_hydra(verb, words)
        return 0
    # One run: its settings, what can be checked before the work, and the work.
    config, options = _composed(verb, words)
    if "--config" in flags:
        _show(config, known)
        return 0
    check_inputs(verb, config)
    if "--json" in flags:
        options["as_json"] = True
    work = named(known.work)
    _collect_garbage()
    result = work(config, **options)
    return result if isinstance(result, int) else 0


def _collect_garbage() -> None:
    """Collect garbage from here on, if `main` has stopped it. What was imported is not searched, not even at the end.

    Only Triton needs that: its binding library complains of objects that are still there.
    """
    if gc.isenabled():
        return
    if "triton" not in sys.modules:
        gc.freeze()
    gc.enable()


def _composed(verb: str, words: list[str]) -> tuple[Config, dict[str, Any]]:
    """Return the settings of a verb, and the points of its grid if it has one."""
    known = known_verb(verb)
    if known.grid:
        config, points = named(known.grid)(words)
        return config, {"points": points}
    return compose(words, verb), {}


def _show(config: Config, verb: Verb) -> None:
    """Print the settings that a verb reads, as YAML."""
    from dataclasses import replace

    from omegaconf import OmegaConf

    if "optim" in verb.reads:  # which train a detector
        from rvtssm.models.detector import with_all_options

        config = replace(config, model=with_all_options(config.model))
    shown = OmegaConf.masked_copy(OmegaConf.structured(config), [*verb.reads, *verb.keys, "plugins"])
    console.print(OmegaConf.to_yaml(shown))


def _line_for_users(error: Exception, verb: str) -> str | None:
    """Return one line for an error that a user can cause, None for one that is a bug of ours."""
    if isinstance(error, UserError):
        return in_one_line(error)
    # The libraries of settings speak of their own classes.
    if type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return str(refusal(error, verb))
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        return f"{error.filename} is or lies below a file, and a folder is needed; choose another"
    # Of a file, a disk or a connection.
    if isinstance(error, OSError) and (error.filename or error.errno):
        return ": ".join(map(str, filter(None, (error.filename, error.strerror or in_one_line(error)))))
    if isinstance(error, MemoryError):
        return f"memory is full ({in_one_line(error)}); give it less at once"
    if isinstance(error, RecursionError):
        return f"the input is nested too deeply ({in_one_line(error)}); give it less at once"
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        return in_one_line(error.__cause__ or error)  # the cause says how it ended
    return None
