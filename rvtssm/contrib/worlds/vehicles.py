"""Vehicles in three dimensions: cars, vans, lorries, buses, and two-wheelers with their riders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from rvtssm.contrib.demo.figures import HATCHBACK, OFFROADER, SEDAN, VAN, Make
from rvtssm.contrib.worlds.atlas import Atlas, poster, rough, spoked_wheel
from rvtssm.contrib.worlds.people import CYCLING, MOTORCYCLING, SCOOTING, Person, build_person
from rvtssm.contrib.worlds.perspective import LIMB_COLUMNS, NO_PANELS, PANEL_COLUMNS, Parts, Place, panel
from rvtssm.system.jit import jit

BICYCLE, MOTORCYCLE, SCOOTER = range(3)
_SUPERSAMPLING = 4
BUS = Make(
    body=[(0, 0.35), (0, 2.85), (0.15, 3.0), (10.7, 3.0), (11, 2.7), (11, 0.35)],
    windows=tuple([(x, 1.35), (x, 2.55), (x + 1.25, 2.55), (x + 1.25, 1.35)] for x in np.arange(0.4, 9.5, 1.45)),
    wheels=(2.6, 8.6),
)  # fmt: skip
LORRY = Make(
    body=[(0, 0.55), (0, 3.4), (6.3, 3.4), (6.35, 2.65), (8.1, 2.65), (8.5, 1.6), (8.5, 0.45)],
    windows=([(7.0, 1.65), (7.0, 2.45), (7.9, 2.45), (8.2, 1.65)],),
    wheels=(1.5, 7.3),
)  # fmt: skip
# Each kind has an outline, strips, a width in metres, and a share among vehicles. The strips cover the outline from the
# rear bumper to the front: f is a face, F a tall face with a window, w a window, s a metal sheet.
KINDS: tuple[tuple[Make, str, float, float], ...] = (
    (SEDAN, "fsswswsff", 1.8, 0.26),
    (HATCHBACK, "fwsswsff", 1.75, 0.26),
    (OFFROADER, "Fsswssf", 1.9, 0.16),
    (VAN, "Fsswssf", 2.0, 0.14),
    (LORRY, "ssssFf", 2.45, 0.1),
    (BUS, "FsssF", 2.5, 0.08),
)


@dataclass(frozen=True)
class Automobile:
    """A car, van, lorry or bus, in its own coordinates: metres ahead, up and right of its middle on the ground."""

    size_m: tuple[float, float, float]  # length, height, width
    body: np.ndarray  # (K, PANEL_COLUMNS)
    wheels: np.ndarray  # (K, 4): ahead, up, right, radius
    wheel_pictures: tuple[int, int]
    points_m: np.ndarray  # (K, 3) points of its outline, for its box

    def parts(self, place: Place, t_s: float, eye: np.ndarray) -> Parts:
        """Return the parts that the camera can see. See `Player.parts`."""
        return Parts(_placed_panels(self.body, self.wheels, self.wheel_pictures, place, eye))


def build_automobile(atlas: Atlas, rng: np.random.Generator) -> Automobile:
    """Return a random vehicle.

    Args:
        atlas: Gets the pictures.
        rng: Random generator.
    """
    make, kinds, width_m, _ = KINDS[rng.choice(len(KINDS), p=[kind[3] for kind in KINDS])]
    stretch = rng.uniform(0.93, 1.07, 2)
    profile = np.array(make.body) * stretch
    width_m *= rng.uniform(0.95, 1.05)
    length_m, height_m = (float(side) for side in profile.max(axis=0))
    lacquer = rng.uniform(0.5, 0.95) if rng.random() < 0.55 else rng.uniform(0.04, 0.3)
    glass = rng.uniform(0.03, 0.15) if lacquer > 0.3 or rng.random() < 0.5 else rng.uniform(0.3, 0.6)
    side, side_opacity = _side_pictures(make, stretch, lacquer, glass, rng)
    numbers = {
        "side": atlas.add(side),
        "opacity": atlas.add(side_opacity),
        "s": atlas.add(np.clip(lacquer * (1.1 + 0.05 * rough(32, 32, rng)), 0.02, 1)),
        "w": atlas.add(_pane(lacquer, glass, rng)),
        "f": atlas.add(_face(lacquer, glass, False, rng)),
        "F": atlas.add(_face(lacquer, glass, True, rng)),
    }
    wheel = atlas.add(spoked_wheel(int(rng.integers(4, 8)), 0.35, True)[0])
    wheel_opacity = atlas.add(spoked_wheel(5, 0.35, True)[1])
    half, rows = width_m / 2, []
    middle = length_m / 2
    for k, kind in enumerate(kinds):
        (f0, u0), (f1, u1) = profile[k], profile[k + 1]
        slope = (f1 - f0) / max(math.hypot(f1 - f0, u1 - u0), 1e-6)  # 1 for a roof, which the sky lights
        is_front = u1 < u0 and f0 > middle
        repeats, shift = ((1.0, -1.0), (0.0, 1.0)) if is_front else ((1.0, 1.0), (0.0, 0.0))
        rows.append(
            panel((f1 - middle, u1, -half), (0, 0, width_m), (f0 - f1, u0 - u1, 0), numbers[kind], repeats=repeats,
                  shift=shift, gain=0.75 + 0.35 * abs(slope), one_sided=True)
        )  # fmt: skip
    side_picture, side_opacity_picture, bottom = numbers["side"], numbers["opacity"], (0, -height_m, 0)
    rows.append(panel((-middle, height_m, half), (length_m, 0, 0), bottom, side_picture, side_opacity_picture,
                      gain=rng.uniform(0.7, 1.1), one_sided=True))  # fmt: skip
    rows.append(panel((middle, height_m, -half), (-length_m, 0, 0), bottom, side_picture, side_opacity_picture,
                      repeats=(-1, 1), shift=(1, 0), gain=rng.uniform(0.7, 1.1), one_sided=True))  # fmt: skip
    radius = 0.34 if width_m < 2.3 else 0.5
    for f, turn in ((-middle, 1), (middle, -1)):  # tyres, seen from the rear and from the front
        for r in (-half, half - 0.25):
            start = (f, 0.45, r if turn > 0 else r + 0.25)
            rows.append(panel(start, (0, 0, 0.25 * turn), (0, -0.45, 0), numbers["s"], gain=0.08, one_sided=True))
    wheels = [(x * stretch[0] - middle, radius, r, radius) for x in make.wheels for r in (-half, half)]
    points = [(f - middle, u, r) for f, u in profile for r in (-half, half)]
    points += [(f, 0.0, r) for f, _, r, _ in wheels]
    return Automobile((length_m, height_m, width_m), np.array(rows), np.array(wheels), (wheel, wheel_opacity),
                      np.array(points))  # fmt: skip


def _side_pictures(
    make: Make, stretch: np.ndarray, lacquer: float, glass: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the side of a vehicle with its front to the right, and the opacity, both (128, 256)."""
    rows, columns = 128 * _SUPERSAMPLING // 2, 256 * _SUPERSAMPLING // 2
    length_m, height_m = np.max(make.body, axis=0) * stretch
    grey = lacquer * (1 + 0.06 * rough(rows, columns, rng, 8))
    opacity = np.zeros((rows, columns), np.float32)

    def fill(image: np.ndarray, points: Sequence[tuple[float, float]], shade: float) -> None:
        metres = np.array(points) * stretch
        pixels = np.stack((metres[:, 0] / length_m * columns, (1 - metres[:, 1] / height_m) * rows), axis=1)
        cv2.fillPoly(image, [np.round(pixels).astype(np.int32)], shade)

    fill(opacity, make.body, 1.0)
    right = max(x for x, _ in make.body)
    fill(grey, [(0, 0), (right, 0), (right, 0.5), (0, 0.5)], 0.45 * lacquer)
    if make is LORRY:
        picture = cv2.resize(poster(rng), (round(6.2 / 8.5 * columns), round(0.7 * rows)))
        grey[: picture.shape[0], : picture.shape[1]] = picture
        fill(grey, [(6.3, 0.4), (6.5, 0.4), (6.5, 2.6), (6.3, 2.6)], 0.03)
    elif make in (VAN, BUS) and rng.random() < 0.5:
        left = rng.uniform(0.0, 0.4) * right
        fill(grey, [(left, 0.7), (left + 1.6, 0.7), (left + 1.6, 1.3), (left, 1.3)], rng.uniform(0.05, 0.95))
    for window in make.windows:
        fill(grey, window, glass * rng.uniform(0.8, 1.3))
    for wheel in make.wheels:  # arches
        fill(grey, [(wheel - 0.45, 0), (wheel + 0.45, 0), (wheel + 0.4, 0.7), (wheel - 0.4, 0.7)], 0.03)
    for door in np.linspace(0.3, 0.75, 3) * right:
        fill(grey, [(door, 0.5), (door + 0.04, 0.5), (door + 0.04, 1.0), (door, 1.0)], 0.5 * lacquer)
    fill(grey, [(right - 0.3, 0.6), (right, 0.6), (right, 0.8), (right - 0.3, 0.8)], 1.0)
    fill(grey, [(0, 0.68), (0.15, 0.68), (0.15, 0.9), (0, 0.9)], 0.35)
    grey = np.clip(grey, 0.02, 1).astype(np.float32)
    size = (256, 128)
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA), cv2.resize(opacity, size, interpolation=cv2.INTER_AREA)


