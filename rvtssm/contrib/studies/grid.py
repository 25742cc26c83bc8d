"""The points of a study, from the words of its command line.

An axis is a word in Hydra's syntax of sweeps, such as `temporal=s5,selective_s5` or `seed=range(0,3)`.
"""

import functools
import itertools
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from omegaconf import OmegaConf

from rvtssm.cli.composition import compose, to_config
from rvtssm.contrib.studies.study_config import StudySettings
from rvtssm.system.user_error import UserError


def split_axes(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words that have one value, and the values of all others by key."""
    plain, axes = [], {}
    for word, each in zip(words, OverridesParser.create().parse_overrides(words), strict=True):
        if not each.is_sweep_override():
            plain.append(word)
            continue
        is_listed = each.is_choice_sweep() and each.value_type is not ValueType.GLOB_CHOICE_SWEEP
        if not (is_listed or each.is_range_sweep()):
            raise UserError(
                "study.not_listed", f"{each.input_line}: the points of a study are listed; write key=value,value"
            )
        axes[each.key_or_group] = list(each.sweep_string_iterator())
    return plain, axes


def _composed(words: list[str]) -> StudySettings:
    return cast(StudySettings, compose(words, "study"))


def compose_study(words: list[str]) -> tuple[StudySettings, list[tuple[dict[str, str], StudySettings]]]:
    """Return the configuration without the axes, and one configuration per point with its values by key.

    The points are the product of all axes, those of `study.axes` and then those of the command line, and of
    `study.variants`, whose key is "variant". An axis of the command line replaces the one of the same key. The last
    axis changes fastest.
    """
    plain, given = split_axes(words)
    base = _composed(plain)
    fixed = {word.partition("=")[0] for word in plain}
    axes: dict[str, list[str]] = {}
    for word in base.study.axes:
        of_one_value, values = split_axes([word])
        key, _, value = word.partition("=")
        axes |= {key: [value]} if of_one_value else values
    axes = {key: values for key, values in axes.items() if key not in fixed} | given
    base.study.axes = [f"{key}={','.join(values)}" for key, values in axes.items()]
    variants = dict(base.study.named_variants())
    composed = functools.cache(lambda *words: _composed([*plain, *words]))  # which takes most of the time
    choices = [[("variant", name) for name in variants]] if variants else []
    choices += [[(key, value) for value in values] for key, values in axes.items()]
    points = []
    for chosen in itertools.product(*choices):
        words = list(variants[dict(chosen)["variant"]] if variants else [])
        words += [f"{key}={value}" for key, value in chosen if key != "variant"]
        of_evaluation = [word for word in words if word.startswith("evaluation.")]
        config = OmegaConf.structured(composed(*(word for word in words if word not in of_evaluation)))
        for each in OverridesParser.create().parse_overrides(of_evaluation):
            OmegaConf.update(config, each.key_or_group, each.value())
        points.append((dict(chosen), cast(StudySettings, to_config(config))))
    return base, points
