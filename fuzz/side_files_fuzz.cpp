// Any bytes as the small files beside a model (tokenizer_config.json, chat_template.json, generation_config.json, each but the last ended by
// a NUL): refused with gramian::Error, or a template and settings of a sampler. Templates are rendered by another program.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/chat_template.h"
#include "input_files.h"
#include "runtime/generation_config.h"

namespace {

template <class Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gramian::fuzz::InputFolder folder;
  const auto parts = gramian::fuzz::parts_of(data, size, 3);
  folder.put("tokenizer_config.json", parts[0]);
  folder.put("chat_template.json", parts[1]);
  folder.put("generation_config.json", parts[2]);
  attempt([] { (void)gramian::ChatTemplate::find(folder.path()); });
  attempt([] {
    const nlohmann::ordered_json config{{"eos_token_id", 2}};
    (void)gramian::read_generation_config(folder.path(), {config, "config.json"});
  });
  return 0;
}
