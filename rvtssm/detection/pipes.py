"""Events from a pipe or a socket: packets of another program, RAW or DAT, whichever the first bytes say."""

import socket
from collections.abc import Callable

from rvtssm.detection.packets import MAGIC, PacketStream
from rvtssm.readers.piped import PipedRecording
from rvtssm.records import ReadOptions
from rvtssm.system.user_error import UserError

SOCKET = "tcp://"
_CONNECT_S = 10.0


class _Pushed:
    """Bytes of a pipe or a socket, of which the first can be looked at."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read, self._head = read, b""

    def head(self, size: int) -> bytes:
        while len(self._head) < size:
            part = self._read(1 << 16)
            if not part:
                break
            self._head += part
        return self._head[:size]

    def read1(self, size: int, /) -> bytes:
        if not self._head:
            return self._read(size)
        part, self._head = self._head[:size], self._head[size:]
        return part


def piped_events(read: Callable[[int], bytes], name: str, options: ReadOptions) -> PipedRecording | PacketStream:
    """Return the events of a pipe: packets if it begins as they do, otherwise RAW or DAT."""
    stream = _Pushed(read)
    if stream.head(len(MAGIC)) == MAGIC:
        return PacketStream(stream, name)
    return PipedRecording(stream, name, options)  # type: ignore[arg-type]


def connected_to(where: str) -> socket.socket:
    """Return a connection to tcp://HOST:PORT; raise UserError if there is none."""
    host, _, port = where.removeprefix(SOCKET).rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError("pipes.address", f"{where} is not of the form {SOCKET}HOST:PORT; name the sender of the events")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    except OSError as error:
        raise UserError(
            "pipes.not_reached", f"{where} cannot be reached ({error}); start the sender first, it must listen there"
        ) from None
    connection.settimeout(None)
    return connection
