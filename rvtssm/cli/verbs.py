"""The verbs of the command line: what each one does, an example, and which keys it reads.

Verbs of other packages, among them the folders of `rvtssm.contrib`, are entry points of the group `rvtssm.verbs`: the
name is that of the verb, the value a `Verb`. One with the name of a verb of the core takes its place, and so does
one with a prefix: `worlds.generate` replaces `generate`.
"""

import functools
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rvtssm.system.extras import installed_parts
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:  # it imports Hydra, without which `doctor` works
    from rvtssm.cli.config import Config


@dataclass(frozen=True, slots=True)
class Verb:
    """What the command line knows of a verb. Functions and classes are names such as "rvtssm.cli.train:train"."""

    meaning: str
    example: str  # what stands behind the verb
    work: str  # the function, which takes the settings
    check: str = ""  # a function that takes the settings and raises UserError if the verb cannot begin with them
    settings: str = "rvtssm.cli.config:Config"  # the dataclass of the settings, a subclass of `Config` or itself
    grid: str = ""  # a function that composes words with several values to the settings and the points of a grid
    own: tuple[str, ...] = ()  # sections whose keys need no prefix: `train steps=9` means `train training.steps=9`
    sections: tuple[str, ...] = ()  # other sections that the verb reads
    keys: tuple[str, ...] = ()  # keys outside of the sections
    bare: str = ""  # the key of a path that stands alone: `inspect FILE` means `inspect recording=FILE`
    second: str = ""  # the key of a second path that stands alone
    writes: tuple[str, ...] = ("out",)  # keys of folders that have to be on this machine
    recipe: str = ""  # the experiment, if none is named
    follows_frames: bool = False  # windows that are not named are those of the prepared frames
    goes_on: str = ""  # how to continue after an interruption
    has_json: bool = False
    computes: bool = False  # whether it may run beside other programs for long, and shares the processors with them
    is_alone: bool = False  # whether it takes all processors of a machine, which is idle otherwise

    @property
    def reads(self) -> tuple[str, ...]:
        """All sections that the verb reads."""
        return (*self.own, *self.sections)

    @property
    def settings_class(self) -> "type[Config]":
        """The dataclass of the settings."""
        return named(self.settings)


def named(name: str) -> Any:
    """Return what a name such as "rvtssm.cli.train:train" stands for; its file is imported."""
    return pkgutil.resolve_name(name)


