"""Wrong sizes, types and devices of inputs and states are refused before a loop runs over memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from layer_examples import CASES, DIM, as_tuple, build, every_layer, random_state, steps
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.held_scan import held_scan
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.scan import scan
from rvtssm.ssm.shared_state import run_shared
from rvtssm.system.user_error import UserError

LAYERS = {label: build(label) for label in CASES}
TYPES = (torch.float32, torch.float64, torch.int64, torch.complex64, torch.complex128)
size = st.integers(0, 6)


def of_shape(shape, dtype, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


@torch.no_grad()
@hypothesis_settings(max_examples=200)
@given(data=st.data(), case=st.sampled_from(sorted(CASES)))
def test_any_input_and_state_run_or_are_refused(data, case):
    layer = LAYERS[case]
    shape = data.draw(st.lists(size, min_size=2, max_size=4)) if data.draw(st.booleans()) else [data.draw(size), 3, DIM]
    x = of_shape(shape, data.draw(st.sampled_from((torch.float32, torch.bfloat16, torch.int64))))
    zeros = as_tuple(layer.init_state(data.draw(size)))
    if data.draw(st.booleans()):
        zeros = tuple(zero[..., : data.draw(st.integers(0, DIM + 1))] for zero in zeros)
    if data.draw(st.booleans()):
        zeros = tuple(torch.zeros(zero.shape, dtype=data.draw(st.sampled_from(TYPES))) for zero in zeros)
    if data.draw(st.booleans()):
        zeros = tuple(zero[0] for zero in zeros if len(zero))
    is_pair = isinstance(layer.init_state(1), tuple)
    state = zeros if is_pair or len(zeros) != 1 or data.draw(st.booleans()) else zeros[0]
    wanted = as_tuple(layer.init_state(x.shape[1]))
    fits = x.ndim == 3 and x.shape[2] == DIM and x.is_floating_point() and x.numel() > 0
    fits = fits and isinstance(state, tuple) == is_pair
    fits = fits and [(leaf.shape, leaf.dtype) for leaf in as_tuple(state)] == [(w.shape, w.dtype) for w in wanted]
    if fits and x.dtype == torch.float32:
        y, after = layer(x, state)
        assert y.shape == x.shape and [leaf.shape for leaf in as_tuple(after)] == [w.shape for w in wanted]
    elif not fits:
        with pytest.raises(UserError):
            layer(x, state)


@hypothesis_settings(max_examples=200)
@given(
    decay=st.lists(st.integers(0, 4), min_size=2, max_size=4),
    drive=st.lists(st.integers(0, 4), min_size=2, max_size=4),
    state=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    types=st.lists(st.sampled_from(TYPES), min_size=2, max_size=2),
)
def test_any_scan_runs_or_is_refused(decay, drive, state, types):
    fits = len(decay) == len(drive) == 3 and drive[1:] == state and decay[2] == drive[2] and 0 not in (*drive, *decay)
    fits = fits and decay[0] in (1, drive[0]) and drive[1] % decay[1] == 0
    fits = fits and types[0].is_complex == types[1].is_complex and types[1] != torch.int64
    arguments = of_shape(decay, types[0]), of_shape(drive, types[1]), of_shape(state, types[1])
    if fits:
        states, last = scan(*arguments)
        assert torch.equal(states[-1], last)
    else:
        with pytest.raises(UserError):
            scan(*arguments)


@pytest.mark.parametrize("shapes", [((5,), (4, 3, 5), (4, 2, 5)), ((5,), (4, 3, 4), (3, 5)), ((4,), (4, 3, 5), (3, 5))])
def test_a_held_scan_refuses_what_does_not_fit(shapes):
    lambda_, drive, state = (of_shape(shape, torch.complex64) for shape in shapes)
    for step in (torch.ones(drive.shape), torch.ones(2, *drive.shape[1:])):
        with pytest.raises(UserError, match="time comes first"):
            held_scan(lambda_, step, drive, state)


def test_a_prepared_system_of_another_width_is_refused():
    config = TemporalConfig()
    prepared = S5SSM(8, config).prepare()
    with raises("layer.input"):
        run_shared(prepared, torch.zeros(2, 3, 12), torch.zeros(3, 8, dtype=torch.complex64))
    with raises("scan.shapes"):
        run_shared(prepared, torch.zeros(2, 3, 8), torch.zeros(3, 12, dtype=torch.complex64))


@every_layer
def test_a_batch_first_input_is_refused_by_name(case):
    layer = LAYERS[case]
    with raises("layer.state"):
        layer(torch.zeros(8, 100, DIM), layer.init_state(8))
    with raises("layer.input"):
        layer(torch.zeros(8, DIM, 100), layer.init_state(8))
    with raises("layer.input"):
        layer.forward_without_memory(torch.zeros(8, DIM))


@every_layer
def test_another_device_is_refused(case):
    layer = LAYERS[case]
    on_meta = torch.zeros(2, 3, DIM, device="meta")
    with raises("layer.input"):
        layer(on_meta, layer.init_state(3))
    meta_state = tuple(leaf.to("meta") for leaf in as_tuple(layer.init_state(3)))
    with raises("layer.state"):
        layer(torch.zeros(2, 3, DIM), meta_state if len(meta_state) > 1 else meta_state[0])


@torch.no_grad()
@every_layer
def test_no_state_is_the_zero_state(case):
    layer, x = LAYERS[case], steps(3)
    for found, wanted in zip(layer(x), layer(x, layer.init_state(x.shape[1])), strict=True):
        for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(layer(x)[0], layer(x, random_state(layer))[0])
