#include "pipeline/rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/file.h"
#include "formats/chat_template.h"
#include "formats/json.h"
#include "formats/model_files.h"
#include "formats/safetensors.h"
#include "formats/tokenizer.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

constexpr char kBlank[] = " \t\r\n";
// What chat templates take for today, so that a command gives the same bytes on every day.
constexpr char kToday[] = "2024-07-26";

// Opens the model's tokenizer when a row needs it.
class LazyTokenizer {
 public:
  explicit LazyTokenizer(const fs::path& model) : model_(model) {}
  const Tokenizer& operator()() {
    if (!tokenizer_) tokenizer_.emplace(open_tokenizer(model_));
    return *tokenizer_;
  }

 private:
  fs::path model_;
  std::optional<Tokenizer> tokenizer_;
};

// n of `total` numbers, ascending: evenly, or at random with a seed (own Fisher-Yates: std::shuffle differs between
// libraries).
std::vector<int64_t> choose(int64_t total, int64_t n, std::optional<uint64_t> seed, bool evenly) {
  std::vector<int64_t> chosen;
  if (!seed) {
    for (int64_t i = 0; i < n; ++i) chosen.push_back(evenly ? i * total / n : i);
    return chosen;
  }
  std::vector<int64_t> all(static_cast<size_t>(total));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937_64 random(*seed);
  for (int64_t i = 0; i < n; ++i) {
    const auto j = i + static_cast<int64_t>(random() % static_cast<uint64_t>(total - i));
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(j)]);
  }
  all.resize(static_cast<size_t>(n));
  std::sort(all.begin(), all.end());
  return all;
}

// Encodes text that stands at `where`.
TokenRow encode(const Tokenizer& tokenizer, const std::string& text, const std::string& where,
                const EncodeOptions& options) {
  try {
    return tokenizer.encode(text, options);
  } catch (const Error& error) {
    throw Error(error.kind(), where, error.what());
  }
}

// How many of `available` rows to take; hard case 11: under half of an explicit request is refused.
int64_t rows_to_take(const fs::path& path, int64_t available, const RowOptions& options, Log& log) {
  const int64_t wanted = options.samples.value_or(options.samples_default);
  if (wanted <= 0 || available >= wanted) return wanted <= 0 ? available : wanted;
  if (options.samples && 2 * available < wanted && !options.allow_fewer) {
    throw Error(ErrorKind::invalid_argument, path.string(),
                str("holds ", available, " usable rows, under half of the ", wanted, " asked for"),
                "ask for fewer with --samples, give more text, or pass --allow-fewer");
  }
  if (options.samples)
    log.warn(str(path.string(), ": ", wanted, " rows asked, ", available, " found; all are used"));
  return available;
}

// What the tokenizer's template puts in front of a text. What it puts behind ends a document, not a window.
TokenRow template_prefix(const Tokenizer& tokenizer) {
  const TokenRow text = tokenizer.encode("a", {.add_special_tokens = false, .parse_special = false});
  const TokenRow whole = tokenizer.encode("a", {.add_special_tokens = true, .parse_special = false});
  return {whole.begin(), std::search(whole.begin(), whole.end(), text.begin(), text.end())};
}

