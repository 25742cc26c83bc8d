"""Check the lengths that texts of a prepared file claim to have, before libhdf5 allocates memory for them."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from rvtssm.remote.mirror import whole
from rvtssm.system.user_error import UserError

_HEAP_SIGNATURE = b"GCOL\x01"  # HDF5, section III.E: signature and version; the size follows 8 bytes after the start


def check_lengths(path: Path | str, file: h5py.File, advice: str) -> None:
    """Raise UserError if a text or heap claims to be longer than the file: libhdf5 would allocate that memory.

    Texts without a fixed length lie in heaps. They occur in files of earlier versions and in files that others made.

    Args:
        path: The file.
        file: The same file, opened.
        advice: End of the messages.
    """
    places = [(file.attrs, "meta")]
    if "frames" in file:
        places += [(file["frames"].attrs, "shape"), (file["frames"].attrs, "dtype")]
    loose = [name for attributes, name in places if name in attributes and _lies_in_a_heap(attributes.get_id(name))]
    if not loose:
        return
    with whole(path), open(path, "rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
        lengths = [int.from_bytes(content[at + 8 : at + 16], "little") for at in _places(content, _HEAP_SIGNATURE)]
        for name in loose:
            found = list(_text_lengths(content, name.encode() + b"\0"))
            if not found:
                raise UserError(f"{path} stores {name} in a form that cannot be checked; {advice}")
            lengths += found
        if max(lengths, default=0) > len(content):
            raise UserError(f"{path} is damaged (a text of {max(lengths)} bytes in a file of {len(content)}); {advice}")


def _places(content: mmap.mmap, wanted: bytes) -> Iterator[int]:
    at = content.find(wanted)
    while at >= 0:
        yield at
        at = content.find(wanted, at + 1)


def _text_lengths(content: mmap.mmap, name: bytes) -> Iterator[int]:
    """Yield the lengths of texts in messages of attributes with this name; see HDF5, section IV.A.2.m.

    A message consists of a version, a byte, the sizes of name, type and space, in version 3 another byte, then these
    three, and the value, which begins with the length of the text. In version 1 each of the three is padded to 8 bytes.
    """
    for at in _places(content, name):
        for version, start in ((1, at - 8), (2, at - 8), (3, at - 9)):
            head = content[max(start, 0) : max(start, 0) + 8]
            if start < 0 or head[0] != version or head[2:4] != len(name).to_bytes(2, "little"):
                continue
            sizes = (int.from_bytes(head[i : i + 2], "little") for i in (2, 4, 6))
            value = at + sum(size if version > 1 else -(-size // 8) * 8 for size in sizes)
            yield int.from_bytes(content[value : value + 4], "little")


def _lies_in_a_heap(attribute: Any) -> bool:
    """Return whether the value of an attribute is anything but integers or a text of fixed length."""
    kind = attribute.get_type()
    is_fixed_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    return not is_fixed_text and not isinstance(kind, h5py.h5t.TypeIntegerID)
