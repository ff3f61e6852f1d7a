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
    text, text_name = _text(texts, tokenizer, num_tokens)
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
    )
    profile, constants = calibrate(given, recipe, progress)
    path = output or Path(f"{Path(folder.name).name}.profile.json")
    return save_profile(profile, path, constants_to_bytes(constants))


def _text(files: Sequence[Path], tokenizer: Tokenizer, num_tokens: int) -> tuple[list[int], str]:
    """``num_tokens`` ids that begin as the model's texts begin; of every file an equal share, from its start."""
    prefix = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    if not files:
        ids = list(prefix)
        prose = sentences(_PROSE_SEED)
        while len(ids) < num_tokens:
            ids += tokenizer.encode(f" {next(prose)}", add_special_tokens=False)
        return ids[:num_tokens], "made-up prose"
    share = -(-(num_tokens - len(prefix)) // len(files))
    parts = [_read(file, tokenizer)[:share] for file in files]
    ids = [*prefix, *(token for part in parts for token in part)]
    if len(ids) < num_tokens:
        raise ConfigError(
            f"The texts have {len(ids)} tokens, and calibration reads {num_tokens}; give a longer --text."
        )
    return ids[:num_tokens], ", ".join(file.name for file in files)


def _read(file: Path, tokenizer: Tokenizer) -> list[int]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The text {file} cannot be read ({error}).") from None
    return tokenizer.encode(text, add_special_tokens=False)
