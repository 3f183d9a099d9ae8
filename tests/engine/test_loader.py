"""Weights from disk: equal to transformers' for every family and format, and every difference told at once (F60)."""

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, make_tiny

from sgnb.engine import model_store
from sgnb.engine.layers.basic import inverse_frequencies
from sgnb.engine.model_executor.loader import open_weights
from sgnb.engine.model_executor.model_config import config_from_folder
from sgnb.engine.model_executor.transformers_runner import build_model
from sgnb.engine.model_store import ModelPath
from sgnb.errors import ModelFileError

HF_TO_GGUF = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top or name == "lm_head.weight":
        return top.get(name, "output.weight")
    _, _, layer, *middle, kind = name.split(".")
    return f"blk.{layer}.{HF_TO_GGUF['.'.join(middle)]}.{kind}"


def permute(w, heads):
    """Row order of q and k in llama files, as the converter of llama.cpp writes it."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, model, arch, quant=gguf.GGMLQuantizationType.F32, change=None, keys=None):
    """A transformers model as a GGUF file; ``change(tensors)`` may tamper with the name → array table."""
    c = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    if arch == "qwen3":
        writer.add_key_length(c.head_dim)
    for key, value in (keys or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array = value.float().numpy()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = permute(array, c.num_attention_heads if ".q_proj." in name else c.num_key_value_heads)
        tensors[gguf_name(name)] = array
    if change:
        change(tensors)
    for name, array in tensors.items():
        kind = quant if array.ndim == 2 and name != "token_embd.weight" else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(array), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelPath(path.stem, path, "gguf")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """family → (folder, transformers model), made once."""
    made = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        made[family] = (folder, make_tiny(folder, family))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_weights_and_config(tiny, family):
    folder, model = tiny[family]
    seen = []
    with open_weights(model_store.resolve(str(folder)), lambda *a: seen.append(a)) as weights:
        state = model.state_dict()
        assert set(weights.config.weight_shapes()) == set(state)
        for name in state:
            assert torch.equal(weights.dense(name, torch.float32), state[name])
        assert weights.config.head_dim == (32 if family == "qwen3" else 16)
        assert weights.config.qkv_bias == (family == "qwen2") and weights.config.qk_norm == (
            family == "qwen3"
        )
    assert seen[-1][0] == "weights" and seen[-1][1] == seen[-1][2] == sum(
        4 * t.numel() for t in state.values()
    )
    assert [s[1] for s in seen] == sorted(s[1] for s in seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_safetensors(tmp_path, dtype):
    model = make_tiny(tmp_path / "a").to(dtype)
    model.save_pretrained(tmp_path / "b")
    with open_weights(ModelPath("m", tmp_path / "b", "safetensors")) as weights:
        for name, value in model.state_dict().items():
            assert torch.equal(weights.dense(name, torch.float32), value.float())


def test_sharded_folder(tmp_path):
    model = make_tiny(tmp_path / "a")
    model.save_pretrained(tmp_path / "b", max_shard_size="100kB")
    files = sorted(tmp_path.glob("b/*.safetensors"))
    assert len(files) > 1
    with open_weights(model_store.resolve(str(tmp_path / "b"))) as weights:
        for name, value in model.state_dict().items():
            assert torch.equal(weights.dense(name, torch.float32), value)
    files[1].unlink()
    with pytest.raises(ModelFileError, match=f"missing: {files[1].name}"):
        model_store.resolve(str(tmp_path / "b"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf_gives_the_weights_it_was_written_from(tmp_path, tiny, family):
    model = tiny[family][1]
    path = write_gguf(tmp_path / "m.gguf", model, family)
    with open_weights(path) as weights:
        for name, value in model.state_dict().items():
            assert torch.equal(weights.dense(name, torch.float32), value), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_gguf_types_end_up_as_the_package_reads_them(tmp_path, tiny, kind):
    model = tiny["llama"][1]
    quant = getattr(gguf.GGMLQuantizationType, kind)
    with open_weights(write_gguf(tmp_path / "m.gguf", model, "llama", quant)) as weights:
        for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"):
            value = model.state_dict()[name].numpy()
            heads = 2 if "k_proj" in name else None
            stored = gguf.quants.quantize(permute(value, heads) if heads else value, quant)
            expected = np.asarray(gguf.quants.dequantize(stored, quant), np.float32).reshape(value.shape)
            found = weights.dense(name, torch.float32).numpy()
            np.testing.assert_array_equal(permute(found, heads) if heads else found, expected)
            assert weights.is_q4(name) == kind.startswith("Q4")


def test_F60_all_differences_are_listed_at_once(tmp_path, tiny):
    def change(tensors):
        del tensors["blk.1.attn_k.weight"]
        del tensors["output_norm.weight"]
        tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"][:64]
        tensors["token_embd.weight"] = tensors["token_embd.weight"][:290]
        tensors["blk.7.attn_q.weight"] = tensors["blk.0.attn_q.weight"]
        tensors["vision.weight"] = tensors["blk.0.attn_q.weight"]

    path = write_gguf(tmp_path / "m.gguf", tiny["llama"][1], "llama", change=change)
    with pytest.raises(ModelFileError) as caught:
        open_weights(path)
    text = str(caught.value)
    assert "6 differences" in text
    for words in (
        "missing tensor 'model.layers.1.self_attn.k_proj.weight' [32, 64]",
        "missing tensor 'model.norm.weight'",
        "'model.layers.0.mlp.up_proj.weight': expected [96, 64], found [64, 64]",
        "'model.embed_tokens.weight': expected [300, 64], found [290, 64] (vocabulary size against embedding)",
        "extra tensor 'blk.7.attn_q.weight'",
        "extra tensor 'vision.weight'",
    ):
        assert words in text


def test_tied_weights(tmp_path):
    model = make_tiny(tmp_path / "a", tie_word_embeddings=True)
    with open_weights(model_store.resolve(str(tmp_path / "a"))) as weights:
        assert weights.config.tied and "lm_head.weight" not in weights.config.weight_shapes()
    with open_weights(write_gguf(tmp_path / "m.gguf", model, "llama")) as weights:
        assert weights.config.tied


def test_untied_config_without_a_head_is_refused(tmp_path):
    make_tiny(tmp_path / "a", tie_word_embeddings=True)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelFileError, match=r"missing tensor 'lm_head\.weight'"):
        open_weights(model_store.resolve(str(tmp_path / "a")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            ["'GPT2LMHeadModel'", "supported", "LlamaForCausalLM", "Qwen3ForCausalLM"],
        ),
        ({"architectures": None}, ["architecture None"]),
        ({"quantization_config": {"bits": 4}}, ["quantised"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "1..1024"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers", "'2'"]),
        ({"num_key_value_heads": 3}, ["4 query heads"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ["rope", "'yarn'", "llama3"]),
        ({"rope_parameters": [1]}, ["rope"]),
        ({"sliding_window": 16, "architectures": ["MistralForCausalLM"]}, ["sliding_window 16"]),
    ],
)
def test_configs_that_cannot_run_are_refused_by_name(tiny, tmp_path, change, words):
    shutil.copytree(tiny["llama"][0], tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelFileError) as caught:
        open_weights(model_store.resolve(str(tmp_path / "m")))
    for word in [*words, "config.json"]:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_config_that_is_no_config(tiny, tmp_path, text):
    shutil.copytree(tiny["llama"][0], tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_weights(ModelPath("m", tmp_path / "m", "safetensors"))


def test_gguf_of_another_architecture(tmp_path, tiny):
    path = write_gguf(tmp_path / "m.gguf", tiny["llama"][1], "gemma3")
    with pytest.raises(ModelFileError, match=r"'gemma3' is not supported; supported: llama, qwen2, qwen3"):
        open_weights(path)


@pytest.mark.loader
def test_B185_gguf_that_says_it_is_a_part(tmp_path, tiny):
    class Count(float):
        pass

    path = write_gguf(tmp_path / "m.gguf", tiny["llama"][1], "llama", keys={"split.count": 2.0})
    with pytest.raises(ModelFileError, match="part of a split model"):
        open_weights(path)


# ---------------------------------------------------------------- safetensors headers


def with_header(folder, change):
    """Rewrite the header of model.safetensors; ``change`` gets the parsed header and returns bytes or nothing."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    out = change(header)
    text = out if isinstance(out, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + n :])


