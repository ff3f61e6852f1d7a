"""What an engine says of itself when it is ready: the configuration in force and what its cache holds."""

from kvasir.engine.config import EngineConfig
from kvasir.engine.engine import Engine
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
        effective_config=effective_config(engine.config, engine.kernels_name),
        capacity=Capacity(
            block_size=engine.layout.block_size,
            num_blocks=engine.num_blocks,
            num_tokens=memory.num_tokens,
            num_sequences=memory.max_concurrency,
            num_bytes=memory.pool_bytes,
        ),
    )


def effective_config(config: EngineConfig, kernels_name: str) -> dict[str, str]:
    """By flag name, as text.  ``config`` is the engine's own, in which nothing is left to 'auto' but the threads."""
    import torch

    cache, scheduler = config.cache, config.scheduler
    memory = cache.memory
    by_bytes = memory.kv_cache_memory_bytes is not None
    return {
        "model": config.model,
        "weight_dtype": config.weight_dtype.value,
        "kernels": kernels_name,
        "threads": str(config.threads or torch.get_num_threads()),
        "max_model_len": str(config.max_model_len),
        "block_size": str(cache.block_size),
        "kv_cache_dtype": cache.kv_cache_dtype.value if cache.kv_cache_dtype else "auto",
        "kv_allocation": cache.allocation.value,
        "kv_cache_memory": f"{memory.kv_cache_memory_bytes}" if by_bytes else "from memory_utilization",
        "memory_utilization": "not used" if by_bytes else f"{memory.memory_utilization:g}",
        "enable_prefix_caching": str(cache.enable_prefix_caching).lower(),
        "scheduling": scheduler.batching.value,
        "scheduling_policy": scheduler.policy.value,
        "max_num_seqs": str(scheduler.max_num_seqs),
        "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
        "long_prefill_token_threshold": str(scheduler.long_prefill_token_threshold),
        "max_waiting": str(scheduler.max_waiting),
        "seed": str(config.seed),
    }
