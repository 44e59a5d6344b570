"""Statistics by their definitions: every number of a small generation worked out by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.reply import EnergyStats, token_sha256
from edgeprec.runtime.statistics import Tally

MakeRig = Callable[..., Any]
ASKED = {"draft_length": 2, "max_new_tokens": 8, "ignore_eos": True}
SELF_WEIGHTS, DRAFT_WEIGHTS = 360.0, 80.0


def test_self_drafting_by_hand(make_rig: MakeRig) -> None:
    """8 tokens: one from the prompt, two rounds of 2 drafted + 1, and a last one that has room for a single token."""
    stats = make_rig("always").session.generate("abcd", **ASKED).stats
    assert (stats.prompt_tokens, stats.new_tokens, stats.rounds, stats.verify_rounds) == (4, 8, 3, 3)
    assert (stats.drafted, stats.accepted, stats.acceptance_rate) == (4, 4, 1.0)
    assert stats.mean_draft_length == pytest.approx(4 / 3)
    assert stats.prefill_s == pytest.approx((4_000 + 3 * 100) * 1e-9)
    decode_ns = 4 * 1_000 + 2 * (4_000 + 2 * 100) + 4_000
    assert stats.decode_s == pytest.approx(decode_ns * 1e-9)
    assert stats.tokens_per_s == pytest.approx(7 / (decode_ns * 1e-9))
    int4, fp16 = 4 * 4, 4 * (3 + 3 + 1)  # gates times rows; the prompt's four rows do not count
    assert stats.int4_layer_share == pytest.approx(int4 / (int4 + fp16))
    assert (stats.draft_int4_layer_share, stats.target_int4_layer_share) == (1.0, 0.0)
    assert stats.bits_read_per_weight == pytest.approx((4 * 4.5 + 3 * 16.0) / 7)
    assert (stats.drafter, stats.engine, stats.seed) == ("self", "fake", None)


def test_model_drafting_by_hand(make_rig: MakeRig) -> None:
    """A draft model's passes are weighted by its own layers and weights; what it prefills does not count."""
    rig = make_rig("always", draft="never")
    stats = rig.session.generate("abcd", **ASKED).stats
    assert (stats.rounds, stats.drafted, stats.accepted, stats.acceptance_rate) == (7, 11, 0, 0.0)
    draft_rows = sum(len(asked.tokens) for asked in rig.draft.passes[1:])
    target_rows = sum(len(asked.tokens) for asked in rig.target.passes[1:])
    assert (draft_rows, target_rows) == (11, 18)  # caps 2, 2, 2, 2, 2, 1, 0; a rejected round costs no extra row
    assert stats.int4_layer_share == pytest.approx(3 * draft_rows / (3 * draft_rows + 4 * target_rows))
    read = 11 * DRAFT_WEIGHTS * 5.0 + 7 * SELF_WEIGHTS * 16.0
    assert stats.bits_read_per_weight == pytest.approx(read / (11 * DRAFT_WEIGHTS + 7 * SELF_WEIGHTS))
    assert stats.drafter == "model"


def test_plain_decoding_by_hand(make_rig: MakeRig) -> None:
    """Without drafts there is no acceptance to speak of, and every weight is read at 16 bits."""
    stats = make_rig().session.generate("abcd", mode="fp16", max_new_tokens=3, ignore_eos=True).stats
    assert (stats.rounds, stats.drafted, stats.acceptance_rate, stats.mean_draft_length) == (2, 0, None, 0.0)
    assert (stats.int4_layer_share, stats.draft_int4_layer_share) == (0.0, None)
    assert (stats.bits_read_per_weight, stats.verify_rounds) == (16.0, 2)
    assert stats.tokens_per_s == pytest.approx(2 / 8e-6)


def test_a_single_token_has_no_rate(make_rig: MakeRig) -> None:
    """One token is prefill only: what was never measured is None, not 0."""
    stats = make_rig().session.generate("abcd", max_new_tokens=1).stats
    assert stats.rounds == 0
    assert {
        stats.tokens_per_s,
        stats.acceptance_rate,
        stats.mean_draft_length,
        stats.int4_layer_share,
        stats.bits_read_per_weight,
    } == {None}


def test_a_generation_without_tokens_is_all_prefill() -> None:
    """Cancelled before the first token: the time belongs to prefill."""
    counters = [PassCounter(WeightBits(weights=(1, 1), int4_bits=4.5)) for _ in range(2)]
    tally = Tally(prompt_tokens=3, target=counters[0], draft=counters[1], start_ns=1_000, end_ns=5_000)
    stats = tally.stats(new_tokens=0, fallbacks=["slow"], energy=None, energy_note="no sensor", seed=4)
    assert (stats.prefill_s, stats.decode_s, stats.tokens_per_s) == (pytest.approx(4e-6), 0.0, None)
    assert (stats.fallbacks, stats.energy_note, stats.seed) == (("slow",), "no sensor", 4)


CONTRACT = {"text", "tokens", "token_sha256", "finish_reason", "mode", "stats"}
STATS_CONTRACT = {
    "prompt_tokens",
    "new_tokens",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_draft_length",
    "int4_layer_share",
    "draft_int4_layer_share",
    "target_int4_layer_share",
    "bits_read_per_weight",
    "verify_rounds",
    "fallbacks",
    "energy",
    "energy_note",
    "seed",
    "drafter",
    "engine",
    "three_level",
}
ENERGY_CONTRACT = {
    "joules",
    "joules_per_token",
    "by_phase",
    "source",
    "rail",
    "is_total",
    "coverage",
    "plus_minus_joules",
    "scope",
    "idle_watts",
    "joules_above_idle",
    "samples",
    "lag_ms",
    "power_mode",
    "note",
}


def test_reply_json_has_exactly_the_contracts_keys(make_rig: MakeRig) -> None:
    """Scripts read this object: no key appears, vanishes or changes its kind by accident."""
    reply = make_rig().session.generate("abcd", **ASKED)
    values = json.loads(json.dumps(reply.to_json(), allow_nan=False))
    assert set(values) == CONTRACT
    assert set(values["stats"]) == STATS_CONTRACT
    assert (values["mode"], values["finish_reason"]) == ("exact", "length")
    assert (values["stats"]["energy"], values["stats"]["fallbacks"][:0]) == (None, [])
    assert values["tokens"] == list(reply.tokens)
    assert set(EnergyStats.__slots__) == ENERGY_CONTRACT


@pytest.mark.parametrize("tokens", [(), (0,), (1, 2, 49_151), (2**32 - 1,)])
def test_token_digest_is_over_little_endian_words(tokens: tuple[int, ...]) -> None:
    """Anyone can check the digest with a few lines in any language."""
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    assert token_sha256(tokens) == hashlib.sha256(data).hexdigest()
