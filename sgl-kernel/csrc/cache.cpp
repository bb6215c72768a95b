// Writes to the KV cache, and copies between its slots.
#include "ops.h"
#include "rows.h"

namespace sgl_kernel_cpu {
namespace {

constexpr const char* kStore = "store_cache_cpu";

// [T, ...] with each token's elements contiguous: x itself, or a contiguous copy.
at::Tensor token_rows(const at::Tensor& x, int64_t row_dim) {
  TORCH_CHECK(
      x.dim() >= 2 && x.numel() == x.size(0) * row_dim, kStore, ": expected [T, ...] with ",
      row_dim, " elements a token, got ", x.sizes());
  return x.numel() == 0 || x[0].is_contiguous() ? x : x.contiguous();
}

void scatter(const at::Tensor& rows, const at::Tensor& cache, const int64_t* slots,
             int64_t row_dim) {
  CHECK_SAME_DTYPE(kStore, cache, rows);
  TORCH_CHECK(
      cache.is_contiguous() && cache.numel() % row_dim == 0, kStore,
      ": expected a contiguous cache of rows of ", row_dim, ", got ", cache.sizes(),
      " with strides ", cache.strides());
  const int64_t num_slots = cache.numel() / row_dim;
  const int64_t row_bytes = row_dim * cache.element_size();
  const char* from = static_cast<const char*>(rows.const_data_ptr());
  char* to = static_cast<char*>(cache.data_ptr());
  for (int64_t i = 0; i < rows.size(0); ++i) {
    TORCH_CHECK(slots[i] >= 0 && slots[i] < num_slots, kStore, ": expected slots below ",
                num_slots, ", got ", slots[i]);
    std::memcpy(to + slots[i] * row_bytes, from + i * rows.stride(0) * cache.element_size(),
                row_bytes);
  }
}

} // namespace

void store_cache_cpu(
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& k_cache,
    const at::Tensor& v_cache,
    const at::Tensor& indices,
    int64_t row_dim) {
  const at::Tensor slots = as_int64(indices);
  const at::Tensor k_rows = token_rows(k, row_dim);
  const at::Tensor v_rows = token_rows(v, row_dim);
  TORCH_CHECK(
      k.size(0) == slots.numel() && v.size(0) == slots.numel(), kStore, ": expected ",
      slots.numel(), " rows, got ", k.size(0), " of k and ", v.size(0), " of v");
  scatter(k_rows, k_cache, slots.const_data_ptr<int64_t>(), row_dim);
  scatter(v_rows, v_cache, slots.const_data_ptr<int64_t>(), row_dim);
}

void copy_all_layer_kv_cache_cpu(
    const at::Tensor& data_ptrs,
    const at::Tensor& strides,
    const at::Tensor& tgt_loc,
    const at::Tensor& src_loc) {
  constexpr const char* kOp = "copy_all_layer_kv_cache_cpu";
  TORCH_CHECK(
      data_ptrs.scalar_type() == at::kUInt64 && data_ptrs.is_contiguous(), kOp,
      ": expected contiguous uint64 addresses, got ", data_ptrs.scalar_type());
  CHECK_SHAPE(kOp, strides, data_ptrs.sizes());
  CHECK_SHAPE(kOp, src_loc, tgt_loc.sizes());
  const at::Tensor widths = as_int64(strides);
  const at::Tensor targets = as_int64(tgt_loc);
  const at::Tensor sources = as_int64(src_loc);
  const int64_t count = targets.numel();
  const int64_t* to = targets.const_data_ptr<int64_t>();
  const int64_t* from = sources.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(to[i] >= 0 && from[i] >= 0, kOp, ": expected slots >= 0, got a move from ",
                from[i], " to ", to[i]);
  }
  const uint64_t* addresses = data_ptrs.const_data_ptr<uint64_t>();
  const int64_t* width = widths.const_data_ptr<int64_t>();
  const int64_t row = widths.numel() == 0 ? 0 : width[0];
  at::parallel_for(0, data_ptrs.numel(), grain_of(count * row), [&](int64_t begin, int64_t end) {
    std::vector<char> rows;
    for (int64_t b = begin; b < end; ++b) {
      char* base = reinterpret_cast<char*>(addresses[b]);
      rows.resize(count * width[b]);
      // A target slot may be the source of another copy, so all rows are read first.
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(rows.data() + i * width[b], base + from[i] * width[b], width[b]);
      }
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(base + to[i] * width[b], rows.data() + i * width[b], width[b]);
      }
    }
  });
}

} // namespace sgl_kernel_cpu
