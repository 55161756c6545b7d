// Who is to blame for a connection that ended or a message that did not come: see GlooCommunicator.
#include "tensor_io/communicator/communicator_errors.hpp"
#include "tensor_io/communicator/gloo/abort_reason.hpp"
#include "tensor_io/communicator/gloo/gloo_communicator.hpp"
#include "tensor_io/communicator/gloo/gloo_mesh.hpp"
#include "tensor_io/communicator/group_setup.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

// How long the others have to notice that the connections ended. A rank that lives needs some milliseconds.
constexpr auto kNotice = 500ms;

}  // namespace

void GlooCommunicator::leave_word(ErrorCode code, const CollectiveRecord& record, const std::string& cause) noexcept {
  if (left_word_.exchange(true)) return;
  try {
    options().rendezvous->put(options().name + "/failed/" + std::to_string(rank()),
                              FailureWord{code, record, cause}.to_bytes());
  } catch (const std::exception&) {  // the others then count this rank among the silent ones
  }
}

void GlooCommunicator::do_abort(const ErrorReport& reason) noexcept {
  leave_word(reason.code, {}, reason.cause);
  mesh_->sever();
}

ErrorReport GlooCommunicator::explain(const CollectiveRecord& record, bool timed_out, const std::string& what) {
  if (auto reason = broken()) return *reason;
  leave_word(timed_out ? ErrorCode::timeout : ErrorCode::peer_lost, record, {});
  mesh_->sever();

  std::vector<int> asked;
  const bool point_to_point = record.kind == CollectiveKind::send || record.kind == CollectiveKind::recv;
  for (int r = 0; r < world_size(); ++r) {
    if (r != rank() && (!point_to_point || r == record.peer)) asked.push_back(r);
  }
  const auto deadline = std::chrono::steady_clock::now() + kNotice;
  std::vector<int> silent;
  std::vector<int> ranks = {rank()};
  std::vector<CollectiveRecord> records = {record};
  for (const int r : asked) {
    try {
      const auto word = FailureWord::of(
          options().rendezvous->get(options().name + "/failed/" + std::to_string(r), time_until(deadline)));
      if (!word.cause.empty()) return ErrorReport{.code = word.code, .cause = word.cause};
      timed_out |= word.code == ErrorCode::timeout;
      // Where the peer was in a message with a third rank it waited as this one did: that the two messages differ says
      // nothing.
      if (point_to_point && word.record.point_to_point() && word.record.peer != rank()) continue;
      // So it did in a collective that one of the two is through with: the other has yet to leave it.
      const bool behind = !word.record.point_to_point() && word.record.sequence <= ledger().finished_count();
      const bool ahead = !point_to_point && !word.record.point_to_point() && word.record.sequence > record.sequence;
      if (behind || ahead) continue;
      ranks.push_back(r);
      records.push_back(word.record);
    } catch (const Error&) {
      silent.push_back(r);
    }
  }
  if (!silent.empty() && timed_out) {
    return ErrorReport{
        .code = ErrorCode::timeout,
        .cause = name_ranks(options(), silent) + " did not arrive within " + std::to_string(options().timeout.count()) +
                 " ms",
        .remedy = "a rank may hang or have taken another branch; raise collective_timeout if it is only slow"};
  }
  if (!silent.empty()) {
    return ErrorReport{.code = ErrorCode::peer_lost,
                       .cause = name_ranks(options(), silent) + " died or left the group '" + options().name + "'",
                       .remedy = "see its log for the reason"};
  }
  for (const auto& other : records) {
    if (other.fingerprint() != record.fingerprint()) return mismatch_report(options(), ranks, records);
  }
  return ErrorReport{.code = timed_out ? ErrorCode::timeout : ErrorCode::peer_lost,
                     .cause = what,
                     .remedy = "check the network: all ranks are alive and make the same calls"};
}

}  // namespace troupe
