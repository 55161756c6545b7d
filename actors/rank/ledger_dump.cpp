#include "actors/rank/ledger_dump.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {

std::string dump_ledgers(const std::string& path, int rank, std::span<const RegisterCommunicator> communicators) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ostringstream lines;
  const auto now = steady_now_ns();
  for (const auto& watched : communicators) {
    for (const auto& record : watched.ledger->snapshot()) {
      lines << nlohmann::json{{"rank", rank},
                              {"generation", watched.generation},
                              {"communicator", watched.name},
                              {"sequence", record.sequence},
                              {"collective", std::string(to_string(record.kind))},
                              {"label", std::string(record.label.data())},
                              {"step", record.step},
                              {"numel", record.numel},
                              {"what", record.describe()},
                              {"started_ms_ago", static_cast<double>(now - record.started_ns) / 1e6},
                              {"finished", record.finished}}
                   .dump()
            << '\n';
    }
  }
  try {
    replace_text(path, lines.str());
  } catch (const Error&) {
    return {};
  }
  return path;
}

}  // namespace troupe
