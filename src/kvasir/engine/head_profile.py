"""What ``--head-profile`` means for an engine: its head groups, and what it cannot go with.  No torch."""

from kvasir.compression.profile import HeadProfile
from kvasir.compression.profile_file import load_profile
from kvasir.core.errors import ConfigError
from kvasir.engine.config import CacheConfig
from kvasir.kv.retention import FULL


def profile_of(cache: CacheConfig) -> HeadProfile | None:
    """The profile that ``cache`` names, read and checked.  Raises ``ConfigError`` when it cannot be had, or when
    formats or retention are asked for as well."""
    if cache.head_profile is None:
        return None
    for option, value in (("--kv-cache-dtype", cache.kv_cache_dtype), ("--kv-retention", cache.kv_retention)):
        if value not in (None, FULL):
            raise ConfigError(
                f"--head-profile {cache.head_profile} decides how every head is kept, and so does {option} {value}; "
                "leave one of them out."
            )
    return load_profile(cache.head_profile)
