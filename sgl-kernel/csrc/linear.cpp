// x [T, K] times weight [N, K] transposed, plain row-major weights widened on the fly.
//
// Every output element is one chain of fused multiply-adds over k with one accumulator vector,
// summed over its lanes at the end, whatever the tile it is computed in. So a row's result does not
// depend on how many rows share the call, and verifying a tree equals decoding bit for bit.
#include "ops.h"
#include "rows.h"

#include <ATen/cpu/Utils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/Unroll.h>

namespace sgl_kernel_cpu {
namespace {

// Rows whose float copies stay in the L2 cache while the weight streams by once.
constexpr int64_t kRowBlock = 32;
constexpr int64_t kColumnsPerTask = 16;

// The one place where row invariance may be given up: where AMX or AVX-512-bf16 exists, oneDNN is
// several times faster on a prefill. Decoding and verifying stay below this many rows.
bool through_onednn(int64_t num_rows, const at::Tensor& weight) {
  constexpr int64_t kMinRows = 1024;
  if (num_rows < kMinRows || weight.scalar_type() != at::kBFloat16) {
    return false;
  }
  static const bool has_bf16_units = [] {
    for (const auto& [name, value] : at::cpu::get_cpu_capabilities()) {
      if ((name == "avx512_bf16" || name == "amx_tile") && value.isBool() && value.toBool()) {
        return true;
      }
    }
    return false;
  }();
  return has_bf16_units;
}

template <typename T>
struct Problem {
  const float* x; // [rows of the block, ldx], padded with zeros
  int64_t ldx;
  const T* weight; // [N, K]
  const float* bias; // [N] or null
  T* out; // [rows of the block, N]
  int64_t num_columns;
  int64_t depth; // K
};

// Every loop over the accumulators is unrolled by force, to keep them in registers.
template <typename T, int R, int C>
void tile(const Problem<T>& p, int64_t row, int64_t column) {
  const float* x = p.x + row * p.ldx;
  const T* w = p.weight + column * p.depth;
  Reg acc[R * C];
  c10::ForcedUnroll<R * C>{}([&](auto i) { acc[i] = Vec(0.f); });
  int64_t k = 0;
  for (; k + kLanes <= p.depth; k += kLanes) {
    Reg wk[C];
    c10::ForcedUnroll<C>{}([&](auto c) { wk[c] = load(w + c * p.depth + k); });
    c10::ForcedUnroll<R>{}([&](auto r) {
      const Reg xk = load(x + r * p.ldx + k);
      c10::ForcedUnroll<C>{}([&](auto c) {
        acc[r * C + c] = fmadd(xk, wk[c], acc[r * C + c]);
      });
    });
  }
  if (k < p.depth) {
    c10::ForcedUnroll<C>{}([&](auto c) {
      const Reg wk = load_tail(w + c * p.depth + k, p.depth - k);
      c10::ForcedUnroll<R>{}([&](auto r) {
        acc[r * C + c] = fmadd(load(x + r * p.ldx + k), wk, acc[r * C + c]);
      });
    });
  }
  c10::ForcedUnroll<R * C>{}([&](auto i) {
    constexpr int r = i / C, c = i % C;
    const float bias = p.bias == nullptr ? 0.f : p.bias[column + c];
    p.out[(row + r) * p.num_columns + column + c] = static_cast<T>(sum_lanes(Vec(acc[i])) + bias);
  });
}

// R rows, all columns of [begin, end): C at a time, then one at a time.
template <typename T, int R, int C>
void strip(const Problem<T>& p, int64_t row, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + C <= end; column += C) {
    tile<T, R, C>(p, row, column);
  }
  for (; column < end; ++column) {
    tile<T, R, 1>(p, row, column);
  }
}

// Twelve accumulators fill the sixteen vector registers of AVX2 best. With more than four rows a
// few columns stay in the L1 cache for all of them; fewer rows read the weight once anyhow.
template <typename T>
void columns(const Problem<T>& p, int64_t num_rows, int64_t begin, int64_t end) {
  switch (num_rows) {
    case 1:
      return strip<T, 1, 8>(p, 0, begin, end);
    case 2:
      return strip<T, 2, 6>(p, 0, begin, end);
    case 3:
      return strip<T, 3, 4>(p, 0, begin, end);
  }
  for (int64_t first = begin; first < end; first += 3) {
    const int64_t last = std::min(end, first + 3);
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) {
      strip<T, 4, 3>(p, row, first, last);
    }
    for (; row < num_rows; ++row) {
      strip<T, 1, 3>(p, row, first, last);
    }
  }
}