NORM = "model.norm.weight"


@pytest.mark.loader
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h[NORM].update(shape=[2**62]), [NORM, "needs"]),
        (lambda h: h[NORM].update(data_offsets=[0, 256]), ["expected from byte", "overlap"]),
        (lambda h: h[NORM].update(data_offsets=[-256, 0]), [NORM, "non-negative"]),
        (lambda h: h[NORM].update(data_offsets=[2**64 - 256, 2**64]), [NORM, "beyond the file"]),
        (lambda h: h[NORM].update(shape=[True]), [NORM]),
        (lambda h: h[NORM].update(dtype="F8_E4M3"), [NORM, "F8_E4M3", "supported: F32, F16, BF16"]),
        (lambda h: h[NORM].pop("dtype"), [NORM, "expected dtype"]),
        (lambda h: h.update({NORM: 3}), [NORM, "expected dtype"]),
        (lambda h: h.pop("lm_head.weight") and None, ["expected from byte", "hole"]),
        (lambda h: b"[]", ["expected an object"]),
        (lambda h: b"{" * 1000, ["JSON"]),
        (lambda h: b'{"a":' * 50_000, ["JSON"]),
        (lambda h: b'{"a": 1, "a": 2}', ["'a'", "twice"]),
        (lambda h: b"\xff\xfe", ["JSON"]),
    ],
)
def test_B183_safetensors_headers_that_lie(tiny, tmp_path, change, words):
    shutil.copytree(tiny["llama"][0], tmp_path / "m")
    with_header(tmp_path / "m", change)
    with pytest.raises(ModelFileError) as caught:
        open_weights(model_store.resolve(str(tmp_path / "m")))
    for word in [*words, "model.safetensors"]:
        assert word in str(caught.value)


