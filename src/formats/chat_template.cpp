#include "formats/chat_template.h"

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/child_process.h"
#include "base/error.h"
#include "formats/json.h"
#include "formats/model_files.h"
#include "formats/tokenizer/unicode.h"

namespace gramian {

// chat_template.py, made a string by CMakeLists.txt.
extern const char kChatTemplateScript[];

namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using End = ChildResult::End;

constexpr char kHint[] = "give messages that it accepts, or do without it (--raw)";

constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

Json read_object(const fs::path& model, const char* name) {
  const auto text = model_text(model, name);
  if (!text) return Json::object();
  const std::string where = model_text_place(model, name);
  Json json = parse_json(*text, where);
  if (!json.is_object()) throw Error(ErrorKind::corrupt_data, where, "expected an object");
  return json;
}

// `chat_template` of a configuration; nothing when it has none.
std::optional<std::string> template_in(const Json& config, const fs::path& path) {
  const auto corrupt = [&](const std::string& what) {
    return Error(ErrorKind::corrupt_data, path.string(), "'chat_template' " + what,
                 "restore the file from its source");
  };
  if (!config.contains("chat_template") || config.at("chat_template").is_null()) return std::nullopt;
  const Json& value = config.at("chat_template");
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) throw corrupt("must be a text or a list of {name, template}");
  std::vector<std::string> names;
  for (const Json& entry : value) {
    const auto text_of = [&](const char* key) {
      if (!entry.is_object() || !entry.contains(key) || !entry.at(key).is_string())
        throw corrupt("must list {name, template}, both texts");
      return entry.at(key).get<std::string>();
    };
    names.push_back(text_of("name"));
    if (names.back() == "default") return text_of("template");
  }
  throw corrupt(str("has no \"default\" among ", quote_names(names, 8)));
}

std::vector<std::string> pythons() {
  if (const char* own = std::getenv("GRAMIAN_PYTHON"); own != nullptr && *own != '\0') return {own};
  return {GRAMIAN_BUILD_PYTHON, "python3"};
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder) {
  constexpr const char *kOwn = "chat_template.jinja", *kConfig = "tokenizer_config.json",
                       *kOlder = "chat_template.json";
  const fs::path config = model_text_place(folder, kConfig), older = model_text_place(folder, kOlder);
  const Json settings = read_object(folder, kConfig);
  std::optional<std::string> text = model_text(folder, kOwn);
  ChatTemplate found;
  if (text) {
    found.source_ = model_text_place(folder, kOwn);
  } else if (text = template_in(settings, config); text) {
    found.source_ = config;
  } else if (text = template_in(read_object(folder, kOlder), older); text) {
    found.source_ = older;
  }
  if (!text) return std::nullopt;
  if (tokenizer::find_invalid_utf8(*text) != std::string::npos)
    throw Error(ErrorKind::corrupt_data, found.source_.string(), "the chat template is not UTF-8");
  found.text_ = std::move(*text);
  for (const char* name : kSpecialTokens) {
    if (!settings.contains(name)) continue;
    const Json& token = settings.at(name);
    const Json& content = token.is_object() && token.contains("content") ? token.at("content") : token;
    if (content.is_null()) continue;
    if (!content.is_string()) {
      throw Error(ErrorKind::corrupt_data, config.string(), str("'", name, "' must be a text"),
                  "restore the file from its source");
    }
    found.variables_.emplace(name, content.get<std::string>());
  }
  return found;
}

std::string ChatTemplate::request(const std::vector<Conversation>& conversations,
                                  const ChatOptions& options) const {
  Json request{{"template", text_},
               {"variables", variables_},
               {"add_generation_prompt", options.add_generation_prompt},
               {"date", options.date.empty() ? Json(nullptr) : Json(options.date)},
               {"conversations", Json::array()}};
  for (const Conversation& conversation : conversations)
    request["conversations"].push_back(conversation.messages);
  try {
    return request.dump();
  } catch (const Json::type_error&) {
    throw Error(ErrorKind::invalid_argument, conversations[0].where, "the messages are not UTF-8",
                "convert them to UTF-8 first");
  }
}

std::optional<std::vector<std::string>> ChatTemplate::render(const std::vector<Conversation>& conversations,
                                                             const ChatOptions& options, Log& log) const {
  const std::string input = request(conversations, options);
  const auto room = static_cast<int64_t>(16 * input.size());
  const ChildLimits limits{.time_max = std::chrono::seconds(3 * options.cpu_seconds + 30),
                           .output_bytes_max = static_cast<size_t>(options.output_bytes + room)};
  std::string tried;
  for (const std::string& python : pythons()) {
    // -I: nothing from the user's environment or the current folder.
    const ChildResult child = run_child({python, "-I", "-B", "-X", "utf8", "-c", kChatTemplateScript,
                                         str(options.memory_bytes + room), str(options.cpu_seconds)},
                                        input, limits);
    tried += tried.empty() ? "" : ", ";
    if (child.end == End::exited && child.exit_code == 0) {
      const Json reply = parse_json(child.output, python);
      if (!reply.contains("missing")) return texts_of(reply, conversations);
      tried += str(python, " (needs ", reply.at("missing").get<std::string>(), ")");
    } else if (child.end == End::missing || child.end == End::exited) {
      tried += str(python, " (does not run)");
    } else {
      const bool time = child.end == End::too_long || child.signal == SIGXCPU;
      const std::string what = time ? str("ran longer than ", options.cpu_seconds, " s")
                               : child.end == End::too_much
                                   ? str("wrote more than ", limits.output_bytes_max, " bytes")
                                   : str("ended its process with signal ", child.signal);
      throw Error(ErrorKind::corrupt_data, source_.string(), "the chat template " + what, kHint);
    }
  }
  log.warn(str("the chat template is not applied: found no Python with jinja2 3.1.6 or newer; tried ", tried,
               "; set GRAMIAN_PYTHON to one"));
  return std::nullopt;
}

std::vector<std::string> ChatTemplate::texts_of(const Json& reply,
                                                const std::vector<Conversation>& conversations) const {
  if (reply.contains("error")) {
    const Json& place = reply.at("conversation");
    throw Error(ErrorKind::corrupt_data, source_.string(),
                str("the chat template failed",
                    place.is_null() ? "" : " at " + conversations.at(place.get<size_t>()).where, ": ",
                    reply.at("error").get<std::string>()),
                kHint);
  }
  auto texts = reply.at("texts").get<std::vector<std::string>>();
  GRAMIAN_CHECK(texts.size() == conversations.size(), "texts of another number of conversations");
  return texts;
}

}  // namespace gramian
