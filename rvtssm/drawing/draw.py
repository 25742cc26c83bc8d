"""Draws events with boxes as arrays.

Brighter is red, darker is blue, as in the literature. Text is ASCII, because OpenCV's fonts have no other characters.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from rvtssm.boxes import ltwh_to_xyxy
from rvtssm.events.representations import to_sums
from rvtssm.readers.event_checks import check_events, to_events
from rvtssm.records import Detections, Events, Labels, WindowSettings
from rvtssm.records.settings import SHOWN_SCORE, STILL_US
from rvtssm.system.limits import check_number
from rvtssm.system.user_error import UserError

Color = tuple[int, int, int]  # RGB
Box = tuple[int, int, int, int]  # left, top, right, bottom, pixels of the picture


BACKGROUND: Color = (16, 19, 26)
BAR: Color = (33, 38, 48)
TEXT: Color = (226, 230, 237)
BRIGHTER: Color = (255, 86, 70)
DARKER: Color = (62, 132, 255)
GROUND_TRUTH: Color = (255, 255, 255)
# Also with any kind of colour blindness, these colours differ from each other, from the colours of events, from white,
# and from the background.
CLASS_COLORS: tuple[Color, ...] = (
    (255, 215, 70),
    (215, 120, 170),
    (170, 255, 170),
    (170, 170, 255),
    (70, 120, 20),
    (215, 20, 170),
    (255, 120, 120),
    (120, 70, 255),
)
# Places in CLASS_COLORS, so that a class has its colour whatever the order of the classes. Names of one kind share one.
_COLOR_OF = {
    **{"car": 0, "vehicle": 0, "pedestrian": 1, "person": 1, "two-wheeler": 2, "bicycle": 2},
    **{"truck": 3, "bus": 4, "rider": 5, "motorcycle": 6, "train": 7},
}

SHOWN_US = 50_000  # time span that a picture of `surfaces` shows, since these have no window
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_BAR_PX = 30
_SLIDE_PX = 1920
_GAP_PX = 4  # between the pictures of a strip
_NOTE_SIZE = 0.5  # size of letters in a note


def shown_events(frame: np.ndarray, windows: WindowSettings) -> np.ndarray:
    """Return the numbers of events that a picture shows.

    Args:
        frame: A frame (C, H, W).
        windows: How events became frames.

    Returns:
        For `surfaces` (2K, H, W), the sums at the time constant nearest to 50 ms, rounded: (2, H, W) uint8, darker
            first, so that a single event is visible for two thirds of that time. Other frames are returned unchanged.
    """
    if windows.representation != "surfaces":
        return frame
    octaves = np.abs(np.log2(np.array(windows.time_constants_us) / SHOWN_US))
    sums = to_sums(frame[int(octaves.argmin()) :: len(octaves)])
    return np.minimum(np.rint(sums), 255).astype(np.uint8)


def draw_events(events: Events | np.ndarray, height: int | None = None, width: int | None = None) -> Image.Image:
    """Return a picture of events, which a notebook displays. Brighter is red, darker is blue.

    >>> recording = rvtssm.open("street/test/test_0000_td.dat")
    >>> rvtssm.draw(recording.between(0, 50_000), recording.height, recording.width).size
    (96, 64)

    Args:
        events: Events, or a structured array with the fields t, x, y and p.
        height: Height of the sensor, pixels; needed.
        width: Width of the sensor, pixels; needed.

    Raises:
        UserError: The events do not fit the sensor, or are not in order of time, or a side is missing or not a whole
            number.
    """
    events = to_events(events)
    if height is None or width is None:
        raise UserError(
            "sensor.unknown",
            advice="give height= and width=, such as those of the recording: draw(events, recording.height, "
            "recording.width)",
        )
    for name, side in (("height", height), ("width", width)):
        check_number(name, side, 1, is_whole=True)
    check_events(events, height, width)
    counts = np.zeros((2, height, width), np.uint32)
    np.add.at(counts, (events.p, events.y, events.x), 1)
    return Image.fromarray(events_image(counts))


def events_image(hist: np.ndarray, behind: np.ndarray | None = None) -> np.ndarray:
    """Return a frame as a picture (H, W, 3) uint8 RGB.

    Args:
        hist: A histogram (2 * bins, H, W), darker half first.
        behind: A picture (h, w, 3) of the same view, shown where there are no events.
    """
    darker, brighter = hist.reshape(2, -1, *hist.shape[-2:]).sum(axis=1, dtype=np.float32)
    total = darker + brighter
    share = (brighter / np.where(total > 0, total, 1))[..., None]
    brighter_rgb, darker_rgb, background = np.array([BRIGHTER, DARKER, BACKGROUND], np.float32)
    if behind is not None:
        background = cv2.resize(behind, hist.shape[:0:-1], interpolation=cv2.INTER_AREA).astype(np.float32)
    color = share * brighter_rgb + (1 - share) * darker_rgb
    # A single event is already visible; more events saturate.
    strength = np.where(total > 0, 1 - 0.42 * np.exp(-(total - 1) / 2), 0)[..., None]
    return (background * (1 - strength) + color * strength + 0.5).astype(np.uint8)


def draw_frame(
    hist: np.ndarray,
    detections: Detections,
    ground_truth: Labels | None = None,
    class_names: Sequence[str] = (),
    *,
    scale: int | None = None,
    min_score: float = SHOWN_SCORE,
    caption: str | None = None,
    behind: np.ndarray | None = None,
    note: str | None = None,
    has_scores: bool = True,
) -> np.ndarray:
    """Draw one window: events, detections, and ground truth with dashed lines.

    A bar at the top holds the caption, and a bar at the bottom explains the colours.

    Args:
        hist: Events (2 * bins, H, W).
        detections: Boxes in pixels of `hist`.
        ground_truth: Boxes in pixels of `hist`.
        class_names: Names of the classes.
        scale: Factor by which events are enlarged; None enlarges to about 960 pixels of width.
        min_score: Only detections with at least this score are drawn.
        caption: Text of the bar at the top; None means the time.
        behind: A picture (h, w, 3) of the same view, on which events are drawn.
        note: Text of further bars at the bottom.
        has_scores: Whether tags show the score of a box; False for labels, which have none.

    Returns:
        The picture (h, w, 3) uint8 RGB, where h and w are even.
    """
    class_names = tuple(map(_encodable, class_names))
    scale = scale or best_scale(hist.shape[-1])
    canvas = cv2.resize(events_image(hist, behind), None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
    # Boxes, then labels, then the tags of boxes, so that no line crosses a text.
    chosen = np.flatnonzero(detections.score >= min_score)
    chosen = chosen[np.argsort(detections.score[chosen], kind="stable")]  # draw the best last, on top
    colors = box_colors(class_names, detections)
    for i in chosen:
        x1, y1, x2, y2 = _scaled(detections.xyxy[i], scale)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), BACKGROUND, 4)  # a dark rim makes the line visible on events
        cv2.rectangle(canvas, (x1, y1), (x2, y2), colors[i], 2)
    if ground_truth is not None:
        for xyxy, still_us in zip(ltwh_to_xyxy(ground_truth.boxes_ltwh), ground_truth.still_us, strict=True):
            _draw_dashed(canvas, _scaled(xyxy, scale))
            if still_us >= STILL_US:
                _draw_still(canvas, _scaled(xyxy, scale), f"still {still_us / 1e6:.1f} s")
    tags: list[Box] = []
    for i in chosen[::-1]:  # the tags of the best get their places first
        class_id = int(detections.class_id[i])
        text = class_name(class_names, class_id)
        if has_scores:
            text += f" {detections.score[i]:.2f}"
        if detections.track_id is not None and detections.track_id[i]:
            text += f" #{detections.track_id[i]}"
        tags.append(_draw_tag(canvas, _scaled(detections.xyxy[i], scale), colors[i], text, tags))
    if caption is None:
        caption = f"t = {detections.t_us / 1e6:.3f} s"
    width = canvas.shape[1]
    # Caption above, legend and note below.
    caption_bar = np.full((_BAR_PX, width, 3), BAR, np.uint8)
    cv2.putText(caption_bar, _encodable(caption), (10, 20), _FONT, 0.5, TEXT, 1, cv2.LINE_AA)
    legend_bar = _legend_bar(width, class_names, ground_truth is not None)
    picture = np.concatenate([caption_bar, canvas, legend_bar, *_note_bars(width, _encodable(note or ""))])
    # Video codecs store colour at half resolution and need even sizes.
    return np.pad(picture, ((0, picture.shape[0] % 2), (0, width % 2), (0, 0)), mode="edge")


def best_scale(width: int) -> int:
    """Return the whole factor from 1 to 16 that brings the width of a frame nearest to 960 pixels.

    Args:
        width: Width of the frame in pixels.
    """
    return min(max(round(960 / width), 1), 16)


def strip_of(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return pictures with lines between them as one picture, at most as wide as a slide (1920 pixels).

    Args:
        pictures: Pictures (h, w, 3).
    """
    between = np.full((len(pictures[0]), _GAP_PX, 3), TEXT, np.uint8)
    parts = []
    for picture in pictures:
        parts += [between, picture]
    strip = np.concatenate(parts[1:], axis=1)
    height, width = strip.shape[:2]
    if width <= _SLIDE_PX:
        return strip
    return cv2.resize(strip, (_SLIDE_PX, round(height * _SLIDE_PX / width)), interpolation=cv2.INTER_AREA)


