#include "formats/gguf/model_plan.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/interrupt.h"
#include "formats/gguf/convert.h"
#include "formats/gguf/families.h"
#include "formats/gguf/names.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

constexpr int64_t kChunkValues = int64_t{1} << 24;

// Layers in their order, and within each by name; what is outside of them first.
struct ByLayer {
  static std::pair<int64_t, std::string> key(const std::string& name) {
    constexpr std::string_view kBlock = "blk.";
    return {name.starts_with(kBlock) ? std::stoll(name.substr(kBlock.size())) : -1, name};
  }
  bool operator()(const std::string& a, const std::string& b) const { return key(a) < key(b); }
};
using Sources = std::map<std::string, TensorSource, ByLayer>;

// Tensors that other programs compute themselves.
bool is_left_out(const std::string& name, bool tied) {
  return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

std::vector<float> numbers(const nlohmann::ordered_json& list, const std::string& where) {
  std::vector<float> values;
  for (const auto& value : list.is_array() ? list : nlohmann::ordered_json::array()) {
    if (value.is_number()) values.push_back(value.get<float>());
  }
  if (values.empty() || values.size() != list.size())
    throw Error(ErrorKind::corrupt_data, where, "expected a list of numbers as rotary factors",
                "take config.json from the model's publisher");
  return values;
}

// Rotary scaling that is told by factors of each frequency.
void add_rotary(const Checkpoint& checkpoint, const Metadata& metadata, Sources& sources) {
  const auto& config = checkpoint.config();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_object()) continue;
    const std::string type = found->value("rope_type", found->value("type", std::string("default")));
    const std::string prefix = *metadata.string("general.architecture");
    if (type == "llama3") {
      const double theta = *metadata.number(prefix + ".rope.freq_base");
      sources["rope_freqs.weight"].values =
          llama3_factors(*found, theta, *metadata.integer(prefix + ".rope.dimension_count"));
    }
    if (type == "longrope") {
      const std::string where = (checkpoint.folder() / "config.json").string();
      for (const auto& [name, list] : {std::pair{"rope_factors_long.weight", "long_factor"},
                                       {"rope_factors_short.weight", "short_factor"}})
        sources[name].values = numbers(found->value(list, nlohmann::ordered_json()), where);
    }
    return;
  }
}

Sources find_sources(const Checkpoint& checkpoint, const Metadata& metadata) {
  const auto& config = checkpoint.config();
  const std::string type = config.at("model_type").get<std::string>(), where = checkpoint.folder().string();
  const std::string prefix = *metadata.string("general.architecture") + ".attention.";
  const Family& family = *family_of_type(type);
  const bool tied = config.value("tie_word_embeddings", type.starts_with("gemma"));
  Sources sources;
  for (const auto& [name, stored] : checkpoint.tensors()) {
    if (is_left_out(name, tied)) continue;
    const auto mapped = mapped_name(name, type);
    if (!mapped) {
      // Of experts, only what lies otherwise than row by row is still a stack here.
      throw Error(ErrorKind::unsupported, where, str("tensor ", quote_name(name), " has no name in GGUF"),
                  stored.shape.size() == 3 ? "save the model with a tensor for each expert's matrix"
                                           : "convert a model of the plain architecture");
    }
    TensorSource& source = sources[mapped->name];
    if (!source.names.emplace(mapped->expert, name).second) {
      throw Error(ErrorKind::corrupt_data, where, str("two tensors would be ", quote_name(mapped->name)),
                  "take the checkpoint from the model's publisher");
    }
    source.plus_one = family.norms_plus_one && name.ends_with("norm.weight");
    if (family.interleaved && name.find(".self_attn.q_proj.") != std::string::npos)
      source.heads = *metadata.integer(prefix + "head_count");
    if (family.interleaved && name.find(".self_attn.k_proj.") != std::string::npos)
      source.heads = *metadata.integer(prefix + "head_count_kv");
  }
  add_rotary(checkpoint, metadata, sources);
  return sources;
}

TensorType type_of(const std::string& name, const TensorSource& source, const Checkpoint& checkpoint,
                   const ChooseType& choose) {
  if (!source.values.empty()) return {name, find_codec("F32"), {static_cast<int64_t>(source.values.size())}};
  std::vector<int64_t> shape = checkpoint.tensor(source.names.begin()->second).shape;
  // The gate of a shared expert is one row.
  if (name.ends_with("ffn_gate_inp_shexp.weight") && shape.size() == 2 && shape[0] == 1) shape = {shape[1]};
  const bool plain =
      shape.size() < 2 || name.ends_with("_norm.weight") || name.ends_with("ffn_gate_inp.weight");
  const Codec* codec = plain ? find_codec("F32") : choose(source.names.begin()->second, shape.back());
  TensorType type{name, codec, shape};
  if (source.names.begin()->first < 0) return type;
  int64_t expert = 0;
  for (const auto& [index, from] : source.names) {
    const bool same = checkpoint.tensor(from).shape == checkpoint.tensor(source.names.begin()->second).shape;
    if (index != expert++ || !same) {
      throw Error(ErrorKind::corrupt_data, checkpoint.folder().string(),
                  same ? str("expert ", expert - 1, " of ", quote_name(name), " is missing")
                       : str("tensor ", quote_name(from), " has another shape than the experts before it"),
                  "take the checkpoint from the model's publisher");
    }
    if (!plain && choose(from, shape.back()) != codec) {
      throw Error(
          ErrorKind::unsupported, checkpoint.folder().string(),
          str("the experts of ", quote_name(name), " would have several types, the first ", codec->name),
          "let a rule match all experts of a stack, or none");
    }
  }
  type.shape.insert(type.shape.begin(), expert);
  return type;
}

