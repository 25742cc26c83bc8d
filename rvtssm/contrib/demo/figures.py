"""The look of cars and pedestrians, in random greys and proportions.

Cars are bodies with windows, wheels, lamps and plates. Pedestrians are made of capsules (segments with a radius), with
arms and legs that swing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.contrib.demo.painting import SHADOW_OPACITY, Extent, Point, blotches, either, paint_capsules, paint_picture
from rvtssm.system.jit import jit

WALKER_M = 1.8  # body height to which the lengths of a pedestrian refer
SHADOW_M = (-0.22, 0.0, 0.22, 0.0, 0.06, 0.0, SHADOW_OPACITY)  # of a pedestrian, a capsule
SUPERSAMPLING = 4  # cars are drawn at this multiple of the resolution and then averaged
LENS_BLUR_PX = 0.5  # standard deviation

Polygon = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Make:
    """The outline of a kind of car in metres, with x from the rear bumper; `wheels` are the x of their centres."""

    body: Polygon
    windows: tuple[Polygon, ...]
    wheels: tuple[float, float]


SEDAN = Make(
    body=[(0, 0.28), (0, 0.85), (0.15, 0.97), (0.85, 1.02), (1.5, 1.45), (2.7, 1.45), (3.35, 1.0), (4.25, 0.84),
          (4.45, 0.6), (4.45, 0.28)],
    windows=([(1.1, 1.02), (1.58, 1.36), (2.08, 1.36), (2.08, 1.02)],
             [(2.2, 1.02), (2.2, 1.36), (2.64, 1.36), (3.1, 1.02)]),
    wheels=(0.85, 3.6),
)  # fmt: skip
HATCHBACK = Make(
    body=[(0, 0.28), (0, 0.95), (0.2, 1.4), (0.5, 1.54), (2.2, 1.52), (2.95, 1.05), (3.75, 0.88), (3.9, 0.6),
          (3.9, 0.28)],
    windows=([(0.4, 1.03), (0.62, 1.42), (1.35, 1.42), (1.35, 1.03)],
             [(1.47, 1.03), (1.47, 1.42), (2.15, 1.4), (2.7, 1.03)]),
    wheels=(0.7, 3.15),
)  # fmt: skip
OFFROADER = Make(
    body=[(0, 0.35), (0, 1.7), (0.12, 1.82), (2.9, 1.82), (3.5, 1.25), (4.4, 1.12), (4.6, 0.9), (4.6, 0.35)],
    windows=([(0.2, 1.22), (0.2, 1.68), (1.4, 1.68), (1.4, 1.22)],
             [(1.54, 1.22), (1.54, 1.68), (2.8, 1.68), (3.2, 1.22)]),
    wheels=(0.9, 3.7),
)  # fmt: skip
VAN = Make(
    body=[(0, 0.32), (0, 2.1), (0.1, 2.2), (3.7, 2.2), (4.5, 1.35), (5.0, 1.1), (5.1, 0.9), (5.1, 0.32)],
    windows=([(2.75, 1.3), (2.75, 1.95), (3.6, 1.95), (4.2, 1.3)],),
    wheels=(1.0, 4.15),
)  # fmt: skip
SIDE_VIEWS = (SEDAN, HATCHBACK, OFFROADER, VAN)
END_VIEW = Make(  # seen from the front or the rear, with x from the left
    body=[(0.05, 0.25), (0, 0.8), (0.1, 0.98), (0.32, 1.42), (0.46, 1.5), (1.34, 1.5), (1.48, 1.42), (1.7, 0.98),
          (1.8, 0.8), (1.75, 0.25)],
    windows=([(0.24, 0.98), (0.44, 1.4), (1.36, 1.4), (1.56, 0.98)],),
    wheels=(0.26, 1.54),
)  # fmt: skip


@dataclass(frozen=True)
class Car:
    """One view of a car, as pairs of pictures (grey times opacity, opacity), each half as large as the one before."""

    size_m: tuple[float, float]  # width, height
    margin_m: float  # empty margin around the car in its pictures
    pictures: tuple[tuple[np.ndarray, np.ndarray], ...]

    def extent_m(self, gait_m: float) -> Extent:
        """Return the extent of the car. See `Figure.extent_m`."""
        return -self.size_m[0] / 2, 0.0, self.size_m[0] / 2, self.size_m[1]

    def paint(
        self, canvas: np.ndarray, ground_px: Point, px_per_m: float, gait_m: float, is_silhouette: bool = False
    ) -> None:
        """Paint the car. See `Figure.paint`."""
        (x, y), (width_m, height_m) = ground_px, self.size_m
        if not is_silhouette:
            reach = 0.42 * width_m * px_per_m
            paint_capsules(canvas, np.array([[x - reach, y, x + reach, y, 0.1 * px_per_m, 0.0, SHADOW_OPACITY]]))
        grey, opacity = self._picture(px_per_m)
        if is_silhouette:
            grey = opacity
        across, above, below = (px_per_m * (length + self.margin_m) for length in (width_m / 2, height_m, 0.0))
        paint_picture(canvas, grey, opacity, x - across, y - above, x + across, y + below)

    def _picture(self, px_per_m: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the coarsest picture that is enlarged by at most a tenth; a finer one would cause aliasing."""
        columns = 0.9 * px_per_m * (self.size_m[0] + 2 * self.margin_m)
        return next((pair for pair in reversed(self.pictures) if pair[0].shape[1] >= columns), self.pictures[0])


