import os
import subprocess
import sys
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from user_errors import raises

import rvtssm
from rvtssm.drawing import draw, open_video, write_png
from rvtssm.drawing.draw import draw_frame, events_image, shown_events
from rvtssm.drawing.pictures import Images, PictureSettings, open_pictures
from rvtssm.events.frame_counter import count_windows
from rvtssm.records import Detections, Events, Labels, Windows, WindowSettings

NAMES = ("car", "pedestrian")


def make_detections(*rows, t_us=3_250_000):
    rows = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64), t_us)


def make_labels(*ltwh, still_us=-1):
    n = len(ltwh)
    zeros = np.zeros(n, np.int64)
    boxes = np.array(ltwh, np.float32).reshape(n, 4)
    return Labels(boxes, zeros, zeros, zeros, np.full(n, still_us))


# Linear RGB of what eyes with a kind of colour blindness see (Machado, Oliveira and Fernandes 2009)
COLOR_BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen_lab(colors, blindness):
    """CIE Lab of colours as seen with a kind of colour blindness."""
    values = np.array(colors) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(COLOR_BLINDNESS[blindness]).T, 0, 1)
    seen = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return cv2.cvtColor(seen[None].astype(np.float32), cv2.COLOR_RGB2Lab)[0]


@pytest.mark.parametrize("blindness", COLOR_BLINDNESS)
def test_all_colours_differ_for_all_eyes(blindness):
    others = (draw.BRIGHTER, draw.DARKER, draw.GROUND_TRUTH, draw.BACKGROUND)
    lab = seen_lab([*draw.CLASS_COLORS, *others], blindness)
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    assert distances[~np.eye(len(lab), dtype=bool)].min() > 15  # 2.3 is just noticeable


def test_names_that_utf8_does_not_have_are_drawn_with_a_mark():
    hist, found = np.zeros((20, 48, 64), np.uint8), make_detections([5, 5, 40, 40, 0.9, 0])
    odd, marked = (draw_frame(hist, found, class_names=(name,), caption=name, note=name) for name in ("a\udcff", "a?"))
    np.testing.assert_array_equal(odd, marked)


def has_color(image, color):
    return bool((image == np.array(color, np.uint8)).all(axis=-1).any())


def test_tags_of_boxes_at_one_place_do_not_hide_each_other(hist):
    boxes = [(20 + i / 10, 20, 50, 45, 0.9 - i / 10, i) for i in range(4)]
    canvas = draw_frame(hist, make_detections(*boxes), class_names="abcd", scale=6)
    areas = [int((canvas == np.array(draw.class_colors("abcd")[i], np.uint8)).all(axis=-1).sum()) for i in range(4)]
    # the ink covers less than half of a tag; the box of the best one, on top, is its line as well
    (width, height), _ = cv2.getTextSize("a 0.90", cv2.FONT_HERSHEY_SIMPLEX, 0.48, 1)
    assert min(areas) > width * height / 2, areas


@pytest.fixture
def hist():
    return np.zeros((20, 60, 80), np.uint8)


def test_events_are_red_and_blue_by_polarity_and_stronger_with_number(hist):
    hist[3, 10, 20] = 1  # darker
    hist[12, 10, 30] = 1  # brighter
    hist[12:18, 10, 40] = 3
    image = events_image(hist)
    assert image.shape == (60, 80, 3) and image.dtype == np.uint8
    red, green, blue = image[10, 30].astype(int)
    assert red > green and red > blue
    assert image[10, 20, 2] > image[10, 20, 0]
    assert image[10, 40, 0] > red
    assert image[0, 0].tolist() == list(draw.BACKGROUND)


def test_surfaces_are_drawn_as_the_events_of_the_last_moments(hist):
    windows = WindowSettings(representation="surfaces")
    hist[12, 10, 30] = 2  # brighter
    t, x, y = np.array([0, 900_000, 990_000, 990_000]), np.array([9, 20, 30, 30]), np.full(4, 10)
    events = Events(t, x.astype(np.uint16), y.astype(np.uint16), np.ones(4, np.uint8))
    window = Windows(np.array([[990_000, 1_000_000]]), np.array([10_000]))
    (frame,) = count_windows(events, window, 60, 80, windows)
    assert (frame > 0).any(axis=0).sum() == 2  # an event from 0.1 s ago is still in the frame
    np.testing.assert_array_equal(events_image(shown_events(frame, windows)), events_image(hist))
    assert shown_events(hist, WindowSettings()) is hist


def test_a_pixel_stays_where_it_is_at_any_scale(hist):
    hist[15, 59, 79] = 10
    for scale in (1, 3, None):
        image = draw_frame(hist, make_detections(), class_names=NAMES, scale=scale)
        factor = scale or draw.best_scale(80)
        canvas = image[30 : 30 + 60 * factor, : 80 * factor]
        assert canvas[-1, -1, 0] > 150 and canvas[-1 - factor, -1, 0] < 50


