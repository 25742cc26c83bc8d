"""`rvtssm convert IN OUT`: writes a recording in another format, or prepared recordings in the layout of RVT."""

from pathlib import Path

from rvtssm.cli.config import Config
from rvtssm.cli.console import say
from rvtssm.cli.inputs import needed, writable
from rvtssm.contrib.convert.formats import FORMATS, format_for
from rvtssm.contrib.convert.formats import convert as convert_recording
from rvtssm.contrib.convert.rvt_layout import write_rvt_tree
from rvtssm.datasets import build_spec
from rvtssm.datasets.custom import options_above
from rvtssm.readers import index_of, open_with, split_part
from rvtssm.records import ReadOptions
from rvtssm.system.remote import local_path
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import progress_bar


def convert(config: Config) -> None:
    """Write the recording `recording` to the file `out`, whose name says the format, and say what was written.

    A folder of prepared recordings is written to the folder `out` as RVT prepares them. Nothing is overwritten.
    """
    where, out = str(config.recording), Path(str(config.out))
    if out.exists():
        raise UserError("file.exists", name=out, found="exists already", advice="delete it, or choose another name")
    path, _ = split_part(local_path(where))
    if path.is_dir() and index_of(path) is None:
        _convert_prepared(config, path, out)
        return
    format = format_for(out)
    writable(out.absolute().parent)
    recording = open_with(where, options_above(where, ReadOptions.of(config.dataset)))
    with progress_bar("events converted", None) as advance:
        written = convert_recording(recording, out, format, advance)
    seconds = "no events"
    if written.num_events:
        seconds = f"{written.num_events} events from {written.first_us} to {written.last_us} us"
    say(f"wrote {out}: {format}, {recording.width} x {recording.height} pixels, {seconds}")
    if not FORMATS[format].holds_size:
        size = f"dataset.height={recording.height} dataset.width={recording.width}"
        say(f"{format} does not hold the size of the sensor; name it when you open the file ({size})")
    if note := recording.fault_note(written.num_events):
        say(note)


def _convert_prepared(config: Config, prepared_dir: Path, out: Path) -> None:
    needed(config.dataset.name, "dataset=NAME", "the dataset of the prepared recordings")
    spec = build_spec(config.dataset)
    writable(out.absolute().parent)
    with progress_bar("recordings converted", None) as advance:
        written = write_rvt_tree(prepared_dir, out, spec, advance)
    say(f"wrote {out}: {written.num_recordings} recordings with {written.num_frames} frames in the layout of RVT")
    if written.num_left_out:
        say(f"{written.num_left_out} boxes of a detector are left out, because the layout of RVT has no scores")


def check_conversion(config: Config) -> None:
    """Raise UserError if the input or the output is missing."""
    needed(config.recording, "rvtssm convert IN OUT", "a recording, or a folder of prepared recordings")
    needed(config.out, "rvtssm convert IN OUT", "the file to write, such as drive.raw or drive.h5, or a folder")
