"""Bodies made of limbs in three dimensions: people who walk, run, stand, sit or ride, and dogs."""

import math
from dataclasses import dataclass

import numpy as np

from rvtssm.contrib.worlds.atlas import WEAVES
from rvtssm.contrib.worlds.perspective import LIMB_COLUMNS, Parts, Place
from rvtssm.system.jit import jit

WALKING, STANDING, SITTING, CYCLING, MOTORCYCLING, SCOOTING = range(6)
BODY_M = 1.75  # body height to which the lengths below refer
_NUM_LIMBS = 24
_CLOTH_CELLS_PER_M = 110.0


@dataclass(frozen=True)
class Person:
    """A person with a stature, clothes and a manner of moving."""

    height_m: float
    look: np.ndarray  # (18,) see `build_person`
    posture: int = WALKING

    @property
    def stride_m(self) -> float:
        """The length of two steps, or the distance per turn of the pedals."""
        return 4.5 if self.posture == CYCLING else float(self.look[16]) * self.height_m

    def parts(self, place: Place, t_s: float, eye: np.ndarray) -> Parts:
        """Return the limbs of the person. See `Player.parts`."""
        phase = self.look[15] + 2 * math.pi * place.way_m / self.stride_m
        return Parts(limbs=_body(place, phase, t_s, self.height_m / BODY_M, self.posture, self.look))


def build_person(posture: int, first_cloth: int, rng: np.random.Generator) -> Person:
    """Return a person, child or adult, in random clothes.

    Args:
        posture: WALKING, STANDING, SITTING, CYCLING, MOTORCYCLING or SCOOTING.
        first_cloth: Number of the first of WEAVES pictures of cloth.
        rng: Random generator.
    """
    height_m = rng.normal(1.72, 0.1) if rng.random() < 0.88 else rng.uniform(1.05, 1.5)
    if posture not in (WALKING, STANDING, SITTING):
        height_m = max(height_m, 1.55)
    is_running = posture == WALKING and rng.random() < 0.15
    dark_top = rng.random() < 0.5
    shirt = rng.uniform(0.03, 0.25) if dark_top else rng.uniform(0.4, 0.95)
    trousers = rng.uniform(0.04, 0.25) if rng.random() < 0.6 else rng.uniform(0.3, 0.8)
    skin = rng.uniform(0.12, 0.7)
    look = np.array(
        [
            shirt,
            trousers,
            skin,
            rng.uniform(0.02, 0.5),  # hair
            rng.uniform(0.02, 0.9),  # shoes
            rng.uniform(0.85, 1.35),  # girth
            first_cloth + rng.integers(WEAVES),  # cloth of the shirt
            first_cloth + (rng.integers(WEAVES) if rng.random() < 0.4 else 0),  # cloth of the trousers
            skin if rng.random() < 0.3 else shirt,  # forearms, bare with short sleeves
            skin if rng.random() < 0.2 else trousers,  # shins, bare with shorts or skirt
            rng.choice((0, 0, 0, 1, 2, 3)),  # 0: nothing, 1: backpack, 2: bag in the hand, 3: coat or dress
            rng.uniform(0.03, 0.9),  # bag
            (0.95 if is_running else rng.uniform(0.42, 0.6)),  # swing of the thighs, radians
            (1.6 if is_running else rng.uniform(0.0, 0.35)),  # bend of the elbows
            (0.18 if is_running else rng.uniform(-0.02, 0.08)),  # lean
            rng.uniform(0, 2 * math.pi),  # phase
            (1.35 if is_running else rng.uniform(0.72, 0.88)),  # stride, relative to the height
            rng.uniform(0, 64),  # place on the cloth
        ]
    )
    return Person(float(height_m), look, posture)


@jit
def _joint(ax: float, ay: float, bx: float, by: float, first: float, second: float, side: float) -> tuple[float, float]:
    """Return the knee or elbow between two ends. If the ends are too far apart, the limb is stretched."""
    dx, dy = bx - ax, by - ay
    d = max(math.sqrt(dx * dx + dy * dy), 1e-6)
    along = min(max((first * first - second * second + d * d) / (2 * d), 0.0), d)
    off = math.sqrt(max(first * first - along * along, 0.0)) * side
    return ax + dx / d * along - dy / d * off, ay + dy / d * along + dx / d * off


