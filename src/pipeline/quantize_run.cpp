#include "pipeline/quantize_run.h"

#include <algorithm>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/resources.h"
#include "pipeline/job_identity.h"
#include "pipeline/verify.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

constexpr uintmax_t kSpareDiskBytes = uintmax_t{64} << 20;  // left free by what is not needed

}  // namespace

QuantizeRun::QuantizeRun(const QuantizeJob& job, const Prepared& ready, const SharedInputs& shared,
                         Journal* journal, Telemetry& telemetry, ThreadPool& pool, Log& log)
    : job_(job),
      ready_(ready),
      subject_(ready.subject),
      method_(*ready.method),
      rows_(ready.rows),
      plan_(ready.plan),
      shared_(shared),
      journal_(journal),
      telemetry_(telemetry),
      pool_(pool),
      log_(log),
      progress_(log, "layers", static_cast<int64_t>(plan_.layers.size())),
      watchdog_(log, std::chrono::seconds(job.watchdog_seconds)),
      metrics_(journal != nullptr ? job.metrics : fs::path(), job.output, log) {
  if (journal_ != nullptr) {
    output_ = make_output(job, ready, journal_->staging(), pool);
    take_finished();
  }
  if (job_.ranks == nullptr) return;
  Json records = Json::array();
  for (const LayerRecord& layer : done_) records.push_back(layer.to_json());
  records = from_rank(records, 0, *job_.ranks);
  for (size_t i = done_.size(); i < records.size(); ++i)
    done_.push_back(LayerRecord::from_json(records[i], "rank 0"));
  resumed_at_ = done_.size();
}

void QuantizeRun::plain_rounding() {
  for (size_t i = done_.size(); i < plan_.layers.size(); ++i) {
    begin_layer();
    std::vector<Task> tasks;
    for (const PlannedModule& module : plan_.layers[i]) {
      if (module.quantize) tasks.push_back({&module, {}, ""});
    }
    store(i, tasks);
    finish_layer(nullptr);
  }
}

void QuantizeRun::calibrated(LayerForward& forward) {
  tokens_ = rows_.tokens;
  batches_ = forward.batches();
  for (size_t i = take_input(forward); i < plan_.layers.size(); ++i) {
    if (i == plan_.decoder_layers()) {
      run_head(i, forward);
    } else if (i < done_.size()) {
      run_finished(i, forward);
    } else {
      run_new(i, forward);
    }
  }
}

void QuantizeRun::keep_statistics(const std::string& identity) {
  if (journal_ == nullptr) return;
  if (!done_.empty() && !StatisticsWriter::begun(job_.statistics, identity)) {
    log_.warn("the statistics of the finished layers were not kept: " + job_.statistics.string() +
              " is not written");
    return;
  }
  LayerInputs inputs;
  for (size_t i = 0; i < plan_.layers.size(); ++i) inputs.push_back(inputs_of(i));
  new_statistics_ = std::make_unique<StatisticsWriter>(job_.statistics, identity, inputs);
  for (size_t i = 0; i < done_.size(); ++i) new_statistics_->keep(i);
}

void QuantizeRun::from_statistics(const ReadStatistics& read) {
  tokens_ = rows_.tokens;
  for (size_t i = done_.size(); i < plan_.layers.size(); ++i) {
    begin_layer();
    for (std::vector<Linear>& modules : inputs_of(i)) {
      throw_if_interrupted();
      std::vector<Linear*> readers;
      for (Linear& module : modules) readers.push_back(&module);
      for (const PauseStatistics& one : read(readers)) solve_pause(i, one);
    }
    solve_deferred(i);
    if (i < plan_.decoder_layers()) prove(i);
    finish_layer(nullptr);
  }
}

std::vector<std::vector<Linear>> QuantizeRun::inputs_of(size_t layer) const {
  std::vector<std::vector<Linear>> inputs;
  if (layer >= plan_.decoder_layers()) return {{plan_.layers[layer][0].linear}};
  for (const auto& names : subject_.pauses[layer]) {
    std::vector<Linear>& modules = inputs.emplace_back();
    for (const std::string& name : names) modules.push_back(plan_.find(layer, name)->linear);
  }
  return inputs;
}

