// A llama folder with random weights, small enough for unit tests. Change `config` or `tensors`, then open().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/model.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian::testing_support {

inline at::Tensor random_normal(at::IntArrayRef shape, uint32_t seed) {
  at::Tensor tensor = tensor::empty(shape, at::kFloat);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto* data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = normal(random);
  return tensor;
}

struct TinySizes {
  int64_t hidden = 32;
  int64_t intermediate = 48;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t layers = 2;
  int64_t vocab = 50;
};

class TinyModel {
 public:
  explicit TinyModel(const TinySizes& sizes = {}, uint32_t seed = 1) {
    config = {{"model_type", "llama"},
              {"architectures", {"LlamaForCausalLM"}},
              {"hidden_size", sizes.hidden},
              {"intermediate_size", sizes.intermediate},
              {"num_attention_heads", sizes.heads},
              {"num_key_value_heads", sizes.kv_heads},
              {"num_hidden_layers", sizes.layers},
              {"vocab_size", sizes.vocab}};
    const int64_t kv = sizes.kv_heads * (sizes.hidden / sizes.heads);
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, double gain) {
      tensors[name + ".weight"] =
          random_normal({out, in}, seed++).mul_(gain / std::sqrt(static_cast<double>(in)));
    };
    const auto norm = [&](const std::string& name) {
      tensors[name + ".weight"] = random_normal({sizes.hidden}, seed++).mul_(0.2).add_(1.0);
    };
    matrix("model.embed_tokens", sizes.vocab, sizes.hidden, std::sqrt(static_cast<double>(sizes.hidden)));
    matrix("lm_head", sizes.vocab, sizes.hidden, 2.0);
    norm("model.norm");
    for (int64_t i = 0; i < sizes.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      norm(layer + "input_layernorm");
      norm(layer + "post_attention_layernorm");
      matrix(layer + "self_attn.q_proj", sizes.hidden, sizes.hidden, 1.2);
      matrix(layer + "self_attn.k_proj", kv, sizes.hidden, 1.2);
      matrix(layer + "self_attn.v_proj", kv, sizes.hidden, 1.2);
      matrix(layer + "self_attn.o_proj", sizes.hidden, sizes.hidden, 1.2);
      matrix(layer + "mlp.gate_proj", sizes.intermediate, sizes.hidden, 1.2);
      matrix(layer + "mlp.up_proj", sizes.intermediate, sizes.hidden, 1.2);
      matrix(layer + "mlp.down_proj", sizes.hidden, sizes.intermediate, 1.2);
    }
  }

  // Writes config.json and model.safetensors.
  const std::filesystem::path& save() {
    write_bytes(folder.path() / "config.json", config.dump());
    save_safetensors(folder.path() / "model.safetensors", tensors);
    return folder.path();
  }
  Model open(ModelOptions options = {}) { return {std::make_shared<const Checkpoint>(save()), options}; }

  nlohmann::ordered_json config;
  std::map<std::string, at::Tensor> tensors;
  TemporaryFolder folder;
};

// Rows of these lengths with ids below `vocab`.
inline std::vector<TokenRow> random_rows(const std::vector<int64_t>& lengths, int64_t vocab,
                                         uint32_t seed = 5) {
  std::mt19937 random(seed);
  std::vector<TokenRow> rows;
  for (const int64_t length : lengths) {
    TokenRow& row = rows.emplace_back();
    for (int64_t i = 0; i < length; ++i)
      row.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(vocab)));
  }
  return rows;
}

// Normed states of rows through all layers of a model, packed.
inline at::Tensor forward(const Model& model, const std::vector<TokenRow>& rows) {
  const BatchContext context = model.context(rows);
  at::Tensor hidden = model.embed(model.pack_rows(rows));
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    const auto layer = model.load_layer(i);
    hidden = run(layer->forward(std::move(hidden), context));
  }
  return model.final_norm(hidden);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace gramian::testing_support
