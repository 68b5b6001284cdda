// Any bytes as calibration rows, as lines of JSON, as a text and as ready rows: refused with gramian::Error, or rows that hold tokens.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "input_files.h"
#include "pipeline/rows.h"

namespace {

// A model that knows every byte, without a chat template: a template would start another program for every input.
std::string byte_tokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object();
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">"] = byte;
  const nlohmann::json json{{"version", "1.0"},
                            {"decoder", {{"type", "ByteFallback"}}},
                            {"model",
                             {{"type", "BPE"},
                              {"byte_fallback", true},
                              {"vocab", vocabulary},
                              {"merges", nlohmann::json::array()}}}};
  return json.dump();
}

void read(const std::filesystem::path& rows, const std::filesystem::path& model) {
  static gramian::Log log(gramian::LogLevel::quiet);
  try {
    for (const gramian::TokenRow& row :
         gramian::load_rows(rows, {.sequence_length = 8, .samples = 3, .allow_fewer = true}, model, log)
             .rows) {
      if (row.empty()) std::abort();
    }
  } catch (const gramian::Error& error) {
    if (error.exit_code() != 2 && error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gramian::fuzz::InputFolder folder;
  static const bool once = (folder.put("tokenizer.json", byte_tokenizer()), true);
  (void)once;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"rows.jsonl", "rows.txt", "rows.safetensors"}) {
    folder.put(name, bytes);
    if (size > 0) read(folder.path() / name, folder.path());
  }
  return 0;
}