void QuantizeRun::finish() {
  if (new_statistics_) new_statistics_->finish();
  QuantizationFields fields = plan_.fields(*subject_.checkpoint);
  fields.method = job_.method;
  fields.shared_inputs = job_.shared_inputs;
  std::optional<bool> tied;
  if (subject_.tied_on_request) tied = true;
  if (plan_.untied) tied = false;
  output_->finish(fields, tied);
  double seconds = 0;
  timed(seconds, [&] { verify_output(); });
  now_ = {};
  now_.stages["verify"] = seconds;
  done_.push_back(now_);
  telemetry_.event("verify", {{"seconds", seconds}});
}

void QuantizeRun::commit(const Json& report) {
  output_->commit(report);
  journal_->close();
  JobProgress progress = job_progress();
  progress.seconds_left = 0;
  progress.finished = true;
  metrics_.write(progress, true);
}

double QuantizeRun::earlier_seconds() const {
  double seconds = 0;
  for (size_t i = 0; i < resumed_at_; ++i) seconds += done_[i].seconds;
  return seconds;
}

void QuantizeRun::take_finished() {
  const bool begun = journal_->copied();
  output_->copy(begun);
  if (!begun) {
    output_->sync();
    journal_->set_copied();
  }
  const size_t usable = usable_layers();
  while (done_.size() < usable) {
    LayerRecord layer =
        LayerRecord::from_json(journal_->layers()[done_.size()], journal_->staging().parent_path().string());
    if (!output_->keep(layer.digests)) {
      log_.warn(
          str("layer ", done_.size(), " of the unfinished job is damaged on the disk: it is made again"));
      break;
    }
    done_.push_back(std::move(layer));
  }
  journal_->forget_from(done_.size());
  resumed_at_ = done_.size();
  if (resumed_at_ > 0) telemetry_.event("resume", {{"finished_layers", resumed_at_}});
}

size_t QuantizeRun::usable_layers() const {
  const size_t finished = std::min(journal_->layers().size(), plan_.layers.size());
  // Several ranks keep no activations.
  if (job_.compat_gptqmodel && job_.ranks != nullptr && finished < plan_.layers.size()) return 0;
  if (!job_.compat_gptqmodel || finished == plan_.layers.size()) return finished;
  for (const size_t input : journal_->inputs()) {
    if (input <= finished) return input;
  }
  return 0;
}

size_t QuantizeRun::take_input(LayerForward& forward) {
  if (done_.size() == plan_.layers.size()) return done_.size();
  if (job_.ranks != nullptr) return 0;
  size_t layer = 0;
  for (const size_t found : journal_->inputs()) {
    if (found > done_.size() || !forward.load(journal_->input(found), done_[found - 1].input_digest))
      continue;
    layer = found;
    break;
  }
  if (layer == done_.size()) return layer;
  if (job_.compat_gptqmodel) {
    throw Error(ErrorKind::corrupt_data, journal_->input(done_.size()).string(),
                "the activations of the unfinished job are damaged", "pass --force to begin the job again");
  }
  log_.info(
      str("layers ", layer, " to ", done_.size() - 1, " are run again: their activations were not kept"));
  return layer;
}

void QuantizeRun::run_finished(size_t index, LayerForward& forward) {
  forward.run_layer(
      index,
      [&](const PauseStatistics& pause) {
        for (Linear* module : pause.modules) {
          const PlannedModule& planned = *plan_.find(index, module->name);
          if (planned.quantize)
            module->op = stored_replacement(*planned.format, stored(planned), *module, planned.solve.grid,
                                            subject_.dtype);
        }
      },
      false);
}

