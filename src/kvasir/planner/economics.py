"""What serving costs: tokens a second of an instance at a batch, dollars an hour, dollars a million tokens."""

from dataclasses import dataclass

from kvasir.hardware.card import DeviceCard
from kvasir.planner.lengths import LengthSample
from kvasir.planner.speed import SpeedModel

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A closed loop of ``batch`` on one instance.  ``floor_tpot_s`` is what the device cannot beat."""

    batch: int
    tpot_s: float
    floor_tpot_s: float
    unloaded_ttft_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Dollars for a million tokens at that throughput.

    ``output``: everything charged to output tokens.  ``input_uncached``: the compute of a prompt token alone.
    ``blended``: over input and output together, at ``hit_rate`` of the input answered from the cache.
    """

    per_hour_usd: float
    output: float
    input_uncached: float
    blended: float
    hit_rate: float


def throughput_of(speed: SpeedModel, sample: LengthSample, batch: int, hit_rate: float) -> Throughput:
    prompt, output = sample.mean_prompt, sample.mean_output
    tpot_s = speed.tpot_s(batch, prompt, output, hit_rate)
    per_s = batch / tpot_s
    return Throughput(
        batch=batch,
        tpot_s=tpot_s,
        floor_tpot_s=speed.floor.decode_step_s(batch, round(prompt + output / 2)),
        unloaded_ttft_s=speed.unloaded_ttft_s(round(prompt * (1 - hit_rate))),
        output_tokens_per_s=per_s,
        input_tokens_per_s=per_s * prompt / output,
    )


def largest_batch(speed: SpeedModel, sample: LengthSample, hit_rate: float, max_tpot_s: float, most: int) -> int:
    """The largest batch up to ``most`` whose time per output token is within ``max_tpot_s``; 0 when none is."""
    fits, does_not = 0, most + 1
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        if speed.tpot_s(middle, sample.mean_prompt, sample.mean_output, hit_rate) <= max_tpot_s:
            fits = middle
        else:
            does_not = middle
    return fits


def cost_of(
    card: DeviceCard, num_devices: int, speed: SpeedModel, throughput: Throughput, hit_rate: float
) -> Cost | None:
    """None where the device has no price."""
    if card.price_per_hour_usd is None:
        return None
    per_hour = card.price_per_hour_usd * num_devices
    per_s = per_hour / _SECONDS_PER_HOUR
    both = throughput.output_tokens_per_s + throughput.input_tokens_per_s
    return Cost(
        per_hour_usd=per_hour,
        output=per_s / throughput.output_tokens_per_s * _MILLION,
        input_uncached=per_s * speed.prefill_s(1000) / 1000 * _MILLION,
        blended=per_s / both * _MILLION,
        hit_rate=hit_rate,
    )
