#include "pipeline/metrics.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/resources.h"

namespace gramian {

std::string metrics_text(const JobProgress& progress, const std::string& label, double unix_time,
                         int64_t resident, int64_t peak) {
  std::string text;
  const auto gauge = [&](const char* name, const char* help, double value) {
    // A JSON number is one of Prometheus, too.
    text += str("# HELP gramian_", name, " ", help, "\n# TYPE gramian_", name, " gauge\ngramian_", name,
                label, " ", nlohmann::json(value).dump(), "\n");
  };
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  gauge("layers", "Layers of the job, a quantized head counted as one", number(progress.layers));
  gauge("finished_layers", "Layers whose weights and record are on the disk",
        number(progress.finished_layers));
  gauge("modules", "Linear layers to quantize", number(progress.modules));
  gauge("solved_modules", "Linear layers quantized", number(progress.solved_modules));
  gauge("fallbacks", "Linear layers rounded plainly for want of a Hessian", number(progress.fallbacks));
  gauge("calibration_tokens", "Tokens of calibration", number(progress.tokens));
  gauge("seconds", "Seconds that the job has taken, earlier runs included", progress.seconds);
  if (progress.seconds_left) gauge("seconds_left", "Seconds that it will still take", *progress.seconds_left);
  gauge("resident_bytes", "Resident memory, mapped pages included", number(resident));
  gauge("peak_resident_bytes", "Largest resident memory so far", number(peak));
  if (progress.memory_limit)
    gauge("memory_limit_bytes", "What --memory allows", number(*progress.memory_limit));
  gauge("finished", "1 when the output has its final name", progress.finished ? 1 : 0);
  gauge("updated_timestamp_seconds", "When this was written, seconds since 1970", unix_time);
  return text;
}

Metrics::Metrics(std::filesystem::path file, const std::filesystem::path& output, Log& log)
    : file_(std::move(file)), log_(log) {
  std::string name;
  for (const char c : std::filesystem::absolute(output).string()) {
    if (c == '\\' || c == '"') name += '\\';
    name += c == '\n' ? "\\n" : std::string(1, c);
  }
  label_ = "{output=\"" + name + "\"}";
  if (file_.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(file_).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::invalid_argument, file_.string(), "no folder " + folder.string(), "make it first");
  replace({});
}

void Metrics::replace(const JobProgress& progress) {
  const double unix_time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  write_atomically(file_, metrics_text(progress, label_, unix_time, resident_bytes(), peak_rss_bytes()));
}

void Metrics::write(const JobProgress& progress, bool now) {
  if (file_.empty()) return;
  const auto time = std::chrono::steady_clock::now();
  if (!now && time - written_ < std::chrono::seconds(1)) return;
  written_ = time;
  try {
    replace(progress);
  } catch (const Error& error) {
    log_.warn(str("metrics end here: ", error.what()));
    file_.clear();
  }
}

}  // namespace gramian
