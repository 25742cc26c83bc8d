"""The points of a study, from the words of its command line.

An axis is a word in Hydra's syntax of sweeps, such as `temporal=s5,selective_s5` or `seed=range(0,3)`.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hydra.core.override_parser.types import ValueType
from omegaconf import OmegaConf

from rvtssm.cli.composition import compose, full_words, is_path, parsed
from rvtssm.contrib.studies.study_config import NOT_READ_WITH_WEIGHTS, READ_BY_EVALUATION, StudySettings, given_weights
from rvtssm.system.user_error import UserError


def as_words(settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the words of a command line for values by key, and for several values by key."""
    words = [f"{key}={_as_text(value)}" for key, value in settings.items()]
    for key, values in axes.items():
        words.append(f"{key}={','.join(map(_as_text, values))}")
    return words


def _as_text(value: Any) -> str:
    """Return a value as Hydra reads it: texts inside have quotes, but not the keys of a mapping."""
    if isinstance(value, Mapping):
        pairs = [f"{key}: {_as_text(part)}" for key, part in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str):
        return value
    return json.dumps(value)


def split_axes(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words that have one value, and the values of all others by key."""
    plain, axes = [], {}
    for word in words:
        if is_path("study", word.partition("=")[0]):
            plain.append(word)
            continue
        (override,) = parsed([word])
        if not override.is_sweep_override():
            plain.append(word)
            continue
        is_listed = override.is_choice_sweep() and override.value_type is not ValueType.GLOB_CHOICE_SWEEP
        if not (is_listed or override.is_range_sweep()):
            needed = "the points of a study are listed, as in key=value,value"
            raise UserError("setting.form", found=override.input_line, needed=needed)
        axes[override.key_or_group] = list(override.sweep_string_iterator())
    return plain, axes


def _composed(words: list[str]) -> StudySettings:
    return cast(StudySettings, compose(words, "study"))


def compose_study(words: list[str]) -> tuple[StudySettings, list[tuple[dict[str, str], StudySettings]]]:
    """Return the configuration without the axes, and one configuration per point with its values by key.

    The points are the product of all axes, those of `study.axes` and then those of the command line, and of
    `study.variants`, whose key is "variant". An axis of the command line replaces the one of the same key. The last
    axis changes fastest.

    Raises:
        UserError: Weights are given, and a word sets something that only a training reads.
    """
    plain, given = split_axes(full_words("study", words))
    base = _composed(plain)
    axes = _axes_of_study(base, plain) | given
    _check_read(base, plain, axes)
    base.study.axes = [f"{key}={','.join(values)}" for key, values in axes.items()]
    variants = dict(base.study.named_variants())
    composed = functools.cache(lambda *words: _composed([*plain, *words]))  # which takes most of the time
    choices = [[("variant", name) for name in variants]] if variants else []
    for key, values in axes.items():
        choices.append([(key, value) for value in values])
    points = []
    for chosen in itertools.product(*choices):
        words = list(variants[dict(chosen)["variant"]] if variants else [])
        words += [f"{key}={value}" for key, value in chosen if key != "variant"]
        of_evaluation = [word for word in words if word.startswith("evaluation.")]
        config = composed(*(word for word in words if word not in of_evaluation))
        evaluation = OmegaConf.structured(config.evaluation)
        for override in parsed(of_evaluation):
            OmegaConf.update(evaluation, override.key_or_group.removeprefix("evaluation."), override.value())
        points.append((dict(chosen), replace(config, evaluation=cast(Any, OmegaConf.to_object(evaluation)))))
    return base, points


def _axes_of_study(base: StudySettings, plain: Sequence[str]) -> dict[str, list[str]]:
    """Return the axes of `study.axes`, without those of which a word fixes the value."""
    fixed = {word.partition("=")[0] for word in plain}
    axes: dict[str, list[str]] = {}
    for word in base.study.axes:
        of_one_value, values = split_axes([word])
        key, _, value = word.partition("=")
        axes |= {key: [value]} if of_one_value else values
    return {key: values for key, values in axes.items() if key not in fixed}


def _check_read(base: StudySettings, plain: Sequence[str], axes: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError for settings and axes of a training if the study trains nothing."""
    if not given_weights(base):
        return
    unread = [word for word in plain if word.partition("=")[0].partition(".")[0] in NOT_READ_WITH_WEIGHTS]
    varied = ["study.variants"] if base.study.variants else []
    varied += [key for key in axes if key.partition(".")[0] not in READ_BY_EVALUATION]
    if unread or varied:
        needed = "a study of weights that are given trains nothing"
        advice = f"leave it out (its axes are keys of {', '.join(READ_BY_EVALUATION)}), or leave the weights out"
        raise UserError("setting.not_read", name=" ".join([*unread, *varied]), needed=needed, advice=advice)
