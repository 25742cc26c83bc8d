"""What holds for the whole detector, with every temporal layer of the table, and with every backbone and head."""

import pytest
import torch
from torch import Tensor
from user_errors import raises

from rvtssm.export.graphs import DetectorStep
from rvtssm.models.contracts import concatenate
from rvtssm.models.detector import BACKBONES, heads, parameters_by_room, set_precision
from rvtssm.models.streams import map_state
from tests.closeness import assert_near

# one layer of each kind of state: per feature, shared, real, and two at once. The laws of all layers are in tests/ssm.
KINDS_OF_STATE = ("s4d", "s5", "s7", "lstm")
every_layer = pytest.mark.parametrize("name", KINDS_OF_STATE)
L, B = 4, 2
# small values of the keys that a backbone or a head needs, by its name
SMALL_PARTS = {"timm": {"timm_name": "test_convnext"}, "rtdetr": {"head_options": {"queries": 20, "layers": 2}}}


PARTS = [(backbone, head, "s5") for backbone in BACKBONES for head in heads()]
LAYERS = [("rvt", "yolox", name) for name in KINDS_OF_STATE if name != "s5"]


@pytest.fixture(params=PARTS, ids="-".join)
def detector_of_parts(request, build_small):
    """A small detector of each backbone with each head; they share the temporal layer."""
    backbone, head, name = request.param
    keys = {**SMALL_PARTS.get(backbone, {}), **SMALL_PARTS.get(head, {})}
    return build_small(name, backbone=backbone, head=head, **keys)


# the same with every kind of state as well
of_every_kind = pytest.mark.parametrize("detector_of_parts", PARTS + LAYERS, ids="-".join, indirect=True)


def leaves(state) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [leaf for part in state for leaf in leaves(part)]


def assert_same_states(found, wanted) -> None:
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        assert_near(a, b)


@every_layer
def test_gradient_reaches_the_carried_state(build_small, draw_counts, name):
    detector, hist = build_small(name), draw_counts(2, B)
    state = map_state(lambda leaf: leaf.detach().requires_grad_(), detector(draw_counts(L, B, seed=1))[1])
    (predictions,), _ = detector(hist, state)
    predictions[..., 4:].square().sum().backward()
    for leaf in leaves(state):
        assert leaf.grad.abs().max() > 0


@every_layer
@torch.no_grad()
def test_streams_do_not_see_each_other(build_small, draw_counts, name):
    detector, hist = build_small(name), draw_counts(L, 3)
    (together,), state = detector(hist)
    order = torch.tensor([2, 0, 1])
    (swapped,), _ = detector(hist[:, order])
    assert_near(swapped.unflatten(0, (L, 3)), together.unflatten(0, (L, 3))[:, order])
    (alone,), own_state = detector(hist[:, 1:2])
    assert_near(alone, together.unflatten(0, (L, 3))[:, 1])
    second = [leaf.unflatten(0, (3, -1))[1] for leaf in leaves(state)]
    for a, b in zip(leaves(own_state), second, strict=True):
        assert_near(a, b)


@every_layer
@torch.no_grad()
def test_a_step_scale_per_stream_is_that_number_for_each(build_small, draw_counts, name):
    detector, hist = build_small(name), draw_counts(L, B)
    (found,), _ = detector(hist, None, torch.tensor([0.25, 2.0]).expand(L, B))
    for stream, number in enumerate((0.25, 2.0)):
        (wanted,), _ = detector(hist[:, stream : stream + 1], None, number)
        assert_near(found.unflatten(0, (L, B))[:, stream], wanted)


@pytest.mark.parametrize(("height", "width"), [(40, 72), (64, 95), (33, 65)])
@torch.no_grad()
def test_a_frame_is_padded_with_silence_at_the_right_and_the_bottom(build_small, draw_counts, height, width):
    hist = draw_counts(2, B, height, width)
    padded = torch.nn.functional.pad(hist, (0, 96 - width, 0, 64 - height))
    (found,), state = build_small("s5", height, width)(hist)
    (wanted,), wanted_state = build_small("s5", 64, 96)(padded)
    assert torch.equal(found, wanted)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(wanted_state), strict=True))


@torch.no_grad()
def test_chosen_frames_are_those_of_all_frames(build_small, draw_counts):
    detector, hist = build_small(), draw_counts(L, B)
    (everything,), state = detector(hist)
    chosen = torch.tensor([(3, 1), (0, 0), (2, 1), (2, 1)])
    (found,), same_state = detector(hist, frame_index=chosen)
    assert_near(found, everything[chosen[:, 0] * B + chosen[:, 1]])
    assert_same_states(same_state, state)


@torch.no_grad()
def test_counts_may_be_integers_or_floats(build_small, draw_counts):
    detector, hist = build_small(), draw_counts(2, B)
    assert torch.equal(detector(hist)[0].rows, detector(hist.float())[0].rows)


def test_frames_of_another_size_are_refused(build_small, draw_counts):
    with raises("frames.other_size"):
        build_small()(draw_counts(1, 1, 64, 64))


@pytest.mark.gpu
@every_layer
@torch.no_grad()
def test_a_gpu_finds_the_same(build_small, draw_counts, name):
    detector, hist = build_small(name), draw_counts(L, B)
    (wanted,), wanted_state = detector(hist)
    (found,), state = detector.cuda()(hist.cuda())
    assert_near(found.cpu(), wanted, 1e-3)
    for a, b in zip(leaves(state), leaves(wanted_state), strict=True):
        assert_near(a.cpu(), b, 1e-3)


