#include "pipeline/verify.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/interrupt.h"
#include "formats/linear_format.h"
#include "formats/module_patterns.h"
#include "formats/qqq_format.h"
#include "formats/tokenizer.h"
#include "pipeline/non_finite.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

class Verifier {
 public:
  Verifier(const std::shared_ptr<const Checkpoint>& checkpoint, const VerifyOptions& options,
           ThreadPool& pool, Log& log)
      : checkpoint_(checkpoint),
        options_(options),
        pool_(pool),
        config_name_((checkpoint->folder() / "config.json").string()),
        fields_(checkpoint->config().value("quantization_config", Json())),
        progress_(log, "tensors verified", static_cast<int64_t>(checkpoint->tensors().size())) {}

  Verification run() {
    for (std::string& fault : checkpoint_->index_faults()) problem(std::move(fault));
    check_config();
    check_second_config();
    if (options_.copies) check_tokenizer();
    const std::vector<Linear> linears = survey();
    check_linears(linears);
    check_other_modules(linears);
    if (options_.copies) check_values();
    return std::move(result_);
  }

 private:
  void problem(std::string line) { result_.problems.push_back(std::move(line)); }

  // Damage that `check` finds by itself becomes a problem. Returns whether there was none.
  template <class Check>
  bool attempt(const Check& check) {
    try {
      check();
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data && error.kind() != ErrorKind::invalid_argument) throw;
      problem(error.what());
      return false;
    }
  }

  void check_config() {
    std::string failure;
    try {
      if (const auto stored = stored_format(checkpoint_->config(), config_name_)) {
        result_.stored = stored;
        stored_ = *stored;
        return;
      }
    } catch (const Error& error) {
      failure = error.what();
      if (!guess_format()) throw;
      return problem(failure);
    }
    if (guess_format() && fields_.is_null())
      problem(str(config_name_, ": no quantization_config, but there are tensors of ", stored_.format->name(),
                  " modules"));
  }

  // Where config.json does not say it, the tensors do. False where no tensor is of a quantized module.
  bool guess_format() {
    for (const LinearFormat* format : all_formats()) {
      if (format->marks().empty()) continue;
      stored_ = {};
      stored_.format = format;
      stored_.grid = format->settle({}, DType::bf16).grid;
      for (const auto& [name, tensor] : checkpoint_->tensors()) {
        if (!format->module_of(name)) continue;
        if (format == &qqq_format() && !has_groups()) stored_.grid.group_size = -1;
        return true;
      }
    }
    stored_ = {};
    stored_.format = &qqq_format();
    return false;
  }

  bool has_groups() const {
    return std::any_of(checkpoint_->tensors().begin(), checkpoint_->tensors().end(), [](const auto& entry) {
      return entry.first.ends_with(".s_group") && !entry.second.bytes.empty();
    });
  }

  void check_second_config() {
    const fs::path path = checkpoint_->folder() / "quantize_config.json";
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    Json second;
    if (!attempt([&] { second = parse_json(read_text(path), path.string()); })) return;
    if (!second.is_object() || !fields_.is_object()) {
      return problem(path.string() +
                     ": does not go with config.json's quantization_config: expected two objects");
    }
    for (const auto& [key, value] : second.items()) {
      if (key == "meta" || !fields_.contains(key) || fields_.at(key) == value) continue;
      problem(str(path.string(), ": ", quote_name(key), " is ", value.dump(), ", config.json says ",
                  fields_.at(key).dump()));
    }
  }

  void check_tokenizer() {
    const fs::path path = checkpoint_->folder() / "tokenizer.json";
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    attempt([&] {
      try {
        const Tokenizer tokenizer(path);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::unsupported) throw;  // not built is not damaged
      }
    });
  }

  // The linear layers of the architecture; none when config.json does not read.
  std::vector<Linear> survey() {
    architecture_known_ = options_.linears.has_value();
    if (architecture_known_) return *options_.linears;
    Weights::Survey survey;
    survey.is_packed = [this](const std::string& module) {
      return stored_.of(module).format->holds(*checkpoint_, module);
    };
    std::vector<Linear> linears;
    architecture_known_ = attempt([&] {
      const Model model(checkpoint_,
                        {.dtype = at::kFloat, .treat_as_tied = false, .quantized = {}, .headers = &survey});
      for (auto& layer : model.survey(survey)) {
        for (Linear& linear : layer) linears.push_back(std::move(linear));
      }
      if (stored_.head && holds_head()) linears.push_back(model.head());
    });
    for (std::string& line : survey.problems) problem(std::move(line));
    return linears;
  }

  bool holds_head() const { return stored_.of(kHeadName).format->holds(*checkpoint_, kHeadName); }

  void check_linears(const std::vector<Linear>& linears) {
    std::vector<std::string> names;
    for (const Linear& linear : linears) names.push_back(linear.name);
    std::set<std::string> excluded;
    const bool readable = attempt([&] { excluded = excluded_modules(fields_, names, config_name_); });
    for (const Linear& linear : linears) {
      const std::string& name = linear.name;
      if (stored_.of(name).format->holds(*checkpoint_, name)) {
        if (excluded.contains(name)) problem(name + ": is quantized, and excluded by config.json");
        check_packed(name, {linear.out_features, linear.in_features, linear.has_bias});
      } else if (readable && result_.stored && !excluded.contains(name) &&
                 checkpoint_->contains(linear.tensor_name())) {
        problem(name + ": is not quantized, and config.json does not exclude it");
      }
    }
  }

  void check_packed(const std::string& name, const LinearShape& shape) {
    throw_if_interrupted();
    LinearShape with_bias = shape;
    with_bias.has_bias = true;
    bool own_weight = false;
    const ModuleFormat& stored = stored_.of(name);
    for (const PlannedTensor& part : stored.format->parts(with_bias, stored.grid)) {
      checked_.insert(name + "." + part.name);
      own_weight = own_weight || part.name == "weight";
    }
    if (!own_weight && checkpoint_->contains(name + ".weight"))
      problem(name + ": is stored twice, as .weight and quantized");
    ModuleCheck check = stored.format->check(*checkpoint_, name, shape, stored.grid);
    for (std::string& line : check.problems) problem(std::move(line));
    result_.int8_saturated += check.saturated;
    ++result_.modules;
    progress_.update(static_cast<double>(checked_.size()), name);
  }

  // Quantized modules that the architecture does not have, the head among them.
  void check_other_modules(const std::vector<Linear>& linears) {
    std::set<std::string> known;
    for (const Linear& linear : linears) known.insert(linear.name);
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      const auto module = stored_.format->module_of(name);
      if (!module || !known.insert(*module).second) continue;
      if (architecture_known_)
        problem(quote_name(*module) + ": is quantized, but no linear layer of this model");
      if (const auto shape = stored_.format->shape_of(*checkpoint_, *module, stored_.of(*module).grid))
        check_packed(*module, *shape);
    }
    if (result_.stored && result_.stored->head && !holds_head())
      problem("lm_head: is not quantized, though config.json says so");
  }

  void check_values() {
    auto done = static_cast<double>(checked_.size());
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      if (checked_.contains(name)) continue;
      throw_if_interrupted();
      progress_.update(done++, name);
      const NonFinite found = find_non_finite(tensor, pool_);
      tensor.drop();
      if (found.count == 0) continue;
      problem(str(quote_name(name), ": ", found.count, " value(s) are NaN or infinite, the first at ",
                  position(tensor.shape, found.first)));
    }
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  VerifyOptions options_;
  ThreadPool& pool_;
  std::string config_name_;
  Json fields_;
  Progress progress_;
  Verification result_;
  StoredFormat stored_{{&qqq_format(), {}}};
  bool architecture_known_ = false;
  std::set<std::string> checked_;  // tensors of quantized modules
};

