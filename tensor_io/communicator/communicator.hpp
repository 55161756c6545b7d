#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"
#include "tensor_io/communicator/rendezvous.hpp"
#include "tensor_io/device/timed_mark.hpp"
#include "tensor_io/optimizer/reduced_update.hpp"

namespace troupe {

class DeviceEvent;
class NcclApi;

/// `avg` divides the sum by the number of ranks. On bool, sum is or, product is and; avg is for floating point only.
enum class ReduceOp : std::uint8_t { sum = 1, avg, min, max, product };

/// `sum`, `avg`, `min`, `max` or `product`.
std::string_view to_string(ReduceOp op) noexcept;

/// The options of a communicator. All ranks pass the same `name`, `world_size`, `backend` and `timeout`.
struct CommunicatorOptions {
  int rank = 0;                    ///< 0 .. world_size - 1
  int world_size = 1;              ///< ranks of the group
  std::string name = "world";      ///< unique in the job and generation: it prefixes the keys of the rendezvous
  std::string backend = "auto";    ///< auto, shm, gloo, hierarchical, nccl, or one of register_communicator
  std::string host = "localhost";  ///< ranks with the same name may share memory (it is tested, not assumed)
  std::string interface_address = "127.0.0.1";  ///< the address on which Gloo listens
  std::chrono::milliseconds timeout{60'000};    ///< deadline of each wait inside one operation, and of the set-up
  std::shared_ptr<Rendezvous> rendezvous;       ///< ranks leave addresses for each other in it; needed above one rank
  at::Device device = at::kCPU;                 ///< of this rank's tensors, beside those on the CPU
  std::shared_ptr<NcclApi> nccl;                ///< empty: the one that this program was built with
  std::vector<int>
      members;  ///< the ranks' names in errors, in a group cut out of a larger one; empty: 0 .. world_size - 1
  bool timed =
      false;  ///< keeps the times for which callers' streams waited for a device's collectives (take_device_waits)
  int ranks_on_host =
      0;  ///< of all ranks known to share this rank's cores; a group cut out of a larger one has its number
};

/// A group of ranks that move tensors together: the contract that every back end keeps and one conformance suite
/// checks.
///
/// - Every rank of the group makes the same calls in the same order, from one thread at a time. Another order, shape,
///   dtype or operation is never a wrong result, but an Error(mismatch) that names the ranks. It comes at once on a
///   back end that can see it (shm), else from the watchdog that compares the ledgers.
/// - Tensors are contiguous, on the CPU, f32, f64, f16, bf16, i32, i64, u8 or bool, of any number of elements. With
///   nccl they may also lie on `options.device`, of these types and the two f8 that NCCL has. Anything else is
///   Error(usage) before a peer is touched.
/// - A call returns when the result is there and the input may be rewritten. On a device that holds for later work in
///   the calling thread's current stream (NcclCommunicator has the details).
/// - Reductions of f16 and bf16 add in f32. For a given back end, world size and placement of the tensor the result has
///   the same bits each time, and the same on all ranks.
/// - Every wait ends: by the peers, by `timeout` (Error(timeout) names the ranks that did not come), by `abort` within
///   1 s. After any Error but usage the communicator is broken, and every later call throws the first reason.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return options_.rank; }                 ///< of this process in the group
  int world_size() const noexcept { return options_.world_size; }     ///< ranks of the group
  const std::string& name() const noexcept { return options_.name; }  ///< as in the options
  /// single, shm, gloo, hierarchical, nccl, or the name of one from outside.
  virtual std::string_view backend() const noexcept = 0;

