# %% [markdown]
# # A layer alone
#
# A state-space layer alone: its modes, its answer to an impulse at two rates, and what the bandlimit removes.
# It needs no data.

# %%
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from rvtssm.ssm import S5, TemporalConfig
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.training.logs import spectrum_figure

torch.manual_seed(0)
layer = S5(32, TemporalConfig(discretization="zoh", dt_max=0.4))

# %% [markdown]
# Each mode decays with a time constant and oscillates at a frequency. Both are counted in steps of the training; with a
# stride of 50 ms they become milliseconds and hertz.

# %%
modes = layer.spectrum()
assert isinstance(modes, Spectrum)  # an LSTM has none
Image.fromarray(spectrum_figure(modes, stride_us=50_000, title="S5, before training"))

# %% [markdown]
# An input is held for one step of the training, 50 ms, and then it is zero. At 200 Hz the same input takes ten steps,
# and the step scale is 0.1. The state after the same time is the same, because `zoh` is exact for an input that is
# held.

# %%
pulse = torch.randn(32)


@torch.no_grad()
def response(steps_per_stride: int, num_strides: int = 20) -> torch.Tensor:
    x = torch.zeros(num_strides * steps_per_stride, 1, 32)
    x[:steps_per_stride] = pulse
    y, _ = layer(x, step_scale=1 / steps_per_stride)  # time comes first: (steps, sequences, features)
    return y[:, 0]


coarse, fine = response(1), response(10)
with torch.no_grad():
    _, state = layer(pulse.expand(1, 1, 32))
    _, state_fine = layer(pulse.expand(10, 1, 32), step_scale=0.1)
print("relative difference of the states:", f"{((state - state_fine).abs().max() / state.abs().max()).item():.0e}")

# %%
canvas = FigureCanvasAgg(Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained"))
axes = canvas.figure.add_subplot()
axes.plot(torch.arange(1, 201) * 5, fine[:, 0], label="200 Hz, step scale 0.1")
axes.plot(torch.arange(1, 21) * 50, coarse[:, 0], "o", label="20 Hz")
axes.set(xlabel="time [ms]", ylabel="output of one feature")
axes.legend(frameon=False)
canvas.draw()
Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())

# %% [markdown]
# `kernel` returns the impulse response of the state-space layer, without the block around it: the outputs in the steps
# after an input of 1. S5 mixes its features, so there is a response for every pair of output and input.
# The plot shows how output 0 responds to other features. Its response to input 0 also has the direct path D in step 0,
# which would hide the other curves.

# %%
with torch.no_grad():
    kernel = layer.kernel(40)  # (steps, outputs, inputs)
print(kernel.shape)
canvas = FigureCanvasAgg(Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained"))
axes = canvas.figure.add_subplot()
for feature in (1, 2, 3):
    axes.plot(torch.arange(40) * 50, kernel[:, 0, feature], label=f"input {feature}")
axes.set(xlabel="time [ms]", ylabel="output 0 after an impulse")
axes.legend(frameon=False)
canvas.draw()
Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())

# %% [markdown]
# The bandlimit removes from the output the modes that oscillate faster than a fraction of the Nyquist rate of the
# training step. A smaller limit removes more.

# %%
for bandlimit in (0, 1, 0.5, 0.1):
    modes = S5(32, TemporalConfig(dt_max=0.4, bandlimit=bandlimit)).spectrum()
    assert isinstance(modes, Spectrum)
    print(f"bandlimit {bandlimit:<3}: {modes.is_masked.float().mean().item():.0%} of the modes are masked")
