"""The fast scan is the reference loop: same states, same gradients, whatever the shapes, the type and the layout."""

import sys
import warnings

import pytest
import torch
from scan_reference import scan_reference
from torch import Tensor
from user_errors import raises

from rvtssm.ssm import TemporalConfig, scan_cpu, scan_loop, shared_state
from rvtssm.ssm import scan as scan_module
from rvtssm.ssm.scan import scan, sweeps
from rvtssm.ssm.temporal_layers import build_temporal_layer

NUM_GROUPS, GROUP_SIZE, NUM_MODES = 2, 3, 5
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-13, torch.float32: 1e-5, torch.float64: 1e-13}
LENGTHS = [1, 2, 3, 21, 210]
KINDS = ["constant", "per_sequence", "per_step", "own"]
TYPED = [(kind, torch.complex64) for kind in KINDS[:3]] + [("own", torch.float32)]
TYPED += [("constant", torch.complex128), ("per_step", torch.float32), ("own", torch.float64)]


def example(num_steps: int, kind: str, dtype: torch.dtype, group_size: int = GROUP_SIZE) -> tuple[Tensor, ...]:
    """Decay, drive and first state; `own`: every sequence has its own decay at every step, as in S7."""
    torch.manual_seed(num_steps)
    middle = {
        "constant": (1, 1),
        "per_sequence": (1, NUM_GROUPS),
        "per_step": (num_steps, NUM_GROUPS),
        "own": (num_steps, NUM_GROUPS * group_size),
    }[kind]
    num_sequences = NUM_GROUPS * group_size
    decay = torch.rand(*middle, NUM_MODES)
    if dtype.is_complex:
        decay = torch.polar(decay, 6 * torch.rand(*middle, NUM_MODES))
    drive = torch.randn(num_steps, num_sequences, NUM_MODES, dtype=dtype)
    state = torch.randn(num_sequences, NUM_MODES, dtype=dtype)
    return decay.to(dtype).requires_grad_(), drive.requires_grad_(), state.requires_grad_()


