"""The text header that Prophesee's DAT and RAW files share: lines `% key value`, sometimes ended by `% end`.

Source: OpenEB 0499c95, hal_psee_plugins (keys and sizes of cameras).
"""

from dataclasses import dataclass
from pathlib import Path

from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

MAX_HEADER_BYTES = 1 << 16
LARGEST_SIDE = 1 << 14  # pixels; coordinates have at most 14 bits, in DAT
_CAMERA_SIZES_HW = {"gen3": (480, 640), "gen4": (720, 1280), "imx636": (720, 1280), "genx320": (320, 320)}
_SYSTEM_SIZES_HW = {
    **dict.fromkeys((0x15, 0x17, 0x19, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x28, 0x29), (480, 640)),
    **dict.fromkeys((0x1A, 0x1E, 0x1F, 0x20, 0x27, 0x2E, 0x30, 0x31, 0x32), (720, 1280)),
    **dict.fromkeys((0x3B, 0x40), (320, 320)),
}
_FIRST_SYSTEM_IN_ORDER = 0x37  # earlier cameras of Prophesee wrote the halves of EVT2.1 words in the other order
_ENCODINGS = {"2.0": "EVT2", "2.1": "EVT21", "3.0": "EVT3"}
# What cameras sent when headers did not name the encoding yet.
_SYSTEM_ENCODINGS = {
    **dict.fromkeys((0x15, 0x17, 0x19, 0x1A, 0x1C, 0x1D, 0x1F, 0x21, 0x22, 0x23, 0x27, 0x29), "EVT2"),
    **dict.fromkeys((0x1E, 0x20, 0x28, 0x2E, 0x30, 0x31, 0x32), "EVT3"),
}
_PLUGIN_ENCODINGS = {"gen3_fx3": "EVT2", "gen31_fx3": "EVT2", "gen4_fx3": "EVT2", "gen41_evk3": "EVT3"}

UNSAID_SIZE = "does not say the size of its sensor"  # in the message of UnknownSensorSize


class UnknownSensorSize(UserError):
    """Neither the file nor the caller gives the size of the sensor."""


@dataclass(frozen=True, slots=True)
class TextHeader:
    """The header lines of a file and their size in bytes, which is 0 for a file without a header."""

    lines: tuple[str, ...]
    num_bytes: int

    def value(self, key: str) -> str | None:
        """Return the text after `% key`, or None if there is no such line."""
        for line in self.lines:
            name, _, value = line.partition(" ")
            if name.lower() == key.lower():
                return value.strip()
        return None

    @property
    def encoding(self) -> str | None:
        """The name of the encoding, such as EVT2, EVT21 or EVT3. None if neither the header nor its camera tells it."""
        if given := (self.value("format") or "").partition(";")[0].strip():
            return given
        version = self.value("evt")
        if version is not None:
            return _ENCODINGS.get(version, f"EVT{version}")
        plugin = self.value("plugin_name") or ""
        system = _number(self.value("system_ID") or "")
        if self._is_of_prophesee and system in _SYSTEM_ENCODINGS:
            return _SYSTEM_ENCODINGS[system]
        for name, encoding in _PLUGIN_ENCODINGS.items():
            if name in plugin:
                return encoding
        return None

    @property
    def size_hw(self) -> tuple[int, int] | None:
        """Height and width of the sensor in pixels. None if the header does not give them."""
        across, _, down = (self.value("geometry") or "").partition("x")
        for height, width in (
            (self.value("Height"), self.value("Width")),
            (self._option("height"), self._option("width")),
            (down, across),
        ):
            if height and width:
                return _number(height), _number(width)
        return None

    @property
    def camera_size_hw(self) -> tuple[int, int] | None:
        """Height and width in pixels of the camera that the header names. None if it names no known camera."""
        names = [self.value(key) or "" for key in ("plugin_name", "sensor_name")]
        names += [f"gen{self.value(key) or ''}" for key in ("sensor_generation", "generation")]
        for camera, size_hw in _CAMERA_SIZES_HW.items():
            if any(camera in name.lower() for name in names):
                return size_hw
        return _SYSTEM_SIZES_HW.get(_number(self.value("system_ID") or ""))

    @property
    def has_swapped_halves(self) -> bool:
        """Whether the two 32-bit halves of a 64-bit word have the order of early cameras ("legacy")."""
        if order := self._option("endianness") or self.value("endianness"):
            return order == "legacy"
        return self._is_of_prophesee and 0 < _number(self.value("system_ID") or "") < _FIRST_SYSTEM_IN_ORDER

    @property
    def _is_of_prophesee(self) -> bool:
        """Whether the numbers of systems are those of Prophesee."""
        keys = ("integrator_name", "plugin_integrator_name", "camera_integrator_name")
        return all(self.value(key) in (None, "", "Prophesee") for key in keys)

    def _option(self, name: str) -> str | None:
        """Return a value of the line `% format NAME;key=value;...`."""
        for option in (self.value("format") or "").split(";")[1:]:
            key, _, value = option.partition("=")
            if key.strip() == name:
                return value.strip()
        return None


