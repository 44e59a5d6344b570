"""A list of prompts: together in the slots of one engine where that can be, else one after another, which is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from edgeprec.calibration import Calibration
from edgeprec.config import DrafterKind, DraftRule, GenerationConfig, Mode, Objective, with_overrides
from edgeprec.controller import Controller
from edgeprec.devices.window import Window
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.gears import ladder
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_caps import BatchCosts, CapPolicy
from edgeprec.runtime.batch_decoder import BatchDecoder
from edgeprec.runtime.batch_engine import MAX_BATCH_DRAFT, BatchEngine, padded_slots
from edgeprec.runtime.batch_in_turn import in_turn, noted
from edgeprec.runtime.batch_reply import BatchReply, batch_stats, shared_energy
from edgeprec.runtime.batch_runners import FusedRunner, Runner, SteppedRunner
from edgeprec.runtime.batch_sequence import BatchSequence
from edgeprec.runtime.batch_settling import settle_rounds
from edgeprec.runtime.energy import NoWindow, energy_stats
from edgeprec.runtime.engine import Engine, first_pass_counter
from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.prompt_tokens import check_tokens, prompt_tokens
from edgeprec.runtime.reply import EnergyStats, FinishReason, Reply
from edgeprec.runtime.sampling import Sampler, with_seed
from edgeprec.runtime.statistics import Tally
from edgeprec.runtime.stop_text import TextStream
from edgeprec.runtime.tokenizer import TextTokenizer

__all__ = ["BatchGenerator", "batch_configs", "is_batch"]

_DEFAULTS = GenerationConfig()
_MODELS = (DrafterKind.SELF, DrafterKind.MODEL, DrafterKind.NONE)


def is_batch(prompt: object) -> bool:
    """Whether this is a list of prompts, not one: its items are texts or lists of ids or messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and bool(prompt)
        and all(isinstance(item, Sequence) and not isinstance(item, Mapping | Integral) for item in prompt)
    )


def batch_configs(
    config: GenerationConfig | Sequence[GenerationConfig] | None, count: int, overrides: Mapping[str, Any]
) -> list[GenerationConfig]:
    """Return one configuration a prompt, each with a seed where it needs one.

    Raises:
        ConfigError: there are others than one a prompt, or a setting is unknown or out of range.
    """
    given = [config or _DEFAULTS] * count if config is None or isinstance(config, GenerationConfig) else list(config)
    if len(given) != count:
        raise ConfigError(
            f"there are {len(given)} configurations for {count} prompts, expected one for all or one each"
        )
    return [with_seed(with_overrides(one, **overrides)) for one in given]


