// NVFP4 of Model Optimizer 0.47.0: its packed bytes, and the scales of its searches.
#include <ATen/core/Tensor.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "golden_sets/modelopt/modelopt_golden.h"
#include "kernels/nvfp4/nvfp4.h"
#include "kernels/small_floats.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;
constexpr int64_t kBlock = nvfp4::kBlock;

std::vector<uint8_t> bytes_of(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.tensor(name).bytes;
  std::vector<uint8_t> copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

// Scales from the largest magnitudes and packed codes, bit for bit; values but for the order of two products.
void check_packing(const Path& path, const std::string& name) {
  const SafetensorsFile file(path);
  const at::Tensor w = file.load(name + ".w"), dequant = file.load(name + ".dequant.peer");
  const float factor = file.load(name + ".scale2.peer").item<float>();
  const float amax = w.abs().max().item<float>();
  EXPECT_EQ(amax / nvfp4::kRange, factor);
  // What checkpoints store instead gives it back, to the last bit but one.
  EXPECT_NEAR(static_cast<double>(nvfp4::factor_of(nvfp4::global_scale(amax)) / factor), 1, 1.2e-7);
  const float* values = w.const_data_ptr<float>();
  std::vector<uint8_t> scales, packed;
  for (int64_t block = 0; block < w.numel() / kBlock; ++block) {
    uint8_t codes[kBlock];
    const uint8_t scale = nvfp4::largest_magnitude_scale(values + block * kBlock, factor);
    nvfp4::quantize(values + block * kBlock, scale, factor, codes);
    scales.push_back(scale);
    for (int64_t i = 0; i < kBlock; i += 2)
      packed.push_back(static_cast<uint8_t>(codes[i] | codes[i + 1] << 4));
    for (int64_t i = 0; i < kBlock; ++i) {
      const float expected = dequant.const_data_ptr<float>()[block * kBlock + i];
      EXPECT_NEAR(nvfp4::value(codes[i], scale, factor), expected, std::fabs(expected) * 1.2e-7f);
    }
  }
  EXPECT_EQ(scales, bytes_of(file, name + ".block_scale_e4m3.peer"));
  EXPECT_EQ(packed, bytes_of(file, name + ".packed.peer"));
}

// The scale that the search in float64 found, wherever it is better than the second by more than rounding.
void check_search(const Path& path, const std::string& name) {
  constexpr double kSure = 1e-4;
  const SafetensorsFile file(path);
  const at::Tensor w = file.load("w"), hessian = file.load("hessian_sum.f64").to(at::kFloat).div(4096);
  const at::Tensor index = file.load(name + ".index.f64"), best = file.load(name + ".loss_best.f64"),
                   second = file.load(name + ".loss_second.f64");
  const float factor = file.load("global_amax").item<float>() / nvfp4::kRange;
  const int64_t rows = w.size(0), blocks = w.size(1) / kBlock;
  int64_t sure = 0;
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    std::vector<uint8_t> found(static_cast<size_t>(rows * blocks));
    for (int64_t b = 0; b < blocks; ++b) {
      float root[kBlock * kBlock];
      nvfp4::upper_root(hessian.select(0, b).contiguous().const_data_ptr<float>(), root);
      nvfp4::search_scales(
          static_cast<CpuLevel>(level),
          {w.const_data_ptr<float>() + b * kBlock, w.size(1), rows, name == "mse" ? nullptr : root}, factor,
          {}, found.data() + b, blocks);
    }
    for (int64_t i = 0; i < rows * blocks; ++i) {
      const double least = best.const_data_ptr<double>()[i], next = second.const_data_ptr<double>()[i];
      if ((next - least) / least <= kSure) continue;
      ++sure;
      // Candidate 0 is the smallest scale, code 1.
      EXPECT_EQ(found[static_cast<size_t>(i)], index.const_data_ptr<int32_t>()[i] + 1) << "block " << i;
    }
  }
  EXPECT_GT(sure, rows * blocks / 2);
}

}  // namespace

void collect_nvfp4(const Path& root) {
  for (const Path& folder : folders_with(root, "nvfp4_qdq.safetensors")) {
    const Path path = folder / "nvfp4_qdq.safetensors";
    const SafetensorsFile file(path);
    for (const auto& [tensor, stored] : file.tensors()) {
      if (!tensor.ends_with(".w")) continue;
      const std::string name = tensor.substr(0, tensor.size() - 2);
      add("nvfp4_packing", name, [path, name] { check_packing(path, name); });
    }
  }
  for (const Path& folder : folders_with(root, "local_hessian.safetensors")) {
    const Path path = folder / "local_hessian.safetensors";
    for (const std::string name : {"mse", "local_hessian"}) {
      if (SafetensorsFile(path).contains(name + ".index.f64"))
        add("nvfp4_search", name, [path, name] { check_search(path, name); });
    }
  }
}

}  // namespace gramian::golden
