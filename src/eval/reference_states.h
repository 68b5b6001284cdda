// What a reference model makes of evaluation rows, kept in a file: its states behind the final norm, from which its logits are one
// product with its output head. A few megabytes where the logits themselves would be gigabytes, and the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/batch.h"

namespace gramian {

class ReferenceStates {
 public:
  // Reads `file` if it is there. Throws invalid_argument, with what differs, for states of another model, of other rows or another
  // type of forward; corrupt_data for what is no such file. `dtype`: of the forward; `model`: the reference's folder. Files of the
  // model are known again by their names, sizes and times.
  ReferenceStates(std::filesystem::path file, const std::filesystem::path& model, const std::string& dtype,
                  const std::vector<TokenRow>& rows);

  // Whether the file was there: the reference's layers are then not needed.
  bool stored() const noexcept { return stored_; }
  // The states of the next `tokens` tokens, in the order of the rows.
  at::Tensor next(int64_t tokens);
  // Takes those that a forward has made, in the same order.
  void add(const at::Tensor& states);
  // Writes the file under a temporary name and renames it. Nothing is done where it was there.
  void save() const;

 private:
  std::filesystem::path file_;
  std::string identity_;  // of model, forward and rows: a JSON object
  bool stored_ = false;
  at::Tensor states_;  // [tokens, width] of a stored file
  std::vector<at::Tensor> made_;
  int64_t at_ = 0;
};

}  // namespace gramian
