// Any bytes as a record of an unfinished job's journal: refused with gramian::Error, or the record that is written again.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/json.h"
#include "pipeline/job_identity.h"
#include "pipeline/layer_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  try {
    const Json json = gramian::parse_json({reinterpret_cast<const char*>(data), size}, "job.json");
    const Json job{{"program", {{"version", "1"}}}, {"options", {{"bits", 4}}}, {"rows", {{"tokens", 8}}}};
    (void)gramian::identity_differences(json, job);
    const auto record = gramian::LayerRecord::from_json(json, "layer-00000.json");
    if (gramian::LayerRecord::from_json(record.to_json(), "again").to_json() != record.to_json())
      std::abort();
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
  return 0;
}
