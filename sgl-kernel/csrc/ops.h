// Declares every C++ op of schemas.py. The twins in sgl_kernel/twins document the shapes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>
#include <tuple>

namespace sgl_kernel_cpu {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// norm.cpp
Tensor rmsnorm_cpu(const Tensor& x, const Tensor& weight, double eps);
void fused_add_rmsnorm_cpu(
    const Tensor& x, const Tensor& residual, const Tensor& weight, double eps);
Tensor layernorm_cpu(
    const Tensor& x, const Tensor& weight, const OptionalTensor& bias, double eps);
Tensor silu_and_mul_cpu(const Tensor& x);

// linear.cpp
Tensor convert_weight_packed(const Tensor& weight);
Tensor weight_packed_linear(
    const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool is_vnni);
Tensor conv3d_embed_weight_pack(const Tensor& weight);
Tensor conv3d_embed_cpu(
    const Tensor& x, const Tensor& weight, const Tensor& bias, bool is_vnni);

// rotary.cpp
std::tuple<Tensor, Tensor> rotary_embedding_cpu(
    const Tensor& positions,
    const Tensor& query,
    const Tensor& key,
    int64_t head_size,
    const Tensor& cos_sin_cache,
    bool is_neox);
void multimodal_rotary_embedding_cpu(
    const Tensor& positions,
    const Tensor& query,
    const Tensor& key,
    int64_t head_size,
    const Tensor& cos_sin_cache,
    at::OptionalIntArrayRef mrope_section,
    bool mrope_interleaved,
    bool is_neox);
std::tuple<Tensor, Tensor> apply_rotary_pos_emb_cpu(
    const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin);

// cache.cpp
void store_cache_cpu(
    const Tensor& k,
    const Tensor& v,
    const Tensor& k_cache,
    const Tensor& v_cache,
    const Tensor& indices,
    int64_t row_dim);
void copy_all_layer_kv_cache_cpu(
    const Tensor& data_ptrs,
    const Tensor& strides,
    const Tensor& tgt_loc,
    const Tensor& src_loc);

// attention.cpp
void decode_attention_cpu(
    const Tensor& q,
    const Tensor& k_buffer,
    const Tensor& v_buffer,
    double k_scale,
    double v_scale,
    const Tensor& o,
    const OptionalTensor& k,
    const OptionalTensor& v,
    const Tensor& loc,
    const Tensor& attn_logits,
    const Tensor& req_to_token,
    const Tensor& req_pool_indices,
    const Tensor& seq_lens,
    double sm_scale,
    double logit_cap,
    bool is_cross_attn,
    int64_t sliding_window,
    const OptionalTensor& encoder_lens,
    const OptionalTensor& sinks);
void extend_attention_cpu(
    const Tensor& q,
    const OptionalTensor& k,
    const OptionalTensor& v,
    const Tensor& o,
    const Tensor& k_buffer,
    const Tensor& v_buffer,
    double k_scale,
    double v_scale,
    const Tensor& req_to_token,
    const Tensor& req_pool_indices,
    const Tensor& seq_lens,
    const Tensor& extend_seq_lens,
    const Tensor& extend_start_loc,
    int64_t max_extend_len,
    double sm_scale,
    double logit_cap,
    bool is_cross_attn,
    int64_t sliding_window,
    const OptionalTensor& encoder_lens,
    const OptionalTensor& sinks,
    const OptionalTensor& tree_mask,
    bool is_causal);
Tensor flash_attn_varlen_func(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& cu_seqlens_q,
    const Tensor& cu_seqlens_k,
    int64_t max_seqlen_q,
    int64_t max_seqlen_k,
    bool causal);

// eagle_tree.cpp
void build_tree_kernel_efficient_cpu(
    const Tensor& parent_list,
    const Tensor& selected_index,
    const Tensor& seq_lens,
    const Tensor& tree_mask,
    const Tensor& positions,
    const Tensor& retrieve_index,
    const Tensor& retrieve_next_token,
    const Tensor& retrieve_next_sibling,
    int64_t topk,
    int64_t depth,
    int64_t draft_token_num,
    int64_t tree_mask_mode);
void verify_tree_greedy_cpu(
    const Tensor& predicts,
    const Tensor& accept_index,
    const Tensor& accept_token_num,
    const Tensor& candidates,
    const Tensor& retrive_index,
    const Tensor& retrive_next_token,
    const Tensor& retrive_next_sibling,
    const Tensor& target_predict);
void reconstruct_indices_from_tree_mask(
    const Tensor& tree_mask,
    const Tensor& seq_lens,
    const Tensor& positions,
    const Tensor& retrieve_index,
    const Tensor& retrieve_next_token,
    const Tensor& retrieve_next_sibling,
    int64_t batch_size,
    int64_t draft_token_num);

// slots.cpp
void assign_req_to_token_pool_cpu(
    const Tensor& req_pool_indices,
    const Tensor& req_to_token,
    const Tensor& start_offset,
    const Tensor& end_offset,
    const Tensor& out_cache_loc,
    int64_t pool_len);
void assign_extend_cache_locs_cpu(
    const Tensor& req_pool_indices,
    const Tensor& req_to_token,
    const Tensor& start_offset,
    const Tensor& end_offset,
    const Tensor& out_cache_loc,
    int64_t pool_len);

} // namespace sgl_kernel_cpu