@pytest.mark.parametrize(("height", "width", "scale"), [(61, 83, 1), (240, 304, None)])
def test_pictures_have_even_sides(height, width, scale):
    image = draw_frame(np.zeros((20, height, width), np.uint8), make_detections(), None, NAMES, scale=scale)
    assert image.shape[0] % 2 == image.shape[1] % 2 == 0 and image.dtype == np.uint8


@pytest.mark.parametrize(("width", "scale"), [(40, 16), (304, 3), (1280, 1)])
def test_the_scale_suits_the_frame(width, scale):
    assert draw.best_scale(width) == scale


def test_a_strip_has_the_width_of_a_slide_at_most():
    pictures = [np.full((30, width, 3), value, np.uint8) for width, value in ((1200, 10), (1200, 200))]
    assert draw.strip_of([picture[:, :900] for picture in pictures]).shape == (30, 1804, 3)
    strip = draw.strip_of(pictures)
    assert strip.shape == (24, 1920, 3) and (strip[:, :950] == 10).all() and (strip[:, 970:] == 200).all()


def boxes_only(image):
    return image[30:-30]


@pytest.mark.parametrize("names", [("person", "vehicle", "two-wheeler"), ("ship", "car", "buoy"), tuple("abcdefghij")])
def test_the_colour_of_a_class_does_not_depend_on_the_order_of_the_classes(names):
    colors = dict(zip(names, draw.class_colors(names), strict=True))
    assert dict(zip(names[::-1], draw.class_colors(names[::-1]), strict=True)) == colors
    assert len(set(colors.values())) == min(len(names), 8)
    assert draw.class_colors(("car", "pedestrian")) == list(draw.CLASS_COLORS[:2])
    assert draw.class_colors(("Ship", "Car", "Person")) == [draw.CLASS_COLORS[place] for place in (2, 0, 1)]


def test_a_label_is_drawn_without_a_score(hist):
    frames = [make_detections((10, 20, 30, 40, score, 0)) for score in (0.9, 1)]
    scored = [draw_frame(hist, frame, None, NAMES, scale=4) for frame in frames]
    labels = [draw_frame(hist, frame, None, NAMES, scale=4, has_scores=False) for frame in frames]
    assert (scored[0] != scored[1]).any() and (labels[0] == labels[1]).all()
    named, longer = ((image == draw.class_colors(NAMES)[0]).all(axis=-1).sum() for image in (labels[0], scored[0]))
    assert named < longer  # the tag ends after the name


def test_boxes_have_the_colour_of_their_class_and_need_the_score(hist):
    frame = make_detections((10, 20, 30, 40, 0.9, 0), (40, 20, 70, 50, 0.3, 1), (5, 5, 9, 9, 0.29, 1))
    canvas = boxes_only(draw_frame(hist, frame, None, NAMES, scale=4))
    assert canvas[160, 80].tolist() == list(draw.class_colors(NAMES)[0])  # the lower edge of the first box
    assert canvas[200, 240].tolist() == list(draw.class_colors(NAMES)[1])
    assert not has_color(canvas[:60, :60], draw.class_colors(NAMES)[1])
    low = boxes_only(draw_frame(hist, frame, None, NAMES, scale=4, min_score=0.95))
    assert not has_color(low, draw.class_colors(NAMES)[0]) and not has_color(low, draw.class_colors(NAMES)[1])


def test_ground_truth_is_white_and_says_what_stands_still(hist):
    canvas = boxes_only(draw_frame(hist, make_detections(), make_labels((10, 10, 20, 20)), NAMES, scale=4))
    edge = (canvas[40, 40:120] == 255).all(axis=-1)
    assert edge.any() and not edge.all()  # dashed
    moving = boxes_only(draw_frame(hist, make_detections(), make_labels((10, 10, 20, 20), still_us=0), NAMES, scale=4))
    still = boxes_only(
        draw_frame(hist, make_detections(), make_labels((10, 10, 20, 20), still_us=800_000), NAMES, scale=4)
    )
    assert (moving == canvas).all() and (still[125:] != canvas[125:]).any()
    assert not has_color(
        boxes_only(draw_frame(hist, make_detections(), make_labels(), NAMES, scale=4)), (255, 255, 255)
    )


def test_caption_and_legend_change_the_bars_only(hist):
    plain = draw_frame(hist, make_detections(), None, NAMES, scale=6)
    timed = draw_frame(hist, make_detections(), None, NAMES, scale=6, caption="t = 9 s   200 Hz")
    assert (plain[:30] != timed[:30]).any() and (plain[30:] == timed[30:]).all()
    truth = draw_frame(hist, make_detections(), make_labels(), NAMES, scale=6)
    assert (plain[-30:] != truth[-30:]).any() and (plain[:-30] == truth[:-30]).all()
    assert has_color(plain[-30:], draw.class_colors(NAMES)[1]) and has_color(plain[-30:], draw.BRIGHTER)


