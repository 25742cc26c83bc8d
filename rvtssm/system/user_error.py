"""The error for mistakes that a user can make and correct, and the kinds of such mistakes.

`UserError` words every error from its kind and its fields. The pages list the table KINDS.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
    "setting.no_such_part": Kind("The value names no part of this package, nor of a plugin."),
    "setting.out_of_range": Kind("The number is outside the allowed range, or is not a number."),
    "setting.form": Kind("The value does not have the form that the setting needs."),
    "setting.conflict": Kind("Two settings exclude each other."),
    "setting.needs": Kind("The setting has no effect, or no meaning, without another one."),
    "setting.missing": Kind("A setting that has no default was not given."),
    "setting.unknown": Kind("There is no setting, section, name or option like this."),
    "setting.not_read": Kind("The verb does not read the setting."),
    # Arguments of Python
    "array.form": Kind("An argument is no array of the dtype and the shape that are needed."),
    "array.value": Kind("An array holds values that the record cannot hold."),
    "time.range": Kind("A range of times is not in whole microseconds, or ends before it starts."),
    "events.polarity": Kind("A polarity is neither brighter (1) nor darker (0 or -1)."),
    "events.outside_frame": Kind("An event lies outside of the sensor."),
    "events.part": Kind("Events were indexed with something other than a slice or a mask."),
    "frames.other_size": Kind("A detector was built for frames of another size."),
    "layer.input": Kind("The input of a layer has another shape, dtype or device than the layer takes."),
    "layer.state": Kind("The state of a layer has another shape, dtype or device than the layer needs."),
    "layer.step_scale": Kind("A step scale is not positive, or its shape does not fit the input."),
    "layer.weights": Kind("A layer has weights of another precision than it computes with."),
    "layer.lacks": Kind("A layer does not offer what is asked of it, such as an export or an H2 norm."),
    "scan.shapes": Kind("The arguments of a scan do not fit each other."),
    "memory.other_state": Kind(
        "A stored memory does not fit the detector.", "continue with the same weights and the same sensor"
    ),
    # Files
    "file.missing": Kind("The file or folder does not exist."),
    "file.exists": Kind("The file or folder exists already and is kept.", "choose another name"),
    "file.kind": Kind("The file is of another kind than needed."),
    "file.unreadable": Kind("The file cannot be opened or read.", "check its permissions and its disk, then run again"),
    "file.cut": Kind("The file ends too early.", "copy it again"),
    "file.damaged": Kind("The content of the file contradicts itself.", "copy it again"),
    "file.content": Kind("The file can be read, but does not hold what is needed."),
    "file.ambiguous": Kind("The file holds several things of the kind that is needed.", "name one"),
    "file.cannot_hold": Kind("The format of a file cannot hold what is to be written."),
    "file.not_writable": Kind("The file or folder cannot be written."),
    "file.name": Kind("The name of a file is not UTF-8.", "rename the file or the folder"),
    "folder.no_dataset": Kind("Nothing says which dataset the recordings of a folder are."),
    "folder.no_splits": Kind("A folder of recordings has no train/, val/ or test/."),
    "folder.no_recordings": Kind("A folder holds no recordings."),
    "video.form": Kind("Pictures cannot be written as this video."),
    # Weights
    "weights.missing": Kind("There are no weights at this place or of this name."),
    "weights.not_a_checkpoint": Kind("The file is not a checkpoint of rvtssm."),
    "weights.official": Kind("The file is a checkpoint of RVT or of the official SSM release."),
    "weights.pickle": Kind(
        "The file holds pickled Python objects, and reading those runs code from the file.",
        "if you trust its source, convert it with --trust-pickle",
    ),
    "weights.do_not_fit": Kind("The weights do not fit their description, or the model that shall take them."),
    "weights.not_finite": Kind(
        "Some weights are not finite, because their training diverged.",
        "train again with a smaller optim.learning_rate",
    ),
    "weights.version": Kind("The weights have another format version.", "use the version of rvtssm that wrote them"),
    "weights.other_classes": Kind("The weights know other classes than the data."),
    "model.cannot_build": Kind("A library cannot build the model."),
    # URLs
    "remote.address": Kind("An address does not have the form that is needed."),
    "remote.not_copied": Kind(
        "Files of a store cannot be copied.", "check the address, the credentials, the network and the free space"
    ),
    "remote.cluster": Kind("No cluster of dask answers, or it has no workers."),
    # Runs
    "run.in_use": Kind("Another process writes to the folder."),
    "run.exists": Kind("The folder holds a run, which is kept."),
    "run.not_all_done": Kind("Some of the work could not be done.", "the lines above say why"),
    "run.other_settings": Kind("A run cannot go on with other settings that decide its numbers."),
    "run.not_finite": Kind("A loss or a gradient of a training is not finite."),
    "run.process_ended": Kind("One of several processes that work together has ended."),
    # Recordings
    "events.form": Kind("A value is not a record of events."),
    "events.faulty": Kind("Too many events of a recording are faulty."),
    "events.unsorted": Kind(
        "Events are not in order of time.",
        'sort them: order = np.argsort(t, kind="stable"), then Events(t[order], x[order], y[order], p[order])',
    ),
    "events.times": Kind("The times of a recording cannot be those of its events."),
    "events.unit": Kind("The unit of the times of a recording is not known."),
    "sensor.unknown": Kind("Nothing says how large the sensor is.", "give height= and width="),
    "sensor.contradicts": Kind("The size that was given is not that of the sensor in the file."),
    # Prepared recordings
    "prepared.damaged": Kind("A prepared file is damaged."),
    "prepared.other": Kind(
        "A prepared file was made with other settings, or of another dataset or recording.",
        "prepare it again, or choose another folder",
    ),
    "prepared.fixed": Kind(
        "Prepared frames cannot be counted again into other windows.",
        "use the raw recordings (dataset.source=raw or evaluation.source=raw, dataset.raw_dir=DIR)",
    ),
    # The machine
    "machine.full": Kind("The disk or the memory of this machine has too little room."),
    # Labels and recordings
    "labels.none_scored": Kind("No label is left that is scored.", "choose another split, or add labels"),
    "labels.no_tracks": Kind("The labels do not say which boxes are of one object, so none can be interpolated."),
    "labels.name": Kind("The name of a label file or an image does not have a form that is read (`label_names`)."),
    "labels.form": Kind("An entry of a label file does not have the form of its format."),
    "labels.other_tool": Kind(
        "A label file has the form of a tool that is not read.", "export COCO, YOLO or Pascal VOC with that tool"
    ),
    "labels.class": Kind("A box has a class that the dataset does not name."),
    "labels.outside": Kind("A box reaches past an edge of the image by more than a hundredth."),
    "labels.size": Kind("A label file is of pictures that do not have the size of the sensor."),
    "labels.no_time": Kind("The time of a label cannot be told."),
    "labels.other_times": Kind("Labels and events are of different times."),
    "labels.missing": Kind("There are no labels, or none that can be used."),
    "labels.unsorted": Kind("Labels are not in order of time.", "sort them before scoring"),
    "detections.missing": Kind(
        "A label time that is scored has no detections.",
        "give one Detections per label time, empty or not, or set time_tolerance_us",
    ),
    "labels.between_windows": Kind(
        "A box lies between the ends of two windows.", "build the windows with label_grid from their times"
    ),
    "windows.no_label_time": Kind(
        "A grid of label times has no label.", "use the free grid for recordings without labels"
    ),
    "windows.too_many": Kind(
        "The times allow more windows than a recording can have.",
        "a time in the file is damaged, or the stride is too short",
    ),
    # Sources of events that come once, and what is pushed to a detector
    "source.broke_off": Kind("A camera, a stream or the program that sends events has ended early."),
    "source.not_opened": Kind("A camera or an address cannot be opened or reached."),
    "source.in_use": Kind("A camera or a port is used by another program or page."),
    "source.form": Kind("The bytes of a stream do not have the form of any format that is read."),
    "source.kind": Kind("A stream was given where a recording is needed, or several where one is needed."),
    "events.none": Kind("There are no events."),
    "stream.order": Kind("A packet starts before what is known already."),
    "stream.silence": Kind("No event came for longer than a stream waits, as after a jump of the clock."),
    "stream.full": Kind("More events wait for a window to close than memory is meant for."),
    "stream.not_kept": Kind("The events of a window are not kept any more."),
    # The page of `serve`
    "serve.page": Kind("A page has sent something that it cannot send by itself, or too much."),
    "serve.upload": Kind("An uploaded file cannot be used."),
    # Exported files
    "export.unsupported": Kind("A file for other programs cannot hold the step of these weights."),
    "export.differs": Kind(
        "An exported file does not give what PyTorch gives.", "it was not kept; choose another format or precision"
    ),
    # Weights
    "weights.other_data": Kind("The weights were trained for other classes, frames or data."),
    # The installation
    "install.compiler": Kind("There is no compiler for the code that PyTorch generates."),
    "install.extra": Kind("A package of an optional part is not installed."),
    "plugin.same_name": Kind("Another module has the name of the plugin.", "rename the file"),
    "memory.too_little": Kind("The work takes more memory than is free."),
}


_VERBS = ("does ", "ended ", "ends ", "has ", "holds ", "is ", "takes ", "was ")


def worded(kind: str, name: object = "", found: object = "", needed: object = "", advice: str = "") -> str:
    """Return an error as one line: where, what was found, what is needed and what to do.

    Args:
        kind: One of KINDS.
        name: The setting, file or place.
        found: The value of a setting, or a clause on what is wrong.
        needed: A list of choices, or a clause on what is needed.
        advice: What to do; empty: the advice of the kind.
    """
    # Without a clause of its own, an error is what its kind means.
    if found in ("", None) and needed == "":
        needed = KINDS[kind].meaning.rstrip(".")
    clauses = []
    if isinstance(needed, list | tuple | set | frozenset | dict):
        choices = ["null" if choice is None else str(choice) for choice in needed]
        clauses.append(f"choose from {', '.join(choices) or 'nothing'}")
    else:
        clauses.append(str(needed))
    clauses.append(advice or KINDS[kind].advice)
    rest = "; ".join(filter(None, clauses))
    if found in ("", None):
        return ": ".join(filter(None, (str(name), rest)))
    # A setting is shown as it is written, a file is followed by a clause, and a verb has the name as its subject.
    between = "=" if kind.startswith("setting.") else ": "
    if str(found).startswith(_VERBS):
        between = " "
    where = f"{name}{between}{found}" if str(name) else str(found)
    return "; ".join(filter(None, (where, rest)))


class UserError(ValueError):
    """A mistake that the user can correct. The text says what was found, what is needed and what to do.

    The command line prints the text as one line. Any other exception is a bug of this package and keeps its traceback.

    A program asks for the key, because the text may change:

    >>> import rvtssm
    >>> try:
    ...     rvtssm.open("drive.raw")
    ... except rvtssm.UserError as error:
    ...     if error.key == "file.missing":
    ...         print(error)
    drive.raw does not exist; give an event recording

    Args:
        key: The kind of the mistake, one of `rvtssm.system.user_error.KINDS`.
        text: The whole text. Without it, the fields are worded by their kind.
        name: The setting, file or place that the error is about.
        found: The value of a setting, or a clause on what is wrong.
        needed: A list of choices, or a clause on what is needed.
        advice: What to do, if it is not the usual advice of the kind.
    """

    def __init__(
        self, key: str, text: str = "", *, name: object = "", found: object = "", needed: object = "", advice: str = ""
    ) -> None:
        text = text or worded(key, name, found, needed, advice)
        super().__init__(key, text)  # both are arguments, so that an error from another process keeps its key
        self.key = key
        self.text = text

    def __str__(self) -> str:
        return self.text


def in_one_line(error: BaseException) -> str:
    """Return the text of an error on one line; the name of its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def key_of(error: Exception, otherwise: str) -> str:
    """Return the key of an error that another one wraps; `otherwise` if it has none."""
    return error.key if isinstance(error, UserError) else otherwise


@contextmanager
def errors_about(what: object, advice: str = "") -> Iterator[None]:
    """Put a file or a setting before the text of a UserError, which does not know where its values come from.

    Args:
        what: The file or the setting.
        advice: What else to do about the error.
    """
    try:
        yield
    except UserError as error:
        text = "; ".join(filter(None, [f"{what}: {error}", advice]))
        raise UserError(error.key, text) from None