// Options that choose among rows, where there is one.
void say_whole(const fs::path& path, const RowOptions& options, Log& log) {
  std::string names;
  const auto add = [&](bool given, const char* name) {
    if (given) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(options.samples.has_value(), "--samples");
  add(options.seed.has_value(), "--seed");
  add(options.allow_fewer, "--allow-fewer");
  if (!names.empty()) log.warn(str(path.string(), " is one row, the whole text: not used: ", names));
}

RowSet whole_text(const fs::path& path, TokenRow row, const Tokenizer& tokenizer) {
  const TokenRow stream = encode(tokenizer, read_text(path), path.string(), {.parse_special = false});
  if (stream.empty()) throw Error(ErrorKind::invalid_argument, path.string(), "holds no token", "give text");
  row.insert(row.end(), stream.begin(), stream.end());
  RowSet set;
  set.rows.push_back(std::move(row));
  set.policy = "one row of the whole text";
  return set;
}

RowSet text_rows(const fs::path& path, const RowOptions& options, const Tokenizer& tokenizer, Log& log) {
  const TokenRow prefix = template_prefix(tokenizer);
  if (options.whole) {
    say_whole(path, options, log);
    return whole_text(path, prefix, tokenizer);
  }
  const int64_t payload = options.sequence_length - static_cast<int64_t>(prefix.size());
  if (payload <= 0) {
    throw Error(ErrorKind::invalid_argument, options.length_fixed ? path.string() : "--sequence-length",
                str(options.sequence_length, " leaves no room after ", prefix.size(), " special tokens"));
  }
  const TokenRow stream = encode(tokenizer, read_text(path), path.string(), {.parse_special = false});
  const int64_t total = static_cast<int64_t>(stream.size()) / payload;
  if (total == 0) {
    throw Error(ErrorKind::invalid_argument, path.string(),
                str("holds ", stream.size(), " tokens, fewer than one window of ", payload),
                options.length_fixed ? "give more text" : "give more text or a smaller --sequence-length");
  }
  RowSet set;
  for (const int64_t window : choose(total, rows_to_take(path, total, options, log), options.seed, true)) {
    TokenRow row = prefix;
    row.insert(row.end(), stream.begin() + window * payload, stream.begin() + (window + 1) * payload);
    set.rows.push_back(std::move(row));
  }
  set.policy = str(
      "windows of ", options.sequence_length, " tokens",
      prefix.empty() ? ", no token in front" : str(", each begun by ", prefix.size(), " special token(s)"),
      options.seed ? ", chosen at random" : ", taken evenly");
  return set;
}

// What a line of .jsonl holds: ids, a text, or a chat that becomes a text.
struct JsonRow {
  std::string where;
  TokenRow ids;
  std::string text;
  nlohmann::ordered_json messages;  // null in other rows
  EncodeOptions encoding{.add_special_tokens = true, .parse_special = false};
};

// Contents of a chat, joined by line ends.
std::string join_messages(const nlohmann::ordered_json& messages, const std::string& where) {
  std::string text;
  for (const auto& message : messages) {
    if (!message.contains("content") || !message.at("content").is_string()) {
      throw Error(ErrorKind::corrupt_data, where, "each of 'messages' must have a text 'content'");
    }
    text += (text.empty() ? "" : "\n") + message.at("content").get<std::string>();
  }
  return text;
}

TokenRow read_ids(const nlohmann::ordered_json& list, const std::string& where) {
  if (!list.is_array()) throw Error(ErrorKind::corrupt_data, where, "'input_ids' must be a list");
  TokenRow row;
  for (const auto& id : list) {
    if (!id.is_number_integer())
      throw Error(ErrorKind::corrupt_data, where, "'input_ids' must hold integers");
    if (id.is_number_unsigned() && id.get<uint64_t>() >> 63 != 0) {
      throw Error(ErrorKind::corrupt_data, where, "an id of 'input_ids' is above 2^63");
    }
    row.push_back(id.get<int64_t>());
  }
  return row;
}

JsonRow read_json_row(const nlohmann::ordered_json& json, const std::string& where) {
  JsonRow row;
  row.where = where;
  if (!json.is_object()) throw Error(ErrorKind::corrupt_data, where, "expected an object");
  if (json.contains("input_ids")) {
    row.ids = read_ids(json.at("input_ids"), where);
  } else if (json.contains("text") && json.at("text").is_string()) {
    row.text = json.at("text").get<std::string>();
  } else if (json.contains("messages")) {
    row.messages = json.at("messages");
    const auto is_object = [](const auto& message) { return message.is_object(); };
    if (!row.messages.is_array() || !std::all_of(row.messages.begin(), row.messages.end(), is_object))
      throw Error(ErrorKind::corrupt_data, where, "'messages' must be a list of objects");
  } else {
    throw Error(ErrorKind::corrupt_data, where, "expected 'text', 'messages' or 'input_ids'");
  }
  return row;
}

// Turns chats into texts: by the model's chat template, else by joining their contents.
void render_messages(std::vector<JsonRow>& rows, const fs::path& model, Log& log) {
  std::vector<Conversation> conversations;
  for (JsonRow& row : rows) {
    if (row.messages.is_array()) conversations.push_back({row.messages, row.where});
  }
  if (conversations.empty()) return;
  const std::optional<ChatTemplate> chat = ChatTemplate::find(model);
  const auto texts = chat ? chat->render(conversations, {.date = kToday}, log) : std::nullopt;
  if (!texts) {
    log.warn(str("rows with 'messages': ", chat ? "" : "the model has no chat template, ",
                 "contents are joined as plain text"));
  }
  size_t at = 0;
  for (JsonRow& row : rows) {
    if (!row.messages.is_array()) continue;
    row.text = texts ? texts->at(at++) : join_messages(row.messages, row.where);
    // The template has written the special tokens.
    if (texts) row.encoding = {.add_special_tokens = false, .parse_special = true};
  }
}

// What was done to the rows that hold something.
std::string template_policy(const std::vector<const JsonRow*>& rows, LazyTokenizer& tokenizer) {
  bool texts = false, rendered = false, joined = false, ids = false;
  for (const JsonRow* row : rows) {
    const bool chat = row->messages.is_array(), has_template = row->encoding.add_special_tokens;
    ids |= row->text.empty();
    texts |= !row->text.empty() && has_template;
    joined |= chat && has_template;
    rendered |= chat && !has_template;
  }
  std::string policy;
  const auto add = [&](const std::string& part) { policy += (policy.empty() ? "" : ", ") + part; };
  if (texts) {
    const auto tokens = [&](bool whole) {
      return tokenizer().encode("a", {.add_special_tokens = whole, .parse_special = false}).size();
    };
    const size_t added = tokens(true) - tokens(false);
    add(str("the tokenizer's template adds ", added == 0 ? "nothing" : str(added, " token(s)"),
            " to a text"));
  }
  if (rendered) add("messages rendered by the chat template");
  if (joined) add("contents of messages joined");
  if (ids) add("token ids as given");
  return policy;
}

std::vector<JsonRow> read_json_rows(const fs::path& path) {
  std::vector<JsonRow> rows;
  const std::string content = read_text(path);
  size_t line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    const std::string where = str(path.string(), ", line ", ++line_number);
    const bool blank = line.find_first_not_of(kBlank) == std::string::npos;
    rows.push_back(blank ? JsonRow() : read_json_row(parse_json(line, where), where));
  }
  return rows;
}