@jit
def _body(place: Place, phase: float, t_s: float, scale: float, posture: int, look: np.ndarray) -> np.ndarray:
    """Return the limbs of a person: built as (ahead, up, right) of the body, then turned, scaled and moved."""
    limbs = np.zeros((_NUM_LIMBS, LIMB_COLUMNS))
    girth, lean = look[5], look[14]
    hip_u = 0.92
    if posture == SITTING:
        hip_u = 0.5
    elif posture == CYCLING:
        hip_u, lean = 0.98, 0.45
    elif posture == MOTORCYCLING:
        hip_u, lean = 0.85, 0.2
    sway = 0.0
    if posture in (STANDING, SITTING):
        sway = 0.04 * math.sin(1.7 * t_s + look[15])
    chest_f, chest_u = lean * 0.5 + sway, hip_u + 0.42 * math.cos(lean)
    shoulder_f, shoulder_u = lean * 0.55 + sway, hip_u + 0.5 * math.cos(lean)
    lowest = 1e9
    for side in range(2):
        sign = 2.0 * side - 1
        r, rs = 0.1 * sign, 0.2 * sign * (0.7 + 0.3 * girth)
        knee_f, knee_u, foot_f, foot_u = _leg(posture, sign, phase + math.pi * side, hip_u, t_s, look)
        lowest = min(lowest, foot_u)
        _set(limbs, 3 * side, 0, hip_u, r, 0.09 * girth, knee_f, knee_u, r, 0.065 * girth, look[1], look[7])
        _set(limbs, 3 * side + 1, knee_f, knee_u, r, 0.062 * girth, foot_f, foot_u, r, 0.045, look[9], look[7])
        _set(limbs, 3 * side + 2, foot_f - 0.04, foot_u - 0.02, r, 0.045, foot_f + 0.16, foot_u - 0.03, 1.2 * r, 0.035,
             look[4], -1)  # fmt: skip
        elbow_f, elbow_u, hand_f, hand_u, hand_r = _arm(
            posture, sign, phase + math.pi * side, hip_u, shoulder_f, shoulder_u, t_s, look
        )
        _set(limbs, 6 + 3 * side, shoulder_f, shoulder_u, rs, 0.06 * girth, elbow_f, elbow_u, 1.15 * rs, 0.048 * girth,
             look[0], look[6])  # fmt: skip
        _set(limbs, 7 + 3 * side, elbow_f, elbow_u, 1.15 * rs, 0.045, hand_f, hand_u, hand_r, 0.035, look[8],
             look[6])  # fmt: skip
        _set(limbs, 8 + 3 * side, hand_f, hand_u, hand_r, 0.045, hand_f, hand_u - 0.05, hand_r, 0.04, look[2], -1)
        # Two columns side by side give hips and trunk their width.
        _set(limbs, 12 + side, 0, hip_u + 0.04, 0.7 * r, 0.115 * girth, 0.5 * chest_f, hip_u + 0.24, 0.65 * r,
             0.11 * girth, look[0], look[6])  # fmt: skip
        _set(limbs, 14 + side, 0.5 * chest_f, hip_u + 0.24, 0.65 * r, 0.11 * girth, chest_f, chest_u, 0.95 * r,
             0.115 * girth, look[0], look[6])  # fmt: skip
        if side == 1 and look[10] == 2:
            _set(limbs, 22, hand_f, hand_u - 0.22, hand_r, 0.1, hand_f, hand_u - 0.35, hand_r, 0.13, look[11], look[6])
    _add_head(limbs, shoulder_f, shoulder_u, lean, look)
    if look[10] == 1:
        _set(
            limbs, 20, chest_f - 0.21, hip_u + 0.12, 0, 0.13, chest_f - 0.2, chest_u + 0.02, 0, 0.12, look[11], look[7]
        )
    elif look[10] == 3 and posture in (WALKING, STANDING):
        _set(limbs, 20, 0, hip_u + 0.1, 0, 0.17 * girth, 0, hip_u - 0.35, 0, 0.22 * girth, look[0], look[6])
    if posture in (WALKING, STANDING, SCOOTING):
        down = lowest - 0.06
        if posture == SCOOTING:
            down = lowest - 0.06 - 0.12
        for k in range(_NUM_LIMBS):
            limbs[k, 1] -= down
            limbs[k, 5] -= down
    return _placed(limbs, place, scale, look[17])


