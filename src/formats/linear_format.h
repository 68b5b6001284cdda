// How a quantized linear layer lies on disk: what a format can hold, which tensors a module becomes, and what config.json says
// of it. One file a format; all_formats() lists them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/module_patterns.h"
#include "solve/quantized.h"

namespace gramian {

// Tensors of a packed module by their names behind the module's: "qweight", "scales", ... Parts that it lacks are not there.
using PackedParts = std::map<std::string, at::Tensor>;

struct LinearShape {
  int64_t out_features = 0, in_features = 0;
  bool has_bias = false;
  DType dtype = DType::bf16;  // of the weight that is quantized
};

// What a module is packed from.
struct PackSource {
  std::string name;
  LinearShape shape;
  at::Tensor weight;  // [N, K] as it was
  at::Tensor bias;    // [N] as it was, or undefined
  bool compat_gptqmodel = false;
};

struct DecodedLinear {
  at::Tensor weight;      // f32 [N, K], as the format's own runtime multiplies with it
  at::Tensor bias;        // [N] as stored, or undefined
  int64_t saturated = 0;  // weights whose runtime integer left its range and was clamped
};

struct ModuleCheck {
  std::vector<std::string> problems;  // one line each, beginning with the tensor's name
  int64_t saturated = 0;
};

// Whether the group of each column must be stored: where groups are natural ones, loaders need not know in which order columns
// were solved.
bool stores_order(const SolveOptions& solve);
// Whether loaders read modules of these settings alike: the rest is the solver's.
bool same_stored(const SolveOptions& a, const SolveOptions& b);

// Modules (full names) that loaders must read with other settings than most.
struct OwnSettings {
  SolveOptions solve;
  std::vector<std::string> modules;
};

// What config.json is to say of all modules.
struct QuantizationFields {
  SolveOptions solve;
  std::string method;                // how the codes were chosen
  std::vector<std::string> skipped;  // full names of linear layers left unquantized
  std::vector<std::string>
      plain;                  // names of other modules that hold a matrix called .weight: routers, the head
  bool shared_inputs = true;  // whether modules that read one input were to share their Hessian
  std::vector<std::string> usual = {};              // quantized modules that `solve` is of
  std::vector<OwnSettings> own = {};                // and the others, but for the head
  std::optional<SolveOptions> head = std::nullopt;  // of a quantized lm_head