template <typename T>
void multiply(
    const Rows& x, const at::Tensor& weight, const float* bias, at::Tensor& out) {
  const int64_t num_columns = weight.size(0);
  const int64_t depth = weight.size(1);
  const T* from = x.tensor.const_data_ptr<T>();
  std::vector<float> block(std::min(kRowBlock, x.count) * padded(depth));
  Problem<T> p{block.data(), padded(depth), weight.const_data_ptr<T>(), bias, nullptr,
               num_columns, depth};
  const int64_t tasks = (num_columns + kColumnsPerTask - 1) / kColumnsPerTask;
  for (int64_t first = 0; first < x.count; first += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, x.count - first);
    for (int64_t r = 0; r < num_rows; ++r) {
      to_float(from + (first + r) * x.stride, block.data() + r * p.ldx, depth);
    }
    p.out = out.data_ptr<T>() + first * num_columns;
    at::parallel_for(
        0, tasks, grain_of(kColumnsPerTask * depth * num_rows), [&](int64_t begin, int64_t end) {
          columns(
              p, num_rows, begin * kColumnsPerTask,
              std::min(end * kColumnsPerTask, num_columns));
        });
  }
}

at::Tensor linear(
    const char* op, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  TORCH_CHECK(
      x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1), op,
      ": expected x [T, K] and weight [N, K], got ", x.sizes(), " and ", weight.sizes());
  CHECK_SAME_DTYPE(op, x, weight);
  TORCH_CHECK(weight.is_contiguous(), op, ": expected a contiguous weight, got strides ",
              weight.strides());
  at::Tensor bias32;
  if (bias) {
    CHECK_SHAPE(op, *bias, {weight.size(0)});
    bias32 = bias->to(at::kFloat).contiguous();
  }
  if (through_onednn(x.size(0), weight)) {
    return at::linear(x, weight, bias ? bias->to(x.scalar_type()) : OptionalTensor());
  }
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  dispatch(op, x, [&](auto type) {
    multiply<decltype(type)>(
        rows_of(x), weight, bias ? bias32.const_data_ptr<float>() : nullptr, out);
  });
  return out;
}

} // namespace

// SGLang takes the packed weight for the layer's own, and its drafts multiply by a target's packed
// lm_head directly. Plain rows serve both, and stream as well as any other layout.
at::Tensor convert_weight_packed(const at::Tensor& weight) {
  TORCH_CHECK(
      weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kFloat,
      "convert_weight_packed: expected a bfloat16 or float32 weight, got ", weight.scalar_type(),
      "; serve the model with --dtype bfloat16 or float32");
  return weight.contiguous();
}

at::Tensor weight_packed_linear(
    const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias, bool is_vnni) {
  return linear("weight_packed_linear", x, weight, bias);
}

at::Tensor conv3d_embed_weight_pack(const at::Tensor& weight) {
  TORCH_CHECK(
      weight.dim() == 5, "conv3d_embed_weight_pack: expected [out, C, t, p, p], got ",
      weight.sizes());
  return weight.contiguous();
}

at::Tensor conv3d_embed_cpu(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool is_vnni) {
  TORCH_CHECK(
      x.dim() == 5 && weight.dim() == 5 && x.sizes().slice(1) == weight.sizes().slice(1),
      "conv3d_embed_cpu: expected x [N, C, t, p, p] and weight [out, C, t, p, p], got ", x.sizes(),
      " and ", weight.sizes());
  return linear("conv3d_embed_cpu", x.flatten(1), weight.flatten(1), bias);
}

} // namespace sgl_kernel_cpu
