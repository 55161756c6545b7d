#include "launch/loop/own_state.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include "actors/recovery/heal.hpp"
#include "actors/recovery/heal_header.hpp"
#include "actors/step/minority.hpp"
#include "actors/strategy/snapshots.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/model/model_file.hpp"
#include "launch/process/displayable.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {
namespace {

constexpr std::string_view kPrefix = "state.";
constexpr std::size_t kCopies = 2;  // the last snapshot, and the one before it, should a rank be lost while it is taken

std::string full_name(const std::string& state, const std::string& tensor) {
  return std::string(kPrefix) + state + (tensor.empty() ? "" : "." + tensor);
}

NamedTensors tensors_of_state(const std::string& state, const NamedTensors& all) {
  NamedTensors tensors;
  const auto whole = full_name(state, {}), inner = whole + ".";
  for (const auto& [name, tensor] : all) {
    if (name == whole) tensors.emplace_back("", tensor);
    if (name.starts_with(inner)) tensors.emplace_back(name.substr(inner.size()), tensor);
  }
  return tensors;
}

NamedTensors copy_of(const NamedTensors& tensors) {
  NamedTensors copy;
  for (const auto& [name, tensor] : tensors) copy.emplace_back(name, tensor.detach().clone());
  return copy;
}

}  // namespace

OwnStateAccess access_to_module(torch::nn::Module& module) {
  return {[&module] { return live_tensors(module); },
          [&module](const NamedTensors& from) {
            torch::NoGradGuard no_grad;
            for (auto& item : live_tensors(module)) {
              const auto& name = item.first;
              auto& tensor = item.second;
              const auto found =
                  std::find_if(from.begin(), from.end(), [&](const auto& one) { return one.first == name; });
              if (found == from.end() || found->second.sizes() != tensor.sizes())
                throw Error(ErrorCode::mismatch, "state",
                            "'" + name + "' of the saved module is missing or has another shape",
                            "build the module as it was when it was saved");
              tensor.copy_(found->second);
            }
          }};
}

void assign_own_state(at::Tensor& value, const at::Tensor& from) {
  torch::NoGradGuard no_grad;
  if (value.defined() && value.sizes() == from.sizes() && value.scalar_type() == from.scalar_type()) {
    value.detach().copy_(from);
  } else {
    value = value.defined() ? from.to(value.device(), /*non_blocking=*/false, /*copy=*/true) : from.clone();
  }
}

at::Tensor bytes_of_own_state(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of_own_state(const NamedTensors& tensors) {
  if (tensors.size() != 1 || tensors[0].second.scalar_type() != at::kByte || tensors[0].second.dim() != 1)
    throw Error(ErrorCode::mismatch, "state", "the state saved under this name is of another type",
                "register the state as it was when it was saved, or under another name");
  const auto bytes = tensors[0].second.cpu().contiguous();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

void OwnState::add(const std::string& name, OwnStateAccess access) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  if (name.empty() || name.size() > 100 || !std::all_of(name.begin(), name.end(), fits))
    throw Error(ErrorCode::usage, "state", "'" + name + "' is not a valid state name",
                "use letters, digits, _ and -, at most 100 characters");
  if (!states_.emplace(name, std::move(access)).second)
    throw Error(ErrorCode::usage, "state", "there is already a state '" + name + "'", "give each state its own name");
  has_ = has_ || system_of(rank_).compute().membership().generation == 1;
}

NamedTensors OwnState::tensors() const {
  NamedTensors tensors;
  for (const auto& [name, access] : states_) {
    for (const auto& [inner, tensor] : access.get()) tensors.emplace_back(full_name(name, inner), tensor);
  }
  return tensors;
}

void OwnState::check_equal() const {
  auto& compute = system_of(rank_).compute();
  if (states_.empty() || !compute.strategy().replicas_equal()) return;
  std::string text;  // of each state as many characters
  for (const auto& [name, access] : states_) {
    const auto mine = access.get();
    text += xxh3_text(xxh3(shapes_of(mine))) + xxh3_text(hash_tensors(mine));
  }
  const auto hashes = compute.program_communicator().all_gather_bytes(text, "state");
  const auto odd = minority(hashes, [](const std::string& hash) { return hash; });
  if (odd.empty()) return;
  const auto& theirs = hashes[static_cast<std::size_t>(odd.front())];
  const auto& other = *std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != theirs; });
  std::string name;  // of the first that differs; a rank may have other states at all
  if (theirs.size() == other.size()) {
    const auto same = std::mismatch(theirs.begin(), theirs.end(), other.begin()).first - theirs.begin();
    const auto number = static_cast<std::size_t>(same) * states_.size() / theirs.size();
    name = " '" + std::next(states_.begin(), static_cast<std::ptrdiff_t>(number))->first + "'";
  }
  throw Error(ErrorReport{
      ErrorCode::mismatch,
      odd.front(),
      {},
      rank_.steps_done(),
      "state",
      "the state" + name + " of rank " + std::to_string(odd.front()) + " differs from that of the other ranks",
      "change it in the same way on all ranks, from values that are the same on all"});
}