@pytest.mark.parametrize("num_streams", [1, 2])
@torch.no_grad()
def test_convolutions_are_given_images_whose_channels_lie_last(build_small, draw_counts, num_streams):
    """Of one image alone, strides that are only nearly so make every convolution of a live stream move it first."""
    detector, given = build_small(), []
    for part in detector.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    detector(draw_counts(1, num_streams), None, 1.0)
    assert len(given) > 20
    for image in given:
        assert image.stride() == torch.empty_like(image, memory_format=torch.channels_last).stride()


def assert_same_predictions(detector, found, wanted) -> None:
    for ours, theirs in zip(detector.head.compared(found), detector.head.compared(wanted), strict=True):
        assert_near(ours, theirs)


@of_every_kind
@torch.no_grad()
def test_cut_anywhere_is_whole_is_one_step_at_a_time_and_sees_no_later_frame(detector_of_parts, draw_counts):
    detector, hist = detector_of_parts, draw_counts(L, B)
    for scale in (torch.full((L, B), 0.5), torch.linspace(0.1, 2, L * B).view(L, B)):
        whole, after = detector(hist, None, scale)
        for cuts in ([2], [1, 2, 3]):
            state, parts = detector.init_state(B), []
            for start, stop in zip([0, *cuts], [*cuts, L], strict=True):
                found, state = detector(hist[start:stop], state, scale[start:stop])
                parts.append(found)
            assert_same_predictions(detector, concatenate(parts), whole)
            assert_same_states(state, after)
    later = hist.clone()
    later[2:] = draw_counts(L - 2, B, seed=1)
    changed, _ = detector(later, None, scale)
    early = 2 * B
    for ours, theirs in zip(detector.head.compared(changed), detector.head.compared(whole), strict=True):
        assert_near(ours[:early], theirs[:early])
        assert (ours[early:] - theirs[early:]).abs().max() > 1e-4 * theirs.abs().max()


@torch.no_grad()
def test_state_and_step_scale_reach_the_predictions_of_all_parts(detector_of_parts, draw_counts):
    detector, hist = detector_of_parts, draw_counts(1, B)
    _, state = detector(draw_counts(L, B, seed=1))
    assert len(state) == len(detector.backbone.temporal_layers()) == len(detector.backbone.memory_strides)
    usual, usual_state = detector(hist, state, 1.0)
    for other, other_state in (detector(hist, None, 1.0), detector(hist, state, 0.1)):
        for ours, theirs in zip(detector.head.compared(other), detector.head.compared(usual), strict=True):
            assert (ours - theirs).abs().max() > 1e-5 * theirs.abs().max()
        for ours, theirs in zip(leaves(other_state), leaves(usual_state), strict=True):
            assert (ours - theirs).abs().max() > 1e-3 * theirs.abs().max()


@torch.no_grad()
def test_the_exported_step_of_all_parts_is_theirs(detector_of_parts, draw_counts):
    detector, hist = detector_of_parts, draw_counts(L, B)
    step, scale = DetectorStep(detector), torch.linspace(0.1, 2, L * B).view(L, B)
    state, flat = detector.init_state(B), step.init_state(B)
    for frames, scales in zip(hist, scale, strict=True):
        wanted, state = detector(frames[None], state, scales[None])
        fields, flat = step(frames, scales, flat)
        found = detector.head.record(**dict(zip(step.prediction_names, fields, strict=True)))
        assert_same_predictions(detector, found, wanted)


def test_parts_predict_nothing_for_no_frame(detector_of_parts, draw_counts):
    detector = detector_of_parts
    found, state = detector(draw_counts(1, B), frame_index=torch.zeros(0, 2, dtype=torch.int64))
    some, wanted_state = detector(draw_counts(1, B))
    assert_same_states(state, wanted_state)
    for empty, field in zip(found, some, strict=True):
        assert (empty is None) == (field is None)
        assert empty is None or (empty.shape == (0, *field.shape[1:]) and empty.dtype == field.dtype)
    assert detector.head.decode(found, []) == []


def test_all_parts_learn_where_only_memory_is_trained(detector_of_parts, draw_counts):
    detector, hist = detector_of_parts.train(), draw_counts(2, B)
    targets = torch.tensor([[[1.0, 40, 30, 20, 24]]]).expand(2 * B, -1, -1), torch.ones(2 * B, dtype=torch.int64)
    detector.backbone.freeze_spatial()
    predictions, _ = detector(hist, targets=targets)
    detector.head.loss(predictions, *targets)["total"].backward()
    rooms = parameters_by_room(detector)
    assert not [p for p in rooms["spatial"] if p.grad is not None]
    assert rooms["temporal"] and all(p.grad is not None and p.grad.any() for p in rooms["temporal"] if p.numel() > 1)
    assert all(p.grad is not None for room in ("neck", "head") for p in rooms[room])


@of_every_kind
@torch.no_grad()
def test_low_precision_is_that_of_training_and_carries_its_state(detector_of_parts, draw_counts):
    hist = draw_counts(L, B)
    _, after = detector_of_parts(hist)
    with torch.autocast("cpu", torch.bfloat16):  # as in training
        cast, cast_after = detector_of_parts(hist)
    set_precision(detector_of_parts, "bf16")
    assert any(weight.dtype == torch.bfloat16 for weight in detector_of_parts.parameters())
    whole, low_after = detector_of_parts(hist)
    torch.testing.assert_close([*whole, low_after], [*cast, cast_after], rtol=0, atol=0)
    for low, exact in zip(leaves(low_after), leaves(after), strict=True):
        assert low.dtype == exact.dtype
        assert_near(low, exact, 0.05)
    prepared, state = detector_of_parts.prepare(1.0), None
    for step in hist.split(1):
        _, state = detector_of_parts(step, state, prepared)
    for low, exact in zip(leaves(state), leaves(low_after), strict=True):
        assert_near(low, exact, 0.02)
    assert len(detector_of_parts.head.decode(whole, list(range(L * B)))) == L * B
