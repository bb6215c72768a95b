// Rotary position embeddings, rotated in float32. Rows may be strided: q and k are slices of qkv.
#include "ops.h"
#include "rows.h"

#include <ATen/ops/empty.h>

namespace sgl_kernel_cpu {
namespace {

// One token's cosines and sines, for the first (low) and second (high) half of the rotated lanes.
struct Angles {
  std::vector<float> cos_low, cos_high, sin_low, sin_high;
  int64_t half;

  explicit Angles(int64_t half)
      : cos_low(padded(half)), cos_high(padded(half)), sin_low(padded(half)),
        sin_high(padded(half)), half(half) {}
};

// low * cos - high * sin and high * cos + low * sin, over buffers of padded(half) floats.
void turn(float* low, float* high, const Angles& a) {
  for (int64_t i = 0; i < padded(a.half); i += kLanes) {
    const Vec x = load(low + i);
    const Vec y = load(high + i);
    (x * load(a.cos_low.data() + i) - y * load(a.sin_low.data() + i)).store(low + i);
    (y * load(a.cos_high.data() + i) + x * load(a.sin_high.data() + i)).store(high + i);
  }
}

template <typename T>
void turn_head(const T* from, T* to, int64_t head_size, const Angles& a, bool is_neox,
               std::vector<float>& low, std::vector<float>& high) {
  const int64_t half = a.half;
  if (is_neox) {
    to_float(from, low.data(), half);
    to_float(from + half, high.data(), half);
    turn(low.data(), high.data(), a);
    from_float(low.data(), to, half);
    from_float(high.data(), to + half, half);
  } else {
    for (int64_t i = 0; i < half; ++i) {
      low[i] = static_cast<float>(from[2 * i]);
      high[i] = static_cast<float>(from[2 * i + 1]);
    }
    turn(low.data(), high.data(), a);
    for (int64_t i = 0; i < half; ++i) {
      to[2 * i] = static_cast<T>(low[i]);
      to[2 * i + 1] = static_cast<T>(high[i]);
    }
  }
  if (to != from) {
    std::copy(from + 2 * half, from + head_size, to + 2 * half);
  }
}

// [T, H * D] or [T, H, D] with contiguous heads.
struct Heads {
  at::Tensor tensor;
  int64_t num_heads, row_stride, head_stride;
};

Heads heads_of(const char* op, const at::Tensor& x, int64_t head_size) {
  TORCH_CHECK(
      (x.dim() == 2 && x.size(1) % head_size == 0) || (x.dim() == 3 && x.size(2) == head_size), op,
      ": expected [T, H * ", head_size, "] or [T, H, ", head_size, "], got ", x.sizes());
  at::Tensor t = x.stride(-1) == 1 ? x : x.contiguous();
  if (x.dim() == 2) {
    return {t, x.size(1) / head_size, t.stride(0), head_size};
  }
  return {t, x.size(1), t.stride(0), t.stride(1)};
}

template <typename T>
void turn_row(const Heads& in, const Heads& out, int64_t row, int64_t head_size, const Angles& a,
              bool is_neox, std::vector<float>& low, std::vector<float>& high) {
  const T* from = in.tensor.const_data_ptr<T>() + row * in.row_stride;
  T* to = out.tensor.data_ptr<T>() + row * out.row_stride;
  for (int64_t h = 0; h < in.num_heads; ++h) {
    turn_head(from + h * in.head_stride, to + h * out.head_stride, head_size, a, is_neox, low, high);
  }
}

// fill(row, angles) writes the cosines and sines of token `row`.
template <typename F>
void turn_all(const char* op, const Heads (&in)[2], const Heads (&out)[2], int64_t head_size,
              int64_t half, bool is_neox, const F& fill) {
  const int64_t num_rows = in[0].tensor.size(0);
  const int64_t work = (in[0].num_heads + in[1].num_heads) * head_size * 4;
  dispatch(op, in[0].tensor, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, num_rows, grain_of(work), [&](int64_t begin, int64_t end) {
      Angles angles(half);
      std::vector<float> low(padded(half)), high(padded(half));
      for (int64_t row = begin; row < end; ++row) {
        fill(row, angles);
        turn_row<T>(in[0], out[0], row, head_size, angles, is_neox, low, high);
        turn_row<T>(in[1], out[1], row, head_size, angles, is_neox, low, high);
      }
    });
  });
}

// The axis (0 time, 1 height, 2 width) of each of the `half` lanes.
std::vector<int64_t> lane_axes(at::OptionalIntArrayRef section, bool interleaved, int64_t half) {
  constexpr const char* kOp = "multimodal_rotary_embedding_cpu";
  TORCH_CHECK(
      section.has_value() && section->size() == 3 &&
          (*section)[0] + (*section)[1] + (*section)[2] == half,
      kOp, ": expected a section of three sizes that add up to ", half, ", got ",
      section.has_value() ? *section : at::IntArrayRef());
  const at::IntArrayRef s = *section;
  std::vector<int64_t> axes(half, 0);
  for (int64_t i = 0; i < half; ++i) {
    if (interleaved) {
      axes[i] = i % 3 != 0 && i < 3 * s[i % 3] ? i % 3 : 0;
    } else {
      axes[i] = i < s[0] ? 0 : (i < s[0] + s[1] ? 1 : 2);
    }
  }
  return axes;
}

template <typename T>
void fill_from_cache(const T* cache, const int64_t* positions, int64_t num_rows, int64_t row,
                     const std::vector<int64_t>& axes, Angles& a) {
  for (int64_t i = 0; i < a.half; ++i) {
    const T* lanes = cache + positions[axes[i] * num_rows + row] * 2 * a.half;
    a.cos_low[i] = static_cast<float>(lanes[i]);
    a.sin_low[i] = static_cast<float>(lanes[a.half + i]);
  }
  a.cos_high = a.cos_low;
  a.sin_high = a.sin_low;
}

