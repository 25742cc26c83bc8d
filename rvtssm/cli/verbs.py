"""The verbs of the command line: what each one does, an example, and which keys it reads."""

from dataclasses import dataclass

from rvtssm.cli.config_keys import similar
from rvtssm.system.user_error import UserError


@dataclass(frozen=True, slots=True)
class Verb:
    """What help, completion and the command line know of a verb. Sections and keys are those of `config.Config`."""

    meaning: str
    example: str  # what stands behind the verb
    own: tuple[str, ...] = ()  # sections whose keys need no prefix: `train steps=9` means `train training.steps=9`
    sections: tuple[str, ...] = ()  # other sections that the verb reads
    keys: tuple[str, ...] = ()  # keys outside of the sections
    bare: str = ""  # the key of a path that stands alone: `inspect FILE` means `inspect recording=FILE`
    has_json: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """All sections that the verb reads."""
        return (*self.own, *self.sections)


SAFE_FORMATS = (
    "Files from strangers: .safetensors, .ckpt, .onnx and .xml are read as data. The files of plugins=[FILE] are\n"
    "programs, which can run any code: name them only if you trust their source."
)
_WEIGHTS = ("checkpoint", "precision")
_TRAINED = ("dataset", "model", "temporal", "optim", "sampling", "augment", "data", "postprocess")
VERBS = {
    "demo": Verb(
        "generate data, train a detector, evaluate it at several rates, draw a video; out=DIR",
        "out=outputs/demo",
        ("windows", "training", "evaluation"),
        ("synthetic", *_TRAINED, "predict"),
        ("out", "seed", "precision"),
    ),
    "generate": Verb(
        "write recordings of a simulated dataset; dataset=synthetic|open_world dataset.raw_dir=DIR",
        "dataset=synthetic dataset.raw_dir=data/synthetic num_train=20 duration_s=5",
        ("synthetic",),
        ("dataset",),
    ),
    "simulate": Verb(
        "turn a video into events, its labels into boxes; FILE|FOLDER out=DIR [labels=FILE|FOLDER] [fps=HZ]",
        "street.mp4 labels=gt.txt classes=[person] out=data/street sensor=davis346",
        ("simulate",),
        ("synthetic",),
        ("out", "seed"),
        "simulate.video",
    ),
    "preprocess": Verb(
        "turn raw recordings into histograms; DIR dataset=NAME dataset.prepared_dir=DIR",
        "data/gen1 dataset=gen1 dataset.prepared_dir=data/gen1_prepared stride_ms=50",
        ("preprocess", "windows"),
        ("dataset",),
        (),
        "dataset.raw_dir",
    ),
    "train": Verb(
        "train a detector; dataset=NAME dataset.raw_dir=DIR and/or dataset.prepared_dir=DIR out=DIR [resume=auto]",
        "experiment=gen1_s5_base dataset.prepared_dir=data/gen1_prepared out=runs/gen1 steps=400000 resume=auto",
        ("training", "windows"),
        _TRAINED,
        ("out", "resume", "seed"),
    ),
    "evaluate": Verb(
        "measure average precision at any rates; FILE hz=[20,200]",
        "best.ckpt hz=[20,40,200] out=results",
        ("evaluation", "postprocess"),
        ("dataset", "data"),
        (*_WEIGHTS, "out", "seed"),
        "checkpoint",
    ),
    "study": Verb(
        "train and evaluate every point of a grid, with tables of means and intervals; key=value,value ... out=DIR",
        "experiment=demo temporal=selective_s5,lstm seed=0,1,2 window=slide,shrink hz=[20,200] out=study",
        ("evaluation", "windows", "training"),
        ("study", "synthetic", "preprocess", *_TRAINED),
        ("out", "seed", "precision", "checkpoint"),
    ),
    "predict": Verb(
        "find and draw objects; FILE (or a folder, -, tcp://HOST:PORT, camera:) [checkpoint=FILE]",
        "drive.raw checkpoint=best.ckpt hz=100 out=boxes",
        ("predict",),
        ("dataset",),
        (*_WEIGHTS, "recording", "out"),
        "recording",
    ),
    "label": Verb(
        "make labels for recordings or times without; checkpoint=FILE dataset=NAME dataset.raw_dir=DIR out=DIR",
        "checkpoint=best.ckpt dataset=gen1 dataset.raw_dir=data/gen1 out=data/gen1_labelled",
        ("label",),
        ("dataset",),
        (*_WEIGHTS, "out"),
    ),
    "live": Verb(
        "find objects while a camera sends events; [FILE, played as if live] [checkpoint=FILE] [camera=NAME] [--json]",
        "checkpoint=best.ckpt camera=auto hz=100 out=boxes",
        ("live",),
        (),
        (*_WEIGHTS, "recording", "out"),
        "recording",
        has_json=True,
    ),
    "serve": Verb(
        "show a web page on which recordings and cameras play with their boxes; [FILE|FOLDER] [checkpoint=FILE]",
        "data/drives checkpoint=best.ckpt port=8000",
        ("serve",),
        (),
        ("checkpoint", "recording"),
        "recording",
    ),
    "export": Verb(
        "write a detector as a file for other programs; FILE out=model.onnx [precision=int8 calibrate=DIR]",
        "best.ckpt out=model.onnx",
        ("export",),
        (),
        ("checkpoint", "out"),
        "checkpoint",
    ),
    "audit": Verb(
        "measure memory and time step of a detector (`verify` checks data); FILE [recording=FILE] out=DIR [--json]",
        "best.ckpt recording=drive.raw out=audit",
        ("audit", "dataset"),
        (),
        (*_WEIGHTS, "recording", "out", "seed"),
        "checkpoint",
        has_json=True,
    ),
    "verify": Verb(
        "check a dataset completely; DIR and/or dataset.prepared_dir=DIR, dataset=NAME",
        "data/gen1 dataset=gen1 dataset.prepared_dir=data/gen1_prepared",
        ("preprocess", "windows"),
        ("dataset",),
        (),
        "dataset.raw_dir",
    ),
    "inspect": Verb(
        "describe a recording or a dataset; FILE|FOLDER [dataset=NAME] [out=DIR] [--json]",
        "drive.raw height=720 width=1280 out=inspection",
        ("dataset",),
        (),
        ("recording", "out"),
        "recording",
        has_json=True,
    ),
    "info": Verb(
        "count the parameters of a model; FILE, or model=base dataset=gen1 temporal=s5 [--json]",
        "model=base dataset=gen1 temporal=s5",
        ("windows",),
        ("dataset", "model", "temporal"),
        _WEIGHTS,
        "checkpoint",
        has_json=True,
    ),
    "doctor": Verb("say what works in this installation", ""),
    "completion": Verb("print a script that completes verbs and keys in a shell; bash, zsh or fish", "bash"),
}


