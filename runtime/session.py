"""A loaded pair: takes prompts, gives generations, remembers what it learned and what its cache holds.

A session belongs to one thread, the first that generates with it; ``edgeprec.AsyncSession`` shares it among several.
A new generation cancels the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import Calibration
from edgeprec.config import DrafterKind, GenerationConfig, Mode, with_overrides
from edgeprec.controller import Controller
from edgeprec.devices.meter import Meter
from edgeprec.devices.window import Window
from edgeprec.entropy import row_statistics
from edgeprec.levels import LevelController, level_controller
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_generation import BatchGenerator, is_batch
from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.drafter import Drafter, ModelDrafter, NgramDrafter, SelfDrafter, draft_chunk, drafter_kind
from edgeprec.runtime.energy import NoWindow, PhasePower, energy_stats
from edgeprec.runtime.engine import Engine, EngineInfo, first_pass_counter
from edgeprec.runtime.generation import Generation, Prompt
from edgeprec.runtime.governing import budget_note, power_guard
from edgeprec.runtime.learning import Learning
from edgeprec.runtime.one_thread import OneThread
from edgeprec.runtime.passes import PassCounter, WeightBits
from edgeprec.runtime.prompt_tokens import check_tokens, common_prefix, prompt_tokens
from edgeprec.runtime.reply import EnergyStats, Reply, Stats
from edgeprec.runtime.rounds import RoundDecoder
from edgeprec.runtime.sampling import Sampler, with_seed
from edgeprec.runtime.setting_checks import check_logprobs, check_settings
from edgeprec.runtime.statistics import Tally
from edgeprec.runtime.stop_text import TextStream
from edgeprec.runtime.three_level import ThreeLevelDrafter
from edgeprec.runtime.tokenizer import Message, TextTokenizer
from edgeprec.speculation import Learned

__all__ = ["Session"]

_DEFAULTS = GenerationConfig()


class Session:
    """Generates text with a target, its INT4 variant and, where there is one, a draft model.

    ``meter`` None = energy is not measured, and ``meter_note`` says why. ``target_bits`` and ``draft_bits`` tell what
    a weight costs to read; ``shared_tokens`` is how many ids target and draft model share, None = all.
    ``prefill_rows`` limits the rows of one prefill pass, None = as many as the engine takes.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: TextTokenizer,
        target_bits: WeightBits,
        calibration: Calibration | None = None,
        draft_engine: Engine | None = None,
        draft_bits: WeightBits | None = None,
        shared_tokens: int | None = None,
        meter: Meter | None = None,
        meter_note: str | None = "no meter was given to this session",
        clock: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.tokenizer = tokenizer
        self.calibration = calibration
        self.meter = meter
        self.prefill_rows: int | None = None
        self._engine, self._draft_engine = engine, draft_engine
        self._target_bits = target_bits
        self._draft_bits = draft_bits or target_bits
        self._shared_tokens = shared_tokens or _narrowest(engine, draft_engine)
        self._meter_note = meter_note
        self._clock, self._wait = clock, wait
        self._first_passes = first_pass_counter(engine, draft_engine)
        self._kind_of = partial(drafter_kind, has_draft_model=draft_engine is not None)
        self._learning = Learning()
        self._cached: tuple[int, ...] = ()  # tokens whose cache entries FP16 wrote
        self._draft_cached: tuple[int, ...] = ()
        self._phase_power = PhasePower(clock)
        self._current: Generation | None = None
        self._thread = OneThread("this session")
        self.batches = BatchGenerator(
            engines=(engine, draft_engine),
            tokenizer=tokenizer,
            calibration=calibration,
            bits=(target_bits, self._draft_bits),
            shared_tokens=self._shared_tokens,
            clock=clock,
            open_window=self._open_window,
            meter_note=meter_note,
            alone=self.generate,
            check=self.check,
            kind_of=self._kind_of,
            forget=self._forget,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def info(self) -> EngineInfo:
        """Return the target engine's shapes and limits."""
        return self._engine.info

    @property
    def meter_note(self) -> str | None:
        """Return why this session has no meter, None where it has one."""
        return self._meter_note if self.meter is None else None

    def close(self) -> None:
        """End a running generation and free both models; calling it twice is harmless."""
        self._thread.check()
        self._end_current()
        self._engine.close()
        if self._draft_engine is not None:
            self._draft_engine.close()
        if self.meter is not None:
            self.meter.sensor.close()

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        config: GenerationConfig | None = None,
        *,
        chat: bool = False,
        top_logprobs: int | None = None,
        **overrides: Any,
    ) -> Generation:
        """Begin a generation; iterate over it for tokens.

        ``prompt`` is a text, token ids or chat messages; ``chat`` puts a text through the chat template as a user's
        turn. ``top_logprobs`` puts the log probability of every token, and of so many alternatives, into its event.
        ``overrides`` are fields of the configuration and its parts by name, such as ``temperature``.

        Raises:
            ConfigError: the prompt is empty or does not fit into the context, or a setting cannot be met here.
            EdgePrecError: another thread uses this session.
        """
        self._thread.check()
        self._end_current()
        chosen = with_overrides(config or _DEFAULTS, **overrides)
        tokens = tuple(prompt_tokens(self.tokenizer, prompt, chat=chat))
        check_tokens(tokens, self.info, room_tokens=1)
        self.check(chosen)
        check_logprobs(top_logprobs)
        self._current = self._begin(tokens, with_seed(chosen), top_logprobs)
        return self._current

    @overload
    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        config: GenerationConfig | None = None,
        *,
        chat: bool = False,
        top_logprobs: int | None = None,
        **overrides: Any,
    ) -> Reply: ...

    @overload
    def generate(
        self,
        prompt: list[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]],
        config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        chat: bool = False,
        **overrides: Any,
    ) -> BatchReply: ...

    def generate(
        self, prompt: Any, config: Any = None, *, chat: bool = False, top_logprobs: int | None = None, **overrides: Any
    ) -> Reply | BatchReply:
        """Generate to the end and return the reply; see ``stream``.

        A list of prompts, with one configuration or one each, runs together where the engine has slots for it.
        """
        if is_batch(prompt):
            self._thread.check()
            return self.batches.generate(prompt, config, overrides, chat=chat, top_logprobs=top_logprobs)
        generation = self.stream(prompt, config, chat=chat, top_logprobs=top_logprobs, **overrides)
        for _ in generation:
            pass
        return generation.reply

    def fp16_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return FP16's logits [V] after ``tokens``; errors are those of ``forced_logits``."""
        plan = Plan.uniform(Precision.FP16, num_layers=self.info.num_layers)
        last: npt.NDArray[np.float32] = [logits[-1] for logits in self.forced_logits(tokens, plan)][-1].copy()
        return last

    def forced_logits(self, tokens: Sequence[int], plan: Plan) -> Iterator[npt.NDArray[np.float32]]:
        """Run a given text with ``plan`` from its beginning and yield logits [T, V], valid until the next ones.

        A running generation is ended; nothing else may use the session in between.

        Raises:
            ConfigError: there are no tokens, too many for the context, or one that is no token.
            EdgePrecError: another thread uses this session.
        """
        self._thread.check()
        self._end_current()
        check_tokens(tokens, self.info, room_tokens=0)
        self._cached = ()
        for position in range(0, len(tokens), self.info.max_rows):
            rows = tokens[position : position + self.info.max_rows]
            yield self._engine.forward(rows, position=position, plan=plan).logits

    def check(self, config: GenerationConfig) -> None:
        """Check a configuration against the models and the meter of this session, as ``stream`` does.

        Raises:
            ConfigError: it needs a draft model or a sensor that is not there.
        """
        check_settings(config, has_draft=self._draft_engine is not None, meter=self.meter, meter_note=self._meter_note)

    def probe(self) -> None:
        """Run one row in INT4 behind what the cache holds, which stays; a running generation is ended.

        Raises:
            EngineError: the engine does not work.
            EdgePrecError: another thread uses this session.
        """
        self._thread.check()
        self._end_current()
        position = min(len(self._cached), self.info.context_tokens - 1)
        self._cached = self._cached[:position]
        plan = Plan.uniform(Precision.INT4, num_layers=self.info.num_layers)
        row_statistics(self._engine.forward([0], position=position, plan=plan).logits)

    def _forget(self) -> None:
        """End a running generation; what the caches hold is overwritten now."""
        self._end_current()
        self._cached = self._draft_cached = ()

    def _end_current(self) -> None:
        current, self._current = self._current, None  # first: what cannot be ended must not stand in the way for ever
        if current is not None:
            _ = current.reply

    def _begin(self, tokens: tuple[int, ...], config: GenerationConfig, top_logprobs: int | None) -> Generation:
        kind = self._kind_of(config)
        target, draft = PassCounter(self._target_bits), PassCounter(self._bits_of(kind))
        sampler = Sampler(config.sampling, self.info.vocab_size)
        controller = self._levels(config, kind) or self._controller(config, kind)
        window = self._open_window()
        drafter = self._drafter(kind, sampler, draft, tokens, config)
        if isinstance(controller, LevelController) and isinstance(drafter, ModelDrafter):
            drafter = ThreeLevelDrafter(
                self._engine,
                drafter,
                controller,
                PassCounter(self._target_bits),
                self._clock,
                self._phase_power,
                self._first_passes,
            )
        level = drafter.passes if isinstance(drafter, ThreeLevelDrafter) else None
        decoder = RoundDecoder(
            engine=self._engine,
            drafter=drafter,
            sampler=sampler,
            controller=controller,
            passes=target,
            clock=self._clock,
            mark=window.mark,
            millijoules=self._phase_power.millijoules,
            top_logprobs=top_logprobs,
            first_passes=self._first_passes,
        )
        generation = Generation(
            prompt=Prompt(tokens, cached=common_prefix(tokens, self._cached)),
            config=config,
            decoder=decoder,
            controller=controller,
            text=TextStream(self.tokenizer.decode, stop=config.stop, context=tokens[-6:]),
            tally=Tally(prompt_tokens=len(tokens), target=target, draft=draft, level=level),
            window=window,
            power=power_guard(config.power_budget_w, self.meter, clock=self._clock, wait=self._wait),
            eos_token_ids=self.tokenizer.eos_token_ids,
            context_tokens=self.info.context_tokens,
            prefill_rows=self.prefill_rows or self.info.max_rows,
            finish=lambda ended: self._finish(ended, kind, window, controller),
            clock=self._clock,
            check_thread=self._thread.check,
        )
        decoder.is_cancelled = lambda: generation.is_cancelled
        if isinstance(drafter, ThreeLevelDrafter):
            drafter.is_cancelled = decoder.is_cancelled
        self._cached = self._cached[: generation.prompt.cached]
        return generation

    def _open_window(self) -> NoWindow | Window:
        if self.meter is None:
            return NoWindow()
        window = self.meter.window("generation")
        self._phase_power.follow(window)
        return window

    def _finish(
        self, ended: Generation, kind: DrafterKind, window: NoWindow | Window, controller: Controller | LevelController
    ) -> Stats:
        """Keep what the generation taught and cached, and put its statistics together."""
        self._learning.keep(ended.config, kind, controller)
        self._remember_cache(ended)
        energy, note = self._energy(ended, window)
        reading = None if isinstance(window, NoWindow) else window.reading
        budget = budget_note(ended.config.power_budget_w, reading, paused_ns=ended.power.paused_ns)
        return ended.tally.stats(
            new_tokens=len(ended.events),
            fallbacks=(*self.info.fallbacks, *controller.fallbacks, *budget),
            energy=energy,
            energy_note=note,
            seed=ended.config.sampling.seed,
            drafter=str(kind),
            engine=self.info.name,
            three_level=drafter.stats() if isinstance(drafter := ended.decoder.drafter, ThreeLevelDrafter) else None,
        )

    def _remember_cache(self, ended: Generation) -> None:
        """Note for which tokens the caches hold entries that a later prompt may start from."""
        text = tuple(ended.history)
        is_fp16 = ended.config.mode not in (Mode.GATED, Mode.INT4)
        written = len(text) - 1 if is_fp16 else len(ended.prompt.tokens)
        self._cached = text[: min(written, len(text))] if ended.tally.first_token_ns is not None else ()
        drafter = ended.decoder.drafter
        drafter = drafter.model if isinstance(drafter, ThreeLevelDrafter) else drafter
        if isinstance(drafter, ModelDrafter):
            self._draft_cached = text[: min(drafter.cached, len(text))]

    def _energy(self, ended: Generation, window: NoWindow | Window) -> tuple[EnergyStats | None, str | None]:
        if isinstance(window, NoWindow):
            return None, self._meter_note
        self._phase_power.learn(window.by_phase)
        return energy_stats(window, new_tokens=len(ended.events))

    def _controller(self, config: GenerationConfig, kind: DrafterKind) -> Controller:
        return self._controller_of(config, kind, config.mode, self._learning.pair(config, kind))

    def _controller_of(
        self, config: GenerationConfig, kind: DrafterKind, mode: Mode, learned: Learned | None, has_guard: bool = True
    ) -> Controller:
        return Controller(
            mode=mode,
            config=config.controller,
            drafting=config.drafting,
            calibration=self.calibration,
            drafter=kind,
            num_layers=self.info.num_layers,
            draft_layers=None if self._draft_engine is None else self._draft_engine.info.num_layers,
            learned=learned,
            has_guard=has_guard,
        )

    def _levels(self, config: GenerationConfig, kind: DrafterKind) -> LevelController | None:
        """Return the controller of three-level drafting, None where two levels or none were asked for."""
        if not config.drafting.three_level or kind is not DrafterKind.MODEL:
            return None
        return level_controller(config, self._learning.levels(config, kind), partial(self._controller_of, config))

    def _drafter(
        self, kind: DrafterKind, sampler: Sampler, passes: PassCounter, tokens: Sequence[int], config: GenerationConfig
    ) -> Drafter | None:
        chunk = draft_chunk(config.drafting, kind=kind, mode=config.mode)
        if kind is DrafterKind.SELF:
            return SelfDrafter(self._engine, sampler, passes, chunk)
        if kind is DrafterKind.MODEL:
            assert self._draft_engine is not None
            cached = common_prefix(tokens, self._draft_cached)
            return ModelDrafter(self._draft_engine, sampler, passes, self._shared_tokens, cached=cached, chunk=chunk)
        return NgramDrafter() if kind is DrafterKind.NGRAM else None

    def _bits_of(self, kind: DrafterKind) -> WeightBits:
        return self._draft_bits if kind is DrafterKind.MODEL else self._target_bits


def _narrowest(engine: Engine, draft_engine: Engine | None) -> int:
    width = engine.info.vocab_size
    return width if draft_engine is None else min(width, draft_engine.info.vocab_size)