def _pane(lacquer: float, glass: float, rng: np.random.Generator) -> np.ndarray:
    picture = np.full((32, 32), lacquer, np.float32)
    picture[3:28, 3:29] = glass * (1 + 0.3 * rough(25, 26, rng, 6))
    return np.clip(picture, 0.02, 1)


def _face(lacquer: float, glass: float, has_window: bool, rng: np.random.Generator) -> np.ndarray:
    """Return the front or the rear of a vehicle, (64, 64): lamps, plate, grille or bumper."""
    picture = (lacquer * (1 + 0.05 * rough(64, 64, rng))).astype(np.float32)
    top = 34 if has_window else 6
    if has_window:
        cv2.rectangle(picture, (6, 5), (57, 28), glass, cv2.FILLED)
    lamp = rng.uniform(0.3, 1.0)
    for left in (3, 47):
        cv2.rectangle(picture, (left, top), (left + 13, top + int(rng.integers(8, 16))), lamp, cv2.FILLED)
    if rng.random() < 0.6:
        cv2.rectangle(picture, (18, top + 2), (45, top + 12), 0.05, cv2.FILLED)
    cv2.rectangle(picture, (23, 46), (41, 52), 0.9, cv2.FILLED)
    cv2.rectangle(picture, (0, 54), (63, 63), 0.3 * lacquer, cv2.FILLED)
    return np.clip(picture, 0.02, 1)


