"""The kinds of scenes: what stands and moves in each, as ranges from which a recording draws its numbers."""

from dataclasses import dataclass

Range = tuple[float, float]

CAR, HAND, REST, AIR = "car", "hand", "rest", "air"  # how a camera is carried
CITY, SUBURB, OPEN = "city", "suburb", "open"  # what stands beside the road


@dataclass(frozen=True)
class SceneKind:
    """One kind of scene. Pairs are the fewest and the most, or the lowest and the highest."""

    weight: float  # how often it is drawn, relative to the others
    cameras: tuple[str, ...] = (CAR,)
    roadsides: tuple[str, ...] = (CITY, SUBURB)
    speed_m_per_s: Range = (5.0, 13.0)  # of the camera and the traffic
    lanes: Range = (1, 1)  # per direction
    parked: Range = (0.0, 0.5)  # share of the places on each side of the road
    ahead: Range = (0, 2)  # vehicles in the direction of the camera
    oncoming: Range = (0, 3)
    across: Range = (0, 0)  # vehicles on a street that crosses; none: there is no such street
    walkers: Range = (0, 8)
    riders: Range = (0, 2)
    large_share: float = 0.12  # of the vehicles that drive
    stops: bool = False  # the camera halts behind the car ahead
    turns: bool = False  # the camera turns into the street that crosses
    is_square: bool = False  # people walk everywhere
    screens: Range = (0, 0)  # flickering screens


KINDS = {
    "canyon": SceneKind(2.0, roadsides=(CITY,), speed_m_per_s=(4, 11), parked=(0.3, 1.0), walkers=(2, 10)),
    "following": SceneKind(2.0, speed_m_per_s=(5, 15), parked=(0, 0.3), ahead=(1, 3), walkers=(0, 5), large_share=0.2),
    "oncoming": SceneKind(1.5, speed_m_per_s=(6, 15), parked=(0, 0.3), oncoming=(2, 6), walkers=(0, 5)),
    "crossing": SceneKind(
        1.5, cameras=(CAR, HAND, REST), speed_m_per_s=(3, 9), parked=(0, 0.3), across=(2, 5), walkers=(2, 10),
        riders=(0, 3),
    ),
    "suburb": SceneKind(1.5, roadsides=(SUBURB,), speed_m_per_s=(7, 15), parked=(0, 0.25), walkers=(0, 4)),
    "motorway": SceneKind(
        1.0, roadsides=(OPEN,), speed_m_per_s=(18, 33), lanes=(2, 3), parked=(0, 0), ahead=(2, 6), oncoming=(2, 7),
        walkers=(0, 0), riders=(0, 1), large_share=0.45,
    ),
    "queue": SceneKind(
        1.0, speed_m_per_s=(3, 8), ahead=(1, 4), across=(1, 4), walkers=(1, 8), riders=(0, 3), large_share=0.2,
        stops=True,
    ),
    "turn": SceneKind(1.0, speed_m_per_s=(3, 7), parked=(0.1, 0.6), ahead=(0, 1), across=(1, 3), turns=True),
    "pavement": SceneKind(
        1.5, cameras=(HAND,), parked=(0, 0.6), ahead=(0, 3), oncoming=(0, 3), walkers=(4, 14), riders=(0, 3)
    ),
    "rest": SceneKind(
        2.0, cameras=(REST,), parked=(0, 0.3), ahead=(0, 3), oncoming=(0, 3), walkers=(2, 8), riders=(0, 3)
    ),
    "square": SceneKind(
        1.0, cameras=(HAND, REST), parked=(0, 0.1), ahead=(0, 0), oncoming=(0, 0), walkers=(8, 30), riders=(0, 4),
        is_square=True,
    ),
    "two_wheelers": SceneKind(
        1.0, cameras=(CAR, HAND, REST), speed_m_per_s=(3, 9), ahead=(0, 1), oncoming=(0, 1), walkers=(0, 4),
        riders=(3, 8),
    ),
    "above": SceneKind(
        1.0, cameras=(AIR,), roadsides=(CITY, SUBURB, OPEN), speed_m_per_s=(4, 12), parked=(0, 0.3), walkers=(3, 12),
        riders=(0, 3),
    ),
}  # fmt: skip
# Scenes without people, vehicles and two-wheelers, from which a detector learns to stay silent.
EMPTY = SceneKind(
    1.0, cameras=(CAR, HAND, REST), roadsides=(CITY, SUBURB, OPEN), parked=(0, 0), ahead=(0, 0), oncoming=(0, 0),
    walkers=(0, 0), riders=(0, 0), screens=(0, 3),
)  # fmt: skip
