// Copies between req_to_token and lists of slots, a few times per speculative round.
#include "ops.h"
#include "rows.h"

namespace sgl_kernel_cpu {
namespace {

// Calls copy(offset of the table's row, start column, end column, list entries used before) for
// every request.
template <typename F>
void for_each_span(const char* op, const at::Tensor& rows, const at::Tensor& table,
                   const at::Tensor& start_offset, const at::Tensor& end_offset,
                   const at::Tensor& list, const F& copy) {
  TORCH_CHECK(
      table.dim() == 2 && table.scalar_type() == at::kInt && table.is_contiguous(), op,
      ": expected a contiguous req_to_token int32 [R, pool_len], got ", table.scalar_type(), " ",
      table.sizes());
  CHECK_SHAPE(op, start_offset, rows.sizes());
  CHECK_SHAPE(op, end_offset, rows.sizes());
  const at::Tensor r = as_int64(rows), s = as_int64(start_offset), e = as_int64(end_offset);
  int64_t used = 0;
  for (int64_t b = 0; b < r.numel(); ++b) {
    const int64_t row = r.const_data_ptr<int64_t>()[b];
    const int64_t start = s.const_data_ptr<int64_t>()[b];
    const int64_t end = e.const_data_ptr<int64_t>()[b];
    TORCH_CHECK(
        row >= 0 && row < table.size(0) && start >= 0 && start <= end && end <= table.size(1) &&
            used + end - start <= list.numel(),
        op, ": expected a span within req_to_token ", table.sizes(), " and ", list.numel(),
        " slots, got row ", row, " columns ", start, " to ", end, " after ", used, " slots");
    copy(row * table.size(1), start, end, used);
    used += end - start;
  }
}

} // namespace

void assign_req_to_token_pool_cpu(
    const at::Tensor& req_pool_indices,
    const at::Tensor& req_to_token,
    const at::Tensor& start_offset,
    const at::Tensor& end_offset,
    const at::Tensor& out_cache_loc,
    int64_t pool_len) {
  constexpr const char* kOp = "assign_req_to_token_pool_cpu";
  const at::Tensor slots = as_int64(out_cache_loc);
  for_each_span(
      kOp, req_pool_indices, req_to_token, start_offset, end_offset, slots,
      [&](int64_t base, int64_t start, int64_t end, int64_t used) {
        const int64_t* from = slots.const_data_ptr<int64_t>() + used;
        std::copy(from, from + end - start, req_to_token.data_ptr<int32_t>() + base + start);
      });
}

void assign_extend_cache_locs_cpu(
    const at::Tensor& req_pool_indices,
    const at::Tensor& req_to_token,
    const at::Tensor& start_offset,
    const at::Tensor& end_offset,
    const at::Tensor& out_cache_loc,
    int64_t pool_len) {
  constexpr const char* kOp = "assign_extend_cache_locs_cpu";
  int64_t* to = written<int64_t>(kOp, "out_cache_loc", out_cache_loc);
  for_each_span(
      kOp, req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc,
      [&](int64_t base, int64_t start, int64_t end, int64_t used) {
        const int32_t* row = req_to_token.const_data_ptr<int32_t>() + base;
        std::copy(row + start, row + end, to + used);
      });
}

} // namespace sgl_kernel_cpu
