"""The sensor size of a recording that does not state it, from the description of the dataset that it belongs to."""

from pathlib import Path

from rvtssm.datasets.custom import FILE, read_spec
from rvtssm.readers import open_recording
from rvtssm.readers.header import UnknownSensorSize


def sensor_above(path: Path) -> tuple[int | None, int | None]:
    """Return height and width from the nearest `dataset.yaml` in a folder above a recording that does not state them.

    Return None, None if the recording states its size, or if there is no such file. Raise UserError if the recording
    cannot be read, or if the content of `dataset.yaml` is wrong.
    """
    try:
        open_recording(path).close()
    except UnknownSensorSize:
        for folder in path.absolute().parents:
            if (folder / FILE).is_file():
                spec = read_spec(folder)
                return spec.height, spec.width
    return None, None
