"""Calibration: one pass over repeated random tokens, one over text, then a choice for every head."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from kvasir.compression.choose import MOST_GROUPS, choose_options
from kvasir.compression.constants import ConstantsCollector
from kvasir.compression.damage import DamageMeter, HeadOption
from kvasir.compression.observer import LayerView, ObservedModel
from kvasir.compression.profile import HeadProfile, HeadTable
from kvasir.compression.repetition import RepetitionScores, longest_period, repeated_tokens, score_heads
from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.formats.constants import KVConstants
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import Head, HeadGroup, all_heads
from kvasir.kv.retention import FULL, Retention, RetentionKind, windowed
from kvasir.kv.spec import KVSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a profile is made; it is written into the profile.

    ``budget``: KV bytes of a sequence of ``context`` tokens as a share of the whole cache in bf16.
    Retrieval heads: the ``induction_share`` of KV heads with the highest induction score and the ``echo_share`` with
    the highest echo score, over all layers.  The paper's 1 % of echo heads is too few for small models.
    ``period``: tokens of the random block, at most; a longer one blurs the scores of a small model.
    """

    budget: float = 0.35
    context: int = 8192
    formats: tuple[FormatPair, ...] = (FormatPair(k=KVDtype.INT8, v=KVDtype.INT8),)
    sinks: int = 4
    window: int = 1024
    induction_share: float = 0.14
    echo_share: float = 0.045
    period: int = 400
    text_tokens: int = 4096
    block_size: int = 16

    def __post_init__(self) -> None:
        if not 0.0 < self.budget <= 1.0:
            raise ConfigError(f"--budget must be above 0 and at most 1, got {self.budget}.")
        if not 1 <= len(self.formats) <= MOST_GROUPS:
            raise ConfigError(f"1 to {MOST_GROUPS} formats can be chosen from, and {len(self.formats)} were given.")

    @property
    def rules(self) -> tuple[Retention, ...]:
        """FULL and, unless ``window`` is 0, WINDOW, as asked for."""
        return (FULL, windowed(sinks=self.sinks, window=self.window)) if self.window else (FULL,)

    def options(self) -> tuple[HeadOption, ...]:
        """Each of ``rules`` with every format; windows are fitted to whole blocks."""
        return tuple(
            HeadOption(retention=rule.rounded(self.block_size), k_dtype=formats.k, v_dtype=formats.v)
            for rule in self.rules
            for formats in self.formats
        )

    @property
    def needs_constants(self) -> bool:
        return any({pair.k, pair.v} & {KVDtype.INT4, KVDtype.FP8} for pair in self.formats)

    def as_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["formats"] = [str(formats) for formats in self.formats]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInput:
    """A model and what it is to read: token ids; ``text_name`` is for the recipe.

    Damage and constants are measured on ``text``; ``stretches`` are read for the constants alone, of several lengths.
    """

    model: ObservedModel
    model_name: str
    model_digest: str
    special_ids: Collection[int]
    bos_id: int | None
    text: Sequence[int]
    text_name: str
    stretches: Sequence[Sequence[int]] = ()


def calibrate(
    given: CalibrationInput, recipe: Recipe, progress: Progress = no_progress
) -> tuple[HeadProfile, KVConstants]:
    """The profile, and the constants that belong to it.  Deterministic.  Raises ``ConfigError``."""
    model, config = given.model, given.model.config
    geometry = config.geometry
    context = min(recipe.context, config.max_context)
    period = longest_period(context, recipe.period)
    tokens = repeated_tokens(config.vocab_size, given.special_ids, given.bos_id, period)
    scores = score_heads(model, tokens, _staged("score heads", progress))

    options = recipe.options()
    text = given.text[: min(recipe.text_tokens, context)]
    meter = DamageMeter(model, options, len(text))
    collector = ConstantsCollector(
        geometry.num_layers,
        geometry.num_kv_heads,
        geometry.head_dim,
        has_feedback=any(formats.k is KVDtype.INT4 for formats in recipe.formats),
    )

    for number, stretch in enumerate(given.stretches, 1):
        model.read(stretch, collector.see)
        progress("read shorter texts", number / len(given.stretches))

    def see(view: LayerView) -> None:
        collector.see(view)
        meter.see(view, collector.constants.of_layer(view.layer, tuple(range(geometry.num_kv_heads))))

    model.read(text, see, _staged("measure damage", progress))
    retrieval = retrieval_heads(scores, geometry.sliding_windows, recipe)
    groups, shares = _choose(given, recipe, context, options, meter.damage, retrieval)
    facts = {"context": context, "period": period, "text": given.text_name, "text_tokens": len(text)}
    facts["stretches"] = [len(stretch) for stretch in given.stretches]
    tables = {
        "induction": _table(scores.induction),
        "echo": _table(scores.echo),
        **{f"damage {option.label}": _table(meter.damage[option]) for option in options},
    }
    profile = HeadProfile(
        model_name=given.model_name,
        model_digest=given.model_digest,
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        groups=groups,
        recipe={**recipe.as_json(), **facts, **shares, "retrieval_heads": [list(head) for head in retrieval]},
        scores=tables,
    )
    return profile, collector.constants


