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
    "swa_window_size": None,
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
# What transformers and trainers write that no head's pass reads: training, generation, provenance.
# Embedding and LM head are the target's, tied or not.
HARMLESS = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "tie_word_embeddings",
    "attention_dropout",
    "transformers_version",
    "use_cache",
}
# Kinds of ``rope_scaling`` that SGLang's draft model computes as transformers does.
ROPE_TYPES = ("default", "linear", "yarn", "llama3")
MAX_WINDOW_LAYERS = 28  # the default of transformers' Qwen3Config