@jit
def _placed_panels(
    body: np.ndarray, wheels: np.ndarray, wheel_pictures: tuple[int, int], place: Place, eye: np.ndarray
) -> np.ndarray:
    """Return the panels in world coordinates, the farthest first, then the wheels of the visible side."""
    x_m, z_m, heading, way_m = place
    sine, cosine = math.sin(heading), math.cos(heading)
    num = len(body)
    out = np.empty((num + len(wheels), PANEL_COLUMNS))
    distance = np.empty(num)
    for k in range(num):
        out[k] = body[k]
        for part in range(3):
            f, u, r = body[k, 3 * part], body[k, 3 * part + 1], body[k, 3 * part + 2]
            out[k, 3 * part], out[k, 3 * part + 1], out[k, 3 * part + 2] = (
                f * sine + r * cosine, u, f * cosine - r * sine
            )  # fmt: skip
        out[k, 0] += x_m
        out[k, 2] += z_m
        distance[k] = 0.0
        for i in range(3):
            distance[k] += (out[k, i] + 0.5 * (out[k, 3 + i] + out[k, 6 + i]) - eye[i]) ** 2
    out[:num] = out[:num][np.argsort(-distance)]
    is_right = (eye[0] - x_m) * cosine - (eye[2] - z_m) * sine > 0
    count = num
    for k in range(len(wheels)):
        f, u, r, radius = wheels[k]
        if (r > 0) != is_right and r != 0:
            continue
        r *= 1.01
        angle = way_m / radius
        ca, sa = 2 * radius * math.cos(angle), 2 * radius * math.sin(angle)
        q = out[count]
        q[:] = 0.0
        q[3], q[4], q[5] = ca * sine, -sa, ca * cosine
        q[6], q[7], q[8] = -sa * sine, -ca, -sa * cosine
        q[0] = x_m + f * sine + r * cosine - 0.5 * (q[3] + q[6])
        q[1] = u - 0.5 * (q[4] + q[7])
        q[2] = z_m + f * cosine - r * sine - 0.5 * (q[5] + q[8])
        (q[9], q[10]), q[11], q[12], q[15], q[16], q[18] = wheel_pictures, 1.0, 1.0, 1.0, 1.0, 1.0
        count += 1
    return out[:count]


@dataclass(frozen=True)
class TwoWheeler:
    """A bicycle, a motorcycle or a kick scooter, with its rider."""

    rider: Person
    wheels: np.ndarray  # (2, 4) as in Automobile
    wheel_pictures: tuple[int, int]
    frame: np.ndarray  # (K, 9): ahead, up, right of both ends, radius, grey, and 1 for ends that turn with the bar

    def parts(self, place: Place, t_s: float, eye: np.ndarray) -> Parts:
        """Return wheels, frame and rider. See `Player.parts`."""
        wheels = _placed_panels(NO_PANELS, self.wheels, self.wheel_pictures, place, eye)
        rider = self.rider.parts(place, t_s, eye)
        return Parts(wheels, np.concatenate((_placed_frame(self.frame, place), rider.limbs)))


