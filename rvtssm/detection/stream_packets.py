"""What is asked of the packets that a program pushes, and those that are kept for pictures."""

from dataclasses import replace

import numpy as np

from rvtssm.events.windows import LATE_US, LONGEST_SILENCE_US, first_jump
from rvtssm.readers.event_checks import check_events
from rvtssm.readers.gate import join_events
from rvtssm.records import Events
from rvtssm.system.user_error import UserError


def in_order(packet: Events, known_us: int | None) -> tuple[Events, int]:
    """Return a packet whose events up to 10 ms late have the time of the event before them, and their number.

    A packet whose events are in another order is returned unchanged; `check_events` refuses it.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.

    Raises:
        UserError: The packet starts more than 10 ms before `known_us`.
    """
    if not len(packet):
        return packet, 0
    before_us = int(packet.t[0]) if known_us is None else known_us
    if packet.t[0] < before_us - LATE_US:
        raise UserError(
            "stream.order",
            found=f"this packet starts at {packet.t[0]} us",
            needed=f"events must come in order of time, at or after {before_us} us, as set by an earlier packet, "
            "until_us or start_us",
            advice="leave it out and push the next one, or call restart() if the clock has jumped",
        )
    times_us = np.maximum.accumulate(np.maximum(packet.t, before_us))
    late_us = times_us - packet.t
    if not 0 < late_us.max() <= LATE_US:
        return packet, 0
    return replace(packet, t=times_us), int(np.count_nonzero(late_us))


def check_packet(packet: Events, known_us: int | None, height: int, width: int) -> tuple[Events, int]:
    """Return events of a program in order, and how many of them were late.

    This is the gate of what is pushed. Sources have gates of their own.

    Args:
        packet: The events.
        known_us: As in `in_order`.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.

    Raises:
        UserError: See `in_order` and `check_events`.
    """
    packet, num_late = in_order(packet, known_us)
    check_events(packet, height, width)
    return packet, num_late


def check_silence(packet: Events, known_us: int | None, until_us: int | None) -> None:
    """Raise UserError if no event came for more than LONGEST_SILENCE_US, as after a jump of the clock.

    Args:
        packet: The events.
        known_us: All events before this time are known; None: there was no event yet.
        until_us: No event before this time is missing; None says nothing.
    """
    last_us = int(packet.t[-1]) if len(packet) else known_us
    until = np.array([] if until_us is None else [until_us], np.int64)
    for before_us, times in ((known_us, packet.t), (last_us, until)):
        jump = first_jump(before_us, times)
        if jump is not None:
            longest_s = LONGEST_SILENCE_US / 1e6
            raise UserError(
                "stream.silence",
                found=f"no event for more than {longest_s:g} s before {times[jump]} us",
                advice="if the clock has jumped, or start_us belongs to another clock, call restart(); if nothing "
                f"happened, pass until_us in steps of at most {longest_s:g} s",
            )


class KeptEvents:
    """The events of the windows that the last push closed, for pictures of their results."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._packets: list[Events] = []
        self._from_us: int | None = None
        self._is_new_push = False

    def add(self, packet: Events) -> None:
        self._packets.append(packet)

    def begin_push(self) -> None:
        self._is_new_push = True

    def note(self, start_us: int) -> None:
        """Forget the events before the first window of a push, which starts at a time."""
        if self._is_new_push:
            self._from_us = start_us
            self._is_new_push = False
            self._packets = [packet for packet in self._packets if packet.t[-1] >= start_us]

    def between(self, start_us: int, end_us: int) -> Events:
        """Return the events of a window that the last push closed. Raise UserError for an earlier window."""
        if self._from_us is None or start_us < self._from_us:
            found = "a stream only keeps the events of the windows that closed last"
            advice = "draw results before the next push, or pass its events: draw(EVENTS)"
            raise UserError("stream.not_kept", found=found, advice=advice)
        return join_events([packet.between(start_us, end_us) for packet in self._packets])
