// Internal to the formats layer: JSON as a stream of events, with the strict checks of parse_json() and the
// place of every fault. No tree is built, so a reader that knows what it expects refuses a wrong file at the
// first wrong value.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace gramian {

class JsonWalker : private nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;
  // Throws corrupt_data naming `where`.
  void walk(std::string_view text, const std::string& where, size_t depth_max);

 protected:
  // Throws corrupt_data with the line and column reached.
  [[noreturn]] void fail(const std::string& what,
                         const std::string& hint = "restore the file from its source") const;

  virtual void on_open(bool is_object) = 0;
  virtual void on_close() = 0;
  virtual void on_key(std::string& key) = 0;
  // Null, boolean, number or string.
  virtual void on_scalar(Json&& value) = 0;

 private:
  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(Json::number_integer_t value) override;
  bool number_unsigned(Json::number_unsigned_t value) override;
  bool number_float(Json::number_float_t value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(Json::binary_t& value) override;
  bool start_object(size_t elements) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(size_t elements) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& fault) override;
  void open(bool is_object);
  void close();

  std::string_view text_;
  const char* reached_ = nullptr;
  std::string where_;
  size_t depth_max_ = 0;
  // Keys seen so far in every open container (empty for arrays).
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace gramian
