"""Every setting states its limits, and the value next to each of them is refused by name, from Python as well."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from user_errors import raises

from rvtssm.cli.config import Config
from rvtssm.cli.verbs import verbs
from rvtssm.contrib.demo.simulation_config import CameraConfig
from rvtssm.system.limits import Settings, limits_of


def sections_of(settings: Any) -> Iterator[type[Settings]]:
    """The kinds of settings within settings."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if is_dataclass(value):
            yield from ([type(value)] if isinstance(value, Settings) else [])
            yield from sections_of(value)


SECTIONS = {
    kind.section: kind
    for settings in (Config, *(verbs()[verb].settings_class for verb in verbs()))
    for kind in sections_of(settings())
} | {"camera": CameraConfig}


def values_beyond(one: Any) -> Iterator[tuple[Any, str]]:
    """Wrong values of a field, and the kind of their refusal."""
    limits, kind = limits_of(one), str(one.type)
    is_number = "int" in kind or "float" in kind
    wrong: list[tuple[Any, str]] = []
    if is_number:
        wrong += [("5", "setting.choice" if limits.choices else "setting.form"), (math.nan, "setting.out_of_range")]
        below = [limits.at_least - 1, limits.above, limits.at_most + 1, limits.below]
        wrong += [(int(bound), "setting.out_of_range") for bound in below if math.isfinite(bound)]
        wrong += [(0.5, "setting.out_of_range")] if "float" not in kind else []
    elif limits.choices:
        wrong.append(("nonsense", "setting.choice"))
    if kind.startswith(("list[", "tuple[")):
        wrong = [([value], refusal) for value, refusal in wrong]
        wrong += [([], "setting.form")] if limits.is_filled else []
        wrong += [([7, 7], "setting.form")] if limits.is_distinct and is_number else []
    yield from wrong


WRONG = [
    (section, one.name, value, kind)
    for section, settings in SECTIONS.items()
    for one in fields(settings)
    for value, kind in values_beyond(one)
]


@pytest.mark.parametrize(("section", "name", "value", "kind"), WRONG, ids=str)
def test_a_value_beyond_its_limits_is_refused_by_name(section, name, value, kind):
    with raises(kind, f"{section}.{name}"):
        SECTIONS[section](**{name: value}).check_limits()


def test_the_limits_of_every_section_are_read():
    assert len(SECTIONS) > 20 and len(WRONG) > 150
