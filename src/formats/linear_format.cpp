#include "formats/linear_format.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "formats/compressed_tensors.h"
#include "formats/encoded_tensor.h"
#include "formats/gguf_format.h"
#include "formats/gptq_format.h"
#include "formats/qqq_format.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

template <class Each>
void each_part(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
               const LinearShape& shape, const GridOptions& grid, const Each& each) {
  LinearShape with_bias = shape;
  with_bias.has_bias = true;
  std::set<std::string> parts;
  for (const PlannedTensor& planned : format.parts(with_bias, grid)) parts.insert(planned.name);
  // What should not be there is seen too.
  for (const std::string& mark : format.marks()) parts.insert(mark);
  for (const std::string& part : parts) {
    const std::string full = name + "." + part;
    if (checkpoint.contains(full)) each(part, checkpoint.tensor(full));
  }
}

}  // namespace

std::string quantization_method(const nlohmann::ordered_json& fields) {
  for (const char* key : {"quant_method", "method", "format", "checkpoint_format"}) {
    if (fields.contains(key) && fields.at(key).is_string()) return fields.at(key).get<std::string>();
  }
  return "";
}

ModuleCheck LinearFormat::check(const Checkpoint& checkpoint, const std::string& name,
                                const LinearShape& shape, const GridOptions& grid) const {
  ModuleCheck check;
  try {
    const PackedParts parts = load_parts(*this, checkpoint, name, shape, grid);
    const DecodedLinear decoded = unpack(parts, shape.out_features, shape.in_features, grid, name);
    check.saturated = decoded.saturated;
    if (shape.has_bias && !decoded.bias.defined()) check.problems.push_back(name + ".bias: is missing");
    if (decoded.bias.defined() && !decoded.bias.isfinite().all().item<bool>())
      check.problems.push_back(name + ".bias: holds values that are not finite");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt_data) throw;
    check.problems.emplace_back(error.what());
  }
  drop_parts(*this, checkpoint, name, shape, grid);
  return check;
}

QuantizedLinear LinearFormat::codes(const PackedParts&, int64_t, int64_t, const GridOptions&,
                                    const std::string& name) const {
  throw Error(ErrorKind::unsupported, name, str("the format ", this->name(), " has a grid of its own"),
              "decode it instead");
}

GridOptions LinearFormat::fitted(const GridOptions& settled, int64_t) const { return settled; }

bool LinearFormat::holds(const Checkpoint& checkpoint, const std::string& module) const {
  for (const std::string& mark : marks()) {
    if (checkpoint.contains(module + "." + mark)) return true;
  }
  return false;
}

std::optional<std::string> LinearFormat::module_of(const std::string& tensor) const {
  for (const std::string& mark : marks()) {
    if (tensor.ends_with("." + mark)) return tensor.substr(0, tensor.size() - mark.size() - 1);
  }
  return std::nullopt;
}

const std::vector<const LinearFormat*>& all_formats() {
  static const std::vector<const LinearFormat*> kFormats{&qqq_format(), &gptq_format(), &gptq_v2_format(),
                                                         &compressed_tensors_format(), &gguf_format()};
  return kFormats;
}

const LinearFormat& find_format(const std::string& name) {
  for (const LinearFormat* format : all_formats()) {
    if (format->name() == name) return *format;
  }
  throw Error(
      ErrorKind::invalid_argument, "--format", str("unknown format '", name, "'"),
      "choose one of: " + listed(all_formats(), [](const LinearFormat* format) { return format->name(); }));
}

bool stores_order(const SolveOptions& solve) {
  return solve.order == ColumnOrder::activation && !solve.static_groups && solve.grid.group_size != -1;
}

void refuse_float_grid(const LinearFormat& format, const GridOptions& grid) {
  if (!is_float(grid.kind)) return;
  throw Error(ErrorKind::invalid_argument, "--format",
              str(format.name(), " has no ", grid.kind == GridKind::fp8 ? "FP8" : "NVFP4", " weights"),
              "use --format compressed-tensors");
}

