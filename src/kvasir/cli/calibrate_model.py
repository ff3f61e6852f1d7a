"""Loads what a calibration needs and writes what it finds."""

from collections.abc import Sequence
from pathlib import Path

from kvasir.compression.calibrate import CalibrationInput, Recipe, calibrate
from kvasir.compression.constants import constants_to_bytes
from kvasir.compression.observer import ObservedModel
from kvasir.compression.profile import HeadProfile
from kvasir.compression.profile_file import save_profile
from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress
from kvasir.engine.assembly import usable_cores
from kvasir.kernels.choice import KernelChoice
from kvasir.kernels.select import make_kernels
from kvasir.lab.prose import sentences
from kvasir.models.config import load_config
from kvasir.models.digest import model_digest
from kvasir.models.resolve import resolve_model
from kvasir.models.weight_dtype import WeightDtype
from kvasir.models.weights import load_weights
from kvasir.text.tokenizer import Tokenizer

_PROSE_SEED = 1


def calibrate_model(
    model: str,
    texts: Sequence[Path],
    recipe: Recipe,
    output: Path | None,
    threads: int | None,
    progress: Progress,
) -> HeadProfile:
    """The profile as written to ``output``, or beside the caller under the model's name.

    Raises ``ConfigError`` or ``ModelError`` in one sentence."""
    folder = resolve_model(model, progress)
    config = load_config(folder.path)
    tokenizer = Tokenizer.from_folder(folder.path)
    num_tokens = min(recipe.text_tokens, recipe.context, config.max_context)
    text, stretches, text_name = _texts(texts, tokenizer, num_tokens, recipe.needs_constants)
    kernels = make_kernels(KernelChoice.AUTO, threads or usable_cores())
    given = CalibrationInput(
        model=ObservedModel(
            config=config,
            weights=load_weights(folder.path, config, WeightDtype.FP32, progress),
            kernels=kernels,
        ),
        model_name=folder.name,
        model_digest=model_digest(folder.path),
        special_ids=tokenizer.special_ids,
        bos_id=tokenizer.bos_id,
        text=text,
        text_name=text_name,
        stretches=stretches,
    )
    profile, constants = calibrate(given, recipe, progress)
    path = output or Path(f"{Path(folder.name).name}.profile.json")
    return save_profile(profile, path, constants_to_bytes(constants))


def _texts(
    files: Sequence[Path], tokenizer: Tokenizer, num_tokens: int, has_stretches: bool
) -> tuple[list[int], list[list[int]], str]:
    """``num_tokens`` ids, an equal share of every file from its start; ``shorter_lengths`` spread evenly over all of
    them; and where this is from.  All begin as the model's texts begin."""
    prefix = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    lengths = shorter_lengths(num_tokens) if has_stretches else []
    if files:
        parts = [_read(file, tokenizer) for file in files]
        name = ", ".join(file.name for file in files)
    else:
        parts, name = [_prose(tokenizer, num_tokens + sum(lengths))], "made-up prose"
    share = -(-(num_tokens - len(prefix)) // len(parts))
    text = [*prefix, *(token for part in parts for token in part[:share])][:num_tokens]
    if len(text) < num_tokens:
        raise ConfigError(
            f"The texts have {len(text)} tokens, and calibration reads {num_tokens}; give a longer --text."
        )
    pool = [token for part in parts for token in part]
    starts = [number * (len(pool) - length) // len(lengths) for number, length in enumerate(lengths)]
    stretches = [
        [*prefix, *pool[start : start + length]][:length] for start, length in zip(starts, lengths, strict=True)
    ]
    return text, stretches, name


def shorter_lengths(num_tokens: int) -> list[int]:
    """Two halves, four quarters and eight eighths: RoPE turns means and what queries look at with the position, and
    constants from one long text alone serve short contexts badly."""
    return [num_tokens // parts for parts in (2, 4, 8) for _ in range(parts) if num_tokens // parts]


def _prose(tokenizer: Tokenizer, num_tokens: int) -> list[int]:
    ids: list[int] = []
    prose = sentences(_PROSE_SEED)
    while len(ids) < num_tokens:
        ids += tokenizer.encode(f" {next(prose)}", add_special_tokens=False)
    return ids


def _read(file: Path, tokenizer: Tokenizer) -> list[int]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The text {file} cannot be read ({error}).") from None
    return tokenizer.encode(text, add_special_tokens=False)
