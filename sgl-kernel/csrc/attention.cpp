// Paged attention for decode, extend and tree verify, and attention over packed sequences.
#include "attention_tiles.h"
#include "ops.h"

#include <ATen/ops/empty.h>

#include <numeric>

namespace sgl_kernel_cpu {
namespace {

void check(const char* op, const at::Tensor& q, const at::Tensor& o, const at::Tensor& k,
           const at::Tensor& v) {
  TORCH_CHECK(
      q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && k.size(2) == q.size(2) &&
          k.size(0) == v.size(0) && k.size(1) == v.size(1) && q.size(1) % k.size(1) == 0,
      op, ": expected q [T, H, D], k [slots, KH, D], v [slots, KH, Dv] with KH dividing H, got ",
      q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  CHECK_SAME_DTYPE(op, q, k);
  CHECK_SAME_DTYPE(op, q, v);
  CHECK_SAME_DTYPE(op, q, o);
  CHECK_SHAPE(op, o, {q.size(0), q.size(1), v.size(2)});
  TORCH_CHECK(
      q.stride(2) == 1 && k.stride(2) == 1 && v.stride(2) == 1 && o.stride(2) == 1, op,
      ": expected contiguous heads, got strides ", q.strides(), ", ", k.strides(), ", ",
      v.strides(), ", ", o.strides());
}

void run(const char* op, const Queries& queries, const at::Tensor& k, const at::Tensor& v,
         const std::vector<Sequence>& sequences) {
  check(op, queries.q, queries.o, k, v);
  for (const Sequence& s : sequences) {
    TORCH_CHECK(
        s.num_new >= 0 && s.num_new <= static_cast<int64_t>(s.slots.size()) && s.first_row >= 0 &&
            s.first_row + s.num_new <= queries.q.size(0),
        op, ": expected rows within ", queries.q.size(0), " queries and ", s.slots.size(),
        " keys, got ", s.num_new, " rows from ", s.first_row);
    for (const int64_t slot : s.slots) {
      TORCH_CHECK(slot >= 0 && slot < k.size(0), op, ": expected slots below ", k.size(0),
                  ", got ", slot);
    }
  }
  dispatch(op, queries.q, [&](auto type) {
    using T = decltype(type);
    const KeyValues<T> kv{k.const_data_ptr<T>(), v.const_data_ptr<T>(), k.stride(0), k.stride(1),
                          v.stride(0), v.stride(1), k.size(2), v.size(2)};
    attend(queries, kv, sequences);
  });
}

struct Batch {
  const at::Tensor& req_to_token; // int32 [R, pool_len]
  at::Tensor rows; // int64 [B]
  at::Tensor seq_lens; // int64 [B]
};

std::vector<int64_t> slots_of(const char* op, const Batch& batch, int64_t b) {
  const int64_t row = batch.rows.const_data_ptr<int64_t>()[b];
  const int64_t seq_len = batch.seq_lens.const_data_ptr<int64_t>()[b];
  const at::Tensor& table = batch.req_to_token;
  TORCH_CHECK(
      row >= 0 && row < table.size(0) && seq_len >= 0 && seq_len <= table.size(1), op,
      ": expected a row and a length within req_to_token ", table.sizes(), ", got ", row, " and ",
      seq_len);
  const int32_t* from = table.const_data_ptr<int32_t>() + row * table.stride(0);
  return std::vector<int64_t>(from, from + seq_len);
}

Batch batch_of(const char* op, const at::Tensor& req_to_token, const at::Tensor& rows,
               const at::Tensor& seq_lens) {
  TORCH_CHECK(
      req_to_token.scalar_type() == at::kInt && req_to_token.dim() == 2 &&
          req_to_token.stride(1) == 1,
      op, ": expected req_to_token int32 [R, pool_len] with contiguous rows, got ",
      req_to_token.scalar_type(), " ", req_to_token.sizes());
  CHECK_SHAPE(op, rows, seq_lens.sizes());
  return {req_to_token, as_int64(rows), as_int64(seq_lens)};
}

Queries queries_of(const char* op, const at::Tensor& q, const at::Tensor& o, const at::Tensor& k,
                   double sm_scale, double logit_cap, int64_t window, Visibility visibility,
                   const OptionalTensor& sinks) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3, op, ": expected q [T, H, D] and k [slots, KH, D], got ",
              q.sizes(), " and ", k.sizes());
  Queries out{q, o, k.size(1), {static_cast<float>(sm_scale), static_cast<float>(logit_cap)},
              window, visibility, {}};
  if (sinks) {
    CHECK_SHAPE(op, *sinks, {q.size(1)});
    const at::Tensor s = sinks->to(at::kFloat).contiguous();
    out.sinks.assign(s.const_data_ptr<float>(), s.const_data_ptr<float>() + s.numel());
  }
  return out;
}

void refuse_encoder(const char* op, bool is_cross_attn, const OptionalTensor& encoder_lens) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_cross_attn && !encoder_lens, op,
      ": cross attention is not supported: got an encoder-decoder model, expected a decoder");
}

} // namespace

