// Registers the CPU kernels of the ops whose signatures sgl_kernel/schemas.py defines.
#include <Python.h>
#include <torch/library.h>

#include "ops.h"

TORCH_LIBRARY_IMPL(sgl_kernel, CPU, m) {
  using namespace sgl_kernel_cpu;
  m.impl("rmsnorm_cpu", rmsnorm_cpu);
  m.impl("fused_add_rmsnorm_cpu", fused_add_rmsnorm_cpu);
  m.impl("layernorm_cpu", layernorm_cpu);
  m.impl("silu_and_mul_cpu", silu_and_mul_cpu);
  m.impl("convert_weight_packed", convert_weight_packed);
  m.impl("weight_packed_linear", weight_packed_linear);
  m.impl("conv3d_embed_weight_pack", conv3d_embed_weight_pack);
  m.impl("conv3d_embed_cpu", conv3d_embed_cpu);
  m.impl("rotary_embedding_cpu", rotary_embedding_cpu);
  m.impl("multimodal_rotary_embedding_cpu", multimodal_rotary_embedding_cpu);
  m.impl("apply_rotary_pos_emb_cpu", apply_rotary_pos_emb_cpu);
  m.impl("store_cache_cpu", store_cache_cpu);
  m.impl("copy_all_layer_kv_cache_cpu", copy_all_layer_kv_cache_cpu);
  m.impl("decode_attention_cpu", decode_attention_cpu);
  m.impl("extend_attention_cpu", extend_attention_cpu);
  m.impl("flash_attn_varlen_func", flash_attn_varlen_func);
  m.impl("build_tree_kernel_efficient_cpu", build_tree_kernel_efficient_cpu);
  m.impl("verify_tree_greedy_cpu", verify_tree_greedy_cpu);
  m.impl("reconstruct_indices_from_tree_mask", reconstruct_indices_from_tree_mask);
  m.impl("assign_req_to_token_pool_cpu", assign_req_to_token_pool_cpu);
  m.impl("assign_extend_cache_locs_cpu", assign_extend_cache_locs_cpu);
}

// The Python module is empty: importing it runs the registration above.
PyMODINIT_FUNC MODULE_INIT(void) {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, MODULE_NAME, nullptr, -1, nullptr};
  return PyModule_Create(&module);
}
