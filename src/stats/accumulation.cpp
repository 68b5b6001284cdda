#include "stats/accumulation.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

void refuse(const AccumulationSettings& settings, const AccumulationSource& source) {
  if (settings.input != HessianInput::bfloat16) return;
  const char* const where = "hessian_input_dtype bfloat16";
  if (settings.gptqmodel) {
    throw Error(ErrorKind::invalid_argument, where, "GPT-QModel multiplies in float32",
                "leave the option or the compatibility out");
  }
  if (settings.staging == DType::f32) {
    throw Error(ErrorKind::invalid_argument, where, "contradicts staging_dtype float32", "leave one out");
  }
  if (source.activations == DType::bf16 || settings.staging == DType::bf16) return;
  throw Error(ErrorKind::invalid_argument, where,
              str("the activations are ", to_text(source.activations), ", and rounding them is not exact"),
              "run the model in bfloat16 (--dtype bfloat16), use float32 here, or round them knowingly with "
              "--staging-dtype bfloat16");
}

int64_t chunk_rows(const AccumulationSettings& settings, int64_t columns, int64_t value_bytes) {
  if (settings.chunk_size > 0) return settings.chunk_size;
  if (settings.chunk_bytes > 0) return std::max<int64_t>(1, settings.chunk_bytes / (columns * value_bytes));
  return 0;
}

Accumulation by_gptqmodel(const AccumulationSettings& settings, const AccumulationSource& source) {
  const bool chunked = settings.chunk_size > 0 || settings.chunk_bytes > 0;
  const bool half = source.activations == DType::f16 || source.activations == DType::bf16;
  const bool lowered = chunked && settings.staging == DType::bf16 && half && tensor::cpu_has_bf16();
  return {.round_to_bf16 = lowered && source.activations != DType::bf16,
          .chunk_rows = chunk_rows(settings, source.columns, lowered ? 2 : 4)};
}

}  // namespace

HessianInput parse_hessian_input(const std::string& text) {
  for (const HessianInput input : {HessianInput::automatic, HessianInput::float32, HessianInput::bfloat16}) {
    if (to_text(input) == text) return input;
  }
  throw Error(ErrorKind::invalid_argument, "--hessian-input-dtype", str("unknown word '", text, "'"),
              "choose auto, float32 or bfloat16");
}

std::string to_text(HessianInput input) {
  return input == HessianInput::automatic ? "auto" : input == HessianInput::float32 ? "float32" : "bfloat16";
}

DType parse_staging(const std::string& text) {
  if (text == "float32") return DType::f32;
  if (text == "bfloat16") return DType::bf16;
  throw Error(ErrorKind::invalid_argument, "--staging-dtype", str("unknown word '", text, "'"),
              "choose float32 or bfloat16");
}

std::string to_text(DType type) {
  return type == DType::bf16  ? "bfloat16"
         : type == DType::f16 ? "float16"
         : type == DType::f32 ? "float32"
                              : "float64";
}

Accumulation resolve(const AccumulationSettings& settings, const AccumulationSource& source, Log* log) {
  refuse(settings, source);
  if (settings.gptqmodel) return by_gptqmodel(settings, source);
  Accumulation result;
  result.round_to_bf16 = settings.staging == DType::bf16 && source.activations != DType::bf16;
  const bool bf16 =
      result.round_to_bf16 || (source.activations == DType::bf16 && settings.staging != DType::f32);
  result.bf16_products = bf16 && settings.input != HessianInput::float32 && source.bf16_products;
  const int64_t bytes = settings.staging       ? static_cast<int64_t>(dtype_bytes(*settings.staging))
                        : result.bf16_products ? 2
                                               : 4;
  result.chunk_rows = chunk_rows(settings, source.columns, bytes);
  if (log == nullptr) return result;
  if (result.round_to_bf16) {
    log->warn(str("staging_dtype bfloat16 rounds activations of ", to_text(source.activations),
                  ": Hessians lose 3e-4 to 1e-3 of their mean diagonal"));
  }
  if (settings.input == HessianInput::bfloat16 && !result.bf16_products) {
    log->warn(str(source.device, " has no bf16 products with fp32 sums: Hessians are multiplied in float32"));
  }
  return result;
}

}  // namespace gramian
