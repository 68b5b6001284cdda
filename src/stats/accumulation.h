// How a batch of token rows is summed: what it is rounded to, in what type it is multiplied, and how many rows at a time.
//
// Two settings speak of types. `hessian_input_dtype` is the type of the factors of each product; sums are always fp32.
// `staging_dtype` is the type that rows are rounded to before that, as GPT-QModel copies them. Without staging rows are read
// where they lie.
//
//   activations   hessian_input_dtype   staging_dtype       products
//   bfloat16      auto                  none or bfloat16    bf16 where the CPU multiplies it, else fp32
//   bfloat16      bfloat16              none or bfloat16    the same, with a warning where it is fp32
//   any           float32               none or float32     fp32
//   others        auto                  none                fp32
//   any           auto                  float32             fp32
//   others        bfloat16              none                refused: the rounding costs 3e-4 to 1e-3 of the mean diagonal
//   others        auto or bfloat16      bfloat16            rounded with a warning, then as bfloat16 activations
//   others        float32               bfloat16            rounded with a warning, fp32 products
//   any           bfloat16              float32             refused: they contradict each other
//
// bf16 products differ from fp32 products of the same bf16 rows in the order of the sum only: each product is exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/log.h"

namespace gramian {

enum class HessianInput { automatic, float32, bfloat16 };
// "auto", "float32", "bfloat16"; throws invalid_argument for another word.
HessianInput parse_hessian_input(const std::string& text);
std::string to_text(HessianInput input);
// "float32" or "bfloat16"; throws invalid_argument for another word.
DType parse_staging(const std::string& text);
// The word for a type that activations may have.
std::string to_text(DType type);

struct AccumulationSettings {
  HessianInput input = HessianInput::automatic;
  std::optional<DType> staging = std::nullopt;  // f32 or bf16
  // Rows summed before their sum is added to the partial; 0: not set. The size in rows goes before the size in bytes, which
  // counts rows in the staging type, or without one in the type of the products.
  int64_t chunk_size = 0;
  int64_t chunk_bytes = 0;
  // GPT-QModel 7.7.0's rules: products are fp32 (bfloat16 is refused), and rows are staged in chunks only, never fp32 ones,
  // and only where the CPU multiplies bf16.
  bool gptqmodel = false;
  bool operator==(const AccumulationSettings&) const = default;
};

// What the rows come from.
struct AccumulationSource {
  DType activations = DType::f32;  // any float type
  int64_t columns = 1;
  std::string device = "cpu";
  bool bf16_products = false;  // whether the device has them, with fp32 sums
};

// What settings come to. Modules whose inputs are the same may share a sum when these are equal.
struct Accumulation {
  bool round_to_bf16 = false;  // rows of another type, first
  bool bf16_products = false;
  int64_t chunk_rows = 0;  // 0: the whole batch
  bool operator==(const Accumulation&) const = default;
};

// Throws invalid_argument for what the table refuses. `log` (may be null) gets the warnings; each distinct one is printed once,
// so the one about the device once per device.
Accumulation resolve(const AccumulationSettings& settings, const AccumulationSource& source, Log* log);

}  // namespace gramian
