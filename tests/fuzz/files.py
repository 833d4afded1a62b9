"""Kinds that are files: weights, model folders, traces, results; what is around a mutation stays whole."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fakes import checkpoints, results
from fakes import traces as built
from fakes.models import TEMPLATE
from fuzz.mutate import mutate, mutate_object
from rip.diverge.compare import diverge
from rip.diverge.present.report.build import write_report
from rip.diverge.result_folder import SUMMARY_FILE
from rip.fingerprint.model.digest_cache import DigestCache
from rip.fingerprint.model.folder_config import adapter_facts, folder_facts, folder_texts, sampling_defaults
from rip.fingerprint.model.gguf_metadata import read_header
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.model.template_probe import reads_clock
from rip.fingerprint.model.tensor_digests import LayoutFault, safetensors_layout
from rip.fingerprint.model.tokenizer import folder_tokenizer, gguf_tokenizer, tokenizer_texts
from rip.replay.request.from_trace import golden_from_trace, requests_from_trace
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput
from rip.schemas.trace import HEADER_KEY, Request

Files = dict[str, bytes]

# Weights


def safetensors(folder: Path) -> list[bytes]:
    """A small checkpoint, and one with metadata."""
    path = folder / "m.safetensors"
    return [
        checkpoints.write_safetensors(path, checkpoints.SMALL, about).read_bytes()
        for about in (None, {"a": "b"})
    ]


def mutate_safetensors(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Half of the time the header as JSON under its true length, else any bytes."""
    if random.random() < 0.5:
        return mutate(random, seeds)
    seed = random.choice(seeds)
    length = int.from_bytes(seed[:8], "little")
    header = json.loads(seed[8 : 8 + length])
    for _ in range(random.randrange(1, 4)):
        header = mutate_object(random, header)
    written = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(written).to_bytes(8, "little") + written + seed[8 + length :]


def read_safetensors(content: bytes, folder: Path) -> None:
    """Raises BadInput where the layout is faulty, as its callers say."""
    path = folder / "m.safetensors"
    path.write_bytes(content)
    try:
        safetensors_layout(path)
    except LayoutFault as fault:
        raise BadInput(str(fault), "") from None


