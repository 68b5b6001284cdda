#include "golden_sets/modelopt/modelopt_golden.h"
#include "models/blocks/delta_rule.h"
#include "models/blocks/gated_delta_net.h"
#include "models/blocks/kimi_delta_attention.h"
#include "models/model.h"
#include "support/files.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace fs = std::filesystem;
namespace {

double difference(const at::Tensor& found, const at::Tensor& expected) {
  return found.to(at::kDouble).sub(expected.to(at::kDouble)).abs().max().item<double>();
}

// The set's README allows 1e-6 at outputs of 0.07.
void check_delta_rule(const SafetensorsFile& file, const std::string& name) {
  const auto load = [&](const std::string& part) { return file.load(name + "." + part); };
  const DeltaRuleInput input{load("q"), load("k"), load("v"), load("g"), load("beta")};
  const at::Tensor expected = load("out.f64"), expected_state = load("state.f64");
  for (const auto form : {recurrent_delta_rule, delta_rule}) {
    at::Tensor state = file.contains(name + ".state0") ? load("state0").clone()
                                                       : tensor::zeros(expected_state.sizes(), at::kFloat);
    EXPECT_LT(difference(form(input, state), expected), 1e-6);
    EXPECT_LT(difference(state, expected_state), 1e-6);
  }
  EXPECT_LT(difference(load("out_chunk64.peer"), expected), 1e-6) << "the peer's own form";
}

// A mixer of the file, loaded from a folder that holds its parameters under their names, on x [rows, tokens, hidden].
template <class Mixer, class Spec>
void check_mixer(const SafetensorsFile& file, const std::string& name, const Spec& spec) {
  testing_support::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  const std::string inner = name + ".forget_gate.";
  for (const auto& [full, stored] : file.tensors()) {
    if (!full.starts_with(name + ".")) continue;
    tensors["mixer." + full.substr(full.starts_with(inner) ? inner.size() : name.size() + 1)] =
        stored.to_tensor();
  }
  save_safetensors(folder.path() / "model.safetensors", tensors);
  testing_support::write_bytes(folder.path() / "config.json", "{}");
  const Weights weights(std::make_shared<const Checkpoint>(folder.path()), at::kFloat, {});
  Mixer mixer(weights, "mixer.", spec);
  const at::Tensor x = file.load(name + ".x"), expected = file.load(name + ".y.peer");
  const std::vector<int64_t> lengths(static_cast<size_t>(x.size(0)), x.size(1));
  const BatchContext batch = make_batch_context(lengths, {});
  const at::Tensor found = run(mixer.forward(x.reshape({-1, x.size(2)}), batch));
  EXPECT_LT(difference(found.view(expected.sizes()), expected), 1e-5);
}

// Sizes from the shapes; the heads of keys and values have one dimension.
DeltaSizes sizes_of(const SafetensorsFile& file, const std::string& name, const std::string& rate,
                    const std::string& norm) {
  const int64_t dim = file.load(name + norm).numel(), heads = file.load(name + rate).numel();
  const at::Tensor conv = file.load(name + ".conv1d.weight");
  return {.hidden = file.load(name + ".x").size(-1),
          .key_heads = (conv.size(0) / dim - heads) / 2,
          .heads = heads,
          .key_dim = dim,
          .value_dim = dim,
          .kernel = conv.size(2)};
}

}  // namespace

void collect_delta_rule(const fs::path& root) {
  const fs::path path = root / "delta_rule.safetensors";
  if (!fs::exists(path)) return;
  const auto file = std::make_shared<const SafetensorsFile>(path);
  for (const auto& [tensor, stored] : file->tensors()) {
    if (!tensor.ends_with(".q")) continue;
    const std::string name = tensor.substr(0, tensor.size() - 2);
    add("delta_rule", name, [file, name] { check_delta_rule(*file, name); });
  }
}

void collect_linear_attention(const fs::path& root) {
  const fs::path path = root / "linear_attention_layers.safetensors";
  if (!fs::exists(path)) return;
  const auto file = std::make_shared<const SafetensorsFile>(path);
  if (file->contains("qwen3next.x")) {
    add("linear_attention", "qwen3next", [file] {
      check_mixer<GatedDeltaNet, GatedDeltaNetSpec>(
          *file, "qwen3next",
          {.sizes = sizes_of(*file, "qwen3next", ".A_log", ".norm.weight"),
           .projections = DeltaProjections::by_key_head,
           .norm = {}});
    });
  }
  if (file->contains("kimi.x")) {
    add("linear_attention", "kimi", [file] {
      check_mixer<KimiDeltaAttention, KimiDeltaSpec>(
          *file, "kimi",
          {.sizes = sizes_of(*file, "kimi", ".forget_gate.A_log", ".o_norm.weight"),
           .lower_bound = {},
           .norm = {.eps = 1e-5, .gate = Gate::sigmoid}});
    });
  }
}

}  // namespace gramian::golden