@jit
def _leg(
    posture: int, sign: float, phase: float, hip_u: float, t_s: float, look: np.ndarray
) -> tuple[float, float, float, float]:
    """Return knee and foot of the left (sign -1) or right leg (1), each as (ahead, up)."""
    if posture == SITTING:
        return 0.43, hip_u + 0.02, 0.43 + 0.08 * sign * math.sin(0.7 * t_s), 0.07
    if posture in (CYCLING, MOTORCYCLING):
        foot_f, foot_u = 0.28, 0.32
        if posture == CYCLING:
            foot_f, foot_u = 0.22 + 0.17 * math.sin(phase), 0.3 - 0.17 * math.cos(phase)
        knee_f, knee_u = _joint(0.0, hip_u, foot_f, foot_u, 0.44, 0.43, 1.0)
        return knee_f, knee_u, foot_f, foot_u
    swing = look[12]
    if posture == STANDING:
        thigh, shin = 0.06 * sign, 0.05 * sign
    elif posture == SCOOTING:
        thigh, shin = -0.12, -0.3
        if sign > 0:
            thigh, shin = 0.15, -0.1
    else:
        thigh = swing * math.sin(phase) + 0.3 * max(swing - 0.6, 0.0)
        shin = thigh - 1.3 * swing * max(0.0, math.cos(phase)) - 0.15 * swing
    knee_f, knee_u = 0.44 * math.sin(thigh), hip_u - 0.44 * math.cos(thigh)
    return knee_f, knee_u, knee_f + 0.43 * math.sin(shin), knee_u - 0.43 * math.cos(shin)


@jit
def _arm(
    posture: int, sign: float, phase: float, hip_u: float, shoulder_f: float, shoulder_u: float, t_s: float,
    look: np.ndarray,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    """Return elbow and hand of the left (sign -1) or right arm (1), each as (ahead, up), and the hand to the right."""
    if posture in (CYCLING, MOTORCYCLING, SCOOTING):
        hand_f, hand_u, hand_r = 0.6, hip_u + 0.08, 0.25 * sign
        if posture == SCOOTING:
            hand_f, hand_u, hand_r = 0.42, 1.02, 0.2 * sign
        elbow_f, elbow_u = _joint(shoulder_f, shoulder_u, hand_f, hand_u, 0.29, 0.29, -1.0)
        return elbow_f, elbow_u, hand_f, hand_u, hand_r
    arm = -0.8 * look[12] * math.sin(phase)
    crook = look[13] + 0.25 * max(0.0, arm)
    if posture in (STANDING, SITTING):
        lively = 0.3 + 0.7 * math.sin(0.31 * t_s + look[15]) ** 2
        arm = 0.1 + lively * (0.5 + 0.4 * math.sin((2.1 + sign) * t_s + 3 * look[15]))
        crook = 0.3 + lively * (1.2 + 0.6 * math.sin((2.9 + 0.7 * sign) * t_s))
    elbow_f, elbow_u = shoulder_f + 0.29 * math.sin(arm), shoulder_u - 0.29 * math.cos(arm)
    hand_f, hand_u = elbow_f + 0.27 * math.sin(arm + crook), elbow_u - 0.27 * math.cos(arm + crook)
    return elbow_f, elbow_u, hand_f, hand_u, 1.1 * (0.2 * sign * (0.7 + 0.3 * look[5]))


@jit
def _add_head(limbs: np.ndarray, shoulder_f: float, shoulder_u: float, lean: float, look: np.ndarray) -> None:
    """Add shoulders, neck, face and hair."""
    head_f, head_u = shoulder_f + 0.35 * lean * 0.5 + 0.02, shoulder_u + 0.21
    _set(limbs, 16, shoulder_f, shoulder_u - 0.02, -0.1, 0.075, shoulder_f, shoulder_u - 0.02, 0.1, 0.075, look[0],
         look[6])  # fmt: skip
    _set(limbs, 17, shoulder_f, shoulder_u, 0, 0.055, head_f, head_u, 0, 0.055, look[2], -1)
    _set(limbs, 18, head_f + 0.02, head_u - 0.03, 0, 0.085, head_f + 0.01, head_u + 0.06, 0, 0.1, look[2], -1)
    _set(limbs, 19, head_f - 0.035, head_u + 0.02, 0, 0.1, head_f - 0.01, head_u + 0.085, 0, 0.1, look[3], -1)


@jit
def _set(
    limbs: np.ndarray, k: int, f0: float, u0: float, r0: float, radius0: float, f1: float, u1: float, r1: float,
    radius1: float, grey: float, cloth: float,
) -> None:  # fmt: skip
    q = limbs[k]
    q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7], q[8], q[9] = f0, u0, r0, radius0, f1, u1, r1, radius1, grey, cloth