# groups of named settings, and the section that a choice fills
GROUPS = {"dataset": "dataset", "model": "model", "temporal": "temporal", "mixer": "model", "sensor": "synthetic"}


def usage() -> str:
    """Return the text of --help: every verb with what it needs."""
    lines = [
        "rvtssm VERB [key=value ...]    --config prints the keys that a verb reads, --help describes them",
        "                               --traceback shows where in the code an error comes from",
        "",
    ]
    return "\n".join(lines + [f"  {name:<11}{verb.meaning}" for name, verb in VERBS.items()] + ["", SAFE_FORMATS])


def known_verb(name: str) -> Verb:
    """Return the verb of this name. Raise ValueError, which names similar ones, if there is none."""
    if name not in VERBS:
        meant = "".join(f"; did you mean {found}?" for found in similar(name, VERBS)[:1])
        raise UserError(f"there is no verb {name!r}; choose from {', '.join(VERBS)}{meant}")
    return VERBS[name]


def verbs_that_read(key: str) -> list[str]:
    """Return the verbs that read a key, a section or a group; all of them for `plugins`, none for unknown keys."""
    first = key.partition(".")[0]
    section = GROUPS.get(first, first)
    return [name for name, known in VERBS.items() if section in (*known.reads, *known.keys) or section == "plugins"]


def in_words(readers: list[str]) -> str:
    """Return that these verbs read a key, such as "train and study do"."""
    names = " and ".join(part for part in (", ".join(readers[:-1]), readers[-1]) if part)
    return f"{names} {'do' if len(readers) > 1 else 'does'}"
