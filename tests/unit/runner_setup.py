"""A tiny random model with a runner on it, and plans written by hand."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from kvasir.core.sampling import SamplingParams
from kvasir.core.step import BlockCopy, SequenceStart, StepPlan, StepResult, StepRow, TableUpdate
from kvasir.engine.config import EngineConfig, KernelChoice, WeightDtype
from kvasir.engine.runner import ModelRunner
from kvasir.formats.store import KVStore
from kvasir.kernels.select import make_kernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.models.config import load_config
from kvasir.models.decoder import Decoder
from kvasir.models.weights import load_weights
from kvasir.scheduling.config import SchedulerConfig

VOCAB = 96
BLOCK = 16
MAX_LEN = 256
GREEDY = SamplingParams(temperature=0.0)


def save_tiny_llama(folder: Path) -> Path:
    """Weights large enough that the next token is never a near tie."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LEN,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_tiny_mistral(folder: Path, window: int) -> Path:
    torch.manual_seed(1)
    config = transformers.MistralConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LEN,
        sliding_window=window,
        initializer_range=0.2,
    )
    transformers.MistralForCausalLM(config).save_pretrained(folder)
    return folder


CHAT_TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant: {% endif %}"
)


def save_tiny_chat_model(folder: Path) -> Path:
    """A random Llama with a real byte-level tokenizer of its size and a chat template."""
    from tiny_tokenizers import BOS, END, byte_level

    tokenizer = byte_level()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": BOS, "eos_token": END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(END),
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_runner(
    folder: Path,
    *,
    kernels: KernelChoice = KernelChoice.AUTO,
    weight_dtype: WeightDtype = WeightDtype.INT8,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    seed: int = 0,
) -> ModelRunner:
    model = load_config(folder)
    chosen = make_kernels(kernels, 1)
    layout = KVLayout.from_geometry(model.geometry, block_size=BLOCK, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
    decoder = Decoder(model, load_weights(folder, model, weight_dtype), chosen, MAX_LEN)
    config = EngineConfig(
        max_model_len=MAX_LEN,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
        seed=seed,
        weight_dtype=weight_dtype,
    )
    return ModelRunner(decoder, KVStore(layout, (num_blocks,) * len(layout.groups)), config)


@dataclass
class Stream:
    """One sequence as a hand-written scheduler sees it.  ``blocks`` are given in any order the test likes."""

    sequence_id: int
    prompt: list[int]
    blocks: list[int]
    sampling: SamplingParams = GREEDY
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def start(self) -> SequenceStart:
        return SequenceStart(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.tokens),
            num_prompt_tokens=len(self.prompt),
            sampling=self.sampling,
            eos_token_ids=(2,),
            index=self.index,
        )

    def row(self, num_tokens: int, siblings: tuple[int, ...] = ()) -> StepRow:
        """Compute the next ``num_tokens``; a token is drawn when that is all there are."""
        begin, end = self.num_computed, self.num_computed + num_tokens
        first = -(-begin // BLOCK)
        updates = ()
        if -(-end // BLOCK) > first:
            updates = (TableUpdate(0, first, tuple(self.blocks[first : -(-end // BLOCK)])),)
        self.num_computed = end
        sample_for = (self.sequence_id, *siblings) if end == len(self.tokens) else ()
        return StepRow(self.sequence_id, begin, tuple(self.tokens[begin:end]), updates, sample_for)


class Driver:
    """Counts steps and hands tokens back to their streams."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.streams: dict[int, Stream] = {}
        self.num_steps = 0

    def plan(
        self,
        rows: list[StepRow],
        *,
        starts: tuple[Stream, ...] = (),
        ended: tuple[int, ...] = (),
        copies: tuple[BlockCopy, ...] = (),
    ) -> StepPlan:
        self.num_steps += 1
        self.streams |= {stream.sequence_id: stream for stream in starts}
        return StepPlan(
            step_id=self.num_steps,
            rows=tuple(rows),
            starts=tuple(stream.start() for stream in starts),
            ended=ended,
            copies=copies,
        )

    def step(self, rows: list[StepRow], **rest) -> StepResult:
        plan = self.plan(rows, **rest)
        result = self.runner.execute(plan)
        assert result.step_id == plan.step_id
        assert [t.sequence_id for t in result.tokens if t.sequence_id not in result.failed] == [
            i for row in plan.rows for i in row.sample_for if i not in result.failed
        ]
        for token in result.tokens:
            self.streams[token.sequence_id].tokens.append(token.token_id)
        return result


def generate_alone(folder: Path, prompt: list[int], num_tokens: int, sampling: SamplingParams = GREEDY, **options):
    """The tokens of a prompt computed in one piece and decoded with nobody else around."""
    driver = Driver(make_runner(folder, **options))
    stream = Stream(0, prompt, list(range(MAX_LEN // BLOCK)), sampling)
    driver.step([stream.row(len(prompt))], starts=(stream,))
    for _ in range(num_tokens - 1):
        driver.step([stream.row(1)])
    return stream.output