def class_colors(class_names: Sequence[str]) -> list[Color]:
    """Return the RGB colours of classes, which do not depend on their order.

    A usual class, such as car or person, has its own colour. Other names take the free colours in alphabetical order.
    Up to eight classes have different colours.

    Args:
        class_names: Names of the classes.
    """
    places: dict[str, int] = {}
    for name in sorted(class_names, key=lambda name: (name.lower() not in _COLOR_OF, name)):
        free = sorted({*range(len(CLASS_COLORS))} - {*places.values()})
        usual = _COLOR_OF.get(name.lower())
        if usual in free:
            free = [usual]
        places[name] = (free or [len(places) % len(CLASS_COLORS)])[0]
    return [CLASS_COLORS[places[name]] for name in class_names]


def box_colors(class_names: Sequence[str], detections: Detections) -> list[Color]:
    """Return the RGB colour of every box, also where the name of its class is not known.

    Args:
        class_names: Names of the classes.
        detections: The boxes.
    """
    named = dict(enumerate(class_colors(class_names)))
    return [named.get(i, CLASS_COLORS[i % len(CLASS_COLORS)]) for i in detections.class_id.tolist()]


def class_name(class_names: Sequence[str], class_id: int) -> str:
    """Return the name of a class, or `class N` if its name is not known."""
    return class_names[class_id] if class_id < len(class_names) else f"class {class_id}"


