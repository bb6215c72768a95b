// GLANCE's candidate tree on a CPU: nodes, ancestor mask, links, and the walk that accepts nodes.
// The results equal those of GLANCE's torch functions (core/tree.py and core/accept.py), each of
// which runs dozens of tiny ops. Nodes are sorted best first: a parent precedes its children.
#include "rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <queue>
#include <tuple>

namespace sgl_kernel_cpu {
namespace {

const int64_t* ints(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kLong && x.is_contiguous(), op, ": expected ", name,
              " int64 and contiguous, got ", x.scalar_type(), " with strides ", x.strides());
  return x.const_data_ptr<int64_t>();
}

struct Candidate {
  int64_t score;
  int64_t depth;
  int64_t parent;
  int64_t rank;

  // Puts the best candidate on top of the heap: highest score, then least depth, then first parent,
  // then lowest rank.
  bool operator<(const Candidate& other) const {
    return std::tie(score, other.depth, other.parent, other.rank) <
        std::tie(other.score, depth, parent, rank);
  }
};

struct Offsets {
  const int64_t* ids; // [B-1, K]
  const int64_t* scores; // [B-1, K]
  int64_t count;
  int64_t topk;
};

struct Nodes {
  int64_t* tokens; // each [N]
  int64_t* parents;
  int64_t* depths;
  int64_t* scores;
};

void grow(int64_t root, const Offsets& offsets, int64_t budget, const Nodes& nodes) {
  std::priority_queue<Candidate> open;
  const auto add = [&](int64_t node, const Candidate& c, int64_t token) {
    nodes.tokens[node] = token;
    nodes.parents[node] = c.parent;
    nodes.depths[node] = c.depth;
    nodes.scores[node] = c.score;
    for (int64_t rank = 0; c.depth < offsets.count && rank < offsets.topk; ++rank) {
      const int64_t edge = offsets.scores[c.depth * offsets.topk + rank];
      open.push({c.score + edge, c.depth + 1, node, rank});
    }
  };
  add(0, {0, 0, -1, 0}, root);
  for (int64_t node = 1; node < budget; ++node) {
    const Candidate best = open.top();
    open.pop();
    add(node, best, offsets.ids[(best.depth - 1) * offsets.topk + best.rank]);
  }
}

// root_tokens [B], ids and scores [B, offsets, K], all int64, scores <= 0 -> tokens, parents,
// depths and summed scores, each [B, budget] int64.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> glance_tree_cpu(
    const at::Tensor& root_tokens, const at::Tensor& ids, const at::Tensor& scores,
    int64_t budget) {
  constexpr const char* kOp = "glance_tree_cpu";
  TORCH_CHECK(ids.dim() == 3 && root_tokens.numel() == ids.size(0), kOp,
              ": expected root_tokens [B] and ids [B, offsets, K], got ", root_tokens.sizes(),
              " and ", ids.sizes());
  CHECK_SHAPE(kOp, scores, ids.sizes());
  const int64_t batch = ids.size(0), count = ids.size(1), topk = ids.size(2);
  int64_t nodes = 0;
  for (int64_t depth = 0, width = 1; depth <= count && nodes < budget; ++depth, width *= topk) {
    nodes += width;
  }
  TORCH_CHECK(1 <= budget && budget <= nodes, kOp, ": expected a budget of 1..", nodes, ", got ",
              budget);
  const int64_t* roots = ints(kOp, "root_tokens", root_tokens);
  const int64_t* id = ints(kOp, "ids", ids);
  const int64_t* score = ints(kOp, "scores", scores);
  at::Tensor out[4];
  for (at::Tensor& part : out) {
    part = at::empty({batch, budget}, ids.options());
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t from = b * count * topk, to = b * budget;
    grow(roots[b], {id + from, score + from, count, topk}, budget,
         {out[0].data_ptr<int64_t>() + to, out[1].data_ptr<int64_t>() + to,
          out[2].data_ptr<int64_t>() + to, out[3].data_ptr<int64_t>() + to});
  }
  return {out[0], out[1], out[2], out[3]};
}

int64_t parent_of(const char* op, const int64_t* parents, int64_t node) {
  TORCH_CHECK(parents[node] < node && (parents[node] >= 0 || node == 0), op,
              ": expected node ", node, " to stand after its parent, got parent ", parents[node]);
  return parents[node];
}

// parents [B, N] int64 -> [B, N, N] bool: whether the column is the row itself or its ancestor.
at::Tensor glance_tree_mask_cpu(const at::Tensor& parents) {
  constexpr const char* kOp = "glance_tree_mask_cpu";
  const int64_t* parent = ints(kOp, "parents", parents);
  const int64_t batch = parents.size(0), n = parents.size(1);
  at::Tensor out = at::zeros({batch, n, n}, parents.options().dtype(at::kBool));
  for (int64_t b = 0; b < batch; ++b) {
    bool* rows = out.data_ptr<bool>() + b * n * n;
    for (int64_t node = 0; node < n; ++node) {
      if (node > 0) {
        std::copy_n(rows + parent_of(kOp, parent + b * n, node) * n, n, rows + node * n);
      }
      rows[node * n + node] = true;
    }
  }
  return out;
}

