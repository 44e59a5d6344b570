"""What Prometheus reads: counters that add up, and figures that are NaN rather than 0 where nothing is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Rail, Sample, Scope, Total
from edgeprec.errors import DeviceError

MakeClient = Callable[..., Any]
MakeServed = Callable[..., Any]


def figures(text: str) -> dict[str, float]:
    """Return every sample by its name, with the labels that tell samples of one name apart."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(value for _, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def read(client: Any) -> dict[str, float]:
    """Return the metrics of a server."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return figures(answer.text)


def test_tokens_requests_and_errors_are_counted(make_client: MakeClient) -> None:
    """Of two replies and two mistakes."""
    client = make_client(queue=9)
    replies = [client.complete("abc", max_tokens=20, ignore_eos=True).json() for _ in range(2)]
    client.complete("abc", beams=1)
    client.get("/nowhere")
    found = read(client)
    facts = [reply["edgeprec"] for reply in replies]
    assert found["edgeprec_generated_tokens_total"] == 40
    assert found["edgeprec_prompt_tokens_total"] == 6
    assert found["edgeprec_drafted_tokens_total"] == sum(fact["drafted"] for fact in facts)
    assert found["edgeprec_accepted_tokens_total"] == sum(fact["accepted"] for fact in facts)
    assert found["edgeprec_int4_layer_share"] == facts[-1]["int4_layer_share"]
    assert found["edgeprec_requests_total{/v1/completions,200}"] == 2
    assert found["edgeprec_requests_total{/v1/completions,400}"] == 1
    assert found["edgeprec_requests_total{other,404}"] == 1
    assert found["edgeprec_errors_total{unknown_field}"] == 1
    assert found["edgeprec_time_to_first_token_seconds_count"] == 2
    assert found["edgeprec_time_per_token_seconds_count"] == 2
    assert found["edgeprec_queue_limit"] == 9
    assert found["process_resident_memory_bytes"] > 0


def test_what_is_not_known_is_nan(make_client: MakeClient) -> None:
    """A server without a sensor has no watts, one that never drafted no acceptance."""
    client = make_client()
    client.complete("abc", max_tokens=1)
    found = read(client)
    assert math.isnan(found["edgeprec_power_watts"])
    assert math.isnan(found["edgeprec_acceptance_rate"])
    assert found["edgeprec_unmeasured_replies_total"] == 1


def test_paths_do_not_fill_the_metrics(make_client: MakeClient) -> None:
    """However many a stranger tries, they are one line."""
    client = make_client()
    for index in range(20):
        client.get(f"/probe-{index}")
        client.get(f"/v1/models/probe-{index}")
    found = [name for name in read(client) if name.startswith("edgeprec_requests_total") and "404" in name]
    assert sorted(found) == [
        "edgeprec_requests_total{/v1/models/{model:path},404}",
        "edgeprec_requests_total{other,404}",
    ]


def test_the_queue_shows(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """Who runs and who waits, while they do."""
    served = make_served(engine={"before_pass": hold})

    async def go() -> dict[str, float]:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            hold.arm()
            exchanges = [asgi.Exchange(served.app).begin({"prompt": "abc"}) for _ in range(3)]
            await asgi.until(lambda: served.room.session.waiting == 2)
            found = figures(served.room.metrics.text().decode())
            hold.release()
            for exchange in exchanges:
                await exchange.end()
            return found

    found = asyncio.run(go())
    assert (found["edgeprec_running"], found["edgeprec_queue_waiting"]) == (1, 2)


class Supply:
    """A sensor of 5 W that dies after so many reads."""

    source = "fake"
    rails = (Rail(id="r", label="VDD_IN"),)
    total: Total | None = Total(rail_ids=("r",), scope=Scope.MODULE, evidence="made up")
    total_note = None
    period_ms = 1.0
    lag_ms = None

    def __init__(self, reads: float = math.inf) -> None:
        self._left = reads

    def read(self) -> Sample:
        """Return 5 W now."""
        import time

        self._left -= 1
        if self._left < 0:
            raise DeviceError("/sys/bus/i2c/devices/1-0040/in1_input cannot be read: Remote I/O error")
        return Sample(time_ns=time.monotonic_ns(), values={"r": 5000.0})

    def close(self) -> None:
        """There is nothing to close."""


def measured(sensor: Supply) -> dict[str, Any]:
    """Return a session's changes: a meter, and the clock of this machine."""
    import time

    return {"meter": Meter(sensor), "meter_note": None, "clock": time.monotonic_ns}


def test_joules_are_measured_and_counted(make_client: MakeClient) -> None:
    """A reply's joules are in the reply and add up in the metrics; a machine too busy to sample one is given more."""
    client = make_client(session=measured(Supply()), engine={"context_tokens": 400})
    replies = (client.complete("abc", max_tokens=390, ignore_eos=True).json() for _ in range(10))
    reply = next(reply for reply in replies if reply["edgeprec"]["joules"] is not None)
    joules, seconds = (
        reply["edgeprec"]["joules"],
        reply["edgeprec"]["prefill_s"] + reply["edgeprec"]["decode_s"],
    )
    assert 0 < joules < 5 * seconds * 1.2  # less where samples came too late to cover all of it
    assert reply["edgeprec"]["energy"]["source"] == "fake"
    assert read(client)["edgeprec_joules_total"] == pytest.approx(joules)


def test_watts_are_read_while_somebody_asks(make_client: MakeClient) -> None:
    """Also at rest: the first look starts the sampling."""
    client = make_client(session=measured(Supply()))
    found = read(client)["edgeprec_power_watts"]
    while math.isnan(found):
        found = read(client)["edgeprec_power_watts"]
    assert found == pytest.approx(5.0)


def test_a_sensor_that_dies_takes_nothing_with_it(make_client: MakeClient) -> None:
    """Replies go on without joules, the reason is given without the machine's paths."""
    client = make_client(session=measured(Supply(reads=0)))
    facts = client.complete("abc").json()["edgeprec"]
    assert facts["joules"] is None
    assert "Remote I/O error" in facts["energy_note"]
    assert "/sys" not in facts["energy_note"]
    assert math.isnan(read(client)["edgeprec_power_watts"])
    assert client.get("/health").json() == {"status": "ok"}
