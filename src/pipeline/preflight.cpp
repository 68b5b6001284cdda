#include "pipeline/preflight.h"

#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/problems.h"
#include "formats/encoded_tensor.h"
#include "formats/gguf/model_reader.h"
#include "pipeline/journal.h"
#include "pipeline/output_folder.h"
#include "pipeline/quantize.h"
#include "pipeline/ranks.h"
#include "pipeline/source_scan.h"
#include "pipeline/unstack.h"
#include "pipeline/unused_options.h"
#include "stats/gram.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kQuickScanBytes = uint64_t{4} << 30;

}  // namespace

void refuse_output(const QuantizeJob& job, const LinearFormat* format) {
  Journal::refuse_busy(job.output);
  const bool one_file = format != nullptr && format->one_file();
  const bool named_file = job.output.extension() == ".gguf";
  if (one_file != named_file)
    throw Error(ErrorKind::invalid_argument, job.output.string(),
                one_file ? str("format ", job.format, " writes one file")
                         : str("format ", job.format, " writes a folder, the name is a GGUF file's"),
                one_file ? "name it with .gguf at its end" : "add --format gguf, or name a folder");
  if (one_file) {
    refuse_output_file(job.output,
                       {job.source, job.calibration.value_or(job.source), job.imatrix.value_or(job.source)});
    return refuse_occupied_file(job.output, job.force);
  }
  if (job.force) refuse_replacing(job.output, {job.source, job.calibration.value_or(job.source)});
  StagedDirectory::refuse_occupied(job.output, job.force);
}

namespace {

class Preflight {
 public:
  Preflight(const QuantizeJob& job, ThreadPool& pool, Log& log) : job_(job), pool_(pool), log_(log) {}

  Prepared run() {
    at::ScalarType dtype = at::kFloat;
    check_names();
    const bool known = problems_.check([&] { dtype = parse_dtype(job_.dtype); });
    if (known) problems_.check([&] { resolve_on_cpu(job_.accumulation, dtype); });
    check_output();
    problems_.check([&] { checkpoint_ = std::make_shared<const Checkpoint>(job_.source); });
    if (checkpoint_ != nullptr && problems_.check([&] { refuse_quantized(*checkpoint_); })) {
      check_model(dtype);
      check_rows();
      scan();
    } else {
      check_settings({}, {});
      check_rows();
    }
    return finish();
  }

  Prepared run(Subject subject, RowSet rows) {
    ready_.subject = std::move(subject);
    ready_.rows = std::move(rows);
    checkpoint_ = ready_.subject.checkpoint;
    check_names();
    problems_.check([&] { resolve_on_cpu(job_.accumulation, ready_.subject.dtype); });
    check_output();
    check_imatrix();
    problems_.check([&] { refuse_quantized(*checkpoint_); });
    if (check_settings(ready_.subject.layers, job_.head ? ready_.subject.head : std::nullopt)) make_plan();
    scan();
    return finish();
  }

 private:
  void check_names() {
    problems_.check([&] { ready_.method = &find_method(job_.method); });
    problems_.check([&] {
      const LinearFormat& format = find_format(job_.format);
      format_ = &format;
    });
    problems_.check([&] { job_.recipe_problems.refuse(); });
  }

  void check_output() {
    if (job_.ranks != nullptr && !job_.ranks->writes()) return;
    problems_.check([&] { refuse_output(job_, format_); });
    problems_.check([&] {
      if (job_.statistics.empty() || job_.sequential == Sequential::none) return;
      throw Error(ErrorKind::invalid_argument, "--statistics",
                  "statistics of quantized layers serve one job only", "add --sequential none");
    });
    problems_.check([&] {
      if (job_.statistics.empty() || ready_.method == nullptr ||
          ready_.method->statistic == Statistic::hessian || !ready_.method->calibrated())
        return;
      throw Error(ErrorKind::invalid_argument, "--statistics",
                  str("method ", job_.method, " has no statistics to keep"),
                  "leave it out: its statistics are small and quickly taken");
    });
  }

  Prepared finish() {
    problems_.refuse();
    if (ready_.gguf) describe_job(job_, ready_, ready_.gguf->model.metadata);
    say();
    return std::move(ready_);
  }

