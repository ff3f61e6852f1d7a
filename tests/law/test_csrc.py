"""Code that is built once per instruction set keeps off standard templates.

The linker keeps one instance of a template for all: the one with AVX-512 in it may be what an old machine then runs.
"""

import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "src" / "kvasir" / "kernels" / "cpu" / "csrc"
INCLUDE = re.compile(r'#include "(\w+\.h)"')
SHARED = {"kernels.h", "work_list.h"}
"""Plain structures, which the other side of the table includes too."""


def built_per_instruction_set() -> set[str]:
    found, waiting = set[str](), ["isa.cpp"]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in SHARED:
            found.add(name)
            waiting += INCLUDE.findall((CSRC / name).read_text(encoding="utf-8"))
    return found


def test_no_standard_template_is_made_there():
    names = built_per_instruction_set()
    assert {"attention.h", "select.h", "linear.h", "simd.h"} <= names
    code = {name: re.sub(r"//.*", "", (CSRC / name).read_text(encoding="utf-8")) for name in names}
    assert {name for name, text in code.items() if "std::" in text} == set()
