"""The settings of simulated recordings. This file does not import the renderer."""

from dataclasses import dataclass, replace
from typing import Any

from rvtssm.datasets import DATASETS
from rvtssm.system.limits import Settings, setting
from rvtssm.system.user_error import UserError

FIRST_LABEL_US = 100_000
MIN_THRESHOLD = 0.02  # smallest step of the log intensity; smaller ones drawn for a pixel are raised to it
LONGEST_S = 4294  # length of a recording in a DAT file, whose clock has 32 bits


def _amount(default: float) -> Any:
    return setting(default, at_least=0)


def _share(default: float) -> Any:
    return setting(default, at_least=0, at_most=1)


@dataclass(frozen=True)
class CameraConfig(Settings, section="camera"):
    """The properties of a camera. Contrast thresholds are steps of the natural logarithm of the intensity.

    The defaults disable every effect after `dark_intensity`. CAMERAS lists cameras that have these effects; a plugin
    can add one of yours: `CAMERAS["mine"] = CameraConfig(threshold=0.3)`.
    """

    threshold: float = setting(0.2, at_least=MIN_THRESHOLD)  # contrast that triggers an event
    threshold_mismatch: float = _amount(0.1)  # standard deviation over pixels, relative to the threshold
    refractory_us: int = _amount(500)  # time after an event during which its pixel sends no other event
    background_rate_hz: float = _amount(0.2)  # noise events per pixel and second
    hot_pixel_share: float = _share(2e-4)  # share of the pixels that are hot, which send events without a reason
    hot_pixel_rate_hz: float = _amount(40.0)  # events per second of a hot pixel
    dark_intensity: float = setting(
        0.02, at_least=1e-3
    )  # added to the intensity before the logarithm; the intensity of full darkness
    threshold_noise: float = _share(0.0)  # standard deviation from event to event, relative to the threshold
    on_to_off: float = setting(1.0, above=0)  # threshold of brighter events divided by the threshold of darker events
    cutoff_hz: float = _amount(0.0)  # bandwidth of a pixel in white by day, falls in proportion to light; 0: unlimited
    leak_rate_hz: float = _amount(0.0)  # brighter events per pixel and second without any change
    leak_mismatch: float = _amount(0.0)  # standard deviation of the logarithm of the leak rate over pixels
    shot_rate_hz: float = _amount(0.0)  # noise events per pixel and second in darkness; a quarter in white by day
    dead_pixel_share: float = _share(0.0)  # share of the pixels that are dead, which send no events
    latency_us: float = _amount(0.0)  # time from a change to its event, besides the delay by the bandwidth
    latency_jitter_us: float = _amount(0.0)  # standard deviation of the latency; the latency is never negative
    readout_us: int = _amount(0)  # time to read all rows once, one after the other; 0: all at the same time
    max_rate_hz: float = _amount(0.0)  # most events per pixel and second, mean over the sensor; 0: unlimited
    spread: float = setting(1.0, at_least=1)  # draw each property per recording, from value / spread to value * spread

    def __post_init__(self) -> None:
        """Check nothing yet, since cameras that `spread` draws may leave the limits; `check_limits` does."""


# Sources of the numbers: v2e (Hu et al., CVPRW 2021) for the DAVIS346; IEBCS (Joubert et al. 2021) and Posch et al.
# (JSSC 2011) for the sensor of Gen1; Finateu et al. (ISSCC 2020) and the settings of openeb for the IMX636. The range
# of `any` contains all of them.
CAMERAS: dict[str, CameraConfig] = {
    "plain": CameraConfig(),
    "davis346": CameraConfig(
        threshold=0.2, threshold_mismatch=0.15, refractory_us=500, background_rate_hz=0.0, hot_pixel_share=5e-4,
        threshold_noise=0.05, on_to_off=1.1, cutoff_hz=300, leak_rate_hz=0.1, leak_mismatch=0.3, shot_rate_hz=1.0,
        dead_pixel_share=1e-4, latency_us=50, latency_jitter_us=100, max_rate_hz=130, spread=1.3,
    ),
    "gen1": CameraConfig(
        threshold=0.25, threshold_mismatch=0.1, refractory_us=300, background_rate_hz=0.0, hot_pixel_share=2e-4,
        threshold_noise=0.05, on_to_off=0.9, cutoff_hz=500, leak_rate_hz=0.05, leak_mismatch=0.3, shot_rate_hz=0.5,
        dead_pixel_share=2e-4, latency_us=50, latency_jitter_us=80, max_rate_hz=150, spread=1.3,
    ),
    "imx636": CameraConfig(
        threshold=0.2, threshold_mismatch=0.05, refractory_us=150, background_rate_hz=0.0, hot_pixel_share=5e-5,
        threshold_noise=0.03, on_to_off=1.0, cutoff_hz=700, leak_rate_hz=0.02, leak_mismatch=0.3, shot_rate_hz=0.3,
        dead_pixel_share=2e-5, latency_us=30, latency_jitter_us=40, readout_us=40, max_rate_hz=300, spread=1.3,
    ),
    "any": CameraConfig(
        threshold=0.15, threshold_mismatch=0.1, refractory_us=150, background_rate_hz=0.05, hot_pixel_share=2e-4,
        threshold_noise=0.05, on_to_off=1.0, cutoff_hz=400, leak_rate_hz=0.05, leak_mismatch=0.3, shot_rate_hz=0.6,
        dead_pixel_share=1e-4, latency_us=50, latency_jitter_us=80, readout_us=20, max_rate_hz=200, spread=2.7,
    ),
}  # fmt: skip
# a fast camera with a low threshold would fill the disk
CAMERAS["any_limited"] = replace(CAMERAS["any"], max_rate_hz=80.0)
# In four real recordings that are not noise, 36 to 38 % of the events are brighter (`benchmarks.worlds`).
CAMERAS["any_wide"] = replace(
    CAMERAS["any_limited"], on_to_off=1.3, threshold_mismatch=0.2, shot_rate_hz=0.2, background_rate_hz=0.03, spread=3.5
)