  void check_model(at::ScalarType dtype) {
    const std::string folder = job_.source.string();
    ModelOptions options{.dtype = dtype, .treat_as_tied = job_.treat_as_tied, .quantized = {}};
    Weights::Survey survey;
    std::vector<std::vector<Linear>> linears;
    std::optional<Linear> head;
    options.headers = &survey;
    bool sound = problems_.check([&] {
      const Model headers(checkpoint_, options);
      vocab_ = headers.spec().vocab;
      linears = headers.survey(survey);
      if (job_.head) head = headers.head();
    });
    sound &= problems_.check([&] { survey.refuse(folder); });
    sound &= check_settings(linears, head);
    if (!sound || format_ == nullptr) return;
    options.headers = nullptr;
    problems_.check([&] {
      ready_.model = std::make_unique<const Model>(checkpoint_, options);
      ready_.subject = subject_of(*ready_.model);
    });
    if (ready_.model != nullptr) make_plan();
  }

  void make_plan() {
    if (format_ == nullptr) return;
    problems_.check([&] {
      if (format_->one_file()) unstack(ready_.subject);
      ready_.plan = gramian::make_plan(ready_.subject, *format_, job_.plan_options());
      if (job_.imatrix) ready_.importance.emplace(*job_.imatrix, ready_.subject);
      if (format_->one_file()) ready_.gguf = plan_gguf(job_, ready_, log_);
    });
  }

  bool check_settings(const std::vector<std::vector<Linear>>& linears, const std::optional<Linear>& head) {
    if (format_ == nullptr) return false;
    Problems found;
    gramian::check_settings(job_.source.string(), linears, head, *format_, job_.plan_options(),
                            job_.one_matrix, found, warnings_);
    return problems_.check([&] { found.refuse(); });
  }

  void check_imatrix() {
    problems_.check([&] {
      if (!job_.imatrix || ready_.method == nullptr || ready_.method->statistic == Statistic::importance)
        return;
      throw Error(ErrorKind::invalid_argument, "--imatrix",
                  str("method ", job_.method, " takes no importance"), "use --method imatrix");
    });
  }

  void check_rows() {
    check_imatrix();
    const bool calibrated =
        ready_.method == nullptr ? job_.calibration.has_value() : ready_.method->calibrated();
    problems_.check([&] {
      if (job_.imatrix && job_.calibration)
        throw Error(ErrorKind::invalid_argument, "--imatrix",
                    "has the importance that --calibration would measure", "give one of them");
    });
    if (!calibrated || job_.imatrix) return;
    problems_.check([&] {
      if (!job_.calibration) {
        throw Error(ErrorKind::invalid_argument, "--calibration",
                    str("method ", job_.method, " needs calibration text"),
                    "pass a .txt, .jsonl or .safetensors file");
      }
      const MappedFile file(*job_.calibration);
      // What is in it says nothing without the model's tokenizer.
      if (!fs::exists(job_.source / "config.json") && !gguf::is_model_file(job_.source)) return;
      ready_.rows = load_rows(*job_.calibration, job_.rows, job_.source, log_);
      if (vocab_) refuse_foreign_ids(ready_.rows.rows, *vocab_, *job_.calibration);
      ready_.held_out = set_aside(ready_.rows, job_.held_out);
    });
  }

  void scan() {
    if (job_.skip_scan) return;
    uint64_t bytes = 0;
    for (const auto& [name, tensor] : checkpoint_->tensors()) bytes += tensor.bytes.size();
    if (!problems_.none() && bytes > kQuickScanBytes) {
      log_.info("the weights are searched for NaN and infinity when nothing else is wrong");
      return;
    }
    problems_.check([&] { ready_.digests = scan_source(*checkpoint_, ready_.plan, pool_, log_); });
  }

