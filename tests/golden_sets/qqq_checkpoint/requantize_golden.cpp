// `source` quantized again with the peer's calibration rows and rules, against the peer's codes, losses and
// damping. The modules of the first pause see what the peer's saw; later ones see activations that carry
// rounding differences.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/qqq.h"
#include "golden_sets/qqq_checkpoint/qqq_checkpoint_golden.h"
#include "models/family.h"
#include "pipeline/quantize.h"
#include "support/files.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kEqualCodes = 0.995, kFirstLoss = 1e-3, kLaterLoss = 0.03;  // the set's README

Json read_json(const fs::path& path) { return parse_json(read_text(path), path.string()); }

// The peer's settings for `folder`, and its rules.
QuantizeJob job_of(const fs::path& set, const fs::path& folder, const fs::path& rows,
                   const fs::path& output) {
  const Json config = read_json(folder / "quantize_config.json");
  const Json& meta = config.at("meta");
  QuantizeJob job;
  job.source = set / "source";
  job.output = output;
  job.calibration = rows;
  job.batch = 1;
  job.dtype = "float16";
  job.solve.grid.group_size = config.at("group_size").get<int64_t>();
  job.solve.grid.mse = meta.at("mse").get<double>();
  job.solve.damp_percent = meta.at("damp_percent").get<double>();
  job.solve.damp_step = meta.at("damp_auto_increment").get<double>();
  job.solve.static_groups = meta.at("static_groups").get<bool>();
  job.solve.grid.one_sided_range = true;
  job.solve.clear_dead_columns = true;
  job.solve.fill_zero_groups = true;
  job.compat_gptqmodel = true;
  return job;
}

at::Tensor codes_of(const Checkpoint& checkpoint, const std::string& module) {
  const at::Tensor packed = checkpoint.tensor(module + ".B").to_tensor();
  const int64_t n = packed.size(1) / 2, k = packed.size(0) * 16;
  const int64_t group_size = checkpoint.config().at("quantization_config").at("group_size").get<int64_t>();
  return qqq::unpack_codes(packed, n, k, group_size != -1 && group_size != k);
}

// Names of the modules of the first pause of the first layer.
std::set<std::string> first_pause(const Checkpoint& checkpoint) {
  const ConfigReader config(checkpoint.config(), "config.json");
  const Family& family = find_family(config);
  std::set<std::string> names;
  const ModuleTree tree = family.modules(family.describe(config), 0);
  for (const std::string& name : tree.at(0)) names.insert("model.layers.0." + name);
  return names;
}

void check(const fs::path& set, const fs::path& folder) {
  const Json peer = read_json(set / "report.json").at(folder.filename().string()).at("modules");
  const testing_support::TemporaryFolder temporary;
  const fs::path rows = temporary.path() / "rows.safetensors";
  save_safetensors(rows,
                   {{"input_ids", SafetensorsFile(set / "common.safetensors").load("calibration_ids")}});
  const fs::path output = temporary.path() / "again";
  ThreadPool pool(2);
  Log log(LogLevel::quiet);
  const Json report = quantize(job_of(set, folder, rows, output), pool, log);

  const Checkpoint ours(output), theirs(folder);
  const std::set<std::string> first = first_pause(ours);
  double worst_first = 0, worst_later = 0, worst_damp = 0, fewest_equal = 1;
  ASSERT_EQ(report.at("modules").size(), peer.size());
  for (const Json& module : report.at("modules")) {
    const std::string name = module.at("name").get<std::string>();
    SCOPED_TRACE(name);
    ASSERT_TRUE(peer.contains(name));
    const Json& expected = peer.at(name);
    EXPECT_EQ(module.at("samples"), expected.at("nsamples"));
    const auto distance = [&](const char* key, const char* peer_key) {
      const double reference = expected.at(peer_key).get<double>();
      return std::abs(module.at(key).get<double>() - reference) / reference;
    };
    const double loss = distance("loss", "avg_loss"), damp = distance("damp", "damp");
    const double equal =
        codes_of(ours, name).eq(codes_of(theirs, name)).to(at::kDouble).mean().item<double>();
    const bool is_first = first.contains(name);
    EXPECT_LE(loss, is_first ? kFirstLoss : kLaterLoss);
    EXPECT_LE(damp, is_first ? kFirstLoss : kLaterLoss);
    worst_damp = std::max(worst_damp, damp);
    double& worst = is_first ? worst_first : worst_later;
    worst = std::max(worst, loss);
    if (!is_first) continue;
    EXPECT_GE(equal, kEqualCodes);
    fewest_equal = std::min(fewest_equal, equal);
  }
  std::printf(
      "  first pause: %.4f of the codes equal, loss within %.1e; later losses within %.1e; damp within "
      "%.1e\n",
      fewest_equal, worst_first, worst_later, worst_damp);
}

}  // namespace

void collect_requantize(const fs::path& root) {
  for (const fs::path& set : folders_with(root, "common.safetensors")) {
    if (!fs::is_directory(set / "source") || !fs::exists(set / "report.json")) continue;
    for (const auto& [folder, file] : quantized_folders(set)) {
      add("qqq_requantize", folder.filename().string(), [set, folder = folder] { check(set, folder); });
    }
  }
}

}  // namespace gramian::golden
