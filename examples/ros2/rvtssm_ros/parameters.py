"""The parameters of the node: the default, which says the type as well, and what they mean."""

PARAMETERS: dict[str, tuple[str | float | int, str]] = {
    "checkpoint": ("street-tiny", "weights: a file or a name, as for `rvtssm predict`"),
    "hz": (0.0, "windows per second; 0.0: as in training"),
    "window": ("", "length of windows at other rates: slide or shrink; empty: as the weights allow"),
    "downsample": (0, "frames are smaller than the sensor by this factor per side; 0: as large as in training"),
    "reduce": ("", "of each square of the sensor: nearest (one pixel) or sum (all events); empty: as in training"),
    "tiles": ("", "cut frames into overlapping tiles, across and down, such as 2x2; empty: whole frames"),
    "min_score": (0.3, "lowest score of boxes that are published"),
    "track": ("", "bytetrack gives each object a constant id; empty: no tracks"),
    "filters": ("", "filters of the events, separated by commas, such as flicker,background; empty: none"),
    "stamp": ("ros", "clock of the published stamps: ros (for TF and message filters) or sensor"),
    "type": ("event_camera_msgs/msg/EventPacket", "type of the messages on the topic `events`"),
    "queue": (1000, "messages that may wait, in the middleware and in the node"),
}
