// config.json from GGUF's keys: model_config() of model_reader.h.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/families.h"
#include "formats/gguf/model_reader.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLayersMax = 65536;  // as config.json may say

// 1e-5 of the f32 that is nearest to it.
double shortest(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  char text[32];
  const char* end = std::to_chars(text, text + sizeof text, single).ptr;
  double decimal = value;
  std::from_chars(text, end, decimal);
  return decimal;
}

class Keys {
 public:
  Keys(const Metadata& metadata, std::string where)
      : metadata_(metadata), where_(std::move(where)), prefix_(architecture_of() + ".") {}

  std::string architecture() const { return prefix_.substr(0, prefix_.size() - 1); }
  const Metadata& metadata() const { return metadata_; }
  const std::string& where() const { return where_; }

  std::optional<int64_t> integer(const std::string& key) const {
    const auto value = metadata_.integer(prefix_ + key);
    if (value && (*value < 0 || *value > INT32_MAX)) refuse(key, str("is ", *value));
    return value;
  }
  int64_t required(const std::string& key) const {
    const auto value = integer(key);
    if (!value) refuse(key, "is missing");
    return *value;
  }
  std::optional<double> number(const std::string& key) const {
    const auto value = metadata_.number(prefix_ + key);
    if (!value) return std::nullopt;
    if (!std::isfinite(*value)) refuse(key, "is not finite");
    return shortest(*value);
  }
  const std::string* string(const std::string& key) const { return metadata_.string(prefix_ + key); }
  bool has(const std::string& key) const { return metadata_.find(prefix_ + key) != nullptr; }
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_, str("the key ", quote_name(prefix_ + key), " ", what),
                "convert the model again");
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorKind::unsupported, where_, what,
                "give the Hugging Face folder that the file was made of");
  }

 private:
  std::string architecture_of() const {
    const std::string* name = metadata_.string("general.architecture");
    if (name == nullptr || name->empty())
      throw Error(ErrorKind::corrupt_data, where_, "has no key \"general.architecture\": it holds no model",
                  "name the file of a model");
    return *name;
  }

  const Metadata& metadata_;
  std::string where_, prefix_;
};

const Tensor* find(const std::vector<File>& files, std::string_view name) {
  for (const File& file : files) {
    if (const Tensor* tensor = file.find(name)) return tensor;
  }
  return nullptr;
}

std::vector<double> factors_of(const Tensor& tensor, int64_t count, const Keys& keys) {
  if (tensor.shape != std::vector<int64_t>{count})
    throw Error(ErrorKind::corrupt_data, keys.where(),
                str("tensor ", quote_name(tensor.name), " does not hold ", count, " factors"),
                "convert the model again");
  std::vector<float> values(static_cast<size_t>(count));
  tensor.decode(values.data());
  return {values.begin(), values.end()};
}