def slow_scan(decay: Tensor, drive: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The reference, with a decay for every sequence."""
    return scan_reference(decay.repeat_interleave(drive.shape[1] // decay.shape[1], 1), drive, state)


def gradients(function, inputs: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    states, last = function(*inputs)
    loss = (states * weights[0]).sum() + (last * weights[1]).sum()
    return torch.autograd.grad(torch.view_as_real(loss).sum() if loss.is_complex() else loss, inputs)


@pytest.fixture(params=["cpu", "loop"])
def _fast_twin(monkeypatch, request):
    """Both sweeps that run here; the kernels for GPUs are in test_scan_triton."""
    chosen = {"cpu": scan_cpu, "loop": scan_loop}[request.param]
    monkeypatch.setattr(scan_module, "sweeps", lambda device_type, method: chosen)
    monkeypatch.setattr(shared_state, "sweeps", lambda device_type, method: chosen)


@pytest.mark.usefixtures("_fast_twin")
@pytest.mark.parametrize(("kind", "dtype"), TYPED)
@pytest.mark.parametrize("num_steps", LENGTHS)
def test_scan_equals_the_loop_forward_and_backward(num_steps, kind, dtype):
    inputs = example(num_steps, kind, dtype)
    for found, wanted in zip(scan(*inputs), slow_scan(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE[dtype])
    weights = torch.randn_like(inputs[1]), torch.randn_like(inputs[2])
    found, wanted = gradients(scan, inputs, weights), gradients(slow_scan, inputs, weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * num_steps)


@pytest.mark.usefixtures("_fast_twin")
def test_sums_of_many_gradients_stay_exact():
    """A gradient of decay sums over all sequences: in order, one by one, it would lose the last digits."""
    decay, drive, state = example(3, "constant", torch.complex64, group_size=2001)
    weights = torch.ones_like(drive), torch.ones_like(state)
    inputs = tuple(value.detach().to(torch.complex128).requires_grad_() for value in (decay, drive, state))
    wanted = gradients(slow_scan, inputs, tuple(w.to(torch.complex128) for w in weights))[0]
    found = gradients(scan, (decay, drive, state), weights)[0]
    assert (found - wanted).abs().max() < 3e-6 * wanted.abs().max()


def test_memory_layout_does_not_matter():
    decay, drive, state = example(5, "constant", torch.complex64)
    shuffled = drive.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0).requires_grad_()
    assert not shuffled.is_contiguous()
    wanted = scan(decay, drive, state)
    torch.testing.assert_close(scan(decay, shuffled, state), wanted)
    torch.testing.assert_close(scan(decay.conj().conj(), shuffled, state.mT.contiguous().mT), wanted)
    mirrored = scan(decay.conj(), drive.conj(), state.conj())
    torch.testing.assert_close(mirrored[0].conj().resolve_conj(), wanted[0])
    # the gradient of the sum has no memory of its own
    found, expected = (
        torch.autograd.grad(run(decay, shuffled, state)[0].real.sum(), shuffled) for run in (scan, slow_scan)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("_fast_twin")
def test_low_precision_in_full_precision_state():
    """bfloat16 drives a float32 state: the states are exact for what came in, only that is rounded."""
    decay, drive, state = (value.detach() for value in example(21, "own", torch.float32))
    states, last = scan(decay, drive.bfloat16(), state)
    assert states.dtype == last.dtype == torch.float32
    torch.testing.assert_close(states, slow_scan(decay, drive.bfloat16().float(), state)[0])
    torch.testing.assert_close(states, slow_scan(decay, drive, state)[0], rtol=0, atol=3e-2)


def test_the_last_state_does_not_hold_all_states():
    states, last = scan(*example(9, "constant", torch.complex64))
    assert last.untyped_storage().nbytes() == last.numel() * last.element_size()
    torch.testing.assert_close(last, states[-1])


@pytest.mark.parametrize("shape", [(0, 6, 5), (3, 0, 5)])
def test_nothing_to_scan_is_refused(shape):
    decay, _, state = (value.detach() for value in example(3, "constant", torch.complex64))
    with raises("scan.shapes", "none of them may be empty"):
        scan(decay, torch.zeros(shape, dtype=torch.complex64), state[: shape[1]])


def test_the_sweeps_are_chosen_by_device(monkeypatch):
    assert sweeps("cpu") is scan_cpu
    monkeypatch.setattr(scan_module.importlib.util, "find_spec", lambda name: None)
    assert sweeps.__wrapped__("cuda") is scan_loop, "a GPU without Triton"
    assert sweeps.__wrapped__("mps") is scan_loop
    for device in ("cpu", "cuda", "mps"):
        assert sweeps.__wrapped__(device, "loop") is scan_loop
    assert sweeps.__wrapped__("cpu", "triton") is scan_cpu
    with raises("install.extra", "temporal.scan=triton"):
        sweeps.__wrapped__("cuda", "triton")
    monkeypatch.setattr(scan_module.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "rvtssm.ssm.scan_triton", None)  # it is there, and cannot be imported
    monkeypatch.delattr("rvtssm.ssm.scan_triton", raising=False)
    with pytest.warns(RuntimeWarning, match="cannot be built here"):
        assert sweeps.__wrapped__("cuda") is scan_loop
    with pytest.raises(ImportError):
        sweeps.__wrapped__("cuda", "triton")


@pytest.mark.parametrize("name", ["s5", "selective_s5", "s7"])
def test_a_layer_runs_the_scan_that_was_asked_for(monkeypatch, name):
    x, results = torch.randn(3, 2, 4), []
    for method in ("auto", "loop"):
        torch.manual_seed(0)
        layer = build_temporal_layer(TemporalConfig(name=name, scan=method), 4)
        if method == "loop":
            monkeypatch.setattr(scan_cpu, "forward", None)
            monkeypatch.setattr(scan_cpu, "backward", None)
        y, _ = layer(x, layer.init_state(2))
        results.append((y, *torch.autograd.grad(y.sum(), list(layer.parameters()))))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class FailingKernels:
    """Sweeps that fail as Triton does: the forward runs, unless an error is given for it."""

    def __init__(self, error: Exception, name: str) -> None:
        self.error, self.name, self.calls = error, name, 0

    def forward(self, *values):
        self.run("forward", values)

    def backward(self, *values):
        return self.run("backward", values)

    def run(self, name, values):
        self.calls += 1
        if name == self.name:
            raise self.error
        return getattr(scan_loop, name)(*values)


@pytest.mark.parametrize(("name", "kind"), [("forward", "resources"), ("backward", "compiler"), ("forward", "import")])
def test_the_loop_takes_over_from_a_kernel_that_cannot_be_built(monkeypatch, name, kind):
    resources = pytest.importorskip("triton.runtime.errors").OutOfResources
    error = {
        "resources": resources(300_000, 100_000, "shared memory"),
        "compiler": RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        "import": ImportError("cannot import name 'ptxas'"),
    }[kind]
    kernels = FailingKernels(error, name)
    run = scan_module.KernelsOrLoop(kernels)
    monkeypatch.setattr(scan_module, "sweeps", lambda device_type, method: run)
    values = example(5, "constant", torch.complex64)
    with pytest.warns(RuntimeWarning, match="cannot be built here") as warned:
        states, _ = scan(*values)
        gradients = torch.autograd.grad(states.abs().sum(), values)
    assert str(error).split(",")[0] in str(warned[0].message)
    assert len(warned) == 1
    wanted, _ = slow_scan(*values)
    torch.testing.assert_close(states, wanted)
    for found, expected in zip(gradients, torch.autograd.grad(wanted.abs().sum(), values), strict=True):
        torch.testing.assert_close(found, expected)
    calls = kernels.calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(*values)
    assert kernels.calls == calls, "the kernels are not tried again"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: an illegal address")]
)
def test_an_error_of_the_device_is_raised(error):
    pytest.importorskip("triton")
    run = scan_module.KernelsOrLoop(FailingKernels(error, "forward"))
    with pytest.raises(RuntimeError, match="CUDA"):
        run.forward()


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_keeps_the_rules_of_pytorch(kind):
    """Shapes without data, gradients registered, no input changed, nothing aliased: what a compiler relies on."""
    inputs = tuple(value.detach().requires_grad_() for value in example(3, kind, torch.complex64))
    torch.library.opcheck(scan_module._scan, (*inputs, "auto"), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", ["selective_s5", "s7"])
def test_a_layer_compiles_with_its_gradients(name):
    torch.manual_seed(0)
    layer = build_temporal_layer(TemporalConfig(name=name), 4)
    x, state = torch.randn(3, 2, 4, requires_grad=True), layer.init_state(2)
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        y, last = run(x, state, 0.5)
        loss = y.square().sum() + last.abs().square().sum()
        results.append((y, last, *torch.autograd.grad(loss, [x, *layer.parameters()])))
    torch.testing.assert_close(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_numbers_of_the_cpu(kind):
    inputs = example(21, kind, torch.complex64, group_size=33)
    weights = torch.randn_like(inputs[1]), torch.randn_like(inputs[2])
    there = tuple(value.detach().cuda().requires_grad_() for value in inputs)
    for found, wanted in zip(scan(*there), scan(*inputs), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=1e-5)
    found = gradients(scan, there, tuple(w.cuda() for w in weights))
    for one, other in zip(found, gradients(scan, inputs, weights), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)
