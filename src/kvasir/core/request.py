"""A request as the engine sees it: token ids in, sampling settings, who may share its cache."""

from dataclasses import dataclass, field

from kvasir.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One admitted-or-refused unit of work.  Text is somebody else's business: only token ids here.

    ``priority``: lower runs earlier (vLLM's meaning), used by the priority policy only.
    ``cache_salt`` and ``tenant`` isolate prefix sharing: only requests with equal values share blocks.
    ``eos_token_ids`` end a sequence unless ``sampling.ignore_eos``.
    ``num_pinned_tokens``: how many tokens at the prompt's beginning are instructions, which no eviction takes.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: tuple[int, ...] = ()
    arrival_s: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    num_pinned_tokens: int = 0
