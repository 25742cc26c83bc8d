"""`rvtssm benchmark`: a rate for every factor by which frames can be smaller than the sensor, and its table."""

import json

from event_examples import HEIGHT, WIDTH, random_events

from rvtssm.contrib.benchmark.benchmark import sustained_rates
from rvtssm.detection.configured_detector import MARGIN
from rvtssm.models import PostprocessConfig
from rvtssm.readers.dat import write_dat

LARGE_HW = 4 * HEIGHT, 4 * WIDTH


def test_every_factor_down_to_one_is_measured(live_checkpoint):
    weights = live_checkpoint()
    measured = list(sustained_rates(weights, LARGE_HW, weights.windows, PostprocessConfig()))
    assert [rate.downsample for rate in measured] == [4, 2, 1]
    for rate in measured:
        assert rate.frame_hw == (LARGE_HW[0] // rate.downsample, LARGE_HW[1] // rate.downsample)
        assert rate.smallest_object_px == rate.downsample * weights.spec.prepare_min_diagonal_px
        assert 0 < rate.p50_ms <= rate.p95_ms and rate.hz <= MARGIN * 1000 / rate.p95_ms


def test_the_verb_prints_a_table_and_writes_json(weights, tmp_path, printed_by):
    events = random_events(4_000, span_us=330_000, size_hw=LARGE_HW, fills_span=True)
    write_dat(tmp_path / "large.dat", events, *LARGE_HW)
    words = ["benchmark", str(tmp_path / "large.dat"), f"checkpoint={weights}", f"out={tmp_path / 'out'}"]
    printed = printed_by(*words, "downsample=3")
    (rate,) = json.loads((tmp_path / "out" / "benchmark.json").read_text())["rates"]
    assert f"{rate['p50_ms']:.1f} ms" in printed and f"{rate['hz']:g} Hz" in printed
    (rate,) = json.loads(printed_by(*words, "downsample=3", "--json"))["rates"]
    assert rate["downsample"] == 3