std::string OwnState::names() const {
  std::string names;
  for (const auto& [name, access] : states_) names += (names.empty() ? "" : ",") + name;
  return names;
}

OwnState::Saved OwnState::read(const StateReader& saved, const std::string& names,
                               const std::function<void(const std::string&)>& note) const {
  Saved mine;
  std::istringstream words(names);
  for (std::string name; std::getline(words, name, ',');) {
    if (states_.contains(name)) {
      mine.names.insert(name);
    } else {
      note("the checkpoint's state '" + displayable(name) + "' is ignored: the program has none of this name");
    }
  }
  for (const auto& [name, access] : states_) {
    if (!mine.names.contains(name)) note("the checkpoint has no state '" + name + "': it begins anew");
  }
  for (const auto& [name, entry] : saved.entries()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto inner = name.substr(kPrefix.size());
    if (mine.names.contains(inner.substr(0, inner.find('.')))) mine.tensors.emplace_back(name, saved.read(name));
  }
  return mine;
}

void OwnState::accept(const Saved& saved) {
  for (const auto& name : saved.names) states_.at(name).set(tensors_of_state(name, saved.tensors));
}

void OwnState::take(const NamedTensors& tensors) {
  for (const auto& [name, access] : states_) access.set(tensors_of_state(name, tensors));
}

bool OwnState::goes_back() const {
  auto& compute = system_of(rank_).compute();
  return compute.options().may_recover && compute.strategy().capability<Snapshots>() != nullptr;
}

void OwnState::settle(DueTasks due) {
  const auto generation = system_of(rank_).compute().membership().generation;
  if (states_.empty() || generation_ == generation) return;
  go_back(due);
  heal();
  has_ = true;
  generation_ = generation;
}

void OwnState::go_back(DueTasks due) {
  const auto done = rank_.steps_done();
  std::erase_if(copies_, [done](const auto& copy) { return copy.first > done; });
  const auto begun = before_tasks_.lower_bound(due.first);
  if (tasks_of_ == done && begun != before_tasks_.end()) {
    take(begun->second);
    before_tasks_.erase(begun, before_tasks_.end());
  } else if (due.all && !copies_.empty() && copies_.back().first == done) {
    take(copies_.back().second);
  }
}

void OwnState::begin_task(int task) {
  if (states_.empty() || !system_of(rank_).compute().options().may_recover) return;
  if (std::exchange(tasks_of_, rank_.steps_done()) != rank_.steps_done()) before_tasks_.clear();
  before_tasks_[task] = copy_of(tensors());
}

// Those that have taken part in a generation before have the states as they are between these two steps.
void OwnState::heal() {
  auto& communicator = rank_.communicator();
  auto mine = tensors();
  const auto words = communicator.all_gather_bytes((has_ ? "+" : "-") + shapes_of(mine), "state");
  HealRoles roles;
  roles.first_alone = !system_of(rank_).compute().strategy().replicas_equal();
  for (std::size_t r = 0; r < words.size(); ++r) {
    const bool has = words[r].starts_with("+");
    if (has && roles.first_donor < 0) roles.first_donor = static_cast<int>(r);
    roles.newcomer.push_back(!has);
  }
  if (roles.first_donor < 0 || std::none_of(roles.newcomer.begin(), roles.newcomer.end(), [](bool is) { return is; }))
    return;
  const auto& outline = words[static_cast<std::size_t>(roles.first_donor)];
  if (!has_) mine = zeros_of_shapes(outline.substr(1), rank_.device());
  if (has_ && outline.substr(1) != shapes_of(mine))
    throw Error(
        ErrorReport{ErrorCode::mismatch,
                    rank_.rank(),
                    {},
                    rank_.steps_done(),
                    "state",
                    "the program's state on this rank differs from that of rank " + std::to_string(roles.first_donor),
                    "change what rank.state was given in the same way on all ranks"});
  heal_tensors(mine, roles, communicator, "the program's state");
  if (!has_) take(mine);
}

void OwnState::keep_if_needed(DueTasks due) {
  if (states_.empty() || !goes_back()) return;
  const auto done = rank_.steps_done();
  const auto every = rank_.config().snapshot_every;
  const auto generation = system_of(rank_).compute().membership().generation;
  if (every <= 0 || (copied_in_ == generation && done % every != 0)) return;
  // Tasks that are done have changed them, and those who go back do the tasks again. A run begins with its tasks done.
  const bool known = !copies_.empty() && copies_.back().first == done;
  if (known && !due.all) return;
  std::erase_if(copies_, [done](const auto& copy) { return copy.first >= done; });
  copies_.emplace_back(done, copy_of(tensors()));
  while (copies_.size() > kCopies) copies_.pop_front();
  copied_in_ = generation;
}

}  // namespace troupe
