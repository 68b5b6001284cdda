// What a quantization job will do and write, decided from headers and options alone, before any work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/problems.h"
#include "formats/gguf/type_mix.h"
#include "formats/linear_format.h"
#include "models/model.h"
#include "pipeline/module_settings.h"
#include "pipeline/subject.h"

namespace gramian {

// A head to quantize.
struct HeadOptions {
  SettingsPatch settings;  // above its rule's, or above 8 bits in groups of 32 (whole rows for QQQ)
  bool untie = false;      // where it is the embedding, it is stored apart from it
};

// What a job asks for.
struct PlanOptions {
  ModuleSettings settings;        // of modules with no rule of their own
  std::vector<ModuleRule> rules;  // of a recipe
  bool skip_unfit = false;
  std::optional<HeadOptions> head = std::nullopt;
  const gguf::TypeMix* type_mix = nullptr;  // of modules with no type of their rule's
};

struct PlannedModule {
  Linear linear;         // name and shape; no `op`
  bool quantize = true;  // false: left as it is (a rule, --skip-unfit)
  std::string skip_reason;
  const LinearFormat* format = nullptr;
  SolveOptions solve = {};  // as the format settles them
  FallbackOptions fallback = {};
  bool fell_back = false;  // the asked type of blocks does not divide its rows
  std::string rule = {};   // the one that it has, as the recipe writes it; empty: none
  LinearShape shape() const { return {linear.out_features, linear.in_features, linear.has_bias, dtype}; }
  DType dtype = DType::bf16;  // of the source's weight, bf16 where that is encoded
};

uint64_t bytes_of(const PlannedTensor& tensor);

struct QuantizePlan {
  const LinearFormat* format = nullptr;
  SolveOptions solve;  // of modules with no rule of their own
  // In the order of the forward's pauses; a head that is quantized stands behind the decoder's layers, as one of its own.
  std::vector<std::vector<PlannedModule>> layers;
  bool has_head = false;
  bool untied = false;  // it was the embedding
  size_t decoder_layers() const { return layers.size() - (has_head ? 1 : 0); }
  std::vector<PlannedTensor> tensors;  // of the output, sorted by name
  std::vector<std::string> copied;     // source tensors that are copied byte for byte
  // Source tensors whose encoding the output's configuration cannot speak of beside its own (formats/encoded_tensor.h); their
  // values are written in bf16.
  std::vector<std::string> decoded;
  // The module called `name`, of one layer or of any; or nullptr.
  const PlannedModule* find(size_t layer, const std::string& name) const;
  const PlannedModule* find(const std::string& name) const;
  std::vector<std::string> skipped() const;
  // Modules with a matrix called .weight that is no linear layer of a decoder layer.
  std::vector<std::string> plain_matrices(const Checkpoint& source) const;
  // What config.json is to say of the modules.
  QuantizationFields fields(const Checkpoint& source) const;
  int64_t quantized_weights() const;  // entries of all quantized weight matrices
  uint64_t packed_bits() const;       // of what is stored for them
};

// What the options give `module`, which has this rule (or nullptr) and may be lm_head; not settled by the format.
ModuleSettings settings_of(const PlanOptions& options, const LinearFormat& format, const std::string& module,
                           const ModuleRule* rule);

// Everything that is wrong with the rules and shapes of `layers`, the linear layers of a model, and of its `head` goes into `problems`: settings
// that the format cannot hold, rules that no module has, shapes that the format refuses (unless they are to be left out), and with
// `one_matrix` (else into `warnings`) what loaders make one matrix of though its parts have several settings. `where` is the
// model's folder. Without layers the settings alone are checked.
void check_settings(const std::string& where, const std::vector<std::vector<Linear>>& layers,
                    const std::optional<Linear>& head, const LinearFormat& format, const PlanOptions& options,
                    bool one_matrix, Problems& problems, std::vector<std::string>& warnings);

// Throws unsupported listing every linear layer whose shape the format refuses, unless `skip_unfit`, and when nothing fits;
// corrupt_data for what Model::survey() finds.
QuantizePlan make_plan(const Subject& subject, const LinearFormat& format, const PlanOptions& options);
QuantizePlan make_plan(const Model& model, const LinearFormat& format, const PlanOptions& options);
QuantizePlan make_plan(const Model& model, const LinearFormat& format, const SolveOptions& solve,
                       bool skip_unfit);

}  // namespace gramian
