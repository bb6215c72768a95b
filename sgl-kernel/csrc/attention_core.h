// The one attention loop behind decode, extend and tree verify.
//
// A query sees n keys of its sequence, ranked 0 .. n - 1: the prefix in order, then itself and the
// new tokens before it (or, in a tree, its ancestors). It walks the ranks in blocks that begin at
// multiples of kBlock, with one online softmax step a block. Ranks, blocks and the order of every sum
// depend on the query alone, so its output is the same bits whichever op computes it and whatever
// other queries share the call.
#pragma once

#include "rows.h"

#include <c10/util/Unroll.h>

#include <cmath>
#include <limits>

namespace sgl_kernel_cpu {

constexpr int64_t kBlock = 32; // keys a softmax step

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

// One query head: its scaled query and the running softmax.
struct Head {
  float* q; // [padded(D)]
  float* acc; // [padded(Dv)]
  float max;
  float sum;
};

// A block of keys and values of one KV head, widened to float32.
struct Block {
  std::vector<float> k, v;

  Block(int64_t k_size, int64_t v_size)
      : k(kBlock * padded(k_size)), v(kBlock * padded(v_size)) {}

  template <typename T>
  void gather(const KeyValues<T>& kv, int64_t head, const int64_t* slots, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      to_float(kv.k + slots[j] * kv.k_slot + head * kv.k_head, k.data() + j * padded(kv.k_size),
               kv.k_size);
      to_float(kv.v + slots[j] * kv.v_slot + head * kv.v_head, v.data() + j * padded(kv.v_size),
               kv.v_size);
    }
  }
};

// Keys are taken N at a time to keep the multiply-add units busy; each key has its own chain.
template <int N>
inline void dots(const float* q, const float* k, int64_t width, float* out) {
  Reg acc[N];
  c10::ForcedUnroll<N>{}([&](auto n) { acc[n] = Vec(0.f); });
  for (int64_t i = 0; i < width; i += kLanes) {
    const Reg x = load(q + i);
    c10::ForcedUnroll<N>{}([&](auto n) {
      acc[n] = fmadd(x, load(k + n * width + i), acc[n]);
    });
  }
  c10::ForcedUnroll<N>{}([&](auto n) { out[n] = sum_lanes(Vec(acc[n])); });
}

// scores[first, count) of the block; the rest becomes minus infinity.
inline void score(const Head& head, const Block& block, int64_t width, int64_t first,
                  int64_t count, float cap, float* scores) {
  std::fill(scores, scores + kBlock, -std::numeric_limits<float>::infinity());
  int64_t j = first;
  for (; j + 8 <= count; j += 8) {
    dots<8>(head.q, block.k.data() + j * width, width, scores + j);
  }
  for (; j < count; ++j) {
    dots<1>(head.q, block.k.data() + j * width, width, scores + j);
  }
  for (j = first; cap > 0.f && j < count; ++j) {
    scores[j] = cap * std::tanh(scores[j] / cap);
  }
}

// acc = acc * keep + sum over j of weights[j] * v[j], N vectors of the value at a time.
template <int N>
inline void accumulate(float* acc, const float* v, int64_t width, float keep, const float* weights,
                       int64_t first, int64_t count) {
  Reg sum[N];
  c10::ForcedUnroll<N>{}([&](auto n) { sum[n] = load(acc + n * kLanes) * Vec(keep); });
  for (int64_t j = first; j < count; ++j) {
    const Reg w = Vec(weights[j]);
    const float* row = v + j * width;
    c10::ForcedUnroll<N>{}([&](auto n) {
      sum[n] = fmadd(w, load(row + n * kLanes), sum[n]);
    });
  }
  c10::ForcedUnroll<N>{}([&](auto n) { Vec(sum[n]).store(acc + n * kLanes); });
}