def _encodable(text: str) -> str:
    """Return a text without the halves of letters that UTF-8 does not have: OpenCV crashes on them."""
    return text.encode(errors="replace").decode()


def _scaled(xyxy: np.ndarray, scale: int) -> Box:
    # OpenCV takes only 32-bit integers, so corners far outside the picture are moved closer.
    x1, y1, x2, y2 = np.clip(np.nan_to_num(xyxy) * scale, -10_000, 20_000).round().astype(int).tolist()
    return x1, y1, x2, y2


def _draw_tag(canvas: np.ndarray, box: Box, color: Color, text: str, taken: Sequence[Box]) -> Box:
    """Write class and score above the box, or inside it if the box touches the top of the picture; return the place.

    If another tag is already there, take the first free place of these: below the box, inside it at the upper edge,
    inside it at the lower edge.
    """
    x1, y1, _, y2 = box
    (width, height), _ = cv2.getTextSize(text, _FONT, 0.48, 1)
    width, height = width + 8, height + 8
    left = min(max(x1 - 1, 0), max(canvas.shape[1] - width, 0))
    lowest = max(canvas.shape[0] - height - 1, 0)
    places = []
    for top in (y1 - height - 1, y2 + 2, y1, y2 - height, min(max(y1, 0), lowest)):
        if 0 <= top <= lowest:
            places.append((left, top, left + width, top + height))
    place = next((place for place in places if not _is_taken(place, taken)), places[0])
    left, top, right, bottom = place
    cv2.rectangle(canvas, (left, top), (right, bottom), color, cv2.FILLED)
    luminance = np.dot(color, (0.2126, 0.7152, 0.0722))
    ink = BACKGROUND if luminance > 110 else GROUND_TRUTH
    cv2.putText(canvas, text, (left + 4, bottom - 4), _FONT, 0.48, ink, 1, cv2.LINE_AA)
    return place


