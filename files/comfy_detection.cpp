#include "files/comfy_detection.h"

#include <algorithm>
#include <array>

namespace pestle::files {
namespace {

// The linear layers whose shape ComfyUI 0.33.0 reads (comfy/model_detection.py), by the end of
// their names; tests/comfyui loads the common models in it.
constexpr auto kRead = std::to_array<std::string_view>({
    // UNets (SD 1.5, SDXL) as published and as diffusers names them; LTX-Video
    "transformer_blocks.0.attn2.to_k",
    "label_emb.0.0",
    "class_embedding.linear_1",
    "add_embedding.linear_1",
    // FLUX, Chroma, Qwen-Image, Hunyuan
    "img_in",
    "img_in_patch",
    "txt_in",
    "txt_in.input_embedder",
    "vector_in.in_layer",
    "latent_in",
    "cond_in",
    "extra_embedder.0",
    // SD 3, AuraFlow, Lumina 2, Cosmos, Kandinsky and others
    "y_embedder.mlp.0",
    "context_embedder",
    "cond_seq_linear",
    "cap_embedder.1",
    "x_embedder",
    "x_embedder.proj.1",
    "final_layer.linear",
    "condition_proj",
    "time_embedder.proj_in",
    "visual_embeddings.in_layer",
    "input_proj",
    "first",
    "txtfusion.projector",
    "dec_net.input_embedder.embedder.0",
    "lq_proj.latent_proj.0",
    "head.head",
    "head.projects.0",
    "cam_dec.fc_t",
    // CogVideoX
    "blocks.0.norm1.linear",
    "patch_embed.proj",
    "patch_embed.text_proj",
    "ofs_embedding_linear_1",
    // Stable Audio
    "to_global_embed.0",
    "to_cond_embed.0",
    "layers.0.self_attn.to_qkv",
    "transformer.project_in",
    "layers.0.to_local_embed.0",
});

std::string shape_text(int64_t n, int64_t k) {
  return "[" + std::to_string(n) + "," + std::to_string(k) + "]";
}

}  // namespace

bool comfy_detection_reads(std::string_view layer) {
  return std::any_of(kRead.begin(), kRead.end(), [&](std::string_view end) {
    return layer.ends_with(end) &&
           (layer.size() == end.size() || layer[layer.size() - end.size() - 1] == '.');
  });
}

Result<LayerLayout> loadable_layout(std::string_view layer, const formats::FormatInfo& format,
                                    FileLayout layout, int64_t n, int64_t k) {
  Result<LayerLayout> made = layer_layout(format, layout, n, k);
  if (!made.ok() || layout == FileLayout::kPlain || !comfy_detection_reads(layer)) return made;
  const std::vector<int64_t>& stored = made.value().fields[0].shape;
  if (stored == std::vector<int64_t>{n, k}) return made;
  return unsupported("ComfyUI finds the model by this layer's shape " + shape_text(n, k) +
                     ", which " + std::string(format.name) + " would store as " +
                     shape_text(stored[0], stored[1]));
}

}  // namespace pestle::files
