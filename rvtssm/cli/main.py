"""The command line: a verb and overrides `key=value`. Hydra composes the configuration, a file per verb does the work.

Exit codes: 0 if all is done, 1 after a bug of ours (a line says so above the traceback), 2 if the user has to change
something (one line says what), 130 after an interruption. `--traceback` and RVTSSM_TRACEBACK=1 show every traceback.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rvtssm import __version__
from rvtssm.cli.composition import compose, quoted
from rvtssm.cli.console import console, plain_warnings, say, say_error, show_compiling
from rvtssm.cli.verbs import known_verb, named, usage, verbs
from rvtssm.system.threads import share_processors
from rvtssm.system.user_error import UserError

# `doctor` has to work without Hydra and the configuration, so what needs them is imported where it is used.
PATH_KEYS = (
    *("recording", "out", "checkpoint", "resume", "training.init_from"),
    *("dataset.raw_dir", "dataset.prepared_dir", "export.calibrate"),
)
PATH_LIST_KEYS = ("evaluation.checkpoints", "plugins")
_OPTIONS = ("-", "-h", "--help", "--json", "--config", "--traceback")  # and a dash, which is standard input
# Options that Hydra itself reads, with the number of values that follow.
_HYDRA_OPTIONS = {"--multirun": 0, "-m": 0, "--cfg": 1, "-c": 1, "--package": 1, "-p": 1, "--resolve": 0}
_DETECTING = ("predict", "live", "serve")  # verbs that run beside other programs
_A_BUG = "this is a bug of rvtssm; please report it where you got rvtssm, with the command and all lines below"
# Lines of Hydra's and OmegaConf's messages that only help their own developers.
_HYDRA_NOISE = ("full_key:", "object_type=", "reference_type=", "Config search path:", "provider=", "To append to your")


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit code. Without `argv`, it is the only task of the process."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:  # imports and settings stay; to look for garbage in them takes a tenth of a short command
        gc.disable()
    for stream in (sys.stdout, sys.stderr):  # a letter that the terminal lacks must not end what was computed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments, of_hydra = _without_hydra_options(arguments)
    flags = ["--help" if a == "-h" else a for a in arguments if a.startswith("-") and a != "-"]
    words = [a for a in arguments if not a.startswith("-") or a == "-"]
    if "--version" in flags:
        say(__version__)
        return 0
    if not words:
        say(usage())
        return 0 if "--help" in flags else 2
    verb, *overrides = words
    show_compiling()
    shows_all = "--traceback" in flags or os.environ.get("RVTSSM_TRACEBACK", "0") != "0"
    try:
        _check_options(verb, arguments)
        with plain_warnings():
            return _run(verb, overrides, [flag for flag in flags if flag != "--traceback"], of_hydra)
    except Exception as error:
        said = _said(error, verb)
        say_error(f"rvtssm {verb}: {said or _A_BUG}")
        if shows_all or said is None:
            traceback.print_exc()
        return 1 if said is None else 2
    except KeyboardInterrupt:
        again = f"; {known_verb(verb).goes_on}" if known_verb(verb).goes_on else ""
        say_error(f"rvtssm {verb}: interrupted; files that are complete stay{again}")
        return 130


def _said(error: Exception, verb: str) -> str | None:
    """Return one line for an error that a user can cause, None for one that is a bug of ours."""
    if isinstance(error, UserError) or type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return _one_line(error, verb)
    if isinstance(error, OSError) and (error.filename or error.errno):  # of a file, a disk or a connection
        return _one_line(error, verb)
    if isinstance(error, (MemoryError, RecursionError)):
        what = "memory is full" if isinstance(error, MemoryError) else "the input is nested too deeply"
        return f"{what} ({_one_line(error, verb)}); give it less at once"
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        return _one_line(error.__cause__ or error, verb)  # the cause says how it ended
    return None


def _without_hydra_options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without the options of Hydra, and those options with their values."""
    ours: list[str] = []
    of_hydra: list[str] = []
    left = 0  # values of an option that are still to come
    for argument in arguments:
        takes = _HYDRA_OPTIONS.get(argument.partition("=")[0])
        is_of_hydra = left > 0 or takes is not None
        (of_hydra if is_of_hydra else ours).append(argument)
        left = max(left - 1, 0) if takes is None else takes * ("=" not in argument)
    return ours, of_hydra


def _check_options(verb: str, arguments: list[str]) -> None:
    """Raise UserError for a verb or an option that does not exist. It says how to write `--hz 50` here."""
    known_verb(verb)
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if not option.startswith("-") or option in _OPTIONS:
            continue
        from rvtssm.cli.help import words_before_equals

        key, _, value = option.lstrip("-").replace("-", "_").partition("=")
        meant = f", here {key}={value or following or '...'}" if key in words_before_equals(verb) else ""
        raise UserError(f"there is no option {option}; values are given as key=value{meant}")