// parents [B, N] int64 -> node number in the batch, first child and next sibling (-1: none), each
// [B, N] int64.
std::tuple<at::Tensor, at::Tensor, at::Tensor> glance_tree_links_cpu(const at::Tensor& parents) {
  constexpr const char* kOp = "glance_tree_links_cpu";
  const int64_t* parent = ints(kOp, "parents", parents);
  const int64_t batch = parents.size(0), n = parents.size(1);
  at::Tensor index = at::empty_like(parents), child = at::empty_like(parents),
             sibling = at::empty_like(parents);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t* first = child.data_ptr<int64_t>() + b * n;
    int64_t* next = sibling.data_ptr<int64_t>() + b * n;
    std::fill_n(first, n, -1);
    for (int64_t node = n - 1; node >= 0; --node) {
      index.data_ptr<int64_t>()[b * n + node] = b * n + node;
      const int64_t up = parent_of(kOp, parent + b * n, node);
      next[node] = up < 0 ? -1 : first[up];
      if (up >= 0) {
        first[up] = node;
      }
    }
  }
  return {index, child, sibling};
}

// Walks from each root to the child that carries the token drawn at the node, while there is such a
// child. tokens, parents, drawn [B, N] int64 -> the path's nodes [B, max_depth + 1], its length
// [B], the tokens drawn on the path [B, max_depth + 1] and the last of these tokens [B]; -1 past
// the end.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> glance_tree_walk_cpu(
    const at::Tensor& tokens, const at::Tensor& parents, const at::Tensor& drawn,
    int64_t max_depth) {
  constexpr const char* kOp = "glance_tree_walk_cpu";
  CHECK_SHAPE(kOp, parents, tokens.sizes());
  CHECK_SHAPE(kOp, drawn, tokens.sizes());
  const int64_t* token = ints(kOp, "tokens", tokens);
  const int64_t* parent = ints(kOp, "parents", parents);
  const int64_t* target = ints(kOp, "drawn", drawn);
  const int64_t batch = tokens.size(0), n = tokens.size(1), width = max_depth + 1;
  at::Tensor path = at::full({batch, width}, -1, tokens.options());
  at::Tensor committed = at::full({batch, width}, -1, tokens.options());
  at::Tensor lens = at::empty({batch}, tokens.options());
  at::Tensor bonus = at::empty({batch}, tokens.options());
  for (int64_t b = 0; b < batch; ++b) {
    int64_t at = 0, length = 0;
    while (true) {
      path.data_ptr<int64_t>()[b * width + length] = at;
      committed.data_ptr<int64_t>()[b * width + length] = target[b * n + at];
      if (++length == width) {
        break;
      }
      int64_t node = at + 1;
      while (node < n &&
             (parent[b * n + node] != at || token[b * n + node] != target[b * n + at])) {
        ++node;
      }
      if (node == n) {
        break;
      }
      at = node;
    }
    lens.data_ptr<int64_t>()[b] = length;
    bonus.data_ptr<int64_t>()[b] = target[b * n + at];
  }
  return {path, lens, committed, bonus};
}

} // namespace
} // namespace sgl_kernel_cpu

TORCH_LIBRARY_FRAGMENT(sgl_kernel, m) {
  using namespace sgl_kernel_cpu;
  m.def("glance_tree_cpu(Tensor root_tokens, Tensor ids, Tensor scores, int budget) -> (Tensor, "
        "Tensor, Tensor, Tensor)");
  m.def("glance_tree_mask_cpu(Tensor parents) -> Tensor");
  m.def("glance_tree_links_cpu(Tensor parents) -> (Tensor, Tensor, Tensor)");
  m.def("glance_tree_walk_cpu(Tensor tokens, Tensor parents, Tensor drawn, int max_depth) -> "
        "(Tensor, Tensor, Tensor, Tensor)");
  m.impl("glance_tree_cpu", c10::DispatchKey::CPU, TORCH_FN(glance_tree_cpu));
  m.impl("glance_tree_mask_cpu", c10::DispatchKey::CPU, TORCH_FN(glance_tree_mask_cpu));
  m.impl("glance_tree_links_cpu", c10::DispatchKey::CPU, TORCH_FN(glance_tree_links_cpu));
  m.impl("glance_tree_walk_cpu", c10::DispatchKey::CPU, TORCH_FN(glance_tree_walk_cpu));
}
