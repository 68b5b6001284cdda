#include "base/format.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace gramian {

std::string human_bytes(double bytes) {
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (bytes < 1000) break;
    bytes /= 1000;
    unit = next;
  }
  return fixed(bytes, bytes < 100 && unit[0] != 'B' ? 2 : 0) + " " + unit;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, std::abs(value) < 1e15 ? "%.*f" : "%.*e", digits, value);
  return text;
}

std::string fixed_or_scientific(double value, int digits) {
  const double size = std::abs(value);
  if (size < 1e6 && (size == 0 || size >= 0.5 * std::pow(10, -digits))) return fixed(value, digits);
  char text[64];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

int decimals_of(double value, int significant) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const auto magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
  return std::clamp(significant - 1 - magnitude, 0, 9);
}

std::optional<int64_t> parse_bytes(const std::string& text) {
  // Neither signs nor hexadecimal numbers, nor "inf".
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return std::nullopt;
  if (text.find_first_of("xX") != std::string::npos) return std::nullopt;
  char* rest = nullptr;
  const double number = std::strtod(text.c_str(), &rest);
  std::string unit;
  for (; *rest != '\0'; ++rest) {
    if (*rest != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*rest)));
  }
  double factor = 0;
  if (unit.empty() || unit == "b") factor = 1;
  const std::string steps = "kmgt";
  const size_t step = unit.empty() ? std::string::npos : steps.find(unit[0]);
  if (step != std::string::npos) {
    if (unit.size() == 1 || unit.substr(1) == "ib") factor = std::pow(1024.0, static_cast<double>(step + 1));
    if (unit.substr(1) == "b") factor = std::pow(1000.0, static_cast<double>(step + 1));
  }
  const double bytes = number * factor;
  if (!(bytes >= 1) || bytes > std::pow(2.0, 60)) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string below(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

}  // namespace gramian
