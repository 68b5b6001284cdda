// Any bytes as the files of a model's folder (config.json, an index, weights, each but the last ended by a NUL): refused with
// gramian::Error, or tensors that decode and a survey of the layers that the configuration asks for.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "input_files.h"
#include "models/model.h"

namespace {

void read(const std::filesystem::path& folder) {
  const auto checkpoint = std::make_shared<const gramian::Checkpoint>(folder);
  (void)checkpoint->index_faults();
  (void)checkpoint->side_files();
  for (const auto& [name, stored] : checkpoint->tensors()) {
    if (stored.to_tensor().numel() != stored.values()) std::abort();
  }
  gramian::Weights::Survey survey;
  const gramian::Model model(checkpoint, {.treat_as_tied = true, .headers = &survey});
  (void)model.surplus_layers();
  (void)model.survey(survey);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gramian::fuzz::InputFolder folder;
  const auto parts = gramian::fuzz::parts_of(data, size, 3);
  folder.put("config.json", parts[0]);
  folder.put("model.safetensors.index.json", parts[1]);
  folder.put("model.safetensors", parts[2]);
  try {
    read(folder.path());
  } catch (const gramian::Error& error) {
    if (error.kind() == gramian::ErrorKind::internal || error.kind() == gramian::ErrorKind::io) std::abort();
  }
  return 0;
}
