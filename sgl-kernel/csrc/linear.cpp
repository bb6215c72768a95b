// x [T, K] times weight [N, K] transposed. Weights are plain row-major, widened to float during the
// product.
//
// In every tile, an output element is one chain of fused multiply-adds over k with one accumulator
// vector, whose lanes are summed at the end. So a row's result does not depend on how many rows
// share the call, and verifying a tree equals decoding bit for bit.
#include "ops.h"
#include "rows.h"

#include <ATen/cpu/Utils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/Unroll.h>

#include <array>
#include <type_traits>

namespace sgl_kernel_cpu {
namespace {

// Rows whose float copies stay in the L2 cache while the whole weight is read once.
constexpr int64_t kRowBlock = 32;
// Weight columns that stay in the L1 cache, widened to floats, for all rows of a block.
constexpr int64_t kPanel = 12;
// A tile's accumulators use most of the vector registers: AVX-512 has 32, AVX2 has 16.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kTileRows = 6, kTileColumns = 4;
#else
constexpr int kTileRows = 4, kTileColumns = 3;
#endif

// The only product whose rows may depend on the batch. With AMX or AVX-512-bf16, oneDNN is several
// times faster on a long prefill. A batch that decodes or verifies has fewer rows: SGLang's default
// of 48 requests with 64 nodes each has 3,072.
bool through_onednn(int64_t num_rows, const at::Tensor& weight) {
  constexpr int64_t kMinRows = 4096;
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

// Sums the lanes of each of C accumulators, in the order of sum_lanes.
template <int C>
C10_ALWAYS_INLINE void sums_of(const std::array<Reg, C>& acc, float* sums) {
  int done = 0;
#if defined(CPU_CAPABILITY_AVX512)
  // Four accumulators share the vector adds: first their halves, then quarters, then pairs.
#pragma GCC unroll 8
  for (; done + 4 <= C; done += 4) {
    const Reg a = acc[done], b = acc[done + 1], c = acc[done + 2], d = acc[done + 3];
    const Reg ab = _mm512_add_ps(
        _mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    const Reg cd = _mm512_add_ps(
        _mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    Reg four = _mm512_add_ps(
        _mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    four = _mm512_add_ps(four, _mm512_shuffle_ps(four, four, 0x4E));
    four = _mm512_add_ps(four, _mm512_shuffle_ps(four, four, 0xB1));
    const __m512i heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(sums + done, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, four)));
  }
#endif
#pragma GCC unroll 8
  for (; done < C; ++done) {
    sums[done] = sum_lanes(Vec(acc[done]));
  }
}

// Computes R rows by C columns. ForcedUnroll unrolls every loop over the accumulators, which keeps
// them in registers. `weight`: the first of the C columns, as T or widened to float. `ahead`: the
// address to prefetch next. With R = kTileRows, each step prefetches one cache line. Returns the
// advanced `ahead`.
template <typename T, typename W, int R, int C>
const char* tile(
    const Problem<T>& p, const W* weight, int64_t ldw, int64_t row, int64_t column,
    const char* ahead) {
  const float* x = p.x + row * p.ldx;
  Reg acc[R * C];
  c10::ForcedUnroll<R * C>{}([&](auto i) { acc[i] = Vec(0.f); });
  int64_t k = 0;
  for (; k + kLanes <= p.depth; k += kLanes) {
    Reg wk[C];
    if constexpr (R == kTileRows) {
      __builtin_prefetch(ahead);
      ahead += 64;
    }
    c10::ForcedUnroll<C>{}([&](auto c) { wk[c] = load(weight + c * ldw + k); });
    c10::ForcedUnroll<R>{}([&](auto r) {
      const Reg xk = load(x + r * p.ldx + k);
      c10::ForcedUnroll<C>{}([&](auto c) {
        acc[r * C + c] = fmadd(xk, wk[c], acc[r * C + c]);
      });
    });
  }
  if (k < p.depth) {
    c10::ForcedUnroll<C>{}([&](auto c) {
      const Reg wk = load_tail(weight + c * ldw + k, p.depth - k);
      c10::ForcedUnroll<R>{}([&](auto r) {
        acc[r * C + c] = fmadd(load(x + r * p.ldx + k), wk, acc[r * C + c]);
      });
    });
  }
  alignas(64) float sums[2 * kLanes] = {}; // one from_float call rounds all sums
  static_assert(R * C <= 2 * kLanes);
  c10::ForcedUnroll<R>{}([&](auto r) {
    std::array<Reg, C> row_acc;
    c10::ForcedUnroll<C>{}([&](auto c) { row_acc[c] = acc[r * C + c]; });
    sums_of<C>(row_acc, sums + r * C);
    if (p.bias != nullptr) {
      c10::ForcedUnroll<C>{}([&](auto c) { sums[r * C + c] += p.bias[column + c]; });
    }
  });
  T rounded[2 * kLanes];
  from_float(sums, rounded, 2 * kLanes);
  c10::ForcedUnroll<R>{}([&](auto r) {
    std::memcpy(p.out + (row + r) * p.num_columns + column, rounded + r * C, C * sizeof(T));
  });
  return ahead;
}

// Computes R rows at the columns [begin, end): C columns at a time, then one at a time.
template <typename T, typename W, int R, int C>
const char* strip(
    const Problem<T>& p, const W* weight, int64_t ldw, int64_t row, int64_t begin, int64_t end,
    const char* ahead = nullptr) {
  int64_t column = begin;
  for (; column + C <= end; column += C, weight += C * ldw) {
    ahead = tile<T, W, R, C>(p, weight, ldw, row, column, ahead);
  }
  for (; column < end; ++column, weight += ldw) {
    ahead = tile<T, W, R, 1>(p, weight, ldw, row, column, ahead);
  }
  return ahead;
}

// Computes all rows at the panel's columns [begin, end): kTileRows rows at a time, then 2, then 1.
// Prefetches the next panel from `next` on.
template <typename T, typename W>
void panel(
    const Problem<T>& p, const W* weight, int64_t ldw, int64_t num_rows, int64_t begin,
    int64_t end, const T* next) {
  int64_t row = 0;
  const char* ahead = reinterpret_cast<const char*>(next);
  for (; row + kTileRows <= num_rows; row += kTileRows) {
    ahead = strip<T, W, kTileRows, kTileColumns>(p, weight, ldw, row, begin, end, ahead);
  }
  for (; row + 2 <= num_rows; row += 2) {
    strip<T, W, 2, kTileColumns>(p, weight, ldw, row, begin, end);
  }
  if (row < num_rows) {
    strip<T, W, 1, kTileColumns>(p, weight, ldw, row, begin, end);
  }
}

// Up to three rows fit one strip, which reads the weight once. With more rows, a panel of the
// weight stays in the L1 cache for all of them.
template <typename T>
void columns(const Problem<T>& p, int64_t num_rows, int64_t begin, int64_t end) {
  const T* weight = p.weight + begin * p.depth;
  switch (num_rows) {
    case 1:
      strip<T, T, 1, 8>(p, weight, p.depth, 0, begin, end);
      return;
    case 2:
      strip<T, T, 2, 4>(p, weight, p.depth, 0, begin, end);
      return;
    case 3:
      strip<T, T, 3, 4>(p, weight, p.depth, 0, begin, end);
      return;
  }
  std::vector<float> wide(
      std::is_same_v<T, float> || num_rows <= kTileRows ? 0 : kPanel * p.ldx);
  for (int64_t first = begin; first < end; first += kPanel, weight += kPanel * p.depth) {
    const int64_t last = std::min(end, first + kPanel);
    if (wide.empty()) {
      panel(p, weight, p.depth, num_rows, first, last, weight + kPanel * p.depth);
      continue;
    }
    for (int64_t c = 0; c < last - first; ++c) {
      to_float(weight + c * p.depth, wide.data() + c * p.ldx, p.depth);
    }
    panel(p, wide.data(), p.ldx, num_rows, first, last, weight + kPanel * p.depth);
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
  const int64_t tasks = (num_columns + kPanel - 1) / kPanel;
  for (int64_t first = 0; first < x.count; first += kRowBlock) {
    const int64_t num_rows = std::min(kRowBlock, x.count - first);
    for (int64_t r = 0; r < num_rows; ++r) {
      to_float(from + (first + r) * x.stride, block.data() + r * p.ldx, depth);
    }
    p.out = out.data_ptr<T>() + first * num_columns;
    // At least two grains per task: just above one, a second thread costs more than it saves.
    at::parallel_for(
        0, tasks, 2 * grain_of(kPanel * depth * num_rows), [&](int64_t begin, int64_t end) {
          columns(p, num_rows, begin * kPanel, std::min(end * kPanel, num_columns));
        });
  }
}

at::Tensor linear(
    const char* op, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  TORCH_CHECK(
      x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && x.size(1) > 0, op,
      ": expected x [T, K] and weight [N, K] with K above 0, got ", x.sizes(), " and ",
      weight.sizes());
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

// The packed weight keeps plain rows. SGLang replaces the layer's weight with the packed one, and
// its drafts multiply by a target's packed lm_head directly. Plain rows are as fast to read as any
// layout.
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