void QuantizeRun::run_new(size_t index, LayerForward& forward) {
  begin_layer();
  const LayerForward::Counts before = forward.counts();
  const auto solve = [&](const PauseStatistics& statistics) {
    at(index, "the statistics of " + statistics.modules[0]->name);
    now_.sums += 1;
    for (size_t m = 1; m < statistics.modules.size(); ++m)
      adopted_.insert(statistics.modules[m]->name.substr(subject_.prefixes[index].size()));
    solve_pause(index, statistics);
  };
  forward.run_layer(index, solve, true);
  solve_deferred(index);
  check_adoptions(index);
  const LayerForward::Counts after = forward.counts();
  now_.linear_multiplications = after.linear_multiplications - before.linear_multiplications;
  now_.accumulations = after.accumulations - before.accumulations;
  now_.parked_bytes = after.parked_bytes - before.parked_bytes;
  prove(index);
  finish_layer(&forward);
}

void QuantizeRun::run_head(size_t index, LayerForward& forward) {
  begin_layer();
  const int64_t accumulations = forward.counts().accumulations;
  Linear head = plan_.layers[index][0].linear;
  forward.run_head(head, [&](const PauseStatistics& statistics) {
    now_.sums += 1;
    solve_pause(index, statistics);
  });
  solve_deferred(index);
  now_.accumulations = forward.counts().accumulations - accumulations;
  finish_layer(nullptr);
}

void QuantizeRun::check_adoptions(size_t layer) {
  int64_t cumulative = 0;
  for (const LayerRecord& record : done_) cumulative += record.adopted;
  for (const Json& event : shared_.layer(layer).events(layer, adopted_, cumulative)) {
    telemetry_.event("hessian_input_collection_dedup", event);
    if (event.at("status") == "verified") continue;
    log_.warn(str("layer ", layer, ": ", event.at("adopted_followers"), " of ",
                  event.at("expected_followers"), " linear layers adopted their leader's Hessian"));
  }
  now_.adopted = static_cast<int64_t>(adopted_.size());
}

void QuantizeRun::begin_layer() {
  now_ = {};
  adopted_.clear();
  largest_.clear();
  layer_start_ = std::chrono::steady_clock::now();
}

void QuantizeRun::at(size_t layer, const std::string& stage) {
  const auto all = static_cast<double>(std::max<size_t>(plan_.layers[layer].size(), 1));
  const double done = static_cast<double>(layer) + static_cast<double>(now_.modules.size()) / all;
  const std::string limit =
      job_.budget.memory_bytes ? " of " + human_bytes(static_cast<double>(*job_.budget.memory_bytes)) : "";
  if (log_.interactive())
    progress_.update(done, str(stage, ", ", human_bytes(static_cast<double>(resident_bytes())), limit));
  watchdog_.at(str("layer ", layer, ", ", stage));
  if (metrics_.wanted()) metrics_.write(job_progress());
}