void rotate_by_cache(
    const char* op, const at::Tensor& positions, const Heads (&in)[2], const Heads (&out)[2],
    int64_t head_size, const at::Tensor& cos_sin_cache, const std::vector<int64_t>& axes,
    bool is_neox) {
  const int64_t num_rows = in[0].tensor.size(0);
  const int64_t half = cos_sin_cache.size(1) / 2;
  CHECK_SAME_DTYPE(op, in[0].tensor, in[1].tensor);
  TORCH_CHECK(
      2 * half <= head_size && positions.size(-1) == num_rows && in[1].tensor.size(0) == num_rows,
      op, ": expected ", num_rows, " positions and keys, and at most ", head_size,
      " rotated lanes, got ", positions.size(-1), ", ", in[1].tensor.size(0), " and ", 2 * half);
  const at::Tensor places = as_int64(positions);
  const int64_t* place = places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < places.numel(); ++i) {
    TORCH_CHECK(
        place[i] >= 0 && place[i] < cos_sin_cache.size(0), op, ": expected positions below ",
        cos_sin_cache.size(0), ", got ", place[i]);
  }
  const at::Tensor cache = cos_sin_cache.contiguous();
  dispatch(op, cache, [&](auto type) {
    const auto* data = cache.const_data_ptr<decltype(type)>();
    turn_all(op, in, out, head_size, half, is_neox, [&](int64_t row, Angles& a) {
      fill_from_cache(data, place, num_rows, row, axes, a);
    });
  });
}

} // namespace

std::tuple<at::Tensor, at::Tensor> rotary_embedding_cpu(
    const at::Tensor& positions,
    const at::Tensor& query,
    const at::Tensor& key,
    int64_t head_size,
    const at::Tensor& cos_sin_cache,
    bool is_neox) {
  constexpr const char* kOp = "rotary_embedding_cpu";
  at::Tensor q = at::empty(query.sizes(), query.options());
  at::Tensor k = at::empty(key.sizes(), key.options());
  const std::vector<int64_t> one_axis(cos_sin_cache.size(1) / 2, 0);
  rotate_by_cache(
      kOp, positions.flatten(), {heads_of(kOp, query, head_size), heads_of(kOp, key, head_size)},
      {heads_of(kOp, q, head_size), heads_of(kOp, k, head_size)}, head_size, cos_sin_cache,
      one_axis, is_neox);
  return {q, k};
}

void multimodal_rotary_embedding_cpu(
    const at::Tensor& positions,
    const at::Tensor& query,
    const at::Tensor& key,
    int64_t head_size,
    const at::Tensor& cos_sin_cache,
    at::OptionalIntArrayRef mrope_section,
    bool mrope_interleaved,
    bool is_neox) {
  constexpr const char* kOp = "multimodal_rotary_embedding_cpu";
  const int64_t half = cos_sin_cache.size(1) / 2;
  TORCH_CHECK(
      positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == 3), kOp,
      ": expected positions [T] or [3, T], got ", positions.sizes());
  TORCH_CHECK(
      query.stride(-1) == 1 && key.stride(-1) == 1, kOp,
      ": expected contiguous rows to write to, got strides ", query.strides(), " and ",
      key.strides());
  const std::vector<int64_t> axes = positions.dim() == 1
      ? std::vector<int64_t>(half, 0)
      : lane_axes(mrope_section, mrope_interleaved, half);
  const Heads q = heads_of(kOp, query, head_size);
  const Heads k = heads_of(kOp, key, head_size);
  rotate_by_cache(kOp, positions, {q, k}, {q, k}, head_size, cos_sin_cache, axes, is_neox);
}

std::tuple<at::Tensor, at::Tensor> apply_rotary_pos_emb_cpu(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& cos, const at::Tensor& sin) {
  constexpr const char* kOp = "apply_rotary_pos_emb_cpu";
  TORCH_CHECK(
      query.dim() == 3 && key.dim() == 3, kOp, ": expected query and key [T, H, D], got ",
      query.sizes(), " and ", key.sizes());
  const int64_t head_size = query.size(2);
  const int64_t half = head_size / 2;
  CHECK_SAME_DTYPE(kOp, query, key);
  CHECK_SAME_DTYPE(kOp, cos, sin);
  CHECK_SHAPE(kOp, cos, {query.size(0), head_size});
  CHECK_SHAPE(kOp, sin, {query.size(0), head_size});
  TORCH_CHECK(key.size(0) == query.size(0), kOp, ": expected ", query.size(0), " keys, got ",
              key.size(0));
  at::Tensor q = at::empty(query.sizes(), query.options());
  at::Tensor k = at::empty(key.sizes(), key.options());
  const Heads in[2] = {heads_of(kOp, query, head_size), heads_of(kOp, key, head_size)};
  const Heads out[2] = {heads_of(kOp, q, head_size), heads_of(kOp, k, head_size)};
  const at::Tensor c = cos.contiguous();
  const at::Tensor s = sin.contiguous();
  dispatch(kOp, c, [&](auto type) {
    const auto* cosines = c.const_data_ptr<decltype(type)>();
    const auto* sines = s.const_data_ptr<decltype(type)>();
    turn_all(kOp, in, out, head_size, half, true, [&](int64_t row, Angles& a) {
      to_float(cosines + row * head_size, a.cos_low.data(), half);
      to_float(cosines + row * head_size + half, a.cos_high.data(), half);
      to_float(sines + row * head_size, a.sin_low.data(), half);
      to_float(sines + row * head_size + half, a.sin_high.data(), half);
    });
  });
  return {q, k};
}

} // namespace sgl_kernel_cpu
