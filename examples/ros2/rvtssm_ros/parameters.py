"""The parameters of the node: the default, and what they mean. Numbers may be given as integers."""

from collections.abc import Sequence

PARAMETERS: dict[str, tuple[str | float | int | bool, str]] = {
    "checkpoint": ("street-tiny", "weights: a file or a name, as for `rvtssm predict`"),
    "hz": (
        0.0,
        "windows per second; 0.0: as in training; auto: as many as this machine sustains; may change later",
    ),
    "window": ("", "length of windows at other rates: slide or shrink; empty: as the weights allow"),
    "downsample": (0, "frames are smaller than the sensor by this factor per side; 0: as large as in training"),
    "reduce": ("", "of each square of the sensor: nearest (one pixel) or sum (all events); empty: as in training"),
    "tiles": ("", "cut frames into overlapping tiles, across and down, such as 2x2; empty: whole frames"),
    "min_score": (0.3, "lowest score of boxes that are published; may change while the node runs"),
    "track": ("", "bytetrack gives each object a constant id; empty: no tracks"),
    "filters": (
        "",
        "filters of the events: a list or names with commas, such as flicker,background; empty: none",
    ),
    "heartbeat": (True, "go on with windows while the camera is silent"),
    "stamp": ("ros", "clock of the published stamps: ros (for TF and message filters) or sensor"),
    "type": ("event_camera_msgs/msg/EventPacket", "type of the messages on the topic `events`"),
    "reliability": ("best_effort", "of the subscription: best_effort, which fits every publisher, or reliable"),
    "queue": (1000, "messages that may wait in the middleware"),
    "autostart": (True, "configure and activate the node at its start; false: a manager of life cycles does"),
}


def taken(name: str, value: object) -> str | float | int | bool | list[str]:
    """Return the value of a parameter in the type of its default; `filters` as a list.

    Raises:
        ValueError: The value has another type.
    """
    if name == "filters":
        if isinstance(value, str):
            return [part for part in value.split(",") if part]
        if isinstance(value, Sequence):
            return [str(part) for part in value]
    if name == "hz" and value == "auto":
        return value
    kind = type(PARAMETERS[name][0])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)  # type: ignore[arg-type]
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{name}={value!r} is not a {kind.__name__}; {PARAMETERS[name][1]}")
    return value
