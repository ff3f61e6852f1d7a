"""``DeviceCard``: what one device offers, in which words, and who says so."""

from dataclasses import dataclass
from enum import Enum

GIB = 1 << 30
HOURS_OF_LIFE = 3 * 365 * 24
"""A device one owns is written off over three years of running."""
USD_PER_KWH = 0.15


class DeviceKind(Enum):
    DATA_CENTRE = "data-centre"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"
    APPLE = "apple"
    ASCEND = "ascend"
    EDGE = "edge"
    CPU = "cpu"


class MemoryBasis(Enum):
    LOG = "log"
    """What a driver printed on such a device."""
    NOMINAL = "nominal"
    """Reckoned from the data sheet's size, less what drivers of similar devices keep."""
    MEASURED = "measured"


class PriceBasis(Enum):
    RENTED = "rented"
    OWNED = "owned"
    """List price over three years of running, plus the power it may draw at 0.15 $/kWh."""
    GIVEN = "given"
    """By the user."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCard:
    """One device.  Rates are peaks of the data sheet, dense; an operation is one multiply or one add.

    ``memory_bytes`` is what the driver reports as total, which is less than what the box says.  ``fp8_flops`` is 0
    where the device has no such units; ``link_bytes_per_s`` is between devices of one host, 0 when there is one only.
    """

    name: str
    kind: DeviceKind
    memory_bytes: int
    memory_basis: MemoryBasis
    bandwidth_bytes_per_s: float
    bf16_flops: float
    source: str
    date: str
    fp8_flops: float = 0.0
    max_devices: int = 1
    link_bytes_per_s: float = 0.0
    price_per_hour_usd: float | None = None
    price_basis: PriceBasis = PriceBasis.UNKNOWN
    aliases: tuple[str, ...] = ()

    @property
    def memory_gib(self) -> float:
        return self.memory_bytes / GIB

    def flops(self, weight_bits: float) -> float:
        """The rate for weights of that width: 8-bit ones use the 8-bit units where there are any; narrower ones are
        widened before they are multiplied."""
        return self.fp8_flops if weight_bits == 8 and self.fp8_flops else self.bf16_flops


def owned_price_per_hour(list_price_usd: float, power_w: float) -> float:
    return list_price_usd / HOURS_OF_LIFE + power_w / 1000 * USD_PER_KWH
