// gramian generate MODEL -p TEXT
#include "runtime/generate.h"

#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/resources.h"
#include "cli/common.h"
#include "formats/chat_template.h"
#include "formats/gguf/model_reader.h"
#include "formats/model_files.h"
#include "runtime/generation_config.h"

namespace gramian::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::optional<std::string> prompt, prompt_file, system;
  bool raw = false;
  GenerateOptions generate;
  SamplerOverrides sampler;
};

struct Prompt {
  std::vector<int64_t> ids;
  bool chat = false;  // made by the model's chat template
};

// The prompt as the chat template writes it, else as it stands.
Prompt make_prompt(const Flags& flags, const Tokenizer& tokenizer, Log& log) {
  if (flags.prompt.has_value() == flags.prompt_file.has_value())
    throw Error(ErrorKind::invalid_argument, "generate", "needs exactly one of --prompt and --prompt-file");
  if (flags.raw && flags.system)
    throw Error(ErrorKind::invalid_argument, "--system", "has no place in a --raw prompt",
                "write it into the prompt");
  std::string text = flags.prompt ? *flags.prompt : read_text(*flags.prompt_file);
  const std::optional<ChatTemplate> chat = flags.raw ? std::nullopt : ChatTemplate::find(flags.model.folder);
  if (chat) {
    Conversation conversation{.messages = Json::array(), .where = "the prompt"};
    if (flags.system) conversation.messages.push_back({{"role", "system"}, {"content", *flags.system}});
    conversation.messages.push_back({{"role", "user"}, {"content", text}});
    const auto rendered = chat->render({conversation}, {.add_generation_prompt = true, .date = {}}, log);
    if (rendered) return {tokenizer.encode(rendered->at(0)), true};
  } else if (!flags.raw) {
    log.info("the model has no chat template: the prompt is taken as it stands");
  }
  if (flags.system) text = *flags.system + "\n" + text;
  return {tokenizer.encode(text, {.add_special_tokens = true}), false};
}

void say_settings(const GenerationConfig& config, const Flags& flags, const SamplerOptions& sampler,
                  Log& log) {
  log.info("next tokens: " + describe(sampler));
  if (!config.ignored.empty()) {
    log.warn("generation_config.json asks for what is not built: " +
             listed(config.ignored, [](const std::string& name) { return name; }));
  }
  if (sampler.temperature == 0 && (flags.sampler.top_k || flags.sampler.top_p || flags.sampler.seed != 0))
    log.warn("--top-k, --top-p and --seed count for nothing in a greedy choice; give a --temperature");
  if (config.eos.empty())
    log.warn("neither generation_config.json nor config.json names a token that ends a text");
}

Json document(const Flags& flags, const ResidentModel& model, const Prompt& prompt,
              const SamplerOptions& sampler, const Generation& made) {
  const auto rate = [](auto tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? Json(static_cast<double>(tokens) / seconds) : Json(nullptr);
  };
  Json json;
  json["model"] = flags.model.folder;
  json["dtype"] = c10::toString(model.model().dtype());
  json["chat_template"] = prompt.chat;
  json["prompt_ids"] = prompt.ids;
  json["text"] = made.text;
  json["ids"] = made.ids;
  json["finish"] = finish_name(made.finish);
  json["sampling"] = {{"temperature", sampler.temperature},
                      {"top_k", sampler.top_k},
                      {"top_p", sampler.top_p},
                      {"repetition_penalty", sampler.repetition_penalty},
                      {"seed", sampler.seed}};
  json["prefill_seconds"] = made.prefill_seconds;
  json["prefill_tokens_per_second"] = rate(prompt.ids.size(), made.prefill_seconds);
  json["decode_seconds"] = made.decode_seconds;
  json["decode_tokens_per_second"] = rate(made.decoded, made.decode_seconds);
  json["cache_bytes"] = made.cache_bytes;
  json["peak_rss_bytes"] = peak_rss_bytes();
  return json;
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error(ErrorKind::io, "standard output", "cannot write the text");
}