  // Names of all linear layers of the decoder.
  std::vector<std::string> linears() const;
};

class LinearFormat;

// How one module is stored.
struct ModuleFormat {
  const LinearFormat* format = nullptr;
  GridOptions grid;
};

// The format of a checkpoint, as its quantization_config says.
struct StoredFormat : ModuleFormat {
  // Modules that are stored in another way; the first pattern that matches counts.
  std::vector<std::pair<ModulePattern, ModuleFormat>> own = {};
  bool head = false;  // whether lm_head is said to be quantized
  const ModuleFormat& of(const std::string& module) const;
};

class LinearFormat {
 public:
  virtual ~LinearFormat() = default;
  virtual const char* name() const = 0;
  // One line for --help.
  virtual const char* summary() const = 0;
  // The options with what storing decides (the kind of grid, the type of scales), for weights of type `dtype`. Throws invalid_argument, naming
  // the option, for what the format cannot hold.
  virtual SolveOptions settle(SolveOptions asked, DType dtype) const = 0;
  // The grid of a module of `columns` inputs, where the format has another one for rows that the settled one does not divide.
  virtual GridOptions fitted(const GridOptions& settled, int64_t columns) const;
  // Whether the output is one GGUF file instead of a folder of safetensors.
  virtual bool one_file() const { return false; }
  // Why a module of this shape does not fit, with the remedy; empty when it does.
  virtual std::string unfit_reason(int64_t n, int64_t k, const GridOptions& grid) const = 0;
  // The tensors of a module, in the order in which they are written.
  virtual std::vector<PlannedTensor> parts(const LinearShape& shape, const GridOptions& grid) const = 0;
  // Those of a module that no other module has.
  virtual const std::vector<std::string>& marks() const = 0;
  // Throws numerical or unsupported, naming the tensor, for values that the format cannot hold.
  virtual PackedParts pack(const QuantizedLinear& module, const PackSource& source,
                           const GridOptions& grid) const = 0;
  // Throws corrupt_data, naming the tensor, for parts that are not what parts() says and for scales that are not finite.
  virtual DecodedLinear unpack(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                               const std::string& name) const = 0;
  // The codes behind it, where what the runtime multiplies with is code · scale. Throws as unpack() does, and unsupported for a format
  // whose grid is another.
  virtual QuantizedLinear codes(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                                const std::string& name) const;
  // Everything that is wrong with what a checkpoint holds of one module. Mapped pages are dropped again. As it stands: what
  // unpack() throws, and a bias that is missing or not finite.
  virtual ModuleCheck check(const Checkpoint& checkpoint, const std::string& name, const LinearShape& shape,
                            const GridOptions& grid) const;
  // The quantization_config that loaders need.
  virtual nlohmann::ordered_json config(const QuantizationFields& fields) const = 0;
  // What a quantization_config says, or nothing when it is of another format. Throws unsupported, naming `where`, for settings
  // that are not read, corrupt_data for patterns that are none.
  virtual std::optional<StoredFormat> read_config(const nlohmann::ordered_json& fields,
                                                  const std::string& where) const = 0;
  // What lm_head is stored in, beside modules in this format, and the options for it: settle() of that format, and what a head
  // cannot have is refused.
  virtual const LinearFormat& head_format() const { return *this; }
  virtual SolveOptions settle_head(SolveOptions asked, DType dtype) const { return settle(asked, dtype); }

  // The shape of a module that only its own tensors speak of, or nothing when they do not.
  virtual std::optional<LinearShape> shape_of(const Checkpoint& checkpoint, const std::string& name,
                                              const GridOptions& grid) const = 0;

  // Whether any of marks() is there.
  bool holds(const Checkpoint& checkpoint, const std::string& module) const;
  // The module that `tensor` is a mark of, by its name.
  std::optional<std::string> module_of(const std::string& tensor) const;
};

const std::vector<const LinearFormat*>& all_formats();
// Throws invalid_argument listing the known names.
const LinearFormat& find_format(const std::string& name);

// Throws invalid_argument for a grid of floats, where `format` has no tensors for.
void refuse_float_grid(const LinearFormat& format, const GridOptions& grid);

// The method that a quantization_config names, by any of the keys that tools write it under.
std::string quantization_method(const nlohmann::ordered_json& fields);

// The name of the module that makes logits, and of its settings.
inline constexpr const char* kHeadName = "lm_head";

// The format of a checkpoint whose config.json is `config`, or nothing when it is not quantized, or its tensors are decoded
// while they are read (formats/encoded_tensor.h). Throws unsupported, naming `where`.
// "qqq, group size 128", "gptq, 4 bits, one scale per row"
std::string describe(const ModuleFormat& stored);
std::optional<StoredFormat> stored_format(const nlohmann::ordered_json& config, const std::string& where);

// Adds the positive rules of `dynamic` to `stored`, in their order, with what `read` makes of a rule's overrides.
void read_dynamic(const nlohmann::ordered_json& fields, const std::string& where,
                  const std::function<ModuleFormat(const nlohmann::ordered_json& overrides,
                                                   const std::string& pattern)>& read,
                  StoredFormat& stored);

// All parts of a module that a checkpoint has, mapped.
PackedParts load_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                       const LinearShape& shape, const GridOptions& grid);
void drop_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                const LinearShape& shape, const GridOptions& grid);
// parts.at(name), or undefined.
at::Tensor part(const PackedParts& parts, const std::string& name);

}  // namespace gramian