def _is_taken(place: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = place
    return any(left <= x2 and x1 <= right and top <= y2 and y1 <= bottom for x1, y1, x2, y2 in taken)


def _draw_dashed(canvas: np.ndarray, box: Box, dash: int = 7, gap: int = 5) -> None:
    x1, y1, x2, y2 = box
    for thickness, color in ((3, BACKGROUND), (1, GROUND_TRUTH)):
        for x in range(x1, x2, dash + gap):
            for y in (y1, y2):
                cv2.line(canvas, (x, y), (min(x + dash, x2), y), color, thickness)
        for y in range(y1, y2, dash + gap):
            for x in (x1, x2):
                cv2.line(canvas, (x, y), (x, min(y + dash, y2)), color, thickness)


def _draw_still(canvas: np.ndarray, box: Box, text: str) -> None:
    (width, height), _ = cv2.getTextSize(text, _FONT, 0.42, 1)
    at = (min(max(box[0], 0), max(canvas.shape[1] - width, 0)), min(box[3] + height + 6, canvas.shape[0] - 4))
    cv2.putText(canvas, text, at, _FONT, 0.42, BACKGROUND, 3, cv2.LINE_AA)
    cv2.putText(canvas, text, at, _FONT, 0.42, GROUND_TRUTH, 1, cv2.LINE_AA)


def _legend_bar(width: int, class_names: Sequence[str], has_ground_truth: bool) -> np.ndarray:
    """Draw the colours with their names, from left to right, as many as fit."""
    bar = np.full((_BAR_PX, width, 3), BAR, np.uint8)
    entries = [(name, color, "box") for name, color in zip(class_names, class_colors(class_names), strict=True)]
    if has_ground_truth:
        entries.append(("ground truth", GROUND_TRUTH, "dashed"))
    entries += [("brighter", BRIGHTER, "dot"), ("darker", DARKER, "dot")]
    x = 10
    for name, color, kind in entries:
        (text_width, _), _ = cv2.getTextSize(name, _FONT, 0.45, 1)
        if x + 20 + text_width > width:
            break
        if kind == "box":
            cv2.rectangle(bar, (x, 9), (x + 13, 21), color, 2)
        elif kind == "dashed":
            _draw_dashed(bar, (x, 9, x + 13, 21), dash=3, gap=2)
        else:
            cv2.circle(bar, (x + 7, 15), 5, color, cv2.FILLED, cv2.LINE_AA)
        cv2.putText(bar, name, (x + 20, 20), _FONT, 0.45, TEXT, 1, cv2.LINE_AA)
        x += 20 + text_width + 18
    return bar


def _note_bars(width: int, note: str) -> list[np.ndarray]:
    """Draw a note into as many bars, one below the other, as its words need."""
    lines: list[str] = []
    for word in note.split():
        if lines and _text_width(longer := f"{lines[-1]} {word}", _NOTE_SIZE) <= width - 20:
            lines[-1] = longer
        else:
            lines.append(word)
    bars = np.full((len(lines), _BAR_PX, width, 3), BAR, np.uint8)
    for bar, line in zip(bars, lines, strict=True):
        sizes = [size for size in np.linspace(_NOTE_SIZE, 0.1, 21) if _text_width(line, size) <= width - 20]
        cv2.putText(bar, line, (10, 20), _FONT, (sizes or [0.1])[0], TEXT, 1, cv2.LINE_AA)
    return [*bars]


def _text_width(text: str, size: float) -> int:
    (width, _), _ = cv2.getTextSize(text, _FONT, size, 1)
    return int(width)
