"""Stand-ins for the parts of vLLM that its taps touch: both model runners, scheduler output, its layers.

They honour the attributes and the order of calls of vLLM 0.32 that `replay/vllm_tap` relies on. The model is
real and small: vLLM's module names, fused projections and fused norms over plain torch, a KV cache a request.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

HIDDEN, HEADS, KV_HEADS, HEAD, MLP, VOCAB = 32, 4, 2, 8, 48, 96


class VocabParallelEmbedding(nn.Embedding):
    pass


class RMSNorm(nn.Module):
    """With a residual it adds in place, as vLLM's fused kernel does, and returns (normed, sum)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return self._normed(x)
        residual.add_(x)
        x.copy_(self._normed(residual))
        return x, residual

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class ColumnParallelLinear(nn.Linear):
    """Returns (output, no bias). `output_partition_sizes` are this rank's."""

    gather_output = False

    def __init__(self, wide: int, sizes: list[int], tp_size: int = 1) -> None:
        super().__init__(wide, sum(sizes) // tp_size, bias=False)
        self.tp_size = tp_size
        self.output_partition_sizes = [size // tp_size for size in sizes]

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), None


class MergedColumnParallelLinear(ColumnParallelLinear):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    pass


class RowParallelLinear(nn.Linear):
    """`reduce` adds the ranks' parts up; None where there is one rank."""

    reduce_results = True

    def __init__(self, wide: int, out: int, tp_size: int = 1) -> None:
        super().__init__(wide // tp_size, out, bias=False)
        self.tp_size = tp_size
        self.output_partition_sizes = [out]
        self.reduce: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        output = super().forward(x)
        return (output if self.reduce is None else self.reduce(output)), None


class RotaryEmbedding(nn.Module):
    """Shared by all layers, in place: it turns q and k by their position."""

    def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> Any:
        turn = torch.cos(positions.to(q.dtype))[:, None]
        return q.mul_(turn), k.mul_(turn)


class Attention(nn.Module):
    """Causal attention over a KV cache that the forward context names, as vLLM's layers find theirs."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(q)
        if CONTEXT.slices is None:
            return output  # a dummy run
        for name, rows, first in CONTEXT.slices:
            cache = CONTEXT.caches.setdefault((id(self), name), {})
            for at, row in enumerate(range(rows.start, rows.stop)):
                cache[first + at] = (k[row].clone(), v[row].clone())
                past = [cache[position] for position in range(first + at + 1)]
                keys = torch.stack([item[0] for item in past]).view(len(past), self.kv_heads, HEAD)
                values = torch.stack([item[1] for item in past]).view(len(past), self.kv_heads, HEAD)
                group = self.heads // self.kv_heads
                keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
                scores = torch.einsum("hd,thd->ht", q[row].view(self.heads, HEAD), keys) * HEAD**-0.5
                mixed = torch.einsum("ht,thd->hd", scores.softmax(-1), values)
                output[row] = mixed.reshape(-1)
        return output


class _Context(threading.local):
    """vLLM's forward context, one for each rank: the rows of each request, from which position on."""

    def __init__(self) -> None:
        self.slices: list[tuple[str, slice, int]] | None = None
        self.caches: dict[tuple[int, str], dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}


CONTEXT = _Context()


class SelfAttention(nn.Module):
    def __init__(self, rotary: RotaryEmbedding, tp_size: int) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(HIDDEN, [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], tp_size)
        self.o_proj = RowParallelLinear(HEADS * HEAD, HIDDEN, tp_size)
        self.rotary_emb = rotary
        self.attn = Attention(HEADS // tp_size, KV_HEADS // tp_size)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.qkv_proj.output_partition_sizes, dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(self.attn(q, k, v))
        return output


class SiluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return nn.functional.silu(x[..., :half]) * x[..., half:]


class MLPBlock(nn.Module):
    def __init__(self, tp_size: int) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(HIDDEN, [MLP, MLP], tp_size)
        self.act_fn = SiluAndMul()
        self.down_proj = RowParallelLinear(MLP, HIDDEN, tp_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(x))
        return x


class DecoderLayer(nn.Module):
    """Returns (hidden, residual): their sum is the residual stream."""

    def __init__(self, rotary: RotaryEmbedding, tp_size: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(HIDDEN)
        self.self_attn = SelfAttention(rotary, tp_size)
        self.post_attention_layernorm = RMSNorm(HIDDEN)
        self.mlp = MLPBlock(tp_size)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None) -> Any:
        if residual is None:
            residual, hidden = hidden, self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.self_attn(positions=positions, hidden_states=hidden)
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.mlp(hidden), residual


class Inner(nn.Module):
    def __init__(self, layers: int, tp_size: int) -> None:
        super().__init__()
        rotary = RotaryEmbedding()
        self.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(DecoderLayer(rotary, tp_size) for _ in range(layers))
        self.norm = RMSNorm(HIDDEN)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        return self.norm(hidden, residual)[0]


class CausalLM(nn.Module):
    """vLLM's model: the layers under `model`, logits apart."""

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, layers: int = 2, tp_size: int = 1) -> None:
        super().__init__()
        self.model = Inner(layers, tp_size)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden_states, self.lm_head.weight)


def small_model(
    seed: int = 0, layers: int = 2, tp_size: int = 1, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """A random model in vLLM's shape."""
    torch.manual_seed(seed)
    return CausalLM(layers, tp_size).to(dtype).eval()


@dataclass
class NewRequest:
    """NewRequestData: `sampling_params.extra_args` is what the client sent as vllm_xargs."""

    req_id: str
    sampling_params: Any
    prompt_token_ids: list[int] | None = None
    num_computed_tokens: int = 0


def new_request(req_id: str, **extra: Any) -> NewRequest:
    """A request as the scheduler sends it the first time."""
    return NewRequest(req_id, SimpleNamespace(extra_args=extra or None))


@dataclass
class SchedulerOutput:
    """What the scheduler tells the workers for a step."""

    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    finished_req_ids: set[str] = field(default_factory=set)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class FirstRunner:
    """As `v1/worker/gpu_model_runner.py`: `execute_model` prepares, calls `_model_forward`, computes logits.

    Args:
        model: The model.
        pad_to: Every step's rows are padded to a multiple of this.
    """

    def __init__(self, model: CausalLM, pad_to: int = 1) -> None:
        self.model, self.pad_to = model, pad_to
        self.device = torch.device("cpu")
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=np.zeros(64, np.int32))
        self.input_ids = SimpleNamespace(gpu=torch.zeros(512, dtype=torch.int32))
        self.tokens: dict[str, list[int]] = {}
        """Of each request: prompt and what was generated."""
        self.computed: dict[str, int] = {}
        self.logits: torch.Tensor | None = None

    def get_model(self) -> CausalLM:
        return self.model

    def _dummy_run(self, tokens: int) -> None:
        with torch.inference_mode():
            CONTEXT.slices = None
            self.model(input_ids=torch.zeros(tokens, dtype=torch.int32), positions=torch.arange(tokens))

    def execute_model(self, scheduler_output: SchedulerOutput, _intermediate: Any = None) -> None:
        for name in scheduler_output.finished_req_ids:
            self.computed.pop(name, None)
        counts = scheduler_output.num_scheduled_tokens
        if not counts:
            return
        batch = self.input_batch
        batch.req_ids = list(counts)
        ids: list[int] = []
        positions: list[int] = []
        CONTEXT.slices = []
        for row, (name, count) in enumerate(counts.items()):
            first = self.computed.setdefault(name, 0)
            batch.num_computed_tokens_cpu[row] = first
            fed = [*self.tokens[name], *scheduler_output.scheduled_spec_decode_tokens.get(name, ())]
            CONTEXT.slices.append((name, slice(len(ids), len(ids) + count), first))
            ids += fed[first : first + count]
            positions += range(first, first + count)
            self.computed[name] = first + count
        padded = -(-len(ids) // self.pad_to) * self.pad_to
        self.input_ids.gpu[: len(ids)] = torch.tensor(ids)
        self.input_ids.gpu[len(ids) : padded] = 7  # what the step before left there
        with torch.inference_mode():
            hidden = self._model_forward(
                input_ids=self.input_ids.gpu[:padded],
                positions=torch.tensor(positions + [0] * (padded - len(ids))),
            )
            ends = np.cumsum(list(counts.values()))
            drafts = [len(scheduler_output.scheduled_spec_decode_tokens.get(name, ())) for name in counts]
            rows = [
                int(end) - 1 - back
                for end, more in zip(ends, drafts, strict=True)
                for back in range(more, -1, -1)
            ]
            self.logits = self.model.compute_logits(hidden[rows])
            self.hidden = hidden

    def _model_forward(self, **inputs: Any) -> torch.Tensor:
        output: torch.Tensor = self.model(**inputs)
        return output

    def sample_tokens(self, _grammar: Any = None) -> None:
        assert self.logits is not None
        with torch.inference_mode():
            self.logits.fill_(float("-inf"))  # the sampler works on the logits in place

    def step(self, counts: dict[str, int], **scheduled: Any) -> None:
        """One step of the engine's loop."""
        self.execute_model(SchedulerOutput(counts, **scheduled))
        if counts:
            self.sample_tokens()


class SecondRunner(FirstRunner):
    """As `v1/worker/gpu/model_runner.py`: no `_model_forward`, a batch object, logits only when sampling."""

    _model_forward = property()  # type: ignore[assignment]

    def __init__(self, model: CausalLM, pad_to: int = 1) -> None:
        super().__init__(model, pad_to)
        del self.input_batch
        self.req_states = SimpleNamespace()
        self.execute_model_state: Any = None

    def prepare_inputs(self, scheduler_output: SchedulerOutput) -> Any:
        counts = scheduler_output.num_scheduled_tokens
        ids: list[int] = []
        positions: list[int] = []
        CONTEXT.slices = []
        drafts = scheduler_output.scheduled_spec_decode_tokens
        computed = []
        for name, count in counts.items():
            first = self.computed.setdefault(name, 0)
            computed.append(first)
            CONTEXT.slices.append((name, slice(len(ids), len(ids) + count), first))
            ids += [*self.tokens[name], *drafts.get(name, ())][first : first + count]
            positions += range(first, first + count)
            self.computed[name] = first + count
        padded = -(-len(ids) // self.pad_to) * self.pad_to
        ends = np.cumsum(list(counts.values()))
        more = [len(drafts.get(name, ())) for name in counts]
        rows = [
            int(end) - 1 - back for end, some in zip(ends, more, strict=True) for back in range(some, -1, -1)
        ]
        return SimpleNamespace(
            req_ids=list(counts),
            num_scheduled_tokens=np.array(list(counts.values()), np.int32),
            num_computed_tokens_np=np.array(computed, np.int32),
            num_draft_tokens_per_req=np.array(more, np.int32) if drafts else None,
            num_tokens_after_padding=padded,
            input_ids=torch.tensor(ids + [7] * (padded - len(ids)), dtype=torch.int32),
            positions=torch.tensor(positions + [0] * (padded - len(ids))),
            logits_indices=torch.tensor(rows),
        )

    def _dummy_run(self, tokens: int) -> None:
        output = SchedulerOutput({f"_dummy_req_{index}": 1 for index in range(tokens)})
        self.execute_model(output, dummy_run=True)
        self.execute_model_state = None

    def execute_model(
        self, scheduler_output: SchedulerOutput, _intermediate: Any = None, dummy_run: bool = False
    ) -> None:
        with torch.inference_mode():
            if dummy_run:
                CONTEXT.slices = None
                count = scheduler_output.total_num_scheduled_tokens
                self.model(input_ids=torch.zeros(count, dtype=torch.int32), positions=torch.arange(count))
                return
            for name in scheduler_output.finished_req_ids:
                self.computed.pop(name, None)
            if not scheduler_output.num_scheduled_tokens:
                return
            batch = self.prepare_inputs(scheduler_output)
            hidden = self.model(input_ids=batch.input_ids, positions=batch.positions)
            self.execute_model_state = SimpleNamespace(input_batch=batch, hidden_states=hidden)

    def sample_tokens(self, _grammar: Any = None) -> None:
        state, self.execute_model_state = self.execute_model_state, None
        with torch.inference_mode():
            self.logits = self.model.compute_logits(state.hidden_states[state.input_batch.logits_indices])
            self.logits.fill_(float("-inf"))