RowSet json_rows(const fs::path& path, const RowOptions& options, const fs::path& model, Log& log) {
  RowSet set;
  std::vector<TokenRow> all;
  std::vector<JsonRow> rows = read_json_rows(path);
  render_messages(rows, model, log);
  std::vector<const JsonRow*> used;
  LazyTokenizer tokenizer(model);
  for (JsonRow& json : rows) {
    TokenRow row = std::move(json.ids);
    if (json.text.find_first_not_of(kBlank) != std::string::npos)
      row = encode(tokenizer(), json.text, json.where, json.encoding);
    if (row.empty()) {
      ++set.blank;
    } else {
      used.push_back(&json);
    }
    const size_t length =
        options.whole ? std::max<size_t>(row.size(), 1) : static_cast<size_t>(options.sequence_length);
    if (row.size() > length) ++set.split;
    for (size_t at = 0; at < row.size(); at += length) {
      all.emplace_back(row.begin() + static_cast<int64_t>(at),
                       row.begin() + static_cast<int64_t>(std::min(at + length, row.size())));
    }
  }
  if (all.empty())
    throw Error(ErrorKind::invalid_argument, path.string(), "no usable row", "give rows with text");
  const auto available = static_cast<int64_t>(all.size());
  for (const int64_t i :
       choose(available, rows_to_take(path, available, options, log), options.seed, false)) {
    set.rows.push_back(std::move(all[static_cast<size_t>(i)]));
  }
  set.policy = str(
      options.whole ? std::string("whole JSON rows, ")
                    : str("JSON rows of at most ", options.sequence_length, " tokens, longer ones split, "),
      template_policy(used, tokenizer), options.seed ? ", chosen at random" : ", from the start");
  return set;
}

RowSet ready_rows(const fs::path& path, const RowOptions& options, Log& log) {
  if (options.seed) log.warn("--seed chooses among texts; ready rows are taken from the start");
  if (options.length_given) log.warn("--sequence-length cuts texts; ready rows keep their own lengths");
  ReadyRows ready = read_ready_rows(path);
  RowSet set;
  RowOptions all = options;
  all.samples_default = 0;
  std::vector<TokenRow> usable;
  for (TokenRow& row : ready.rows) {
    if (row.empty()) {
      ++set.blank;
    } else {
      usable.push_back(std::move(row));
    }
  }
  if (usable.empty()) throw Error(ErrorKind::invalid_argument, path.string(), "no row has an unmasked token");
  usable.resize(static_cast<size_t>(rows_to_take(path, static_cast<int64_t>(usable.size()), all, log)));
  set.rows = std::move(usable);
  set.policy = "ready rows as they are, from the start";
  return set;
}

}  // namespace