@dataclass(frozen=True)
class SceneConfig:
    """How many actors a scene of dataset=synthetic has, and what they do."""

    min_actors: int = 3  # fewest actors at a time, including actors about to enter
    max_actors: int = 5  # most actors at a time
    car_share: float = 0.6  # of the actors; the others are pedestrians
    stopping_share: float = 0.9  # of the actors, which stop and go


@dataclass
class SyntheticConfig(Settings, section="synthetic"):
    """What to generate. A recording depends on split, index, sensor and settings, but not on the counts.

    The size of the sensor is that of the dataset, `dataset.height` and `dataset.width`.
    """

    seed: int = setting(0, at_least=0)
    """Another seed gives other scenes."""
    num_train: int = setting(60, at_least=0)
    """Recordings of the training split."""
    num_val: int = setting(8, at_least=0)
    """Recordings of the validation split."""
    num_test: int = setting(12, at_least=0)
    """Recordings of the test split."""
    duration_s: float = setting(5.0, above=0, at_most=LONGEST_S)
    """Length of a recording."""
    label_interval_us: int = setting(DATASETS["synthetic"].label_interval_us, at_least=1)
    """Time between two labels."""
    ego_motion_share: float = setting(0.3, at_least=0, at_most=1)
    """Share of the recordings in which the camera moves."""
    sensor: str = setting("plain", choices=CAMERAS)
    """The camera; one of CAMERAS (docs/simulation.md)."""
    num_actors: tuple[int, ...] = setting((3, 5), at_least=0)
    """Fewest and most actors of a street at a time, including actors about to enter."""
    stopping_share: float = setting(0.9, at_least=0, at_most=1)
    """Share of the actors of a street that stop and go."""
    workers: int | None = setting(None, at_least=1)
    """Number of processes; null: one per core."""

    @property
    def camera(self) -> CameraConfig:
        """The camera that `sensor` names."""
        return CAMERAS[self.sensor]

    @property
    def scene(self) -> SceneConfig:
        """What happens on a street."""
        fewest, most = self.num_actors
        return SceneConfig(fewest, most, stopping_share=self.stopping_share)

    @property
    def first_label_us(self) -> int:
        """Time of the first label: the first multiple of the interval from 100 ms on, in microseconds."""
        return -(-FIRST_LABEL_US // self.label_interval_us) * self.label_interval_us

    @property
    def duration_us(self) -> int:
        """Length of a recording in microseconds."""
        return round(self.duration_s * 1e6)

    @property
    def label_times_us(self) -> range:
        """Times of the labels of a recording, in microseconds."""
        return range(self.first_label_us, self.duration_us + 1, self.label_interval_us)

    def num_recordings(self, split: str) -> int:
        """Return the number of recordings of a split."""
        return getattr(self, f"num_{split}")

    def is_ego_moving(self, index: int) -> bool:
        """Return whether the camera moves in a recording. Moving cameras are spread evenly.

        Args:
            index: Number of the recording in its split.
        """
        return int((index + 1) * self.ego_motion_share) > int(index * self.ego_motion_share)

    def check(self) -> None:
        """Raise a UserError for settings that cannot be generated."""
        first_s = self.first_label_us / 1e6
        if self.duration_s < first_s:
            raise UserError(
                "setting.conflict", name="synthetic.duration_s", found=f"{self.duration_s:g}",
                needed=f"the first label with synthetic.label_interval_us={self.label_interval_us} is at {first_s:g} s",
                advice="give a longer duration",
            )  # fmt: skip
        if len(self.num_actors) != 2 or self.num_actors[0] > self.num_actors[1]:
            needed = "name the fewest and the most, as in [3,5]"
            raise UserError("setting.form", name="synthetic.num_actors", found=list(self.num_actors), needed=needed)
        self.camera.check_limits()
