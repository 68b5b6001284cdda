#include <cstdio>
#include <filesystem>
#include <new>
#include <string>

#include "base/error.h"
#include "base/interrupt.h"
#include "cli/common.h"

namespace {

int fail(const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

int out_of_memory() { return fail("out of memory; use a smaller --batch, or fewer or shorter rows", 1); }

// --help and --version are no errors; flags that do not parse are bad input.
int parse_failure(const CLI::App& app, const CLI::ParseError& error, const char* first) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const std::string verb = first == nullptr || first[0] == '-' ? "" : first;
  const auto named = [&](const CLI::App* known) { return known->get_name() == verb; };
  if (!verb.empty() && app.get_subcommands(named).empty()) {
    return fail("unknown verb '" + verb + "'; gramian --help lists the verbs", 2);
  }
  return fail(std::string(error.what()) + "; see gramian " + (verb.empty() ? "" : verb + " ") + "--help", 2);
}

// LibTorch's messages carry a stack trace after their first line.
int foreign_failure(const std::string& text) {
  if (text.find("can't allocate memory") != std::string::npos) return out_of_memory();
  return fail(text.substr(0, text.find('\n')), 1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Gramian quantizes large language models after training, driven by what their layers see on "
      "calibration text.\n"
      "A MODEL is a Hugging Face folder (config.json, safetensors, tokenizer.json), plain or quantized by "
      "Gramian."};
  app.set_version_flag("--version", std::string("gramian ") + GRAMIAN_VERSION);
  app.require_subcommand(1);
  app.footer(
      "gramian VERB --help explains a verb. Exit codes: 0 done, 1 failed, 2 bad input, 3 verify or "
      "probe found problems, "
      "130 stopped.");
  gramian::cli::add_demo(app);
  gramian::cli::add_inspect(app);
  gramian::cli::add_probe(app);
  gramian::cli::add_smooth(app);
  gramian::cli::add_rotate(app);
  gramian::cli::add_quantize(app);
  gramian::cli::add_imatrix(app);
  gramian::cli::add_convert(app);
  gramian::cli::add_eval(app);
  gramian::cli::add_compare(app);
  gramian::cli::add_logits(app);
  gramian::cli::add_generate(app);
  gramian::cli::add_report(app);
  gramian::cli::add_verify(app);
  gramian::cli::add_bench(app);
  gramian::cli::add_options(app);
  gramian::catch_interrupts();
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return parse_failure(app, error, argc > 1 ? argv[1] : nullptr);
  } catch (const gramian::Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::filesystem::filesystem_error& error) {
    // A path that the system cannot even look at: too long, or through a file.
    return fail(error.path1().string() + ": " + error.code().message() + "; check the path", 1);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& error) {
    return foreign_failure(error.what());
  }
}