def build_car(view: str, max_px_per_m: float, rng: np.random.Generator) -> Car:
    """Return a car of random make, paint and texture.

    Args:
        view: Direction of travel, `left` or `right`, or the visible end, `front` or `rear`.
        max_px_per_m: Largest scale at which the car will be painted, approximately.
        rng: Random generator.
    """
    is_side = view in ("left", "right")
    make = END_VIEW
    if is_side:
        make = SIDE_VIEWS[rng.integers(len(SIDE_VIEWS))]
    stretch = rng.uniform(0.92, 1.08, 2)
    length = max(x for x, _ in make.body)
    width_m, height_m = (float(side) for side in np.max(make.body, axis=0) * stretch)
    margin_m, scale = 3 / max_px_per_m, SUPERSAMPLING * max_px_per_m
    columns, rows = math.ceil((width_m + 2 * margin_m) * scale), math.ceil((height_m + 2 * margin_m) * scale)
    lacquer = either(0.6, (0.6, 0.95), (0.08, 0.25), rng)
    glass = rng.uniform(0.03, 0.1) if lacquer > 0.3 else rng.uniform(0.35, 0.6)
    grey = (lacquer * (1 + 0.1 * blotches(rows, columns, 0.35 * scale, rng))).astype(np.float32)
    opacity = np.zeros((rows, columns), np.float32)

    def pixels(points: Polygon) -> np.ndarray:
        metres = np.array(points) * stretch
        return np.round((metres * (1, -1) + (margin_m, margin_m + height_m)) * scale).astype(np.int32)

    def fill(image: np.ndarray, points: Polygon, shade: float) -> None:
        cv2.fillPoly(image, [pixels(points)], shade)

    fill(opacity, make.body, 1.0)
    fill(grey, _rectangle(0, 0, length, 0.45), 0.45 * lacquer)  # sill or bumper
    for window in make.windows:
        fill(grey, window, glass)
    if is_side:
        for middle in make.wheels:
            spot = pixels([(middle, 0.34)])[0].tolist()
            cv2.circle(opacity, spot, round(0.34 * scale), 1.0, cv2.FILLED)
            for radius, shade in ((0.34, 0.03), (0.19, 0.6), (0.08, 0.1)):  # tyre, rim, hub
                cv2.circle(grey, spot, round(radius * scale), shade, cv2.FILLED)
        door = sum(make.wheels) / 2
        fill(grey, _rectangle(door, 0.45, door + 0.06, 1.0), 0.4 * lacquer)
        fill(grey, _rectangle(length - 0.22, 0.62, length, 0.8), 1.0)  # headlamp, rear lamp
        fill(grey, _rectangle(0, 0.68, 0.14, 0.86), 0.4)
    else:
        for middle in make.wheels:
            tyre = _rectangle(middle - 0.16, 0, middle + 0.16, 0.4)
            fill(grey, tyre, 0.03)
            fill(opacity, tyre, 1.0)
        lamp = {"front": 1.0, "rear": 0.4}[view]
        for left in (0.08, 1.4):
            fill(grey, _rectangle(left, 0.6, left + 0.32, 0.8), lamp)
        fill(grey, _rectangle(0.62, 0.4, 1.18, 0.54), 0.95)  # plate
    if view == "left":
        grey, opacity = np.ascontiguousarray(grey[:, ::-1]), np.ascontiguousarray(opacity[:, ::-1])
    return Car((width_m, height_m), margin_m, _pictures(np.clip(grey, 0, 1) * opacity, opacity))