def test_boxes_anywhere_and_classes_without_a_name_are_drawn(hist):
    frame = make_detections(
        (-50, -50, 200, 200, 0.9, 0), (1e9, 1e9, 2e9, 2e9, 0.9, 1), (0, 0, 3, 3, 1.0, 17), (75, 55, 79, 59, 0.8, 1)
    )
    assert draw_frame(hist, frame, make_labels((-1e8, 0, 2e8, 1)), (), scale=2).shape == (180, 160, 3)


def write_video(path, frames, fps):
    with open_video(path, fps) as write:
        for frame in frames:
            write(frame)


def test_a_video_holds_its_frames_in_their_colours(tmp_path):
    colors = [(250, 30, 30), (30, 250, 30), (30, 30, 250)]
    frames = [np.full((64, 96, 3), color, np.uint8) for color in colors]
    write_video(tmp_path / "new" / "video.mp4", iter(frames), fps=25)
    with av.open(str(tmp_path / "new" / "video.mp4")) as container:
        read = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for frame, color in zip(read, colors, strict=True):
        assert frame.shape == (64, 96, 3) and np.abs(frame.mean(axis=(0, 1)) - color).max() < 30
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["video.mp4"]


def test_a_video_is_what_every_browser_plays(tmp_path):
    write_video(tmp_path / "video.mp4", [np.full((64, 96, 3), 90, np.uint8)] * 4, fps=25)
    with av.open(str(tmp_path / "video.mp4")) as container:
        codec = container.streams.video[0].codec_context
        assert (codec.name, codec.pix_fmt, codec.colorspace) == ("h264", "yuv420p", 1)
    content = (tmp_path / "video.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # it plays while it loads


def test_a_video_that_does_not_fit_on_the_disk_is_an_error(tmp_path):
    code = f"""
import resource, signal, numpy as np
from rvtssm.drawing import open_video
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = np.random.default_rng(0).integers(0, 256, (30, 128, 192, 3), dtype=np.uint8)
try:
    with open_video({str(tmp_path / "video.mp4")!r}, 20) as write:
        for frame in noise:
            write(frame)
except OSError as error:
    print("full")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "full\n" and not list(tmp_path.iterdir())


def test_a_video_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), open_video(path, 20) as write:
        write(np.zeros((64, 96, 3), np.uint8))
        raise RuntimeError
    with raises("video.form"):
        write_video(path, [], fps=20)
    with raises("video.form"):
        write_video(path, [np.zeros((2, 16386, 3), np.uint8)], fps=20)
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["video.mp4"]


@pytest.mark.parametrize("fps", [29.97, 200 / 3, 10_000 / 7])
def test_a_video_has_any_rate(tmp_path, fps):
    write_video(tmp_path / "video.mp4", [np.zeros((64, 96, 3), np.uint8)] * 5, fps)
    capture = cv2.VideoCapture(str(tmp_path / "video.mp4"))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(fps, rel=1e-3)
    assert [capture.read()[0] for _ in range(6)] == [True] * 5 + [False]


def test_a_picture_of_many_windows_shows_the_events_of_all(tmp_path):
    num_windows = 300  # a picture of 10 kHz at 30 pictures per second
    shown = []
    settings = PictureSettings(NAMES, 0.5, WindowSettings(stride_us=100), num_windows, False, 1, 1)
    with open_pictures(tmp_path, settings, on_events=[lambda events, _: shown.append(events)]) as show:
        for i in range(num_windows):
            show(np.full((2, 48, 64), 255, np.uint8), make_detections(t_us=100 * (i + 1)), 100 * i)
    np.testing.assert_array_equal(shown, np.full((1, 2, 48, 64), 255 * num_windows))


def test_a_png_keeps_every_pixel(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    write_png(tmp_path / "a.png", image)
    assert (cv2.imread(str(tmp_path / "a.png"))[..., ::-1] == image).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_events_are_drawn_without_a_detector():
    where = np.array([3, 0], np.uint16)
    events = Events(np.arange(2), where, np.array([1, 4], np.uint16), np.array([1, 0], np.uint8))
    picture = np.asarray(rvtssm.draw(events, 5, 7)).astype(int)
    assert picture.shape == (5, 7, 3)
    red_less_blue = picture[..., 0] - picture[..., 2]
    assert red_less_blue[1, 3] > 50 and red_less_blue[4, 0] < -50  # brighter is red, darker is blue
    assert np.unique(picture.reshape(-1, 3), axis=0).shape[0] == 3
    with raises("events.outside_frame"):
        rvtssm.draw(events, 7, 3)
    with raises("setting.form", "height='5'"):
        rvtssm.draw(events, "5", 7)


def test_an_image_whose_name_is_not_utf_8_is_refused():
    images = Images(np.array([0]), [Path(os.fsdecode(b"a\xff.png"))])
    with raises("file.name"):
        images.at(0)
