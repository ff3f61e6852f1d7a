"""From the options of ``kvasir plan`` to a plan: finds the model, measures the machine, reads the log."""

from collections.abc import Sequence
from pathlib import Path

from kvasir.cli.plan_options import Asked
from kvasir.core.errors import ConfigError, KvasirError, ModelError
from kvasir.engine.config import EngineConfig
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import MemoryLimits, available_memory
from kvasir.engine.pool_plan import auto_kv_dtype, effective_max_model_len
from kvasir.hardware.card import DeviceCard
from kvasir.hardware.cards import device_cards, find_card, with_price
from kvasir.hardware.this_machine import NAME as THIS_MACHINE
from kvasir.hardware.this_machine import this_machine
from kvasir.models.config import ModelConfig, load_config
from kvasir.planner.engines import EngineName, find_engine, vllm_rule
from kvasir.planner.kv_groups import AnyDtype, find_dtype, find_pair
from kvasir.planner.lengths import parse_lengths
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.plan import Plan, make_plan
from kvasir.planner.request import EngineSettings, Load, OwnModel, PlanRequest, weight_format_of
from kvasir.planner.sources import find_model, model_card_config
from kvasir.planner.startup_log import StartLog, read_startup_log
from kvasir.planner.weight_formats import WeightFormat, find_weight_format

_THIS = "this"
_DEFAULT_CONTEXT = 32768


def build_plan(asked: Asked) -> Plan:
    """Raises ``ConfigError`` or ``ModelError``, one sentence with the numbers, when there is none."""
    shape = find_model(asked.model, hub_file)
    cards = [_card(name, asked) for name in asked.machine.hardware]
    log = _log(asked.machine.from_log)
    engine = _engine(asked, cards, log)
    _check(asked, engine, log)
    own, notes = _own_model(asked, cards, engine)
    request = PlanRequest(
        shape=shape,
        weights=_weights(asked, shape, engine),
        **_kv_dtypes(asked, engine),
        load=_load(asked),
        settings=_settings(asked, shape, engine, own, log),
        log=log,
        own=own,
        safety=asked.machine.safety,
        notes=notes,
    )
    candidates = [with_price(card, _prices(asked)) for card in device_cards()] if engine in _SEARCHED else []
    return make_plan(request, cards or _own_cards(asked, engine), candidates)


_SEARCHED = (EngineName.VLLM, EngineName.SGLANG, EngineName.LLAMA_CPP)


def _engine(asked: Asked, cards: Sequence[DeviceCard], log: StartLog | None) -> EngineName:
    """The one that is named, else that of the log, else ours on this machine and vLLM elsewhere."""
    if asked.run.engine is not None:
        return find_engine(asked.run.engine)
    if log is not None:
        return log.engine
    if (asked.model == "demo" and not cards) or any(card.name == THIS_MACHINE for card in cards):
        return EngineName.KVASIR
    return EngineName.VLLM


def _check(asked: Asked, engine: EngineName, log: StartLog | None) -> None:
    """Options that this engine does not have, or a log of another, are refused, not passed over."""
    if log is not None and log.engine is not engine:
        raise ConfigError(
            f"--from-log {asked.machine.from_log} was written by {log.engine.value}, but --engine is {engine.value}."
        )
    if engine is EngineName.KVASIR:
        others = {"--tp": asked.run.tp, "--engine-version": asked.run.engine_version}
    else:
        others = {"--" + name.replace("_", "-"): value for name, value in asked.own.flags.items()}
        others["--kv-cache-memory"] = asked.run.kv_cache_memory
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ConfigError(f"{given[0]} is not an option of a plan for {engine.value}.")


def _own_cards(asked: Asked, engine: EngineName) -> list[DeviceCard]:
    """Our engine is planned for this machine unless another is named."""
    return [_card(_THIS, asked)] if engine is EngineName.KVASIR else []


def _card(name: str, asked: Asked) -> DeviceCard:
    card = _measure() if name.lower() in (_THIS, THIS_MACHINE) else find_card(name)
    return with_price(card, _prices(asked))


def _measure() -> DeviceCard:
    """Two seconds of probing in a process of its own."""
    from kvasir.claims.ceiling import probe_ceiling_apart
    from kvasir.claims.machine import machine_card

    limits, ceiling = available_memory(), probe_ceiling_apart()
    return this_machine(
        memory_bytes=limits.total_bytes,
        bandwidth_bytes_per_s=ceiling.read_bytes_per_s,
        flops=ceiling.fp32_ops_per_s,
        int8_ops=ceiling.int8_ops_per_s,
        source=str(machine_card()["cpu"]),
    )


def _prices(asked: Asked) -> dict[str, float]:
    prices = {}
    for text in asked.machine.prices:
        name, _, value = text.rpartition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            raise ConfigError(f"--price {text!r}: write NAME=USD, for example H100=2.5.") from None
        if not name or prices[name] < 0:
            raise ConfigError(f"--price {text!r}: write NAME=USD, for example H100=2.5.")
    return prices


