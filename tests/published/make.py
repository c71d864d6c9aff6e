#!/usr/bin/env python3
"""Makes the small models of this folder, in the layouts in which the published ones are shipped, by the packages that
make those: safetensors, flax (and msgpack, as EasyLM's StreamingCheckpointer calls them) and sentencepiece. Their numbers
are those of golden files, so that the tests know what such a model computes.

    python3 -m venv VENV    (outside of the tree)
    VENV/bin/pip install numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 msgpack==1.2.4 sentencepiece==0.2.3 jax==0.10.2 flax==0.12.8
    VENV/bin/python tests/published/make.py

The results are committed; run it again only to change them.
"""
import io
import json
import re
from pathlib import Path

import ml_dtypes
import msgpack
import numpy as np
import safetensors
import sentencepiece
from flax.serialization import to_bytes
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
TEXT = """The idea is to make the hidden state a machine learning model itself, and the update rule a step of self-supervised
learning. Since the hidden state is updated by training even on test sequences, our layers are called test-time training."""
SENTENCES = ["the hidden state is a model", "learning  to learn\nat test time", " the step", "Größe, 東京 und 🙂", "x"]


def golden(name):
    path = HERE.parent / "golden" / f"{name}.safetensors"
    with safetensors.safe_open(path, "numpy") as file:
        config = json.loads(file.metadata()["config"])
    params = {k.removeprefix("param."): v for k, v in load_file(path).items() if k.startswith("param.")}
    return config, params


def first_layer(config, params):
    config["num_hidden_layers"] = 1
    return config, {k: v for k, v in params.items() if not k.startswith("model.layers.1.")}


def write_torch_config(folder, config):
    """As TTTConfig.save_pretrained does: with fields that are of no concern here, without those at transformers' default."""
    ours = {k: v for k, v in config.items() if k != "tie_word_embeddings"}
    more = {"architectures": ["TTTForCausalLM"], "model_type": "ttt", "hidden_act": "silu", "initializer_range": 0.02,
            "max_position_embeddings": 2048, "pretraining_tp": 1, "scan_checkpoint_group_size": 0, "use_cache": False,
            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32", "transformers_version": "4.41.2"}
    (folder / "config.json").write_text(json.dumps(ours | more, indent=2, sort_keys=True) + "\n")


def make_torch(folder):
    """Two files and an index, in float32; the output is tied and left out."""
    config, params = golden("ttt_linear_transformer")
    write_torch_config(folder, config)
    weights = {}
    for i in range(2):
        name = f"model-0000{i + 1}-of-00002.safetensors"
        mine = {k: v.astype(np.float32) for k, v in params.items() if k.startswith("model.layers.1.") == (i == 1)}
        save_file(mine, folder / name, metadata={"format": "pt"})
        weights |= {k: name for k in mine}
    index = {"metadata": {"total_size": 4 * sum(v.size for v in params.values())}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def make_torch_half(folder):
    """One file, the layer's numbers in bfloat16 and the others in float16, with a copy of the tied output."""
    config, params = first_layer(*golden("ttt_linear_transformer"))
    write_torch_config(folder, config)
    half = {k: v.astype(ml_dtypes.bfloat16 if "layers" in k else np.float16) for k, v in params.items()}
    half["lm_head.weight"] = half["model.embed_tokens.weight"]
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})


# Names of ttt-lm-jax (ttt/models/{model,ttt_layer}.py). Some have a slash in one part: get_multi_head_params makes them so.
JAX_NAMES = {
    "seq_norm.weight": ("seq_norm", "kernel"), "ffn_norm.weight": ("ffn_norm", "kernel"),
    "mlp.gate_proj.weight": ("feed_forward", "w1", "kernel"), "mlp.down_proj.weight": ("feed_forward", "w2", "kernel"),
    "mlp.up_proj.weight": ("feed_forward", "w3", "kernel"), "conv.norm.weight": ("conv", "conv_norm", "kernel"),
    "conv.conv.weight": ("conv", "conv1", "kernel"), "conv.conv.bias": ("conv", "conv1", "bias"),
} | {f"seq_modeling_block.{torch}": ("seq_modeling_block", *jax) for torch, jax in {
    "q_proj.weight": ("wq", "kernel"), "k_proj.weight": ("wk", "kernel"), "v_proj.weight": ("wv", "kernel"),
    "o_proj.weight": ("wo", "kernel"), "g_proj.weight": ("wg", "kernel"),
    "conv_q.weight": ("conv_q", "kernel"), "conv_q.bias": ("conv_q", "bias"),
    "conv_k.weight": ("conv_k", "kernel"), "conv_k.bias": ("conv_k", "bias"),
    "W1": ("ttt_dense_0",), "b1": ("ttt_bias_0",), "W2": ("ttt_dense_1",), "b2": ("ttt_bias_1",),
    "ttt_norm_weight": ("ttt_norm/scale",), "ttt_norm_bias": ("ttt_norm/bias",),
    "learnable_ttt_lr_weight": ("learnable_ttt_lr/kernel",), "learnable_ttt_lr_bias": ("learnable_ttt_lr/bias",),
    "learnable_token_idx": ("learnable_token_idx",),
    "post_norm.weight": ("post_norm", "scale"), "post_norm.bias": ("post_norm", "bias")}.items()}


