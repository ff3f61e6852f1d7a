"""Which ``KVFormat`` serves each ``KVDtype``."""

from kvasir.formats.contract import KVFormat
from kvasir.formats.dense import DenseFormat
from kvasir.formats.fp8 import Fp8Format
from kvasir.formats.int4 import Int4Format
from kvasir.formats.int8 import Int8Format
from kvasir.kv.format_spec import KVDtype

_DENSE = DenseFormat()

FORMATS: dict[KVDtype, KVFormat] = {
    KVDtype.FP32: _DENSE,
    KVDtype.BF16: _DENSE,
    KVDtype.FP16: _DENSE,
    KVDtype.INT8: Int8Format(),
    KVDtype.INT4: Int4Format(),
    KVDtype.FP8: Fp8Format(),
}
