#include "formats/tokenizer/added_tokens.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/tokenizer/unicode.h"
#include "formats/tokenizer/unicode_additions.h"

namespace gramian::tokenizer {
namespace {

// Unicode TR 18's word characters.
std::string word_pattern() {
  return str("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}", unicode_additions("L"),
             unicode_additions("M"), unicode_additions("Nd"), "]");
}

// Bytes of white space at the end of `text`.
size_t trailing_white_space(std::string_view text) noexcept {
  size_t begin = text.size();
  while (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    size_t end = at;
    if (!is_white_space(next_code_point(text, end))) break;
    begin = at;
  }
  return text.size() - begin;
}

size_t leading_white_space(std::string_view text) noexcept {
  size_t end = 0;
  while (end < text.size()) {
    size_t at = end;
    if (!is_white_space(next_code_point(text, at))) break;
    end = at;
  }
  return end;
}

AddedToken read_token(const JsonNode& node) {
  AddedToken token;
  token.id = node["id"].id();
  token.content = node["content"].string();
  token.special = node["special"].boolean_or(false);
  token.normalized = node["normalized"].boolean_or(!token.special);
  token.lstrip = node["lstrip"].boolean_or(false);
  token.rstrip = node["rstrip"].boolean_or(false);
  token.single_word = node["single_word"].boolean_or(false);
  return token;
}

}  // namespace

void PrefixTree::insert(std::string_view text, uint32_t value) {
  if (text.empty()) return;
  first_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [edge, added] = edges_.try_emplace(key, static_cast<uint32_t>(values_.size()));
    if (added) values_.push_back(kNone);
    node = edge->second;
  }
  if (values_[node] == kNone) values_[node] = value;
}

PrefixTree::Hit PrefixTree::longest(std::string_view text) const noexcept {
  Hit hit;
  if (text.empty() || !first_[static_cast<unsigned char>(text[0])]) return hit;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (values_[node] != kNone) hit = {i + 1, values_[node]};
  }
  return hit;
}

AddedTokens::AddedTokens(const JsonNode& node, const Normalizer& normalizer) {
  if (!node.has_value()) return;
  std::set<std::string> contents;
  for (const JsonNode& item : node.items()) {
    AddedToken token = read_token(item);
    if (!by_id_.emplace(token.id, tokens_.size()).second) {
      throw item.corrupt(
          str("id ", token.id, " is given to \"", find(token.id)->content, "\" and \"", token.content, "\""));
    }
    if (!contents.insert(token.content).second)
      throw item.corrupt(str("\"", token.content, "\" is listed twice"));
    const auto index = static_cast<uint32_t>(tokens_.size());
    token.surface = token.normalized ? normalizer(token.content) : token.content;
    (token.normalized ? normalized_ : raw_).insert(token.surface, index);
    if (token.single_word && !word_) word_.emplace(word_pattern(), item.file() + ": " + item.path());
    tokens_.push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::find(int64_t id) const noexcept {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::vector<Section> AddedTokens::split(std::string_view text, bool normalized, bool parse_special) const {
  const PrefixTree& tree = normalized ? normalized_ : raw_;
  std::vector<Section> sections;
  size_t done = 0;                        // everything in front of it is in `sections`
  size_t white_begin = 1, white_end = 0;  // of the run that was measured last; none
  for (size_t at = 0; at < text.size();) {
    const PrefixTree::Hit hit = tree.longest(text.substr(at));
    if (hit.length == 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + hit.length;
    at = end;  // a match that is not taken is passed over as a whole, like the reference does
    const AddedToken& token = tokens_[hit.value];
    if (token.special && !parse_special) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    // White space is measured once, however many tokens stand in it.
    if (token.lstrip)
      begin = begin <= done ? done : begin - trailing_white_space(text.substr(done, begin - done));
    if (token.rstrip) {
      if (end < white_begin || end > white_end) {
        white_begin = end;
        white_end = end + leading_white_space(text.substr(end));
      }
      end = white_end;
    }
    if (begin > done) sections.push_back({text.substr(done, begin - done), nullptr});
    // Of a match inside white space that the token before swallowed, lstrip leaves nothing: no token then.
    if (begin >= end) continue;
    sections.push_back({text.substr(begin, end - begin), &token});
    done = end;
  }
  if (done < text.size()) sections.push_back({text.substr(done), nullptr});
  return sections;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (word_->matches_somewhere(text.substr(at, begin - at))) return false;
  }
  return end == text.size() || !word_->matches_somewhere(text.substr(end, utf8_length(text[end])));
}

}  // namespace gramian::tokenizer
