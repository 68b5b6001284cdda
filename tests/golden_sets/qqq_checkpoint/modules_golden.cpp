#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/qqq.h"
#include "formats/safetensors.h"
#include "golden_sets/qqq_checkpoint/qqq_checkpoint_golden.h"
#include "runtime/qqq_linear.h"
#include "support/golden.h"
#include "support/same_bits.h"

namespace gramian::golden {
namespace {

// A module's stored tensors, and its shape as B tells it.
struct Module {
  qqq::Packed packed;
  int64_t n = 0, k = 0;
  int64_t group_size = 0;  // resolved
};

Module load_module(const Checkpoint& checkpoint, const std::string& name) {
  const auto load = [&](const std::string& tensor) {
    return checkpoint.contains(name + tensor) ? checkpoint.tensor(name + tensor).to_tensor() : at::Tensor();
  };
  Module module;
  module.packed = {load(".B"), load(".s_channel"), load(".s_group"), load(".bias")};
  module.k = module.packed.B.size(0) * 16;
  module.n = module.packed.B.size(1) / 2;
  const int64_t configured = checkpoint.config().at("quantization_config").value("group_size", int64_t{128});
  module.group_size = configured == -1 ? module.k : configured;
  return module;
}

// The configured group size and the stored tensors must tell the same layout.
void check_layout(const Module& module) {
  EXPECT_EQ(module.packed.s_group.defined() && module.packed.s_group.numel() > 0,
            module.group_size != module.k);
}

void check_output(const std::filesystem::path& folder, const std::filesystem::path& outputs,
                  const std::string& name) {
  const Checkpoint checkpoint(folder);
  const SafetensorsFile file(outputs);
  const Module module = load_module(checkpoint, name);
  check_layout(module);
  const QqqLinear linear(qqq::read_codes(module.packed, module.n, module.k, name),
                         {std::make_shared<ThreadPool>(2)}, name);
  EXPECT_TRUE(same_bits(linear.forward(file.load("in." + name)), file.load("out." + name)));
}

// unpack, then pack from the codes and scales that the stored tensors stand for: the same tensors again.
void check_round_trip(const std::filesystem::path& folder) {
  const Checkpoint checkpoint(folder);
  int modules = 0;
  for (const auto& [tensor, stored] : checkpoint.tensors()) {
    if (!tensor.ends_with(".B")) continue;
    const std::string name = tensor.substr(0, tensor.size() - 2);
    SCOPED_TRACE(name);
    ++modules;
    const Module module = load_module(checkpoint, name);
    check_layout(module);
    const bool grouped = module.group_size != module.k;
    const qqq::Decoded decoded = qqq::unpack(module.packed, module.n, module.k, name);
    QuantizedLinear again;
    again.codes = qqq::unpack_codes(module.packed.B, module.n, module.k, grouped);
    again.group_size = module.group_size;
    if (grouped) {
      // Stored position 8c + r of every 64 holds column c + 8r, and the transpose of 8x8 undoes itself.
      const int64_t groups = module.k / module.group_size;
      const at::Tensor ratio = module.packed.s_group.to(at::kFloat).reshape({groups, module.n / 64, 8, 8});
      again.scale = ratio.transpose(2, 3)
                        .reshape({groups, module.n})
                        .t()
                        .mul(decoded.s_channel.unsqueeze(1))
                        .contiguous();
    } else {
      again.scale = decoded.s_channel.mul(16).unsqueeze(1);
    }
    const qqq::Packed packed = qqq::pack(again, decoded.s_channel, module.packed.bias, name);
    EXPECT_TRUE(same_bits(packed.B, module.packed.B));
    EXPECT_TRUE(same_bits(packed.s_channel, module.packed.s_channel));
    if (grouped) {
      // Groups of zeros may stand under an infinite ratio, which we store as a finite one.
      const at::Tensor infinite = module.packed.s_group.isfinite().logical_not();
      EXPECT_TRUE(same_bits(packed.s_group.masked_fill(infinite, 0.0),
                            module.packed.s_group.masked_fill(infinite, 0.0)));
    }
  }
  EXPECT_GT(modules, 0);
}

}  // namespace

void collect_modules(const std::filesystem::path& root) {
  for (const auto& [folder, file] : quantized_folders(root)) {
    const std::string stem = folder.filename().string();
    add("qqq_modules", stem + ".round_trip", [folder = folder] { check_round_trip(folder); });
    const SafetensorsFile outputs(file);
    for (const auto& [name, stored] : outputs.tensors()) {
      if (!name.starts_with("in.")) continue;
      const std::string module = name.substr(3);
      add("qqq_modules", stem + "." + module,
          [folder = folder, file = file, module] { check_output(folder, file, module); });
    }
  }
}

}  // namespace gramian::golden
