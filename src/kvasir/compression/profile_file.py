"""Profile files: JSON, and beside it the calibrated tensors as safetensors.  No torch."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from kvasir.compression.profile import FORMAT_NAME, VERSION, ConstantsFile, HeadProfile
from kvasir.compression.profile_json import ProfileError, profile_from_json, profile_to_json
from kvasir.core.errors import ConfigError
from kvasir.kv.head_group import check_partition

DEFAULT_NAME = "default"
"""What stands for the profile that ships with the package: that of the embedded model."""
_SHIPPED = Path(__file__).parent / "profiles" / "demo.json"


def save_profile(profile: HeadProfile, path: Path, constants: bytes | None) -> HeadProfile:
    """Write ``profile`` to ``path`` and ``constants`` (a safetensors file's bytes) beside it; returns what was written.

    The constants are written first, so that a profile never names a file that is not there.  Raises ``ConfigError``."""
    entry = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if constants is not None:
            entry = ConstantsFile(name=f"{path.stem}.safetensors", sha256=hashlib.sha256(constants).hexdigest())
            (path.parent / entry.name).write_bytes(constants)
        written = replace(profile, constants=entry, path=path)
        path.write_text(_as_text(written), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The head profile cannot be written to {path} ({error}); give another --output.") from None
    return written


def _as_text(profile: HeadProfile) -> str:
    """JSON with a group, a row of scores or a recipe a line, so that two profiles can be compared by eye."""
    data = profile_to_json(profile)
    groups = ",\n".join(f"  {json.dumps(group)}" for group in data.pop("groups"))
    tables = []
    for name, table in data.pop("scores").items():
        rows = ",\n".join(f"   {json.dumps(row)}" for row in table)
        tables.append(f"  {json.dumps(name)}: [\n{rows}\n  ]")
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    lines += [f' "groups": [\n{groups}\n ]', ' "scores": {\n' + ",\n".join(tables) + "\n }"]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def profile_path(name: str) -> Path:
    """The file that ``--head-profile NAME`` means."""
    return _SHIPPED if name == DEFAULT_NAME else Path(name).expanduser()


def load_profile(name: str) -> HeadProfile:
    """The profile at ``name`` (a path, or 'default'), every field checked.  Raises ``ConfigError`` in one sentence."""
    path = profile_path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The head profile {path} cannot be read ({error}); make one with `kvasir calibrate`."
        ) from None
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The head profile {path} is damaged ({error}); make it anew.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT_NAME:
        raise ConfigError(f"{path} is not a head profile; give a file that `kvasir calibrate` wrote.")
    version = data.get("version")
    if version != VERSION:
        raise ConfigError(
            f"The head profile {path} has version {version}, and this Kvasir reads version {VERSION}; "
            "make it anew with `kvasir calibrate`, or use the Kvasir that wrote it."
        )
    try:
        profile = profile_from_json(data, path)
        check_partition(profile.groups, profile.num_layers, profile.num_kv_heads)
    except (ProfileError, ConfigError) as error:
        raise ConfigError(f"The head profile {path} is damaged: {error}") from None
    return profile


def constants_bytes(profile: HeadProfile) -> bytes | None:
    """The bytes of the constants file, checked against its SHA-256; None where the profile has none."""
    if profile.constants is None:
        return None
    if profile.path is None:
        raise ConfigError(f"The head profile of {profile.model_name} was not read from a file, so it has no constants.")
    file = profile.path.parent / profile.constants.name
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The calibrated constants {file} of the head profile {profile.path} cannot be read ({error}); "
            "keep both files together, or make them anew with `kvasir calibrate`."
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != profile.constants.sha256:
        raise ConfigError(
            f"The calibrated constants {file} are not those of the head profile {profile.path} (SHA-256 "
            f"{found[:12]} instead of {profile.constants.sha256[:12]}); make both anew with `kvasir calibrate`."
        )
    return data
