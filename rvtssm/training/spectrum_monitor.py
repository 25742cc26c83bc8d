"""The modes of the temporal layers during training: numbers and a figure for each layer at every validation."""

import lightning as L
import numpy as np

from rvtssm.ssm.spectrum import Spectrum
from rvtssm.training.loggers import show_image, shows_images
from rvtssm.training.module import DetectionModule


class SpectrumMonitor(L.Callback):
    """Logs `spectrum/strideN_...` at the training rate: time constants (ms), frequencies (Hz), share of masked modes.

    A layer without modes logs nothing.
    """

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, DetectionModule)
        stride_us = pl_module.settings.trained_stride_us
        draws = trainer.is_global_zero and shows_images(trainer)
        for stride, layer in pl_module.detector.backbone.temporal_layers().items():
            spectrum = layer.spectrum()
            if not isinstance(spectrum, Spectrum):
                continue
            numbers = {f"spectrum/stride{stride}_{name}": value for name, value in summary(spectrum, stride_us).items()}
            pl_module.log_dict(numbers, sync_dist=True)
            if draws:
                figure = spectrum_figure(spectrum, stride_us, f"stride {stride}")
                show_image(trainer, f"spectrum/stride{stride}", figure)


def summary(spectrum: Spectrum, stride_us: float) -> dict[str, float]:
    """Summarise the spectrum of a layer in a few numbers.

    Args:
        spectrum: The spectrum.
        stride_us: The training step.
    """
    timescale_ms, frequency_hz = _in_units(spectrum, stride_us)
    return {
        "timescale_ms_min": float(timescale_ms.min()),
        "timescale_ms_median": float(np.median(timescale_ms)),
        "timescale_ms_max": float(timescale_ms.max()),
        "frequency_hz_median": float(np.median(frequency_hz)),
        "frequency_hz_max": float(frequency_hz.max()),
        "masked_share": float(spectrum.is_masked.double().mean()),
    }


def spectrum_figure(spectrum: Spectrum, stride_us: float, title: str) -> np.ndarray:
    """Draw the modes as points, masked ones in grey, with the limit of the mask and the Nyquist rate.

    Args:
        spectrum: The spectrum.
        stride_us: The training step.
        title: Title of the figure.

    Returns:
        (h, w, 3) uint8 RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported here because the import takes a second
    from matplotlib.figure import Figure

    timescale_ms, frequency_hz = _in_units(spectrum, stride_us)
    nyquist_hz = 0.5e6 / stride_us
    is_drawn = np.isfinite(timescale_ms)  # a mode that never decays cannot be drawn on a logarithmic axis
    is_masked = spectrum.is_masked.numpy()
    figure = Figure(figsize=(5.6, 3.8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for chosen, color, name in ((~is_masked, "#1f4e8c", "in use"), (is_masked, "0.7", "masked")):
        shown = is_drawn & chosen
        label = f"{name}: {int(chosen.sum())}"
        axes.scatter(frequency_hz[shown], timescale_ms[shown], s=7, color=color, alpha=0.6, linewidths=0, label=label)
    axes.axvline(nyquist_hz, color="0.5", linewidth=1, label=f"Nyquist rate, {nyquist_hz:g} Hz")
    if spectrum.bandlimit:
        limit_hz = spectrum.bandlimit * nyquist_hz
        axes.axvline(limit_hz, color="#c0392b", linewidth=1, linestyle="--", label=f"limit, {limit_hz:g} Hz")
    axes.set_xscale("symlog", linthresh=nyquist_hz / 100)
    axes.set_xlim(0, 1.5 * max(nyquist_hz, float(frequency_hz.max())))
    axes.set_yscale("log")
    axes.set(xlabel="frequency [Hz]", ylabel="time constant [ms]", title=title)
    axes.legend(frameon=False, fontsize=7, loc="best")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _in_units(spectrum: Spectrum, stride_us: float) -> tuple[np.ndarray, np.ndarray]:
    return spectrum.timescale_steps.numpy() * stride_us / 1e3, spectrum.cycles_per_step.numpy() * 1e6 / stride_us
