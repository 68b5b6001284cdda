#include "pipeline/recipe_quant_cfg.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "formats/json.h"
#include "pipeline/recipe_fields.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWeights = "weight_quantizer";
constexpr size_t kEntriesMax = 100, kNameBytesMax = 200;

// A shell pattern as a regular expression.
std::string expression(const std::string& glob) {
  constexpr std::string_view kSpecial = ".\\+()[]{}^$|";
  std::string text;
  for (const char c : glob) {
    if (c == '*' || c == '?') {
      text += c == '*' ? ".*" : ".";
    } else {
      if (kSpecial.find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
  }
  return text;
}

class Reader {
 public:
  Reader(const std::string& where, const std::string& place, Problems& problems)
      : where_(where), place_(place), problems_(problems) {}

  QuantConfig read(const Json& list) {
    RecipeFields whole(list, where_, place_, problems_);
    if (!list.is_array() || list.size() > kEntriesMax) {
      whole.problem("quant_cfg", str("expected a list of at most ", kEntriesMax, " entries"));
      return {};
    }
    for (const Json& entry : list) read_entry(entry);
    if (!config_.grid) whole.problem("quant_cfg", "no entry says how weights are quantized");
    config_.excluded = excluded_;
    return std::move(config_);
  }

 private:
  void read_entry(const Json& entry) {
    const std::string place = str(place_, "quant_cfg: entry ", ++number_, ": ");
    RecipeFields fields(entry, where_, place, problems_);
    if (!entry.is_object()) return fields.problem("", "expected an object");
    const Json* name = fields.take("quantizer_name");
    const Json* cfg = fields.take("cfg");
    const bool on = fields.boolean({"enable"}).value_or(true);
    fields.finish();
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().size() > kNameBytesMax)
      return fields.problem("quantizer_name", "expected a pattern");
    const auto glob = name->get<std::string>();
    const bool weights = glob.ends_with(kWeights);
    // "*input_quantizer", "*output_quantizer", "*[kv]_bmm_quantizer"
    if (!weights && glob.ends_with("_quantizer")) {
      if (on)
        fields.problem(quote_name(glob), "only weights are quantized",
                       "leave the entry out, or enable: false");
      return;
    }
    if (!weights && !glob.ends_with('*')) return fields.problem(quote_name(glob), "names no quantizer");
    if (on && !weights)
      return fields.problem(quote_name(glob), "would quantize activations too",
                            "let it end with weight_quantizer");
    std::string module = weights ? glob.substr(0, glob.size() - kWeights.size()) : glob;
    if (module.ends_with('.')) module.pop_back();
    const std::string matched = expression(module) + "$";
    if (on) {
      if (cfg == nullptr) return fields.problem("cfg", "is missing");
      take_grid(*cfg, place + "cfg: ");
      // What it matches is not excluded any more.
      if (module == "*") excluded_.clear();
      if (!excluded_.empty()) excluded_ = "(?!" + matched + ")(?:" + excluded_ + ")";
    } else {
      excluded_ = excluded_.empty() ? matched : "(?:" + matched + "|" + excluded_ + ")";
    }
  }

  void take_grid(const Json& cfg, const std::string& place) {
    RecipeFields fields(cfg, where_, place, problems_);
    if (!cfg.is_object()) return fields.problem("", "expected an object");
    const Json* bits = fields.take("num_bits");
    const Json* sizes = fields.take("block_sizes");
    const Json* axis = fields.take("axis");
    fields.pass({"fake_quant", "narrow_range"});
    fields.finish();
    int64_t block = -1;
    if (sizes != nullptr && !sizes->is_null()) {
      RecipeFields inner(*sizes, where_, place + "block_sizes: ", problems_);
      if (!sizes->is_object()) return inner.problem("", "expected an object");
      block = inner.whole({"-1"}, {16, 32, 64, 128, 256, 512, 1024}).value_or(-1);
      inner.text({"type"}, {"static"});
      inner.text({"scale_bits"}, {"e4m3"});
      inner.finish();
    } else if (axis == nullptr || *axis != 0) {
      return fields.problem("block_sizes", "expected blocks along -1, or axis: 0 for one scale per row");
    }
    GridOptions grid{.group_size = block, .mse = 0};
    if (bits != nullptr && (*bits == "e2m1" || *bits == Json::array({2, 1}))) {
      grid.kind = GridKind::nvfp4;
      if (block != 16) return fields.problem("block_sizes", "4-bit floats have blocks of 16");
    } else if (bits != nullptr && (*bits == "e4m3" || *bits == Json::array({4, 3}))) {
      grid.kind = GridKind::fp8;
      grid.bits = 8;
      if (block != -1) return fields.problem("block_sizes", "8-bit floats have one scale per row, axis: 0");
    } else if (bits != nullptr && (*bits == 4 || *bits == 8)) {
      grid.bits = bits->get<int>();
    } else {
      return fields.problem("num_bits", "e2m1, e4m3, 4 and 8 are built");
    }
    const auto same = [](const GridOptions& a, const GridOptions& b) {
      return a.kind == b.kind && a.bits == b.bits && a.group_size == b.group_size;
    };
    if (config_.grid && !same(*config_.grid, grid))
      return fields.problem("num_bits", "differs from an earlier entry's",
                            "say settings of single modules under dynamic");
    config_.grid = grid;
  }

  std::string where_, place_;
  Problems& problems_;
  QuantConfig config_;
  std::string excluded_;
  size_t number_ = 0;
};

}  // namespace

QuantConfig read_quant_cfg(const Json& list, const std::string& where, const std::string& place,
                           Problems& problems) {
  return Reader(where, place, problems).read(list);
}

}  // namespace gramian