void check_heads(const ModelPlan& plan, const Checkpoint& checkpoint) {
  for (size_t i = 0; i < plan.types.size(); ++i) {
    const int64_t heads = plan.sources[i].heads, rows = plan.types[i].shape.front();
    if (heads == 0 || (heads > 0 && rows % (2 * heads) == 0)) continue;
    throw Error(ErrorKind::corrupt_data, checkpoint.folder().string(),
                str("tensor ", quote_name(plan.sources[i].names.begin()->second), " has ", rows,
                    " rows, which ", heads, " heads cannot share in pairs"),
                "check config.json");
  }
}

// Appends the values of one tensor of the checkpoint, encoded.
void append_values(const at::Tensor& values, const TensorType& type, const std::string& name,
                   const float* importance, ThreadPool& pool, const Append& append) {
  const int64_t columns = type.columns(), rows = values.numel() / columns;
  const int64_t step = std::max<int64_t>(1, kChunkValues / columns);
  std::vector<uint8_t> blocks;
  const at::Tensor flat = values.reshape({rows, columns});
  const EncodeRowsOptions options{.importance = importance, .level = cpu_level(), .pool = &pool};
  for (int64_t row = 0; row < rows; row += step) {
    throw_if_interrupted();
    const int64_t count = std::min(step, rows - row);
    const at::Tensor part = flat.narrow(0, row, count).to(at::kFloat).contiguous();
    blocks.resize(static_cast<size_t>(count * type.codec->row_bytes(columns)));
    encode_rows(*type.codec, part.const_data_ptr<float>(), count, columns, options, blocks.data(), name);
    append(std::as_bytes(std::span(blocks)));
  }
}

at::Tensor swapped(const at::Tensor& rows, int64_t heads, int64_t first, int64_t second) {
  return rows.reshape({heads, first, second, -1}).transpose(1, 2).reshape(rows.sizes()).contiguous();
}

}  // namespace

at::Tensor interleave(const at::Tensor& rows, int64_t heads) {
  return swapped(rows, heads, 2, rows.size(0) / heads / 2);
}

at::Tensor deinterleave(const at::Tensor& rows, int64_t heads) {
  return swapped(rows, heads, rows.size(0) / heads / 2, 2);
}

uint32_t file_type(const Codec& codec) {
  constexpr std::pair<const char*, uint32_t> kTypes[] = {
      {"F32", 0},   {"F16", 1},   {"Q4_0", 2},  {"Q4_1", 3},  {"Q8_0", 7},     {"Q5_0", 8},    {"Q5_1", 9},
      {"Q2_K", 10}, {"Q4_K", 14}, {"Q5_K", 16}, {"Q6_K", 18}, {"IQ2_XXS", 19}, {"IQ4_NL", 25}, {"BF16", 32}};
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const auto& type) { return codec.name == type.first; });
  GRAMIAN_CHECK(found != std::end(kTypes), "no file type of ", codec.name);
  return found->second;
}

ModelPlan plan_model(const Checkpoint& checkpoint, const std::string& name, const ChooseType& type,
                     Log& log) {
  ModelPlan plan;
  plan.metadata = model_metadata(checkpoint.config(), (checkpoint.folder() / "config.json").string());
  plan.metadata.set("general.name", name);
  for (auto& [tensor, source] : find_sources(checkpoint, plan.metadata)) {
    plan.types.push_back(type_of(tensor, source, checkpoint, type));
    for (const auto& [expert, from] : source.names)
      plan.places[from] = {plan.sources.size(), std::max<int64_t>(0, expert)};
    plan.sources.push_back(source);
  }
  check_heads(plan, checkpoint);
  const int64_t vocab = checkpoint.tensor("model.embed_tokens.weight").shape.at(0);
  add_tokenizer(checkpoint.side_folder(), checkpoint.config(), vocab, plan.metadata, log);
  return plan;
}

void append_tensor(const Checkpoint& checkpoint, const ModelPlan& plan, size_t tensor,
                   const Importance& importance, ThreadPool& pool, const Append& append) {
  const TensorSource& source = plan.sources[tensor];
  const TensorType& type = plan.types[tensor];
  if (!source.values.empty()) append(std::as_bytes(std::span(source.values)));
  const std::vector<float>* weights = importance ? importance(type.name) : nullptr;
  for (const auto& [expert, name] : source.names) {
    const StoredTensor& stored = checkpoint.tensor(name);
    at::Tensor values = stored.to_tensor();
    if (source.heads > 0) values = interleave(values, source.heads);
    if (source.plus_one) values = values.to(at::kFloat).add(1);
    append_values(values, type, name, weights == nullptr ? nullptr : weights->data(), pool, append);
    stored.drop();
  }
}

}  // namespace gramian::gguf