def _rectangle(left: float, bottom: float, right: float, top: float) -> Polygon:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _pictures(grey: np.ndarray, opacity: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return both pictures at the painted resolution and at coarser ones, each averaged, and blurred as by a lens."""
    pictures: list[tuple[np.ndarray, np.ndarray]] = []
    shrink = SUPERSAMPLING
    while not pictures or min(pictures[-1][0].shape) > 12:
        size = (max(1, round(grey.shape[1] / shrink)), max(1, round(grey.shape[0] / shrink)))
        light, covered = (
            cv2.resize(cv2.GaussianBlur(image, (0, 0), LENS_BLUR_PX * shrink), size, interpolation=cv2.INTER_AREA)
            for image in (grey, opacity)
        )
        pictures.append((light, covered))
        shrink *= 2
    return tuple(pictures)


@dataclass(frozen=True)
class Pedestrian:
    """A walking person. The distance walked determines the angles of arms and legs."""

    height_m: float
    stride_m: float  # length of two steps
    facing: int  # 1 walks to the right, -1 to the left, 0 along the line of sight
    girth: float  # 1 = slim
    greys: tuple[float, float, float, float, float]  # shirt, trousers, skin, hair, and backpack (below 0: none)
    phase: float  # radians, at the start of the walk

    def extent_m(self, gait_m: float) -> Extent:
        """Return the extent of the person. See `Figure.extent_m`."""
        x0, y0, x1, y1, radius, _, _ = self._capsules_m(gait_m).T
        left, right = (np.minimum(x0, x1) - radius).min(), (np.maximum(x0, x1) + radius).max()
        return float(left), 0.0, float(right), float((np.maximum(y0, y1) + radius).max())

    def paint(
        self, canvas: np.ndarray, ground_px: Point, px_per_m: float, gait_m: float, is_silhouette: bool = False
    ) -> None:
        """Paint the person. See `Figure.paint`."""
        parts = self._capsules_m(gait_m)
        if is_silhouette:
            parts[:, 5] = 1.0
        else:
            parts = np.concatenate(([SHADOW_M], parts))
        parts *= (px_per_m, -px_per_m, px_per_m, -px_per_m, px_per_m, 1, 1)
        parts[:, :4] += (*ground_px, *ground_px)
        paint_capsules(canvas, parts)

    def _capsules_m(self, gait_m: float) -> np.ndarray:
        """Return (15, 7): x0, y0, x1, y1, radius in metres, grey, opacity. Far parts come first; the lowest is at 0."""
        angle = self.phase + 2 * math.pi * gait_m / self.stride_m
        return _walking_capsules(angle, self.facing, self.girth, self.greys, self.height_m / WALKER_M)


def build_pedestrian(facing: int, rng: np.random.Generator) -> Pedestrian:
    """Return a person of random stature in random clothes.

    Args:
        facing: 1 walks to the right, -1 to the left, 0 along the line of sight.
        rng: Random generator.
    """
    height_m = rng.uniform(1.5, 1.95)
    dark_top = rng.random() < 0.5
    return Pedestrian(
        height_m=height_m,
        stride_m=0.8 * height_m,
        facing=facing,
        girth=rng.uniform(1.0, 1.35),
        greys=(
            rng.uniform(0.05, 0.2) if dark_top else rng.uniform(0.6, 0.95),
            either(0.6, (0.05, 0.25), (0.5, 0.85), rng),
            rng.uniform(0.25, 0.8),
            rng.uniform(0.03, 0.5),
            rng.uniform(0.05, 0.9) if rng.random() < 0.35 else -1.0,
        ),
        phase=rng.uniform(0, 2 * math.pi),
    )


@jit
def _walking_capsules(
    angle: float, facing: int, girth: float, greys: tuple[float, float, float, float, float], scale: float
) -> np.ndarray:
    """Return the parts of a pedestrian of height WALKER_M times `scale` at one angle of the walk."""
    shirt, trousers, skin, hair, bag = greys
    swing, ahead = 0.12, 1
    if facing:
        swing, ahead = 0.5, facing
    hip, shoulder, lean = 0.9, 1.38, 0.04 * ahead
    parts = np.ones((15, 7))
    for side in (-1, 1):  # the far leg and arm, then the near leg and arm
        dark, leg, sleeve = 1.0, 5, 13
        if side < 0:
            dark, leg, sleeve = 0.8, 2, 0
        x = 0.1 * side
        if facing:
            x = 0.0
        thigh = swing * math.sin(angle) * side
        shin = thigh - 1.1 * swing * max(0.0, math.cos(angle) * side)  # the leg that moves forward bends its knee
        knee_x, knee_y = x + ahead * 0.44 * math.sin(thigh), hip - 0.44 * math.cos(thigh)
        ankle_x, ankle_y = knee_x + ahead * 0.42 * math.sin(shin), knee_y - 0.42 * math.cos(shin)
        arm = -0.8 * thigh
        elbow_x, elbow_y = 2.3 * x + ahead * 0.3 * math.sin(arm), shoulder - 0.3 * math.cos(arm)
        hand_x, hand_y = elbow_x + ahead * 0.28 * math.sin(arm + 0.4 * swing), elbow_y - 0.28 * math.cos(arm)
        parts[leg, :6] = np.array((x, hip, knee_x, knee_y, 0.095 * girth, dark * trousers))
        parts[leg + 1, :6] = np.array((knee_x, knee_y, ankle_x, ankle_y, 0.07 * girth, dark * trousers))
        parts[leg + 2, :6] = np.array((ankle_x, ankle_y, ankle_x + 0.14 * facing, ankle_y, 0.05, 0.05))
        parts[sleeve, :6] = np.array((2.3 * x, shoulder, elbow_x, elbow_y, 0.065 * girth, 0.85 * dark * shirt))
        parts[sleeve + 1, :6] = np.array((elbow_x, elbow_y, hand_x, hand_y, 0.05, dark * skin))
    back = 0.0  # without a backpack, this part is hidden in the trunk
    if bag >= 0:
        back = -0.2 * ahead
    parts[8, :6] = np.array((back, 1.12, 0.85 * back, 1.34, 0.13, max(bag, 0.0)))
    parts[9, :6] = np.array((0.0, 0.98, lean, 1.36, 0.17 * girth, shirt))
    parts[10, :6] = np.array((lean, 1.5, lean, 1.62, 0.06, skin))  # neck, hair, face
    parts[11, :6] = np.array((0.6 * lean, 1.7, 0.6 * lean, 1.7, 0.125, hair))
    parts[12, :6] = np.array((1.6 * lean, 1.65, 1.6 * lean, 1.65, 0.105, skin))
    lowest = (np.minimum(parts[:, 1], parts[:, 3]) - parts[:, 4]).min()
    parts[:, 1] -= lowest
    parts[:, 3] -= lowest
    parts[:, :5] *= scale
    return parts
