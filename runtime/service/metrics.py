"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.reply import Reply

__all__ = ["Metrics"]

_FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """Counts requests, tokens, times and joules of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        own = self.registry
        self._requests = Counter(
            "edgeprec_requests", "Answered requests by route and status.", ["route", "status"], registry=own
        )
        self._errors = Counter("edgeprec_errors", "Refused or failed requests by cause.", ["cause"], registry=own)
        self._prompt_tokens = Counter("edgeprec_prompt_tokens", "Tokens of prompts.", registry=own)
        self._new_tokens = Counter("edgeprec_generated_tokens", "Tokens of replies.", registry=own)
        self._drafted = Counter("edgeprec_drafted_tokens", "Tokens drafted for FP16 to check.", registry=own)
        self._accepted = Counter("edgeprec_accepted_tokens", "Drafted tokens that FP16 accepted.", registry=own)
        self._joules = Counter("edgeprec_joules", "Measured energy of replies.", registry=own)
        self._unmeasured = Counter("edgeprec_unmeasured_replies", "Replies whose energy is unknown.", registry=own)
        self._first_token = Histogram(
            "edgeprec_time_to_first_token_seconds",
            "From the arrival of a request to its first token, the wait included.",
            buckets=_FIRST_TOKEN_BUCKETS_S,
            registry=own,
        )
        self._per_token = Histogram(
            "edgeprec_time_per_token_seconds",
            "Mean time of the tokens after the first, one value a reply.",
            buckets=_TOKEN_BUCKETS_S,
            registry=own,
        )
        self._acceptance = Gauge("edgeprec_acceptance_rate", "Accepted / drafted of the last reply.", registry=own)
        self._int4_share = Gauge(
            "edgeprec_int4_layer_share", "Layer passes in INT4 / all, of the last reply.", registry=own
        )
        self._watts = Gauge("edgeprec_power_watts", "Measured power now; NaN where it is not known.", registry=own)
        self._waiting = Gauge("edgeprec_queue_waiting", "Requests that wait for the engine.", registry=own)
        self._running = Gauge("edgeprec_running", "Generations at work.", registry=own)
        self._queue_limit = Gauge("edgeprec_queue_limit", "Requests that may wait.", registry=own)
        for gauge in (self._acceptance, self._int4_share, self._watts):
            gauge.set(math.nan)

    def watch(
        self,
        *,
        waiting: Callable[[], int],
        is_running: Callable[[], bool],
        limit: int,
        watts: Callable[[], float | None],
    ) -> None:
        """Read the queue and the power whenever the metrics are read."""
        self._waiting.set_function(waiting)
        self._running.set_function(is_running)
        self._queue_limit.set(limit)
        self._watts.set_function(lambda: _known(watts()))

    def count_request(self, route: str, status: int) -> None:
        """Count an answer; ``route`` is one of the server's own, whatever path was asked for."""
        self._requests.labels(route, str(status)).inc()

    def count_error(self, cause: str) -> None:
        """Count an error by a word for its cause."""
        self._errors.labels(cause).inc()

    def count_reply(self, reply: Reply, job: AsyncGeneration) -> None:
        """Take what a reply took, finished or not."""
        stats = reply.stats
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._new_tokens.inc(len(reply.tokens))
        self._drafted.inc(stats.drafted)
        self._accepted.inc(stats.accepted)
        self._acceptance.set(_known(stats.acceptance_rate))
        self._int4_share.set(_known(stats.int4_layer_share))
        if stats.energy is None:
            self._unmeasured.inc()
        else:
            self._joules.inc(max(stats.energy.joules, 0.0))
        if reply.events:
            waited_s = ((job.begun_ns or job.created_ns) - job.created_ns) * 1e-9
            self._first_token.observe(waited_s + reply.events[0].time_ns * 1e-9)
        if len(reply.events) > 1:
            span_ns = reply.events[-1].time_ns - reply.events[0].time_ns
            self._per_token.observe(span_ns * 1e-9 / (len(reply.events) - 1))

    def text(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return generate_latest(self.registry)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
