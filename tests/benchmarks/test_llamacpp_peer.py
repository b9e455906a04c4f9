"""The llama.cpp peer computes with the values of the quantised file, whatever format it is given."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.llamacpp_peer import write_unquantised


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantised_file_is_written_out_with_its_metadata_and_values(tmp_path: Path, dtype: str) -> None:
    weights = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)
    quantised = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_token_list(["a", "b"])
    writer.add_context_length(128)
    writer.add_tensor("blk.0.attn_q.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    write_unquantised(tmp_path / "small.gguf", tmp_path / "out.gguf", dtype)

    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert reader.fields["llama.context_length"].contents() == 128
    matrix, vector = reader.tensors
    expected = gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
    got = gguf.dequantize(matrix.data, matrix.tensor_type)
    np.testing.assert_allclose(got, expected, rtol=0 if dtype == "float32" else 2**-8)
    assert vector.tensor_type is gguf.GGMLQuantizationType.F32