void decode_attention_cpu(
    const at::Tensor& q,
    const at::Tensor& k_buffer,
    const at::Tensor& v_buffer,
    double k_scale,
    double v_scale,
    const at::Tensor& o,
    const OptionalTensor& k,
    const OptionalTensor& v,
    const at::Tensor& loc,
    const at::Tensor& attn_logits,
    const at::Tensor& req_to_token,
    const at::Tensor& req_pool_indices,
    const at::Tensor& seq_lens,
    double sm_scale,
    double logit_cap,
    bool is_cross_attn,
    int64_t sliding_window,
    const OptionalTensor& encoder_lens,
    const OptionalTensor& sinks) {
  constexpr const char* kOp = "decode_attention_cpu";
  refuse_encoder(kOp, is_cross_attn, encoder_lens);
  const Queries queries = queries_of(
      kOp, q, o, k_buffer, sm_scale, logit_cap, sliding_window, Visibility::kCausal, sinks);
  if (k && v) {
    store_cache_cpu(*k, *v, k_buffer, v_buffer, loc, k_buffer.size(1) * k_buffer.size(2));
  }
  const Batch batch = batch_of(kOp, req_to_token, req_pool_indices, seq_lens);
  TORCH_CHECK(q.size(0) == batch.rows.numel(), kOp, ": expected one query a request (",
              batch.rows.numel(), "), got ", q.size(0));
  std::vector<Sequence> sequences;
  for (int64_t b = 0; b < q.size(0); ++b) {
    sequences.push_back({slots_of(kOp, batch, b), 1, b, nullptr});
  }
  run(kOp, queries, k_buffer, v_buffer, sequences);
}

void extend_attention_cpu(
    const at::Tensor& q,
    const OptionalTensor& k,
    const OptionalTensor& v,
    const at::Tensor& o,
    const at::Tensor& k_buffer,
    const at::Tensor& v_buffer,
    double k_scale,
    double v_scale,
    const at::Tensor& req_to_token,
    const at::Tensor& req_pool_indices,
    const at::Tensor& seq_lens,
    const at::Tensor& extend_seq_lens,
    const at::Tensor& extend_start_loc,
    int64_t max_extend_len,
    double sm_scale,
    double logit_cap,
    bool is_cross_attn,
    int64_t sliding_window,
    const OptionalTensor& encoder_lens,
    const OptionalTensor& sinks,
    const OptionalTensor& tree_mask,
    bool is_causal) {
  constexpr const char* kOp = "extend_attention_cpu";
  refuse_encoder(kOp, is_cross_attn, encoder_lens);
  const Visibility visibility = tree_mask ? Visibility::kTree
      : is_causal                         ? Visibility::kCausal
                                          : Visibility::kAll;
  const Queries queries = queries_of(
      kOp, q, o, k_buffer, sm_scale, logit_cap, sliding_window, visibility, sinks);
  const Batch batch = batch_of(kOp, req_to_token, req_pool_indices, seq_lens);
  const at::Tensor lens = as_int64(extend_seq_lens);
  const at::Tensor starts = as_int64(extend_start_loc);
  CHECK_SHAPE(kOp, lens, batch.rows.sizes());
  CHECK_SHAPE(kOp, starts, batch.rows.sizes());
  at::Tensor mask;
  if (tree_mask) {
    TORCH_CHECK(tree_mask->scalar_type() == at::kBool, kOp, ": expected a bool tree_mask, got ",
                tree_mask->scalar_type());
    mask = tree_mask->contiguous();
  }
  std::vector<Sequence> sequences;
  int64_t mask_used = 0;
  for (int64_t b = 0; b < batch.rows.numel(); ++b) {
    const int64_t num_new = lens.const_data_ptr<int64_t>()[b];
    const bool* tree = nullptr;
    if (tree_mask) {
      TORCH_CHECK(mask_used + num_new * num_new <= mask.numel(), kOp,
                  ": expected a tree_mask of at least ", mask_used + num_new * num_new,
                  " elements, got ", mask.numel());
      tree = mask.const_data_ptr<bool>() + mask_used;
      mask_used += num_new * num_new;
    }
    sequences.push_back(
        {slots_of(kOp, batch, b), num_new, starts.const_data_ptr<int64_t>()[b], tree});
  }
  run(kOp, queries, k_buffer, v_buffer, sequences);
}

// Sequence b's keys are the rows from cu_seqlens_k[b] to cu_seqlens_k[b + 1] of k and v.
at::Tensor flash_attn_varlen_func(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    int64_t max_seqlen_q,
    int64_t max_seqlen_k,
    bool causal) {
  constexpr const char* kOp = "flash_attn_varlen_func";
  TORCH_CHECK(q.dim() == 3 && v.dim() == 3, kOp, ": expected q [T, H, D] and v [S, KH, Dv], got ",
              q.sizes(), " and ", v.sizes());
  at::Tensor o = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  const Queries queries = queries_of(
      kOp, q, o, k, 1.0 / std::sqrt(static_cast<double>(q.size(2))), 0.0, 0,
      causal ? Visibility::kCausal : Visibility::kAll, std::nullopt);
  const at::Tensor q_ends = as_int64(cu_seqlens_q);
  const at::Tensor k_ends = as_int64(cu_seqlens_k);
  CHECK_SHAPE(kOp, k_ends, q_ends.sizes());
  std::vector<Sequence> sequences;
  for (int64_t b = 0; b + 1 < q_ends.numel(); ++b) {
    const int64_t* rows = q_ends.const_data_ptr<int64_t>() + b;
    const int64_t* keys = k_ends.const_data_ptr<int64_t>() + b;
    TORCH_CHECK(0 <= keys[0] && keys[0] <= keys[1], kOp,
                ": expected ascending cu_seqlens_k, got ", keys[0], " before ", keys[1]);
    std::vector<int64_t> slots(keys[1] - keys[0]);
    std::iota(slots.begin(), slots.end(), keys[0]);
    sequences.push_back({std::move(slots), rows[1] - rows[0], rows[0], nullptr});
  }
  run(kOp, queries, k, v, sequences);
  return o;
}

} // namespace sgl_kernel_cpu
