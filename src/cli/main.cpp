#include <cstdio>
#include <new>

#include "base/error.h"
#include "base/interrupt.h"
#include "cli/common.h"

namespace {

int fail(const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Gramian quantizes large language models after training, driven by what their layers see on calibration text.\n"
      "A MODEL is a Hugging Face folder (config.json, safetensors, tokenizer.json), plain or quantized by Gramian."};
  app.set_version_flag("--version", std::string("gramian ") + GRAMIAN_VERSION);
  app.require_subcommand(1);
  app.footer("gramian VERB --help explains a verb. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped.");
  gramian::cli::add_demo(app);
  gramian::cli::add_inspect(app);
  gramian::cli::add_quantize(app);
  gramian::cli::add_eval(app);
  gramian::cli::add_logits(app);
  gramian::catch_interrupts();
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const gramian::Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return fail("out of memory; use a smaller --batch or fewer --samples", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