bool same_stored(const SolveOptions& a, const SolveOptions& b) {
  return a.grid.kind == b.grid.kind && a.grid.bits == b.grid.bits && a.grid.group_size == b.grid.group_size &&
         a.grid.symmetric == b.grid.symmetric && a.grid.activation_bits == b.grid.activation_bits &&
         stores_order(a) == stores_order(b);
}

std::vector<std::string> QuantizationFields::linears() const {
  std::vector<std::string> names = usual;
  names.insert(names.end(), skipped.begin(), skipped.end());
  for (const OwnSettings& some : own) names.insert(names.end(), some.modules.begin(), some.modules.end());
  return names;
}

const ModuleFormat& StoredFormat::of(const std::string& module) const {
  for (const auto& [pattern, stored] : own) {
    if (pattern.matches(module)) return stored;
  }
  return *this;
}

std::string describe(const ModuleFormat& stored) {
  const GridOptions& grid = stored.grid;
  std::string text = stored.format->name();
  if (grid.kind == GridKind::nvfp4) return text + ", NVFP4";
  if (grid.kind == GridKind::fp8)
    return text + (grid.activation_bits == 8 ? ", FP8, activations too" : ", FP8");
  if (grid.kind != GridKind::qqq) {
    text += str(", ", grid.bits, grid.symmetric ? " bits" : " bits with zero points");
    if (grid.activation_bits == 8) text += ", activations of 8";
  }
  return text + (grid.group_size == -1 ? ", one scale per row" : str(", group size ", grid.group_size));
}

std::optional<StoredFormat> stored_format(const nlohmann::ordered_json& config, const std::string& where) {
  if (!config.contains("quantization_config") || config.at("quantization_config").is_null())
    return std::nullopt;
  if (is_decoded_source(config, where)) return std::nullopt;
  const auto& fields = config.at("quantization_config");
  if (!fields.is_object())
    throw Error(ErrorKind::unsupported, where, "quantization_config: expected an object",
                "restore config.json from its source");
  for (const LinearFormat* format : all_formats()) {
    if (auto stored = format->read_config(fields, where)) return stored;
  }
  throw Error(ErrorKind::unsupported, where,
              "quantization_config: method '" + quantization_method(fields) + "' is not read yet",
              "qqq, gptq and compressed-tensors with integer or NVFP4 weights are read");
}

void read_dynamic(const nlohmann::ordered_json& fields, const std::string& where,
                  const std::function<ModuleFormat(const nlohmann::ordered_json&, const std::string&)>& read,
                  StoredFormat& stored) {
  if (!fields.contains("dynamic") || !fields.at("dynamic").is_object()) return;
  for (const auto& [key, overrides] : fields.at("dynamic").items()) {
    if (key.starts_with("-:")) continue;
    const std::string pattern = key.starts_with("+:") ? key.substr(2) : key;
    stored.own.emplace_back(ModulePattern(pattern, where + ": quantization_config: dynamic"),
                            read(overrides, pattern));
  }
}

PackedParts load_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                       const LinearShape& shape, const GridOptions& grid) {
  PackedParts parts;
  each_part(format, checkpoint, name, shape, grid, [&](const std::string& part, const StoredTensor& tensor) {
    // A damaged BOOL tensor has no values; as bytes it is of a wrong type like any other.
    parts[part] =
        tensor.dtype == DType::boolean ? tensor::empty(tensor.shape, at::kBool) : tensor.to_tensor();
  });
  return parts;
}

void drop_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                const LinearShape& shape, const GridOptions& grid) {
  each_part(format, checkpoint, name, shape, grid,
            [](const std::string&, const StoredTensor& tensor) { tensor.drop(); });
}

at::Tensor part(const PackedParts& parts, const std::string& name) {
  const auto found = parts.find(name);
  return found == parts.end() ? at::Tensor() : found->second;
}

}  // namespace gramian
