// The model that others are compared with, or what a file keeps of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "eval/reference_states.h"

namespace gramian::cli {

struct ReferenceFlags {
  std::string folder;  // empty: none
  std::string states;  // empty: nothing is kept
};
// --reference and --reference-states.
void add_reference_flags(CLI::App& verb, ReferenceFlags& flags, const std::string& help, bool required);

struct Reference {
  std::optional<ReferenceStates> kept;
  std::optional<ResidentModel> model;
  ReferenceStates* states() { return kept ? &*kept : nullptr; }
  ResidentModel* resident() { return model ? &*model : nullptr; }
};
// Before the rows are read: the file may not lie among `inputs`, and its folder is there.
void check_reference(const ReferenceFlags& flags, const std::filesystem::path& rows);
// Opens what the flags say; no adapter runs beside it. Of a model whose states are kept the layers are not read.
std::unique_ptr<Reference> open_reference(const ReferenceFlags& flags, const OpenOptions& open,
                                          const std::vector<TokenRow>& rows,
                                          const std::shared_ptr<ThreadPool>& pool, Log& log);

}  // namespace gramian::cli
