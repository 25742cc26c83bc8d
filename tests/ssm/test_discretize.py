"""Discretisations against scipy, and the laws that say what each of them is exact for."""

import mpmath
import numpy as np
import pytest
import torch
from scan_reference import scan_reference
from scipy.signal import cont2discrete

from rvtssm.ssm.discretize import DISCRETIZATIONS, phi1, zoh_of_many_steps

LAMBDA = torch.tensor([-0.5 + 3j, -0.5 - 40j, -1e-4 + 0j, -2 + 0.1j], dtype=torch.complex128)
DT = torch.tensor([0.1, 0.02, 1.0, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("name", ["zoh", "bilinear"])
@pytest.mark.parametrize("scale", [0.1, 2.5])
def test_agrees_with_scipy(name, scale):
    decay, gain = DISCRETIZATIONS[name](LAMBDA, DT, scale)
    for k in range(len(LAMBDA)):
        a, b = np.array([[LAMBDA[k].item()]]), np.ones((1, 1))
        wanted_a, wanted_b, *_ = cont2discrete((a, b, b, 0 * b), DT[k].item() * scale, method=name)
        assert abs(decay[k].item() - wanted_a[0, 0]) < 1e-14
        assert abs(gain[k].item() - wanted_b[0, 0]) < 1e-14


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("magnitude", [0, 1e-30, 1e-8, 1e-6, 1e-4, 1e-2, 0.0999, 0.1001, 1, 20])
def test_phi1_is_exact_to_rounding_with_its_gradient(dtype, magnitude):
    z = (torch.tensor([-1, 1j, -0.6 + 0.8j, -0.6 - 0.8j], dtype=torch.complex128) * magnitude).to(dtype)
    z.requires_grad_()
    found = phi1(z)
    (gradient,) = torch.autograd.grad(found.real.sum(), z)
    rounding = torch.finfo(dtype).eps
    with mpmath.workdps(60):
        for k in range(len(z)):
            exact = mpmath.mpc(z[k].item())
            value = mpmath.expm1(exact) / exact if exact else mpmath.mpf(1)
            slope = (mpmath.exp(exact) - value) / exact if exact else mpmath.mpf(0.5)
            assert abs(found[k].item() - complex(value)) <= 4 * rounding * max(abs(complex(value)), 0.05)
            # PyTorch returns the conjugate of the holomorphic derivative
            assert abs(gradient[k].item().conjugate() - complex(slope)) <= 40 * rounding


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_zoh_of_many_steps_is_zoh_forward_and_backward(scale, dtype):
    torch.manual_seed(0)
    real = dtype.to_real()
    lambda_ = LAMBDA.to(dtype).requires_grad_()
    dt = (0.1 + torch.rand(3, 7, 5, len(LAMBDA), dtype=real)).requires_grad_()
    scales = (scale * (1 + torch.rand(3, 7, 1, 1, dtype=real))).requires_grad_()
    above = torch.randn(2, *dt.shape, dtype=dtype)
    found, wanted = (
        (*values, *torch.autograd.grad(values, (dt, scales, lambda_), tuple(above)))
        for values in (method(lambda_, dt, scales) for method in (zoh_of_many_steps, DISCRETIZATIONS["zoh"]))
    )
    rounding = 30 * torch.finfo(dtype).eps
    for one, other in zip(found[:-1], wanted[:-1], strict=True):
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding * float(other.detach().abs().max()))
    smallest = LAMBDA.abs() * 0.1 * scale  # |lambda step|
    bound = rounding * (1 + 1 / smallest) * wanted[-1].abs()
    assert bool(((found[-1] - wanted[-1]).abs() <= bound).all())


@pytest.mark.parametrize(("frequency", "measured"), [(0.1, 0.001), (0.3, 0.018), (1.0, 0.29), (torch.pi / 2, 0.54)])
def test_what_bilinear_loses_at_finer_steps_is_as_documented(frequency, measured):
    """A lightly damped mode under a held input: 21 steps against ten times as many of a tenth; rad per step."""
    lambda_, dt = torch.tensor([(-0.05 + 1j) * frequency], dtype=torch.complex128), torch.ones(1, dtype=torch.float64)

    def states(method: str, finer: int) -> torch.Tensor:
        decay, gain = DISCRETIZATIONS[method](lambda_, dt, 1 / finer)
        found = scan_reference(decay, gain.expand(21 * finer, 1), torch.zeros_like(lambda_))[0]
        return found[finer - 1 :: finer]

    coarse, fine, exact = states("bilinear", 1), states("bilinear", 10), states("zoh", 1)
    largest = exact.abs().max()
    assert float((coarse - fine).abs().max() / largest) == pytest.approx(measured, rel=0.1)
    assert (fine - exact).abs().max() < 0.02 * (coarse - exact).abs().max()


def test_zoh_of_many_steps_can_be_differentiated_twice():
    values = (LAMBDA.clone().requires_grad_(), DT.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(lambda *inputs: zoh_of_many_steps(*inputs, 1.0), values)
