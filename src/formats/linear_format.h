// How a quantized linear layer lies on disk: what a format can hold, which tensors a module becomes, and what config.json says
// of it. One file a format; all_formats() lists them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
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

// What config.json is to say of all modules.
struct QuantizationFields {
  SolveOptions solve;
  std::string method;                // how the codes were chosen
  std::vector<std::string> skipped;  // full names of linear layers left unquantized
  std::vector<std::string>
      plain;                  // names of other modules that hold a matrix called .weight: routers, the head
  bool shared_inputs = true;  // whether modules that read one input were to share their Hessian
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
  // Everything that is wrong with what a checkpoint holds of one module. Mapped pages are dropped again. As it stands: what
  // unpack() throws, and a bias that is missing or not finite.
  virtual ModuleCheck check(const Checkpoint& checkpoint, const std::string& name, const LinearShape& shape,
                            const GridOptions& grid) const;
  // The quantization_config that loaders need.
  virtual nlohmann::ordered_json config(const QuantizationFields& fields) const = 0;
  // The grid of a quantization_config, or nothing when it is of another format. Throws unsupported, naming `where`, for settings
  // that are not read.
  virtual std::optional<GridOptions> read_config(const nlohmann::ordered_json& fields,
                                                 const std::string& where) const = 0;

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

// The method that a quantization_config names, by any of the keys that tools write it under.
std::string quantization_method(const nlohmann::ordered_json& fields);

// The format of a checkpoint whose config.json is `config`, or nothing when it is not quantized, or its tensors are decoded
// while they are read (formats/encoded_tensor.h). Throws unsupported, naming `where`.
struct StoredFormat {
  const LinearFormat* format = nullptr;
  GridOptions grid;
};
// "qqq, group size 128", "gptq, 4 bits, one scale per row"
std::string describe(const StoredFormat& stored);
std::optional<StoredFormat> stored_format(const nlohmann::ordered_json& config, const std::string& where);

// All parts of a module that a checkpoint has, mapped.
PackedParts load_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                       const LinearShape& shape, const GridOptions& grid);
void drop_parts(const LinearFormat& format, const Checkpoint& checkpoint, const std::string& name,
                const LinearShape& shape, const GridOptions& grid);
// parts.at(name), or undefined.
at::Tensor part(const PackedParts& parts, const std::string& name);

}  // namespace gramian