def retrieval_heads(
    scores: RepetitionScores, sliding_windows: Sequence[int | None], recipe: Recipe
) -> tuple[Head, ...]:
    """In order of (layer, head).  Heads of layers with a window of their own cannot look back, and are left out."""
    num_layers, num_kv_heads = scores.induction.shape
    heads = [head for head in all_heads(num_layers, num_kv_heads) if sliding_windows[head[0]] is None]
    found: set[Head] = set()
    for table, share in ((scores.induction, recipe.induction_share), (scores.echo, recipe.echo_share)):
        # sorted() keeps the order of equal scores: the lower layer and head come first.
        ranked = sorted(heads, key=lambda head: -float(table[head]))
        found.update(ranked[: round(len(heads) * share)])
    return tuple(sorted(found))


def _choose(
    given: CalibrationInput,
    recipe: Recipe,
    context: int,
    options: Sequence[HeadOption],
    damage: Mapping[HeadOption, Tensor],
    retrieval: Collection[Head],
) -> tuple[tuple[HeadGroup, ...], dict[str, float]]:
    """Groups in the order of ``options``, and what they cost.  Heads under a window of the model's own are kept as the
    model has them, in the first FULL format, and do not count against the budget."""
    geometry = given.model.config.geometry
    heads = all_heads(geometry.num_layers, geometry.num_kv_heads)
    free = [head for head in heads if geometry.sliding_windows[head[0]] is None]
    costs = [_head_bytes(option, context, geometry.head_dim, recipe.block_size) for option in options]
    whole = _head_bytes(
        HeadOption(retention=FULL, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16),
        context,
        geometry.head_dim,
        recipe.block_size,
    ) * len(free)
    choice = choose_options(
        costs,
        {head: [float(damage[option][head]) for option in options] for head in free},
        retrieval,
        [number for number, option in enumerate(options) if option.retention.kind is RetentionKind.FULL],
        recipe.budget * whole,
    )
    chosen = {**dict.fromkeys(heads, 0), **choice.option_of}
    groups = tuple(
        HeadGroup(
            heads=tuple(head for head in heads if chosen[head] == number),
            retention=recipe.rules[number // len(recipe.formats)],
            k_dtype=option.k_dtype,
            v_dtype=option.v_dtype,
        )
        for number, option in enumerate(options)
        if number in chosen.values()
    )
    share = choice.num_bytes / whole if whole else 0.0
    return groups, {"share_of_bf16": round(share, 6), "damage": float(f"{choice.damage:.6g}")}


def _head_bytes(option: HeadOption, context: int, head_dim: int, block_size: int) -> float:
    spec = KVSpec(
        block_size=block_size,
        head_dim=head_dim,
        heads_by_layer=((0,),),
        k_dtype=option.k_dtype,
        v_dtype=option.v_dtype,
        retention=option.retention,
    )
    return float(spec.pool_bytes(spec.max_blocks(context, 1)))


def _table(values: Tensor) -> HeadTable:
    return tuple(tuple(row) for row in values.tolist())


def _staged(name: str, progress: Progress) -> Progress:
    def report(stage: str, fraction: float) -> None:
        progress(name, fraction)

    return report
