"""Which recording and which time the name of a label file or an image says, by the forms of `label_names`.

A form is a name without its suffix, in which `{recording}` stands for the name of the recording, `{frame}` for the
number of a frame, and `{time_s}`, `{time_ms}`, `{time_us}` and `{time_ns}` for a clock; several are added. A `*` stands
for anything that a tool adds. Folders before the name do not count.
"""

import functools
import re
import string
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rvtssm.system.user_error import UserError

USUAL = "{recording}_{frame} or {recording}/{frame}"  # how messages name the forms without `label_names`
_FIELDS = {
    "recording": "(?P<recording>.+)",
    "frame": r"(?P<frame>\d{1,18})",
    "time_s": r"(?P<time_s>\d{1,18}(?:\.\d{1,12})?)",
    "time_ms": r"(?P<time_ms>\d{1,18}(?:\.\d{1,9})?)",
    "time_us": r"(?P<time_us>\d{1,18})",
    "time_ns": r"(?P<time_ns>\d{1,21})",
}
_UNITS_US = {"time_s": Decimal(10**6), "time_ms": Decimal(1000), "time_us": Decimal(1), "time_ns": Decimal("0.001")}
_EXPORTED = re.compile(r"_(?:png|jpe?g|bmp)\.rf\.[0-9a-zA-Z]+$")  # Roboflow writes `walk_0010_png.rf.0f3a.jpg`
_LONGEST_NAME = 4096
_WORD = "[A-Za-z]+[_-]?"  # as in `frame_0010`
_OF_RECORDING = tuple(re.compile(rf"(?P<recording>.+)[_/-]{word}{_FIELDS['frame']}") for word in ("", _WORD))
_OF_ONE = re.compile(rf"(?:.*/)?(?:{_WORD})?{_FIELDS['frame']}")


@dataclass(frozen=True, slots=True)
class Place:
    """What a name says."""

    recording: str | None  # None: one that is not there
    number: int  # of the frame, or the time in microseconds
    is_time: bool = False


def is_form(form: Any) -> bool:
    """Return whether a value is a form: text with known fields, each once, one of which is a frame or a clock."""
    if not isinstance(form, str) or not form:
        return False
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(form) if field is not None]
    except ValueError:
        return False
    return set(fields) <= set(_FIELDS) and len(set(fields)) == len(fields) and bool(set(fields) - {"recording"})