// Llama 3's settings, where the stored factors are what they give; the original length is not told.
std::optional<Json> llama3_of(const std::vector<double>& factors, double theta, int64_t head) {
  const double factor = *std::max_element(factors.begin(), factors.end());
  for (const int64_t original : {8192, 4096, 2048, 16384, 32768}) {
    const Json rope = {{"rope_type", "llama3"},
                       {"factor", factor},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", original}};
    const std::vector<float> expected = llama3_factors(rope, theta, head);
    const auto near = [](double a, float b) {
      return std::fabs(a - static_cast<double>(b)) <= 1e-5 * std::fabs(a);
    };
    if (std::equal(factors.begin(), factors.end(), expected.begin(), near)) return rope;
  }
  return std::nullopt;
}

// The rotary scaling, or null.
Json scaling_of(const Keys& keys, const std::vector<File>& files, double theta, int64_t head) {
  const std::string* type = keys.string("rope.scaling.type");
  if (const Tensor* stored = find(files, "rope_freqs.weight")) {
    const std::vector<double> factors = factors_of(*stored, head / 2, keys);
    if (const auto rope = llama3_of(factors, theta, head)) return *rope;
    return {{"rope_type", "longrope"},
            {"short_factor", factors},
            {"long_factor", factors},
            {"attention_factor", 1.0},
            {"original_max_position_embeddings", keys.required("context_length")}};
  }
  if (const Tensor* stored = find(files, "rope_factors_long.weight")) {
    const Tensor* brief = find(files, "rope_factors_short.weight");
    if (brief == nullptr) keys.unsupported("has rope_factors_long.weight without rope_factors_short.weight");
    Json rope = {{"rope_type", "longrope"},
                 {"short_factor", factors_of(*brief, head / 2, keys)},
                 {"long_factor", factors_of(*stored, head / 2, keys)},
                 {"original_max_position_embeddings", keys.required("rope.scaling.original_context_length")}};
    if (const auto factor = keys.number("rope.scaling.attn_factor")) rope["attention_factor"] = *factor;
    return rope;
  }
  if (type == nullptr || *type == "none") return nullptr;
  const auto factor = keys.number("rope.scaling.factor");
  if ((*type != "linear" && *type != "yarn") || !factor)
    keys.unsupported(str("rotary scaling ", quote_name(*type), factor ? "" : " without a factor"));
  Json rope = {{"rope_type", *type}, {"factor", *factor}};
  if (const auto original = keys.integer("rope.scaling.original_context_length"); original && *type == "yarn")
    rope["original_max_position_embeddings"] = *original;
  if (const auto attention = keys.number("rope.scaling.attn_factor"); attention && *type == "yarn")
    rope["attention_factor"] = *attention;
  return rope;
}

void add_experts(const Keys& keys, const std::string& type, const std::vector<File>& files, Json& config) {
  const auto count = keys.integer("expert_count");
  if (!count || *count == 0) return;
  config[type == "mixtral" ? "num_local_experts" : "num_experts"] = *count;
  config["num_experts_per_tok"] = keys.required("expert_used_count");
  if (type == "mixtral") return;
  const auto rows = [&](const char* name) -> int64_t {
    const Tensor* tensor = find(files, name);
    return tensor == nullptr || tensor->shape.size() < 2 ? 0 : tensor->shape[tensor->shape.size() - 2];
  };
  config["moe_intermediate_size"] =
      keys.integer("expert_feed_forward_length").value_or(rows("blk.0.ffn_up_exps.weight"));
  if (const int64_t shared =
          keys.integer("expert_shared_feed_forward_length").value_or(rows("blk.0.ffn_up_shexp.weight")))
    config["shared_expert_intermediate_size"] = shared;
  config["norm_topk_prob"] = type == "qwen3_moe";
  Json dense = Json::array();
  for (int64_t i = 0; i < keys.required("block_count"); ++i) {
    if (find(files, str("blk.", i, ".ffn_gate_inp.weight")) == nullptr) dense.push_back(i);
  }
  config["mlp_only_layers"] = dense;
}

void add_gemma(const Keys& keys, const std::string& type, int64_t head, Json& config) {
  if (type != "gemma3_text") config["hidden_act"] = "gelu_pytorch_tanh";
  config["hidden_activation"] = "gelu_pytorch_tanh";
  if (type == "gemma") return;
  // 27 B models scale by the width of a head that they do not have: no key tells it.
  const bool large = keys.required("block_count") == (type == "gemma2" ? 46 : 62);
  config["query_pre_attn_scalar"] =
      large ? keys.required("embedding_length") / keys.required("attention.head_count") : head;
  if (const auto window = keys.integer("attention.sliding_window")) config["sliding_window"] = *window;
  if (type == "gemma2") {
    for (const auto& [cap, usual] :
         {std::pair{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}}) {
      const double value = keys.number(cap).value_or(usual);
      config[cap] = value > 0 ? Json(value) : Json(nullptr);
    }
    return;
  }
  config["sliding_window_pattern"] = 6;
  config["rope_local_base_freq"] = keys.number("rope.freq_base_swa").value_or(10000.0);
}

void add_special_tokens(const Metadata& metadata, Json& config) {
  for (const auto& [key, name] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                  {"tokenizer.ggml.eos_token_id", "eos_token_id"},
                                  {"tokenizer.ggml.padding_token_id", "pad_token_id"}}) {
    if (const auto id = metadata.integer(key)) config[name] = *id;
  }
}

}  // namespace

Json model_config(const Metadata& metadata, const std::vector<File>& files, const std::string& where) {
  const Keys keys(metadata, where);
  const bool experts = keys.integer("expert_count").value_or(0) > 0;
  const Family* family = family_of_architecture(keys.architecture(), experts);
  if (family == nullptr)
    keys.unsupported(str("models of architecture ", quote_name(keys.architecture()), " are not read"));
  const std::string type = family->model_type;
  const int64_t hidden = keys.required("embedding_length"), heads = keys.required("attention.head_count");
  if (heads == 0 || hidden == 0) keys.refuse("attention.head_count", "leaves no heads");
  const int64_t head = keys.integer("attention.key_length").value_or(hidden / heads);
  if (keys.integer("attention.value_length").value_or(head) != head)
    keys.unsupported("keys and values of different lengths");
  const int64_t layers = keys.required("block_count");
  if (layers < 1 || layers > kLayersMax) keys.refuse("block_count", str("does not lie in 1..", kLayersMax));
  const Tensor* embedding = find(files, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    throw Error(ErrorKind::corrupt_data, where, "has no matrix \"token_embd.weight\"",
                "download the file again");
  Json config;
  config["architectures"] = Json::array({family->class_name});
  config["model_type"] = type;
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = hidden;
  config["intermediate_size"] = keys.required("feed_forward_length");
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.integer("attention.head_count_kv").value_or(heads);
  config["head_dim"] = head;
  config["max_position_embeddings"] = keys.required("context_length");
  config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon").value_or(1e-6);
  config["tie_word_embeddings"] = find(files, "output.weight") == nullptr;
  const double theta = keys.number("rope.freq_base").value_or(type == "gemma3_text" ? 1000000.0 : 10000.0);
  config["rope_theta"] = theta;
  const int64_t rotary = keys.integer("rope.dimension_count").value_or(head);
  if (rotary != head && type == "phi3")
    config["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head);
  if (rotary != head && type != "phi3")
    keys.unsupported(str(rotary, " of ", head, " entries of a head turned"));
  if (const Json scaling = scaling_of(keys, files, theta, rotary); !scaling.is_null())
    config["rope_scaling"] = scaling;
  if (type == "llama") config["attention_bias"] = find(files, "blk.0.attn_q.bias") != nullptr;
  if (type == "phi3") {
    if (config.contains("rope_scaling"))
      config["original_max_position_embeddings"] = config["rope_scaling"]["original_max_position_embeddings"];
    if (const auto window = keys.integer("attention.sliding_window")) config["sliding_window"] = *window;
  }
  if (type.starts_with("gemma")) add_gemma(keys, type, head, config);
  if (experts) add_experts(keys, type, files, config);
  add_special_tokens(metadata, config);
  return config;
}

}  // namespace gramian::gguf
