"""All unlabelled parts of an open world: sky, ground, houses, rooms, furniture, trees, flags, screens."""

import math
from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.worlds.atlas import Atlas, disc, facade, foliage, poster, rough
from rvtssm.contrib.worlds.perspective import NO_LIMBS, NO_PANELS, Parts, panel

_FAR_M = 500.0


@dataclass(frozen=True)
class Fixture:
    """Something that stays in its place. Some fixtures move there: leaves, flags, water, screens."""

    place_m: tuple[float, float, float]
    panels: np.ndarray
    limbs: np.ndarray
    motion: str = ""  # "", leaves, flag, screen or water
    rate: float = 0.0  # speed of the motion: radians or changes per second
    phases: np.ndarray | tuple[()] = ()  # (K,) one for each panel

    def parts(self, t_s: float, eye: np.ndarray) -> Parts:
        """Return the panels and limbs to paint.

        Args:
            t_s: Time in seconds.
            eye: Position (3,) of the camera in metres.
        """
        if not self.motion:
            return Parts(self.panels, self.limbs)
        panels, phases = self.panels.copy(), np.asarray(self.phases)
        if self.motion == "leaves":
            away = np.array((self.place_m[0] - eye[0], 0.0, self.place_m[2] - eye[2]))
            away /= max(float(np.linalg.norm(away)), 1e-6)
            size = self.panels[:, 3]
            angle = 0.25 * np.sin(self.rate * t_s + phases)
            right, sine, cosine = np.array((away[2], 0.0, -away[0])), np.sin(angle), np.cos(angle)
            panels[:, 3:6] = size[:, None] * (cosine[:, None] * right + sine[:, None] * (0, 1, 0))
            panels[:, 6:9] = size[:, None] * (sine[:, None] * right - cosine[:, None] * (0, 1, 0))
            panels[:, :3] -= (panels[:, 3:6] + panels[:, 6:9]) / 2
            panels[:, :3] += (0.12 * size * np.sin(0.7 * self.rate * t_s + 1.7 * phases))[:, None] * right
        elif self.motion == "flag":  # strips side by side, along which a wave runs
            bend = 0.35 * np.sin(self.rate * t_s - 1.1 * np.arange(len(panels) + 1)) * np.arange(len(panels) + 1) / 8
            ends = np.stack((np.cumsum(np.full(len(bend), self.panels[0, 3])), 0.15 * bend, bend), axis=1)
            panels[:, :3] += ends[:-1]
            panels[:, 3:6] = ends[1:] - ends[:-1]
        elif self.motion == "screen":
            picture = math.floor(self.rate * t_s)
            panels[:, 13] = 0.37 * (picture // 12) + 0.01 * picture
            panels[:, 14] = 0.61 * (picture // 12)
            panels[:, 15] *= 0.6 + 0.4 * math.sin(1.3 * (picture // 12)) ** 2
        else:  # waves on water: two pictures move over each other
            panels[:, 13] += 0.06 * t_s * np.cos(phases) * self.rate
            panels[:, 14] += 0.06 * t_s * np.sin(phases) * self.rate
        return Parts(panels, self.limbs)


@dataclass(frozen=True)
class Surroundings:
    """The background, which is painted first, the fixtures in front of it, and where actors may be."""

    background: np.ndarray  # (K, PANEL_COLUMNS)
    fixtures: tuple[Fixture, ...]
    bounds_m: tuple[float, float, float, float]  # where actors may be: smallest x, largest x, smallest z, largest z
    brightness: float  # factor of the brightness of all but glowing panels, lower at night
    shadow: float  # opacity of shadows
    shadow_picture: int  # number of the picture of a shadow
    glow_picture: int  # number of the picture of a lamp
    light: np.ndarray  # (3,) direction in the world from which the light comes


def _billboard(
    centre: tuple[float, float, float], size_m: float, texture: int, opacity: int, gain: float = 1.0
) -> np.ndarray:
    """Return a square panel, given by its centre, that the motion `leaves` turns towards the camera."""
    return panel(centre, (size_m, 0, 0), (0, -size_m, 0), texture, opacity, gain=gain)


def limb(
    start: tuple[float, float, float], radius0: float, end: tuple[float, float, float], radius1: float, grey: float
) -> np.ndarray:
    """Return one row of limbs without cloth, (LIMB_COLUMNS,).

    Args:
        start: One end in metres.
        radius0: Radius at `start` in metres.
        end: The other end in metres.
        radius1: Radius at `end` in metres.
        grey: Brightness.
    """
    return np.array((*start, radius0, *end, radius1, grey, 0, 0, 0), float)


def build_outdoors(
    has_houses: bool, is_night: bool, clutter: int, atlas: Atlas, rng: np.random.Generator, *,
    is_dusk: bool = False, is_drive: bool = False,
) -> Surroundings:  # fmt: skip
    """Return a street between houses along z, or an open place.

    Args:
        has_houses: Whether houses line the street.
        is_night: Whether it is night.
        clutter: Largest number of fixtures.
        atlas: Gets the pictures.
        rng: Random generator.
        is_dusk: Whether there is as little light as at night, without lamps.
        is_drive: Whether a car drives through, which gives a street poles on both sides.
    """
    is_dark = is_night or is_dusk
    brightness = float(np.exp(rng.uniform(math.log(0.04), math.log(0.25)))) if is_dark else rng.uniform(0.6, 1.0)
    background = [*_sky(is_night, atlas, rng)]
    ground = rng.uniform(0.15, 0.5)
    picture = atlas.add(np.clip(ground * (1 + rng.uniform(0.08, 0.3) * rough(256, 256, rng)), 0.02, 1))
    cell_m = rng.uniform(3, 9)
    size = 2 * _FAR_M
    background.append(
        panel((-_FAR_M, 0, _FAR_M), (size, 0, 0), (0, 0, -size), picture, repeats=(size / cell_m, size / cell_m))
    )
    half_m = 40.0
    if has_houses:
        half_m = rng.uniform(7, 12 if is_drive else 18)
    if has_houses or is_drive or rng.random() < 0.5:
        background += _road(half_m, atlas, rng)
    if has_houses:
        background += _houses(half_m, is_night, atlas, rng)
    fixtures = [_outdoor_fixture(half_m, is_night, atlas, rng) for _ in range(rng.integers(0, clutter + 1))]
    if is_drive:
        fixtures += _poles(min(half_m, 10.0), rng)
    elevation, around = rng.uniform(0.3, 1.3), rng.uniform(0, 2 * math.pi)
    light = np.array(
        [math.cos(elevation) * math.sin(around), math.sin(elevation), math.cos(elevation) * math.cos(around)]
    )
    dark, glow = atlas.add(disc(0.5)), atlas.add(np.clip(disc(1.0) ** 2 * 6, 0.0, 6))
    is_sunny = not is_dark and rng.random() < 0.5
    shadow = rng.uniform(0.4, 0.75) if is_sunny else rng.uniform(0.1, 0.3)
    bounds = (-half_m + 0.6, half_m - 0.6, -200.0, 260.0)
    return Surroundings(np.array(background), tuple(fixtures), bounds, brightness, shadow, dark, glow, light)


def _sky(is_night: bool, atlas: Atlas, rng: np.random.Generator) -> list[np.ndarray]:
    """Return a distant panorama of eight panels: sky, clouds, and trees or hills at the horizon."""
    facets = []
    sky = rng.uniform(0.6, 1.0) * np.linspace(1, 0.9, 256)[:, None]
    clouds = rng.uniform(0, 0.12) * rough(256, 2048, rng, 8)
    hills = np.clip(8 + rng.uniform(2, 8) * rough(16, 2048, rng, 3)[0], 1, 40)
    land = rng.uniform(0.1, 0.4) * (1 + 0.3 * rough(256, 2048, rng))
    panorama = np.where(np.arange(256)[::-1, None] < hills, land, sky * (1 + clouds))
    panorama = np.clip(panorama, 0.02, 1.1).astype(np.float32)
    for k in range(8):
        ends = [2 * math.pi * (k + side) / 8 for side in (0, 1)]
        start, end = (np.array((_FAR_M * math.sin(angle), 0, _FAR_M * math.cos(angle))) for angle in ends)
        picture = atlas.add(panorama[:, 256 * k : 256 * (k + 1)])
        gain = 0.3 if is_night else 1.0
        facets.append(panel((start[0], 340, start[2]), tuple(end - start), (0, -341, 0), picture, gain=gain))
    return facets


def _road(half_m: float, atlas: Atlas, rng: np.random.Generator) -> list[np.ndarray]:
    grey = rng.uniform(0.12, 0.4)
    picture = grey * (1 + rng.uniform(0.05, 0.15) * rough(256, 128, rng))
    mark = rng.uniform(0.6, 0.95)
    picture[:128, 62:66] = mark
    picture[:, 4:7] = mark
    picture[:, 121:124] = mark
    wide = min(rng.uniform(3, 5), 0.7 * half_m)
    shift = rng.uniform(-1.5, 1.5)
    road = atlas.add(np.clip(picture, 0.02, 1))
    rows = [panel((shift - wide, 0, 300), (2 * wide, 0, 0), (0, 0, -500), road, repeats=(1, 500 / rng.uniform(6, 14)))]
    if rng.random() < 0.3:  # a zebra crossing
        stripes = np.full((32, 32), grey, np.float32)
        stripes[:, ::8] = stripes[:, 1::8] = stripes[:, 2::8] = stripes[:, 3::8] = 0.9
        z = rng.uniform(3, 25)
        rows.append(panel((shift - wide, 0, z + 3), (2 * wide, 0, 0), (0, 0, -3), atlas.add(stripes), repeats=(2, 1)))
    return rows


def _houses(half_m: float, is_night: bool, atlas: Atlas, rng: np.random.Generator) -> list[np.ndarray]:
    kinds = [atlas.add(facade(rng, is_night)) for _ in range(6)]
    rows = []
    for x in (-half_m, half_m):
        z = -60.0
        while z < 220:
            length = rng.uniform(6, 25)
            if rng.random() < 0.85:
                high, kind = rng.uniform(3, 18), kinds[rng.integers(6)]
                repeats = (max(1, round(length / rng.uniform(4, 8))), max(1, round(high / 6)))
                rows.append(panel((x, high, z), (0, 0, length), (0, -high, 0), kind, repeats=(*repeats,),
                                  shift=(rng.random(), 0), gain=rng.uniform(0.5, 1.1)))  # fmt: skip
            z += length
    high = rng.uniform(8, 20)
    rows.append(panel((-half_m, high, 220), (2 * half_m, 0, 0), (0, -high, 0), kinds[0], repeats=(4, 2)))
    return rows


def _poles(half_m: float, rng: np.random.Generator) -> list[Fixture]:
    """Return lamp posts and trunks along both sides of a street."""
    poles = []
    for x in (-half_m + rng.uniform(0.8, 2), half_m - rng.uniform(0.8, 2)):
        step_m, high, radius = rng.uniform(8, 30), rng.uniform(2.5, 8), rng.uniform(0.05, 0.2)
        for z in np.arange(rng.uniform(2, 10), 160, step_m):
            post = limb((x, 0, z), radius, (x, high, z), 0.7 * radius, rng.uniform(0.05, 0.8))
            poles.append(Fixture((x, 0, float(z)), NO_PANELS, post[None]))
    return poles


def _outdoor_fixture(half_m: float, is_night: bool, atlas: Atlas, rng: np.random.Generator) -> Fixture:
    x, z = rng.uniform(-half_m, half_m), np.exp(rng.uniform(math.log(4), math.log(60))) * rng.choice((-0.3, 1, 1, 1))
    kind = rng.choice(("tree", "tree", "tree", "flag", "post", "post", "sign", "screen", "water"))
    if kind == "tree":
        leaves, opacity = (atlas.add(picture) for picture in foliage(rng))
        high, count = rng.uniform(1.0, 5.0), int(rng.integers(5, 14))
        spread = 0.35 * high
        spots = [(x + rng.normal(0, spread), 0.9 * high + rng.normal(0, 0.6 * spread), z + rng.normal(0, 0.3 * spread))
                 for _ in range(count)]  # fmt: skip
        rows = [_billboard(spot, 1.1 * spread * rng.uniform(0.7, 1.6), leaves, opacity, rng.uniform(0.5, 1.6))
                for spot in spots]  # fmt: skip
        trunk = limb((x, 0, z), 0.04 * high, (x, high, z), 0.02 * high, rng.uniform(0.05, 0.3))
        return Fixture((x, 0, z), np.array(rows), trunk[None], "leaves", rng.uniform(0.3, 5), rng.uniform(0, 6, count))
    if kind == "flag":
        texture, high, wide = atlas.add(poster(rng)), rng.uniform(2, 6), rng.uniform(0.1, 0.35)
        rows = [panel((x, high, z), (wide, 0, 0), (0, -4 * wide, 0), texture, repeats=(0.125, 1), shift=(k / 8, 0))
                for k in range(8)]  # fmt: skip
        pole = limb((x, 0, z), 0.04, (x, high + 0.2, z), 0.03, rng.uniform(0.2, 0.9))
        return Fixture((x, 0, z), np.array(rows), pole[None], "flag", rng.uniform(2, 9))
    if kind == "screen":
        return _screen((x, rng.uniform(1.5, 3.5), z), rng.uniform(1, 3), atlas, rng)
    if kind == "water":
        texture = atlas.add(np.clip(0.5 * (1 + 0.6 * rough(128, 128, rng)), 0.05, 1.5))
        wide, long = rng.uniform(3, 12), rng.uniform(3, 12)
        waves = panel(
            (x, 0.01, z + long), (wide, 0, 0), (0, 0, -long), texture, repeats=(wide / 2, long / 2), strength=0.5
        )
        return Fixture(
            (x, 0, z + 30), np.stack((waves, waves)), NO_LIMBS, "water", rng.uniform(1, 6), rng.uniform(0, 6.3, 2)
        )
    high = rng.uniform(1, 6)
    post = [limb((x, 0, z), 0.06, (x, high, z), 0.05, rng.uniform(0.1, 0.8))]
    panels = NO_PANELS
    if kind == "sign":
        size = rng.uniform(0.4, 1.2)
        panels = panel((x - size / 2, high + size / 2, z - 0.05), (size, 0, 0), (0, -size, 0), atlas.add(poster(rng)))[
            None
        ]
    elif is_night:
        post.append(limb((x, high, z), 0.15, (x, high, z), 0.15, 40.0))
    return Fixture((x, 0, z), panels, np.array(post))


def _screen(place: tuple[float, float, float], wide: float, atlas: Atlas, rng: np.random.Generator) -> Fixture:
    """Return a screen whose picture changes 10 to 60 times per second."""
    picture = atlas.add(poster(rng, 128, 128))
    row = panel(place, (wide, 0, 0), (0, -0.6 * wide, 0), picture, repeats=(0.5, 0.3), gain=rng.uniform(0.3, 1.2),
                is_glowing=True)  # fmt: skip
    frame = limb((place[0], place[1] - 0.6 * wide, place[2]), 0.03, (place[0], 0, place[2]), 0.03, 0.1)
    return Fixture(place, row[None], frame[None], "screen", rng.uniform(10, 60))


def build_indoors(is_dark: bool, clutter: int, atlas: Atlas, rng: np.random.Generator) -> Surroundings:
    """Return a room that starts at z = 0, with pictures on its walls, furniture and screens.

    Args:
        is_dark: Whether the room is dim.
        clutter: Largest number of fixtures.
        atlas: Gets the pictures.
        rng: Random generator.
    """
    wide, long, high = rng.uniform(3.5, 12), rng.uniform(4, 16), rng.uniform(2.4, 4)
    brightness = float(np.exp(rng.uniform(math.log(0.04), math.log(0.2)))) if is_dark else rng.uniform(0.3, 0.9)

    def plain(low: float, top: float, contrast: float) -> int:
        picture = rng.uniform(low, top) * (1 + rng.uniform(0, contrast) * rough(128, 128, rng))
        if rng.random() < 0.35:  # tiles, boards
            step = int(rng.choice((16, 32, 64)))
            picture[:, ::step] *= 0.6
            if rng.random() < 0.6:
                picture[::step] *= 0.6
        return atlas.add(np.clip(picture, 0.02, 1.2))

    x0, x1 = -wide / 2, wide / 2
    floor, wall, ceiling = plain(0.1, 0.6, 0.2), plain(0.3, 0.9, 0.08), plain(0.5, 0.95, 0.04)
    if clutter and rng.random() < 0.3:  # shelves all over the walls
        wall = atlas.add(poster(rng, 128, 128))
    per_m = rng.uniform(0.3, 1)
    rows = [
        panel((x0, 0, long), (wide, 0, 0), (0, 0, -long), floor, repeats=(wide * per_m, long * per_m)),
        panel((x0, high, long), (wide, 0, 0), (0, 0, -long), ceiling, repeats=(wide / 2, long / 2), gain=0.8),
        panel((x0, high, long), (wide, 0, 0), (0, -high, 0), wall, repeats=(wide / 3, high / 3)),
        panel((x0, high, 0), (0, 0, long), (0, -high, 0), wall, repeats=(long / 3, high / 3), gain=0.85),
        panel((x1, high, 0), (0, 0, long), (0, -high, 0), wall, repeats=(long / 3, high / 3), gain=1.1),
        panel((x0, high, 0), (wide, 0, 0), (0, -high, 0), wall, repeats=(wide / 3, high / 3)),
    ]
    for _ in range(rng.integers(0, 2 * clutter + 1)):  # pictures, doors and windows
        w, h, low = rng.uniform(0.3, 2), rng.uniform(0.3, 1.8), rng.uniform(0, 1)
        picture, gain = atlas.add(poster(rng)), rng.uniform(0.5, 1.3)
        if rng.random() < 0.5:
            rows.append(
                panel((rng.uniform(x0, x1 - w), low + h, long - 0.02), (w, 0, 0), (0, -h, 0), picture, gain=gain)
            )
        else:
            x = rng.choice((x0 + 0.02, x1 - 0.02))
            rows.append(panel((x, low + h, rng.uniform(0, long - w)), (0, 0, w), (0, -h, 0), picture, gain=gain))
    fixtures = []
    for _ in range(rng.integers(0, clutter + 1)):
        x, z = rng.uniform(x0 + 0.4, x1 - 0.4), rng.uniform(0.4 * long, long - 0.4)
        if rng.random() < 0.25:
            fixtures.append(_screen((x, rng.uniform(1.0, 2.0), long - 0.05), rng.uniform(0.5, 1.8), atlas, rng))
        elif rng.random() < 0.25:
            leaves, opacity = (atlas.add(picture) for picture in foliage(rng))
            crowns = [(x + rng.normal(0, 0.15), 0.7 + rng.normal(0, 0.2), z) for _ in range(5)]
            spots = [_billboard(crown, rng.uniform(0.2, 0.6), leaves, opacity) for crown in crowns]
            pot = limb((x, 0.1, z), 0.15, (x, 0.3, z), 0.2, rng.uniform(0.1, 0.9))
            fixtures.append(
                Fixture((x, 0, z), np.array(spots), pot[None], "leaves", rng.uniform(0.2, 2), rng.uniform(0, 6, 5))
            )
        else:
            fixtures.append(_furniture(x, z, atlas, rng))
    bounds = (x0 + 0.4, x1 - 0.4, 0.8, long - 0.5)
    light = np.array([rng.uniform(-0.6, 0.6), 0.7, rng.uniform(-0.6, 0.6)])
    dark, glow = atlas.add(disc(0.7)), atlas.add(np.clip(disc(1.0) ** 2 * 6, 0.0, 6))
    return Surroundings(np.array(rows), tuple(fixtures), bounds, brightness, rng.uniform(0.1, 0.4), dark, glow, light)


def _furniture(x: float, z: float, atlas: Atlas, rng: np.random.Generator) -> Fixture:
    """Return a box, which stands for a table, a cupboard or shelves."""
    w, h, d = rng.uniform(0.4, 1.6), rng.uniform(0.4, 2.0), rng.uniform(0.3, 0.9)
    side = atlas.add(poster(rng) if rng.random() < 0.6 else np.clip(0.4 * (1 + 0.2 * rough(32, 32, rng)), 0.02, 1))
    rows = [
        panel((x - w / 2, h, z + d), (0, 0, -d), (0, -h, 0), side, gain=0.7, one_sided=True),
        panel((x + w / 2, h, z), (0, 0, d), (0, -h, 0), side, gain=0.9, one_sided=True),
        panel((x - w / 2, h, z + d), (w, 0, 0), (0, 0, -d), side, gain=1.1, one_sided=True),
        panel((x - w / 2, h, z), (w, 0, 0), (0, -h, 0), side, one_sided=True),
    ]
    return Fixture((x, 0, z + d / 2), np.array(rows), NO_LIMBS)
