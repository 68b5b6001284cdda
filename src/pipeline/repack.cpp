#include "pipeline/repack.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "formats/linear_format.h"
#include "pipeline/output_folder.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

struct Module {
  ModuleFormat stored;
  LinearShape shape;
  SolveOptions solve = {};  // of the format that it goes to
  std::vector<PlannedTensor> parts;
};

class Repack {
 public:
  Repack(const Checkpoint& source, const RepackOptions& options) : source_(source), options_(options) {
    const std::string config = (source.folder() / "config.json").string();
    const auto stored = stored_format(source.config(), config);
    if (!stored)
      throw Error(ErrorKind::invalid_argument, source.folder().string(), "is not quantized",
                  "quantize it, or write a GGUF file");
    stored_ = *stored;
    if (options.to == "bf16" || options.to == "fp16") {
      plain_ = options.to == "bf16" ? DType::bf16 : DType::f16;
      return;
    }
    target_ = &find_format(options.to);
    if (target_ == stored_.format)
      throw Error(ErrorKind::invalid_argument, source.folder().string(), "is in this format already",
                  "choose another one");
    if (stored_.format->name() == std::string("qqq") || options.to == "qqq")
      throw Error(ErrorKind::unsupported, options.to,
                  "no other format has QQQ's grid, int4 inside int8 channels",
                  "convert --to bf16, or quantize the source anew");
    if (stored_.grid.activation_bits == 8)
      throw Error(ErrorKind::unsupported, options.to,
                  "leaves activations as they are, this checkpoint rounds them to 8 bits",
                  "convert --to bf16");
  }

  Repacked run(const fs::path& output, Log& log) {
    find_modules();
    plan();
    Repacked result;
    write_folder(output, options_.force, [&](const fs::path& folder) { result = write(folder, log); });
    return result;
  }

 private:
  void find_modules() {
    std::set<std::string> names;
    for (const auto& [tensor, stored] : source_.tensors()) {
      if (const auto name = stored_.format->module_of(tensor)) names.insert(*name);
    }
    if (stored_.head) names.insert(kHeadName);
    for (const std::string& name : names) {
      Module module{stored_.of(name), {}, {}, {}};
      const auto shape = module.stored.format->shape_of(source_, name, module.stored.grid);
      if (!shape)
        throw Error(ErrorKind::corrupt_data, name, "its tensors do not say its shape",
                    "`gramian verify` says what is wrong");
      module.shape = *shape;
      module.shape.has_bias = source_.contains(name + ".bias");
      module.shape.dtype = plain_.value_or(DType::f16);
      modules_.emplace(name, std::move(module));
    }
  }

  PackedParts load(const std::string& name, const Module& module) const {
    return load_parts(*module.stored.format, source_, name, module.shape, module.stored.grid);
  }
  void drop(const std::string& name, const Module& module) const {
    drop_parts(*module.stored.format, source_, name, module.shape, module.stored.grid);
  }

  // The codes with what the grid says of zero points.
  static QuantizedLinear codes_of(const PackedParts& parts, const std::string& name, const Module& module) {
    QuantizedLinear codes = module.stored.format->codes(parts, module.shape.out_features,
                                                        module.shape.in_features, module.stored.grid, name);
    if (!module.stored.grid.symmetric && !codes.zero.defined())
      codes.zero = tensor::zeros(codes.scale.sizes(), at::kChar);
    return codes;
  }

