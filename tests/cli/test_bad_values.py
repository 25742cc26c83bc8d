"""Every key of the configuration refuses a wrong value, by its name and before data are touched."""

import functools
from copy import deepcopy

import pytest
from config_examples import leaves
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from user_errors import raises

from rvtssm.cli.composition import compose, to_config
from rvtssm.cli.config import Config
from rvtssm.cli.verbs import verbs
from rvtssm.training.checks import check

# what only the disk or the network can judge, and names that mean nothing
FREE = {
    "preprocess.scheduler",
    *("dataset.raw_dir", "dataset.prepared_dir", "preprocess.splits", "evaluation.split", "evaluation.checkpoints"),
    *("out", "checkpoint", "recording", "resume", "training.init_from", "model.size"),
    *("simulate.video", "simulate.labels", "detection.camera_settings", "live.camera"),
    *("serve.host", "serve.token", "serve.camera_settings", "export.calibrate"),
    *("model.timm_name", "model.timm_weights"),  # another backbone does not read them
}
# where neither a negative number nor a word is wrong, or more than one is
WRONG = {
    "temporal.strides": ("[0]", "[5]", "[-4]", "[4,4]"),
    "training.recompute_strides": ("[0]", "[5]", "[1,1]"),
    "model.dim_multiplier": ("[1,2]", "[0,1,1,1]"),
    "model.num_blocks": ("[1,1]", "[-1,1,1,1]"),
    "model.rtdetr_queries": ("0", "1025"),
    "model.rtdetr_denoising": ("-1", "1025"),
    "training.average": ("1", "-0.1"),
    "training.loggers": ("[wandb]",),
    "training.precision": ("16", "bf16-mixed", "bf16-true"),
    "temporal.name": ("S5",),
    "plugins": ("[gone.py]",),
    "predict.formats": ("[avi]",),
    "export.note": ("long" * 20, "\u03b1"),
}


def all_leaves() -> dict[str, tuple[str, str]]:
    """By key, the verb whose settings have it (none for those of the core) and its type."""
    found: dict[str, tuple[str, str]] = {}
    for verb in ("", *verbs()):
        settings = verbs()[verb].settings_class if verb else Config
        for key, kind, _ in leaves(settings()):
            found.setdefault(key, (verb, kind))
    return found


def wrong_values():
    for key, (verb, kind) in all_leaves().items():
        if key in FREE:
            continue
        if key in WRONG:
            values = WRONG[key]
        elif kind.startswith("bool"):
            values = ("maybe",)
        elif kind.startswith("int"):
            values = ("-1", "ten")
        elif kind.startswith("float"):
            values = ("-1", "nan")
        else:
            values = ("nonsense",)
        yield from ((verb, key, value) for value in values)


@functools.cache
def defaults(verb: str) -> DictConfig:
    """The settings without overrides, composed once: to compose them for each wrong value takes most of the time."""
    return OmegaConf.structured(compose([], verb))


@pytest.mark.parametrize(("verb", "key", "value"), list(wrong_values()), ids=str)
def test_a_wrong_value_is_refused_by_key_and_value(verb, key, value):
    with pytest.raises((ValueError, HydraException, OmegaConfBaseException)) as refused:
        composed = deepcopy(defaults(verb))
        words = OverridesParser.create().parse_overrides([f"{key}={value}"])
        ConfigLoaderImpl._apply_overrides_to_config(words, composed)  # as in `hydra.compose`
        config = to_config(composed)
        config.synthetic.check()  # first of all in `rvtssm generate`, as the other in `rvtssm train`
        check(config)
    message = f"{getattr(refused.value, 'full_key', '')} {refused.value}"
    section, _, name = key.rpartition(".")
    assert name in message and section.split(".")[-1] in message
    assert value.strip("[]").split(",")[0] in message


def test_what_is_free_is_there():
    assert {*all_leaves()} >= FREE | set(WRONG)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("model.backbone=timm",), "timm.name_needed"),
        (("model.backbone=timm", "model.timm_name=resnet81"), "timm.no_such_model"),
        (("model.backbone=timm", "model.timm_name=vit_tiny_patch16_224"), "model.parts"),
        (("training.recompute_strides=[2]",), "model.strides"),
        (("model.head_dim=7",), "model.head_dim"),
        (("temporal=lstm", "temporal.bandlimit=0.5"), "temporal.no_bandlimit"),
        (("sampling.batch_size=1",), "sampling.batch_too_small"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(overrides, key):
    with raises(key):
        check(compose(list(overrides)))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("resume=/gone.ckpt", "resume.missing"),
        ("training.init_from=/gone.ckpt", "checkpoint.missing"),
        ("training.accelerator=mps", "training.trainer_refuses"),
    ],
)
def test_a_run_is_refused_before_its_data_are_sought(tmp_path, override, key):
    from rvtssm.cli.train import train

    somewhere = ["dataset=gen1", f"dataset.raw_dir={tmp_path / 'nowhere'}", f"out={tmp_path / 'out'}"]
    with raises(key):
        train(compose([*somewhere, override]))
