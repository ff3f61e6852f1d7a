"""The card of the machine we are on, from what was measured here and now."""

from datetime import date

from kvasir.hardware.card import DeviceCard, DeviceKind, MemoryBasis

NAME = "this machine"


def this_machine(
    *, memory_bytes: int, bandwidth_bytes_per_s: float, flops: float, int8_ops: float, source: str
) -> DeviceCard:
    """``memory_bytes`` is what this process may use in all; the rates are those of a probe, with all usable cores."""
    return DeviceCard(
        name=NAME,
        kind=DeviceKind.CPU,
        memory_bytes=memory_bytes,
        memory_basis=MemoryBasis.MEASURED,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        bf16_flops=flops,
        fp8_flops=int8_ops,
        source=source,
        date=date.today().isoformat(),
    )
