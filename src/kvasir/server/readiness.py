"""What an engine says of itself when it is ready: the configuration in force and what its cache holds."""

from kvasir.engine.byte_size import format_bytes
from kvasir.engine.engine import Engine
from kvasir.engine.flags import effective_flags
from kvasir.server.messages import Capacity, Ready


def describe(engine: Engine) -> Ready:
    memory = engine.memory
    return Ready(
        model_name=engine.folder.name,
        model_path=str(engine.folder.path),
        model_digest=engine.model_digest,
        layout_digest=engine.layout.digest,
        max_model_len=engine.max_model_len,
        vocab_size=engine.model_config.vocab_size,
        policy=engine.config.scheduler.policy,
        effective_config=effective_config(engine),
        capacity=Capacity(
            block_size=engine.layout.block_size,
            num_blocks=engine.num_blocks,
            num_tokens=memory.num_tokens,
            num_sequences=memory.max_concurrency,
            num_bytes=memory.pool_bytes,
        ),
    )


def effective_config(engine: Engine) -> dict[str, str]:
    """By flag name, as a person would write it; what was left to 'auto' shows what that came to."""
    import torch

    config, memory = engine.config, engine.config.cache.memory
    is_sized_by_bytes = memory.kv_cache_memory_bytes is not None
    return effective_flags(config) | {
        "kernels": engine.kernels_name,
        "threads": str(config.threads or torch.get_num_threads()),
        "kv_cache_memory": format_bytes(engine.memory.pool_bytes),
        "memory_utilization": "not used" if is_sized_by_bytes else f"{memory.memory_utilization:g}",
    }
