"""A tokenizer.json for folders that have only a SentencePiece or other legacy tokenizer, made once by transformers."""

import hashlib
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.models.model_cache import build_once, cache_directory

_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
_FILES += ("added_tokens.json",)


def converted_tokenizer(folder: Path) -> Path:
    """Path of a tokenizer.json in the user's cache for the tokenizer files of ``folder``.

    Raises ``ModelError`` when the folder has no tokenizer that transformers can turn into one.
    """
    present = [name for name in _FILES if (folder / name).is_file()]
    if not {"tokenizer.model", "vocab.json"} & set(present):
        raise ModelError(f"The folder {folder} has no tokenizer.json and no tokenizer.model, so it has no tokenizer.")
    source: dict[str, object] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in present}
    digest = hashlib.sha256(repr(sorted(source.items())).encode()).hexdigest()[:16]
    target = cache_directory() / "tokenizers" / digest
    return build_once(target, source, lambda scratch: _convert(folder, scratch)) / "tokenizer.json"


def _convert(folder: Path, scratch: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        backend = getattr(tokenizer, "backend_tokenizer", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"The tokenizer in {folder} cannot be converted to a tokenizer.json ({error}).") from error
    if backend is None:
        raise ModelError(f"The tokenizer class {type(tokenizer).__name__} in {folder} has no fast form to serve.")
    backend.save(str(scratch / "tokenizer.json"))
