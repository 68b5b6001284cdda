#include "pipeline/method.h"

#include "base/error.h"

namespace gramian {

const std::vector<Method>& all_methods() {
  static const std::vector<Method> kMethods{
      {"qqq", "GPTQ error compensation on the QQQ grid (4-bit weights, 8-bit activations)", true, {}},
      {"rtn", "plain rounding on the same grid, without calibration: the floor to compare with", false, {}},
  };
  return kMethods;
}

const Method& find_method(const std::string& name) {
  std::string known;
  for (const Method& method : all_methods()) {
    if (method.name == name) return method;
    known += (known.empty() ? "" : ", ") + method.name;
  }
  throw Error(ErrorKind::invalid_argument, "--method", str("unknown method '", name, "'"),
              "choose one of: " + known);
}

}  // namespace gramian