// One online softmax step over the keys [first, count) of a block.
inline void step(Head& head, const Block& block, int64_t k_width, int64_t v_width, int64_t first,
                 int64_t count, float cap) {
  float weights[kBlock];
  score(head, block, k_width, first, count, cap, weights);
  Vec top = load(weights);
  for (int64_t j = kLanes; j < kBlock; j += kLanes) {
    top = at::vec::maximum(top, load(weights + j));
  }
  const float max = std::max(head.max, max_lanes(top));
  const float keep = std::exp(head.max - max); // zero at the first step
  Vec sum(0.f);
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    const Vec w = (load(weights + j) - Vec(max)).exp_u20();
    w.store(weights + j);
    sum = sum + w;
  }
  head.max = max;
  head.sum = head.sum * keep + sum_lanes(sum);
  int64_t d = 0;
  for (; d + 8 * kLanes <= v_width; d += 8 * kLanes) {
    accumulate<8>(head.acc + d, block.v.data() + d, v_width, keep, weights, first, count);
  }
  for (; d < v_width; d += kLanes) {
    accumulate<1>(head.acc + d, block.v.data() + d, v_width, keep, weights, first, count);
  }
}

// What one query sees: ranks [start, shared) lie at the sequence's own slots, ranks from `shared`
// (a multiple of kBlock) on at `tail`.
struct View {
  int64_t start;
  int64_t shared;
  std::vector<int64_t> tail;
};

// Heads of the query rows [0, views.size()) that read one KV head.
class Tile {
 public:
  Tile(int64_t num_rows, int64_t group, int64_t k_size, int64_t v_size)
      : group_(group), k_width_(padded(k_size)), v_width_(padded(v_size)), block_(k_size, v_size),
        q_(num_rows * group * k_width_), acc_(num_rows * group * v_width_) {
    for (int64_t i = 0; i < num_rows * group; ++i) {
      heads_.push_back({q_.data() + i * k_width_, acc_.data() + i * v_width_,
                        -std::numeric_limits<float>::infinity(), 0.f});
    }
  }

  Head& head(int64_t row, int64_t g) {
    return heads_[row * group_ + g];
  }

  template <typename T>
  void walk(const KeyValues<T>& kv, int64_t kv_head, const int64_t* slots,
            const std::vector<View>& views, float cap) {
    int64_t begin = std::numeric_limits<int64_t>::max();
    int64_t end = 0;
    for (const View& view : views) {
      begin = std::min(begin, view.start / kBlock * kBlock);
      end = std::max(end, view.shared);
    }
    for (int64_t at = begin; at < end; at += kBlock) {
      block_.gather(kv, kv_head, slots + at, kBlock);
      for (size_t row = 0; row < views.size(); ++row) {
        if (at + kBlock > views[row].start && at < views[row].shared) {
          step_row(row, std::max<int64_t>(0, views[row].start - at), kBlock, cap);
        }
      }
    }
    for (size_t row = 0; row < views.size(); ++row) {
      walk_tail(kv, kv_head, row, views[row], cap);
    }
  }

 private:
  template <typename T>
  void walk_tail(const KeyValues<T>& kv, int64_t kv_head, int64_t row, const View& view,
                 float cap) {
    const int64_t size = view.tail.size();
    const int64_t skipped = std::max<int64_t>(0, view.start - view.shared);
    for (int64_t at = skipped / kBlock * kBlock; at < size; at += kBlock) {
      const int64_t count = std::min(kBlock, size - at);
      block_.gather(kv, kv_head, view.tail.data() + at, count);
      step_row(row, std::max<int64_t>(0, skipped - at), count, cap);
    }
  }

  void step_row(int64_t row, int64_t first, int64_t count, float cap) {
    for (int64_t g = 0; g < group_; ++g) {
      step(head(row, g), block_, k_width_, v_width_, first, count, cap);
    }
  }

  int64_t group_, k_width_, v_width_;
  Block block_;
  std::vector<float> q_, acc_;
  std::vector<Head> heads_;
};

} // namespace sgl_kernel_cpu