  // What one module becomes, or why it cannot.
  PackedParts convert(const std::string& name, const PackedParts& parts, const Module& module) const {
    const int64_t n = module.shape.out_features, k = module.shape.in_features;
    const DecodedLinear decoded = module.stored.format->unpack(parts, n, k, module.stored.grid, name);
    if (plain_) {
      const at::ScalarType type = tensor::scalar_type(*plain_);
      PackedParts plain{{"weight", decoded.weight.to(type)}};
      if (!plain["weight"].isfinite().all().item<bool>())
        throw Error(ErrorKind::numerical, name + ".weight", "leaves " + options_.to, "convert --to bf16");
      if (decoded.bias.defined()) plain["bias"] = decoded.bias.to(type);
      return plain;
    }
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorKind::unsupported, name, why, "convert --to bf16, or quantize the source anew");
    };
    const QuantizedLinear codes = codes_of(parts, name, module);
    if (module.stored.grid.symmetric && codes.zero.defined())
      refuse("has zero points, though it is called symmetric");
    const PackSource from{name, module.shape, {}, decoded.bias};
    PackedParts packed = target_->pack(codes, from, module.solve.grid);
    const DecodedLinear back = target_->unpack(packed, n, k, module.solve.grid, name);
    if (!back.weight.equal(decoded.weight))
      refuse(str("decodes to other weights in ", target_->name(), ": its scales do not fit"));
    if (decoded.bias.defined() && !back.bias.to(at::kFloat).equal(decoded.bias.to(at::kFloat)))
      refuse("its bias does not fit");
    return packed;
  }

  // Settings and tensors of every module; all that cannot be is said at once, before anything is written.
  void plan() {
    std::vector<std::string> problems;
    for (auto& [name, module] : modules_) {
      throw_if_interrupted();
      if (plain_) {
        module.parts = {{"weight", *plain_, {module.shape.out_features, module.shape.in_features}}};
        if (module.shape.has_bias) module.parts.push_back({"bias", *plain_, {module.shape.out_features}});
        continue;
      }
      try {
        const PackedParts parts = load(name, module);
        const QuantizedLinear codes = codes_of(parts, name, module);
        module.solve.grid = module.stored.grid;
        // A stored order of columns is one that readers must know.
        if (codes.group_index.defined()) module.solve.order = ColumnOrder::activation;
        module.solve = target_->settle(module.solve, module.shape.dtype);
        const std::string reason =
            target_->unfit_reason(module.shape.out_features, module.shape.in_features, module.solve.grid);
        if (!reason.empty()) throw Error(ErrorKind::unsupported, "", reason);
        convert(name, parts, module);
        module.parts = target_->parts(module.shape, module.solve.grid);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::interrupted || error.kind() == ErrorKind::internal) throw;
        problems.push_back(std::string(error.what()).starts_with(name) ? error.what()
                                                                       : name + ": " + error.what());
      }
      drop(name, module);
    }
    if (problems.empty()) return;
    throw Error(ErrorKind::unsupported, source_.folder().string(),
                str(problems.size(), " of ", modules_.size(), " modules cannot be ", options_.to,
                    " without a change:", below(problems)),
                "\nnothing was written");
  }

  bool is_part(const std::string& tensor) const {
    const size_t dot = tensor.rfind('.');
    const auto found = modules_.find(tensor.substr(0, dot));
    if (dot == std::string::npos || found == modules_.end()) return false;
    LinearShape shape = found->second.shape;
    shape.has_bias = true;
    const std::string part = tensor.substr(dot + 1);
    const LinearFormat& format = *found->second.stored.format;
    const auto parts = format.parts(shape, found->second.stored.grid);
    const auto named = [&](const PlannedTensor& planned) { return planned.name == part; };
    return std::any_of(parts.begin(), parts.end(), named) ||
           std::find(format.marks().begin(), format.marks().end(), part) != format.marks().end();
  }

  Repacked write(const fs::path& folder, Log& log) {
    std::vector<PlannedTensor> tensors;
    std::vector<std::string> copied;
    for (const auto& [name, tensor] : source_.tensors()) {
      if (is_part(name)) continue;
      copied.push_back(name);
      tensors.push_back({name, tensor.dtype, tensor.shape});
    }
    for (const auto& [name, module] : modules_) {
      for (const PlannedTensor& part : module.parts)
        tensors.push_back({name + "." + part.name, part.dtype, part.shape});
    }
    std::sort(tensors.begin(), tensors.end(),
              [](const PlannedTensor& a, const PlannedTensor& b) { return a.name < b.name; });
    ModelWriter writer(folder, tensors, kShardBytesMax);
    for (const std::string& name : copied) {
      const StoredTensor& tensor = source_.tensor(name);
      writer.write(name, tensor.bytes);
      tensor.drop();
    }
    Progress progress(log, "modules", static_cast<int64_t>(modules_.size()));
    double done = 0;
    for (const auto& [name, module] : modules_) {
      throw_if_interrupted();
      progress.update(done++, name);
      for (const auto& [part, tensor] : convert(name, load(name, module), module))
        writer.write(name + "." + part, tensor.contiguous());
      drop(name, module);
    }
    writer.finish();
    copy_side_files(source_, folder);
    write_config(folder);
    return {static_cast<int64_t>(modules_.size()), writer.total_bytes()};
  }

  void write_config(const fs::path& folder) const {
    Json config = source_.config();
    if (plain_) {
      config.erase("quantization_config");
    } else {
      Json fields = target_->config(this->fields());
      fields["meta"] = {{"quantizer", {std::string("gramian:") + GRAMIAN_VERSION}},
                        {"converted_from", describe(stored_)}};
      if (options_.to == "compressed-tensors") fields.erase("meta");
      config["quantization_config"] = fields;
      write_atomically(folder / "quantize_config.json", fields.dump(2) + "\n");
    }
    write_atomically(folder / "config.json", config.dump(2) + "\n");
  }

  QuantizationFields fields() const {
    QuantizationFields fields;
    std::set<std::string> others;
    for (const auto& [name, tensor] : source_.tensors()) {
      if (name.ends_with(".weight") && tensor.shape.size() == 2 && !is_part(name))
        others.insert(name.substr(0, name.rfind('.')));
    }
    for (const std::string& name : others)
      (name.find(".layers.") == std::string::npos ? fields.plain : fields.skipped).push_back(name);
    // Most modules are those of the first one's settings.
    std::vector<OwnSettings> kinds;
    for (const auto& [name, module] : modules_) {
      if (name == kHeadName) {
        fields.head = module.solve;
        continue;
      }
      const auto same = std::find_if(
          kinds.begin(), kinds.end(),
          [&, &solve = module.solve](const OwnSettings& kind) { return same_stored(kind.solve, solve); });
      if (same == kinds.end()) {
        kinds.push_back({module.solve, {name}});
      } else {
        same->modules.push_back(name);
      }
    }
    std::stable_sort(kinds.begin(), kinds.end(), [](const OwnSettings& a, const OwnSettings& b) {
      return a.modules.size() > b.modules.size();
    });
    if (kinds.empty()) return fields;
    fields.solve = kinds[0].solve;
    fields.usual = kinds[0].modules;
    fields.own.assign(kinds.begin() + 1, kinds.end());
    return fields;
  }

  const Checkpoint& source_;
  const RepackOptions& options_;
  StoredFormat stored_;
  const LinearFormat* target_ = nullptr;
  std::optional<DType> plain_;
  std::map<std::string, Module> modules_;
};

}  // namespace

Repacked repack(const Checkpoint& source, const fs::path& output, const RepackOptions& options, Log& log) {
  return Repack(source, options).run(output, log);
}

}  // namespace gramian
