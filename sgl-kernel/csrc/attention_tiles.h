// Splits a batch of sequences into tiles of queries and runs them.
#pragma once

#include "attention_core.h"

namespace sgl_kernel_cpu {

constexpr int64_t kRowsPerTile = 16; // queries that share a gathered block

enum class Visibility { kCausal, kAll, kTree };

// The last num_new of seq_len tokens of one sequence are the query rows from first_row on.
struct Sequence {
  std::vector<int64_t> slots; // [seq_len]
  int64_t num_new;
  int64_t first_row;
  const bool* tree; // [num_new, num_new] or null
};

struct Queries {
  const at::Tensor& q; // [T, H, D]
  const at::Tensor& o; // [T, H, Dv]
  int64_t num_kv_heads;
  Softmax softmax;
  int64_t window; // 0: none
  Visibility visibility;
  std::vector<float> sinks; // [H] or empty
};

// The keys of query i of the sequence. Only blocks that the whole tile sees are shared.
inline View view_of(const Sequence& s, int64_t i, int64_t tile_first, const Queries& queries) {
  const int64_t seq_len = s.slots.size();
  const int64_t prefix = seq_len - s.num_new;
  const int64_t common = queries.visibility == Visibility::kAll ? seq_len
      : queries.visibility == Visibility::kTree                 ? prefix
                                                                : prefix + tile_first + 1;
  View view{0, common / kBlock * kBlock, {}};
  if (queries.visibility == Visibility::kTree) {
    view.tail.assign(s.slots.begin() + view.shared, s.slots.begin() + prefix);
    for (int64_t j = 0; j < s.num_new; ++j) {
      if (s.tree[i * s.num_new + j]) {
        view.tail.push_back(s.slots[prefix + j]);
      }
    }
  } else {
    const int64_t end = queries.visibility == Visibility::kAll ? seq_len : prefix + i + 1;
    view.tail.assign(s.slots.begin() + view.shared, s.slots.begin() + end);
  }
  if (queries.window > 0) {
    const int64_t num_visible = queries.visibility == Visibility::kAll
        ? prefix + i + 1
        : view.shared + static_cast<int64_t>(view.tail.size());
    view.start = std::max<int64_t>(0, num_visible - queries.window);
  }
  return view;
}

// Divides by the softmax's denominator, to which a sink adds a weight without a value.
inline void finish(Head& head, const float* sink, int64_t v_width) {
  float scale = 1.f;
  if (sink != nullptr) {
    const float max = std::max(head.max, *sink);
    scale = std::exp(head.max - max);
    head.sum = head.sum * scale + std::exp(*sink - max);
  }
  // A query that sees no key gets zeros.
  const Vec factor(head.sum > 0.f ? scale / head.sum : 0.f);
  for (int64_t d = 0; d < v_width; d += kLanes) {
    (load(head.acc + d) * factor).store(head.acc + d);
  }
}

template <typename T>
void attend_tile(const Queries& queries, const KeyValues<T>& kv, const Sequence& s,
                 int64_t tile_first, int64_t kv_head) {
  const int64_t num_rows = std::min(kRowsPerTile, s.num_new - tile_first);
  const int64_t group = queries.q.size(1) / queries.num_kv_heads;
  const T* q = queries.q.const_data_ptr<T>();
  T* o = queries.o.data_ptr<T>();
  Tile tile(num_rows, group, kv.k_size, kv.v_size);
  std::vector<View> views;
  for (int64_t row = 0; row < num_rows; ++row) {
    views.push_back(view_of(s, tile_first + row, tile_first, queries));
    for (int64_t g = 0; g < group; ++g) {
      float* scaled = tile.head(row, g).q;
      const int64_t h = kv_head * group + g;
      to_float(q + (s.first_row + tile_first + row) * queries.q.stride(0) +
                   h * queries.q.stride(1), scaled, kv.k_size);
      for (int64_t d = 0; d < padded(kv.k_size); d += kLanes) {
        (load(scaled + d) * Vec(queries.softmax.scale)).store(scaled + d);
      }
    }
  }
  tile.walk(kv, kv_head, s.slots.data(), views, queries.softmax.cap);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t g = 0; g < group; ++g) {
      const int64_t h = kv_head * group + g;
      finish(tile.head(row, g), queries.sinks.empty() ? nullptr : &queries.sinks[h],
             padded(kv.v_size));
      from_float(tile.head(row, g).acc,
                 o + (s.first_row + tile_first + row) * queries.o.stride(0) +
                     h * queries.o.stride(1), kv.v_size);
    }
  }
}

template <typename T>
void attend(const Queries& queries, const KeyValues<T>& kv,
            const std::vector<Sequence>& sequences) {
  struct Task {
    int64_t sequence, first, kv_head;
  };
  std::vector<Task> tasks;
  int64_t work = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    work += sequences[b].num_new * sequences[b].slots.size();
    for (int64_t first = 0; first < sequences[b].num_new; first += kRowsPerTile) {
      for (int64_t h = 0; h < queries.num_kv_heads; ++h) {
        tasks.push_back({static_cast<int64_t>(b), first, h});
      }
    }
  }
  const int64_t num_tasks = tasks.size();
  work *= queries.q.size(1) * (kv.k_size + kv.v_size);
  at::parallel_for(
      0, num_tasks, grain_of(work / std::max<int64_t>(1, num_tasks)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const Task& task = tasks[i];
          attend_tile(queries, kv, sequences[task.sequence], task.first, task.kv_head);
        }
      });
}

} // namespace sgl_kernel_cpu