def _run(verb: str, overrides: list[str], flags: list[str], of_hydra: list[str]) -> int:
    """Run a verb and return the exit code; raise UserError if it has no such flag."""
    known = known_verb(verb)
    if "--json" in flags and not known.has_json:
        raise UserError(f"{verb} has no --json; {' and '.join(name for name in verbs() if verbs()[name].has_json)} do")
    if verb == "doctor" and "--help" not in flags:
        return named(known.work)()
    from rvtssm.cli.help import completion_script, verb_help
    from rvtssm.cli.words import full_words

    if "--help" in flags:
        topics = [word for word in overrides if "=" not in word]
        say(verb_help(verb, [word for word in topics if not (known.bare and (os.sep in word or os.path.exists(word)))]))
        return 0
    if verb == "completion":
        say(completion_script(overrides[0] if overrides else ""))
        return 0
    paths = (*PATH_KEYS, *known.paths)
    overrides = [_quoted_path(word, paths) for word in full_words(verb, overrides)]
    if verb == "demo" and not any(override.startswith("experiment=") for override in overrides):
        overrides = ["experiment=demo", *overrides]
    from rvtssm.cli.inputs import check_inputs

    if of_hydra:
        if known.grid:
            raise UserError(f"{of_hydra[0]}: a {verb} takes key=value,value as it is; leave {of_hydra[0]} out")
        if flags:
            raise UserError(f"{flags[0]} and {of_hydra[0]} exclude each other; --cfg job shows a configuration")
        from rvtssm.cli.sweeps import run_with_hydra

        _collect_garbage()
        run_with_hydra(verb, overrides, of_hydra)
        return 0
    more: dict[str, Any] = {"as_json": True} if "--json" in flags else {}
    if known.grid:
        config, more["points"] = named(known.grid)(overrides)
    else:
        config = compose(overrides, verb)
        if verb == "train" and config.resume == "auto":  # a run goes on with its own settings
            from rvtssm.cli.inputs import TRAIN_OUT
            from rvtssm.cli.run_files import words_of_run

            config = compose([*words_of_run(Path(config.out or TRAIN_OUT), verb), *overrides], verb)
    if "--config" in flags:
        from omegaconf import OmegaConf

        shown = OmegaConf.masked_copy(OmegaConf.structured(config), [*known.reads, *known.keys, "plugins"])
        console.print(OmegaConf.to_yaml(shown))
        return 0
    check_inputs(verb, config)
    if verb in _DETECTING:
        share_processors(may_use_one=True)
    work = named(known.work)
    _collect_garbage()
    result = work(config, **more)
    return result if isinstance(result, int) else 0


def _collect_garbage() -> None:
    """Collect garbage from here on, if `main` has stopped it. What exists by now is never looked at."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
        atexit.register(_unfreeze)


def _unfreeze() -> None:
    """Let Python collect at its end what existed at the start: half a second, which only libraries like these need.

    They are bound by nanobind, which complains of objects that are still there at the end.
    """
    if sys.modules.keys() & {"triton", "onnx"}:
        gc.unfreeze()


def _quoted_path(override: str, paths: Collection[str] = PATH_KEYS) -> str:
    """Quote the value if the key is one of a path, so that brackets, commas, `=` and `${` have no meaning in it.

    Of PATH_LIST_KEYS, quote every path of the list.
    """
    key, _, value = override.partition("=")
    if key in PATH_LIST_KEYS and value.startswith("[") and value.endswith("]") and not set(value) & {*"'\""}:
        return f"{key}=[{','.join(map(quoted, _split_paths(value[1:-1])))}]"
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if key not in paths or is_quoted or value in ("", "null"):
        return override
    return f"{key}={quoted(value)}"


def _split_paths(listed: str) -> Iterator[str]:
    """Yield the paths of a list with commas between them; a path with commas is found if there is such a file."""
    parts = listed.split(",")
    while parts and listed:
        joined = (number for number in range(len(parts), 1, -1) if os.path.exists(",".join(parts[:number]).strip()))
        number = next(joined, 1)
        yield ",".join(parts[:number]).strip()
        parts = parts[number:]


def _one_line(error: BaseException, verb: str) -> str:
    """Return the message of an error of a verb on one line, without what only developers of Hydra need."""
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        return f"{error.filename} is or lies below a file, and a folder is needed; choose another"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if type(error).__module__.startswith("hydra."):
        from hydra.errors import OverrideParseException

        if isinstance(error, OverrideParseException):
            is_cut = str(error.override).count("{") != str(error.override).count("}")
            quote = "; put quotes around a value with spaces, as in 'key={a: b}'" if is_cut else ""
            return f"{error.override!r} is not of the form key=value{quote}"
        error = error.__cause__ or error
    lines = [line.strip() for line in str(error).splitlines()]
    message = " ".join(line for line in lines if line and not line.startswith(_HYDRA_NOISE))
    if several := re.match("Ambiguous value for argument '([^=]+)=(.*?)' 1[.]", message):
        key, values = several.groups()
        return f"{key}={values} has several values, which only study takes; a list has brackets: [{values}]"
    key = getattr(error, "full_key", None)  # OmegaConf's errors carry the key as an attribute
    if not key:
        return message
    if "is not a ListConfig" in message:
        return f"{key}: give a list, as in {key}=[{getattr(error, 'value', None) or '...'}]"
    if not re.search("Key '.*' not in ", message):
        return f"{key}: {message}"
    from rvtssm.cli.help import hint
    from rvtssm.cli.words import RENAMED

    advice = hint(key, verb)
    return advice if key.rpartition(".")[2] in RENAMED else f"{key}: {message}; {advice}"