def to_jax(name, value):
    """A parameter of the PyTorch release under its name in the JAX release, in the layout of flax."""
    if name == "model.embed_tokens.weight":
        return ("model", "wte", "embedding"), value
    if name == "model.norm.weight":
        return ("model", "ln_f", "kernel"), value
    layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name).groups()
    key = ("model", "h", layer, *JAX_NAMES[rest])
    if rest == "seq_modeling_block.learnable_ttt_lr_weight":
        value = value.transpose(0, 2, 1)  # [heads, 1, in] to flax's [heads, in, 1]
    elif key[-1] == "kernel":  # nn.Dense [in, out], nn.Conv [kernel, 1, out]; of norms nothing changes
        value = value.transpose()
    return key, value


def stream(entries):
    """As StreamingCheckpointer.save_train_state_to_file."""
    out, packer = io.BytesIO(), msgpack.Packer()
    for key, value in entries:
        out.write(packer.pack((key, to_bytes(value))))
    return out.getvalue()


def bf16(value):
    return np.ascontiguousarray(value).astype(ml_dtypes.bfloat16)


def make_jax(folder):
    """Parameters alone, in float32, and no configuration beside them: nothing else is shipped."""
    _, params = golden("ttt_mlp_mamba")
    jax = [to_jax(*item) for item in sorted(params.items())]
    (folder / "streaming_params").write_bytes(stream([(k, np.ascontiguousarray(v, np.float32)) for k, v in jax]))


def make_jax_state(folder):
    """A whole training state in bfloat16, the default there, with a configuration in the fields of the JAX release (and
    a learning rate of its own)."""
    config, params = first_layer(*golden("ttt_linear_transformer"))
    jax = [to_jax(*item) for item in sorted(params.items())]
    entries = [(("step",), 7), (("opt_state", "0", "count"), np.int32(7)), (("opt_state", "0", "mu", "x"), np.zeros(3, bool))]
    entries += [(("params", "params", *k), bf16(v)) for k, v in jax]
    (folder / "streaming_train_state_7").write_bytes(stream(entries))
    keep = ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "rms_norm_eps",
            "tie_word_embeddings", "mini_batch_size", "rope_theta", "pre_conv")
    jax_config = {k: config[k] for k in keep} | {"seq_modeling_block": "ttt_linear_base", "ttt_base_lr": 0.5, "conv_width": 4,
                                                 "max_sequence_length": 2048, "model_type": "", "use_cache": True}
    (folder / "config.json").write_text(json.dumps(jax_config, indent=2) + "\n")


def make_tokenizer(path, vocabulary, **more):
    """A tokenizer.model, and beside it what sentencepiece itself makes of some sentences."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_writer=model, vocab_size=vocabulary, model_type="bpe",
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, **more)
    path.write_bytes(model.getvalue())
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    expected = [{"text": s, "ids": [sp.bos_id()] + sp.encode(s), "decoded": sp.decode(sp.encode(s))} for s in SENTENCES]
    path.with_name("encodings.json").write_text("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in expected) + "\n]\n")


if __name__ == "__main__":
    makers = {"pytorch": make_torch, "pytorch_half": make_torch_half, "jax": make_jax, "jax_train_state": make_jax_state}
    for name, make in makers.items():
        (HERE / name).mkdir(exist_ok=True)
        make(HERE / name)
    # As Llama 2's: unknown characters as bytes, digits apart. The model in pytorch/ has 61 tokens, too few for bytes.
    make_tokenizer(HERE / "pytorch" / "tokenizer.model", 61)
    (HERE / "tokenizer").mkdir(exist_ok=True)
    make_tokenizer(HERE / "tokenizer" / "tokenizer.model", 330, byte_fallback=True, split_digits=True)
