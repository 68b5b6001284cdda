// gramian.quantize(): a job over a model that Python holds.
#include "pipeline/quantize.h"

#include <pybind11/stl/filesystem.h>

#include "base/format.h"
#include "bindings.h"
#include "cli/solve_flags.h"
#include "formats/gguf/convert.h"
#include "hook_forward.h"
#include "pipeline/method.h"
#include "pipeline/preflight.h"
#include "pipeline/recipe.h"

namespace gramian::python {
namespace {

StoredWeight stored_of(const py::dict& given) {
  StoredWeight stored;
  const auto take = [&](const char* key, auto& value) {
    if (given.contains(key)) value = given[key].cast<std::decay_t<decltype(value)>>();
  };
  take("tensor", stored.tensor);
  take("bias", stored.bias);
  take("shape", stored.shape);
  take("transposed", stored.transposed);
  take("matrix", stored.matrix);
  take("first_row", stored.first_row);
  take("row_step", stored.row_step);
  return stored;
}

// (name, in, out, bias, stored)
Linear linear_of(const py::tuple& given) {
  return {given[0].cast<std::string>(),
          given[1].cast<int64_t>(),
          given[2].cast<int64_t>(),
          given[3].cast<bool>(),
          nullptr,
          stored_of(given[4].cast<py::dict>())};
}

// gramian/hooks/subject.py makes it.
Subject subject_of(const py::dict& given, const std::string& name) {
  Subject subject;
  subject.foreign = true;
  subject.model_type = given["model_type"].cast<std::string>();
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [tensor_name, tensor] : given["tensors"].cast<py::dict>())
    tensors.emplace(tensor_name.cast<std::string>(), StoredTensor::of(tensor.cast<at::Tensor>()));
  subject.checkpoint =
      std::make_shared<const Checkpoint>(name, Json::parse(given["config"].cast<std::string>()),
                                         std::move(tensors), given["side_folder"].cast<std::string>());
  subject.dtype = given["dtype"].cast<at::ScalarType>();
  for (const py::handle layer : given["layers"]) {
    std::vector<Linear>& linears = subject.layers.emplace_back();
    ModuleTree& pauses = subject.pauses.emplace_back();
    std::vector<size_t>& steps = subject.steps.emplace_back();
    for (const py::handle pause : layer) {
      const auto pair = pause.cast<py::tuple>();
      steps.push_back(pair[0].cast<size_t>());
      std::vector<std::string>& names = pauses.emplace_back();
      for (const py::handle linear : pair[1].cast<py::list>()) {
        linears.push_back(linear_of(linear.cast<py::tuple>()));
        names.push_back(linears.back().name);
      }
    }
  }
  subject.prefixes = given["prefixes"].cast<std::vector<std::string>>();
  subject.experts = given["experts"].cast<std::set<std::string>>();
  if (!given["head"].is_none()) subject.head = linear_of(given["head"].cast<py::tuple>());
  subject.tied = given["tied"].cast<bool>();
  return subject;
}

RowSet rows_of(const py::dict& given) {
  RowSet rows;
  rows.rows = given["rows"].cast<std::vector<TokenRow>>();
  rows.asked = given["asked"].cast<std::optional<int64_t>>();
  rows.blank = given["blank"].cast<int64_t>();
  rows.split = given["split"].cast<int64_t>();
  rows.policy = given["policy"].cast<std::string>();
  for (const TokenRow& row : rows.rows) rows.tokens += static_cast<int64_t>(row.size());
  return rows;
}

Recipe recipe_of(const Json& settings) {
  const std::string path = settings.at("recipe_path");
  return path.empty() ? parse_recipe(settings.at("recipe"), "recipe.json") : read_recipe(path);
}

// `over` goes before `under`.
template <class Value>
void prefer(std::optional<Value>& under, const std::optional<Value>& over) {
  if (over) under = over;
}

// `settings`: gramian/job.py writes it.
QuantizeJob job_of(const Json& settings) {
  QuantizeJob job;
  job.source = settings.at("source").get<std::string>();
  if (settings.at("calibration") != "") job.calibration = settings.at("calibration").get<std::string>();
  if (settings.at("imatrix") != "") job.imatrix = settings.at("imatrix").get<std::string>();
  job.output = settings.at("output").get<std::string>();
  job.batch = settings.at("batch");
  if (!settings.at("compat").is_null()) {
    if (settings.at("compat") != "gptqmodel")
      throw Error(ErrorKind::invalid_argument, "compat", "knows \"gptqmodel\" only");
    job.compat_gptqmodel = true;
  }
  Recipe recipe = recipe_of(settings);
  const Recipe options = parse_recipe(settings.at("options"), "options.json");
  cli::SolveFlags flags;
  flags.settings = options.defaults;
  flags.method = options.method;
  flags.format = options.format;
  if (settings.at("one_matrix") == true) flags.target = "vllm";
  flags.untie = settings.at("untie");
  if (!settings.at("lm_head_bits").is_null()) flags.head_bits = settings.at("lm_head_bits").get<int>();
  recipe.rules.insert(recipe.rules.begin(), options.rules.begin(), options.rules.end());
  recipe.lm_head = recipe.lm_head || options.lm_head;
  prefer(recipe.shared_inputs, options.shared_inputs);
  prefer(recipe.sequential, options.sequential);
  prefer(recipe.staging, options.staging);
  prefer(recipe.chunk_size, options.chunk_size);
  prefer(recipe.chunk_bytes, options.chunk_bytes);
  cli::settle_solve(flags, recipe, job);
  job.recipe_problems.check([&] { options.problems.refuse(); });
  if (!settings.at("sequential").is_null()) job.sequential = parse_sequential(settings.at("sequential"));
  job.accumulation.input = parse_hessian_input(settings.at("hessian_input_dtype"));
  job.shared_inputs = job.shared_inputs && settings.at("shared_inputs") == true;
  job.min_expert_tokens = settings.at("min_expert_tokens");
  job.skip_unfit = settings.at("skip_unfit");
  job.skip_scan = settings.at("skip_scan");
  job.dry_run = settings.at("dry_run");
  job.force = settings.at("force");
  job.resume = settings.at("resume");
  job.statistics = settings.at("statistics").get<std::string>();
  job.telemetry = settings.at("telemetry").get<std::string>();
  if (const auto memory = settings.at("memory").get<std::string>(); !memory.empty()) {
    job.budget.memory_bytes = parse_bytes(memory);
    if (!job.budget.memory_bytes)
      throw Error(ErrorKind::invalid_argument, "memory", quote_name(memory) + " is not a size",
                  "for example memory=\"24GiB\"");
  }
  return job;
}

// What can be said before the model runs. `config`: the object that config.json is to hold.
void check(const std::string& settings_text, const std::string& config) {
  const Json settings = Json::parse(settings_text);
  const QuantizeJob job = job_of(settings);
  const auto name = settings.at("name").get<std::string>();
  const LinearFormat* format = nullptr;
  Problems problems;
  problems.check([&] { job.recipe_problems.refuse(); });
  problems.check([&] { find_method(job.method); });
  problems.check([&] { format = &find_format(job.format); });
  problems.check([&] { refuse_output(job, format); });
  if (format != nullptr) {
    std::vector<std::string> said_later;
    Problems found;
    check_settings(name, {}, std::nullopt, *format, job.plan_options(), job.one_matrix, found, said_later);
    problems.check([&] { found.refuse(); });
    if (format->one_file()) problems.check([&] { gguf::model_metadata(Json::parse(config), name); });
  }
  problems.refuse();
}

std::string run(const std::string& settings_text, const py::dict& given_subject, const py::dict& given_rows,
                const py::object& driver) {
  const Json settings = Json::parse(settings_text);
  const QuantizeJob job = job_of(settings);
  const Subject subject = subject_of(given_subject, settings.at("name").get<std::string>());
  RowSet rows = rows_of(given_rows);
  Log log(settings.at("quiet") == true ? LogLevel::quiet : LogLevel::normal);
  const MakeForward forward = [&](const auto& share) {
    return std::make_unique<HookForward>(driver, subject, share,
                                         HookOptions{job.sequential, find_method(job.method).statistic,
                                                     job.accumulation, job.budget.memory_bytes, &log});
  };
  const Work work;
  return quantize(job, subject, std::move(rows), forward, *pool(), log).dump();
}

}  // namespace

void bind_quantize(py::module_& m) {
  m.def("check_settings", &check, py::arg("settings"), py::arg("config"));
  m.def("quantize", &run, py::arg("settings"), py::arg("subject"), py::arg("rows"), py::arg("driver"));
}

}  // namespace gramian::python
