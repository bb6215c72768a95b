// The one attention loop behind decode, extend and tree verify.
//
// A query sees n keys of its sequence, ranked 0 .. n - 1 in the order of the sequence: the prefix,
// then the new tokens that the query may see, itself included. A score is one chain of
// multiply-adds over the head. The softmax subtracts the largest of all scores and sums its
// denominator by rank; the values are added in rank order. None of these orders depends on the
// tile. So a query's output has the same bits in every op, whatever other queries share the call.
#pragma once

#include "rows.h"

#include <c10/util/Unroll.h>

#include <cmath>
#include <limits>
#include <memory>

namespace sgl_kernel_cpu {

constexpr int64_t kBlock = 32; // keys gathered at a time
constexpr int64_t kVecs = kBlock / kLanes;
constexpr int64_t kHeads = 8 / kVecs; // query heads scored at a time: eight accumulators

template <typename T>
struct KeyValues {
  const T* k; // element (slot s, head h) begins at k + s * k_slot + h * k_head
  const T* v;
  int64_t k_slot, k_head, v_slot, v_head;
  int64_t k_size, v_size; // D and Dv
};

struct Softmax {
  float scale;
  float cap; // 0: none
};

// The keys that one query sees, by their index in the sequence: [start, end), then `nodes`. If the
// sliding window begins among the nodes, start is a rank past the end, and [start, end) is empty.
struct View {
  int64_t start;
  int64_t end;
  std::vector<int64_t> nodes;

  int64_t first_node() const { // the first node's rank
    return std::max(start, end);
  }
};

// Copies the rows of `size` elements at `slots` to floats [count, padded(size)].
template <typename T>
inline void gather(const T* from, int64_t slot_stride, int64_t size, const int64_t* slots,
                   int64_t count, float* to) {
  for (int64_t j = 0; j < count; ++j) {
    to_float(from + slots[j] * slot_stride, to + j * padded(size), size);
  }
}

// Transposes [kBlock, width] to [width, kBlock].
inline void transpose(const float* from, float* to, int64_t width) {
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    for (int64_t d = 0; d < width; d += kLanes) {
      at::vec::transpose_mxn<float, kLanes, kLanes>(
          from + j * width + d, width, to + d * kBlock + j, kBlock);
    }
  }
}

// Scores of kBlock keys, one key per vector lane, for H heads: q [H, width], k [width, kBlock].
template <int H>
inline void score(const float* q, const float* k, int64_t width, float* scores, int64_t stride) {
  Reg acc[H * kVecs];
  c10::ForcedUnroll<H * kVecs>{}([&](auto i) { acc[i] = Vec(0.f); });
  for (int64_t d = 0; d < width; ++d) {
    Reg kd[kVecs];
    c10::ForcedUnroll<kVecs>{}([&](auto v) { kd[v] = load(k + d * kBlock + v * kLanes); });
    c10::ForcedUnroll<H>{}([&](auto h) {
      const Reg x = Vec(q[h * width + d]);
      c10::ForcedUnroll<kVecs>{}([&](auto v) {
        acc[h * kVecs + v] = fmadd(x, kd[v], acc[h * kVecs + v]);
      });
    });
  }
  c10::ForcedUnroll<H * kVecs>{}([&](auto i) {
    Vec(acc[i]).store(scores + i / kVecs * stride + i % kVecs * kLanes);
  });
}

// acc += sum over i of weights[i] * v[rows[i]], for N vectors of the value dimension.
template <int N>
inline void accumulate(float* acc, const float* v, int64_t width, const float* weights,
                       const int64_t* rows, int64_t count) {
  Reg sum[N];
  c10::ForcedUnroll<N>{}([&](auto n) { sum[n] = load(acc + n * kLanes); });
  for (int64_t i = 0; i < count; ++i) {
    const Reg w = Vec(weights[i]);
    const float* row = v + rows[i] * width;
    c10::ForcedUnroll<N>{}([&](auto n) { sum[n] = fmadd(w, load(row + n * kLanes), sum[n]); });
  }
  c10::ForcedUnroll<N>{}([&](auto n) { Vec(sum[n]).store(acc + n * kLanes); });
}

inline void add_values(float* acc, const float* v, int64_t width, const float* weights,
                       const int64_t* rows, int64_t count) {
  int64_t d = 0;
  for (; d + 8 * kLanes <= width; d += 8 * kLanes) {
    accumulate<8>(acc + d, v + d, width, weights, rows, count);
  }
  for (; d < width; d += kLanes) {
    accumulate<1>(acc + d, v + d, width, weights, rows, count);
  }
}

// Turns scores[first .. size) into softmax numerators, in place; the rest of scores [padded(size)]
// becomes 0. The sink, if any, adds to the denominator only. Returns 1 / denominator, or 0 for a
// query that sees no key.
inline float weigh(float* scores, int64_t first, int64_t size, float cap, const float* sink) {
  for (int64_t j = first; cap > 0.f && j < size; ++j) {
    scores[j] = cap * std::tanh(scores[j] / cap);
  }
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  std::fill(scores, scores + std::min(first, size), kLowest);
  std::fill(scores + size, scores + padded(size), kLowest);
  Vec top(kLowest);
  for (int64_t j = 0; j < size; j += kLanes) {
    top = at::vec::maximum(top, load(scores + j));
  }
  const float max = sink == nullptr ? max_lanes(top) : std::max(*sink, max_lanes(top));
  Vec sum(0.f);
  for (int64_t j = 0; j < size; j += kLanes) {
    const Vec w = (load(scores + j) - Vec(max)).exp_u20();
    w.store(scores + j);
    sum = sum + w;
  }
  const float total = sum_lanes(sum) + (sink == nullptr ? 0.f : std::exp(*sink - max));
  return total > 0.f ? 1.f / total : 0.f;
}

