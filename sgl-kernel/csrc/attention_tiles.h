// Splits a batch of sequences into tiles of queries and runs them.
#pragma once

#include "attention_core.h"

namespace sgl_kernel_cpu {

constexpr int64_t kRowsPerTile = 16; // queries that share each gathered block of keys

enum class Visibility { kCausal, kAll, kTree };

// One sequence. Its last num_new tokens are queries, in the rows of q from first_row on.
struct Sequence {
  std::vector<int64_t> slots; // [seq_len]
  int64_t num_new;
  int64_t first_row;
  const bool* tree; // tree mask [num_new, num_new], or null
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

// The keys that query i of the sequence sees.
inline View view_of(const Sequence& s, int64_t i, const Queries& queries) {
  const int64_t seq_len = s.slots.size();
  const int64_t prefix = seq_len - s.num_new;
  View view{0, prefix + i + 1, {}};
  int64_t num_visible = view.end;
  if (queries.visibility == Visibility::kAll) {
    view.end = seq_len;
  } else if (queries.visibility == Visibility::kTree) {
    view.end = prefix;
    for (int64_t j = 0; j < s.num_new; ++j) {
      if (s.tree[i * s.num_new + j]) {
        view.nodes.push_back(prefix + j);
      }
    }
    num_visible = prefix + static_cast<int64_t>(view.nodes.size());
  }
  if (queries.window > 0) {
    view.start = std::max<int64_t>(0, num_visible - queries.window);
    if (view.start > view.end) {
      view.nodes.erase(view.nodes.begin(), view.nodes.begin() + (view.start - view.end));
    }
  }
  return view;
}

template <typename T>
void attend_tile(const Queries& queries, const KeyValues<T>& kv, const Sequence& s,
                 int64_t tile_first, int64_t kv_head) {
  const int64_t num_rows = std::min(kRowsPerTile, s.num_new - tile_first);
  const int64_t group = queries.q.size(1) / queries.num_kv_heads;
  const int64_t k_width = padded(kv.k_size);
  const int64_t v_width = padded(kv.v_size);
  const T* q = queries.q.const_data_ptr<T>();
  T* o = queries.o.data_ptr<T>();
  std::vector<View> views;
  for (int64_t row = 0; row < num_rows; ++row) {
    views.push_back(view_of(s, tile_first + row, queries));
  }
  Tile tile(views, group, kv.k_size, kv.v_size);
  for (int64_t i = 0; i < tile.num_heads(); ++i) {
    float* scaled = tile.q.data() + i * k_width;
    to_float(q + (s.first_row + tile_first + i / group) * queries.q.stride(0) +
                 (kv_head * group + i % group) * queries.q.stride(1), scaled, kv.k_size);
    for (int64_t d = 0; d < k_width; d += kLanes) {
      (load(scaled + d) * Vec(queries.softmax.scale)).store(scaled + d);
    }
  }
  tile.run(kv, kv_head, s.slots.data(), queries.softmax.cap,
           queries.sinks.empty() ? nullptr : queries.sinks.data() + kv_head * group);
  for (int64_t i = 0; i < tile.num_heads(); ++i) {
    float* out = tile.acc.data() + i * v_width;
    for (int64_t d = 0; d < v_width; d += kLanes) {
      (load(out + d) * Vec(tile.factors[i])).store(out + d);
    }
    from_float(out, o + (s.first_row + tile_first + i / group) * queries.o.stride(0) +
                        (kv_head * group + i % group) * queries.o.stride(1), kv.v_size);
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