def read_text_header(path: Path) -> TextHeader:
    """Return the lines at the start of a file that begin with `% `, up to and including `% end`.

    Raise ValueError if the file ends within a line.
    """
    with open(path, "rb") as file:
        head = file.read(MAX_HEADER_BYTES)
    lines: list[str] = []
    position = 0
    while head.startswith(b"% ", position) and "end" not in lines[-1:]:
        end = head.find(b"\n", position)
        line = _text(head[position + 2 : end if end >= 0 else None])
        if line is None:  # after a header without `% end`, the first event words can look like another line
            break
        if end < 0:
            found = f"has an unfinished header line at byte {position}"
            advice = "it is cut off or not a recording, copy it again if the original is whole"
            raise UserError("file.cut", name=path, found=found, advice=advice)
        lines.append(line)
        position = end + 1
    return TextHeader(tuple(lines), position)


def _text(line: bytes) -> str | None:
    """Return a line of text without surrounding spaces, or None if the bytes are not text."""
    try:
        text = line.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\t", " ").isprintable() else None


def _number(text: str) -> int:
    """Return a whole number from a header; 0, which is no valid size, for anything else."""
    return int(text) if text.isascii() and text.isdigit() else 0


def sensor_size(
    path: Path, in_file: tuple[int, int] | None, options: ReadOptions, of_camera: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return height and width of the sensor: from the file or the caller, otherwise those of the camera in the header.

    Args:
        path: The file, for messages.
        in_file: Height and width in the file, pixels; None if the file does not state them.
        options: What the caller says; height and width may each be None.
        of_camera: Full size of the camera that the header names, if any.

    Raises:
        UnknownSensorSize: No size is known.
        UserError: The file and the caller disagree, or a size is impossible.
    """
    # What the file says, or else the camera that it names.
    asked = height, width = options.height, options.width
    if in_file is None and (height is None or width is None):
        in_file = of_camera
    if in_file is not None and not all(1 <= side <= LARGEST_SIDE for side in in_file):
        if None in asked:
            found = f"names a sensor of {in_file[1]}x{in_file[0]} (width x height) pixels, which is impossible"
            advice = "give height and width, as in height=240 width=304"
            raise UserError("file.damaged", name=path, found=found, advice=advice)
        in_file = None
    if any(side is not None and not 1 <= side <= LARGEST_SIDE for side in asked):
        found = f"was opened with height={height} width={width}"
        advice = f"a sensor has 1 to {LARGEST_SIDE} pixels per side"
        raise UserError("setting.out_of_range", name=path, found=found, advice=advice)
    # What is said for a whole folder gives way to what the file says.
    if in_file is not None and "height" in options.yields:
        height = None
    if in_file is not None and "width" in options.yields:
        width = None
    # Both agree, or they do not, or nobody says it.
    if in_file is not None and height in (None, in_file[0]) and width in (None, in_file[1]):
        return in_file
    if in_file is not None:
        found = (
            f"comes from a sensor of {in_file[1]}x{in_file[0]} (width x height), but "
            f"{width or 'any'}x{height or 'any'} was requested"
        )
        advice = (
            "leave out height and width (dataset.height and dataset.width for a folder of recordings), or choose "
            "the dataset that has such recordings"
        )
        raise UserError("sensor.contradicts", name=path, found=found, advice=advice)
    if height is None or width is None:
        advice = "give height and width, as in height=240 width=304, or write both into a dataset.yaml above it"
        raise UnknownSensorSize("sensor.unknown", name=path, found=UNSAID_SIZE, advice=advice)
    return int(height), int(width)
