#include "cli/accumulation.h"

#include "base/error.h"
#include "base/format.h"

namespace gramian::cli {

AccumulationSettings AccumulationFlags::settings(AccumulationSettings settings) const {
  if (input != "auto") settings.input = parse_hessian_input(input);
  if (!staging.empty()) settings.staging = parse_staging(staging);
  if (chunk_size > 0) settings.chunk_size = chunk_size;
  if (!chunk_bytes.empty()) {
    const auto bytes = parse_bytes(chunk_bytes);
    if (!bytes || *bytes < 1) {
      throw Error(ErrorKind::invalid_argument, "--chunk-bytes", str("'", chunk_bytes, "' is not a size"),
                  "for example --chunk-bytes 8MiB");
    }
    settings.chunk_bytes = *bytes;
  }
  return settings;
}

void add_accumulation_flags(CLI::App& verb, AccumulationFlags& flags) {
  verb.add_option("--hessian-input-dtype", flags.input,
                  "Type in which activations are multiplied into Hessians (sums are float32): bfloat16 takes "
                  "bfloat16 activations, auto = bfloat16 for those where the CPU multiplies it, else float32")
      ->capture_default_str();
  verb.add_option("--staging-dtype", flags.staging,
                  "Round activations to bfloat16 before that, or keep bfloat16 ones float32");
  verb.add_option("--chunk-size", flags.chunk_size, "Token rows summed at one time; 0: a whole batch")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  verb.add_option("--chunk-bytes", flags.chunk_bytes,
                  "The same as a size like 8MiB of rows in the staging type; --chunk-size goes before it");
}

}  // namespace gramian::cli