@jit
def _placed(limbs: np.ndarray, place: Place, scale: float, phase: float) -> np.ndarray:
    """Return the limbs in use, in world coordinates. A cloth of -1 means plain."""
    sine, cosine = math.sin(place.heading), math.cos(place.heading)
    count = 0
    for k in range(len(limbs)):
        if limbs[k, 3] <= 0:
            continue
        q = limbs[k].copy()
        for end in range(2):
            f, u, r = q[4 * end] * scale, q[4 * end + 1] * scale, q[4 * end + 2] * scale
            q[4 * end], q[4 * end + 1] = place.x_m + f * sine + r * cosine, u
            q[4 * end + 2] = place.z_m + f * cosine - r * sine
            q[4 * end + 3] *= scale
        q[10] = _CLOTH_CELLS_PER_M if q[9] >= 0 else 0.0
        q[9] = max(q[9], 0.0)
        q[11] = phase
        limbs[count] = q
        count += 1
    return limbs[:count]


@dataclass(frozen=True)
class Animal:
    """A dog, or an animal of similar build, from the size of a cat to the size of a calf."""

    scale: float
    look: np.ndarray  # (6,): coat, legs, girth, cloth, phase, place on the cloth

    def parts(self, place: Place, t_s: float, eye: np.ndarray) -> Parts:
        """Return the limbs of the animal. See `Player.parts`."""
        phase = self.look[4] + 2 * math.pi * place.way_m / (0.75 * self.scale)
        return Parts(limbs=_dog(place, phase, t_s, self.scale, self.look))


def build_animal(first_cloth: int, rng: np.random.Generator) -> Animal:
    """Return an animal of random size and coat.

    Args:
        first_cloth: Number of the first of WEAVES pictures of cloth.
        rng: Random generator.
    """
    coat = rng.uniform(0.03, 0.8)
    legs = coat if rng.random() < 0.6 else rng.uniform(0.03, 0.9)
    cloth = first_cloth + rng.choice((0, 6, 7))
    look = np.array([coat, legs, rng.uniform(0.8, 1.3), cloth, rng.uniform(0, 6.28), rng.uniform(0, 64)])
    return Animal(float(rng.uniform(0.45, 1.3)), look)


@jit
def _dog(place: Place, phase: float, t_s: float, scale: float, look: np.ndarray) -> np.ndarray:
    limbs = np.zeros((_NUM_LIMBS, LIMB_COLUMNS))
    girth = look[2]
    back = 0.55 + 0.015 * math.sin(2 * phase)
    _set(limbs, 0, -0.3, back, 0, 0.12 * girth, 0.3, back, 0, 0.15 * girth, look[0], look[3])
    _set(limbs, 1, 0.3, back + 0.03, 0, 0.09, 0.48, back + 0.2, 0, 0.08, look[0], look[3])
    _set(limbs, 2, 0.47, back + 0.22, 0, 0.09, 0.66, back + 0.17, 0, 0.05, look[0], -1)
    wag = 0.12 * math.sin(9 * t_s)
    _set(limbs, 3, -0.38, back + 0.05, 0, 0.035, -0.6, back + 0.22, wag, 0.02, look[0], -1)
    for leg in range(4):
        f = 0.27 if leg < 2 else -0.3
        r = 0.09 if leg % 2 else -0.09
        angle = phase + math.pi * ((leg % 2) ^ (leg // 2))
        thigh = 0.5 * math.sin(angle)
        shin = thigh - 0.7 * max(0.0, math.cos(angle))
        knee_f, knee_u = f + 0.25 * math.sin(thigh), back - 0.02 - 0.25 * math.cos(thigh)
        foot_f, foot_u = knee_f + 0.26 * math.sin(shin), knee_u - 0.26 * math.cos(shin)
        _set(limbs, 4 + 2 * leg, f, back - 0.02, r, 0.07, knee_f, knee_u, r, 0.04, look[0], look[3])
        _set(limbs, 5 + 2 * leg, knee_f, knee_u, r, 0.035, foot_f, foot_u, r, 0.03, look[1], -1)
    return _placed(limbs, place, scale, look[5])
