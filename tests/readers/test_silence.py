"""The first jump of a clock is found where it is, whether or not there is reason to search for it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.events.windows import LONGEST_SILENCE_US, first_jump

GAPS = st.sampled_from([0, 1, 50_000, LONGEST_SILENCE_US // 3, LONGEST_SILENCE_US, LONGEST_SILENCE_US + 1])


@given(st.lists(GAPS, max_size=8), st.booleans())
def test_the_first_jump_is_the_first_gap_that_is_too_long(gaps, is_first):
    before_us = None if is_first else -5
    start_us = 7 - (gaps[0] if gaps and is_first else 0) if is_first else -5  # nothing comes before the first
    times_us = start_us + np.cumsum(np.array(gaps, np.int64))
    counted = gaps[1:] if is_first else gaps
    places = [place for place, gap in enumerate(counted, start=len(gaps) - len(counted)) if gap > LONGEST_SILENCE_US]
    assert first_jump(before_us, times_us) == (places[0] if places else None)
