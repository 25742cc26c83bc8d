"""What verbs read from the configuration: values they cannot do without, a folder to write to, the folders of the data.

Nothing that computes is imported here, so that a missing value is reported at once.
"""

import operator
import os
from dataclasses import replace
from pathlib import Path

from rvtssm.cli.config import Config
from rvtssm.cli.verbs import named, verbs
from rvtssm.datasets import build_spec
from rvtssm.export import precisions
from rvtssm.models.weight_files import default_weights, named_weights
from rvtssm.system.remote import check_local
from rvtssm.system.user_error import UserError


def needed(value: str | None, key: str, what: str) -> str:
    """Return the value; raise UserError, which names the key, if it is missing."""
    if not value:
        raise UserError("setting.missing", name=f"{key} is needed", needed=what)
    return value


def weights_path(config: Config) -> str:
    """Return the path or the name of the weights; raise UserError if it is missing, or if there is no such name."""
    path = needed(config.checkpoint, "checkpoint=FILE", "weights, such as outputs/demo/checkpoints/best.ckpt")
    named_weights(path)
    return path


def with_default_weights(config: Config) -> Config:
    """Return the configuration, with the default weights if it names none and this installation has them."""
    if config.checkpoint:
        return config
    return replace(config, checkpoint=default_weights())


def check_weights_or_default(config: Config) -> None:
    """Raise UserError if there are no weights, neither named nor in this installation."""
    weights_path(with_default_weights(config))


def check_prediction(config: Config) -> None:
    """Raise UserError if weights or events are missing."""
    check_weights_or_default(config)
    events_path(config)


def events_path(config: Config) -> str:
    """Return what to predict on; raise UserError if it is missing."""
    return needed(config.recording, "recording=FILE", "the events: a file, a folder, -, tcp://HOST:PORT or camera:")


def export_path(config: Config) -> Path:
    """Return the file to export to; raise UserError if it is missing or a folder."""
    formats = "model.onnx (ONNX), model.xml (OpenVINO) or model.safetensors (weights)"
    out = Path(needed(config.out, "out=FILE", formats))
    if out.is_dir():
        raise UserError(
            "file.kind", name=out, found="it is a folder", needed="the exported model is a file",
            advice="choose another name",
        )  # fmt: skip
    return out


def default_out(verb: str, *parts: str) -> Path:
    """Return the folder of a verb that is given none; its name has the parts that tell one result from another."""
    return Path("outputs", verb, "_".join(filter(None, parts)))


def out_folder(config: Config, verb: str, *parts: str) -> Path:
    """Return the folder `out`, or that of a verb that is given none."""
    if config.out:
        return Path(config.out)
    return default_out(verb, *parts)


def weights_label(path: str | None) -> str:
    """Return a name of weights for folders: run and file of a checkpoint, the name of other weights, "" for none."""
    if not path:
        return ""
    if Path(path).parent.name != "checkpoints":
        return Path(path).stem
    return f"{Path(path).resolve().parent.parent.name}_{Path(path).stem}"


def calibration_path(config: Config) -> str | None:
    """Return the recordings to calibrate an export on, None without.

    Raise UserError if the precision lacks them, or if one that needs none is given them.
    """
    calibrate = config.export.calibrate
    precision = config.export.precision
    if precisions()[precision].calibration:
        return needed(calibrate, "calibrate=RECORDINGS", f"{precision} takes the ranges of its numbers from them")
    if calibrate:
        others = [name for name, known in precisions().items() if known.calibration]
        why = f"it has no effect on {precision}"
        advice = f"add precision={' or '.join(others)}, or leave calibrate out"
        raise UserError("setting.needs", name="calibrate", found=calibrate, needed=why, advice=advice)
    return None


def check_export(config: Config) -> None:
    """Raise UserError if the file to write, the weights or the recordings to calibrate on are missing."""
    export_path(config)
    weights_path(config)
    calibration_path(config)


def check_training(config: Config) -> None:
    """Raise ValueError if the data of a training are not named."""
    if config.dataset.name and not any(config.folders.values()):
        name = "dataset.raw_dir=DIR or dataset.prepared_dir=DIR is needed"
        raise UserError("setting.missing", name=name, needed="what to train on")
    build_spec(config.dataset)


def recordings_path(config: Config) -> str:
    """Return the folder of the recordings; raise UserError if it is missing."""
    return needed(config.dataset.raw_dir, "dataset.raw_dir=DIR", "the recordings, in train/, val/ and test/")


def check_weights_or_dataset(config: Config) -> None:
    """Raise UserError if neither weights nor a dataset are named, or settings beside weights, which say them."""
    if not config.checkpoint:
        build_spec(config.dataset)
        return
    names = ("dataset", "model", "temporal", "windows")
    usual = Config()
    if unread := [name for name in names if getattr(config, name) != getattr(usual, name)]:
        needed = f"info describes {config.checkpoint} with the settings that the weights have"
        advice = "leave these settings out, or the weights"
        raise UserError("setting.conflict", name=", ".join(unread), needed=needed, advice=advice)


def check_evaluation(config: Config) -> None:
    """Raise UserError if the weights are missing."""
    if config.evaluation.checkpoints is None:
        weights_path(config)


def check_inputs(verb: str, config: Config) -> None:
    """Raise UserError if the configuration lacks something without which the verb cannot begin."""
    known = verbs()[verb]
    for key in known.writes:
        check_local(key, operator.attrgetter(key)(config))
    if known.check:
        named(known.check)(config)


def writable(folder: Path) -> Path:
    """Return the folder, which need not exist; raise UserError now, not after hours of work, if it is not writable."""
    place = next(filter(Path.exists, (folder.absolute(), *folder.absolute().parents)))
    if not place.is_dir():
        found = f"is or lies below a file ({place}), and a folder is needed"
        raise UserError("file.not_writable", name=folder, found=found, advice="choose another")
    if not os.access(place, os.W_OK | os.X_OK):
        advice = "choose another folder, or change its permissions"
        raise UserError("file.not_writable", name=place, found="is not writable", advice=advice)
    return folder
