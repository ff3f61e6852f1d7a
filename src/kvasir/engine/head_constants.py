"""The calibrated constants of a head profile, for the store of an engine."""

from kvasir.compression.constants import constants_from_bytes
from kvasir.compression.profile_file import constants_bytes
from kvasir.engine.config import CacheConfig
from kvasir.engine.head_profile import profile_of
from kvasir.formats.constants import KVConstants


def profile_constants(cache: CacheConfig, model_digest: str) -> KVConstants | None:
    """The calibrated constants of the profile that ``cache`` names, None without.  Raises ``ConfigError`` when the
    profile is another model's, or its constants are not what they were."""
    profile = profile_of(cache)
    if profile is None:
        return None
    profile.check_model(model_digest)
    data = constants_bytes(profile)
    return None if data is None else constants_from_bytes(data)
