// SGLang's candidate trees: build links from a selection or from a mask, and the greedy walk.
// Node 0 is the root. A link is a node's number in its tree, or -1.
#include "ops.h"
#include "rows.h"

#include <algorithm>
#include <vector>

namespace sgl_kernel_cpu {
namespace {

constexpr int64_t kQueryByQueryMask = 1;

struct Links {
  int64_t* number; // each [B, N]
  int64_t* child;
  int64_t* sibling;
};

Links written_links(const char* op, const at::Tensor& number, const at::Tensor& child,
                    const at::Tensor& sibling, int64_t size) {
  TORCH_CHECK(
      number.numel() == size && child.numel() == size && sibling.numel() == size, op,
      ": expected links of ", size, " elements, got ", number.numel(), ", ", child.numel(), ", ",
      sibling.numel());
  return {written<int64_t>(op, "retrieve_index", number),
          written<int64_t>(op, "retrieve_next_token", child),
          written<int64_t>(op, "retrieve_next_sibling", sibling)};
}

// Links a node's children in ascending order; a node without a parent (-1) gets no sibling.
void link(const std::vector<int64_t>& parents, int64_t b, const Links& links) {
  const int64_t n = parents.size();
  std::vector<int64_t> last(n, -1);
  for (int64_t node = 0; node < n; ++node) {
    links.number[b * n + node] = b * n + node;
    links.child[b * n + node] = -1;
    links.sibling[b * n + node] = -1;
  }
  for (int64_t node = 0; node < n; ++node) {
    const int64_t parent = parents[node];
    if (parent < 0) {
      continue;
    }
    int64_t* from = last[parent] < 0 ? links.child + b * n + parent
                                     : links.sibling + b * n + last[parent];
    *from = node;
    last[parent] = node;
  }
}

} // namespace

void build_tree_kernel_efficient_cpu(
    const at::Tensor& parent_list,
    const at::Tensor& selected_index,
    const at::Tensor& seq_lens,
    const at::Tensor& tree_mask,
    const at::Tensor& positions,
    const at::Tensor& retrieve_index,
    const at::Tensor& retrieve_next_token,
    const at::Tensor& retrieve_next_sibling,
    int64_t topk,
    int64_t depth,
    int64_t draft_token_num,
    int64_t tree_mask_mode) {
  constexpr const char* kOp = "build_tree_kernel_efficient_cpu";
  TORCH_CHECK_NOT_IMPLEMENTED(
      tree_mask_mode == kQueryByQueryMask, kOp, ": expected tree_mask_mode ", kQueryByQueryMask,
      " (N x N), got ", tree_mask_mode);
  const int64_t n = draft_token_num;
  const int64_t num_trees = seq_lens.numel();
  CHECK_SHAPE(kOp, selected_index, {num_trees, n - 1});
  TORCH_CHECK(
      tree_mask.numel() >= num_trees * n * n && positions.numel() == num_trees * n, kOp,
      ": expected a mask of at least ", num_trees * n * n, " and ", num_trees * n,
      " positions, got ", tree_mask.numel(), " and ", positions.numel());
  const at::Tensor parent_table = as_int64(parent_list);
  const at::Tensor selection = as_int64(selected_index);
  const at::Tensor lens = as_int64(seq_lens);
  const Links links = written_links(
      kOp, retrieve_index, retrieve_next_token, retrieve_next_sibling, num_trees * n);
  bool* mask = written<bool>(kOp, "tree_mask", tree_mask);
  int64_t* position = written<int64_t>(kOp, "positions", positions);
  const int64_t groups = num_trees == 0 ? 0 : parent_table.numel() / num_trees;

  std::vector<int64_t> parents(n);
  for (int64_t b = 0; b < num_trees; ++b) {
    const int64_t* selected = selection.const_data_ptr<int64_t>() + b * (n - 1);
    const int64_t* table = parent_table.const_data_ptr<int64_t>() + b * groups;
    bool* rows = mask + b * n * n;
    std::fill(rows, rows + n * n, false);
    for (int64_t node = 0; node < n; ++node) {
      parents[node] = node == 0 ? -1 : 0;
      const int64_t group = node == 0 ? 0 : selected[node - 1] / topk;
      TORCH_CHECK(group >= 0 && (group == 0 || group < groups), kOp,
                  ": expected selected entries below ", groups * topk, ", got ",
                  node == 0 ? 0 : selected[node - 1]);
      if (group > 0) {
        const int64_t* end = selected + node - 1;
        const int64_t* found = std::find(selected, end, table[group]);
        // A child drafted with probability 1 has its parent's score, and the selection may keep the
        // child without the parent. No link leads to such a node.
        parents[node] = found == end ? -1 : found - selected + 1;
      }
      bool* row = rows + node * n;
      if (parents[node] >= 0) {
        std::copy(rows + parents[node] * n, rows + parents[node] * n + n, row);
      }
      row[node] = true;
      position[b * n + node] =
          lens.const_data_ptr<int64_t>()[b] + std::count(row, row + n, true) - 1;
    }
    link(parents, b, links);
  }
}

void verify_tree_greedy_cpu(
    const at::Tensor& predicts,
    const at::Tensor& accept_index,
    const at::Tensor& accept_token_num,
    const at::Tensor& candidates,
    const at::Tensor& retrive_index,
    const at::Tensor& retrive_next_token,
    const at::Tensor& retrive_next_sibling,
    const at::Tensor& target_predict) {
  constexpr const char* kOp = "verify_tree_greedy_cpu";
  TORCH_CHECK(candidates.dim() == 2 && accept_index.dim() == 2, kOp,
              ": expected candidates [B, N] and accept_index [B, depth + 1], got ",
              candidates.sizes(), " and ", accept_index.sizes());
  const int64_t num_trees = candidates.size(0);
  const int64_t n = candidates.size(1);
  const int64_t max_len = accept_index.size(1);
  TORCH_CHECK(
      accept_index.size(0) == num_trees && accept_token_num.numel() == num_trees &&
          target_predict.numel() == num_trees * n && predicts.numel() >= num_trees * n,
      kOp, ": expected ", num_trees, " trees of ", n, " nodes, got accept_index ",
      accept_index.sizes(), ", accept_token_num ", accept_token_num.sizes(), ", target_predict ",
      target_predict.sizes(), ", predicts ", predicts.sizes());
  CHECK_SHAPE(kOp, retrive_index, candidates.sizes());
  CHECK_SHAPE(kOp, retrive_next_token, candidates.sizes());
  CHECK_SHAPE(kOp, retrive_next_sibling, candidates.sizes());
  const at::Tensor tokens = as_int64(candidates), numbers = as_int64(retrive_index),
                   children = as_int64(retrive_next_token),
                   siblings = as_int64(retrive_next_sibling), wanted = as_int64(target_predict);
  int32_t* predict = written<int32_t>(kOp, "predicts", predicts);
  int32_t* accepted = written<int32_t>(kOp, "accept_index", accept_index);
  int32_t* counts = written<int32_t>(kOp, "accept_token_num", accept_token_num);
  const int64_t* want = wanted.const_data_ptr<int64_t>();

  for (int64_t b = 0; b < num_trees; ++b) {
    const int64_t* token = tokens.const_data_ptr<int64_t>() + b * n;
    const int64_t* number = numbers.const_data_ptr<int64_t>() + b * n;
    const int64_t* child = children.const_data_ptr<int64_t>() + b * n;
    const int64_t* sibling = siblings.const_data_ptr<int64_t>() + b * n;
    int64_t len = 0;
    for (int64_t node = 0; node != -1 && len < max_len;) {
      TORCH_CHECK(number[node] >= 0 && number[node] < num_trees * n, kOp,
                  ": expected node numbers below ", num_trees * n, ", got ", number[node]);
      accepted[b * max_len + len++] = static_cast<int32_t>(number[node]);
      const int64_t next = want[number[node]];
      predict[number[node]] = static_cast<int32_t>(next);
      for (node = child[node]; node != -1 && token[node] != next;) {
        node = sibling[node];
      }
    }
    counts[b] = static_cast<int32_t>(len - 1);
  }
}

void reconstruct_indices_from_tree_mask(
    const at::Tensor& tree_mask,
    const at::Tensor& seq_lens,
    const at::Tensor& positions,
    const at::Tensor& retrieve_index,
    const at::Tensor& retrieve_next_token,
    const at::Tensor& retrieve_next_sibling,
    int64_t batch_size,
    int64_t draft_token_num) {
  constexpr const char* kOp = "reconstruct_indices_from_tree_mask";
  const int64_t n = draft_token_num;
  TORCH_CHECK(
      tree_mask.scalar_type() == at::kBool && tree_mask.numel() == batch_size * n * n &&
          seq_lens.numel() == batch_size && positions.numel() == batch_size * n,
      kOp, ": expected a bool mask of ", batch_size * n * n, ", ", batch_size, " lengths and ",
      batch_size * n, " positions, got ", tree_mask.scalar_type(), " ", tree_mask.numel(), ", ",
      seq_lens.numel(), ", ", positions.numel());
  const at::Tensor whole = tree_mask.contiguous();
  const at::Tensor lens = as_int64(seq_lens);
  const Links links = written_links(
      kOp, retrieve_index, retrieve_next_token, retrieve_next_sibling, batch_size * n);
  int64_t* position = written<int64_t>(kOp, "positions", positions);
  std::vector<int64_t> parents(n);
  for (int64_t b = 0; b < batch_size; ++b) {
    for (int64_t node = 0; node < n; ++node) {
      const bool* row = whole.const_data_ptr<bool>() + (b * n + node) * n;
      parents[node] = -1;
      int64_t depth = 0;
      for (int64_t j = 0; j < node; ++j) {
        if (row[j]) {
          parents[node] = j;
          ++depth;
        }
      }
      position[b * n + node] = lens.const_data_ptr<int64_t>()[b] + depth;
    }
    link(parents, b, links);
  }
}

} // namespace sgl_kernel_cpu
