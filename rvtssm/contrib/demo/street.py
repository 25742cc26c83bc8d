"""The background of a scene: a camera that may move, and the ground and the houses of a street.

A pinhole camera stands at some height over flat ground, and houses stand on a plane across the street. Depth is given
as the size of a metre in pixels (`px_per_m`). The ground at some depth is at row horizon + camera height * px_per_m.
"""

import math
from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.contrib.demo.painting import blotches
from rvtssm.system.jit import jit

REFERENCE_HW = (120, 160)  # lengths in pixels below refer to this sensor
FOCAL_PX = 160.0  # focal length for the reference sensor, whose field of view is 53 degrees
HOUSES_PX_PER_M = 5.0  # depth of the houses

Swing = tuple[float, float, float]  # amplitude px, frequency Hz, phase


@dataclass(frozen=True)
class View:
    """Position, direction and motion of the camera. By default it stands still."""

    height: int
    width: int
    unit: float  # pixels of this sensor per pixel of the reference sensor
    horizon_px: float  # row of the horizon
    camera_m: float  # height above the ground
    swings: tuple[Swing, ...] = ()  # rotation left and right
    nods: tuple[Swing, ...] = ()  # rotation up and down
    speed_m_per_s: float = 0.0  # motion to the right

    @property
    def is_moving(self) -> bool:
        """Whether the camera moves."""
        return bool(self.swings or self.nods or self.speed_m_per_s)

    def pose(self, t_s: float) -> tuple[float, float, float]:
        """Return the shift of the image to the right and down in pixels, and the distance driven in metres.

        Args:
            t_s: Time in seconds.
        """
        return _swung(self.swings, t_s), _swung(self.nods, t_s), self.speed_m_per_s * t_s

    def project(self, x_m: float, px_per_m: float, t_s: float) -> tuple[float, float]:
        """Return the pixel (x, y) of a point on the ground.

        Args:
            x_m: Distance in metres to the right of the camera at time 0.
            px_per_m: Depth, as the size of a metre in pixels.
            t_s: Time in seconds.
        """
        right, down, driven = self.pose(t_s)
        return (self.width / 2 + right + px_per_m * (x_m - driven), self.horizon_px + down + px_per_m * self.camera_m)

    def metres_right(self, x_px: float, px_per_m: float, t_s: float) -> float:
        """Invert `project` for x.

        Args:
            x_px: Column in pixels.
            px_per_m: Depth, as the size of a metre in pixels.
            t_s: Time in seconds.
        """
        right, _, driven = self.pose(t_s)
        return (x_px - right - self.width / 2) / px_per_m + driven

    def max_speed_px_per_s(self) -> float:
        """Return an upper bound of the speed of the background over the sensor."""
        turning = sum(2 * math.pi * abs(a * hz) for a, hz, _ in (*self.swings, *self.nods))
        nearest_px_per_m = (self.height - self.horizon_px) / self.camera_m
        return turning + abs(self.speed_m_per_s) * nearest_px_per_m


def _swung(swings: tuple[Swing, ...], t_s: float) -> float:
    return sum(a * math.sin(2 * math.pi * hz * t_s + phase) for a, hz, phase in swings)


def build_view(height: int, width: int, is_moving: bool, rng: np.random.Generator) -> View:
    """Return a camera at the height of a person or a car roof. If it moves, it either turns or drives by.

    Args:
        height: Height of the sensor in pixels.
        width: Width of the sensor in pixels.
        is_moving: Whether the camera moves.
        rng: Random generator.
    """
    unit = min(height / REFERENCE_HW[0], width / REFERENCE_HW[1])
    swings: tuple[Swing, ...] = ()
    nods: tuple[Swing, ...] = ()
    speed = 0.0
    horizon_px, camera_m = height * rng.uniform(0.32, 0.45), rng.uniform(1.4, 2.6)
    if is_moving:
        nods = ((unit * rng.uniform(0.4, 1.2), rng.uniform(1.0, 2.0), rng.uniform(0, 2 * math.pi)),)
        if rng.random() < 0.5:
            swings = (
                (unit * rng.uniform(12, 22), rng.uniform(0.15, 0.3), rng.uniform(0, 2 * math.pi)),
                (unit * rng.uniform(1, 3), rng.uniform(0.6, 1.0), rng.uniform(0, 2 * math.pi)),
            )
        else:
            speed = float(rng.choice((-1, 1)) * rng.uniform(0.6, 1.5))
    return View(height, width, unit, horizon_px, camera_m, swings, nods, speed)


@dataclass(frozen=True)
class Street:
    """Two pictures that are periodic in x. Motion of the camera shifts the houses and shears the ground."""

    view: View
    houses: np.ndarray  # (H, 2 * W) float32
    ground: np.ndarray  # (H, 2 * W) float32

    def paint(self, canvas: np.ndarray, t_s: float) -> None:
        """Paint the whole canvas.

        Args:
            canvas: Picture (H, W) float32.
            t_s: Time in seconds.
        """
        view = self.view
        depth = view.horizon_px, view.camera_m, HOUSES_PX_PER_M * view.unit
        _paint_street(canvas, self.houses, self.ground, view.pose(t_s), depth)


