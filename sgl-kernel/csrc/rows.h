// Shared helpers: element types, rows of floats, argument checks.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sgl_kernel_cpu {

using c10::BFloat16;
using Vec = at::vec::Vectorized<float>;

constexpr int64_t kLanes = Vec::size();

// Accumulator arrays use the processor's native vector type: the compiler keeps an array of Reg in
// registers, but an array of Vec in memory.
#if defined(CPU_CAPABILITY_AVX512)
using Reg = __m512;
#elif defined(CPU_CAPABILITY_AVX2)
using Reg = __m256;
#else
using Reg = Vec;
#endif

inline Reg fmadd(const Reg& a, const Reg& b, const Reg& c) {
  return at::vec::fmadd(Vec(a), Vec(b), Vec(c));
}

// Scratch rows are padded with zeros to a multiple of kLanes, so inner loops have no tail.
inline int64_t padded(int64_t size) {
  return (size + kLanes - 1) / kLanes * kLanes;
}

inline Vec load(const float* p) {
  return Vec::loadu(p);
}

inline Vec load(const BFloat16* p) {
  Vec out;
  at::vec::load_fp32_from_bf16(p, out);
  return out;
}

template <typename T>
inline Vec load_tail(const T* p, int64_t count) {
  T whole[kLanes] = {};
  std::memcpy(whole, p, count * sizeof(T));
  return load(whole);
}

// dst must hold padded(size) floats; the padding becomes zero.
template <typename T>
inline void to_float(const T* src, float* dst, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    load(src + i).store(dst + i);
  }
  if (i < size) {
    load_tail(src + i, size - i).store(dst + i);
  }
}

inline void from_float(const float* src, float* dst, int64_t size) {
  std::memcpy(dst, src, size * sizeof(float));
}

inline void from_float(const float* src, BFloat16* dst, int64_t size) {
  using VecB = at::vec::Vectorized<BFloat16>;
  int64_t i = 0;
  for (; i + VecB::size() <= size; i += VecB::size()) {
    at::vec::convert_from_float<BFloat16>(load(src + i), load(src + i + kLanes)).store(dst + i);
  }
  for (; i < size; ++i) {
    dst[i] = src[i];
  }
}

inline float sum_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, v);
}

inline float max_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>(
      [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, v);
}

// Items per task of at::parallel_for, for about 2^18 multiply-adds: with less work in a task,
// waking a thread costs more than the thread saves.
inline int64_t grain_of(int64_t work_per_item) {
  constexpr int64_t kWorkPerTask = 1 << 18;
  return std::max<int64_t>(1, kWorkPerTask / std::max<int64_t>(1, work_per_item));
}

// Calls f with a value of the tensor's element type, float or BFloat16.
template <typename F>
inline void dispatch(const char* op, const at::Tensor& x, const F& f) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(BFloat16{});
    default:
      TORCH_CHECK(false, op, ": expected float32 or bfloat16, got ", x.scalar_type());
  }
}

#define CHECK_SAME_DTYPE(op, a, b)                                                      \
  TORCH_CHECK(                                                                          \
      (a).scalar_type() == (b).scalar_type(), op, ": expected " #b " in the dtype of " #a \
      " (", (a).scalar_type(), "), got ", (b).scalar_type())

#define CHECK_SHAPE(op, x, ...)                                                             \
  TORCH_CHECK(                                                                              \
      (x).sizes() == at::IntArrayRef(__VA_ARGS__), op, ": expected " #x " of shape ",       \
      at::IntArrayRef(__VA_ARGS__), ", got ", (x).sizes())

// Row-major view of [..., D]: rows may be strided (a slice of qkv), elements are contiguous.
struct Rows {
  at::Tensor tensor;
  int64_t count;
  int64_t size;
  int64_t stride;
};

inline Rows rows_of(const at::Tensor& x) {
  const int64_t size = x.size(-1);
  if (x.dim() == 2 && x.stride(1) == 1) {
    return {x, x.size(0), size, x.stride(0)};
  }
  at::Tensor whole = x.contiguous();
  return {whole, size == 0 ? 0 : whole.numel() / size, size, size};
}

// rows_of for an output tensor. Refuses a tensor that rows_of copies: writes to the copy are lost.
inline Rows written_rows_of(const char* op, const at::Tensor& x) {
  Rows rows = rows_of(x);
  TORCH_CHECK(
      rows.tensor.data_ptr() == x.data_ptr(), op,
      ": expected a contiguous tensor or rows of contiguous elements to write to, got strides ",
      x.strides(), " for shape ", x.sizes());
  return rows;
}

inline at::Tensor as_int64(const at::Tensor& x) {
  return x.to(at::kLong).contiguous();
}

template <typename T>
inline T* written(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(
      x.scalar_type() == c10::CppTypeToScalarType<T>::value && x.is_contiguous(), op,
      ": expected a contiguous ", name, " of ", c10::CppTypeToScalarType<T>::value, ", got ",
      x.scalar_type(), " with strides ", x.strides());
  return x.data_ptr<T>();
}

} // namespace sgl_kernel_cpu