  void say() const {
    for (const std::string& warning : warnings_) log_.warn(warning);
    say_types();
    say_encoded_source();
    const int64_t surplus = ready_.model == nullptr ? 0 : ready_.model->surplus_layers();
    if (surplus > 0) {
      log_.warn(str(surplus, " stored layer(s) beyond num_hidden_layers (", ready_.model->spec().layers(),
                    ") stay as they are: if the model has them, config.json is wrong"));
    }
    if (ready_.importance) {
      say_importance(*ready_.importance);
    } else if (ready_.method->calibrated()) {
      say_rows(ready_.rows);
    } else if (job_.calibration && !ready_.subject.foreign) {
      log_.warn(str("method ", ready_.method->name, " takes no calibration: ", job_.calibration->string(),
                    " is not read"));
    }
    for (const std::string& warning : say_unused(job_, ready_)) log_.warn(warning);
    for (const std::string& name : ready_.plan.skipped())
      log_.info("left unquantized: " + name + ", " + ready_.plan.find(name)->skip_reason);
    if (const auto left_out = checkpoint_->side_files().left_out; !left_out.empty()) {
      std::vector<std::string> names;
      for (const fs::path& path : left_out) names.push_back(path.string());
      log_.info(str("not copied to the output: ", quote_names(names, 10)));
    }
  }

  void say_importance(const ModelImportance& importance) const {
    log_.info(
        str("importance of ", importance.matrix().weights.size(), " weights from ", job_.imatrix->string()));
    if (!importance.missing().empty())
      log_.warn(str(importance.missing().size(),
                    " linear layers have no importance there: ", quote_names(importance.missing(), 5)));
    if (!importance.silent().empty())
      log_.warn(str(job_.imatrix->string(), " calls half and more of the columns of ",
                    importance.silent().size(), " linear layers zero, which damaged files do: ",
                    quote_names(importance.silent(), 5), "; measure the importance again"));
  }

  // What blocks have lost stays lost.
  void say_encoded_source() const {
    std::map<std::string, size_t> blocks;
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      if (tensor.encoding != nullptr && tensor.encoding->codec != nullptr &&
          tensor.encoding->codec->block > 1)
        ++blocks[std::string(tensor.encoding->codec->name)];
    }
    if (blocks.empty()) return;
    const std::string kinds =
        listed(blocks, [](const auto& kind) { return str(kind.second, " ", kind.first); });
    log_.warn(str("the source is quantized itself, to blocks (tensors: ", kinds,
                  "); give the original model where you have it"));
  }

  // Rows that the asked type does not divide.
  void say_types() const {
    std::map<std::string, std::vector<std::string>> others;
    for (const auto& layer : ready_.plan.layers) {
      for (const PlannedModule& module : layer) {
        if (!module.quantize || !module.fell_back) continue;
        others[str(module.solve.grid.codec->name, " for rows of ", module.linear.in_features)].push_back(
            module.linear.name);
      }
    }
    for (const auto& [what, names] : others)
      log_.warn(str(names.size(), " modules get ", what, ": ", quote_names(names, 3)));
  }

  void say_rows(const RowSet& rows) const {
    const std::string of =
        rows.sequence_length ? str(" of ", *rows.sequence_length, " tokens") : std::string();
    log_.info(str("calibration: ", rows.asked ? str(*rows.asked, " rows", of, " asked, ") : std::string(),
                  rows.rows.size(), " used, ", rows.tokens, " tokens",
                  rows.blank > 0 ? str(", ", rows.blank, " blank dropped") : std::string(),
                  rows.split > 0 ? str(", ", rows.split, " split") : std::string(), "; ", rows.policy));
  }

  const LinearFormat* format_ = nullptr;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<std::string> warnings_;
  const QuantizeJob& job_;
  ThreadPool& pool_;
  Log& log_;
  Problems problems_;
  std::optional<int64_t> vocab_;
  Prepared ready_;
};

}  // namespace

void refuse_quantized(const Checkpoint& checkpoint) {
  if (!checkpoint.config().contains("quantization_config") ||
      checkpoint.config().at("quantization_config").is_null()) {
    return;
  }
  if (is_decoded_source(checkpoint.config(), (checkpoint.folder() / "config.json").string())) return;
  throw Error(ErrorKind::invalid_argument, checkpoint.folder().string(),
              "is quantized already (quantization_config)", "give the unquantized checkpoint");
}

Prepared prepare(const QuantizeJob& job, ThreadPool& pool, Log& log) {
  return Preflight(job, pool, log).run();
}

Prepared prepare(const QuantizeJob& job, Subject subject, RowSet rows, ThreadPool& pool, Log& log) {
  return Preflight(job, pool, log).run(std::move(subject), std::move(rows));
}

}  // namespace gramian
