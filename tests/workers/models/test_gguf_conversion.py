import threading
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.models import gguf_conversion
from workers.models.gguf_conversion import content_fingerprint, convert_gguf
from workers.runners.errors import ModelNotFound, UnsupportedModel

MIB = 2**20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF and what follows")
    return file


def writer(monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]) -> None:
    """Put a writer in the place of transformers, which takes long and needs a true model."""
    monkeypatch.setattr(gguf_conversion, "_write_converted", lambda _file, folder, _on_progress: write(folder))


def test_a_second_call_finds_the_first_ones_folder(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Path] = []
    writer(monkeypatch, writes.append)
    first = convert_gguf(gguf_file, lambda _line: None)
    assert convert_gguf(gguf_file, lambda _line: None) == first
    assert len(writes) == 1
    assert first.parent == cache


def test_another_content_is_another_folder(cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer(monkeypatch, lambda folder: None)
    first = convert_gguf(gguf_file, lambda _line: None)
    gguf_file.write_bytes(b"GGUF and what else follows")
    assert convert_gguf(gguf_file, lambda _line: None) != first


def test_two_at_once_convert_once_and_both_get_the_whole_folder(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    writes: list[Path] = []

    def write(folder: Path) -> None:
        writes.append(folder)
        inside.set()
        assert go_on.wait(10)
        (folder / "config.json").write_text("{}")

    writer(monkeypatch, write)
    lines: list[str] = []
    waiting = threading.Event()
    folders: list[Path] = []

    def on_progress(line: str) -> None:
        lines.append(line)
        waiting.set()

    first = threading.Thread(target=lambda: folders.append(convert_gguf(gguf_file, lambda _line: None)))
    second = threading.Thread(target=lambda: folders.append(convert_gguf(gguf_file, on_progress)))
    first.start()
    assert inside.wait(10)
    second.start()
    assert waiting.wait(10)
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")], "nothing to be found half-written"
    go_on.set()
    first.join(10)
    second.join(10)
    assert len(writes) == 1
    assert len(set(folders)) == 1
    assert (folders[1] / "config.json").is_file()
    assert lines == ["Waiting for another process that converts the same model"]


def test_a_failed_conversion_leaves_nothing_and_the_next_one_runs(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    writer(monkeypatch, fail)
    with pytest.raises(OSError, match="disk full"):
        convert_gguf(gguf_file, lambda _line: None)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    writer(monkeypatch, lambda folder: None)
    assert convert_gguf(gguf_file, lambda _line: None).is_dir()


def test_what_a_killed_process_left_is_cleared(cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer(monkeypatch, lambda folder: None)
    target = convert_gguf(gguf_file, lambda _line: None)
    target.rmdir()
    left = cache / f".{target.name}.partial-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    convert_gguf(gguf_file, lambda _line: None)
    assert not left.exists()


def test_the_fingerprint_sees_size_head_and_samples(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as stream:
        stream.truncate(50 * MIB)
    prints = [content_fingerprint(file)]
    for position in (0, 15 * MIB, 48 * MIB + 7):
        with file.open("r+b") as stream:
            stream.seek(position)
            stream.write(b"x")
        prints.append(content_fingerprint(file))
    with file.open("ab") as stream:
        stream.write(b"x")
    prints.append(content_fingerprint(file))
    assert len(set(prints)) == len(prints)


def test_what_is_no_gguf_is_refused_in_one_line_that_names_the_file(cache: Path, gguf_file: Path) -> None:
    gguf_file.write_bytes(b"something else entirely, but long enough to be read as a header")
    with pytest.raises(UnsupportedModel, match=r"model\.gguf can't be read as GGUF") as caught:
        convert_gguf(gguf_file, lambda _line: None)
    assert "\n" not in str(caught.value)


HIDDEN, HEADS, KV_HEADS, LAYERS = 32, 4, 2, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "ab", "Ġ"]


def write_gguf(
    file: Path,
    *,
    architecture: str = "llama",
    without: str | None = None,
    quantised_as: gguf.GGMLQuantizationType | None = None,
) -> dict[str, np.ndarray]:
    """A tiny llama; `without` leaves one tensor out, `quantised_as` claims a format for another. The tensors."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(32)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    random = np.random.default_rng(1)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (32, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (32, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, 32),
        }
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        if name == "blk.1.ffn_up.weight" and quantised_as is not None:
            block, size = gguf.GGML_QUANT_SIZES[quantised_as]
            raw = np.zeros((*tensor.shape[:-1], tensor.shape[-1] // block * size), dtype=np.uint8)
            writer.add_tensor(name, raw, raw_dtype=quantised_as)
        elif name != without:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_becomes_a_folder_that_loads_with_the_same_weights(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    tensors = write_gguf(file)
    lines: list[str] = []
    folder = convert_gguf(file, lines.append)
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    assert not hasattr(model.config, "quantization_config")
    assert model.config.max_position_embeddings == 64
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for name, module in (
        ("token_embd.weight", model.model.embed_tokens),
        ("output_norm.weight", model.model.norm),
        ("blk.1.attn_v.weight", model.model.layers[1].self_attn.v_proj),
        ("blk.0.ffn_down.weight", model.model.layers[0].mlp.down_proj),
    ):
        assert torch.equal(module.weight, torch.from_numpy(tensors[name])), name
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer("abc")["input_ids"] == [6, 5]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert any("tensors" in line for line in lines)


def test_an_unknown_architecture_is_named(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, architecture="nonesuch")
    with pytest.raises(UnsupportedModel, match=r"tiny\.gguf .*architecture nonesuch is not supported") as caught:
        convert_gguf(file, lambda _line: None)
    assert "\n" not in str(caught.value)


def test_a_quantisation_that_cannot_be_read_is_named(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, quantised_as=gguf.GGMLQuantizationType.Q8_1)
    with pytest.raises(UnsupportedModel, match=r"tiny\.gguf: .*Q8_1 .*another quantisation") as caught:
        convert_gguf(file, lambda _line: None)
    assert "\n" not in str(caught.value)


def test_a_missing_tensor_is_named(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, without="blk.1.attn_k.weight")
    with pytest.raises(ModelNotFound, match=r"tiny\.gguf lacks 1 tensors .*layers\.1\.self_attn\.k_proj"):
        convert_gguf(file, lambda _line: None)
