"""A certificate says identical only of identical texts, and tells a tie from a fault by FP16's own logits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

from edgeprec.config import GenerationConfig, Mode, SamplingConfig
from edgeprec.errors import ConfigError
from edgeprec.runtime.certificate import Certificate, CertificateRow, certify, compare
from edgeprec.runtime.noise import gumbel_noise

MakeRig = Callable[..., Any]
CONFIG = GenerationConfig(max_new_tokens=12, ignore_eos=True)


def row(first_difference: int | None = None, logit_gap: float | None = None) -> CertificateRow:
    """Return the row of one prompt."""
    return CertificateRow(prompt="ab", tokens=12, first_difference=first_difference, logit_gap=logit_gap)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ((), "identical"),
        ((row(), row()), "identical"),
        ((row(), row(3, 0.0005)), "within tolerance"),
        ((row(3, 0.001),), "different"),
        ((row(), row(3, 0.0), row(0, 2.5)), "different"),
        ((row(12, inf),), "different"),
    ],
)
def test_verdict(rows: tuple[CertificateRow, ...], verdict: str) -> None:
    """One fault makes the whole certificate a failure; a gap of the tolerance itself is one."""
    certificate = Certificate(mode=Mode.EXACT, rows=rows)
    assert certificate.verdict == verdict
    assert certificate.is_within_tolerance is (verdict != "different")


def test_exact_decoding_is_certified(make_rig: MakeRig) -> None:
    """Every prompt is run in both ways, with progress, and all is the same."""
    rig = make_rig("sometimes")
    seen: list[tuple[int, int]] = []
    certificate = certify(
        rig.session, ["ab", "cd", "a"], config=CONFIG, progress=lambda done, total: seen.append((done, total))
    )
    assert (certificate.verdict, certificate.mode) == ("identical", Mode.EXACT)
    assert [known.tokens for known in certificate.rows] == [12, 12, 12]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("seed", [None, 5])
def test_sampled_decoding_is_certified_with_one_seed(make_rig: MakeRig, seed: int | None) -> None:
    """A seed that had to be drawn is used for both runs."""
    config = GenerationConfig(max_new_tokens=12, ignore_eos=True, sampling=SamplingConfig(temperature=1.5, seed=seed))
    assert certify(make_rig("sometimes").session, ["ab", "cd"], config=config).is_identical


def test_int4_is_told_from_fp16_by_its_first_wrong_token(make_rig: MakeRig) -> None:
    """The index and the gap of the first difference are FP16's own numbers."""
    rig = make_rig("never")
    config = GenerationConfig(mode=Mode.INT4, max_new_tokens=12, ignore_eos=True)
    certificate = certify(rig.session, ["abcd"], config=config)
    (found,) = certificate.rows
    text = [*rig.session.tokenizer.encode("abcd"), *rig.expected("abcd", 1)]
    logits = rig.model.row(rig.model.identity(text), len(text))
    assert found.first_difference == 1
    assert found.logit_gap == pytest.approx(logits.max() - logits[(logits.argmax() + 1) % 27])
    assert certificate.verdict == "different"
    values = certificate.to_json()
    assert values["rows"][0]["identical"] is False
    assert {key: values[key] for key in ("mode", "verdict", "identical", "prompts", "tokens", "tolerance")} == {
        "mode": "int4",
        "verdict": "different",
        "identical": False,
        "prompts": 1,
        "tokens": 12,
        "tolerance": 1e-3,
    }


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_gap_of_a_sampled_tie_is_small(make_rig: MakeRig, temperature: float) -> None:
    """Where noise decided, the gap holds the noise: the winner's lead over the runner-up, not that of bare logits."""
    rig = make_rig(model={"vocab_size": 4, "scales": (0.5,)})
    sampling = SamplingConfig(temperature=temperature, seed=3)
    config = GenerationConfig(mode=Mode.FP16, max_new_tokens=1, sampling=sampling)
    plain = rig.session.generate("ab", config)
    gaps = []
    for token in {0, 1, 2, 3} - set(plain.tokens):
        other = type(plain)(
            text="", tokens=(token,), finish_reason=plain.finish_reason, mode=plain.mode, stats=plain.stats
        )
        found = compare(rig.session, "ab", other, plain, sampling=sampling)
        assert found.first_difference == 0
        gaps.append(found.logit_gap)
    scores = np.array(rig.session.fp16_logits([0, 1]), np.float64)
    if temperature:
        scores += temperature * gumbel_noise(seed=3, position=2, vocab_size=4)
    assert int(scores.argmax()) == plain.tokens[0]
    assert sorted(gaps) == pytest.approx(sorted(scores.max() - np.delete(scores, scores.argmax())), abs=1e-5)


def test_a_text_that_ends_earlier_differs_without_a_gap(make_rig: MakeRig) -> None:
    """There is no token to compare with: the gap is infinite, which no tolerance covers."""
    rig = make_rig()
    plain, short = (rig.session.generate("ab", mode="fp16", max_new_tokens=count, ignore_eos=True) for count in (6, 4))
    found = compare(rig.session, "ab", short, plain, sampling=SamplingConfig())
    assert (found.first_difference, found.logit_gap, found.is_identical) == (4, inf, False)


def test_prompt_that_cannot_run_is_refused(make_rig: MakeRig) -> None:
    """An empty prompt among others is named like anywhere else."""
    with pytest.raises(ConfigError, match="empty"):
        certify(make_rig().session, ["ab", ""], config=CONFIG)
