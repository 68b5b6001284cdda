#include "pipeline/journal.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "formats/checkpoint.h"
#include "formats/json.h"
#include "pipeline/job_identity.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = Journal::Json;
namespace {

std::string numbered(const char* what, size_t layer) {
  char text[64];
  std::snprintf(text, sizeof text, "%s-%05zu", what, layer);
  return text;
}

Error busy(const fs::path& output) {
  return {ErrorKind::invalid_argument, output.string(), "another job is writing this output",
          "wait for it, or name another output"};
}

bool is_there(const fs::path& path) { return fs::exists(path); }

}  // namespace

fs::path Journal::folder_of(const fs::path& output) {
  fs::path folder = plain_path(output);
  folder += kJournalSuffix;
  return folder;
}

void Journal::refuse_busy(const fs::path& output) {
  const fs::path lock = folder_of(output) / "lock";
  if (!is_there(lock)) return;
  if (!FileLock(lock).held()) throw busy(output);
}

Journal::Journal(const fs::path& output, const Json& identity, Unfinished unfinished, Log& log)
    : output_(plain_path(output)), folder_(folder_of(output)), identity_(identity), log_(log) {
  made_ = make_folders(folder_);
  lock();
  const fs::path job = folder_ / "job.json";
  if (unfinished == Unfinished::discard || !is_there(job)) {
    const bool had_one = is_there(job);
    // It died between its last two steps, with what it was to replace moved aside.
    const fs::path aside = staging() += ".replaced";
    if (is_there(aside) && !is_there(output_)) fs::rename(aside, output_);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename() != "lock") fs::remove_all(entry.path());
    }
    if (had_one) log_.info("the unfinished job in " + folder_.string() + " is discarded");
    write_atomically(job, identity.dump(1) + "\n");
    sync_directory(folder_.parent_path());
    return;
  }
  const std::vector<std::string> changes =
      identity_differences(parse_json(read_text(job), job.string()), identity);
  if (!changes.empty()) {
    throw Error(ErrorKind::invalid_argument, folder_.string(),
                "an unfinished job of another kind lies here:" + below(changes),
                "\nfinish it with its own command, name another output, or pass --force to discard it");
  }
  read_layers();
  log_.info(str("going on with the unfinished job in ", folder_.string(), ": ", layers_.size(),
                " layers are finished"));
}

Journal::~Journal() {
  if (closed_ || !lock_) return;
  if (layers_.empty()) {
    try {
      close();
    } catch (...) {
      // The reason why the job ends matters more.
    }
    return;
  }
  log_.warn(str(layers_.size(), " finished layers are kept in ", folder_.string(),
                ": the same command with --resume goes on from there"));
}

void Journal::lock() {
  const fs::path path = folder_ / "lock";
  lock_ = std::make_unique<FileLock>(path);
  if (lock_->held() && is_there(path)) return;
  lock_.reset();
  throw busy(output_);
}

void Journal::read_layers() {
  for (fs::path path; is_there(path = folder_ / (numbered("layer", layers_.size()) + ".json"));)
    layers_.push_back(parse_json(read_text(path), path.string()));
}

void Journal::forget_from(size_t count) {
  while (layers_.size() > count) {
    layers_.pop_back();
    fs::remove(folder_ / (numbered("layer", layers_.size()) + ".json"));
  }
}

void Journal::finish_layer(const Json& record) {
  write_atomically(folder_ / (numbered("layer", layers_.size()) + ".json"), record.dump(1) + "\n");
  layers_.push_back(record);
}

bool Journal::copied() const { return is_there(folder_ / "copied"); }
void Journal::set_copied() { write_atomically(folder_ / "copied", ""); }

fs::path Journal::input(size_t layer) const { return folder_ / numbered("input", layer); }
fs::path Journal::new_input(size_t layer) const { return folder_ / (numbered("input", layer) + ".partial"); }

void Journal::keep_input(size_t layer) {
  sync_directory(new_input(layer));
  fs::remove_all(input(layer));
  fs::rename(new_input(layer), input(layer));
  sync_directory(folder_);
  const std::vector<size_t> all = inputs();
  for (size_t i = 2; i < all.size(); ++i) fs::remove_all(input(all[i]));
}

std::vector<size_t> Journal::inputs() const {
  std::vector<size_t> found;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("input-")) continue;
    size_t layer = 0;
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + 6, end, layer);
    if (error == std::errc() && rest == end) found.push_back(layer);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void Journal::close() {
  closed_ = true;
  std::error_code error;
  // Whoever comes meanwhile must not find half of a journal.
  fs::remove(folder_ / "job.json", error);
  fs::remove_all(folder_, error);
  if (made_.empty()) return;
  // Only empty folders are removed: the output, or others, may use them by now.
  for (fs::path above = folder_.parent_path();
       made_ != folder_ && fs::remove(above, error) && above != made_;)
    above = above.parent_path();
}

}  // namespace gramian
