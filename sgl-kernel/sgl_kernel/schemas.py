"""The signature of every op, as SGLang 0.5.23's CPU path calls it.

Only this file defines these schemas. The C++ library and the torch twins supply kernels for the
CPU. A C++ kernel whose signature differs from its schema fails at import.
"""

NAMESPACE = "sgl_kernel"

ATTENTION = (
    (
        "decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, "
        "float v_scale, Tensor(c!) o, Tensor? k, Tensor? v, Tensor loc, Tensor attn_logits, "
        "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float "
        "logit_cap, bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks) "
        "-> ()"
    ),
    (
        "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, "
        "Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, Tensor "
        "req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, int "
        "max_extend_len, float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window, "
        "Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()"
    ),
    (
        "flash_attn_varlen_func(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor "
        "cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, bool causal=False) -> Tensor"
    ),
)

CACHE = (
    (
        "store_cache_cpu(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor "
        "indices, int row_dim) -> ()"
    ),
    (
        "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, Tensor "
        "src_loc) -> ()"
    ),
)

LINEAR = (
    "convert_weight_packed(Tensor weight) -> Tensor",
    "weight_packed_linear(Tensor x, Tensor weight, Tensor? bias, bool is_vnni) -> Tensor",
    "conv3d_embed_weight_pack(Tensor weight) -> Tensor",
    "conv3d_embed_cpu(Tensor x, Tensor weight, Tensor bias, bool is_vnni) -> Tensor",
)

ELEMENTWISE = (
    "rmsnorm_cpu(Tensor x, Tensor weight, float eps) -> Tensor",
    "fused_add_rmsnorm_cpu(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    "layernorm_cpu(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
    "silu_and_mul_cpu(Tensor x) -> Tensor",
    "gelu_and_mul_cpu(Tensor x) -> Tensor",
    "gelu_tanh_and_mul_cpu(Tensor x) -> Tensor",
    "fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()",
    (
        "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float "
        "eps, int head_dim) -> (Tensor, Tensor)"
    ),
    (
        "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight, Tensor "
        "k_weight, float eps, int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)"
    ),
    (
        "fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor qkvz, Tensor ba, int num_heads_qk, "
        "int num_heads_v, int head_qk, int head_v) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
)

ROTARY = (
    (
        "rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int head_size, Tensor "
        "cos_sin_cache, bool is_neox) -> (Tensor, Tensor)"
    ),
    (
        "multimodal_rotary_embedding_cpu(Tensor positions, Tensor(a!) query, Tensor(b!) key, int "
        "head_size, Tensor cos_sin_cache, int[]? mrope_section, bool mrope_interleaved, bool "
        "is_neox) -> ()"
    ),
    (
        "apply_rotary_pos_emb_cpu(Tensor query, Tensor key, Tensor cos, Tensor sin) -> (Tensor, "
        "Tensor)"
    ),
)

SPECULATIVE = (
    (
        "build_tree_kernel_efficient_cpu(Tensor parent_list, Tensor selected_index, Tensor "
        "seq_lens, Tensor(a!) tree_mask, Tensor(b!) positions, Tensor(c!) retrieve_index, "
        "Tensor(d!) retrieve_next_token, Tensor(e!) retrieve_next_sibling, int topk, int depth, "
        "int draft_token_num, int tree_mask_mode) -> ()"
    ),
    (
        "verify_tree_greedy_cpu(Tensor(a!) predicts, Tensor(b!) accept_index, Tensor(c!) "
        "accept_token_num, Tensor candidates, Tensor retrive_index, Tensor retrive_next_token, "
        "Tensor retrive_next_sibling, Tensor target_predict) -> ()"
    ),
    (
        "reconstruct_indices_from_tree_mask(Tensor tree_mask, Tensor seq_lens, Tensor(a!) "
        "positions, Tensor(b!) retrieve_index, Tensor(c!) retrieve_next_token, Tensor(d!) "
        "retrieve_next_sibling, int batch_size, int draft_token_num) -> ()"
    ),
)

SLOTS = (
    (
        "assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token, Tensor "
        "start_offset, Tensor end_offset, Tensor out_cache_loc, int pool_len) -> ()"
    ),
    (
        "assign_extend_cache_locs_cpu(Tensor req_pool_indices, Tensor req_to_token, Tensor "
        "start_offset, Tensor end_offset, Tensor(a!) out_cache_loc, int pool_len) -> ()"
    ),
    (
        "assign_draft_cache_locs_contiguous_cpu(Tensor req_pool_indices, Tensor req_to_token, "
        "Tensor seq_lens, Tensor(a!) out_cache_loc, int pool_len, int topk, int num_steps) -> ()"
    ),
    (
        "build_draft_decode_metadata_cpu(Tensor req_to_token, Tensor req_pool_indices, Tensor "
        "seq_lens, int topk, int num_steps, int pool_len) -> Tensor"
    ),
    (
        "fill_bonus_tokens_cpu(Tensor accept_tokens, Tensor accept_lens, Tensor(a!) bonus_tokens, "
        "int accept_stride) -> ()"
    ),
    (
        "fill_accept_out_cache_loc_cpu(Tensor accept_index, Tensor out_cache_loc, Tensor(a!) "
        "accept_out_cache_loc) -> ()"
    ),
    (
        "rotate_input_ids_cpu(Tensor(a!) input_ids, Tensor extend_start_loc, Tensor "
        "extend_seq_lens, Tensor topk_index, Tensor? select_index) -> ()"
    ),
)

RUNTIME = (
    "init_cpu_threads_env(str cpu_ids) -> ()",
    "initialize(int size, int rank) -> ()",
    "shm_allreduce(Tensor(a!) x, int op) -> ()",
    "shm_allgather(Tensor x, int dim) -> Tensor",
)

SCHEMAS = ATTENTION + CACHE + LINEAR + ELEMENTWISE + ROTARY + SPECULATIVE + SLOTS + RUNTIME


def op_name(schema: str) -> str:
    return schema.split("(", 1)[0]
