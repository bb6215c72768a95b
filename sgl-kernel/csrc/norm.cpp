// Norms over the last dimension and SiLU-and-multiply. Each row is computed independently of the
// others, in float32, and rounded once at the end.
#include "ops.h"
#include "rows.h"

#include <ATen/ops/empty.h>

#include <cmath>

namespace sgl_kernel_cpu {
namespace {

float sum_of(const float* x, int64_t padded_size) {
  Vec sum(0.f);
  for (int64_t i = 0; i < padded_size; i += kLanes) {
    sum = sum + load(x + i);
  }
  return sum_lanes(sum);
}

float sum_of_squares(const float* x, int64_t padded_size) {
  Vec sum(0.f);
  for (int64_t i = 0; i < padded_size; i += kLanes) {
    const Vec v = load(x + i);
    sum = at::vec::fmadd(v, v, sum);
  }
  return sum_lanes(sum);
}

// x becomes x * scale * weight.
void scale_row(float* x, const float* weight, float scale, int64_t padded_size) {
  const Vec s(scale);
  for (int64_t i = 0; i < padded_size; i += kLanes) {
    (load(x + i) * s * load(weight + i)).store(x + i);
  }
}

void rms_normalize(float* x, const float* weight, int64_t size, double eps) {
  const float mean = sum_of_squares(x, padded(size)) / static_cast<float>(size);
  scale_row(x, weight, 1.f / std::sqrt(mean + static_cast<float>(eps)), padded(size));
}

void layer_normalize(
    float* x, const float* weight, const float* bias, int64_t size, double eps) {
  const int64_t width = padded(size);
  const Vec mean(sum_of(x, width) / static_cast<float>(size));
  for (int64_t i = 0; i < width; i += kLanes) {
    (load(x + i) - mean).store(x + i);
  }
  std::fill(x + size, x + width, 0.f);
  const float var = sum_of_squares(x, width) / static_cast<float>(size);
  scale_row(x, weight, 1.f / std::sqrt(var + static_cast<float>(eps)), width);
  for (int64_t i = 0; bias != nullptr && i < width; i += kLanes) {
    (load(x + i) + load(bias + i)).store(x + i);
  }
}

template <typename T>
std::vector<float> parameter(const at::Tensor& p) {
  std::vector<float> out(padded(p.numel()));
  to_float(p.contiguous().const_data_ptr<T>(), out.data(), p.numel());
  return out;
}

void check_parameter(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  CHECK_SAME_DTYPE(op, x, weight);
  CHECK_SHAPE(op, weight, {x.size(-1)});
}

} // namespace

at::Tensor rmsnorm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_parameter("rmsnorm_cpu", x, weight);
  at::Tensor out = at::empty(x.sizes(), x.options());
  const Rows rows = rows_of(x);
  dispatch("rmsnorm_cpu", x, [&](auto type) {
    using T = decltype(type);
    const std::vector<float> w = parameter<T>(weight);
    const T* from = rows.tensor.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    at::parallel_for(0, rows.count, grain_of(rows.size * 8), [&](int64_t begin, int64_t end) {
      std::vector<float> row(padded(rows.size));
      for (int64_t r = begin; r < end; ++r) {
        to_float(from + r * rows.stride, row.data(), rows.size);
        rms_normalize(row.data(), w.data(), rows.size, eps);
        from_float(row.data(), to + r * rows.size, rows.size);
      }
    });
  });
  return out;
}

void fused_add_rmsnorm_cpu(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  constexpr const char* kOp = "fused_add_rmsnorm_cpu";
  check_parameter(kOp, x, weight);
  CHECK_SAME_DTYPE(kOp, x, residual);
  CHECK_SHAPE(kOp, residual, x.sizes());
  const Rows xs = written_rows_of(kOp, x);
  const Rows sums = written_rows_of(kOp, residual);
  dispatch(kOp, x, [&](auto type) {
    using T = decltype(type);
    const std::vector<float> w = parameter<T>(weight);
    T* x_data = xs.tensor.data_ptr<T>();
    T* sum_data = sums.tensor.data_ptr<T>();
    at::parallel_for(0, xs.count, grain_of(xs.size * 8), [&](int64_t begin, int64_t end) {
      std::vector<float> row(padded(xs.size)), addend(padded(xs.size));
      for (int64_t r = begin; r < end; ++r) {
        T* x_row = x_data + r * xs.stride;
        T* sum_row = sum_data + r * sums.stride;
        to_float(x_row, addend.data(), xs.size);
        to_float(sum_row, row.data(), xs.size);
        for (int64_t i = 0; i < padded(xs.size); i += kLanes) {
          (load(row.data() + i) + load(addend.data() + i)).store(row.data() + i);
        }
        from_float(row.data(), sum_row, xs.size);
        // The norm reads the stored sum, which is rounded to T, as the twin does.
        to_float(sum_row, row.data(), xs.size);
        rms_normalize(row.data(), w.data(), xs.size, eps);
        from_float(row.data(), x_row, xs.size);
      }
    });
  });
}

at::Tensor layernorm_cpu(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    double eps) {
  check_parameter("layernorm_cpu", x, weight);
  if (bias) {
    check_parameter("layernorm_cpu", x, *bias);
  }
  at::Tensor out = at::empty(x.sizes(), x.options());
  const Rows rows = rows_of(x);
  dispatch("layernorm_cpu", x, [&](auto type) {
    using T = decltype(type);
    const std::vector<float> w = parameter<T>(weight);
    const std::vector<float> b = bias ? parameter<T>(*bias) : std::vector<float>();
    const T* from = rows.tensor.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    at::parallel_for(0, rows.count, grain_of(rows.size * 8), [&](int64_t begin, int64_t end) {
      std::vector<float> row(padded(rows.size));
      for (int64_t r = begin; r < end; ++r) {
        to_float(from + r * rows.stride, row.data(), rows.size);
        layer_normalize(
            row.data(), w.data(), bias ? b.data() : nullptr, rows.size, eps);
        from_float(row.data(), to + r * rows.size, rows.size);
      }
    });
  });
  return out;
}

at::Tensor silu_and_mul_cpu(const at::Tensor& x) {
  const int64_t size = x.size(-1) / 2;
  TORCH_CHECK(
      x.size(-1) % 2 == 0, "silu_and_mul_cpu: expected [..., 2D] with an even last size, got ",
      x.sizes());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = size;
  at::Tensor out = at::empty(shape, x.options());
  const Rows rows = rows_of(x);
  dispatch("silu_and_mul_cpu", x, [&](auto type) {
    using T = decltype(type);
    const T* from = rows.tensor.const_data_ptr<T>();
    T* to = out.data_ptr<T>();
    at::parallel_for(0, rows.count, grain_of(size * 16), [&](int64_t begin, int64_t end) {
      std::vector<float> gate(padded(size)), up(padded(size));
      const Vec one(1.f);
      for (int64_t r = begin; r < end; ++r) {
        const T* row = from + r * rows.stride;
        to_float(row, gate.data(), size);
        to_float(row + size, up.data(), size);
        for (int64_t i = 0; i < padded(size); i += kLanes) {
          const Vec g = load(gate.data() + i);
          (g / (one + g.neg().exp()) * load(up.data() + i)).store(gate.data() + i);
        }
        from_float(gate.data(), to + r * size, size);
      }
    });
  });
  return out;
}

} // namespace sgl_kernel_cpu