def test_F58_safetensors_truncated_anywhere(tiny, tmp_path):
    shutil.copytree(tiny["llama"][0], tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(200), *range(200, len(whole), len(whole) // 100)]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            open_weights(model_store.resolve(str(tmp_path / "m")))


# ---------------------------------------------------------------- rope


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 500000.0,
        },
    ],
)
def test_rope_scaling_is_that_of_transformers(tmp_path, rope):
    model = make_tiny(tmp_path / "m", rope_parameters=rope)
    config = config_from_folder(tmp_path / "m")
    torch.testing.assert_close(
        inverse_frequencies(config), model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0
    )


def test_old_spelling_of_rope_scaling(tmp_path):
    make_tiny(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(
        json.dumps(config | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    )
    found = config_from_folder(tmp_path / "m")
    assert found.rope_theta == 5e5 and found.rope_scaling.factor == 2.0


def test_gguf_rope_factors(tmp_path, tiny):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        tiny["llama"][1],
        "llama",
        change=lambda t: t.update({"rope_freqs.weight": factors}),
    )
    with open_weights(path) as weights:
        assert weights.config.rope_factors == tuple(factors.tolist())
        assert torch.equal(
            build_model(weights, torch.float32).model.rotary_emb.inv_freq, inverse_frequencies(weights.config)
        )


def test_reference_model_equals_the_original(tiny):
    ids = torch.arange(5, 45)[None]
    for family in FAMILIES:
        folder, model = tiny[family]
        with open_weights(model_store.resolve(str(folder))) as weights, torch.inference_mode():
            assert torch.equal(build_model(weights, torch.float32)(ids).logits, model(ids).logits)
