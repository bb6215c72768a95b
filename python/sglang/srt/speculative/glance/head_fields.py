"""What a head's config.json may say, field by field; ``head_config.py`` applies the tables."""

DFLASH_KEYS = {
    "target_layer_ids",
    "mask_token",
    "mask_token_id",
    "block_size",
    "num_target_layers",
}
# What GLANCE's trainer adds to the format.
GLANCE_KEYS = {"target_fingerprint"}
# Variants of the DFlash format that change what the head computes, each with the value that changes
# nothing. This release does not run them.
VARIANTS = {
    "projector_type": None,
    "conv_kernel_size": 0,
    "conv_group_size": 0,
    "selector_rank": 0,
    "selector_top_k": 0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": 0.0,
    "attention_sink_bias": False,
    "attention_value_scale": None,
    "shift_label": False,
    "input_embedding_scale": 1.0,
    "gru_hidden_dim": 0,
    "emb_dim": 0,
    # Other exporters say here what the layers attend to.
    "swa_window_size": None,
    "use_swa": False,
    "causal": False,
    "attention_mode": "gqa",
    # Layers that some heads have and a plain one borrows.
    "has_embed_tokens": False,
    "has_lm_head": False,
}
# The same, of fields that stand beside ``dflash_config``.
LAYER_VARIANTS = {
    "is_causal": False,
    "use_gemma_norm": False,
    "partial_rotary_factor": 1.0,
    "rope_is_neox_style": True,
    "is_neox_style": True,
    "hidden_act": "silu",
    "quantization_config": None,
    "compression_config": None,
    "mlp_bias": False,
}
# Read by :func:`parse_head`, by the checks of the weights, or by SGLang's draft model.
USED = DFLASH_KEYS | {
    "dflash_config",
    "glance_config",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "attention_bias",
    "vocab_size",
    "draft_vocab_size",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
}
# What transformers, trainers and exporters write and no head's pass reads, by the reason.
HARMLESS = {
    "training reads it, serving does not": {"attention_dropout", "initializer_range"},
    "embedding and LM head are the target's": {"tie_word_embeddings"},
    "the target says which token ends an answer": {
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
    },
    "says where the file comes from": {
        *("transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "auto_map"),
        *("_attn_implementation_autoset", "attn_implementation"),
    },
    "read by transformers' own models and their `generate`": {
        *("use_cache", "output_attentions", "output_hidden_states", "return_dict"),
        *("chunk_size_feed_forward", "is_decoder", "is_encoder_decoder", "problem_type"),
        *("id2label", "label2id", "pretraining_tp", "torchscript"),
    },
}
# Config classes of which SGLang's draft model is built alike: what it reads must be given, since
# the defaults of the two differ.
MODEL_TYPES = ("qwen3", "qwen3_vl_text")
SIZES = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings"),
)
MAX_WINDOW_LAYERS = 28  # the default of transformers' Qwen3Config