JobProgress QuantizeRun::job_progress() const {
  JobProgress progress{.layers = static_cast<int64_t>(plan_.layers.size()),
                       .finished_layers = static_cast<int64_t>(std::min(done_.size(), plan_.layers.size())),
                       .solved_modules = static_cast<int64_t>(now_.modules.size()),
                       .fallbacks = now_.fallbacks,
                       .tokens = tokens_,
                       .memory_limit = job_.budget.memory_bytes};
  for (const auto& layer : plan_.layers) {
    for (const PlannedModule& module : layer) progress.modules += module.quantize ? 1 : 0;
  }
  for (const LayerRecord& layer : done_) {
    progress.solved_modules += static_cast<int64_t>(layer.modules.size());
    progress.fallbacks += layer.fallbacks;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  progress.seconds = seconds + earlier_seconds();
  const size_t finished = std::min(done_.size(), plan_.layers.size());
  if (finished > resumed_at_)
    progress.seconds_left = seconds / static_cast<double>(finished - resumed_at_) *
                            static_cast<double>(plan_.layers.size() - finished);
  return progress;
}

void QuantizeRun::say_layer(size_t layer) const {
  const LayerRecord& record = done_[layer];
  std::string worst;
  double largest = -1;
  for (const Json& module : record.modules) {
    const Json& error = module.at("relative_error");
    if (!error.is_number() || error.get<double>() <= largest) continue;
    largest = error;
    worst =
        str(", most lost in ", module.at("name").get<std::string>(), " (", fixed(100 * largest, 2), " %)");
  }
  if (!record.held_out.is_null() && record.held_out.at("error").is_number())
    worst += str(", ", fixed(100 * record.held_out.at("error").get<double>(), 2), " % off on held-out rows");
  const std::optional<double> left = job_progress().seconds_left;
  log_.info(str("layer ", layer + 1, " of ", plan_.layers.size(), ": ", fixed(record.seconds, 1), " s", worst,
                left ? str("; ", fixed(*left, 0), " s left") : ""));
}

void QuantizeRun::finish_layer(LayerForward* forward) {
  const size_t layer = done_.size();
  // Behind the layer, so that one message has all of its modules.
  if (!unusable_.empty()) {
    throw Error(ErrorKind::numerical, "--no-fallback",
                str(unusable_.size(), " linear layer(s) of layer ", layer,
                    " have no Hessian to go by:", below(unusable_)),
                "\ngive more --samples, or leave these layers to a fallback or unquantized");
  }
  timed(now_.stages["journal"], [&] {
    if (output_) output_->sync();
    if (new_statistics_) new_statistics_->sync();
    if (job_.ranks == nullptr && forward != nullptr && layer + 1 < plan_.layers.size())
      keep_input(layer + 1, *forward);
  });
  now_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - layer_start_).count();
  if (journal_ != nullptr) journal_->finish_layer(now_.to_json());
  telemetry_.event("layer", {{"layer", layer},
                             {"seconds", now_.seconds},
                             {"stages", now_.stages},
                             {"resident_bytes", resident_bytes()},
                             {"peak_rss_bytes", peak_rss_bytes()},
                             {"parked_bytes", now_.parked_bytes},
                             {"input_kept", !now_.input_digest.empty()}});
  done_.push_back(now_);
  now_ = {};
  if (metrics_.wanted()) metrics_.write(job_progress(), true);
  if (!log_.interactive()) say_layer(layer);
}

void QuantizeRun::keep_input(size_t layer, LayerForward& forward) {
  const fs::path folder = journal_->new_input(layer);
  const char* unkept =
      "no room for the activations between layers: after a stop the finished layers are run again";
  fs::remove_all(folder);
  const auto needed = static_cast<uintmax_t>(forward.hidden_bytes()) + kSpareDiskBytes;
  if (fs::space(folder.parent_path()).available < needed) return log_.warn(unkept);
  try {
    now_.input_digest = forward.save(folder);
    journal_->keep_input(layer);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::io) throw;
    fs::remove_all(folder);
    now_.input_digest.clear();
    log_.warn(unkept);
  }
}

void QuantizeRun::verify_output() {
  watchdog_.at("verifying the output");
  std::vector<std::string> problems;
  try {
    const auto written = std::make_shared<const Checkpoint>(output_->staged());
    problems = output_->differences(*written);
    VerifyOptions options{.copies = false};
    // A GGUF file is of an architecture that is known here.
    if (subject_.foreign && !ready_.gguf) {
      options.linears.emplace();
      for (const auto& layer : plan_.layers) {
        for (const PlannedModule& module : layer) options.linears->push_back(module.linear);
      }
    }
    const Verification found = verify(written, options, pool_, log_);
    problems.insert(problems.end(), found.problems.begin(), found.problems.end());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;
    problems.emplace_back(error.what());
  }
  if (problems.empty()) return;
  journal_->close();
  throw Error(ErrorKind::internal, job_.output.string(),
              str("what was written does not verify, ", problems.size(), " problem(s):", below(problems)),
              "\nnothing was kept; check the disk, and report it if the disk is sound");
}

}  // namespace gramian
