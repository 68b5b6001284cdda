#include "cli/reference.h"

#include "eval/evaluate.h"

namespace gramian::cli {

void add_reference_flags(CLI::App& verb, ReferenceFlags& flags, const std::string& help, bool required) {
  CLI::Option* reference = verb.add_option("--reference", flags.folder, help)->required(required);
  verb.add_option("--reference-states", flags.states,
                  "File that keeps what the reference makes of these rows, a few megabytes: made when it is "
                  "missing, else "
                  "taken instead of running the reference again")
      ->needs(reference);
}

void check_reference(const ReferenceFlags& flags, const std::filesystem::path& rows) {
  if (!flags.states.empty()) check_output_file(flags.states, flags.folder, rows);
}

std::unique_ptr<Reference> open_reference(const ReferenceFlags& flags, const OpenOptions& open,
                                          const std::vector<TokenRow>& rows,
                                          const std::shared_ptr<ThreadPool>& pool, Log& log) {
  auto reference = std::make_unique<Reference>();
  if (flags.folder.empty()) return reference;
  OpenOptions plain = open;
  plain.adapter.clear();
  if (!flags.states.empty()) {
    reference->kept.emplace(flags.states, flags.folder, c10::toString(parse_dtype(plain.dtype)),
                            usable_rows(rows));
    plain.head_only = reference->kept->stored();
    log.info(
        str("states of the reference: ", plain.head_only ? "taken from " : "will be kept in ", flags.states));
  }
  reference->model.emplace(flags.folder, plain, pool);
  return reference;
}

}  // namespace gramian::cli