def build_two_wheeler(kind: int, atlas: Atlas, first_cloth: int, rng: np.random.Generator) -> TwoWheeler:
    """Return a two-wheeler with a random rider.

    Args:
        kind: BICYCLE, MOTORCYCLE or SCOOTER.
        atlas: Gets the pictures of the wheels.
        first_cloth: Number of the first of WEAVES pictures of cloth.
        rng: Random generator.
    """
    posture = {BICYCLE: CYCLING, MOTORCYCLE: MOTORCYCLING, SCOOTER: SCOOTING}[kind]
    rider = build_person(posture, first_cloth, rng)
    scale = rider.height_m / 1.75
    grey = rng.uniform(0.03, 0.9)
    if kind == BICYCLE:
        radius, reach, pictures = 0.34, (-0.42, 0.62), spoked_wheel(int(rng.integers(10, 20)), 0.1, False)
        tubes = [(-0.42, 0.34, 0, 0.05, 0.32, 0, 0.02), (0.05, 0.32, 0, -0.08, 0.9, 0, 0.022),
                 (0.05, 0.32, 0, 0.48, 0.82, 0, 0.025), (-0.05, 0.8, 0, 0.46, 0.88, 0, 0.022),
                 (-0.42, 0.34, 0, -0.05, 0.8, 0, 0.018), (0.47, 0.95, 0, 0.62, 0.34, 0, 0.02),
                 (0.5, 1.02, -0.25, 0.5, 1.02, 0.25, 0.02), (-0.18, 0.93, 0, 0.08, 0.93, 0, 0.05)]  # fmt: skip
    elif kind == MOTORCYCLE:
        radius, reach, pictures = 0.32, (-0.6, 0.75), spoked_wheel(5, 0.35, False)
        tubes = [(-0.2, 0.45, 0, 0.25, 0.45, 0, 0.2), (0.0, 0.8, 0, 0.38, 0.85, 0, 0.15),
                 (-0.6, 0.78, 0, 0.0, 0.75, 0, 0.12), (-0.6, 0.32, 0, 0.0, 0.45, 0, 0.06),
                 (0.5, 0.95, 0, 0.75, 0.32, 0, 0.06), (0.5, 1.0, -0.33, 0.5, 1.0, 0.33, 0.025),
                 (0.55, 0.85, 0, 0.62, 0.95, 0, 0.12), (0.6, 0.68, 0, 0.85, 0.66, 0, 0.06)]  # fmt: skip
    else:
        radius, reach, pictures = 0.11, (-0.38, 0.5), spoked_wheel(3, 0.5, True)
        tubes = [(-0.38, 0.13, 0, 0.4, 0.13, 0, 0.05), (0.5, 0.12, 0, 0.42, 1.05, 0, 0.025),
                 (0.42, 1.05, -0.24, 0.42, 1.05, 0.24, 0.02)]  # fmt: skip
    tubes += [(f, 0.03, 0, f, 2 * radius - 0.03, 0, 0.025) for f in reach]  # wheels seen from the edge
    frame = np.array([(*tube, grey if k < len(tubes) - 2 else 0.04) for k, tube in enumerate(tubes)])
    if kind != SCOOTER:
        frame[:, :7] *= scale
        radius *= scale
        reach = (reach[0] * scale, reach[1] * scale)
    wheels = np.array([(f, radius, 0.0, radius) for f in reach])
    return TwoWheeler(rider, wheels, (atlas.add(pictures[0]), atlas.add(pictures[1])), frame)


@jit
def _placed_frame(frame: np.ndarray, place: Place) -> np.ndarray:
    sine, cosine = math.sin(place.heading), math.cos(place.heading)
    out = np.zeros((len(frame), LIMB_COLUMNS))
    for k in range(len(frame)):
        for end in range(2):
            f, u, r = frame[k, 3 * end], frame[k, 3 * end + 1], frame[k, 3 * end + 2]
            out[k, 4 * end] = place.x_m + f * sine + r * cosine
            out[k, 4 * end + 1] = u
            out[k, 4 * end + 2] = place.z_m + f * cosine - r * sine
            out[k, 4 * end + 3] = frame[k, 6]
        out[k, 8] = frame[k, 7]
    return out
