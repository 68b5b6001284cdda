// Any bytes as what a job says of itself, as its report, its telemetry and the evaluation of its output: refused with gramian::Error, or a
// page.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "eval/job_page.h"
#include "eval/report_page.h"
#include "formats/json.h"

namespace {

template <class Read>
void attempt(const Read& read) {
  try {
    const std::string page = gramian::job_page(read(), "input");
    if (!page.starts_with(gramian::page_beginning()) || !page.ends_with("</html>\n")) std::abort();
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  attempt([&] { return gramian::read_job_report(gramian::parse_json(text, "input"), "input"); });
  attempt([&] { return gramian::read_job_telemetry(text, "input"); });
  attempt([&] {
    gramian::JobDocument job;
    job.evaluation = gramian::read_evaluation(gramian::parse_json(text, "input"), "input");
    return job;
  });
  return 0;
}