std::string summary(const Generation& made, size_t prompt) {
  const auto rate = [](double tokens, double seconds) {
    return fixed(seconds > 0 ? tokens / seconds : 0, 1);
  };
  return str(prompt, " prompt tokens in ", fixed(made.prefill_seconds, 2), " s (",
             rate(static_cast<double>(prompt), made.prefill_seconds), " a second), ", made.decoded,
             " more in ", fixed(made.decode_seconds, 2), " s (",
             rate(static_cast<double>(made.decoded), made.decode_seconds), " a second), ended by ",
             finish_name(made.finish), "; peak memory ", human_bytes(static_cast<double>(peak_rss_bytes())));
}

void run(Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const std::filesystem::path folder = flags.model.folder;
  if (!std::filesystem::is_directory(folder) && !gguf::is_model_file(folder)) {
    throw Error(
        ErrorKind::invalid_argument, folder.empty() ? "MODEL" : folder.string(), "is no folder",
        "pass a GGUF file or a Hugging Face model folder (config.json, safetensors files, tokenizer.json)");
  }
  const Tokenizer tokenizer = open_tokenizer(folder);
  const Prompt prompt = make_prompt(flags, tokenizer, log);
  ResidentModel model(folder, flags.model.open, pool);
  const GenerationConfig config = read_generation_config(
      folder, {model.model().checkpoint().config(), (folder / "config.json").string()});
  GenerateOptions& options = flags.generate;
  options.sampler = sampler_options(config, flags.sampler);
  options.eos = config.eos;
  options.continues_prompt = !prompt.chat;
  say_settings(config, flags, options.sampler, log);

  const auto emit = [&](std::string_view part) {
    if (!common.json) write_out(part);
  };
  const Generation made = generate(model, tokenizer, prompt.ids, options, emit, log);
  if (common.json) {
    common.result(document(flags, model, prompt, options.sampler, made), "");
  } else {
    if (!made.text.ends_with('\n')) write_out("\n");
    log.info(summary(made, prompt.ids.size()));
  }
  if (made.finish == Finish::interrupted)
    throw Error(ErrorKind::interrupted, "", str("stopped after ", made.ids.size(), " tokens"));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "generate",
      "Text that a model writes after a prompt; it comes on stdout as it is made, also with --quiet");
  add_model_flags(verb, flags->model);
  add_adapter_flag(verb, flags->model);
  add_kv_cache_flag(verb, flags->generate.kv_cache);
  verb.add_option("-p,--prompt", flags->prompt, "Text of the prompt");
  verb.add_option("--prompt-file", flags->prompt_file, "File with the text of the prompt");
  verb.add_option("--system", flags->system, "System message in front of the prompt");
  verb.add_flag("--raw", flags->raw, "Take the prompt as it stands: no chat template");
  verb.add_option("-n,--tokens", flags->generate.tokens,
                  "New tokens at most; without it 128, or what there is room for")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  verb.add_option("--ctx", flags->generate.context,
                  "Tokens of prompt and answer at most: the bound of the cache")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  verb.add_option("--stop", flags->generate.stops,
                  "Text that ends the answer and is left out of it; may be given several times")
      ->allow_extra_args(false)
      ->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); },
              "");
  const char* own = "; without it the model's own setting (generation_config.json)";
  verb.add_option("--temperature", flags->sampler.temperature, str("Divides the logits; 0 is greedy", own))
      ->check(number_between(0.0, 1e6));
  verb.add_option("--top-k", flags->sampler.top_k,
                  str("Choose among this many most likely tokens; 0: all", own))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  verb.add_option(
          "--top-p", flags->sampler.top_p,
          str("Choose among the fewest tokens whose probabilities reach this; 0: the most likely one", own))
      ->check(number_between(0.0, 1.0));
  verb.add_option("--repetition-penalty", flags->sampler.repetition_penalty,
                  str("Divides positive logits of tokens that were there and multiplies negative ones", own))
      ->check(number_between(1e-6, 1e6));
  verb.add_option("--seed", flags->sampler.seed, "Of the random choice")
      ->check(seed_number())
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
