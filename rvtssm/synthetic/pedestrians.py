"""The look of pedestrians: bodies made of capsules (segments with a radius), with arms and legs that swing."""

import math
from dataclasses import dataclass

import numpy as np

from rvtssm.synthetic.painting import SHADOW_OPACITY, Extent, Point, either, paint_capsules
from rvtssm.system.jit import jit

WALKER_M = 1.8  # body height to which the lengths below refer
SHADOW_M = (-0.22, 0.0, 0.22, 0.0, 0.06, 0.0, SHADOW_OPACITY)  # a capsule


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