// The attention of some query rows (one View each), for the query heads that read one KV head.
class Tile {
 public:
  // The caller fills q [views.size() * group, padded(D)], scaled.
  Tile(const std::vector<View>& views, int64_t group, int64_t k_size, int64_t v_size)
      : q(views.size() * group * padded(k_size)), acc(views.size() * group * padded(v_size)),
        factors(views.size() * group), views_(views), group_(group) {
    begin_ = std::numeric_limits<int64_t>::max();
    for (const View& view : views) {
      begin_ = std::min(begin_, view.start / kBlock * kBlock);
      end_ = std::max(end_, view.nodes.empty() ? view.end : view.nodes.back() + 1);
    }
    begin_ = std::min(begin_, end_);
    stride_ = (end_ - begin_ + kBlock - 1) / kBlock * kBlock;
    scores_.reset(new float[stride_ * num_heads()]);
  }

  int64_t num_heads() const {
    return factors.size();
  }

  // Fills acc and factors: head i's output is acc[i] * factors[i].
  template <typename T>
  void run(const KeyValues<T>& kv, int64_t kv_head, const int64_t* slots, float cap,
           const float* sinks) {
    score_keys(kv, kv_head, slots);
    for (int64_t i = 0; i < num_heads(); ++i) {
      factors[i] = weigh_head(i, cap, sinks == nullptr ? nullptr : sinks + i % group_);
    }
    sum_values(kv, kv_head, slots);
  }

  std::vector<float> q, acc, factors;

 private:
  template <typename T>
  void score_keys(const KeyValues<T>& kv, int64_t kv_head, const int64_t* slots) {
    const int64_t width = padded(kv.k_size);
    std::vector<float> rows(kBlock * width), keys(kBlock * width);
    for (int64_t at = begin_; at < end_; at += kBlock) {
      gather(kv.k + kv_head * kv.k_head, kv.k_slot, kv.k_size, slots + at,
             std::min(kBlock, end_ - at), rows.data());
      transpose(rows.data(), keys.data(), width);
      float* to = scores_.get() + at - begin_;
      int64_t i = 0;
      for (; i + kHeads <= num_heads(); i += kHeads) {
        score<kHeads>(q.data() + i * width, keys.data(), width, to + i * stride_, stride_);
      }
      for (; i < num_heads(); ++i) {
        score<1>(q.data() + i * width, keys.data(), width, to + i * stride_, stride_);
      }
    }
  }

  // Brings head i's visible scores into rank order and turns them into softmax numerators.
  float weigh_head(int64_t i, float cap, const float* sink) {
    const View& view = views_[i / group_];
    float* scores = scores_.get() + i * stride_;
    int64_t size = view.first_node() - begin_;
    for (const int64_t node : view.nodes) {
      scores[size++] = scores[node - begin_];
    }
    // Whole vectors of scores before view.start are skipped.
    const int64_t whole = view.start / kLanes * kLanes - begin_;
    return weigh(scores + whole, view.start - begin_ - whole, size - whole, cap, sink);
  }

  template <typename T>
  void sum_values(const KeyValues<T>& kv, int64_t kv_head, const int64_t* slots) {
    const int64_t width = padded(kv.v_size);
    std::vector<float> values(kBlock * width);
    int64_t in_order[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      in_order[j] = j;
    }
    std::vector<size_t> next(views_.size(), 0);
    std::vector<int64_t> nodes;
    for (int64_t at = begin_; at < end_; at += kBlock) {
      gather(kv.v + kv_head * kv.v_head, kv.v_slot, kv.v_size, slots + at,
             std::min(kBlock, end_ - at), values.data());
      for (size_t row = 0; row < views_.size(); ++row) {
        const View& view = views_[row];
        const int64_t first = std::max(view.start, at) - at;
        const int64_t count = std::min(view.end, at + kBlock) - at - first;
        const size_t from = next[row];
        nodes.clear();
        for (; next[row] < view.nodes.size() && view.nodes[next[row]] < at + kBlock; ++next[row]) {
          nodes.push_back(view.nodes[next[row]] - at);
        }
        for (int64_t i = row * group_; i < static_cast<int64_t>(row + 1) * group_; ++i) {
          const float* weights = scores_.get() + i * stride_;
          if (count > 0) {
            add_values(acc.data() + i * width, values.data(), width, weights + at + first - begin_,
                       in_order + first, count);
          }
          add_values(acc.data() + i * width, values.data(), width,
                     weights + view.first_node() + from - begin_, nodes.data(), nodes.size());
        }
      }
    }
  }

  const std::vector<View>& views_;
  int64_t group_;
  int64_t begin_ = 0; // first key of the tile, rounded down to a multiple of kBlock
  int64_t end_ = 0; // one past the last key of the tile
  int64_t stride_ = 0;
  std::unique_ptr<float[]> scores_; // [num_heads, stride_]; column 0 is key begin_
};

} // namespace sgl_kernel_cpu