class LabelNames:
    """Reads names of label files or images.

    Args:
        form: The key `label_names`; empty for the usual forms.
        recordings: The names of all recordings.
        only: The recording of a file that holds labels of one recording, whose images need not name it.
    """

    def __init__(self, form: str, recordings: Collection[str], only: str | None = None) -> None:
        self.form = form or USUAL
        self._recordings = {unicodedata.normalize("NFC", name): name for name in recordings}
        self.only = only
        self._patterns = (_compiled(form, _LONGEST_NAME),) if form else _OF_RECORDING

    def read(self, name: str) -> Place | None:
        """Return what a name says; None if it does not have the form.

        Args:
            name: The path of an image or a label file, with or without its suffix.
        """
        stem = image_stem(name)
        if self.form == USUAL:
            stem = _EXPORTED.sub("", stem)
        found = None
        for pattern in self._patterns:
            match = pattern.fullmatch(stem)
            while match:
                fields = match.groupdict()
                place = _place(self._known(fields.get("recording")), fields)
                if place.recording is not None:
                    return place
                found = found or place
                # The name of the recording may end earlier, if something that a tool adds may follow it.
                longest = len(fields.get("recording") or "") - 1
                match = _compiled(self.form, longest).fullmatch(stem) if "*" in self.form and longest > 0 else None
        if self.only is not None and self.form == USUAL and (match := _OF_ONE.fullmatch(stem)):
            return Place(self.only, int(match["frame"]))
        return found

    def by_recording(
        self, entries: Iterable[tuple[Any, str, Place]], where: Path
    ) -> tuple[dict[str, tuple[list[Any], list[Place]]], list[str], bool]:
        """Sort labelled images, or the label files of frames, by their recordings.

        Args:
            entries: Each with its name, and what the name says.
            where: The file or the folder that holds them, for the message.

        Returns:
            By recording, its images and what their names say; the names of those of recordings that are not there;
            whether frames are numbered from 1: 1 is the smallest number.

        Raises:
            UserError: None of them belongs to a recording.
        """
        found: dict[str, tuple[list[Any], list[Place]]] = {}
        strangers = []
        for item, name, place in entries:
            if place.recording is None:
                strangers.append(name)
                continue
            items, places = found.setdefault(place.recording, ([], []))
            items.append(item)
            places.append(place)
        if strangers and not found:
            text = f"no label belongs to a recording; the first is {strangers[0]}"
            examples = ", ".join(sorted(self._recordings.values())[:3])
            needed = f"names of the form {self.form}, of recordings such as {examples}"
            raise UserError("labels.name", name=where, found=text, needed=needed, advice=self._advice(strangers[0]))
        numbers = [place.number for _, places in found.values() for place in places if not place.is_time]
        return found, strangers, min(numbers, default=0) == 1

    def refused(self, where: str, name: str) -> UserError:
        """Return the error for a name that does not have the form."""
        found = f"the name does not have the form {self.form}"
        return UserError("labels.name", name=where, found=found, advice=self._advice(name))

    def _advice(self, name: str) -> str:
        """Return what to do about a name that has another form: say the form that it seems to have."""
        form = self._nearest(name)
        if "{recording}" not in form and len(self._recordings) > 1:
            return f"rename it, since nothing in {name} says which recording it is of (docs/your_files.md)"
        return f"say in dataset.yaml which form it has, as in label_names: '{form}' (docs/your_files.md)"

    def _nearest(self, name: str) -> str:
        """Return the form that a name which has another one seems to have."""
        stem = unicodedata.normalize("NFC", image_stem(name))
        begun = [known for known in self._recordings if re.search(rf"(^|/){re.escape(known)}(?![0-9A-Za-z])", stem)]
        recording = max(begun, key=len, default="")
        rest = stem[stem.rfind(recording) + len(recording) :] if recording else stem.rpartition("/")[2]
        clock = re.search(r"\d+\.\d+$", rest)
        number = clock or re.search(r"\d+$", rest)
        if number is None:
            return "{recording}_{frame}"
        between = rest[: number.start()]
        if len(between) > 1:
            between = f"{between[0]}*{between[-1]}" if recording else f"*{between[-1]}"
        field = "{time_s}" if clock else "{frame}"
        return f"{'{recording}' if recording else ''}{between}{field}"

    def _known(self, found: str | None) -> str | None:
        """Return the recording that a path ends with; the only one if the form does not name it."""
        if found is None:
            return self.only
        parts = unicodedata.normalize("NFC", found).split("/")
        for start in range(len(parts)):
            if (name := "/".join(parts[start:])) in self._recordings:
                return self._recordings[name]
        return None


def image_stem(name: str) -> str:
    """Return the path of an image without suffix, with / between folders; tools on Windows write a backslash."""
    folder, _, file = name.replace("\\", "/").rpartition("/")
    stem = re.sub(r"\.[A-Za-z]\w*$", "", file)
    return f"{folder}/{stem}".lstrip("/")


@functools.lru_cache(maxsize=1 << 10)
def _compiled(form: str, longest: int) -> re.Pattern[str]:
    """Return the expression of a form, in which the name of the recording has at most `longest` letters."""
    parts = []
    for text, field, _, _ in string.Formatter().parse(form):
        parts.append("[^/]*?".join(map(re.escape, text.split("*"))))
        parts.append(_FIELDS.get(field or "", "").replace(".+", f".{{1,{longest}}}"))
    leading = "" if form.startswith("{recording}") else "(?:.*/)?"
    return re.compile(leading + "".join(parts))


def _place(recording: str | None, fields: dict[str, str | None]) -> Place:
    if fields.get("frame") is not None:
        return Place(recording, int(str(fields["frame"])))
    clocks = [Decimal(str(fields[name])) * unit for name, unit in _UNITS_US.items() if fields.get(name)]
    return Place(recording, round(sum(clocks, Decimal(0))), is_time=True)