def _weights(asked: Asked, shape: ModelShape, engine: EngineName) -> WeightFormat:
    if asked.run.weight_dtype is not None:
        return find_weight_format(asked.run.weight_dtype)
    # Our engine holds weights in 8 bits unless it is told otherwise, whatever the checkpoint has.
    return find_weight_format("int8") if engine is EngineName.KVASIR else weight_format_of(shape)


def _kv_dtypes(asked: Asked, engine: EngineName) -> dict[str, AnyDtype]:
    is_own = engine is EngineName.KVASIR
    text = asked.run.kv_cache_dtype
    if is_own and text in (None, "auto"):
        text = auto_kv_dtype(own_flags(asked).kernels).k.value
    text = text or ("fp16" if engine is EngineName.LLAMA_CPP else "bf16")
    k, v = find_pair(text, lambda name: find_dtype(name, is_own=is_own))
    return {"k_dtype": k, "v_dtype": v}


def _load(asked: Asked) -> Load:
    load = asked.load
    return Load(
        users=load.users,
        prompts=parse_lengths(load.prompt_tokens),
        outputs=parse_lengths(load.output_tokens),
        shared_prefix=load.shared_prefix,
        max_tpot_s=None if load.max_tpot_ms is None else load.max_tpot_ms / 1000,
    )


def _settings(
    asked: Asked, shape: ModelShape, engine: EngineName, own: OwnModel | None, log: StartLog | None
) -> EngineSettings:
    run = asked.run
    context = run.max_model_len or min(shape.max_context, _DEFAULT_CONTEXT)
    if engine is EngineName.KVASIR and own is not None:
        context = effective_max_model_len(own.engine, own.config)
    version = run.engine_version or (log.version if log is not None else "")
    if engine is EngineName.VLLM and version:
        vllm_rule(version)
    return EngineSettings(
        engine=engine,
        version=version,
        max_model_len=context,
        tensor_parallel=run.tp,
        utilization=run.memory_utilization,
        block_size=run.block_size,
        max_num_seqs=run.max_num_seqs,
        max_num_batched_tokens=run.max_num_batched_tokens,
    )


def _log(path: Path | None) -> StartLog | None:
    if path is None:
        return None
    try:
        return read_startup_log(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ConfigError(f"The log {path} cannot be read ({error.strerror or error}).") from error


def _own_model(
    asked: Asked, cards: Sequence[DeviceCard], engine: EngineName
) -> tuple[OwnModel | None, tuple[str, ...]]:
    """None, with a note, where our engine does not serve the model; when it is the one asked for, that is an error."""
    try:
        config = own_config(asked.model)
        flags = own_flags(asked) if engine is EngineName.KVASIR else make_engine_config(model=asked.model)
    except KvasirError as error:
        if engine is EngineName.KVASIR:
            raise
        return None, (f"Kvasir does not serve it: {error}",)
    return OwnModel(config=config, engine=flags, limits=_limits(cards)), ()


def own_flags(asked: Asked) -> EngineConfig:
    """What ``kvasir serve`` makes of the same flags."""
    run = asked.run
    return make_engine_config(
        model=asked.model,
        max_model_len=run.max_model_len,
        weight_dtype=run.weight_dtype,
        kv_cache_dtype=run.kv_cache_dtype,
        block_size=None if run.block_size is None else str(run.block_size),
        memory_utilization=run.memory_utilization,
        kv_cache_memory=run.kv_cache_memory,
        max_num_seqs=run.max_num_seqs,
        max_num_batched_tokens=run.max_num_batched_tokens,
        **asked.own.flags,
    )


def _limits(cards: Sequence[DeviceCard]) -> MemoryLimits:
    """Of this machine, or all of a named one's memory."""
    if not cards or cards[0].name == THIS_MACHINE:
        return available_memory()
    total = cards[0].memory_bytes
    return MemoryLimits(total_bytes=total, available_bytes=total, source=cards[0].name)


def own_config(name: str) -> ModelConfig:
    """The config our engine would read of ``name``; nothing is loaded or converted.  Raises ``ModelError``."""
    path = Path(name).expanduser()
    if path.is_dir():
        return load_config(path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        return _gguf_config(path)
    if path.is_file():
        return load_config(path.parent)
    card = model_card_config(name)
    if card is not None:
        return ModelConfig.from_hf(card)
    config = hub_file(name, "config.json")
    if config is None:
        raise ModelError(f"{name} has no config.json on the hub.")
    return load_config(config.parent)


def _gguf_config(path: Path) -> ModelConfig:
    from kvasir.models.gguf_config import GgufMetadata, build_config
    from kvasir.planner.gguf_header import read_gguf_header

    header = read_gguf_header(path)
    shapes = {tensor.name: tuple(reversed(tensor.shape)) for tensor in header.tensors}
    return ModelConfig.from_hf(build_config(GgufMetadata(header.metadata), shapes, None))


def hub_file(model_id: str, name: str) -> Path | None:
    """A small file of a Hugging Face repository, from the local cache or the network."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model_id, name))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model_id} is neither built in nor in the local Hugging Face cache, and the hub cannot be reached; "
            "--list-models names what works offline, and a folder, config.json or .gguf file works too."
        ) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"{model_id} cannot be had from the hub ({type(error).__name__}).") from error