ReadyRows read_ready_rows(const fs::path& path) {
  const SafetensorsFile file(path);
  const auto integers = [&](const std::string& name) {
    const at::Tensor tensor = file.load(name);
    if (tensor.dim() != 2 || tensor.is_floating_point()) {
      throw Error(ErrorKind::corrupt_data, path.string(),
                  str("'", name, "' must be integers [rows, length]"));
    }
    return tensor.to(at::kLong).contiguous();
  };
  const at::Tensor ids = integers("input_ids");
  if (ids.numel() == 0) {
    throw Error(ErrorKind::invalid_argument, path.string(),
                gramian::str("'input_ids' is empty: ", ids.sizes()), "give rows with tokens");
  }
  ReadyRows ready;
  ready.length = ids.size(1);
  const bool masked = file.contains("attention_mask");
  at::Tensor mask;
  if (masked) {
    mask = integers("attention_mask");
    if (mask.sizes() != ids.sizes()) {
      throw Error(ErrorKind::corrupt_data, path.string(),
                  "'attention_mask' must have the shape of 'input_ids'");
    }
    if (mask.ne(0).logical_and(mask.ne(1)).any().item<bool>()) {
      throw Error(ErrorKind::corrupt_data, path.string(), "'attention_mask' holds other values than 0 and 1",
                  "mark tokens with 1 and padding with 0");
    }
  }
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const int64_t* row = ids.const_data_ptr<int64_t>() + r * ready.length;
    int64_t begin = 0, end = ready.length;
    if (masked) {
      const int64_t* keep = mask.const_data_ptr<int64_t>() + r * ready.length;
      begin = std::find_if(keep, keep + ready.length, [](int64_t k) { return k != 0; }) - keep;
      end = std::find(keep + begin, keep + ready.length, 0) - keep;
      if (std::any_of(keep + end, keep + ready.length, [](int64_t k) { return k != 0; })) {
        throw Error(ErrorKind::unsupported, str(path.string(), ", row ", r),
                    "'attention_mask' has a hole in the middle", "mask only the ends of rows");
      }
    }
    ready.begins.push_back(begin);
    ready.rows.emplace_back(row + begin, row + end);
  }
  return ready;
}

std::vector<TokenRow> set_aside(RowSet& set, int64_t count) {
  const auto all = static_cast<int64_t>(set.rows.size());
  if (count == 0) return {};
  if (count >= all) {
    throw Error(ErrorKind::invalid_argument, "--held-out",
                str(count, " of ", all, " rows leave none to calibrate on"),
                "set fewer aside, or give more rows");
  }
  std::vector<TokenRow> aside, rest;
  for (int64_t row = 0; row < all; ++row) {
    const auto taken = static_cast<int64_t>(aside.size());
    const bool take = taken < count && row == (2 * taken + 1) * all / (2 * count);
    (take ? aside : rest).push_back(std::move(set.rows[static_cast<size_t>(row)]));
    if (take) set.tokens -= static_cast<int64_t>(aside.back().size());
  }
  set.rows = std::move(rest);
  set.policy += str("; ", count, " more are held out");
  return aside;
}

void refuse_foreign_ids(const std::vector<TokenRow>& rows, int64_t vocab, const fs::path& path) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto foreign =
        std::find_if(rows[r].begin(), rows[r].end(), [&](int64_t id) { return id < 0 || id >= vocab; });
    if (foreign == rows[r].end()) continue;
    throw Error(ErrorKind::invalid_argument, path.string(),
                str("row ", r, ", position ", foreign - rows[r].begin(), ": token id ", *foreign,
                    " is outside the model's vocabulary of ", vocab),
                "use rows made with this model's tokenizer");
  }
}

RowSet load_rows(const fs::path& path, const RowOptions& options, const fs::path& model, Log& log) {
  RowSet set;
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") {
    set = ready_rows(path, options, log);
  } else if (extension == ".jsonl") {
    set = json_rows(path, options, model, log);
  } else if (extension == ".txt") {
    set = text_rows(path, options, open_tokenizer(model), log);
  } else {
    throw Error(ErrorKind::invalid_argument, path.string(), str("unknown kind of rows '", extension, "'"),
                "give a .txt, .jsonl or .safetensors file");
  }
  set.asked = options.samples;
  if (extension != ".safetensors" && !options.whole) set.sequence_length = options.sequence_length;
  for (const TokenRow& row : set.rows) set.tokens += static_cast<int64_t>(row.size());
  return set;
}

}  // namespace gramian
