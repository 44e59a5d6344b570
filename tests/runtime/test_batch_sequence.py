"""A sequence's gear in a batch is the one it has alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeprec.entropy import SmoothedEntropy
from edgeprec.gears import Band, GearState
from edgeprec.runtime.batch_sequence import GearTrack

BITS = st.floats(0.0, 5.0)


@given(
    bits=st.lists(BITS, min_size=1, max_size=60),
    window=st.integers(1, 5),
    hold=st.integers(0, 5),
    top=st.integers(1, 4),
    low=BITS,
    width=BITS,
)
def test_gear_is_that_of_a_generation_of_its_own(
    bits: list[float], window: int, hold: int, top: int, low: float, width: float
) -> None:
    """The same rung after every token, for any band, window and hold."""
    band = Band(theta_low_bits=low, theta_high_bits=low + width, hold_tokens=hold)
    track = GearTrack(window, top, band)
    entropy = SmoothedEntropy(window).pushed(bits[0])
    state = GearState.start(top=top, band=band, first_bits=entropy.bits)
    track.start(bits[0])
    assert (track.rung, track.gear) == (state.rung, state.gear)
    for value in bits[1:]:
        entropy = entropy.pushed(value)
        state = state.emitted(entropy.bits, band)
        track.emit(value)
        assert (track.rung, track.gear) == (state.rung, state.gear)
