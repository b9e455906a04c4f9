from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.transformers_peer import PeerRequest, TransformersPeer
from workers.models.devices import Placement


def test_the_peer_generates_what_was_asked_greedily_in_padded_batches(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=list(range(40)),  # it would end almost at once, were end tokens not ignored
    )
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    prompts = [[50, 51, 52], [60], [70, 71, 72, 73, 74], [80, 81]]
    lengths = [4, 7, 5, 6]
    peer = TransformersPeer(tmp_path, Placement(torch.device("cpu"), torch.float32, torch.get_num_threads()))
    requests = [PeerRequest(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    figures, outputs = peer.run(requests, batch=3)
    model.generation_config.eos_token_id = None
    for prompt, length, output in zip(prompts, lengths, outputs, strict=True):
        want = model.generate(torch.tensor([prompt]), max_new_tokens=length, do_sample=False, pad_token_id=0)
        assert output == want[0, len(prompt) :].tolist()
    assert figures.output_tokens == sum(lengths)
    assert 0 < figures.ttft_mean_s <= figures.ttft_p95_s < figures.wall_s
    assert figures.output_tokens_s == figures.output_tokens / figures.wall_s
