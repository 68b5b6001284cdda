// Token rows for calibration and evaluation, from text, JSON lines or ready rows.
//
//   .txt          one stream, tokenized once without special tokens (special tokens that stand in the text are ordinary
//                 text), cut into whole windows of `sequence_length`; n of them are taken evenly: number
//                 floor(i * total / n). Where the tokenizer's template puts tokens in front (a begin-of-text token), each
//                 window starts with them and holds that many text tokens less.
//   .jsonl        one object a line with `text`, `messages` or `input_ids`. Texts are tokenized with the tokenizer's template
//                 (special tokens that stand in them are ordinary text). Messages become text by the model's chat template
//                 (formats/chat_template.h), which writes the special tokens itself and takes 26 July 2024 for today; without
//                 one their contents are joined by line ends. Blank rows are dropped, rows longer than `sequence_length` are
//                 split, the first n are taken.
//   .safetensors  `input_ids` [rows, length] of an integer type, optional `attention_mask` of the same shape whose ones
//                 are contiguous in a row: taken as they are, the first n.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "models/batch.h"

namespace gramian {

struct RowOptions {
  int64_t sequence_length = 512;
  // How many rows; without a value `samples_default` are taken, or as many as there are.
  std::optional<int64_t> samples = std::nullopt;
  int64_t samples_default = 128;  // 0: all
  // Chooses rows of .txt and .jsonl at random instead of evenly or from the start.
  std::optional<uint64_t> seed = std::nullopt;
  // Rows are not cut: a .txt is one row, a line of .jsonl too; `sequence_length` is not used.
  bool whole = false;
  // Accept less than half of `samples`.
  bool allow_fewer = false;
  // The length was chosen by the user: said where ready rows keep their own. By a protocol: no remedy tells to change it.
  bool length_given = false, length_fixed = false;
};

struct RowSet {
  std::vector<TokenRow> rows;
  std::optional<int64_t> asked;
  std::optional<int64_t> sequence_length;  // what rows were cut to; ready rows have their own lengths
  int64_t tokens = 0;
  int64_t blank = 0;   // rows dropped because nothing was in them
  int64_t split = 0;   // rows cut into several
  std::string policy;  // what was done, in words, for log and report
};

// `model`: the folder whose tokenizer and chat template read the source; ready rows and `input_ids` need neither. Throws
// invalid_argument or corrupt_data with file and line.
RowSet load_rows(const std::filesystem::path& path, const RowOptions& options,
                 const std::filesystem::path& model, Log& log);

// Takes `count` rows out of `set`, evenly: number floor((2 i + 1) n / (2 count)). Throws invalid_argument when none would be left.
std::vector<TokenRow> set_aside(RowSet& set, int64_t count);

// Throws invalid_argument naming `path`, row and position of the first token id that is not in [0, vocab): to be called
// before a model is loaded or run for these rows.
void refuse_foreign_ids(const std::vector<TokenRow>& rows, int64_t vocab, const std::filesystem::path& path);

// input_ids and attention_mask of a .safetensors file as rows. Masked positions are left out; begins[r] is the position
// of the first token of row r.
struct ReadyRows {
  std::vector<TokenRow> rows;
  std::vector<int64_t> begins;
  int64_t length = 0;  // of input_ids' second dimension
};
// Throws corrupt_data for other types and shapes, invalid_argument when input_ids holds nothing.
ReadyRows read_ready_rows(const std::filesystem::path& path);

}  // namespace gramian
