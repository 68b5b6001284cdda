#include "cli/app.h"

#include <cstdio>
#include <cstdlib>
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

namespace gramian::cli {

int run(int argc, char** argv, Ranks* ranks) {
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
  add_demo(app);
  add_inspect(app);
  add_probe(app);
  add_smooth(app);
  add_rotate(app);
  add_quantize(app, ranks);
  add_imatrix(app);
  add_convert(app);
  add_eval(app);
  add_compare(app);
  add_logits(app);
  add_generate(app);
  add_report(app);
  add_verify(app);
  add_bench(app);
  add_options(app);
  catch_interrupts();
  remember_command(argc, argv);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return parse_failure(app, error, argc > 1 ? argv[1] : nullptr);
  } catch (const Error& error) {
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

void leave(int code) {
#if defined(__SANITIZE_ADDRESS__)
  std::exit(code);
#else
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}

}  // namespace gramian::cli
