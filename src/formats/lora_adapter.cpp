#include "formats/lora_adapter.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "formats/json.h"
#include "formats/module_patterns.h"
#include "formats/safetensors.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kPrefix = "base_model.model.";

class Reader {
 public:
  explicit Reader(const fs::path& folder)
      : config_path_((folder / "adapter_config.json").string()),
        weights_(folder / "adapter_model.safetensors") {
    for (const fs::path& file : {fs::path(config_path_), weights_}) {
      if (!fs::is_regular_file(file))
        throw Error(ErrorKind::invalid_argument, file.string(), "is missing",
                    "name a PEFT folder with adapter_config.json and adapter_model.safetensors");
    }
    config_ = parse_json(read_text(config_path_), config_path_);
    if (!config_.is_object()) fail("", "must hold an object");
  }

  LoraAdapter read() {
    refuse_other_kinds();
    LoraAdapter adapter{.weights = weights_, .modules = {}};
    const SafetensorsFile file(weights_);
    for (const auto& [name, stored] : file.tensors()) {
      const auto [module, part] = split(name);
      if (part != 'A') continue;
      const std::string other = name.substr(0, name.size() - 8) + "B.weight";
      if (!file.contains(other))
        throw Error(ErrorKind::corrupt_data, weights_.string(), str("tensor '", other, "' is missing"),
                    "restore the adapter from its source");
      adapter.modules.emplace(module, low_rank(module, file.tensor(name), file.tensor(other)));
    }
    for (const auto& [name, stored] : file.tensors()) {
      if (!adapter.modules.contains(split(name).first))
        throw Error(ErrorKind::corrupt_data, weights_.string(),
                    str("tensor ", quote_name(name), " has no lora_A beside it"),
                    "restore the adapter from its source");
    }
    if (adapter.modules.empty())
      throw Error(ErrorKind::corrupt_data, weights_.string(), "holds no adapter", "");
    return adapter;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what,
                         ErrorKind kind = ErrorKind::corrupt_data,
                         const std::string& remedy = "restore the adapter from its source") const {
    throw Error(kind, config_path_, key.empty() ? what : str("'", key, "' ", what), remedy);
  }

  // Whether the key says anything but no.
  bool is_set(const char* key) const {
    const auto found = config_.find(key);
    if (found == config_.end() || found->is_null()) return false;
    if (found->is_boolean()) return found->get<bool>();
    if (found->is_string()) return *found != "none";
    return !found->empty();
  }

  void refuse_other_kinds() const {
    if (config_.value("peft_type", Json()) != "LORA")
      fail("peft_type", "is not LORA", ErrorKind::unsupported, "use a LoRA adapter");
    for (const char* key :
         {"use_dora", "bias", "lora_bias", "modules_to_save", "fan_in_fan_out", "trainable_token_indices"}) {
      if (is_set(key))
        fail(key, "asks for more than a product of two matrices", ErrorKind::unsupported,
             "merge the adapter into the model before it is quantized");
    }
  }

  // "base_model.model.<module>.lora_A.weight" -> module, 'A'.
  std::pair<std::string, char> split(const std::string& name) const {
    static const std::string kTail = ".lora_A.weight";
    const size_t end = name.size() < kTail.size() ? 0 : name.size() - kTail.size();
    std::string tail = name.substr(end);
    const char part = tail.size() == kTail.size() ? tail[6] : '\0';
    if (part == 'B') tail[6] = 'A';
    if (tail != kTail || (part != 'A' && part != 'B') || !name.starts_with(kPrefix))
      throw Error(ErrorKind::unsupported, weights_.string(),
                  str("tensor ", quote_name(name), " is no part of a linear layer's LoRA"),
                  "merge the adapter into the model before it is quantized");
    const size_t begin = std::string(kPrefix).size();
    return {name.substr(begin, end - begin), part};
  }

  // The number for a module: the first pattern that matches the end of its name, else the one under `key`.
  double number(const char* key, const char* patterns, const std::string& module) const {
    const auto positive = [&](const Json& value, const char* where) {
      if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>()))
        fail(where, "must be a positive number");
      return value.get<double>();
    };
    if (const auto found = config_.find(patterns); found != config_.end() && !found->is_null()) {
      if (!found->is_object()) fail(patterns, "must be an object");
      for (const auto& [pattern, value] : found->items()) {
        if (ModulePattern("(.*\\.)?(" + pattern + ")$", config_path_).matches(module))
          return positive(value, patterns);
      }
    }
    if (!config_.contains(key)) fail(key, "is missing");
    return positive(config_.at(key), key);
  }

  LowRank low_rank(const std::string& module, const StoredTensor& a, const StoredTensor& b) const {
    const auto matrix = [&](const StoredTensor& stored, const char* part) {
      const at::Tensor values = stored.to_tensor();
      if (values.dim() != 2 || !values.is_floating_point())
        throw Error(ErrorKind::corrupt_data, weights_.string(),
                    str(module, ".lora_", part, " must be a floating-point matrix"),
                    "restore the adapter from its source");
      return values.to(at::kFloat).contiguous();
    };
    LowRank result{.a = matrix(a, "A"), .b = matrix(b, "B")};
    const double rank = number("r", "rank_pattern", module);
    if (result.b.size(1) != result.a.size(0) || static_cast<double>(result.a.size(0)) != rank)
      throw Error(ErrorKind::corrupt_data, weights_.string(),
                  gramian::str(module, ": lora_A ", result.a.sizes(), " and lora_B ", result.b.sizes(),
                               " are not of rank ", rank, ", which adapter_config.json says"),
                  "restore the adapter from its source");
    const double alpha = number("lora_alpha", "alpha_pattern", module);
    result.scale = alpha / (is_set("use_rslora") ? std::sqrt(rank) : rank);
    return result;
  }

  std::string config_path_;
  fs::path weights_;
  Json config_;
};

}  // namespace

LoraAdapter read_lora_adapter(const fs::path& folder) { return Reader(folder).read(); }

}  // namespace gramian