def ggufs(folder: Path) -> list[bytes]:
    """With a tokenizer and a tensor, in both byte orders."""
    made = []
    for order in (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG):
        path = folder / "m.gguf"
        writer = gguf.GGUFWriter(path, "llama", endianess=order)
        writer.add_uint32("general.file_type", 3)
        writer.add_float32("llama.rope.freq_base", 100000.0)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b", "<s>"])
        writer.add_array("tokenizer.ggml.scores", [0.5, -1.25])
        writer.add_uint32("tokenizer.ggml.bos_token_id", 2)
        writer.add_chat_template("{{ messages }}")
        writer.add_tensor("t", np.zeros((2, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.append(path.read_bytes())
    return made


def read_gguf(content: bytes, folder: Path) -> None:
    """The header, and the tokenizer in it."""
    path = folder / "m.gguf"
    path.write_bytes(content)
    found = read_header(path)
    gguf_tokenizer(found.metadata)
    json.dumps(found.metadata)


# Model folders, as one JSON object: name → content


def _packed(files: Files) -> bytes:
    return json.dumps({name: content.decode("latin-1") for name, content in files.items()}).encode()


def _unpack(content: bytes, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, text in json.loads(content).items():
        (folder / name).write_bytes(text.encode("latin-1"))


def model_folders(folder: Path) -> list[Files]:
    """Configs, tokenizer, template, index and adapter around small weights, in both layouts."""
    weights = safetensors(folder)[0]
    tokens = {"a": 0, "b": 1, "<s>": 2}
    added = [{"id": 2, "content": "<s>", "special": True}]
    config = {
        "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 3,
        "max_position_embeddings": 64, "text_config": {"vocab_size": 3}, "rope_theta": 1e4,
        "quantization_config": {"quant_method": "gptq", "bits": 4},
    }  # fmt: skip
    objects = {
        "config.json": config,
        "generation_config.json": {"temperature": 0.5, "top_k": 20, "eos_token_id": [1, 2]},
        "tokenizer.json": {"model": {"type": "BPE", "vocab": tokens, "merges": []}, "added_tokens": added},
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "added_tokens_decoder": {"2": added[0]}},
        "special_tokens_map.json": {"eos_token": "b", "additional_special_tokens": ["<s>"]},
        "adapter_config.json": {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "org/m"},
        "model.safetensors.index.json": {"weight_map": dict.fromkeys(checkpoints.SMALL, "model.safetensors")},
    }
    written = {name: json.dumps(value).encode() for name, value in objects.items()}
    plain = {**written, "model.safetensors": weights, "chat_template.jinja": TEMPLATE.encode()}
    mistral = {
        "params.json": json.dumps(config).encode(),
        "consolidated.safetensors": weights,
        "tekken.json": b"{}",
    }
    return [plain, {name: one for name, one in plain.items() if not name.endswith("index.json")}, mistral]


def mutate_model_folder(random: Random, seeds: Sequence[Files]) -> bytes:
    """One or two of the files."""
    changed = dict(random.choice(seeds))
    for _ in range(random.randrange(1, 3)):
        name = random.choice(list(changed))
        changed[name] = mutate(random, [changed[name]])[:100_000]
    return _packed(changed)


def read_model_folder(content: bytes, folder: Path) -> None:
    """Everything of a folder that is read in rip's own process; templates are only searched."""
    folder = folder / "model"
    _unpack(content, folder)
    model = resolve(str(folder), accept_adapter=True)
    digests = {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (*model.tokenizer_files, *model.weight_files)
    }
    folder_facts(folder, model.adapters, digests, "verified")
    folder_texts(folder, model.adapters)
    adapter_facts(folder)
    sampling_defaults(folder)
    folder_tokenizer(model, digests, DigestCache(folder.parent / "journal"))
    tokenizer_texts(folder)
    template = folder / "chat_template.jinja"
    if template.exists():
        reads_clock(template.read_bytes().decode("utf-8", "replace"))


# Traces

_BASE = "base.parquet"


def traces(folder: Path) -> list[tuple[pa.Table, dict[str, Any], bytes]]:
    """Rows, header and bytes of a trace with sites, and of one that a server told."""
    made = []
    for sites, tells in ((built.llama_sites(1), True), ([], False)):
        rows = built.sequence(1, len(sites), prompt=3, decode=3)
        rows = rows if tells else built.as_a_server_tells(rows)
        asked = {"request_id": "r0", "prompt_token_ids": rows.tokens[:3].tolist(), "prompt_text": "<b>"}
        request = Request.of(Envelope.from_object(asked, "r0"))
        about = built.header(sites, requests=[request], results=[built.result("<script>alert(1)</script>")])
        path = built.write_trace(folder / _BASE, [rows], about)
        table = pq.read_table(path)
        made.append((table, json.loads(table.schema.metadata[HEADER_KEY]), path.read_bytes()))
    return made


def mutate_trace(random: Random, seeds: Sequence[tuple[pa.Table, dict[str, Any], bytes]]) -> bytes:
    """The header as JSON, a column, or the bytes of pages and of Parquet's own metadata."""
    table, header, content = random.choice(seeds)
    choice = random.random()
    if choice < 0.4:
        return mutate(random, [content])
    if choice < 0.8:
        for _ in range(random.randrange(1, 4)):
            header = mutate_object(random, header)
    else:
        table = _with_other_column(random, table)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({HEADER_KEY: text}), out, compression="NONE")
    return out.getvalue()


def _with_other_column(random: Random, table: pa.Table) -> pa.Table:
    at = random.randrange(table.num_columns)
    name = table.column_names[at]
    match random.randrange(5):
        case 0:
            return table.remove_column(at)
        case 1:
            return table.set_column(at, name, pa.nulls(table.num_rows, table.schema.field(at).type))
        case 2:
            return table.set_column(at, name, pa.array(["x"] * table.num_rows))
        case 3:
            return table.set_column(at, name, pa.array([-1, 2**31] * table.num_rows)[: table.num_rows])
        case _:
            rows = [random.randrange(table.num_rows) for _ in range(random.randrange(8))]
            return table.take(pa.array(rows, pa.int64()))


def read_trace(content: bytes, folder: Path) -> None:
    """Its requests and golden tokens, and the comparison with a whole one."""
    path, base = folder / "t.parquet", folder / _BASE
    if not base.exists():
        traces(folder)
    path.write_bytes(content)
    requests_from_trace(path)
    golden_from_trace(path)
    diverge(base, path, folder / "result", force=True)


# Results


def result_folders(folder: Path) -> list[bytes]:
    """The summary of a result; its tables are made where it is read."""
    results.write_result(folder / "result", results.Scene())
    return [(folder / "result" / SUMMARY_FILE).read_bytes()]


def mutate_result(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Mostly still a verdict: values are replaced, so that pages are made of them."""
    value = json.loads(random.choice(seeds))
    for _ in range(random.randrange(1, 4)):
        value = mutate_object(random, value)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def read_result(content: bytes, folder: Path) -> None:
    """Both forms of its report."""
    from fuzz.kinds import check_markup

    where = folder / "result"
    if not where.exists():
        result_folders(folder)
    (where / SUMMARY_FILE).write_bytes(content)
    for form, name in (("html", "r.html"), ("markdown", "r.md")):
        write_report(where, folder / name, form=form, title="<script>alert(1)</script>")  # type: ignore[arg-type]
        check_markup((folder / name).read_text("utf-8"))