  /// In place: (numel,) on every rank. `label` says what it is for in errors and in the ledger.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, std::string_view label = {});
  /// The average of `gradients` over all ranks, f32 on the CPU, in (numel,), and the optimizer's update with it:
  /// `update.next` is written, the same bits on all ranks. `gradients` is overwritten with unspecified values. If all
  /// ranks map each other's memory, the owner of a slice makes its update and pushes it to all (a rank computes 1 /
  /// world_size of it). So `update` has to be the same on all ranks. Else each rank updates the reduced values. Memory
  /// that is one for all ranks may be written by each of them, with the same bits.
  void all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update, std::string_view label = {});
  /// input (world_size * numel,) -> output (numel,), the reduced slice of this rank.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::sum,
                      std::string_view label = {});
  /// input (numel,) -> output (world_size * numel,), in rank order.
  void all_gather(const at::Tensor& output, const at::Tensor& input, std::string_view label = {});
  /// In place: the tensor of `root` on all ranks.
  void broadcast(const at::Tensor& tensor, int root = 0, std::string_view label = {});
  /// In place on `root`; unchanged elsewhere.
  void reduce(const at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum, std::string_view label = {});
  /// `output` (world_size * numel,) on `root`, ignored elsewhere.
  void gather(const at::Tensor& output, const at::Tensor& input, int root = 0, std::string_view label = {});
  /// `input` (world_size * numel,) on `root`, ignored elsewhere.
  void scatter(const at::Tensor& output, const at::Tensor& input, int root = 0, std::string_view label = {});
  /// Slice r of `input` goes to rank r; both (world_size * numel,).
  void all_to_all(const at::Tensor& output, const at::Tensor& input, std::string_view label = {});
  /// Point to point, matched in the order of the calls between the two ranks; send waits until recv has the data.
  void send(const at::Tensor& tensor, int destination, std::string_view label = {});
  /// In place: the tensor that `source` sends to this rank.
  void recv(const at::Tensor& tensor, int source, std::string_view label = {});
  /// Waits until all ranks of the group are here.
  void barrier(std::string_view label = {});

  /// Bytes of any length, different on each rank; the result is indexed by rank.
  std::vector<std::string> all_gather_bytes(std::string_view bytes, std::string_view label = {});
  /// The result is empty except on `root`.
  std::vector<std::string> gather_bytes(std::string_view bytes, int root = 0, std::string_view label = {});
  /// The bytes of `root`, on all ranks.
  std::string broadcast_bytes(std::string bytes, int root = 0, std::string_view label = {});

  /// Zeroed memory, 64-byte aligned, that collectives of this communicator use without staging (collective: every rank
  /// requests the same amount in the same order). The memory outlives the communicator as long as a tensor holds it. It
  /// goes back to the machine with the last tensor, its addresses with the communicator.
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype);

  /// Zeroed memory that is one and the same on all ranks, 64-byte aligned: the others read one rank's writes after the
  /// next collective. No rank may write where another reads or writes before that. Undefined, on all ranks alike, if
  /// they have no memory in common (neither shm nor a single rank). Collective; outlives the communicator as long as
  /// any rank holds the tensor.
  at::Tensor allocate_shared(std::int64_t numel, at::ScalarType dtype);

  /// Collective. Ranks of one `color` form a group, ordered by (key, rank). A negative color: no group, nullptr.
  std::unique_ptr<Communicator> split(int color, int key);

  /// Waits until all work in the calling thread's current stream, collectives included, is over on the device; no wait
  /// on the CPU. Throws the reason if the communicator broke meanwhile, Error(timeout) past `timeout`. This is the one
  /// wait for a device that a step needs.
  void wait_on_host(std::string_view label = {});
  /// As above, until `event` is over.
  void wait_on_host(const DeviceEvent& event, std::string_view label = {});

  /// If `timed`: the waits of streams for a device's collectives since the last call. On the calling thread of
  /// these.
  virtual std::vector<TimedInterval> take_device_waits() { return {}; }

  /// Of this rank's tensors, and of the memory from allocate().
  at::Device device() const noexcept { return options_.device; }

  /// Any thread. Frees every waiter of this rank (and of the others, as they notice) within 1 s; the first reason wins.
  void abort(const ErrorReport& reason) noexcept;

  CollectiveLedger& ledger() noexcept { return *ledger_; }  ///< the calls of this rank, and its present wait
  /// The same ledger, for a thread that may outlive the communicator.
  std::shared_ptr<CollectiveLedger> shared_ledger() const noexcept { return ledger_; }

 protected:
  explicit Communicator(CommunicatorOptions options);
  const CommunicatorOptions& options() const noexcept { return options_; }
  /// The name of `rank` in errors.
  int member(int rank) const noexcept { return options_.members.empty() ? rank : options_.members[rank]; }
  /// The first reason why the communicator is broken, if it is. Any thread.
  std::optional<ErrorReport> broken() const;
  void throw_if_broken() const;
  /// Breaks the communicator for a reason outside of calls: a device's failure shows later. Any thread.
  void fail(ErrorReport reason) noexcept;

  // Called with checked arguments. `record` is this rank's entry in the ledger. An exception breaks the
  // communicator.
  virtual void do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) = 0;
  /// The default reduces, and updates everything here.
  virtual void do_all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update,
                                    const CollectiveRecord& record);
  virtual void do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                 const CollectiveRecord& record) = 0;
  virtual void do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) = 0;
  virtual void do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) = 0;
  virtual void do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) = 0;
  virtual void do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                         const CollectiveRecord& record) = 0;
  virtual void do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                          const CollectiveRecord& record) = 0;
  virtual void do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) = 0;
  virtual void do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) = 0;
  virtual void do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) = 0;
  virtual void do_barrier(const CollectiveRecord& record) = 0;
  /// (bytes,) u8, zeroed, 64-byte aligned. The default is plain memory.
  virtual at::Tensor do_allocate(std::int64_t bytes, const CollectiveRecord& record);
  /// As do_allocate; the default has none.
  virtual at::Tensor do_allocate_shared(std::int64_t bytes, const CollectiveRecord& record);
  /// Collective. Makes this rank's `group`, if it is in one: the default sets it up like any other.
  virtual std::unique_ptr<Communicator> do_split(std::optional<CommunicatorOptions> group, int color, int key);
  /// Frees every waiter here and informs the others; called once, with the first reason. Any thread.
  virtual void do_abort(const ErrorReport& reason) noexcept = 0;

 private:
  template <class Work>
  void perform(CollectiveRecord record, Work&& work);
  ErrorReport complete(ErrorReport report, const CollectiveRecord* record) const;
  bool break_with(const ErrorReport& reason) noexcept;
  /// All ranks' bytes, as far as they fit beside their length in one small frame; `max_bytes` is the longest.
  std::vector<std::string> exchange_frames(std::string_view bytes, std::string_view label, std::int64_t* max_bytes);

  CommunicatorOptions options_;
  std::shared_ptr<CollectiveLedger> ledger_;
  int splits_ = 0;

  mutable std::mutex broken_mutex_;
  std::optional<ErrorReport> broken_;  // guarded by broken_mutex_
  std::atomic<bool> is_broken_{false};
};

/// Collective over the ranks of `options`. `auto` means: one rank -> a communicator of one (so with every back end,
/// but for nccl with an NCCL in the options); a device -> nccl; all ranks on one host with memory proved to be shared
/// -> shm; several ranks on several hosts -> hierarchical; else gloo. Another name is that of a shipped back end, or
/// of a registered one (register_communicator), which makes it. Throws Error(unavailable) if a forced back end cannot
/// work.
std::unique_ptr<Communicator> make_communicator(CommunicatorOptions options);

}  // namespace troupe
