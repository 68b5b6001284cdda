#include "formats/gguf_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/type_mix.h"
#include "formats/part_check.h"
#include "solve/encode.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

GridOptions with_codec(GridOptions grid, const Codec& codec) {
  grid.codec = &codec;
  grid.bits = static_cast<int>(codec.bytes * 8 / codec.block);
  grid.group_size = codec.block;
  return grid;
}

class GgufFormat final : public LinearFormat {
 public:
  const char* name() const override { return "gguf"; }
  const char* summary() const override { return "one GGUF file of blocks of --type (llama.cpp)"; }
  bool one_file() const override { return true; }

  SolveOptions settle(SolveOptions asked, DType) const override {
    GridOptions& grid = asked.grid;
    refuse_float_grid(*this, grid);
    if (grid.codec == nullptr)
      throw Error(ErrorKind::invalid_argument, "--type", "is needed for --format gguf",
                  "for example --type iq2_xxs or --type q4_k");
    if (grid.anchored && grid.codec->anchored == nullptr)
      throw Error(ErrorKind::invalid_argument, "--encoder",
                  str("anchored is IQ2_XXS's, not ", grid.codec->name, "'s"), "leave it out");
    grid = with_codec(grid, *grid.codec);
    grid.kind = GridKind::ggml;
    grid.symmetric = true;
    grid.mse = 0;
    grid.activation_bits = 16;
    // Blocks lie as their columns do, and their codes are chosen together.
    asked.order = ColumnOrder::natural;
    asked.static_groups = false;
    asked.refine = 0;
    return asked;
  }

  SolveOptions settle_head(SolveOptions, DType) const override {
    throw Error(ErrorKind::invalid_argument, "--lm-head-bits",
                "in a GGUF file the head gets the type that llama.cpp gives it", "leave it out");
  }

  GridOptions fitted(const GridOptions& settled, int64_t columns) const override {
    return with_codec(settled, fitting_codec(*settled.codec, columns));
  }

  // Every row has some type that fits.
  std::string unfit_reason(int64_t, int64_t, const GridOptions&) const override { return ""; }

  std::vector<PlannedTensor> parts(const LinearShape& shape, const GridOptions& grid) const override {
    const GridOptions own = fitted(grid, shape.in_features);
    std::vector<PlannedTensor> parts{
        {"blocks", DType::u8, {shape.out_features, own.codec->row_bytes(shape.in_features)}}};
    if (shape.has_bias) parts.push_back({"bias", shape.dtype, {shape.out_features}});
    return parts;
  }

  // No folder holds such modules.
  const std::vector<std::string>& marks() const override {
    static const std::vector<std::string> kMarks;
    return kMarks;
  }

  PackedParts pack(const QuantizedLinear& module, const PackSource& source,
                   const GridOptions&) const override {
    PackedParts parts{{"blocks", module.blocks}};
    if (source.bias.defined()) parts["bias"] = source.bias.to(tensor::scalar_type(source.shape.dtype));
    return parts;
  }

  DecodedLinear unpack(const PackedParts& parts, int64_t n, int64_t k, const GridOptions& grid,
                       const std::string& name) const override {
    const Codec& codec = *fitted(grid, k).codec;
    const at::Tensor blocks =
        expect_part(part(parts, "blocks"), name + ".blocks", {at::kByte}, {n, codec.row_bytes(k)});
    return {decode_blocks(codec, blocks, k, nullptr), part(parts, "bias"), 0};
  }

  // What loaders need is in the file's own metadata.
  nlohmann::ordered_json config(const QuantizationFields&) const override { return {}; }
  std::optional<StoredFormat> read_config(const nlohmann::ordered_json&, const std::string&) const override {
    return std::nullopt;
  }
  std::optional<LinearShape> shape_of(const Checkpoint&, const std::string&,
                                      const GridOptions&) const override {
    return std::nullopt;
  }
};

}  // namespace

const std::vector<std::string>& block_type_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Codec& codec : codecs()) {
      if (codec.block > 1) names.push_back(lower_case(codec.name));
    }
    return names;
  }();
  return kNames;
}

const Codec& parse_block_type(const std::string& text) {
  const std::string name = lower_case(text);
  for (const Codec& codec : codecs()) {
    if (codec.block > 1 && lower_case(codec.name) == name) return codec;
  }
  const auto same = [](const std::string& one) { return one; };
  throw Error(ErrorKind::invalid_argument, "--type", str("unknown type '", text, "'"),
              str("choose one of: ", listed(block_type_names(), same), "; or a mixture: ",
                  listed(gguf::type_mixes(), [](const gguf::TypeMix& mix) { return mix.name; })));
}

const LinearFormat& gguf_format() {
  static const GgufFormat kFormat;
  return kFormat;
}

}  // namespace gramian
