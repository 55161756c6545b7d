#include "actors/recovery/heal.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "actors/step/minority.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/device/host_copies.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // bytes

// Tensors of a device are hashed there, and the host waits once.
std::uint64_t hash_of(const std::vector<at::Tensor>& tensors) {
  const auto count = static_cast<std::int64_t>(tensors.size());
  at::Tensor there, hashes;
  Xxh3Stream all;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& tensor = tensors[static_cast<std::size_t>(i)];
    if (tensor.is_cpu()) {
      const auto hash = xxh3(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
      all.update(std::as_bytes(std::span(&hash, 1)));
    } else {
      if (!there.defined()) there = at::zeros({count}, tensor.options().dtype(at::kLong));
      hash_bytes(tensor, there.narrow(0, i, 1));
    }
  }
  if (there.defined()) {
    hashes = HostCopies::memory(static_cast<std::int64_t>(there.nbytes()), there.device()).view(at::kLong);
    HostCopies copies;
    copies.add(hashes, there);
    copies.wait();
    all.update({static_cast<const std::byte*>(hashes.const_data_ptr()), hashes.nbytes()});
  }
  return all.take();
}

}  // namespace

HealRoles heal_roles(const Membership& membership, bool first_alone, const std::vector<int>& among) {
  HealRoles roles;
  roles.first_alone = first_alone;
  const auto count = among.empty() ? membership.members.size() : among.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& member = membership.members[among.empty() ? i : static_cast<std::size_t>(among[i])];
    if (!member.newcomer && roles.first_donor < 0) roles.first_donor = static_cast<int>(i);
    roles.newcomer.push_back(member.newcomer);
  }
  return roles;
}

std::uint64_t hash_tensors(const NamedTensors& tensors) {
  std::vector<at::Tensor> flats;
  for (const auto& [name, tensor] : tensors) flats.push_back(tensor.detach().contiguous());
  return hash_of(flats);
}

void heal_tensors(const NamedTensors& tensors, const HealRoles& roles, Communicator& communicator, const char* what) {
  at::NoGradGuard no_grad;
  const auto& newcomer = roles.newcomer;
  std::vector<int> donors, newcomers, everyone;
  for (int r = 0; r < communicator.world_size(); ++r) {
    const bool receives = newcomer[static_cast<std::size_t>(r)];
    if (!receives && roles.first_alone && r != roles.first_donor) continue;
    (receives ? newcomers : donors).push_back(r);
    everyone.push_back(r);
  }
  if (newcomers.empty()) return;
  if (donors.empty()) throw Error(ErrorCode::internal, what, "no rank has the state");
  const int me = communicator.rank();
  const bool receiving = newcomer[static_cast<std::size_t>(me)];

  std::vector<at::Tensor> flats;  // contiguous, the live memory where that is
  for (const auto& [name, tensor] : tensors) flats.push_back(tensor.detach().contiguous());
  const auto compare = [&](const std::vector<int>& ranks, const char* when) {
    const auto hash = hash_of(flats);
    const auto hashes = communicator.all_gather_bytes({reinterpret_cast<const char*>(&hash), sizeof hash}, what);
    const auto differ = minority(ranks, [&](int rank) { return hashes[static_cast<std::size_t>(rank)]; });
    if (!differ.empty()) {
      const int odd = ranks[static_cast<std::size_t>(differ.front())];
      throw Error(ErrorReport{ErrorCode::mismatch, odd, "compute", -1, std::string("heal of ") + what,
                              "rank " + std::to_string(odd) + " holds different values from the others " + when,
                              "check the memory and network of its host"});
    }
  };
  compare(donors, "before it");
  fault_point("heal", communicator.ledger().step());
  std::size_t turn = 0;
  for (const auto& flat : flats) {
    const auto bytes = static_cast<std::int64_t>(flat.nbytes());
    const auto raw = flat.view(-1).view(at::kByte);
    for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
      const int donor = donors[turn++ % donors.size()];
      const auto piece = raw.narrow(0, begin, std::min(kPiece, bytes - begin));
      for (const int target : newcomers) {
        if (me == donor) communicator.send(piece, target, what);
        if (me == target) communicator.recv(piece, donor, what);
      }
    }
  }
  compare(everyone, "after it");
  if (!receiving) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto live = tensors[i].second.detach();
    if (live.data_ptr() != flats[i].data_ptr()) live.copy_(flats[i]);
  }
}

}  // namespace troupe