SAFE_FORMATS = (
    "Files from strangers: .safetensors, .ckpt, .onnx and .xml are read as data. The files of plugins=[FILE] are\n"
    "programs, which can run any code: name them only if you trust their source."
)
WEIGHTS = ("checkpoint", "precision")
TRAINED = ("dataset", "model", "temporal", "optim", "sampling", "augment", "data", "postprocess")
VERBS: dict[str, Verb] = {
    "preprocess": Verb(
        "turn raw recordings into histograms; DIR dataset=NAME dataset.prepared_dir=DIR",
        "data/gen1 dataset=gen1 dataset.prepared_dir=data/gen1_prepared stride_ms=50",
        "rvtssm.cli.preprocess:preprocess",
        own=("preprocess", "windows"),
        sections=("dataset",),
        bare="dataset.raw_dir",
        writes=("out", "dataset.prepared_dir"),
    ),
    "train": Verb(
        "train a detector; dataset=NAME dataset.raw_dir=DIR and/or dataset.prepared_dir=DIR out=DIR [resume=auto]",
        "experiment=gen1_s5_base dataset.prepared_dir=data/gen1_prepared out=runs/gen1 steps=400000 resume=auto",
        "rvtssm.cli.train:train",
        check="rvtssm.cli.inputs:check_training",
        own=("training", "windows"),
        sections=TRAINED,
        keys=("out", "resume", "seed"),
        goes_on="resume=auto continues the run",
        follows_frames=True,
        computes=True,
    ),
    "evaluate": Verb(
        "measure average precision at any rates; FILE hz=[20,200]",
        "best.ckpt hz=[20,40,200] out=results",
        "rvtssm.cli.evaluate:evaluate",
        check="rvtssm.cli.inputs:check_evaluation",
        own=("evaluation", "postprocess"),
        sections=("dataset", "data"),
        keys=(*WEIGHTS, "out", "seed"),
        bare="checkpoint",
        goes_on="the same command continues the work",
        computes=True,
    ),
    "predict": Verb(
        "find and draw objects; FILE (or a folder, -, tcp://HOST:PORT, camera:) [checkpoint=FILE]",
        "drive.raw checkpoint=best.ckpt hz=100 out=boxes",
        "rvtssm.cli.predict:predict",
        check="rvtssm.cli.inputs:check_prediction",
        own=("detection", "predict", "dataset"),
        sections=("postprocess",),
        keys=(*WEIGHTS, "recording", "filters", "out"),
        bare="recording",
        computes=True,
    ),
    "live": Verb(
        "find objects while events arrive: a camera, -, tcp://HOST:PORT, or a FILE played; [camera=NAME] [--json]",
        "checkpoint=best.ckpt camera=auto hz=100 out=boxes",
        "rvtssm.cli.live:live",
        check="rvtssm.cli.inputs:check_weights_or_default",
        own=("detection", "live", "dataset"),
        sections=("postprocess",),
        keys=(*WEIGHTS, "recording", "filters", "out"),
        bare="recording",
        has_json=True,
        computes=True,
    ),
    "export": Verb(
        "write a detector as a file for other programs; FILE out=model.onnx [precision=NAME calibrate=DIR]",
        "best.ckpt out=model.onnx",
        "rvtssm.cli.export:export",
        check="rvtssm.cli.inputs:check_export",
        own=("export", "postprocess"),
        keys=("checkpoint", "out"),
        bare="checkpoint",
    ),
    "inspect": Verb(
        "describe a recording or a dataset; FILE|FOLDER [dataset=NAME] [full=true] [out=DIR] [--json]",
        "drive.raw height=720 width=1280 out=inspection",
        "rvtssm.cli.inspect:inspect",
        own=("dataset",),
        sections=("preprocess", "windows"),
        keys=("recording", "filters", "out", "full"),
        bare="recording",
        has_json=True,
    ),
    "info": Verb(
        "count the parameters of a model; FILE, or model=base dataset=gen1 temporal=s5 [--json]",
        "model=base dataset=gen1 temporal=s5",
        "rvtssm.cli.info:info",
        check="rvtssm.cli.inputs:check_weights_or_dataset",
        own=("windows",),
        sections=("dataset", "model", "temporal"),
        keys=WEIGHTS,
        bare="checkpoint",
        has_json=True,
        follows_frames=True,
    ),
    "doctor": Verb("say what works in this installation", "", "rvtssm.cli.doctor:doctor"),
}


@functools.cache
def verbs() -> dict[str, Verb]:
    """Return all verbs by name: those of the core, and those of entry points."""
    others = installed_parts("rvtssm.verbs")
    found = dict(VERBS)
    for name in sorted(others, key=lambda name: "." in name):  # those that replace others come last
        found[name.rpartition(".")[2]] = others[name]
    return found


# groups of named settings, and the key that a choice sets
GROUPS = {"dataset": "dataset.name", "model": "model.size", "temporal": "temporal.name", "mixer": "model.mixer"}


def usage() -> str:
    """Return the text of --help: every verb with what it needs."""
    lines = [
        "rvtssm VERB [key=value ...]    --config prints the keys that a verb reads, --help describes them",
        "                               --traceback shows where in the code an error comes from",
        "",
    ]
    return "\n".join(lines + [f"  {name:<11}{verb.meaning}" for name, verb in verbs().items()] + ["", SAFE_FORMATS])


def known_verb(name: str) -> Verb:
    """Return the verb of this name; raise UserError if there is none."""
    if name not in verbs():
        raise UserError("setting.choice", found=f"there is no verb {name!r}", needed=verbs())
    return verbs()[name]


def verbs_that_read(key: str) -> list[str]:
    """Return the verbs that read a key, a section or a group; all of them for `plugins`, none for unknown keys."""
    section = GROUPS.get(key, key).partition(".")[0]
    return [name for name, known in verbs().items() if section in (*known.reads, *known.keys) or section == "plugins"]


def all_sections() -> set[str]:
    """Return the names of the sections that any verb reads."""
    return {section for verb in verbs().values() for section in verb.reads}


def in_words(readers: list[str]) -> str:
    """Return that these verbs read a key, such as "train and study do"."""
    names = " and ".join(filter(None, (", ".join(readers[:-1]), readers[-1])))
    return f"{names} {'do' if len(readers) > 1 else 'does'}"