@dataclass(slots=True, kw_only=True)
class BatchGenerator:
    """What a session lends to its batches, and what they have learned of drafting.

    ``engines`` and ``bits`` are the target's and the draft model's. ``alone`` generates from one prompt, ``check``
    refuses a configuration, ``kind_of`` says who drafts with it. ``forget`` ends what else uses the engines and drops
    what their caches are known to hold. ``is_over`` may end a batch between two rounds.
    """

    engines: tuple[Engine, Engine | None]
    tokenizer: TextTokenizer
    calibration: Calibration | None
    bits: tuple[WeightBits, WeightBits]
    shared_tokens: int
    clock: Callable[[], int]
    open_window: Callable[[], NoWindow | Window]
    meter_note: str | None
    alone: Callable[[Sequence[int], GenerationConfig], Reply]
    check: Callable[[GenerationConfig], None]
    kind_of: Callable[[GenerationConfig], DrafterKind]
    forget: Callable[[], object] = lambda: None
    is_over: Callable[[Sequence[BatchSequence]], bool] = lambda sequences: False
    policies: dict[tuple[DrafterKind, type[Runner]], CapPolicy] = field(default_factory=dict)  # rounds cost otherwise
    window: NoWindow | Window | None = None  # of the last batch
    last: BatchReply | None = None  # the last batch, also one that an error broke off: the texts so far

    @property
    def engine(self) -> Engine:
        """Return the target's engine."""
        return self.engines[0]

    @property
    def draft_engine(self) -> Engine | None:
        """Return the draft model's engine, None where there is none."""
        return self.engines[1]

    def generate(
        self,
        prompts: Sequence[Any],
        config: GenerationConfig | Sequence[GenerationConfig] | None,
        overrides: Mapping[str, Any],
        *,
        chat: bool,
        top_logprobs: int | None,
    ) -> BatchReply:
        """Check a list of prompts and generate from all of them.

        Raises:
            ConfigError: a prompt or a setting cannot be used, or log probabilities are asked for.
            EngineError: a pass failed.
        """
        if top_logprobs is not None:
            raise ConfigError("top_logprobs is for a single prompt: give the prompts one by one")
        configs = batch_configs(config, len(prompts), overrides)
        texts = [tuple(prompt_tokens(self.tokenizer, prompt, chat=chat)) for prompt in prompts]
        for text, chosen in zip(texts, configs, strict=True):
            check_tokens(text, self.engine.info, room_tokens=1)
            self.check(chosen)
        return self.run(texts, configs)

    def run(
        self,
        prompts: Sequence[tuple[int, ...]],
        configs: Sequence[GenerationConfig],
        *,
        at_once: int | None = None,
    ) -> BatchReply:
        """Generate from every prompt, ``at_once`` together, None = as many as there are slots.

        Prompts beyond that wait and join in their order as soon as another text has ended. A batch that ``is_over``
        ended has no replies of those that still waited.

        Raises:
            EngineError: a pass failed.
        """
        reason = self.why_not_together(configs)
        if reason is not None:
            return self._one_by_one(prompts, configs, reason)
        assert isinstance(self.engine, BatchEngine)
        size = self.engine.sequences if at_once is None else min(at_once, self.engine.sequences)
        return self._together(list(zip(prompts, configs, strict=True)), at_once=size)

    def settle(self, config: GenerationConfig, *, slots: int, tokens: int) -> None:
        """Run all that greedy drafting at will may choose for so many texts of ``tokens``; no later pass is new.

        Raises:
            EngineError: a pass failed, or the texts do not fit into the cache.
        """
        kind, engine = self.kind_of(config), self.engine
        drafter = self._drafter(kind)
        if drafter is None or not isinstance(engine, BatchEngine):
            return
        self.forget()
        draft_plan = self._draft_plan(kind, [config])
        rounds = engine.open_rounds(drafter, vocabulary=self._shared_tokens(drafter))
        if rounds is None or draft_plan is None:
            return
        settle_rounds(
            engine,
            drafter,
            rounds,
            slots=padded_slots(slots, sequences=engine.sequences),
            tokens=tokens,
            draft_plan=draft_plan,
            largest_cap=min(config.drafting.max_draft_length, MAX_BATCH_DRAFT),
            first_passes=first_pass_counter(*self.engines),
        )

    def why_not_together(self, configs: Sequence[GenerationConfig]) -> str | None:
        """Return what stands against running these together, None where nothing does."""
        if not isinstance(self.engine, BatchEngine):
            return f"the engine {self.engine.info.name} has no slots for several sequences"
        if self.engine.sequences == 1 and len(configs) > 1:
            return "this session was opened for one sequence: load it with sequences=N"
        kinds = {self.kind_of(config) for config in configs} - {DrafterKind.NONE}
        if len(kinds) > 1 or not kinds <= set(_MODELS):
            return f"drafters {', '.join(sorted(map(str, kinds)))} do not draft for several sequences together"
        if any(config.mode is Mode.BOUNDED for config in configs):
            return "mode bounded decides token by token when FP16 reads"
        if any(config.power_budget_w is not None for config in configs):
            return "a power budget paces one sequence"
        if any(config.drafting.three_level for config in configs):
            return "three-level drafting is for one sequence"
        controls = [config.controller for config in configs if self.kind_of(config) is DrafterKind.SELF]
        if any(control.middle_gears for control in controls):
            return "drafts in middle gears follow one sequence's entropy"
        if len({control.gated_layers for control in controls}) > 1:
            return "their drafts run different numbers of layers in INT4"
        return None

    def _one_by_one(
        self, prompts: Sequence[tuple[int, ...]], configs: Sequence[GenerationConfig], reason: str
    ) -> BatchReply:
        notes = (f"{len(prompts)} prompts ran one after another: {reason}",) if len(prompts) > 1 else ()
        replies: list[Reply] = []
        self.window = None
        try:
            for prompt, config in zip(prompts, configs, strict=True):
                replies.append(noted(self.alone(prompt, config), notes))
        finally:
            self.last = found = in_turn(replies)
        return found

    def _together(self, pairs: Sequence[tuple[tuple[int, ...], GenerationConfig]], *, at_once: int) -> BatchReply:
        assert isinstance(self.engine, BatchEngine)
        kinds = {self.kind_of(config) for _, config in pairs} - {DrafterKind.NONE}
        kind = next(iter(kinds), DrafterKind.NONE)
        sequences = [self._sequence(index, *pair) for index, pair in enumerate(pairs)]
        self.forget()
        window = self.window = self.open_window()
        decoder = self._decoder(kind, sequences, window.mark, at_once)
        reason = FinishReason.CANCELLED
        try:
            with window:
                decoder.run()
                decoder.mark("idle")
        except EdgePrecError:
            reason = FinishReason.ERROR
            raise
        finally:
            for sequence in decoder.begun:
                sequence.settle(end_ns=self.clock(), reason=reason)
            self.last = found = self._reply(kind, decoder, *self._energy(window, decoder.begun))
        return found

    def _sequence(self, index: int, prompt: tuple[int, ...], config: GenerationConfig) -> BatchSequence:
        kind = self.kind_of(config)
        bits = self.bits[1] if kind is DrafterKind.MODEL else self.bits[0]
        return BatchSequence(
            index=index,
            prompt=prompt,
            config=config,
            sampler=Sampler(config.sampling, self.engine.info.vocab_size),
            controller=self._controller(config, kind),
            text=TextStream(self.tokenizer.decode, stop=config.stop, context=prompt[-6:]),
            tally=Tally(prompt_tokens=len(prompt), target=PassCounter(self.bits[0]), draft=PassCounter(bits)),
            eos_token_ids=self.tokenizer.eos_token_ids,
            context_tokens=self.engine.info.context_tokens,
            gears=config.controller.middle_gears + 1,
        )

    def _controller(self, config: GenerationConfig, kind: DrafterKind) -> Controller:
        return Controller(
            mode=config.mode,
            config=config.controller,
            drafting=config.drafting,
            calibration=self.calibration,
            drafter=kind,
            num_layers=self.engine.info.num_layers,
            draft_layers=None if self.draft_engine is None else self.draft_engine.info.num_layers,
        )

    def _decoder(
        self, kind: DrafterKind, sequences: Sequence[BatchSequence], mark: Callable[[str], object], at_once: int
    ) -> BatchDecoder:
        engine, drafter = self.engine, self._drafter(kind)
        assert isinstance(engine, BatchEngine)
        configs = [sequence.config for sequence in sequences if sequence.config.mode is Mode.EXACT]
        is_adaptive = drafter is not None and any(config.drafting.draft_length is None for config in configs)
        most = max((config.drafting.max_draft_length for config in configs), default=1)
        runner = self._runner(engine, drafter, sequences)
        return BatchDecoder(
            engine=engine,
            drafter=drafter,
            runner=runner,
            sequences=sequences,
            draft_plan=self._draft_plan(kind, configs),
            policy=self._policy((kind, type(runner)), min(most, MAX_BATCH_DRAFT)) if is_adaptive else None,
            largest_cap=MAX_BATCH_DRAFT,
            clock=self.clock,
            mark=mark,
            at_once=at_once,
            first_passes=first_pass_counter(*self.engines),
            is_over=self.is_over,
        )

    def _policy(self, key: tuple[DrafterKind, type[Runner]], largest: int) -> CapPolicy:
        policy = self.policies.setdefault(key, CapPolicy(BatchCosts(), largest))
        policy.begin(largest)
        return policy

    def _drafter(self, kind: DrafterKind) -> BatchEngine | None:
        drafter = {DrafterKind.SELF: self.engine, DrafterKind.MODEL: self.draft_engine}.get(kind)
        assert drafter is None or isinstance(drafter, BatchEngine)
        return drafter

    def _runner(self, engine: BatchEngine, drafter: BatchEngine | None, sequences: Sequence[BatchSequence]) -> Runner:
        shared = self._shared_tokens(drafter)
        if all(sequence.sampler.takes_argmax for sequence in sequences):
            rounds = engine.open_rounds(drafter, vocabulary=shared)
            if rounds is not None:
                return FusedRunner(rounds)
        return SteppedRunner(engine, drafter, shared)

    def _shared_tokens(self, drafter: BatchEngine | None) -> int:
        return self.engine.info.vocab_size if drafter is self.engine else self.shared_tokens

    def _draft_plan(self, kind: DrafterKind, configs: Sequence[GenerationConfig]) -> Plan | None:
        if kind is DrafterKind.MODEL and self.draft_engine is not None:
            return Plan.uniform(Precision.INT4, num_layers=self.draft_engine.info.num_layers)
        if kind is not DrafterKind.SELF:
            return None
        control = configs[0].controller
        plans = ladder(
            num_layers=self.engine.info.num_layers,
            middle_gears=control.middle_gears,
            order=None if self.calibration is None else self.calibration.layer_order,
            gated_layers=control.gated_layers,
        )
        return plans[0]

    def _energy(
        self, window: NoWindow | Window, sequences: Sequence[BatchSequence]
    ) -> tuple[EnergyStats | None, str | None]:
        if isinstance(window, NoWindow):
            return None, self.meter_note
        return energy_stats(window, new_tokens=sum(len(sequence.events) for sequence in sequences))

    def _reply(
        self, kind: DrafterKind, decoder: BatchDecoder, energy: EnergyStats | None, note: str | None
    ) -> BatchReply:
        sequences, total = decoder.begun, sum(len(sequence.events) for sequence in decoder.begun)
        at_once = min(decoder.at_once, len(sequences))
        replies = []
        for sequence in sequences:
            tokens = len(sequence.events)
            stats = sequence.stats(
                fallbacks=[*self.engine.info.fallbacks, *sequence.controller.fallbacks, *_notes(sequence, decoder)],
                energy=shared_energy(energy, tokens=tokens, of_tokens=total),
                energy_note=note,
                seed=sequence.config.sampling.seed,
                drafter=str(kind if sequence.config.mode is Mode.EXACT else DrafterKind.NONE),
                engine=self.engine.info.name,
                extra={"batch_sequences": at_once},
            )
            replies.append(sequence.reply(stats))
        end_ns = max((sequence.tally.end_ns for sequence in sequences), default=decoder.start_ns)
        decode_ns = decoder.decode_ns or end_ns  # one that failed in its prompts never decoded
        stats_of_all = batch_stats(
            replies,
            at_once=at_once,
            rounds=decoder.rounds,
            prefill_s=(decode_ns - decoder.start_ns + decoder.joined_ns) * 1e-9,
            decode_s=max(end_ns - decode_ns - decoder.joined_ns, 0) * 1e-9,
            fallbacks=[text for reply in replies for text in reply.stats.fallbacks],
            energy=energy,
            energy_note=note,
        )
        return BatchReply(tuple(replies), stats_of_all, tuple(decoder.rounds), tuple(sequences))


def _notes(sequence: BatchSequence, decoder: BatchDecoder) -> Iterator[str]:
    """Say what a sequence's batch did otherwise than it would alone."""
    drafting, policy = sequence.config.drafting, decoder.policy
    if not sequence.wants_drafts:
        return
    if drafting.draft_length is not None:
        if drafting.draft_length > decoder.largest_cap:
            yield (
                f"drafts of {drafting.draft_length} tokens were cut to {decoder.largest_cap}: a batch has eight rows a "
                "sequence"
            )
        return
    if drafting.objective is not Objective.SPEED:
        yield f"objective {drafting.objective} follows speed in a batch: only whole rounds are timed"
    if drafting.rule in (DraftRule.SVIP, DraftRule.ADAEDL):
        yield f"the draft rule {drafting.rule} stops no draft in a batch: all sequences have one cap"
    if policy is not None and policy.rounds_off:
        yield (
            f"speculation switched itself off in {policy.rounds_off} of {len(decoder.rounds)} rounds: with this "
            "drafter, text, device and batch it does not beat plain FP16 decoding"
        )
