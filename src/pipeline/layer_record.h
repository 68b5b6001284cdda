// What a job keeps of a layer that it has finished: the layer's part of the report, and digests of what it wrote.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gramian {

struct LayerRecord {
  std::vector<nlohmann::ordered_json> modules;  // of the report
  std::vector<std::string> starved_experts;     // the first module of each pause that was below the minimum
  int64_t fallbacks = 0;
  int64_t linear_multiplications = 0;
  int64_t sums = 0;           // taken
  int64_t accumulations = 0;  // inputs of one batch added to one of them
  int64_t adopted = 0;        // modules that took the statistic of another
  int64_t parked_bytes = 0;
  double seconds = 0;
  std::map<std::string, double> stages;        // seconds
  std::map<std::string, std::string> digests;  // of the tensors written
  nlohmann::ordered_json held_out;             // of the report; null without held-out rows
  std::string input_digest;  // of the activations that enter the next layer; empty: not kept

  // Adds counts and seconds, appends lists; digests stay.
  void add(const LayerRecord& other);
  nlohmann::ordered_json to_json() const;
  // Throws corrupt_data naming `where` when the record is not what to_json() makes.
  static LayerRecord from_json(const nlohmann::ordered_json& json, const std::string& where);
};

// Runs `work` and adds its seconds to `sum`.
template <class Work>
auto timed(double& sum, Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  struct Stop {
    double& sum;
    std::chrono::steady_clock::time_point start;
    ~Stop() { sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
  } stop{sum, start};
  return work();
}

}  // namespace gramian
