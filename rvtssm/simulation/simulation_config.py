"""The settings of simulated recordings. This file does not import what renders them."""

import math
from dataclasses import dataclass, field

from rvtssm.datasets.synthetic import SPEC
from rvtssm.limits import check_at_least, check_share

FIRST_LABEL_US = 100_000


@dataclass
class CameraConfig:
    """The properties of a camera. Contrast thresholds are steps of the natural logarithm of the intensity."""

    threshold: float = 0.2
    threshold_mismatch: float = 0.1  # standard deviation over pixels, relative to the threshold
    refractory_us: int = 500
    background_rate_hz: float = 0.2  # noise events per pixel
    hot_pixel_share: float = 2e-4
    hot_pixel_rate_hz: float = 40.0
    dark_intensity: float = 0.02  # added before the logarithm; the intensity of full darkness


@dataclass
class SceneConfig:
    """How many actors a scene has, and what they do."""

    min_actors: int = 3  # at a time, including those about to enter
    max_actors: int = 5
    car_share: float = 0.6  # of the actors; the others are pedestrians
    stopping_share: float = 0.9  # of the actors; these stop and go


@dataclass
class SyntheticConfig:
    """What to generate. A recording depends on its split, its index and the settings, but not on the counts."""

    seed: int = 0
    num_train: int = 60
    num_val: int = 8
    num_test: int = 12
    duration_s: float = 5.0
    height: int = SPEC.height
    width: int = SPEC.width
    label_interval_us: int = SPEC.label_interval_us
    ego_motion_share: float = 0.3  # of the recordings; in these the camera moves
    camera: CameraConfig = field(default_factory=CameraConfig)
    scene: SceneConfig = field(default_factory=SceneConfig)
    workers: int | None = None  # None means one per core

    def num_recordings(self, split: str) -> int:
        count: int = getattr(self, f"num_{split}")
        return count

    def is_ego_moving(self, index: int) -> bool:
        """Return whether the camera moves in a recording. Moving cameras are spread evenly over the indices."""
        return int((index + 1) * self.ego_motion_share) > int(index * self.ego_motion_share)

    def check(self) -> None:
        """Raise ValueError for settings that cannot be generated."""
        if not FIRST_LABEL_US <= self.duration_s * 1e6 < math.inf:
            raise ValueError(
                f"synthetic.duration_s={self.duration_s:g} must be finite and at least {FIRST_LABEL_US / 1e6:g}, "
                "the time of the first label"
            )
        camera, scene = self.camera, self.scene
        check_at_least("synthetic", self, 0, "seed", "num_train", "num_val", "num_test")
        check_at_least("synthetic", self, 1, "label_interval_us", "height", "width", "workers")
        check_share("synthetic", self, "ego_motion_share")
        check_at_least("synthetic.camera", camera, 1e-3, "threshold", "dark_intensity")
        check_at_least("synthetic.camera", camera, 0, "threshold_mismatch", "refractory_us")
        check_at_least("synthetic.camera", camera, 0, "background_rate_hz", "hot_pixel_rate_hz")
        check_share("synthetic.camera", camera, "hot_pixel_share")
        check_at_least("synthetic.scene", scene, 0, "min_actors")
        check_at_least("synthetic.scene", scene, scene.min_actors, "max_actors")
        check_share("synthetic.scene", scene, "car_share", "stopping_share")