def build_street(view: View, rng: np.random.Generator) -> Street:
    """Return a street with houses, windows, trees, sky, pavements and a road with lane marks, in random greys.

    Args:
        view: The camera.
        rng: Random generator.
    """
    rows, columns, unit = view.height, 2 * view.width, view.unit
    foot = view.horizon_px + view.camera_m * HOUSES_PX_PER_M * unit
    sky = np.linspace(0.9, 0.75, rows, dtype=np.float32)[:, None]
    houses = np.broadcast_to(sky, (rows, columns)) + 0.03 * blotches(rows, columns, 30 * unit, rng)
    left = 0.0
    while left < columns:
        right = min(left + unit * rng.uniform(25, 60), columns)
        top = rng.uniform(-0.1, 0.8) * view.horizon_px
        _draw_house(houses, left, top, right, foot, unit, rng)
        left = right
    for _ in range(rng.integers(2, 7)):
        _draw_tree(houses, rng.uniform(0, columns), foot, unit, rng)
    houses *= 1 + 0.04 * blotches(rows, columns, 3 * unit, rng)

    road, pavement = rng.uniform(0.28, 0.42), rng.uniform(0.45, 0.6)
    ground = np.full((rows, columns), road, np.float32)
    kerbs_px_per_m = (6.5 * unit, rng.uniform(16, 20) * unit)
    row_px_per_m = (np.arange(rows) + 0.5 - view.horizon_px) / view.camera_m
    ground[(row_px_per_m < kerbs_px_per_m[0]) | (row_px_per_m > kerbs_px_per_m[1])] = pavement
    for kerb in kerbs_px_per_m:
        ground[abs(row_px_per_m - kerb) < max(0.5 / view.camera_m, 0.03 * kerb)] = 0.7
    marks = rng.uniform(9, 12) * unit
    for x_m in np.arange(-40.0, 40.0, 5.0):
        corners = [(x_m, marks), (x_m + 2.5, marks), (x_m + 2.5, 1.08 * marks), (x_m, 1.08 * marks)]
        pixels = [(columns / 2 + s * x, view.horizon_px + view.camera_m * s) for x, s in corners]
        cv2.fillPoly(ground, [np.round(np.multiply(pixels, 16)).astype(np.int32)], 0.75, shift=4)
    ground *= 1 + 0.05 * blotches(rows, columns, 2.5 * unit, rng)
    lens = 0.7 * max(1.0, 0.5 * unit)
    return Street(view, *(np.clip(cv2.GaussianBlur(image, (0, 0), lens), 0.02, 1) for image in (houses, ground)))


def _draw_house(
    image: np.ndarray, left: float, top: float, right: float, foot: float, unit: float, rng: np.random.Generator
) -> None:
    wall = rng.uniform(0.3, 0.65)
    _fill(image, left, top, right, foot + 2, wall)
    pane = min(1.0, wall * 1.5)
    if rng.random() < 0.7:
        pane = wall * rng.uniform(0.35, 0.7)
    wide, high, gap = unit * rng.uniform(3.5, 6), unit * rng.uniform(5, 8), unit * rng.uniform(3.5, 6)
    for x in np.arange(left + gap, right - wide - 0.5 * gap, wide + gap):
        for y in np.arange(top + gap, foot - high - gap, high + gap):
            _fill(image, x, y, x + wide, y + high, pane)
    door = rng.uniform(left, max(left + 1, right - 6 * unit))
    _fill(image, door, foot - 10 * unit, door + 5 * unit, foot + 2, 0.5 * wall)


def _draw_tree(image: np.ndarray, x: float, foot: float, unit: float, rng: np.random.Generator) -> None:
    leaves = rng.uniform(0.12, 0.3)
    crown = foot - unit * rng.uniform(18, 28)
    _fill(image, x - unit, crown, x + unit, foot + 2, 0.18)
    for _ in range(12):
        spot = (round(x + unit * rng.normal(0, 4)), round(crown + unit * rng.normal(0, 4)))
        cv2.circle(image, spot, round(unit * rng.uniform(2, 5)), leaves * rng.uniform(0.7, 1.3), cv2.FILLED)


def _fill(image: np.ndarray, left: float, top: float, right: float, bottom: float, grey: float) -> None:
    columns, rows = slice(max(0, round(left)), max(0, round(right))), slice(max(0, round(top)), max(0, round(bottom)))
    image[rows, columns] = grey


@jit
def _paint_street(canvas, houses, ground, pose, depth):  # type: ignore[no-untyped-def]
    """Sample both pictures bilinearly, and blend them over one row where houses and ground meet.

    `pose` is that of the view; `depth` is the row of the horizon, the height of the camera and the depth of the houses.
    """
    (right, down, driven), (horizon, camera_m, houses_px_per_m) = pose, depth
    height, width = canvas.shape
    rows, columns = houses.shape
    foot = horizon + camera_m * houses_px_per_m
    margin = (columns - width) / 2
    for row in range(height):
        v = min(max(row - down, 0.0), rows - 1.001)
        j = int(v)
        b = v - j
        share = min(1.0, max(0.0, v + 0.5 - foot + 0.5))  # share of the ground in this row
        for layer in range(2):
            weight, picture, px_per_m = 1 - share, houses, houses_px_per_m
            if layer:
                weight, picture, px_per_m = share, ground, (v + 0.5 - horizon) / camera_m
            if weight == 0:
                continue
            shift = margin - right + driven * px_per_m
            i = int(np.floor(shift))
            a = shift - i
            for column in range(width):
                i0 = (column + i) % columns
                i1 = (i0 + 1) % columns
                light = (1 - b) * ((1 - a) * picture[j, i0] + a * picture[j, i1]) + b * (
                    (1 - a) * picture[j + 1, i0] + a * picture[j + 1, i1]
                )
                if weight < 1 and layer:
                    canvas[row, column] += weight * light
                else:
                    canvas[row, column] = weight * light
