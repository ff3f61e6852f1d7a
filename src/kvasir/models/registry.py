"""Which architectures are served: their names, their Hugging Face class, and who reads their switches."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from kvasir.core.errors import ModelError

if TYPE_CHECKING:
    from kvasir.models.families import FamilyTraits
    from kvasir.models.foreign import ForeignConfig

    TraitsReader = Callable[[ForeignConfig], FamilyTraits]


@dataclass(frozen=True, slots=True)
class Architecture:
    """``reader`` is "module:function"; the module is imported when a model of the architecture is first read."""

    name: str
    causal_class: str
    reader: str

    def load_reader(self) -> "TraitsReader":
        module, function = self.reader.split(":")
        return getattr(import_module(module), function)


ARCHITECTURES: dict[str, Architecture] = {
    entry.name: entry
    for entry in (
        Architecture("llama", "LlamaForCausalLM", "kvasir.models.families:read_llama"),
        Architecture("mistral", "MistralForCausalLM", "kvasir.models.families:read_mistral"),
        Architecture("qwen2", "Qwen2ForCausalLM", "kvasir.models.families:read_qwen2"),
        Architecture("qwen3", "Qwen3ForCausalLM", "kvasir.models.families:read_qwen3"),
    )
}


def find_architecture(name: object) -> Architecture:
    """Raises ``ModelError`` naming every served architecture when ``name`` is none of them."""
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ModelError(f"The architecture {name!r} is not served; served are {', '.join(ARCHITECTURES)}.")
    return architecture
