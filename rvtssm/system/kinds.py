"""The kinds of mistakes that a user can make: what each means, and the advice unless an error has its own.

`UserError` words every error from its kind and its fields. The pages list this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of mistake."""

    meaning: str  # one sentence for the pages
    advice: str = ""  # what to do; an error may give better advice


# A kind stands for a cause, not for a place: the name of the error says which setting or file it is about.
KINDS = {
    # Settings, on the command line, in a file or in Python
    "setting.choice": Kind("The value is not one of the choices."),
    "setting.out_of_range": Kind("The number is outside the allowed range, or is not a number."),
    "setting.form": Kind("The value does not have the form that the setting needs."),
    "setting.conflict": Kind("Two settings exclude each other."),
    "setting.needs": Kind("The setting has no effect, or no meaning, without another one."),
    "setting.missing": Kind("A setting that has no default was not given."),
    "setting.unknown": Kind("There is no setting, section, name or option like this."),
    "setting.not_read": Kind("The verb does not read the setting."),
    # Files
    "file.missing": Kind("The file or folder does not exist."),
    "file.exists": Kind("The file or folder exists already and is kept.", "choose another name"),
    "file.kind": Kind("The file is of another kind than needed."),
    "file.unreadable": Kind("The file cannot be opened or read."),
    "file.cut": Kind("The file ends too early.", "copy it again"),
    "file.damaged": Kind("The content of the file contradicts itself.", "copy it again"),
    "file.content": Kind("The file can be read, but does not hold what is needed."),
    "file.ambiguous": Kind("The file holds several things of the kind that is needed.", "name one"),
    "file.not_writable": Kind("The file or folder cannot be written."),
    # Runs
    "run.exists": Kind("The folder holds a run, which is kept."),
    "run.not_all_done": Kind("Some of the work could not be done.", "the lines above say why"),
    "run.other_settings": Kind("A run cannot go on with other settings that decide its numbers."),
    "run.not_finite": Kind("A loss or a gradient of a training is not finite."),
    "run.process_ended": Kind("One of several processes that work together has ended."),
    # Labels and recordings
    "labels.none_scored": Kind("No label is left that is scored.", "choose another split, or add labels"),
    "labels.no_tracks": Kind("The labels do not say which boxes are of one object."),
    "labels.name": Kind("The name of a label file or an image does not have a form that is read (`label_names`)."),
    "labels.form": Kind("An entry of a label file does not have the form of its format."),
    "labels.class": Kind("A box has a class that the dataset does not name."),
    "labels.outside": Kind("A box reaches past an edge of the image by more than a hundredth."),
    "labels.size": Kind("A label file is of pictures that do not have the size of the sensor."),
    "labels.no_time": Kind("The time of a label cannot be told."),
    "labels.other_times": Kind("Labels and events are of different times."),
    "labels.missing": Kind("There are no labels, or none that can be used."),
    # The installation
    "install.extra": Kind("A package of an optional part is not installed."),
}


def worded(kind: str, name: object = "", found: object = "", needed: object = "", advice: str = "") -> str:
    """Return an error as one line: where, what was found, what is needed and what to do.

    Args:
        kind: One of KINDS.
        name: The setting, file or place.
        found: The value of a setting, or a clause on what is wrong.
        needed: A list of choices, or a clause on what is needed.
        advice: What to do; empty: the advice of the kind.
    """
    clauses = []
    if isinstance(needed, list | tuple | set | frozenset | dict):
        choices = ["null" if choice is None else str(choice) for choice in needed]
        clauses.append(f"choose from {', '.join(choices) or 'nothing'}")
    else:
        clauses.append(str(needed))
    clauses.append(advice or KINDS[kind].advice)
    rest = "; ".join(clause for clause in clauses if clause)
    if found in ("", None):
        return ": ".join(part for part in (str(name), rest) if part)
    # A setting is shown as it is written; a file is followed by a clause.
    between = "=" if kind.startswith("setting.") else ": "
    where = f"{name}{between}{found}" if str(name) else str(found)
    return "; ".join(part for part in (where, rest) if part)