// Lets go of the mapped pages as it reads.
bool same_bytes(const StoredTensor& a, const StoredTensor& b) {
  constexpr size_t kChunk = size_t{16} << 20;
  if (a.dtype != b.dtype || a.shape != b.shape || a.bytes.size() != b.bytes.size()) return false;
  for (size_t at = 0; at < a.bytes.size(); at += kChunk) {
    const size_t size = std::min(kChunk, a.bytes.size() - at);
    const auto one = a.bytes.subspan(at, size), other = b.bytes.subspan(at, size);
    const bool same = std::memcmp(one.data(), other.data(), size) == 0;
    a.drop(one);
    b.drop(other);
    if (!same) return false;
  }
  return true;
}

// What the output holds in place of a tensor that the source encodes.
bool is_decoded(const StoredTensor& source, const StoredTensor& written) {
  if (written.dtype != DType::bf16 || written.shape != source.shape) return false;
  const bool same = written.to_tensor().equal(source.to_tensor().to(at::kBFloat16));
  source.drop();
  written.drop();
  return same;
}

}  // namespace

Verification verify(const std::shared_ptr<const Checkpoint>& checkpoint, const VerifyOptions& options,
                    ThreadPool& pool, Log& log) {
  return Verifier(checkpoint, options, pool, log).run();
}

std::vector<std::string> compare_with_source(const Checkpoint& output, const Checkpoint& source,
                                             const QuantizePlan& plan) {
  // Tensor of the source -> tensors that stand for it, several for stacked experts; a bias has one of its own name in another
  // type.
  std::map<std::string, std::vector<std::string>> replaced;
  // A stack that one of its modules still reads is copied all the same.
  std::set<std::string> replacements, needed;
  for (const auto& layer : plan.layers) {
    for (const PlannedModule& module : layer) {
      const Linear& linear = module.linear;
      if (!module.quantize) {
        needed.insert(linear.tensor_name());
        if (linear.has_bias) needed.insert(linear.bias_name());
        continue;
      }
      const std::string& name = linear.name;
      if (plan.untied && name == kHeadName) needed.insert(linear.tensor_name());
      replaced[linear.tensor_name()];
      for (const PlannedTensor& part : module.format->parts(module.shape(), module.solve.grid)) {
        replacements.insert(name + "." + part.name);
        replaced[part.name == "bias" ? linear.bias_name() : linear.tensor_name()].push_back(name + "." +
                                                                                            part.name);
      }
    }
  }
  for (const std::string& name : needed) replaced.erase(name);
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : source.tensors()) {
    throw_if_interrupted();
    const auto found = replaced.find(name);
    const auto is_there = [&](const std::string& part) { return output.contains(part); };
    if (found != replaced.end()
            ? std::all_of(found->second.begin(), found->second.end(), is_there)
            : output.contains(name) && (tensor.encoding == nullptr ? same_bytes(tensor, output.tensor(name))
                                                                   : is_decoded(tensor, output.tensor(name))))
      continue;
    problems.push_back(
        quote_name(name) +
        (tensor.encoding == nullptr ? ": is neither copied byte for byte" : ": is neither decoded") +
        " nor replaced by a quantized module");
  }
  for (const auto& [name, tensor] : output.tensors()) {
    if (replacements.contains(name) || (source.contains(name) && !replaced.contains(name))) continue;
    problems.push_back(quote_name(name) + ": is neither of the source nor of a quantized module");
  }
  return problems;
}

}  // namespace gramian
